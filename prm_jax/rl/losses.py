"""Policy-gradient objectives as sums, and the distance to a reference.

Each returns (total, weight), as training/losses.py does. A token's weight is 0
where the policy didn't draw it, and holds the normalisation: 1 for a mean over
tokens, 1 / tokens of the solution for one over solutions (rl.config). Ratios
and logarithms are float32.
"""

from __future__ import annotations

from jax import numpy as jnp
from jaxtyping import Array, Float

from prm_jax.batch import ArrayLike
from prm_jax.training import losses

KL_ESTIMATORS = ("k1", "k2", "k3")
# exp stays finite; a ratio beyond e^20 has no gradient.
_MAX_LOG_RATIO = 20.0


def reinforce(
  log_probs: Float[Array, "B T"],
  advantages: Float[ArrayLike, "B T"],
  weights: Float[ArrayLike, "B T"],
) -> losses.Sums:
  """-advantage * log pi (Williams 1992): its gradient is the policy's."""
  log_probs = losses.counted(weights, log_probs)
  return losses.weighed(
    -losses.counted(weights, advantages) * log_probs, weights
  )


def log_ratios(
  log_probs: Float[Array, "B T"],
  behaviour: Float[ArrayLike, "B T"],
  weights: Float[ArrayLike, "B T"],
) -> Float[Array, "B T"]:
  """Returns log pi - log mu of each token, 0 where none was drawn.

  mu: the policy that the tokens were drawn from.
  """
  found = losses.counted(weights, log_probs) - losses.counted(
    weights, behaviour
  )
  return jnp.clip(found, -_MAX_LOG_RATIO, _MAX_LOG_RATIO)


def ppo_clip(
  log_probs: Float[Array, "B T"],
  behaviour: Float[ArrayLike, "B T"],
  advantages: Float[ArrayLike, "B T"],
  weights: Float[ArrayLike, "B T"],
  *,
  clip_low: float = 0.2,
  clip_high: float = 0.2,
) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
  """The clipped surrogate (Schulman et al. 2017, eq. 7), to be minimised.

  -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), r = pi / mu per token.
  Behind total and weight: the weight of tokens where the clipped side is the
  smaller one, whose gradient is 0.
  """
  ratio = jnp.exp(log_ratios(log_probs, behaviour, weights))
  advantages = losses.counted(weights, advantages)
  plain = ratio * advantages
  clipped = jnp.clip(ratio, 1 - clip_low, 1 + clip_high) * advantages
  total, weight = losses.weighed(-jnp.minimum(plain, clipped), weights)
  stopped, _ = losses.weighed((clipped < plain).astype(jnp.float32), weights)
  return total, weight, stopped


def value_loss(
  values: Float[Array, "B T"],
  behaviour: Float[ArrayLike, "B T"],
  returns: Float[ArrayLike, "B T"],
  weights: Float[ArrayLike, "B T"],
  *,
  clip: float | None = None,
) -> losses.Sums:
  """Half the squared error of values against returns.

  clip: values may gain nothing by going farther than this from what they were
  at the rollout: max of both errors (PPO's reference implementation).
  """
  values, returns = (
    losses.counted(weights, values),
    losses.counted(weights, returns),
  )
  error = jnp.square(values - returns)
  if clip is not None:
    old = losses.counted(weights, behaviour)
    near = old + jnp.clip(values - old, -clip, clip)
    error = jnp.maximum(error, jnp.square(near - returns))
  return losses.weighed(0.5 * error, weights)


def kl(
  log_probs: Float[ArrayLike, "B T"],
  reference: Float[ArrayLike, "B T"],
  weights: Float[ArrayLike, "B T"],
  *,
  estimator: str,
) -> Float[Array, "B T"]:
  """Returns estimates of KL(pi || reference) in nats, a token each.

  With l = log pi - log reference of a token drawn from pi (Schulman 2020,
  "Approximating KL divergence"): k1 = l, unbiased and of either sign;
  k2 = l^2 / 2; k3 = exp(-l) - 1 + l, unbiased and never negative.
  As a loss, differentiated through pi: k1's gradient is 0 in expectation,
  k2's is that of the KL, k3's is not quite. As a reward, k1 is the one whose
  return is the KL.
  """
  ratio = log_ratios(jnp.asarray(log_probs), reference, weights)
  if estimator == "k1":
    return ratio
  if estimator == "k2":
    return jnp.square(ratio) / 2
  return jnp.exp(-ratio) - 1 + ratio


def adapted(
  coefficient: float | Float[ArrayLike, ""],
  kl_nats: float | Float[ArrayLike, ""],
  *,
  target: float,
  horizon: float,
  solutions: int,
) -> Float[Array, ""]:
  """Returns the KL's coefficient after a rollout (Ziegler et al. 2019, 2.2).

  It grows or shrinks by error * solutions / horizon, the relative error of
  the KL against the target clipped to 20 %.
  """
  error = jnp.clip(kl_nats / target - 1, -0.2, 0.2)
  return jnp.asarray(coefficient) * (1 + error * solutions / horizon)
