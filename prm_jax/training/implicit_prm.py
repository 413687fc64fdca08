"""The implicit PRM: a language model whose log-ratio to a reference rewards.

Yuan et al. 2024 (arXiv 2412.01981) and PRIME (arXiv 2502.01456). The model is
trained on outcomes alone. beta * sum log(pi / pi_ref) over the first tokens of
a solution is then a value of that prefix, and its increase over a step is the
step's reward.

The reference is the model that training starts from. It is a part of the
parameters, params["reference"], so every checkpoint can be scored on its own.
It is frozen: it has no gradient and no optimizer state.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import Any, ClassVar

from prm_jax.models import kinds
from prm_jax.runtime import checks
from prm_jax.training import bradley_terry
from prm_jax.training import losses
from prm_jax.training import program

STEP_SCORES = ("cumulative", "increment")
REFERENCE = kinds.REFERENCE


@dataclasses.dataclass(frozen=True)
class ImplicitConfig:
  """What an implicit PRM is trained for.

  Args:
    loss: implicit_ce, the cross-entropy of each solution's outcome, or
      implicit_dpo, which compares right with wrong solutions.
    beta: The scale of the reward.
    step_score: What a step's score is: cumulative or increment; see `scores`.
  """

  loss: str = "implicit_ce"
  beta: float = losses.IMPLICIT_BETA
  step_score: str = "cumulative"

  def __post_init__(self):
    checks.check_choice("objective.loss", self.loss, tuple(LOSSES))
    checks.check_positive(self, ("beta",), "objective.")
    checks.check_choice("objective.step_score", self.step_score, STEP_SCORES)

  @property
  def compares(self) -> str | None:
    return "solutions" if LOSSES[self.loss].compares else None

  whole_solutions: ClassVar[bool] = True

  @property
  def judged(self) -> str:
    return "last"  # The outcome is learned there.

  @property
  def scoring(self) -> dict[str, Any]:
    return dict(beta=self.beta, step_score=self.step_score)


# Rows must hold separate solutions, encoded by encoding.implicit_examples.
def _ce(objective, ratios, batch) -> program.LossSums:
  rows = ratios, batch.labels, batch.weights, batch.visible_until
  return *losses.implicit_ce(*rows, beta=objective.beta), {}


def _dpo(objective, ratios, batch) -> program.LossSums:
  rows = ratios, batch.labels, batch.weights, batch.visible_until
  pairs = bradley_terry.groups(batch)
  return *losses.implicit_dpo(*rows, pairs, beta=objective.beta), {}


LOSSES = dict(
  implicit_ce=program.LossKind(_ce),
  implicit_dpo=program.LossKind(_dpo, compares=True),
)


def begin_from(params: Mapping[str, Any]) -> dict[str, Any]:
  """Returns initial parameters in which both model and reference are `params`.

  If `params` are those of an implicit PRM, their own reference is left out.
  """
  model = {k: v for k, v in params.items() if k != REFERENCE}
  return {**model, REFERENCE: model}
