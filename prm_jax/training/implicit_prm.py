"""The implicit PRM: a language model whose log-ratio to a reference is a reward.

Yuan et al. 2024 (arXiv 2412.01981) and PRIME (arXiv 2502.01456). Trained on
outcomes alone, beta * sum log(pi / pi_ref) over the first tokens of a solution
is then a value of that prefix, and its increment over a step the step's reward.

The reference is the model that training starts from. It is a part of params,
params["reference"], so that every checkpoint can be scored on its own, and is
frozen: it gets no gradient and no optimizer state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
import dataclasses
import functools
from typing import Any

import jax
from jax import numpy as jnp
from jaxtyping import Array, Float
import optax

from prm_jax import batch as batch_lib
from prm_jax import schema
from prm_jax.data import encoding
from prm_jax.data import tokenizer as tokenizer_lib
from prm_jax.models import config as model_config
from prm_jax.models import transformer
from prm_jax.runtime import checks
from prm_jax.training import bradley_terry
from prm_jax.training import losses
from prm_jax.training import program
from prm_jax.training import trainable as trainable_lib

HEADS = ("lm",)
LOSSES = ("implicit_ce", "implicit_dpo")
STEP_SCORES = ("cumulative", "increment")
REFERENCE = trainable_lib.REFERENCE


@dataclasses.dataclass(frozen=True)
class ImplicitConfig:
  """What an implicit PRM is trained for.

  loss: implicit_ce, the cross-entropy of each solution's outcome, or
    implicit_dpo, on pairs of a right and a wrong solution.
  beta: the scale of the reward.
  step_score: what its scores are; see `scores`.
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

  @property
  def whole_solutions(self) -> bool:
    return True

  @property
  def scoring(self) -> dict[str, Any]:
    return dict(beta=self.beta, step_score=self.step_score)


def make(
  objective: ImplicitConfig,
  model: model_config.ModelConfig,
  optimizer: optax.GradientTransformation,
  *,
  microbatches: int = 1,
  trainable: str = "all",
  sources: Sequence[str] = (),
) -> program.Program[batch_lib.Batch]:
  """Returns the program that learns outcomes by the log-ratio.

  Rows hold separate solutions, encoded by encoding.implicit_examples. Other
  arguments as in prm.make; pairs have no sources.
  """
  beta = objective.beta

  def loss_sums(params, batch: batch_lib.Batch) -> program.LossSums:
    ratios = log_ratios(model, params, batch)
    sums = functools.partial(sums_of, ratios)
    return program.by_source(sums, batch, sources)

  def sums_of(ratios, batch: batch_lib.Batch) -> program.LossSums:
    rows = ratios, batch.labels, batch.weights, batch.visible_until
    if objective.loss == "implicit_ce":
      total, weight = losses.implicit_ce(*rows, beta=beta)
    else:
      pairs = bradley_terry.groups(batch)
      total, weight = losses.implicit_dpo(*rows, pairs, beta=beta)
    return total, weight, {}

  made = program.supervised(
    model, HEADS, optimizer, loss_sums, finish, microbatches, trainable
  )

  def init(key: Array) -> program.TrainState:
    state = made.init(key)
    # A copy: the update donates the state, each array of it once.
    reference = jax.tree.map(jnp.copy, state.params)
    params = {**state.params, REFERENCE: reference}
    return dataclasses.replace(state, params=params)

  return dataclasses.replace(made, init=init)


def examples(
  objective: ImplicitConfig,
  solutions: Sequence[schema.Solution],
  tokenizer: tokenizer_lib.Tokenizer,
  encoding_config: encoding.EncodingConfig,
) -> tuple[list[encoding.Example], Counter[str]]:
  """Returns the examples with outcomes as targets, and counts."""
  del objective
  return encoding.implicit_examples(solutions, tokenizer, encoding_config)


def begin_from(params: Mapping[str, Any]) -> dict[str, Any]:
  """Returns what to start from so that the model and its reference are params.

  The reference that params of an implicit PRM hold is left behind.
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
  return dict(loss_nats=sums["total"] / max(sums["weight"], 1e-9))


def scores(
  model: model_config.ModelConfig,
  params: Any,
  batch: batch_lib.Batch,
  *,
  beta: float,
  step_score: str,
) -> Float[Array, "B T"]:
  """Returns step scores in [0, 1] at step ends, by the tokens of weight > 0.

  step_score: cumulative is sigmoid(q_t), the probability of a right outcome as
  implicit_ce trains it at the last step; increment is sigmoid(q_t - q_{t-1}),
  the paper's step reward brought to [0, 1].
  """
  ratios = log_ratios(model, params, batch)
  starts = losses.solution_starts(batch.visible_until)
  if step_score == "increment":
    behind = jnp.pad(batch.step_end[:, :-1], ((0, 0), (1, 0)))
    starts |= behind
  counted = jnp.where(batch.weights > 0, ratios, 0)
  return jax.nn.sigmoid(beta * losses.running(jnp.add, counted, starts))


KIND = program.Kind(
  HEADS,
  ImplicitConfig,
  make=make,
  examples=examples,
  scores=scores,
  scores_whole_solutions=True,
  has_reference=True,
)
