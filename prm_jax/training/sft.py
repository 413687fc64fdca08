"""The supervised fine-tuning program: it learns the next token of the steps.

It trains base models and policies; a PRM or an ORM starts from one.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from jax import numpy as jnp
from jaxtyping import Array

from prm_jax import batch as batch_lib
from prm_jax.training import losses
from prm_jax.training import program


@dataclasses.dataclass(frozen=True)
class SFTConfig:
  """What a policy is trained for; there is nothing to choose."""

  loss: ClassVar[str] = "language_model"
  compares: ClassVar[str | None] = None
  whole_solutions: ClassVar[bool] = False
  scoring: ClassVar[dict[str, Any]] = {}
  judged: ClassVar[str] = "all"


def _language_model(
  objective: SFTConfig, logits: Array, batch: batch_lib.Batch
) -> program.LossSums:
  """Returns the sums over the steps' tokens."""
  del objective
  # Nothing predicts a root.
  weights = jnp.where(batch.parent >= 0, batch.weights, 0)
  total, weight = losses.language_model(logits, batch.tokens, weights)
  hit = logits.argmax(-1) == batch.tokens
  return total, weight, dict(right=(hit * weights).sum())


LOSSES = dict(
  language_model=program.LossKind(_language_model, program.accuracy)
)
