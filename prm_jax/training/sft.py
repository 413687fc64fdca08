"""The supervised fine-tuning program: the next token of the steps.

It makes base models and policies; the PRM and ORM start from one.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools

from jax import numpy as jnp
import optax

from prm_jax import batch as batch_lib
from prm_jax.models import config as model_config
from prm_jax.models import transformer
from prm_jax.training import losses
from prm_jax.training import program

HEADS = ("lm",)


def make(
  model: model_config.ModelConfig,
  optimizer: optax.GradientTransformation,
  *,
  microbatches: int = 1,
  trainable: str = "all",
  sources: Sequence[str] = (),
) -> program.Program:
  """Returns the program that learns to write the steps.

  sources: see prm.make.
  """

  def loss_sums(params, batch: batch_lib.Batch) -> program.LossSums:
    # Nothing predicts a root.
    weights = jnp.where(batch.parent >= 0, batch.weights, 0)
    batch = dataclasses.replace(batch, weights=weights)
    logits = transformer.apply(model, params, batch, method="lm_logits")
    sums = functools.partial(sums_of, logits)
    return program.by_source(sums, batch, sources)

  def sums_of(logits, batch: batch_lib.Batch) -> program.LossSums:
    weights = batch.weights
    total, weight = losses.language_model(logits, batch.tokens, weights)
    hit = logits.argmax(-1) == batch.tokens
    return total, weight, dict(right=(hit * weights).sum())

  return program.supervised(
    model, HEADS, optimizer, loss_sums, finish, microbatches, trainable
  )


def finish(sums) -> dict[str, float]:
  """Returns loss per token in nats and the share of tokens predicted."""
  weight = max(sums["weight"], 1e-9)
  return dict(loss_nats=sums["total"] / weight, accuracy=sums["right"] / weight)
