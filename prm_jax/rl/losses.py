"""Policy-gradient objectives as sums, and the distance to a reference.

Each returns (total, weight), as training/losses.py does. A token's weight is 0
where the policy didn't draw it, and says how the loss is aggregated: 1 for a
mean over tokens, 1 / tokens of the solution for one over solutions
(rows.loss_weights). Ratios and logarithms are float32.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import NamedTuple

from jax import numpy as jnp
from jaxtyping import Array, Float

from prm_jax import errors
from prm_jax.batch import ArrayLike
from prm_jax.runtime import checks
from prm_jax.training import losses

LOSS_AGGREGATIONS = ("tokens", "solutions", "constant")
KL_PLACEMENTS = ("none", "reward", "loss")
KL_ESTIMATORS = ("k1", "k2", "k3")
CRITICS = ("none", "shared", "separate")
# exp stays finite; a ratio beyond e^20 has no gradient.
_MAX_LOG_RATIO = 20.0


@dataclasses.dataclass(frozen=True)
class LossConfig:
  """What an update minimises.

  kind: one of POLICY_LOSSES. rejection_sampling is also known as expert
    iteration: the log-likelihood of the solutions whose return is above
    return_threshold, distinct ones, at most max_per_problem of a problem
    (0: all). It needs no baseline.
  clip_low, clip_high: how far PPO's ratio may leave 1 and still be pushed.
  loss_aggregation: the mean over the tokens of a minibatch, over its solutions
    (each the mean over its own tokens, as GRPO), or the sum over
    rollout.max_tokens and solutions (constant: Dr. GRPO).
  kl: coefficient of the distance to the reference, kl_placement the reward or
    the loss; kl_target: nats a token, to adapt the coefficient to
    (Ziegler et al. 2019), with kl_horizon in solutions.
  critic: none, a head on the policy's trunk (shared) or a model of its own.
  value, value_clip: weight of its loss; how far a value may go in an update.
  """

  kind: str = "ppo"
  return_threshold: float = 0.5
  max_per_problem: int = 0
  clip_low: float = 0.2
  clip_high: float = 0.2
  loss_aggregation: str = "tokens"
  entropy: float = 0.0
  kl_placement: str = "none"
  kl: float = 0.0
  kl_estimator: str = "k1"
  kl_target: float | None = None
  kl_horizon: float = 10_000.0
  critic: str = "none"
  value: float = 0.5
  value_clip: float | None = None

  def __post_init__(self):
    for name, allowed in (
      ("kind", tuple(POLICY_LOSSES)),
      ("loss_aggregation", LOSS_AGGREGATIONS),
      ("kl_placement", KL_PLACEMENTS),
      ("kl_estimator", KL_ESTIMATORS),
      ("critic", CRITICS),
    ):
      checks.check_choice(f"loss.{name}", getattr(self, name), allowed)
    natural = ("entropy", "kl", "value", "max_per_problem")
    checks.check_natural(self, natural, "loss.")
    checks.check_shares(self, ("clip_low",), "loss.")
    positive = ("clip_low", "clip_high", "kl_horizon")
    checks.check_positive(self, positive, "loss.")
    for name in ("kl_target", "value_clip"):
      if getattr(self, name) is not None:
        checks.check_positive(self, (name,), "loss.")
    self._check_kl()

  def _check_kl(self) -> None:
    if (self.kl_placement != "none") != (self.kl > 0):
      raise errors.InputError(
        f"loss.kl_placement={self.kl_placement!r} with loss.kl={self.kl}: give"
        " both, or 'none' and 0"
      )
    if self.kl_placement == "loss" and self.kl_estimator == "k1":
      raise errors.InputError(
        "loss.kl_estimator='k1' with loss.kl_placement='loss': its gradient is"
        " 0 in expectation; take k2 or k3, or kl_placement='reward'"
      )
    if self.kl_target is not None and self.kl_placement == "none":
      raise errors.InputError(
        f"loss.kl_target={self.kl_target}: there is no KL; set"
        " loss.kl_placement"
      )


# Total, weight, and the weight of tokens that a clip keeps from learning.
PolicySums = tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]


class PolicyLoss(NamedTuple):
  """A loss of the policy, and what it needs.

  sums: (log_probs, old_log_probs, advantages, weights, config) -> PolicySums.
  off_policy: it also learns from samples of an older policy, so that a rollout
    may have more than one update.
  selects: it learns from the solutions that experience.select chooses, all
    alike, and takes no baseline.
  """

  sums: Callable[..., PolicySums]
  off_policy: bool = True
  selects: bool = False


def log_ratios(
  log_probs: Float[Array, "B T"],
  old_log_probs: Float[ArrayLike, "B T"],
  weights: Float[ArrayLike, "B T"],
) -> Float[Array, "B T"]:
  """Returns log pi - log mu of each token, 0 where none was drawn.

  mu: the policy that the tokens were drawn from.
  """
  ratios = losses.counted(weights, log_probs) - losses.counted(
    weights, old_log_probs
  )
  return jnp.clip(ratios, -_MAX_LOG_RATIO, _MAX_LOG_RATIO)


def _reinforce(log_probs, old_log_probs, advantages, weights, config):
  """-advantage * log pi (Williams 1992): its gradient is the policy's."""
  del old_log_probs, config
  log_probs = losses.counted(weights, log_probs)
  loss = -losses.counted(weights, advantages) * log_probs
  return *losses.weighted(loss, weights), jnp.zeros(())


def _ppo(log_probs, old_log_probs, advantages, weights, config):
  """The clipped surrogate (Schulman et al. 2017, eq. 7), to be minimised.

  -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), r = pi / mu per token.
  After total and weight comes the weight of tokens whose clipped side is the
  smaller one, whose gradient is 0.
  """
  ratio = jnp.exp(log_ratios(log_probs, old_log_probs, weights))
  advantages = losses.counted(weights, advantages)
  plain = ratio * advantages
  low, high = 1 - config.clip_low, 1 + config.clip_high
  clipped = jnp.clip(ratio, low, high) * advantages
  total, weight = losses.weighted(-jnp.minimum(plain, clipped), weights)
  stopped, _ = losses.weighted((clipped < plain).astype(jnp.float32), weights)
  return total, weight, stopped


def _log_likelihood(log_probs, old_log_probs, advantages, weights, config):
  """-log pi of every token."""
  ones = jnp.ones_like(advantages)
  return _reinforce(log_probs, old_log_probs, ones, weights, config)


POLICY_LOSSES = dict(
  reinforce=PolicyLoss(_reinforce, off_policy=False),
  ppo=PolicyLoss(_ppo),
  rejection_sampling=PolicyLoss(_log_likelihood, selects=True),
)


def value_loss(
  values: Float[Array, "B T"],
  old_values: Float[ArrayLike, "B T"],
  returns: Float[ArrayLike, "B T"],
  weights: Float[ArrayLike, "B T"],
  *,
  clip: float | None = None,
) -> losses.Sums:
  """Half the squared error of values against returns.

  old_values: those at the rollout. clip: values may gain nothing by going
  farther than this from them: max of both errors (PPO's reference
  implementation).
  """
  values, returns = (
    losses.counted(weights, values),
    losses.counted(weights, returns),
  )
  error = jnp.square(values - returns)
  if clip is not None:
    old = losses.counted(weights, old_values)
    near = old + jnp.clip(values - old, -clip, clip)
    error = jnp.maximum(error, jnp.square(near - returns))
  return losses.weighted(0.5 * error, weights)


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
