"""The policy of `prm-jax label` and `search`, which aren't verbs yet.

Its options are those of inference/policy.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
import contextlib
import dataclasses
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.cli import flags
from prm_jax.cli import models
from prm_jax.inference import engine as engine_lib
from prm_jax.inference import policy as policy_lib
from prm_jax.inference import sampler
from prm_jax.runtime import checks
from prm_jax.search import chunks
from prm_jax.search import models as search_models


def of(
  args: argparse.Namespace,
) -> tuple[policy_lib.Policy, policy_lib.Sampling]:
  """Returns the policy that the options describe, and how it samples.

  Args:
    args: The parsed arguments.
  """
  writing, _ = flags.value(policy_lib.Writing, vars(args))
  return writing.policy, writing.sampling


def asked(args: argparse.Namespace, name: str) -> dict[str, Any]:
  """Returns what is known of `depends_on` before a policy is loaded.

  Args:
    args: The parsed arguments.
    name: The policy's folder; of what is none nothing is known.
  """
  policy, sampling = of(args)
  return dataclasses.replace(policy, source=name).asked(sampling)


@contextlib.contextmanager
def policy(
  args: argparse.Namespace, counts: Counter[str]
) -> Iterator[policy_lib.Writer]:
  """Yields the checkpoint, or the model of an endpoint, that --policy names.

  Args:
    args: The parsed arguments.
    counts: The counts to which its work is added.
  """
  found, sampling = of(args)
  replies = policy_lib.replies_path(args.output)
  with found.opened(sampling, args.seed, replies, counts) as writer:
    yield writer


@contextlib.contextmanager
def searched(
  args: argparse.Namespace, counts: Counter[str]
) -> Iterator[tuple[search_models.Policy, dict[str, Any]]]:
  """Yields --policy as a search has it, and what its steps depend on.

  Args:
    args: The parsed arguments, with max_step_tokens.
    counts: The counts to which what the machine did is added.
  """
  policy, options = of(args)
  policy.check(loads_scorer=models.is_checkpoint(args.scorer))
  if policy.is_server:
    with _served_search(args, counts) as found:
      yield found
    return
  loaded, sampling, depends_on = policy.loaded(options, args.seed)

  def watch(work: engine_lib.Work) -> None:
    counts.update(
      {f"engine_{name}": n for name, n in dataclasses.asdict(work).items()}
    )

  more: dict[str, Any] = dict(
    seed=args.seed, slots=policy.slots or policy_lib.SLOTS, watch=watch
  )
  if vars(args).get("chunk_tokens") is None:
    more["max_step_tokens"] = args.max_step_tokens
    yield search_models.of_sampler(loaded, sampling, **more), depends_on
    return
  checks.check_counts(args, ("chunk_tokens",), "--")
  more["chunk_tokens"] = args.chunk_tokens
  yield chunks.of_sampler(loaded, sampling, **more), depends_on


@contextlib.contextmanager
def _served_search(
  args: argparse.Namespace, counts: Counter[str]
) -> Iterator[tuple[search_models.Policy, dict[str, Any]]]:
  """Yields the model at a URL as a search has it."""
  policy, options = of(args)
  sampling = options.with_defaults({})
  most = min(args.max_step_tokens or sampling.max_tokens, sampling.max_tokens)
  of_step = dataclasses.replace(sampling, max_tokens=most)
  greedy = sampler.Sampling(most, temperature=0.0)
  if vars(args).get("chunk_tokens") is not None:
    raise errors.InputError(
      f"--policy={args.policy}: chunk_guidance needs a policy's token ids; give a"
      " checkpoint folder"
    )
  replies = policy_lib.replies_path(args.output)
  with policy.asking(replies) as (client, depends_on):

    def generate(how: sampler.Sampling, by_step: bool) -> schema.Generate:
      def call(prefixes, num):
        with policy_lib.counting(client, counts):
          return client.generate(
            *(prefixes, num, how, args.seed),
            stop_at_step=by_step,
            count_prompts=True,
          )

      return call

    yield (
      search_models.Policy(
        generate(of_step, True),
        generate(sampling, False),
        generate(greedy, True),
      ),
      depends_on | sampling.record() | dict(seed=args.seed),
    )
