"""The policies of a search, opened: folders, or models at a server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
import contextlib
import dataclasses
import pathlib
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.jobs import opened_policies
from prm_jax.jobs import policies
from prm_jax.policy import rollout_engine
from prm_jax.policy import sampler
from prm_jax.policy import sampling as sampling_lib
from prm_jax.search import chunks
from prm_jax.search import own_models
from prm_jax.search import search_models


@dataclasses.dataclass(frozen=True)
class How:
  """How a policy writes in a search.

  Args:
    sampling: How it samples.
    seed: The seed of what it writes.
    max_step_tokens: The most tokens of a step; None are those of a solution.
    chunk_tokens: The tokens of a chunk, which is a step then; None has steps.
  """

  sampling: sampling_lib.Sampling
  seed: int
  max_step_tokens: int | None = None
  chunk_tokens: int | None = None


@contextlib.contextmanager
def opened(
  policy: policies.Policy,
  how: How,
  replies: pathlib.Path | None,
  counts: Counter[str],
) -> Iterator[tuple[search_models.Policy, dict[str, Any]]]:
  """Yields a policy as a search has it, and what its steps depend on.

  Args:
    policy: The policy.
    how: How it writes.
    replies: The journal of a server's replies; None has none.
    counts: The counts to which what the machine did is added.

  Raises:
    InputError: It can't be opened, or a server is to write chunks.
  """
  if policy.is_server:
    with _served(policy, how, replies, counts) as found:
      yield found
    return
  loaded, sampling, depends_on = policy.loaded(how.sampling, how.seed)

  def watch(work: rollout_engine.Work) -> None:
    counts.update(
      {f"engine_{name}": n for name, n in dataclasses.asdict(work).items()}
    )

  more: dict[str, Any] = dict(
    seed=how.seed, slots=policy.slots or policies.SLOTS, watch=watch
  )
  if how.chunk_tokens is not None:
    more["chunk_tokens"] = how.chunk_tokens
    yield chunks.of_sampler(loaded, sampling, **more), depends_on
    return
  more["max_step_tokens"] = how.max_step_tokens
  yield own_models.of_sampler(loaded, sampling, **more), depends_on


@contextlib.contextmanager
def _served(
  policy: policies.Policy,
  how: How,
  replies: pathlib.Path | None,
  counts: Counter[str],
) -> Iterator[tuple[search_models.Policy, dict[str, Any]]]:
  """Yields the model at a URL as a search has it."""
  sampling = how.sampling.with_defaults({})
  most = min(how.max_step_tokens or sampling.max_tokens, sampling.max_tokens)
  of_step = dataclasses.replace(sampling, max_tokens=most)
  greedy = sampler.Sampling(most, temperature=0.0)
  if how.chunk_tokens is not None:
    raise errors.InputError(
      f"`policy={policy.source}`: chunk_guidance needs a policy's token ids; give"
      " a checkpoint folder"
    )
  with opened_policies.asking(policy, replies) as (client, depends_on):

    def generate(asked: sampler.Sampling, by_step: bool) -> schema.Generate:
      def call(prefixes, num):
        with opened_policies.counting(client, counts):
          return client.generate(
            *(prefixes, num, asked, how.seed),
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
      depends_on | sampling.record() | dict(seed=how.seed),
    )
