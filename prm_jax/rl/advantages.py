"""Returns to advantages: the second half of credit assignment.

Baselines over the N solutions of one problem, by their returns [N], by their
steps [N, K] or by their tokens [N, T]; a critic's, over the tokens [T] of one
solution. Masks as in rl/returns.py: what is masked equals what was deleted, and
its advantage is 0. Advantages are constants to the loss: the caller stops the
gradient, though every function has a finite one.

docs/returns.md says which form is for what.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
from jax import numpy as jnp
from jaxtyping import Array, Bool, Float, Real

from prm_jax.batch import ArrayLike
from prm_jax.rl import returns

# The published weights of PRIME's two sources of reward.
PRIME_WEIGHT = 5.0

# --- Baselines of whole solutions -------------------------------------------


class MovingMean(NamedTuple):
  """A mean that forgets: sums, divided only where it is read."""

  total: Float[ArrayLike, ""]
  weight: Float[ArrayLike, ""]


def no_mean() -> MovingMean:
  """Returns the mean of nothing, which reads as 0."""
  return MovingMean(jnp.float32(0), jnp.float32(0))


def moving(
  mean: MovingMean,
  solution_returns: Real[ArrayLike, "*axes"] | Bool[ArrayLike, "*axes"],
  mask: Bool[ArrayLike, "*axes"],
  decay: float,
) -> tuple[Float[Array, "*axes"], MovingMean]:
  """Returns the returns less the mean of earlier updates, and the next mean.

  These returns enter the mean for the next update only, so the baseline is
  independent of them. Each update before weighs decay times less, for every
  solution in it alike; the sum of the weights divides, so the first updates
  aren't drawn to 0 and decay = 1 is the mean of all.
  """
  real = returns.masked(solution_returns, mask)
  known = mean.weight > 0
  baseline = jnp.where(known, mean.total, 0) / jnp.where(known, mean.weight, 1)
  total = decay * mean.total + real.sum()
  weight = decay * mean.weight + jnp.sum(mask, dtype=jnp.float32)
  return returns.masked(real - baseline, mask), MovingMean(total, weight)


def leave_one_out(
  solution_returns: Real[ArrayLike, " N"] | Bool[ArrayLike, " N"],
  mask: Bool[ArrayLike, " N"],
) -> Float[Array, " N"]:
  """Returns each return less the mean of the others: RLOO.

  Kool et al. 2019; Ahmadian et al. 2024 (arXiv 2402.14740). One's own return
  isn't in the baseline, so the gradient is unbiased. A solution without others
  has the baseline 0: plain REINFORCE, unbiased as well. Equal returns give 0
  exactly.
  """
  real = returns.masked(solution_returns, mask)
  centred, count = _centred(real, mask)
  # r - mean of the others = (r - mean of all) * n / (n - 1)
  scale = count / jnp.maximum(count - 1, 1)
  return jnp.where(count > 1, centred * scale, real)


def group_normalised(
  rewards: Real[ArrayLike, "*axes"] | Bool[ArrayLike, "*axes"],
  mask: Bool[ArrayLike, "*axes"],
  epsilon: float = 1e-6,
  scale: bool = True,
) -> Float[Array, "*axes"]:
  """Returns (r - mean) / (std + epsilon) over a problem's solutions: GRPO.

  Shao et al. 2024 (arXiv 2402.03300): of rewards [N] of whole solutions,
  section 4.1.2; of rewards [N, K] of all steps of all solutions, 4.1.3, where a
  token's advantage is the sum of those of the steps that end there or later:
  returns.discounted(returns.place(...), ...).

  The deviation is the population's (n, not n - 1). Equal rewards give 0
  exactly, with a gradient of 0, for any epsilon. scale=False leaves the
  deviation out: Dr. GRPO (Liu et al. 2025, arXiv 2503.20783), which is
  leave_one_out times (n - 1) / n.
  """
  centred, count = _centred(rewards, mask)
  if not scale:
    return centred
  variance = jnp.square(centred).sum() / count
  # The square root has no gradient at 0, and 0 / 0 no value.
  some = variance > 0
  deviation = jnp.sqrt(jnp.where(some, variance, 1))
  return jnp.where(some, centred / (deviation + epsilon), 0)


# --- Baselines of steps -----------------------------------------------------


def leave_one_out_tokens(
  step_rewards: Real[ArrayLike, "N K"],
  step_tokens: Real[ArrayLike, "N K"],
  mask: Bool[ArrayLike, "N K"],
) -> Float[Array, "N K"]:
  """Returns r_k less the others' reward per token times the step's tokens.

  step_tokens: how many tokens each step has. PURE's choice (Cheng et al. 2025,
  arXiv 2504.15275): cutting the same text into more steps, or fewer, changes
  nothing. Without others, or if they have no tokens, the baseline is 0. It is
  a price on one's own length, so not an unbiased baseline (docs/returns.md).
  """
  rewards = returns.masked(step_rewards, mask)
  sizes = returns.masked(step_tokens, mask)
  others_reward = rewards.sum() - rewards.sum(axis=1)
  others_size = sizes.sum() - sizes.sum(axis=1)
  some = others_size > 0
  price = jnp.where(some, others_reward, 0) / jnp.where(some, others_size, 1)
  return rewards - price[:, None] * sizes


def leave_one_out_steps(
  step_rewards: Real[ArrayLike, "N K"], mask: Bool[ArrayLike, "N K"]
) -> Float[Array, "N K"]:
  """Returns r_k less the others' reward per step.

  Without others, or if they have no steps, the baseline is 0. It is a price on
  each step: where rewards are positive it favours solutions of few steps, why
  PURE gave it up for leave_one_out_tokens.
  """
  return leave_one_out_tokens(step_rewards, jnp.ones(mask.shape), mask)


# --- Tokens -----------------------------------------------------------------


def gae(
  rewards: Real[ArrayLike, " T"],
  values: Real[ArrayLike, " T"],
  mask: Bool[ArrayLike, " T"],
  discount: float,
  gae_lambda: float,
  bootstrap: float | Real[ArrayLike, ""] = 0.0,
) -> tuple[Float[Array, " T"], Float[Array, " T"]]:
  """Returns (advantages, returns) of a critic's values.

  Generalized advantage estimation (Schulman et al. 2016, arXiv 1506.02438,
  eq. 16), gae_lambda being its lambda. values[t] is the critic's return from token
  t on, as seen before it. bootstrap: what it expects after the last real
  token, for a solution that was cut; one that ended has 0. The returns,
  advantages + values, are what the critic learns.
  """
  real = returns.masked(values, mask)
  errors = returns.masked(rewards, mask) - real
  errors = errors + discount * returns.following(real, mask, bootstrap)
  advantages = returns.discounted(errors, mask, discount * gae_lambda)
  return advantages, advantages + real


def whiten(
  values: Real[ArrayLike, "*axes"],
  mask: Bool[ArrayLike, "*axes"],
  epsilon: float = 1e-8,
) -> Float[Array, "*axes"]:
  """Returns (value - mean) / sqrt(variance + epsilon), over everything real.

  The variance is the population's. Equal values give 0 exactly.
  """
  centred, count = _centred(values, mask)
  return centred * jax.lax.rsqrt(jnp.square(centred).sum() / count + epsilon)


def max_return_scaled(
  token_rewards: Real[ArrayLike, "N T"], mask: Bool[ArrayLike, "N T"]
) -> Float[Array, "N T"]:
  """Returns the rewards over the largest |return| of any of the tokens.

  PRIME's "batch norm": no return from any token leaves [-1, 1], and rewards
  keep their signs and their ratios. Rewards of 0 stay 0.
  """
  rewards = returns.masked(token_rewards, mask)
  largest = jnp.abs(jax.vmap(returns.discounted)(rewards, mask)).max(initial=0)
  return rewards / jnp.where(largest > 0, largest, 1)


def prime(
  token_rewards: Real[ArrayLike, "N T"],
  mask: Bool[ArrayLike, "N T"],
  outcomes: Real[ArrayLike, " N"] | Bool[ArrayLike, " N"],
  *,
  process_weight: float = PRIME_WEIGHT,
  outcome_weight: float = PRIME_WEIGHT,
  discount: float = 1.0,
  scale: Literal["max_return"] | None = "max_return",
) -> Float[Array, "N T"]:
  """Returns PRIME's advantages of a problem's solutions, before whitening.

  Cui et al. 2025 (arXiv 2502.01456). With m_j the mean token reward of solution j, tokens get process_weight * (r_t - mean of m_j over the others),
  the last one outcome_weight * leave_one_out(outcomes) on top, and an advantage
  is the return of these. token_rewards: beta * log(pi / pi_ref) of each token.
  A solution without tokens is as if it weren't there, its outcome included.

  scale: "max_return" scales by these solutions. To scale by a whole batch, as
  the paper does, call max_return_scaled on it and give scale=None here.
  """
  rewards = returns.masked(token_rewards, mask)
  if scale == "max_return":
    rewards = max_return_scaled(rewards, mask)
  lengths = jnp.sum(mask, axis=1)
  exists = lengths > 0
  means = rewards.sum(axis=1) / jnp.maximum(lengths, 1)
  baselines = means - leave_one_out(means, exists)
  outcome = outcome_weight * leave_one_out(outcomes, exists)
  process = process_weight * (rewards - baselines[:, None])
  mixed = process + jax.vmap(returns.at_last)(outcome, mask)
  return jax.vmap(returns.discounted, in_axes=(0, 0, None))(
    mixed, mask, discount
  )


# --- Private ----------------------------------------------------------------


def _centred(
  values: Real[ArrayLike, "*axes"] | Bool[ArrayLike, "*axes"],
  mask: Bool[ArrayLike, "*axes"],
) -> tuple[Float[Array, "*axes"], Float[Array, ""]]:
  """Returns the real values less their mean, and how many there are, or 1.

  The least of them goes first, so that equal values leave 0 and no rounding,
  which a division by a deviation would blow up.
  """
  values = returns.masked(values, mask)
  least = jax.lax.stop_gradient(jnp.min(values, where=mask, initial=jnp.inf))
  count = jnp.maximum(jnp.sum(mask, dtype=jnp.float32), 1)
  shifted = returns.masked(values - least, mask)
  return returns.masked(shifted - shifted.sum() / count, mask), count
