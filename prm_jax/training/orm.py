"""The ORM program: P(the final answer is right), at every token or the last.

The same batches as the PRM's, with the outcome as target
(encoding.orm_examples); its own head and its own compiled programs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any

import jax
from jax import numpy as jnp
import optax

from prm_jax import batch as batch_lib
from prm_jax import errors
from prm_jax import schema
from prm_jax.data import encoding
from prm_jax.data import tokenizer as tokenizer_lib
from prm_jax.models import config as model_config
from prm_jax.models import transformer
from prm_jax.runtime import checks
from prm_jax.training import bradley_terry
from prm_jax.training import losses
from prm_jax.training import program

HEADS = ("outcome",)
LOSSES = ("bce", "bradley_terry")


@dataclasses.dataclass(frozen=True)
class ORMConfig:
  """What an ORM is trained for.

  loss: bce, or bradley_terry on pairs of a right and a wrong solution.
  margin: between the two sides of bradley_terry, by default 0.
  outcome_target: where the outcome is learned; see encoding.orm_examples.
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

  @property
  def whole_solutions(self) -> bool:
    return False

  @property
  def scoring(self) -> dict[str, Any]:
    return {}


def make(
  objective: ORMConfig,
  model: model_config.ModelConfig,
  optimizer: optax.GradientTransformation,
  *,
  microbatches: int = 1,
  trainable: str = "all",
  sources: Sequence[str] = (),
) -> program.Program[batch_lib.Batch]:
  """Returns the program that learns outcomes; arguments as in prm.make."""
  if objective.loss == "bradley_terry":
    return bradley_terry.make(
      model,
      "outcome",
      optimizer,
      margin=objective.margin or 0.0,
      microbatches=microbatches,
      trainable=trainable,
    )

  def loss_sums(params, batch: batch_lib.Batch) -> program.LossSums:
    logits = transformer.apply(model, params, batch, method="outcome_logits")
    sums = functools.partial(sums_of, logits)
    return program.by_source(sums, batch, sources)

  def sums_of(logits, batch: batch_lib.Batch) -> program.LossSums:
    total, weight = losses.outcome_bce(logits, batch.labels, batch.weights)
    hit = (logits >= 0) == (batch.labels >= 0.5)
    return total, weight, dict(right=(hit * batch.weights).sum())

  return program.supervised(
    model, HEADS, optimizer, loss_sums, finish, microbatches, trainable
  )


def finish(sums) -> dict[str, float]:
  """Returns loss and accuracy over all targets, each solution weighing 1."""
  weight = max(sums["weight"], 1e-9)
  return dict(loss_nats=sums["total"] / weight, accuracy=sums["right"] / weight)


def examples(
  objective: ORMConfig,
  solutions: Sequence[schema.Solution],
  tokenizer: tokenizer_lib.Tokenizer,
  encoding_config: encoding.EncodingConfig,
) -> tuple[list[encoding.Example], Counter[str]]:
  """Returns the examples with the outcome as target, and counts."""
  return encoding.orm_examples(
    solutions, tokenizer, encoding_config, objective.outcome_target
  )


def scores(model, params, batch) -> jax.Array:
  """Returns P(right outcome) as seen from every token."""
  logits = transformer.apply(model, params, batch, method="outcome_logits")
  return jax.nn.sigmoid(logits).astype(jnp.float32)


KIND = program.Kind(
  HEADS, ORMConfig, make=make, examples=examples, scores=scores
)
