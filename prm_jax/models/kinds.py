"""The kinds of models in one table: their heads, and how their scores are read.

What a kind is trained for stands in training/programs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp
from jaxtyping import Array, Float

from prm_jax import batch as batch_lib
from prm_jax import errors
from prm_jax.models import model_config
from prm_jax.models import transformer
from prm_jax.models import visibility

# In params: the frozen model that another one is measured by.
REFERENCE = "reference"


class Kind(NamedTuple):
  """What differs between kinds of models.

  Args:
    heads: The heads of its model.
    scores: Returns (scores in [0, 1], their log-odds), each [B, T] and to be
      read at step ends, given (model, params, batch, **scoring).
    scores_at: Returns the same for hidden states, given (model, params, hidden
      states); None if a score is a sum over a solution's tokens.
    judged: Which steps its scores are trained for if a checkpoint doesn't say,
      as one of schema.JUDGED.
    writes: Whether its checkpoints hold a policy.
    has_reference: Whether its parameters hold a frozen model, REFERENCE, that
      it is compared with.
    saves_more: Whether its checkpoints hold more parameters than its model's.
  """

  heads: tuple[str, ...]
  scores: Callable[..., tuple[Array, Array]] | None = None
  scores_at: Callable[..., tuple[Array, Array]] | None = None
  judged: str = "all"
  writes: bool = False
  has_reference: bool = False
  saves_more: bool = False

  @property
  def scores_whole_solutions(self) -> bool:
    """Whether its scores are sums over a solution, which can't share prefixes."""
    return self.scores is not None and self.scores_at is None


def named(name: str, where: object) -> Kind:
  """Returns the kind with a name.

  Args:
    name: The name.
    where: Where the name was read, for the message.

  Raises:
    InputError: There is no such kind.
  """
  if name not in KINDS:
    raise errors.InputError(
      f"{where}: program={name!r}: expected one of {', '.join(KINDS)}"
    )
  return KINDS[name]


def with_article(name: str) -> str:
  """Returns "a prm", "an sft": most names are read letter by letter."""
  return f"{'a' if name.startswith('p') else 'an'} {name}"


def step_probability(logits: Float[Array, "B T ..."]) -> Float[Array, "B T"]:
  """Returns P(correct so far) at each token.

  Args:
    logits: The log-odds [B, T], or the logits [B, T, 3] of bad, neutral, good.

  Returns:
    sigmoid of log-odds, or P(neutral) + P(good) of three classes.
  """
  if logits.ndim == 2:
    return jax.nn.sigmoid(logits)
  return jax.nn.softmax(logits, axis=-1)[..., 1:].sum(-1)


def step_log_odds(logits: Float[Array, "B T ..."]) -> Float[Array, "B T"]:
  """Returns the log-odds of P(correct so far), which don't round to 1.

  Args:
    logits: The log-odds [B, T], or the logits [B, T, 3] of bad, neutral, good.

  Returns:
    The log-odds of step_probability, in nats.
  """
  if logits.ndim == 2:
    return logits
  return jax.nn.logsumexp(logits[..., 1:], axis=-1) - logits[..., 0]


def _step_scores(model, params, batch) -> tuple[Array, Array]:
  """Returns P(correct so far) and its log-odds; they mean something at ends."""
  hidden = transformer.apply(model, params, batch, method="hidden")
  return _step_scores_at(model, params, hidden)


def _step_scores_at(model, params, hidden) -> tuple[Array, Array]:
  logits = transformer.apply(model, params, hidden, method="step_logits_at")
  probability = step_probability(logits).astype(jnp.float32)
  return probability, step_log_odds(logits).astype(jnp.float32)


def _outcome_scores(model, params, batch) -> tuple[Array, Array]:
  """Returns P(right outcome), as estimated at every token, and its log-odds."""
  hidden = transformer.apply(model, params, batch, method="hidden")
  return _outcome_scores_at(model, params, hidden)


def _outcome_scores_at(model, params, hidden) -> tuple[Array, Array]:
  logits = transformer.apply(model, params, hidden, method="outcome_logits_at")
  return jax.nn.sigmoid(logits).astype(jnp.float32), logits.astype(jnp.float32)


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


def _implicit_scores(
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
      sigmoid(q_t - q_{t-1}), the paper's step reward mapped to [0, 1]. mean is
      the same with the mean of the step's tokens in place of their sum.
  """
  ratios = log_ratios(model, params, batch)
  starts = visibility.solution_starts(batch.visible_until)
  if step_score != "cumulative":
    starts |= jnp.pad(batch.step_end[:, :-1], ((0, 0), (1, 0)))
  counted = jnp.where(batch.weights > 0, ratios, 0)
  log_odds = beta * visibility.running(jnp.add, counted, starts)
  if step_score == "mean":
    num = jnp.asarray(batch.weights > 0, jnp.float32)
    log_odds /= jnp.maximum(visibility.running(jnp.add, num, starts), 1)
  return jax.nn.sigmoid(log_odds), log_odds


KINDS: Mapping[str, Kind] = dict(
  sft=Kind(("lm",), writes=True),
  prm=Kind(
    ("step",), _step_scores, _step_scores_at, judged="until_first_error"
  ),
  orm=Kind(("outcome",), _outcome_scores, _outcome_scores_at),
  implicit=Kind(("lm",), _implicit_scores, has_reference=True, judged="last"),
  # rl/ trains it; its saves hold critic and reference, too.
  rl=Kind(("lm",), writes=True, saves_more=True),
)
# Those whose checkpoints hold a policy.
POLICIES = tuple(k for k, kind in KINDS.items() if kind.writes)
