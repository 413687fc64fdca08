"""Policy-gradient objectives as sums, and the distance to a reference.

Each returns (total, weight), as training/losses.py does. A token's weight is 0
if the policy didn't sample it. Otherwise it says how the loss is aggregated: 1
for a mean over tokens, 1 / tokens of the solution for a mean over solutions
(rows.loss_weights). Ratios and logarithms are float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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

  Args:
    kind: One of POLICY_LOSSES. rejection_sampling (also known as expert
      iteration) is the log-likelihood of solutions whose return is above
      return_threshold; it needs no baseline.
    return_threshold: See kind.
    max_per_problem: The most distinct solutions of a problem that rejection
      sampling keeps; 0 keeps all.
    clip_low: PPO's ratio is clipped below 1 - clip_low.
    clip_high: PPO's ratio is clipped above 1 + clip_high.
    loss_aggregation: The mean over the tokens of a minibatch, the mean over its
      solutions (of the mean over each one's tokens, as in GRPO), or the sum
      divided by rollout.max_tokens and the number of solutions (constant, as in
      Dr. GRPO).
    entropy: The coefficient of the policy's entropy.
    kl_placement: Whether the KL is part of the reward or of the loss.
    kl: The coefficient of the distance to the reference.
    kl_estimator: See `kl`.
    kl_target: The KL in nats per token to which the coefficient is adapted
      (Ziegler et al. 2019, arXiv 1909.08593).
    kl_horizon: How fast the coefficient adapts, in solutions.
    critic: none, shared (a head on the policy's trunk) or a model of its own.
    value: The weight of the critic's loss.
    value_clip: How far a value may change in an update.
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
    errors.raise_first(self._faults())

  def _faults(self) -> Iterator[str]:
    """Yields what is wrong, as messages."""
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
    if (self.kl_placement != "none") != (self.kl > 0):
      yield (
        f"loss.kl_placement={self.kl_placement!r} with loss.kl={self.kl}: give"
        " both, or 'none' and 0"
      )
    if self.kl_placement == "loss" and self.kl_estimator == "k1":
      yield (
        "loss.kl_estimator='k1' with loss.kl_placement='loss': its gradient is"
        " 0 in expectation; take k2 or k3, or kl_placement='reward'"
      )
    if self.kl_target is not None and self.kl_placement == "none":
      yield (
        f"loss.kl_target={self.kl_target}: there is no KL; set"
        " loss.kl_placement"
      )


# Total, weight, and the weight of tokens that a clip keeps from learning.
PolicySums = tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]


class PolicyLoss(NamedTuple):
  """A loss of the policy, and what it needs.

  Args:
    sums: Returns PolicySums, given (log_probs, old_log_probs, advantages,
      weights, config).
    off_policy: Whether it also learns from samples of an older policy, so that
      a rollout may have more than one update.
    selects: Whether it learns from the solutions that experience.select
      chooses, all with the same weight, and needs no baseline.
  """

  sums: Callable[..., PolicySums]
  off_policy: bool = True
  selects: bool = False


def log_ratios(
  log_probs: Float[Array, "B T"],
  old_log_probs: Float[ArrayLike, "B T"],
  weights: Float[ArrayLike, "B T"],
) -> Float[Array, "B T"]:
  """Returns log pi - log mu of each token, 0 if the policy didn't sample it.

  mu is the policy that sampled the tokens.
  """
  ratios = losses.counted(weights, log_probs) - losses.counted(
    weights, old_log_probs
  )
  return jnp.clip(ratios, -_MAX_LOG_RATIO, _MAX_LOG_RATIO)


def _reinforce(log_probs, old_log_probs, advantages, weights, config):
  """Returns -advantage * log pi (Williams 1992) as sums."""
  del old_log_probs, config
  log_probs = losses.counted(weights, log_probs)
  loss = -losses.counted(weights, advantages) * log_probs
  return *losses.weighted(loss, weights), jnp.zeros(())


def _ppo(log_probs, old_log_probs, advantages, weights, config):
  """Returns PPO's clipped surrogate (Schulman et al. 2017, eq. 7), negated.

  -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), r = pi / mu per token. The
  third sum is the weight of the tokens whose clipped side is the smaller one,
  whose gradient is 0.
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
  """Returns half the squared error of values against returns, as sums.

  Args:
    values: The critic's values now.
    old_values: Its values at the rollout.
    returns: The targets.
    weights: The weight of each token, at least 0.
    clip: How far a value may usefully move from the old one: the larger of the
      errors of the value and of the clipped value counts, as in PPO's reference
      implementation. None doesn't clip.

  Returns:
    (total, weight), two scalars.
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
  """Returns an estimate of KL(pi || reference) in nats at each token.

  With l = log pi - log reference of a token sampled from pi (Schulman 2020,
  "Approximating KL divergence"): k1 = l is unbiased and of either sign; k2 =
  l^2 / 2; k3 = exp(-l) - 1 + l is unbiased and never negative. As a loss,
  differentiated through pi, k1's gradient is 0 in expectation, k2's is that of
  the KL, and k3's isn't quite. As a reward, k1 is the one whose return is the
  KL.
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

  It changes by the factor 1 + error * solutions / horizon, where error is the
  relative error of the KL against the target, clipped to 20 %.
  """
  error = jnp.clip(kl_nats / target - 1, -0.2, 0.2)
  return jnp.asarray(coefficient) * (1 + error * solutions / horizon)
