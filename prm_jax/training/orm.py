"""The ORM program: P(the final answer is right), at every token or the last.

It uses the same batches as the PRM, with the outcome as target
(encoding.orm_examples); it has a head and compiled programs of its own.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar

import jax
from jax import numpy as jnp
from jaxtyping import Array

from prm_jax import batch as batch_lib
from prm_jax import errors
from prm_jax.models import model_config as model_config
from prm_jax.models import transformer
from prm_jax.runtime import checks
from prm_jax.text import encoding
from prm_jax.training import bradley_terry
from prm_jax.training import losses
from prm_jax.training import program

LOSSES = ("bce", "bradley_terry")


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
    checks.check_choice("objective.loss", self.loss, LOSSES)
    if self.loss != "bradley_terry":
      checks.check_unset(self, ("margin",), "bradley_terry")
    checks.check_margin(self.margin)
    checks.check_choice(
      "objective.outcome_target", self.outcome_target, encoding.OUTCOME_TARGETS
    )
    if self.loss == "bradley_terry" and self.outcome_target != "last_step":
      raise errors.InputError(
        f"objective.outcome_target={self.outcome_target!r}: bradley_terry"
        " compares solutions by their last step; set it to 'last_step'"
      )

  @property
  def compares(self) -> str | None:
    return "solutions" if self.loss == "bradley_terry" else None

  whole_solutions: ClassVar[bool] = False
  scoring: ClassVar[dict[str, Any]] = {}

  @property
  def judged(self) -> str:
    return "last" if self.outcome_target == "last_step" else "all"


def make_loss(
  objective: ORMConfig, model: model_config.ModelConfig
) -> program.Loss:
  """Returns the loss of outcomes, in which each solution weighs 1."""
  outputs = functools.partial(transformer.apply, model, method="outcome_logits")
  if objective.loss == "bradley_terry":
    return bradley_terry.make_loss(outputs, objective.margin or 0.0)

  def sums(logits: Array, batch: batch_lib.Batch) -> program.LossSums:
    total, weight = losses.step_bce(logits, batch.labels, batch.weights)
    hit = (logits >= 0) == (batch.labels >= 0.5)
    return total, weight, dict(right=(hit * batch.weights).sum())

  return program.Loss(outputs, sums, program.loss_and_accuracy)


def encoder(objective: ORMConfig) -> program.Encoder:
  """Returns a function that encodes solutions with the outcome as target."""
  return functools.partial(
    encoding.orm_examples, target=objective.outcome_target
  )


def scores(model, params, batch) -> tuple[Array, Array]:
  """Returns P(right outcome), as estimated at every token, and its log-odds."""
  hidden = transformer.apply(model, params, batch, method="hidden")
  return scores_at(model, params, hidden)


def scores_at(model, params, hidden) -> tuple[Array, Array]:
  """Returns the result of `scores` for hidden states."""
  logits = transformer.apply(model, params, hidden, method="outcome_logits_at")
  return jax.nn.sigmoid(logits).astype(jnp.float32), logits.astype(jnp.float32)


KIND = program.Kind(
  ("outcome",),
  ORMConfig,
  loss=make_loss,
  encoder=encoder,
  scores=scores,
  scores_at=scores_at,
)
