"""The implicit PRM: a language model whose log-ratio to a reference rewards.

Yuan et al. 2024 (arXiv 2412.01981) and PRIME (arXiv 2502.01456). The model is
trained on outcomes alone. beta * sum log(pi / pi_ref) over the first tokens of
a solution is then a value of that prefix, and its increase over a step is the
step's reward.

The reference is the model that training starts from. It is a part of the
parameters, params["reference"], so every checkpoint can be scored on its own.
It is frozen: it has no gradient and no optimizer state.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import functools
from typing import Any, ClassVar

import jax
from jax import numpy as jnp
from jaxtyping import Array, Float

from prm_jax import batch as batch_lib
from prm_jax.models import model_config as model_config
from prm_jax.models import transformer
from prm_jax.runtime import checks
from prm_jax.text import encoding
from prm_jax.training import bradley_terry
from prm_jax.training import losses
from prm_jax.training import program
from prm_jax.training import trainable as trainable_lib

LOSSES = ("implicit_ce", "implicit_dpo")
STEP_SCORES = ("cumulative", "increment")
REFERENCE = trainable_lib.REFERENCE


@dataclasses.dataclass(frozen=True)
class ImplicitConfig:
  """What an implicit PRM is trained for.

  Args:
    loss: implicit_ce, the cross-entropy of each solution's outcome, or
      implicit_dpo, which compares right with wrong solutions.
    beta: The scale of the reward.
    step_score: What a step's score is: cumulative or increment; see `scores`.
  """

  loss: str = "implicit_ce"
  beta: float = losses.IMPLICIT_BETA
  step_score: str = "cumulative"

  def __post_init__(self):
    checks.check_choice("objective.loss", self.loss, LOSSES)
    checks.check_positive(self, ("beta",), "objective.")
    checks.check_choice("objective.step_score", self.step_score, STEP_SCORES)

  @property
  def compares(self) -> str | None:
    return "solutions" if self.loss == "implicit_dpo" else None

  whole_solutions: ClassVar[bool] = True

  @property
  def judged(self) -> str:
    return "last"  # The outcome is learned there.

  @property
  def scoring(self) -> dict[str, Any]:
    return dict(beta=self.beta, step_score=self.step_score)


def make_loss(
  objective: ImplicitConfig, model: model_config.ModelConfig
) -> program.Loss:
  """Returns the loss of outcomes, by the log-ratios.

  Rows must hold separate solutions, encoded by encoding.implicit_examples.
  """

  def sums(ratios: Array, batch: batch_lib.Batch) -> program.LossSums:
    rows = ratios, batch.labels, batch.weights, batch.visible_until
    if objective.loss == "implicit_ce":
      total, weight = losses.implicit_ce(*rows, beta=objective.beta)
    else:
      pairs = bradley_terry.groups(batch)
      total, weight = losses.implicit_dpo(*rows, pairs, beta=objective.beta)
    return total, weight, {}

  return program.Loss(functools.partial(log_ratios, model), sums, finish)


def begin_from(params: Mapping[str, Any]) -> dict[str, Any]:
  """Returns initial parameters in which both model and reference are `params`.

  If `params` are those of an implicit PRM, their own reference is left out.
  """
  model = {k: v for k, v in params.items() if k != REFERENCE}
  return {**model, REFERENCE: model}


def log_ratios(
  model: model_config.ModelConfig, params: Any, batch: batch_lib.Batch
) -> Float[Array, "B T"]:
  """Returns log pi - log pi_ref of each token in nats, 0 at roots."""
  trained = {k: v for k, v in params.items() if k != REFERENCE}
  reference = jax.lax.stop_gradient(params[REFERENCE])
  log_pi, log_reference = (
    transformer.token_log_probs(model, x, batch) for x in (trained, reference)
  )
  return log_pi - log_reference


def finish(sums) -> dict[str, float]:
  """Returns the loss in nats, per solution or per pair."""
  return dict(loss_nats=program.share(sums["total"], sums["weight"]))


def scores(
  model: model_config.ModelConfig,
  params: Any,
  batch: batch_lib.Batch,
  *,
  beta: float,
  step_score: str,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
  """Returns step scores in [0, 1] and their log-odds, to be read at step ends.

  They are computed from the tokens of weight above 0.

  Args:
    model: The shape of the model.
    params: Its parameters, with the reference.
    batch: The rows.
    beta: The scale of the reward.
    step_score: cumulative is sigmoid(q_t), the probability of a right outcome,
      which implicit_ce trains at the last step. increment is
      sigmoid(q_t - q_{t-1}), the paper's step reward mapped to [0, 1].
  """
  ratios = log_ratios(model, params, batch)
  starts = losses.solution_starts(batch.visible_until)
  if step_score == "increment":
    starts |= jnp.pad(batch.step_end[:, :-1], ((0, 0), (1, 0)))
  counted = jnp.where(batch.weights > 0, ratios, 0)
  log_odds = beta * losses.running(jnp.add, counted, starts)
  return jax.nn.sigmoid(log_odds), log_odds


KIND = program.Kind(
  ("lm",),
  ImplicitConfig,
  loss=make_loss,
  encoder=lambda _: encoding.implicit_examples,
  scores=scores,
  has_reference=True,
  judged="last",
)
