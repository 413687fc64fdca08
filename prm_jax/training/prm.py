"""The PRM program: P(correct so far) at every step end.

`step_logits` is the only head that is traced; no array over the vocabulary
is ever built.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
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
from prm_jax.data import preference_pairs
from prm_jax.data import tokenizer as tokenizer_lib
from prm_jax.models import config as model_config
from prm_jax.models import transformer
from prm_jax.runtime import checks
from prm_jax.training import bradley_terry
from prm_jax.training import losses
from prm_jax.training import program

HEADS = ("step",)
LOSSES = ("bce", "mse", "three_way", "pqm", "bradley_terry")


@dataclasses.dataclass(frozen=True)
class PRMConfig:
  """What a PRM is trained for.

  loss: bce (hard or soft labels), mse (soft), three_way (bad, neutral, good;
    the model needs step_classes=3), pqm (a solution's steps in order; rows of
    separate solutions) or bradley_terry (pairs of Batch.pair_group).
  error_weight: of wrong steps in bce; see losses.step_bce.
  margin: between the two sides of pqm (by default losses.PQM_MARGIN) or of
    bradley_terry (0).
  pairs: what bradley_terry compares, by default alternatives at the same
    prefix, else whole solutions; see data.preference_pairs.
  labels: how labels and ratings become targets.
  """

  loss: str = "bce"
  error_weight: float = 1.0
  margin: float | None = None
  pairs: str | None = None
  labels: encoding.LabelPolicy = dataclasses.field(
    default_factory=encoding.LabelPolicy
  )

  def __post_init__(self):
    checks.check_choice("objective.loss", self.loss, LOSSES)
    checks.check_positive(self, ("error_weight",), "objective.")
    if self.error_weight != 1 and self.loss != "bce":
      raise errors.InputError(
        f"objective.error_weight={self.error_weight}: only loss='bce' weights"
        " errors; set it to 1"
      )
    if self.loss not in ("pqm", "bradley_terry"):
      checks.check_unset(self, ("margin",), "pqm and bradley_terry")
    if self.loss != "bradley_terry":
      checks.check_unset(self, ("pairs",), "bradley_terry")
    checks.check_margin(self.margin)
    if self.pairs is not None:
      checks.check_choice("objective.pairs", self.pairs, preference_pairs.KINDS)
    # Three classes; pairs rank the three without classes of the model.
    classes = [x == "three_way" for x in (self.loss, self.labels.neutral)]
    if classes[0] != classes[1] and self.loss != "bradley_terry":
      raise errors.InputError(
        f"objective.loss={self.loss!r} with objective.labels.neutral="
        f"{self.labels.neutral!r}: set both to three_way, or neither"
      )

  @property
  def compares(self) -> str | None:
    if self.loss != "bradley_terry":
      return None
    return self.pairs or "alternatives"

  @property
  def whole_solutions(self) -> bool:
    return self.loss == "pqm"

  @property
  def scoring(self) -> dict[str, Any]:
    return {}


def make(
  objective: PRMConfig,
  model: model_config.ModelConfig,
  optimizer: optax.GradientTransformation,
  *,
  microbatches: int = 1,
  trainable: str = "all",
  sources: Sequence[str] = (),
) -> program.Program[batch_lib.Batch]:
  """Returns the program that learns step labels.

  Args:
    objective: the loss and its options.
    model: step_classes=3 goes with loss="three_way".
    optimizer: of the trained parameters.
    microbatches: that a batch is divided into, one after another.
    trainable: see trainable.chosen.
    sources: names of the data's sources, which are measured one by one if the
      batches tell them apart.
  """
  loss, margin = objective.loss, objective.margin
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
    bce=functools.partial(losses.step_bce, error_weight=objective.error_weight),
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


def examples(
  objective: PRMConfig,
  solutions: Sequence[schema.Solution],
  tokenizer: tokenizer_lib.Tokenizer,
  encoding_config: encoding.EncodingConfig,
) -> tuple[list[encoding.Example], Counter[str]]:
  """Returns the examples with a target at each labelled step, and counts.

  Solutions that are compared as wholes have their outcome as target instead.
  """
  if objective.compares == "solutions":
    return encoding.orm_examples(
      solutions, tokenizer, encoding_config, "last_step"
    )
  return encoding.prm_examples(
    solutions, tokenizer, encoding_config, objective.labels
  )


def scores(model, params, batch) -> jax.Array:
  """Returns P(correct so far) at every token; it means one at step ends."""
  logits = transformer.apply(model, params, batch, method="step_logits")
  return losses.step_probability(logits).astype(jnp.float32)


KIND = program.Kind(
  HEADS, PRMConfig, make=make, examples=examples, scores=scores
)
