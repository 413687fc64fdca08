"""The PRM program: P(correct so far) at every step end.

`step_logits` is the only head that is traced; no array over the vocabulary
is ever built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

HEADS = ("step",)
LOSSES = ("bce", "mse", "three_way", "pqm", "bradley_terry")


def make(
  model: model_config.ModelConfig,
  optimizer: optax.GradientTransformation,
  *,
  loss: str = "bce",
  error_weight: float = 1.0,
  margin: float | None = None,
  microbatches: int = 1,
  trainable: str = "all",
  sources: Sequence[str] = (),
) -> program.Program:
  """Returns the program that learns step labels.

  loss: bce (hard or soft labels), mse (soft), three_way (bad, neutral, good;
  the model needs step_classes=3), pqm (a solution's steps in order; rows of
  separate solutions) or bradley_terry (pairs of Batch.pair_group).
  error_weight: see losses.step_bce. margin: of the last two, by default that of
  losses.PQM_MARGIN and 0. sources: names of the data's sources, which are
  measured one by one if the batches tell them apart.
  """
  if loss not in LOSSES:
    raise errors.InputError(
      f"loss={loss!r}: expected one of {', '.join(LOSSES)}"
    )
  if (loss == "three_way") != (model.step_classes == 3):
    raise errors.InputError(
      f"loss={loss!r} with model.step_classes={model.step_classes}:"
      " three_way takes 3 classes, the other losses 1 or 2"
    )
  if loss == "bradley_terry":
    return bradley_terry.make(
      model,
      "step",
      optimizer,
      margin=margin or 0.0,
      microbatches=microbatches,
      trainable=trainable,
    )
  functions: dict[str, Callable[..., losses.Sums]] = dict(
    bce=functools.partial(losses.step_bce, error_weight=error_weight),
    mse=losses.step_mse,
    three_way=losses.step_three_way,
  )

  def loss_sums(params, batch: batch_lib.Batch) -> program.LossSums:
    logits = transformer.apply(model, params, batch, method="step_logits")
    sums = functools.partial(sums_of, logits)
    return program.by_source(sums, batch, sources)

  def sums_of(logits, batch: batch_lib.Batch) -> program.LossSums:
    targets = logits, batch.labels, batch.weights
    if loss == "pqm":
      zeta = losses.PQM_MARGIN if margin is None else margin
      sums = losses.pqm(*targets, batch.visible_until, margin=zeta)
    else:
      sums = functions[loss](*targets)
    total, weight = sums
    hit = (losses.step_probability(logits) >= 0.5) == (batch.labels >= 0.5)
    wrong = batch.weights * (batch.labels < 0.5)
    return (
      total,
      weight,
      dict(
        steps=batch.weights.sum(),
        steps_right=(hit * batch.weights).sum(),
        errors=wrong.sum(),
        errors_found=(hit * wrong).sum(),
      ),
    )

  return program.supervised(
    model, HEADS, optimizer, loss_sums, finish, microbatches, trainable
  )


def finish(sums) -> dict[str, float]:
  """Returns loss, accuracy and the share of wrong steps found."""
  rights = sums["steps"] - sums["errors"]
  found = sums["errors_found"] / max(sums["errors"], 1e-9)
  kept = (sums["steps_right"] - sums["errors_found"]) / max(rights, 1e-9)
  return dict(
    loss_nats=sums["total"] / max(sums["weight"], 1e-9),
    accuracy=sums["steps_right"] / max(sums["steps"], 1e-9),
    balanced_accuracy=(found + kept) / 2,
    errors_found=found,
  )


def scores(model, params, batch) -> jax.Array:
  """Returns P(correct so far) at every token; it means one at step ends."""
  logits = transformer.apply(model, params, batch, method="step_logits")
  return losses.step_probability(logits).astype(jnp.float32)
