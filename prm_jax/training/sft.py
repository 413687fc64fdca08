"""The supervised fine-tuning program: the next token of the steps.

It makes base models and policies; the PRM and ORM start from one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any

from jax import numpy as jnp
import optax

from prm_jax import batch as batch_lib
from prm_jax import schema
from prm_jax.data import encoding
from prm_jax.data import tokenizer as tokenizer_lib
from prm_jax.models import config as model_config
from prm_jax.models import transformer
from prm_jax.training import losses
from prm_jax.training import program

HEADS = ("lm",)


@dataclasses.dataclass(frozen=True)
class SFTConfig:
  """What a policy is trained for: there is nothing to choose."""

  @property
  def compares(self) -> str | None:
    return None

  @property
  def whole_solutions(self) -> bool:
    return False

  @property
  def scoring(self) -> dict[str, Any]:
    return {}


def make(
  objective: SFTConfig,
  model: model_config.ModelConfig,
  optimizer: optax.GradientTransformation,
  *,
  microbatches: int = 1,
  trainable: str = "all",
  sources: Sequence[str] = (),
) -> program.Program[batch_lib.Batch]:
  """Returns the program that learns to write the steps; see prm.make."""
  del objective

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


def examples(
  objective: SFTConfig,
  solutions: Sequence[schema.Solution],
  tokenizer: tokenizer_lib.Tokenizer,
  encoding_config: encoding.EncodingConfig,
) -> tuple[list[encoding.Example], Counter[str]]:
  """Returns the examples with the steps' tokens as targets, and counts."""
  del objective
  return encoding.sft_examples(solutions, tokenizer, encoding_config)


KIND = program.Kind(HEADS, SFTConfig, make=make, examples=examples, writes=True)
