"""Baselines: what a solution's return is compared with, in a table by name.

Each is a function of the rewards of a whole rollout (Stream). It applies the
formulas of rl/advantages.py, which are for one problem or one solution.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import NamedTuple

from flax import struct
import jax
from jax import numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from prm_jax.batch import ArrayLike
from prm_jax.rl import advantages as advantages_lib
from prm_jax.rl import returns as returns_lib


@struct.dataclass
class Rewards:
  """The rewards of a rollout's N solutions, problem after problem.

  Args:
    steps: The reward of each of K steps.
    step_ends: The index of the token that ends each step.
    step_mask: Which steps are real.
    outcome: The reward of each whole solution.
    tokens: The token rewards of an implicit PRM, or 0.
    penalty: What is subtracted at each token.
    values: A critic's value of the path before each token, or 0.
    token_mask: Which of S tokens are real.
    counts: Which solutions are learned from; the others are in no baseline.
  """

  steps: Float[ArrayLike, "N K"]
  step_ends: Int[ArrayLike, "N K"]
  step_mask: Bool[ArrayLike, "N K"]
  outcome: Float[ArrayLike, " N"]
  tokens: Float[ArrayLike, "N S"]
  penalty: Float[ArrayLike, "N S"]
  values: Float[ArrayLike, "N S"]
  token_mask: Bool[ArrayLike, "N S"]
  counts: Bool[ArrayLike, " N"]


class Stream(NamedTuple):
  """The rewards of a rollout and their returns, for a baseline to compare.

  Args:
    rewards: The rewards, with step rewards shaped. The masks leave out
      solutions that don't count.
    at_tokens: The outcome at the last token, minus the KL penalty at each
      token.
    returns: The return from each token on, of all rewards but rewards.tokens.
    of_whole: The part of the returns that doesn't come from step rewards.
    mean: The mean of the returns of earlier rollouts.
    samples: The number of solutions of a problem, which come one after another.
    max_tokens: The most tokens that a solution may have.
    discount: See CreditConfig.
    gae_lambda: See CreditConfig.
    moving_decay: See CreditConfig.
    scale: See CreditConfig.
    implicit_weight: The weight of token rewards, relative to the outcome.
  """

  rewards: Rewards
  at_tokens: Float[Array, "N S"]
  returns: Float[Array, "N S"]
  of_whole: Float[Array, "N S"]
  mean: advantages_lib.MovingMean
  samples: int
  max_tokens: int
  discount: float
  gae_lambda: float
  moving_decay: float
  scale: bool
  implicit_weight: float


# Advantages of tokens, and the returns that a critic learns.
Compared = tuple[Float[Array, "N S"], Float[Array, "N S"]]


class Baseline(NamedTuple):
  """How returns become advantages, and what that needs.

  Args:
    compare: Returns Compared, given a Stream.
    compares_solutions: Whether it compares the solutions of a problem, so that
      at least two are needed.
    compares_steps: Whether it needs step rewards.
    sums_only: Whether it needs returns that are sums of rewards, not a minimum.
    critic: Whether it needs a critic's values.
    implicit: Whether it needs the token rewards of an implicit PRM, and no
      other reward but the outcome.
  """

  compare: Callable[[Stream], Compared]
  compares_solutions: bool = False
  compares_steps: bool = False
  sums_only: bool = False
  critic: bool = False
  implicit: bool = False


def placed(
  steps: Float[ArrayLike, "N K"],
  ends: Int[ArrayLike, "N K"],
  mask: Bool[ArrayLike, "N K"],
  num_tokens: int,
) -> Float[Array, "N S"]:
  """Returns the step rewards at the tokens that end their steps."""
  place = functools.partial(returns_lib.place, num_tokens=num_tokens)
  return jax.vmap(place)(steps, ends, mask)


def discounted(
  rewards: Float[ArrayLike, "N S"],
  mask: Bool[ArrayLike, "N S"],
  discount: float,
) -> Float[Array, "N S"]:
  """Returns the discounted sum of the rewards of each token and later ones."""
  of_one = functools.partial(returns_lib.discounted, discount=discount)
  return jax.vmap(of_one)(rewards, mask)


def none(stream: Stream) -> Compared:
  """Returns the returns unchanged (Williams 1992)."""
  return stream.returns, stream.returns


def moving(stream: Stream) -> Compared:
  """Returns the returns minus the mean of earlier rollouts."""
  total = stream.returns[:, 0]
  less, _ = advantages_lib.moving(
    stream.mean, total, stream.rewards.counts, stream.moving_decay
  )
  return stream.returns - (total - less)[:, None], stream.returns


def leave_one_out(stream: Stream) -> Compared:
  """Returns each token's return minus the others' mean return (RLOO)."""
  return _less_the_others(stream, stream.returns), stream.returns


def group(stream: Stream) -> Compared:
  """Returns GRPO's advantages: the same for all tokens of a solution."""
  return _first_normalised(stream, stream.returns), stream.returns


def leave_one_out_step(stream: Stream) -> Compared:
  """Returns advantages of steps, minus the others' mean step reward."""
  steps = _by_problem(
    stream,
    advantages_lib.leave_one_out_steps,
    stream.rewards.steps,
    stream.rewards.step_mask,
  )
  return _of_steps(stream, steps, _less_the_others)


def leave_one_out_token(stream: Stream) -> Compared:
  """Returns advantages of steps, minus the others' reward per token.

  PURE's form on OpenRLHF.
  """
  steps = _by_problem(
    stream,
    advantages_lib.leave_one_out_tokens,
    stream.rewards.steps,
    _step_tokens(stream.rewards.step_ends, stream.rewards.step_mask),
    stream.rewards.step_mask,
  )
  return _of_steps(stream, steps, _less_the_others)


def leave_one_out_budget(stream: Stream) -> Compared:
  """Returns each token's return minus the others' mean over the token budget.

  PURE's form on verl.
  """
  of_problem = functools.partial(
    advantages_lib.leave_one_out_budget, max_tokens=stream.max_tokens
  )
  advantages = _by_problem(
    stream, of_problem, stream.returns, stream.rewards.token_mask
  )
  return advantages, stream.returns


def leave_one_out_to_go(stream: Stream) -> Compared:
  """Returns each token's return minus the others' from the same step on."""
  advantages = _by_problem(
    stream,
    advantages_lib.leave_one_out_to_go,
    stream.returns,
    stream.rewards.step_ends,
    stream.rewards.step_mask,
    stream.rewards.token_mask,
  )
  return advantages, stream.returns


def group_step(stream: Stream) -> Compared:
  """Returns GRPO's advantages with process supervision."""
  steps = _normalised(stream, stream.rewards.steps, stream.rewards.step_mask)
  return _of_steps(stream, steps, _first_normalised)


def gae(stream: Stream) -> Compared:
  """Returns generalized advantage estimates, and the critic's targets."""
  of_one = functools.partial(
    advantages_lib.gae, discount=stream.discount, gae_lambda=stream.gae_lambda
  )
  rewards = _placed(stream, stream.rewards.steps) + stream.at_tokens
  return jax.vmap(of_one)(
    rewards, stream.rewards.values, stream.rewards.token_mask
  )


def prime(stream: Stream) -> Compared:
  """Returns PRIME's advantages, with token rewards scaled over the rollout."""
  scaled = advantages_lib.max_return_scaled(
    stream.rewards.tokens, stream.rewards.token_mask
  )
  of_problem = functools.partial(
    advantages_lib.prime,
    process_weight=stream.implicit_weight,
    outcome_weight=1.0,
    discount=stream.discount,
    scale=None,
  )
  advantages = _by_problem(
    stream,
    of_problem,
    scaled,
    stream.rewards.token_mask,
    stream.rewards.outcome,
  )
  penalty = returns_lib.masked(
    stream.rewards.penalty, stream.rewards.token_mask
  )
  advantages -= discounted(penalty, stream.rewards.token_mask, stream.discount)
  return advantages, stream.returns


_OF_STEPS = dict(compares_solutions=True, compares_steps=True, sums_only=True)
BASELINES = dict(
  none=Baseline(none),
  moving=Baseline(moving),
  leave_one_out=Baseline(leave_one_out, compares_solutions=True),
  group=Baseline(group, compares_solutions=True),
  leave_one_out_step=Baseline(leave_one_out_step, **_OF_STEPS),
  leave_one_out_token=Baseline(leave_one_out_token, **_OF_STEPS),
  leave_one_out_budget=Baseline(leave_one_out_budget, compares_solutions=True),
  leave_one_out_to_go=Baseline(
    leave_one_out_to_go, compares_solutions=True, compares_steps=True
  ),
  group_step=Baseline(group_step, **_OF_STEPS),
  gae=Baseline(gae, sums_only=True, critic=True),
  prime=Baseline(prime, compares_solutions=True, sums_only=True, implicit=True),
)


# --- Private ------------------------------------------------------------------


def _of_steps(
  stream: Stream,
  steps: Float[ArrayLike, "N K"],
  of_whole: Callable[[Stream, Float[Array, "N S"]], Float[Array, "N S"]],
) -> Compared:
  """Returns the step rewards' advantages plus those of the other rewards."""
  placed_steps = _placed(stream, steps)
  advantages = discounted(
    placed_steps, stream.rewards.token_mask, stream.discount
  )
  advantages += of_whole(stream, stream.of_whole)
  return advantages, stream.returns


def _placed(
  stream: Stream, steps: Float[ArrayLike, "N K"]
) -> Float[Array, "N S"]:
  num_tokens = stream.rewards.token_mask.shape[1]
  return placed(
    steps, stream.rewards.step_ends, stream.rewards.step_mask, num_tokens
  )


def _less_the_others(
  stream: Stream, returns: Float[Array, "N S"]
) -> Float[Array, "N S"]:
  """Returns each token's return minus the mean of the others' first returns."""
  total = returns[:, 0]
  less = _by_problem(
    stream, advantages_lib.leave_one_out, total, stream.rewards.counts
  )
  return returns - (total - less)[:, None]


def _first_normalised(
  stream: Stream, returns: Float[Array, "N S"]
) -> Float[Array, "N S"]:
  """Returns the first token's return, normalised, at every token."""
  advantages = _normalised(stream, returns[:, 0], stream.rewards.counts)
  return jnp.broadcast_to(advantages[:, None], returns.shape)


def _normalised(stream: Stream, rewards: ArrayLike, mask: ArrayLike) -> Array:
  normalise = functools.partial(
    advantages_lib.group_normalised, scale=stream.scale
  )
  return _by_problem(stream, normalise, rewards, mask)


def _by_problem(
  stream: Stream, function: Callable, *arrays: ArrayLike
) -> Array:
  """Returns the results of a function of each problem's solutions, joined."""

  def split(array):
    return array.reshape(-1, stream.samples, *array.shape[1:])

  results = jax.vmap(function)(*map(split, arrays))
  return results.reshape(-1, *results.shape[2:])


def _step_tokens(
  ends: Int[ArrayLike, "N K"], mask: Bool[ArrayLike, "N K"]
) -> Int[Array, "N K"]:
  """Returns how many tokens each step has."""
  reached = jax.lax.cummax(jnp.where(mask, ends + 1, 0), axis=1)
  before = jnp.pad(reached[:, :-1], ((0, 0), (1, 0)))
  return jnp.where(mask, reached - before, 0)
