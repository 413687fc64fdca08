"""Every objective as sums: each returns (total, weight), never a mean.

The caller divides once, over the global batch, so that neither packing nor
sharding nor accumulation changes the number. Logits and losses are float32.
A position of weight 0 counts nothing, whatever its label holds.
"""

from __future__ import annotations

import jax
from jax import numpy as jnp
from jaxtyping import Array, Float, Int

from prm_jax.batch import ArrayLike

Sums = tuple[Float[Array, ""], Float[Array, ""]]


def _counted(
  weights: Float[ArrayLike, "B T"], values: Float[ArrayLike, "B T ..."]
) -> Float[Array, "B T ..."]:
  """Returns values with 0 where nothing counts.

  Before the loss, not after it: a NaN that only the result leaves out comes
  back in the gradient, as 0 * NaN.
  """
  counts = weights > 0
  return jnp.where(
    counts.reshape(counts.shape + (1,) * (values.ndim - 2)), values, 0
  )


def _sums(loss: Float[Array, "B T"], weights: Float[ArrayLike, "B T"]) -> Sums:
  return (loss * weights).sum(), weights.sum()


def step_bce(
  logits: Float[Array, "B T"],
  labels: Float[ArrayLike, "B T"],
  weights: Float[ArrayLike, "B T"],
  *,
  error_weight: float = 1.0,
) -> Sums:
  """Binary cross-entropy in nats against hard or soft labels in [0, 1].

  error_weight: how much the "wrong" side of a label counts against the right
  side: w * (1 - y) * -log(1 - p) + y * -log p. The weight returned is the sum
  of w * (1 - y) + y, so that a rarer class counts as if it came more often.
  """
  logits, labels = _counted(weights, logits), _counted(weights, labels)
  wrong = error_weight * (1 - labels)
  loss = -labels * jax.nn.log_sigmoid(logits)
  loss = loss - wrong * jax.nn.log_sigmoid(-logits)
  mass = labels + wrong
  total, _ = _sums(loss, weights)
  weight, _ = _sums(mass, weights)
  return total, weight


def step_mse(
  logits: Float[Array, "B T"],
  labels: Float[ArrayLike, "B T"],
  weights: Float[ArrayLike, "B T"],
) -> Sums:
  """(sigmoid(logit) - label)^2, for soft labels (Zhang et al. 2025)."""
  logits, labels = _counted(weights, logits), _counted(weights, labels)
  return _sums(jnp.square(jax.nn.sigmoid(logits) - labels), weights)


def step_three_way(
  logits: Float[Array, "B T 3"],
  labels: Float[ArrayLike, "B T"],
  weights: Float[ArrayLike, "B T"],
) -> Sums:
  """Cross-entropy over bad, neutral, good (Lightman et al. 2023, App. F).

  labels: 0 bad, 0.5 neutral, 1 good.
  """
  logits, labels = _counted(weights, logits), _counted(weights, labels)
  classes = jnp.round(2 * labels).astype(jnp.int32)
  log_p = jax.nn.log_softmax(logits, axis=-1)
  loss = -jnp.take_along_axis(log_p, classes[..., None], axis=-1)[..., 0]
  return _sums(loss, weights)


def outcome_bce(
  logits: Float[Array, "B T"],
  labels: Float[ArrayLike, "B T"],
  weights: Float[ArrayLike, "B T"],
) -> Sums:
  """Binary cross-entropy against the outcome (Cobbe et al. 2021).

  Whether at every token or at the last step is in the weights
  (encode.orm_examples).
  """
  return step_bce(logits, labels, weights)


def language_model(
  logits: Float[Array, "B T V"],
  tokens: Int[ArrayLike, "B T"],
  weights: Float[ArrayLike, "B T"],
) -> Sums:
  """Next-token cross-entropy in nats; logits[t] predict tokens[t]."""
  logits = _counted(weights, logits)
  log_z = jax.nn.logsumexp(logits, axis=-1)
  chosen = jnp.take_along_axis(logits, tokens[..., None], axis=-1)[..., 0]
  return _sums(log_z - chosen, weights)


def step_probability(
  logits: Float[Array, "B T ..."],
) -> Float[Array, "B T"]:
  """Returns P(correct so far): sigmoid, or P(neutral) + P(good) of three."""
  if logits.ndim == 2:
    return jax.nn.sigmoid(logits)
  return jax.nn.softmax(logits, axis=-1)[..., 1:].sum(-1)
