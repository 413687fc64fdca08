"""Step rewards to returns, the first half of credit assignment.

These are pure functions of one solution, to be used under vmap and jit: rewards
of its K steps, and rewards of its T tokens. A mask says which entries are real.
A masked step or token is the same as a deleted one, wherever it stands: its
value never matters, even if it is NaN, and the result is 0 there. Results are
float32, whatever the type of the input.

docs/returns.md says when to use which function; rl/advantages.py is the second
half.
"""

from __future__ import annotations

import jax
from jax import numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Real

from prm_jax.batch import ArrayLike

# PURE's softmax temperature, for rewards in [-1, 1].
SOFT_MIN_TEMPERATURE = 0.1
# Stands for the logarithm of 0, without infinity's NaN where all is masked.
_LOG_0 = -1e30


def masked(
  values: Real[ArrayLike, "*axes"] | Bool[ArrayLike, "*axes"],
  mask: Bool[ArrayLike, "*axes"],
) -> Float[Array, "*axes"]:
  """Returns values as float32, with 0 at masked entries.

  Apply it to inputs, not to results: a NaN that is only left out of the result
  comes back in the gradient, as 0 * NaN.

  Args:
    values: Values of any shape.
    mask: Which are real, of the same shape.

  Returns:
    The values, with 0 where the mask is false.
  """
  return jnp.where(mask, jnp.asarray(values, jnp.float32), 0)


def following(
  values: Real[ArrayLike, " K"],
  mask: Bool[ArrayLike, " K"],
  last: float | Real[ArrayLike, ""] = 0.0,
) -> Float[Array, " K"]:
  """Returns the value of the next real step.

  Args:
    values: The value of each of K steps.
    mask: Which steps are real.
    last: The value that follows the last real step.

  Returns:
    The value that follows each step; 0 at masked steps.
  """
  size = mask.shape[0]
  places = jnp.where(mask, jnp.arange(size), size)
  at_or_after = jax.lax.cummin(places, reverse=True)
  after = jnp.append(at_or_after, size)[1:]
  values = jnp.append(masked(values, mask), jnp.asarray(last, jnp.float32))
  return masked(values[after], mask)


# --- Shaping: step rewards to step rewards ----------------------------------


def clip(
  rewards: Real[ArrayLike, " K"], threshold: float
) -> Float[Array, " K"]:
  """Returns min(r - threshold, 0): no step adds reward, a bad step loses some.

  "Clip" of Gao et al. 2024 (arXiv 2410.15115). It treats steps one by one, so
  it needs no mask: masked steps remain masked.

  Args:
    rewards: The reward of each of K steps.
    threshold: The reward above which all steps are equal.

  Returns:
    The new rewards, at most 0.
  """
  return jnp.minimum(jnp.asarray(rewards, jnp.float32) - threshold, 0)


def delta(
  rewards: Real[ArrayLike, " K"], mask: Bool[ArrayLike, " K"]
) -> Float[Array, " K"]:
  """Returns r_k - r_(k+1), and r_K at the last step.

  "Delta" of Gao et al. 2024 (arXiv 2410.15115): the sum from step k on
  telescopes, so the return from step k is r_k, however many steps follow. The
  paper's last step is the final answer, which gets 0; the step before it keeps
  its whole reward, and the outcome judges the answer. For that, leave the last
  step out: delta(rewards, all_but_last(mask)).

  Args:
    rewards: The reward of each of K steps.
    mask: Which steps are real.

  Returns:
    The new rewards; 0 at masked steps.
  """
  return masked(rewards, mask) - following(rewards, mask)


def all_but_last(mask: Bool[ArrayLike, " K"]) -> Bool[Array, " K"]:
  """Returns the mask without its last real step.

  Args:
    mask: Which of K steps are real.

  Returns:
    The mask, false at the last real step.
  """
  index = jnp.arange(mask.shape[0])
  return jnp.asarray(mask) & (index < jnp.max(index, where=mask, initial=-1))


def soft_min(
  rewards: Real[ArrayLike, " K"],
  mask: Bool[ArrayLike, " K"],
  temperature: float = SOFT_MIN_TEMPERATURE,
) -> Float[Array, " K"]:
  """Returns softmax_k(-r / temperature) * r, whose sum tends to the minimum.

  PURE (Cheng et al. 2025, arXiv 2504.15275): the worst step takes nearly all of
  the credit, and the number of good steps hardly matters.

  Args:
    rewards: The reward of each of K steps; in the paper P(good) - P(bad), in
      [-1, 1].
    mask: Which steps are real.
    temperature: The temperature of the softmax, in units of reward; above 0.

  Returns:
    The new rewards; 0 at masked steps.
  """
  rewards = masked(rewards, mask)
  weights = jax.nn.softmax(jnp.where(mask, -rewards / temperature, _LOG_0))
  return weights * rewards


# --- Placing: steps to tokens -----------------------------------------------


def place(
  values: Real[ArrayLike, " K"],
  ends: Int[ArrayLike, " K"],
  mask: Bool[ArrayLike, " K"],
  num_tokens: int,
) -> Float[Array, " T"]:
  """Returns tokens with the value of each step at the token that ends it.

  Args:
    values: The value of each of K steps.
    ends: The index of the token that ends each step. Steps that end at the same
      token are added.
    mask: Which steps are real.
    num_tokens: T, the number of tokens of the result.

  Returns:
    The value at each token, 0 where no step ends. All are NaN if a real step
    ends outside [0, num_tokens), so that no reward is lost unnoticed.
  """
  zeros = jnp.zeros(num_tokens, jnp.float32)
  index = jnp.where(mask, ends, 0)
  placed = zeros.at[index].add(masked(values, mask), mode="drop")
  return _if_inside(placed, ends, mask)


def spread(
  values: Real[ArrayLike, " K"],
  ends: Int[ArrayLike, " K"],
  mask: Bool[ArrayLike, " K"],
  num_tokens: int,
) -> Float[Array, " T"]:
  """Returns tokens with the value of the step that each token belongs to.

  A token's step is the first real step that ends at the token or later. Of two
  steps that end at one token, the second has no token.

  Args:
    values: The value of each of K steps.
    ends: The index of the token that ends each step.
    mask: Which steps are real.
    num_tokens: T, the number of tokens of the result.

  Returns:
    The value at each token, 0 after the last step. All are NaN if a real step
    ends outside [0, num_tokens).
  """
  size = mask.shape[0]
  owners = jnp.full(num_tokens, size)
  index = jnp.where(mask, ends, num_tokens)
  owners = owners.at[index].min(jnp.arange(size), mode="drop")
  owners = jax.lax.cummin(owners, reverse=True)
  return _if_inside(jnp.append(masked(values, mask), 0)[owners], ends, mask)


def at_last(
  value: float | Real[ArrayLike, ""] | Bool[ArrayLike, ""],
  mask: Bool[ArrayLike, " T"],
) -> Float[Array, " T"]:
  """Returns tokens with the value at the last real token, such as an outcome.

  Args:
    value: The value.
    mask: Which of T tokens are real.

  Returns:
    The value at the last real token, 0 elsewhere; all 0 if no token is real.
  """
  last = mask & ~all_but_last(mask)
  return jnp.where(last, jnp.asarray(value, jnp.float32), 0)


def _if_inside(
  tokens: Float[Array, " T"],
  ends: Int[ArrayLike, " K"],
  mask: Bool[ArrayLike, " K"],
) -> Float[Array, " T"]:
  """Returns the tokens, or NaN if a real step ends outside of them."""
  outside = (ends < 0) | (ends >= tokens.shape[0])
  return jnp.where(jnp.any(mask & outside), jnp.nan, tokens)


# --- Returns ----------------------------------------------------------------


def discounted(
  rewards: Real[ArrayLike, " T"],
  mask: Bool[ArrayLike, " T"],
  discount: float = 1.0,
) -> Float[Array, " T"]:
  """Returns G_t = r_t + discount * G_(t+1), the sum of the rewards from t on.

  Args:
    rewards: The reward of each of T tokens.
    mask: Which tokens are real. A masked token adds nothing and doesn't
      discount.
    discount: The factor for each real token, in [0, 1].

  Returns:
    The return from each token on; 0 at masked tokens.
  """
  rates = jnp.where(mask, jnp.float32(discount), 1)
  tokens = masked(rewards, mask), rates
  _, sums = jax.lax.scan(_back, jnp.float32(0), tokens, reverse=True)
  return masked(sums, mask)


def _back(later, token):
  """Returns the return at a token twice: as scan's carry and as its output."""
  reward, rate = token
  now = reward + rate * later
  return now, now


def min_to_go(
  rewards: Real[ArrayLike, " K"], mask: Bool[ArrayLike, " K"]
) -> Float[Array, " K"]:
  """Returns the least reward of each step and all later steps.

  It isn't the limit of PURE's soft_min, whose return is 0 after the worst step:
  here the steps after the worst one have a return of their own, so a solution
  is paid for what follows its error. Apply it to steps and not to tokens:
  tokens that end no step hold 0, so a minimum over tokens is never above 0.
  `spread` brings the result to the tokens.

  Args:
    rewards: The reward of each of K steps.
    mask: Which steps are real.

  Returns:
    The return from each step on; 0 at masked steps.
  """
  rewards = jnp.where(mask, jnp.asarray(rewards, jnp.float32), jnp.inf)
  return masked(jax.lax.cummin(rewards, reverse=True), mask)
