"""The ORM program: P(the final answer is right), at every token or the last.

It uses the same batches as the PRM, with the outcome as target
(encoding.orm_examples); it has a head and compiled programs of its own.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar

from jaxtyping import Array

from prm_jax import batch as batch_lib
from prm_jax import errors
from prm_jax.runtime import checks
from prm_jax.text import encoding
from prm_jax.training import bradley_terry
from prm_jax.training import losses
from prm_jax.training import program


@dataclasses.dataclass(frozen=True)
class ORMConfig:
  """What an ORM is trained for.

  Args:
    loss: bce, or bradley_terry, which compares right with wrong solutions.
    margin: The margin of bradley_terry, by default 0.
    outcome_target: At which tokens the outcome is learned; see
      encoding.orm_examples.
  """

  loss: str = "bce"
  margin: float | None = None
  outcome_target: str = "every_token"

  def __post_init__(self):
    checks.check_choice("objective.loss", self.loss, tuple(LOSSES))
    program.check_unread(self, LOSSES)
    checks.check_margin(self.margin)
    checks.check_choice(
      "objective.outcome_target", self.outcome_target, encoding.OUTCOME_TARGETS
    )
    if self.compares and self.outcome_target != "last_step":
      raise errors.InputError(
        f"objective.outcome_target={self.outcome_target!r}: bradley_terry"
        " compares solutions by their last step; set it to 'last_step'"
      )

  @property
  def compares(self) -> str | None:
    return "solutions" if LOSSES[self.loss].compares else None

  whole_solutions: ClassVar[bool] = False
  scoring: ClassVar[dict[str, Any]] = {}

  @property
  def judged(self) -> str:
    return "last" if self.outcome_target == "last_step" else "all"


def _bce(
  objective: ORMConfig, logits: Array, batch: batch_lib.Batch
) -> program.LossSums:
  del objective
  total, weight = losses.step_bce(logits, batch.labels, batch.weights)
  hit = (logits >= 0) == (batch.labels >= 0.5)
  return total, weight, dict(right=(hit * batch.weights).sum())


LOSSES = dict(
  bce=program.LossKind(_bce, program.accuracy),
  bradley_terry=bradley_terry.KIND,
)


def encoder(objective: ORMConfig) -> program.Encoder:
  """Returns a function that encodes solutions with the outcome as target."""
  return functools.partial(
    encoding.orm_examples, target=objective.outcome_target
  )
