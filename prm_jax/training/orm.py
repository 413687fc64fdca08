"""The ORM program: P(the final answer is right), at every token or the last.

The same batches as the PRM's, with the outcome as target
(encoding.orm_examples); its own head and its own compiled programs.
"""

from __future__ import annotations

from collections.abc import Sequence
import functools

import jax
from jax import numpy as jnp
import optax

from prm_jax import batch as batch_lib
from prm_jax import errors
from prm_jax.models import config as model_config
from prm_jax.models import transformer
from prm_jax.training import bradley_terry
from prm_jax.training import losses
from prm_jax.training import program

HEADS = ("outcome",)
LOSSES = ("bce", "bradley_terry")


def make(
  model: model_config.ModelConfig,
  optimizer: optax.GradientTransformation,
  *,
  loss: str = "bce",
  margin: float | None = None,
  microbatches: int = 1,
  trainable: str = "all",
  sources: Sequence[str] = (),
) -> program.Program:
  """Returns the program that learns outcomes.

  loss: bce, or bradley_terry on pairs of Batch.pair_group with its margin.
  sources: see prm.make.
  """
  if loss not in LOSSES:
    raise errors.InputError(
      f"loss={loss!r}: expected one of {', '.join(LOSSES)}"
    )
  if loss == "bradley_terry":
    return bradley_terry.make(
      model,
      "outcome",
      optimizer,
      margin=margin or 0.0,
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


def scores(model, params, batch) -> jax.Array:
  """Returns P(right outcome) as seen from every token."""
  logits = transformer.apply(model, params, batch, method="outcome_logits")
  return jax.nn.sigmoid(logits).astype(jnp.float32)
