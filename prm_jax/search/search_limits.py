"""Where a search ends: limits of a solution, budgets of a problem."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from prm_jax.runtime import verbs

# A number of them, such as 2e12.
FLOPs = Annotated[float, verbs.number, verbs.at_least_one]


@dataclasses.dataclass(frozen=True)
class Limits(verbs.Value):
  """Where a search of a problem ends.

  Args:
    max_steps: The most steps of a solution; a longer one is cut there.
    max_tokens: The most tokens that are sampled for a solution, over all of its
      steps; the step that reaches it is its last. None is no limit, in a Search
      that of its sampling.
    budget_tokens: Begin nothing more for a problem once its policies have
      sampled as many tokens (default: no budget).
    budget_flops: Begin nothing more for a problem once the FLOPs of policies
      and scorer are as many, such as 2e12 (checkpoint folders only; default: no
      budget).
    lookahead: The number of most likely steps that are written after a step
      only to score it, and are paid for (Snell et al. 2024, arXiv 2408.03314).
  """

  first_is_whole = False

  max_steps: verbs.Count = 64
  max_tokens: verbs.Count | None = dataclasses.field(
    default=None, metadata=verbs.NO_OPTION
  )
  budget_tokens: verbs.Count | None = None
  budget_flops: FLOPs | None = None
  lookahead: verbs.Natural = 0
