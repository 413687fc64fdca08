"""The supervised fine-tuning program: it learns the next token of the steps.

It trains base models and policies; a PRM or an ORM starts from one.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar

from jax import numpy as jnp
from jaxtyping import Array

from prm_jax import batch as batch_lib
from prm_jax.models import model_config as model_config
from prm_jax.models import transformer
from prm_jax.text import encoding
from prm_jax.training import losses
from prm_jax.training import program


@dataclasses.dataclass(frozen=True)
class SFTConfig:
  """What a policy is trained for; there is nothing to choose."""

  compares: ClassVar[str | None] = None
  whole_solutions: ClassVar[bool] = False
  scoring: ClassVar[dict[str, Any]] = {}
  judged: ClassVar[str] = "all"


def make_loss(
  objective: SFTConfig, model: model_config.ModelConfig
) -> program.Loss:
  """Returns the loss of the steps' tokens."""
  del objective

  def sums(logits: Array, batch: batch_lib.Batch) -> program.LossSums:
    # Nothing predicts a root.
    weights = jnp.where(batch.parent >= 0, batch.weights, 0)
    total, weight = losses.language_model(logits, batch.tokens, weights)
    hit = logits.argmax(-1) == batch.tokens
    return total, weight, dict(right=(hit * weights).sum())

  outputs = functools.partial(transformer.apply, model, method="lm_logits")
  return program.Loss(outputs, sums, program.loss_and_accuracy)


KIND = program.Kind(
  ("lm",),
  SFTConfig,
  loss=make_loss,
  encoder=lambda _: encoding.sft_examples,
  writes=True,
)
