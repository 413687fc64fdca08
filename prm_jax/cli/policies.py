"""The model that `prm-jax label --policy` names.

A checkpoint folder runs in the rollout engine; an http address is asked for
completions. Only this module joins labellers and models.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import pathlib
from typing import Any

import jax

from prm_jax import errors
from prm_jax import schema
from prm_jax.checkpoints import model_json
from prm_jax.inference import engine as engine_lib
from prm_jax.inference import remote
from prm_jax.inference import sampler
from prm_jax.labelling import omega_tree
from prm_jax.runtime import files

# Is told how many completions a call has drawn so far.
Tell = Callable[[int], None]
# A schema.Generate that tells how far it is.
Complete = Callable[
  [Sequence[schema.Solution], int, Tell], list[list[schema.Solution]]
]


@dataclasses.dataclass(frozen=True)
class Policy:
  """A model that writes, and what its completions depend on.

  Args:
    complete: Completes prefixes, and reports how far it is.
    depends_on: What the completions depend on, as plain data.
    log_likelihoods: How likely it finds texts; None if that isn't known.
    count_tokens: How many tokens some steps have; None if that isn't known.
  """

  complete: Complete
  depends_on: dict[str, Any]
  log_likelihoods: schema.LogLikelihood | None = None
  count_tokens: omega_tree.CountTokens | None = None

  def bind(self, tell: Tell) -> schema.Generate:
    """Returns the model as a Generate.

    Args:
      tell: Called with the number of completions that a call has so far.
    """
    return lambda prefixes, n: self.complete(prefixes, n, tell)


def replies_path(output: pathlib.Path) -> pathlib.Path:
  """Returns the journal of a server's replies, beside the output."""
  return output.with_name(f"{output.name}.replies")


@contextlib.contextmanager
def policy(args: argparse.Namespace, counts: Counter[str]) -> Iterator[Policy]:
  """Yields the checkpoint, or the model of an endpoint, that --policy names.

  Args:
    args: The parsed arguments.
    counts: The counts to which its work is added.
  """
  sampling = sampler.Sampling(args.max_tokens, args.temperature, args.top_p)
  depends_on = dataclasses.asdict(sampling) | dict(seed=args.seed)
  if args.policy.startswith(("http://", "https://")):
    with _endpoint(args, sampling, counts) as served:
      model = dict(model=args.model, chat=args.chat, prompt=args.prompt)
      yield dataclasses.replace(served, depends_on=model | depends_on)
    return
  folder = files.local_path(args.policy)
  loaded = sampler.load(folder, args.step)
  engine = engine_lib.Engine(loaded.config, loaded.params, loaded.tokenizer)
  key = jax.random.key(args.seed)

  def complete(prefixes, n, tell):
    rows, work = engine.generate(prefixes, n, sampling, key, tell)
    counts["prefilled_tokens"] += work.prefilled
    counts["slot_steps"] += work.slot_steps
    return rows

  def count_tokens(steps: Sequence[str]) -> int:
    return sum(len(loaded.tokenizer.encode(step)) + 1 for step in steps)

  fingerprint = model_json.fingerprint(folder, loaded.params)
  depends_on = dict(policy=fingerprint) | depends_on
  yield Policy(complete, depends_on, loaded.log_likelihoods, count_tokens)


@contextlib.contextmanager
def _endpoint(
  args: argparse.Namespace, sampling: sampler.Sampling, counts: Counter[str]
) -> Iterator[Policy]:
  """Yields the model at a URL; a journal saves its replies one by one."""
  if args.model is None:
    raise errors.InputError(
      f"--policy={args.policy}: give --model, the name it is served by"
    )
  if args.step is not None:
    raise errors.InputError(f"--step={args.step}: an endpoint has no steps")
  endpoint = remote.Endpoint(
    args.policy,
    args.model,
    chat=args.chat,
    key_variable=args.key_variable,
    insecure_key=args.insecure_key,
    concurrency=args.concurrency,
  )
  replies = replies_path(args.output)
  template = remote.Template(args.prompt)
  with remote.Client(endpoint, template, replies) as client:

    def complete(prefixes, n, tell):
      before = client.counts
      rows = client.generate(prefixes, n, sampling, args.seed, progress=tell)
      done = client.counts - before
      counts.update({f"endpoint_{name}": n for name, n in done.items()})
      return rows

    yield Policy(complete, {}, None if args.chat else client.log_likelihoods)
