"""Returns to advantages, the second half of credit assignment.

There are baselines over the N solutions of one problem, by their returns [N],
steps [N, K] or tokens [N, T], and a critic's over the tokens [T] of one
solution. Masks are as in rl/returns.py: a masked entry is the same as a deleted
one, and its advantage is 0. A loss treats advantages as constants: the caller
stops the gradient, although every function has a finite one.

docs/returns.md says when to use which function.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
from jax import numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Real

from prm_jax.batch import ArrayLike
from prm_jax.rl import returns

# The published weights of PRIME's two sources of reward.
PRIME_WEIGHT = 5.0

# --- Baselines of whole solutions -------------------------------------------


class MovingMean(NamedTuple):
  """A mean in which older values weigh less: sums, which are divided when read.

  Args:
    total: The weighted sum of the values.
    weight: The sum of the weights.
  """

  total: Float[ArrayLike, ""]
  weight: Float[ArrayLike, ""]


def no_mean() -> MovingMean:
  """Returns the mean of no values, which reads as 0.

  Returns:
    A MovingMean with total 0 and weight 0.
  """
  return MovingMean(jnp.float32(0), jnp.float32(0))


def moving(
  mean: MovingMean,
  solution_returns: Real[ArrayLike, "*axes"] | Bool[ArrayLike, "*axes"],
  mask: Bool[ArrayLike, "*axes"],
  decay: float,
) -> tuple[Float[Array, "*axes"], MovingMean]:
  """Returns the returns minus the mean of earlier updates, and the next mean.

  These returns enter the mean for the next update only, so the baseline doesn't
  depend on them. The result is divided by the sum of the weights, so the first
  baselines aren't drawn to 0, and decay = 1 is the mean of all earlier returns.

  Args:
    mean: The mean of earlier updates; no_mean() at the first.
    solution_returns: The return of each solution, of any shape.
    mask: Which solutions are real, of the same shape.
    decay: The factor of the weights of each earlier update, in [0, 1].

  Returns:
    The advantages, 0 at masked solutions, and the mean for the next update.
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
  """Returns each return minus the mean of the others' returns (RLOO).

  Kool et al. 2019; Ahmadian et al. 2024 (arXiv 2402.14740). The baseline
  doesn't contain a solution's own return, so the gradient is unbiased. A
  solution without others has baseline 0, which is plain REINFORCE and unbiased
  as well. Equal returns give exactly 0.

  Args:
    solution_returns: The return of each of the N solutions of a problem.
    mask: Which solutions are real.

  Returns:
    The advantages; 0 at masked solutions.
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
  """Returns (r - mean) / (std + epsilon) over a problem's solutions (GRPO).

  Shao et al. 2024 (arXiv 2402.03300): with rewards [N] of whole solutions it is
  section 4.1.2, with rewards [N, K] of all steps of all solutions 4.1.3. In the
  latter a token's advantage is the sum of those of the steps that end there or
  later: returns.discounted(returns.place(...), ...).

  Args:
    rewards: The rewards of one problem's solutions, or of their steps.
    mask: Which are real, of the same shape.
    epsilon: What is added to the standard deviation, which is the population's
      (n, not n - 1). Equal rewards give exactly 0 for any epsilon, with a
      gradient of 0.
    scale: Whether to divide by the deviation. False is Dr. GRPO (Liu et al.
      2025, arXiv 2503.20783), which equals leave_one_out times (n - 1) / n.

  Returns:
    The advantages; 0 at masked entries.
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
  """Returns r_k minus the others' reward per token times the step's tokens.

  The choice of PURE's first released code, on OpenRLHF (Cheng et al. 2025,
  arXiv 2504.15275); leave_one_out_budget is that of its later one. Cutting the
  same text into more or fewer steps changes nothing. The baseline depends on a
  solution's own length, so it isn't unbiased (docs/returns.md). Without others,
  or if they have no tokens, the baseline is 0.

  Args:
    step_rewards: The reward of each step of the N solutions of a problem.
    step_tokens: The number of tokens of each step.
    mask: Which steps are real.

  Returns:
    The advantages; 0 at masked steps.
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
  """Returns r_k minus the mean over the others of their mean step reward.

  The step baseline of PURE's first released code (Cheng et al. 2025, arXiv
  2504.15275): each of the others counts once, however many steps it has. The
  baseline depends on a solution's own number of steps: if rewards are positive
  it favours solutions of few steps, which is why PURE replaced it by
  leave_one_out_tokens. Without others that have steps it is 0.

  Args:
    step_rewards: The reward of each step of the N solutions of a problem.
    mask: Which steps are real.

  Returns:
    The advantages; 0 at masked steps.
  """
  rewards = returns.masked(step_rewards, mask)
  num_steps = jnp.sum(mask, axis=1)
  means = rewards.sum(axis=1) / jnp.maximum(num_steps, 1)
  baselines = means - leave_one_out(means, num_steps > 0)
  return returns.masked(rewards - baselines[:, None], mask)


# --- Tokens -----------------------------------------------------------------


def leave_one_out_to_go(
  token_returns: Real[ArrayLike, "N T"],
  step_ends: Int[ArrayLike, "N K"],
  step_mask: Bool[ArrayLike, "N K"],
  mask: Bool[ArrayLike, "N T"],
) -> Float[Array, "N T"]:
  """Returns G_t minus the others' mean return from the same step on.

  A token of step k is compared with the returns, from their own step k on, of
  the others that have a step k; what follows the last step, as the token that
  ends a solution, counts as the next one. The baseline depends on k and on the
  others alone, so the gradient is that of the expected return, whatever the
  lengths. Without such others it is 0.

  Args:
    token_returns: The return from each token on, of a problem's N solutions.
    step_ends: The index of the token that ends each step.
    step_mask: Which steps are real.
    mask: Which tokens are real.

  Returns:
    The advantages; 0 at masked tokens.
  """
  real = returns.masked(token_returns, mask)
  num_tokens, num_steps = real.shape[1], step_ends.shape[1]

  def begun(
    real: Float[Array, " T"],
    ends: Int[Array, " K"],
    step_mask: Bool[Array, " K"],
    mask: Bool[Array, " T"],
  ) -> tuple[Int[Array, " T"], Float[Array, " L"], Bool[Array, " L"]]:
    """Returns each token's step, and the return at each step's first token."""
    places = jnp.where(step_mask, ends, num_tokens)
    closed = jnp.zeros(num_tokens, int).at[places].add(1, mode="drop")
    step = jnp.cumsum(closed) - closed
    at = jnp.where(mask, jnp.arange(num_tokens), num_tokens)
    first = jax.ops.segment_min(at, step, num_steps + 1)
    exists = first < num_tokens
    return step, real.at[first].get(mode="fill", fill_value=0), exists

  step, from_step, exists = jax.vmap(begun)(
    real, jnp.asarray(step_ends), jnp.asarray(step_mask), jnp.asarray(mask)
  )
  # Of equal returns exactly 0.
  compared = jax.vmap(leave_one_out, 1, 1)(from_step, exists)
  here = jnp.take_along_axis(from_step, step, axis=1)
  less = jnp.take_along_axis(compared, step, axis=1)
  return returns.masked(real - here + less, mask)


def leave_one_out_budget(
  token_returns: Real[ArrayLike, "N T"],
  mask: Bool[ArrayLike, "N T"],
  max_tokens: int,
) -> Float[Array, "N T"]:
  """Returns G_t minus the mean over the others of their sum of G / max_tokens.

  The choice of PURE's later released code, on verl (Cheng et al. 2025, arXiv
  2504.15275). That code pads each solution to its token budget and takes the
  mean return of the others' tokens, padding counted as 0. So the baseline is
  one number for all tokens of a solution. It doesn't depend on the solution
  itself, so it is unbiased; it depends on the budget, and is near 0 if most
  solutions are far shorter. Without others it is 0.

  Args:
    token_returns: The return from each token on, of a problem's N solutions.
    mask: Which tokens are real.
    max_tokens: The most tokens that a solution may have. (T may be less or
      more: what is beyond a solution's end doesn't count.)

  Returns:
    The advantages; 0 at masked tokens.
  """
  real = returns.masked(token_returns, mask)
  sums = real.sum(axis=1)
  others = sums - leave_one_out(sums, jnp.any(mask, axis=1))
  return returns.masked(real - others[:, None] / max_tokens, mask)


def gae(
  rewards: Real[ArrayLike, " T"],
  values: Real[ArrayLike, " T"],
  mask: Bool[ArrayLike, " T"],
  discount: float,
  gae_lambda: float,
  bootstrap: float | Real[ArrayLike, ""] = 0.0,
) -> tuple[Float[Array, " T"], Float[Array, " T"]]:
  """Returns the advantages and returns of a critic's values.

  Generalized advantage estimation (Schulman et al. 2016, arXiv 1506.02438,
  equation 16).

  Args:
    rewards: The reward of each of T tokens.
    values: The critic's estimate of the return from each token on, as of before
      that token.
    mask: Which tokens are real.
    discount: The paper's gamma, in [0, 1].
    gae_lambda: The paper's lambda, in [0, 1].
    bootstrap: The return that the critic expects after the last real token: 0
      for a solution that ended, its estimate for one that was cut.

  Returns:
    (advantages, returns), 0 at masked tokens. The returns, advantages + values,
    are the critic's targets.
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
  """Returns (value - mean) / sqrt(variance + epsilon) over all real values.

  Args:
    values: Values of any shape.
    mask: Which are real, of the same shape.
    epsilon: What is added to the variance, which is the population's.

  Returns:
    The whitened values; 0 at masked entries, and exactly 0 if all are equal.
  """
  centred, count = _centred(values, mask)
  return centred * jax.lax.rsqrt(jnp.square(centred).sum() / count + epsilon)


def max_return_scaled(
  token_rewards: Real[ArrayLike, "N T"], mask: Bool[ArrayLike, "N T"]
) -> Float[Array, "N T"]:
  """Returns the rewards divided by the largest |return| from any token.

  PRIME's "batch norm": every return is in [-1, 1] afterwards, and rewards keep
  their signs and ratios.

  Args:
    token_rewards: The reward of each token of N solutions.
    mask: Which tokens are real.

  Returns:
    The scaled rewards; all 0 if all returns are 0.
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

  Cui et al. 2025 (arXiv 2502.01456). With m_j the mean token reward of solution
  j, a token gets process_weight * (r_t - mean of m_j over the others), and the
  last token also gets outcome_weight * leave_one_out(outcomes). An advantage is
  the return of these. A solution without tokens is ignored, with its outcome.

  Args:
    token_rewards: beta * log(pi / pi_ref) of each token of N solutions.
    mask: Which tokens are real.
    outcomes: The outcome of each solution, such as 0 or 1.
    process_weight: The factor of the token rewards.
    outcome_weight: The factor of the outcomes.
    discount: The factor for each token, in [0, 1].
    scale: "max_return" scales the rewards by the largest return of these
      solutions. To scale by a whole batch, as the paper does, apply
      max_return_scaled to the batch and give None here.

  Returns:
    The advantages; 0 at masked tokens.
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
  """Returns the real values minus their mean, and how many there are, or 1.

  The least value is subtracted first, so that equal values give exactly 0: a
  division by a deviation would amplify a rounding error.
  """
  values = returns.masked(values, mask)
  least = jax.lax.stop_gradient(jnp.min(values, where=mask, initial=jnp.inf))
  count = jnp.maximum(jnp.sum(mask, dtype=jnp.float32), 1)
  shifted = returns.masked(values - least, mask)
  return returns.masked(shifted - shifted.sum() / count, mask), count
