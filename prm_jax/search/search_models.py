"""Policies and reward models, as a search uses and counts them."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses

from jaxtyping import Int
import numpy as np

from prm_jax import schema
from prm_jax.search import bill as bill_lib

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
