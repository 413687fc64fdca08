"""Our own policies and reward models, as a search has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses

import jax
from jaxtyping import Int
import numpy as np

from prm_jax import schema
from prm_jax.policy import rollout_engine
from prm_jax.policy import sampler as sampler_lib
from prm_jax.scoring import cached_scorer
from prm_jax.scoring import scorer as scorer_lib
from prm_jax.search import bill as bill_lib
from prm_jax.search import search_models


def of_sampler(
  policy: sampler_lib.Sampler,
  sampling: sampler_lib.Sampling,
  *,
  max_step_tokens: int | None = None,
  seed: int = 0,
  slots: int = 64,
  watch: Callable[[rollout_engine.Work], None] = lambda work: None,
) -> search_models.Policy:
  """Returns a policy that writes in the rollout engine.

  Args:
    policy: The policy.
    sampling: How it samples. Its max_tokens is that of a whole solution; see
      search_limits.Limits for one that is written by steps.
    max_step_tokens: The most tokens of a step; None is sampling.max_tokens.
    seed: The seed of all that it writes.
    slots: The number of completions that are written at the same time.
    watch: Called after each call with the work that it took.

  Returns:
    The policy.
  """
  key = jax.random.key(seed)
  most = min(max_step_tokens or sampling.max_tokens, sampling.max_tokens)
  of_step = dataclasses.replace(sampling, max_tokens=most)
  greedy = sampler_lib.Sampling(most, temperature=0.0)
  whole = rollout_engine.of(policy, slots=slots)
  by_step = dataclasses.replace(whole, stop_at_step=True)

  def generate(
    engine: rollout_engine.Engine, how: sampler_lib.Sampling
  ) -> schema.Generate:
    def call(
      prefixes: Sequence[schema.Solution], num: int
    ) -> list[list[schema.Solution]]:
      rows, work = engine.generate(prefixes, num, how, key)
      watch(work)
      return rows

    return call

  return search_models.Policy(
    step=generate(by_step, of_step),
    whole=generate(whole, sampling),
    greedy_step=generate(by_step, greedy),
    encode=lambda prefix: policy.codec.prompt(prefix).tokens,
    cost=bill_lib.cost_of(policy.config, writes=True),
    compute_dtype=policy.config.compute_dtype,
  )


def of_scorer(
  scorer: scorer_lib.Scorer,
  *,
  aggregate: str | None = None,
  cache_tokens: int = 65_536,
  watch: Callable[[cached_scorer.Work], None] = lambda work: None,
) -> search_models.Verifier:
  """Returns a reward model that keeps what it reads in a search.

  One whose solutions share no prefixes (an implicit PRM, steps that are read
  apart) is used without a cache, and its cost isn't known.

  Args:
    scorer: The reward model.
    aggregate: How step scores become a solution's score; None is the scorer's.
    cache_tokens: The room of the prefix cache, in tokens.
    watch: Called after each call with the work that it took.

  Returns:
    The verifier.
  """
  aggregate = aggregate or scorer.aggregate
  cost = bill_lib.cost_of(scorer.config, writes=False)
  compute_dtype = scorer.config.compute_dtype

  def encode(solution: schema.Solution) -> Int[np.ndarray, " T"]:
    encoded = scorer.encode(solution)
    last = int(encoded.step_end[-1]) + 1 if len(encoded.step_end) else 0
    return encoded.tokens[:last]

  if scorer.shares_nothing:
    return search_models.Verifier(
      scorer.score, aggregate, compute_dtype=compute_dtype
    )
  cached = cached_scorer.CachedScorer(scorer, cache_tokens=cache_tokens)

  def score(solutions: Sequence[schema.Solution]) -> list[schema.StepScores]:
    before = cached.work
    rows = cached.score(solutions)
    watch(cached.work - before)
    return rows

  return search_models.Verifier(
    score,
    aggregate,
    encode,
    cost,
    forget=cached.clear,
    compute_dtype=compute_dtype,
  )
