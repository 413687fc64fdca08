"""Policies and reward models, as a search uses and counts them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses

import jax
from jaxtyping import Int
import numpy as np

from prm_jax import schema
from prm_jax.policy import rollout_engine as engine_lib
from prm_jax.policy import sampler as sampler_lib
from prm_jax.scoring import cached_scorer
from prm_jax.scoring import scorer as scorer_lib
from prm_jax.search import bill as bill_lib
from prm_jax.training import programs

# Where a completion's extra holds the tokens of its prompt, as a server counts
# them.
PROMPT_TOKENS = "prompt_tokens"

# The ids that a model reads for an unfinished solution.
Encode = Callable[[schema.Solution], Int[np.ndarray, " T"]]


@dataclasses.dataclass(frozen=True, eq=False)
class Policy:
  """A model that writes.

  Each function is called with one completion for each prefix. What it writes
  depends on the prefix's id, which no two calls share; `extra` of what it
  returns has schema.STATISTICS, of which num_tokens, stopped and ended are
  read.

  Args:
    step: Continues solutions by one step.
    whole: Continues solutions to their end.
    greedy_step: Continues solutions by their likeliest step, to look ahead; None
      if nothing looks ahead.
    encode: The ids that are read before the first new one; None if they aren't
      known (a server's). Then `extra` has PROMPT_TOKENS if they were counted.
    cost: The FLOPs of a token; None if they aren't known.
    compute_dtype: The type that it computes in; None if that isn't known.
  """

  step: schema.Generate
  whole: schema.Generate
  greedy_step: schema.Generate | None = None
  encode: Encode | None = None
  cost: bill_lib.Cost | None = None
  compute_dtype: str | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Verifier:
  """What scores steps: a PRM, an ORM, a judge, an exact verifier.

  Args:
    score: Scores solutions, whole or begun.
    aggregate: How step scores become a solution's score; see voting.aggregate.
    encode: The ids that are read up to the last score; None if they aren't known.
    cost: The FLOPs of a token; None if they aren't known.
    forget: Drops what scoring has kept. It is called before each search, so
      that no score depends on what was searched before.
    compute_dtype: The type that it computes in; None if that isn't known.
  """

  score: schema.Score
  aggregate: str = "product"
  encode: Encode | None = None
  cost: bill_lib.Cost | None = None
  forget: Callable[[], None] = lambda: None
  compute_dtype: str | None = None


def of_sampler(
  policy: sampler_lib.Sampler,
  sampling: sampler_lib.Sampling,
  *,
  max_step_tokens: int | None = None,
  seed: int = 0,
  slots: int = 64,
  watch: Callable[[engine_lib.Work], None] = lambda work: None,
) -> Policy:
  """Returns a policy that writes in the rollout engine.

  Args:
    policy: The policy.
    sampling: How it samples. Its max_tokens is that of a whole solution; see
      engine.Limits for one that is written by steps.
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
  whole = engine_lib.of(policy, slots=slots)
  by_step = dataclasses.replace(whole, stop_at_step=True)

  def generate(
    engine: engine_lib.Engine, how: sampler_lib.Sampling
  ) -> schema.Generate:
    def call(
      prefixes: Sequence[schema.Solution], num: int
    ) -> list[list[schema.Solution]]:
      rows, work = engine.generate(prefixes, num, how, key)
      watch(work)
      return rows

    return call

  return Policy(
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
) -> Verifier:
  """Returns a reward model that keeps what it reads in a search.

  An implicit PRM, whose scores are sums over whole solutions, is used without a
  cache, and its cost isn't known: it reads each solution whole, with two models.

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

  if programs.KINDS[scorer.program].scores_whole_solutions:
    return Verifier(scorer.score, aggregate, compute_dtype=compute_dtype)
  cached = cached_scorer.CachedScorer(scorer, cache_tokens=cache_tokens)

  def score(solutions: Sequence[schema.Solution]) -> list[schema.StepScores]:
    before = cached.work
    rows = cached.score(solutions)
    watch(cached.work - before)
    return rows

  return Verifier(
    score,
    aggregate,
    encode,
    cost,
    forget=cached.clear,
    compute_dtype=compute_dtype,
  )
