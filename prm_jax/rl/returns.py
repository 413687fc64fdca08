"""Step rewards to returns: the first half of credit assignment.

Pure functions of one solution, for the caller to vmap and to jit: rewards of
its K steps, and rewards of its T tokens. A mask says which are real. A masked
step or token equals a deleted one, wherever it stands; what stands under the
mask never matters, NaN included, and the result is 0 there. Results are
float32 whatever comes in.

docs/returns.md says which form is for what; rl/advantages.py takes it from here.
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
  """Returns values as float32, with 0 where nothing is real.

  Before their use, not after it: a NaN that only the result leaves out comes
  back in the gradient, as 0 * NaN.
  """
  return jnp.where(mask, jnp.asarray(values, jnp.float32), 0)


def following(
  values: Real[ArrayLike, " K"],
  mask: Bool[ArrayLike, " K"],
  last: float | Real[ArrayLike, ""] = 0.0,
) -> Float[Array, " K"]:
  """Returns the value of the next real step; after the last one, last."""
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
  """Returns min(r - threshold, 0): no step adds, a bad one takes away.

  Gao et al. 2024 (arXiv 2410.15115), "Clip". It goes step by step, so it
  needs no mask: what is masked stays masked.
  """
  return jnp.minimum(jnp.asarray(rewards, jnp.float32) - threshold, 0)


def delta(
  rewards: Real[ArrayLike, " K"], mask: Bool[ArrayLike, " K"]
) -> Float[Array, " K"]:
  """Returns r_k - r_(k+1), and r_K at the last step.

  Gao et al. 2024 (arXiv 2410.15115), "Delta": what follows step k telescopes,
  so that the return from k is r_k, however many steps come after. The paper's
  last step is the final answer: it gets 0, the one before it keeps its whole
  reward, and the outcome judges the answer. To have that, leave the last step
  out: delta(rewards, all_but_last(mask)).
  """
  return masked(rewards, mask) - following(rewards, mask)


def all_but_last(mask: Bool[ArrayLike, " K"]) -> Bool[Array, " K"]:
  """Returns the mask without its last real step."""
  index = jnp.arange(mask.shape[0])
  return jnp.asarray(mask) & (index < jnp.max(index, where=mask, initial=-1))


def soft_min(
  rewards: Real[ArrayLike, " K"],
  mask: Bool[ArrayLike, " K"],
  temperature: float = SOFT_MIN_TEMPERATURE,
) -> Float[Array, " K"]:
  """Returns softmax_k(-r / temperature) * r, whose sum tends to the minimum.

  PURE (Cheng et al. 2025, arXiv 2504.15275): the worst step takes nearly all
  of the credit, and the number of good steps hardly matters. The paper's
  rewards are P(good) - P(bad), in [-1, 1].
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
  """Returns each step's value at the token that closes it, 0 elsewhere.

  ends: index of that token. Steps that end at one token are added up. Where a
  real step ends outside [0, num_tokens) everything is NaN: a reward is never
  lost unseen.
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
  """Returns at each token the value of its step, and 0 after the last one.

  A token's step is the first real one that ends at the token or later; of two
  that end at one token the second has none. ends: as for place.
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
  """Returns the value at the last real token, 0 elsewhere: an outcome.

  A solution without tokens has nowhere to put it.
  """
  last = mask & ~all_but_last(mask)
  return jnp.where(last, jnp.asarray(value, jnp.float32), 0)


def _if_inside(
  tokens: Float[Array, " T"],
  ends: Int[ArrayLike, " K"],
  mask: Bool[ArrayLike, " K"],
) -> Float[Array, " T"]:
  """Returns the tokens, or NaN where a real step ends outside of them."""
  outside = (ends < 0) | (ends >= tokens.shape[0])
  return jnp.where(jnp.any(mask & outside), jnp.nan, tokens)


# --- Returns ----------------------------------------------------------------


def discounted(
  rewards: Real[ArrayLike, " T"],
  mask: Bool[ArrayLike, " T"],
  discount: float = 1.0,
) -> Float[Array, " T"]:
  """Returns G_t = r_t + discount * G_(t+1), the rewards from t on.

  A masked token adds nothing, doesn't discount, and gets 0.
  """
  rates = jnp.where(mask, jnp.float32(discount), 1)
  tokens = masked(rewards, mask), rates
  _, sums = jax.lax.scan(_back, jnp.float32(0), tokens, reverse=True)
  return masked(sums, mask)


def _back(later, token):
  """Returns the return at a token, twice, as scan wants it."""
  reward, rate = token
  now = reward + rate * later
  return now, now


def strict_min(
  rewards: Real[ArrayLike, " K"], mask: Bool[ArrayLike, " K"]
) -> Float[Array, " K"]:
  """Returns the least reward of this step and of those after it.

  As its temperature tends to 0, soft_min pays the same up to the worst step,
  and 0 after it; here the steps after it are paid, too. Over steps: a minimum
  over tokens, where those that close no step hold 0, is never above 0. spread
  brings it to the tokens.
  """
  rewards = jnp.where(mask, jnp.asarray(rewards, jnp.float32), jnp.inf)
  return masked(jax.lax.cummin(rewards, reverse=True), mask)
