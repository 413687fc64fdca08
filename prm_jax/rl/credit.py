"""From the rewards of a rollout to the advantage of every token.

Three streams of reward make up a token's return: those of steps, at the tokens
that close them; that of the whole solution, at its last token; and the
distance to the reference, at every token. rl/returns.py and rl/advantages.py have
the formulas, of one solution or one problem; here they are chosen, and mapped
over a rollout.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Any, NamedTuple

from flax import struct
import jax
from jax import numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from prm_jax.batch import ArrayLike
from prm_jax.rl import advantages as advantages_lib
from prm_jax.rl import config as rl_config
from prm_jax.rl import returns as returns_lib


@struct.dataclass
class Rewards:
  """What the N solutions of a rollout were given; problems one after another.

  K, S: the most steps and tokens that a solution may have. steps, step_ends:
  the rewards of steps, and the token that closes each. outcome: of the whole.
  tokens: an implicit PRM's, or 0. penalty: subtracted at each token. values: of
  the path before each token, or 0. counts: solutions to learn from; the others
  are no baseline either.
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


@struct.dataclass
class Credit:
  """advantages and returns of tokens; returns are what a critic learns.

  to_come: what was rewarded from a token on, without a critic's values in it.
  total: the return of the whole solution, its first token's. steps: that part
  of it which step rewards make.
  """

  advantages: Float[ArrayLike, "N S"]
  returns: Float[ArrayLike, "N S"]
  to_come: Float[ArrayLike, "N S"]
  total: Float[ArrayLike, " N"]
  steps: Float[ArrayLike, " N"]


def shaped(
  rewards: Float[Array, " K"],
  mask: Bool[Array, " K"],
  config: rl_config.CreditConfig,
) -> Float[Array, " K"]:
  """Returns step rewards as credit.shape and a soft minimum make them.

  Under delta the last step, the answer, is left to the outcome, as in the
  paper.
  """
  if "clip" in config.shape:
    rewards = returns_lib.clip(rewards, config.threshold)
  if "delta" in config.shape:
    rewards = returns_lib.delta(rewards, returns_lib.all_but_last(mask))
  if config.returns == "min_soft":
    rewards = returns_lib.soft_min(rewards, mask, config.min_temperature)
  return returns_lib.masked(rewards, mask)


@functools.partial(
  jax.jit, static_argnames=("config", "samples", "implicit_weight")
)
def assign(
  rewards: Rewards,
  mean: advantages_lib.MovingMean,
  *,
  config: rl_config.CreditConfig,
  samples: int,
  implicit_weight: float = 1.0,
) -> Credit:
  """Returns the credit of a rollout.

  mean: of the returns of earlier rollouts, for the moving baseline. samples:
  solutions of a problem. implicit_weight: of token rewards against the
  outcome. Solutions that don't count get advantage 0.
  """
  given: Any = jax.tree.map(jnp.asarray, rewards)
  counts = given.counts
  flow = _Flow(
    config,
    samples,
    given.step_ends,
    given.step_mask & counts[:, None],
    given.token_mask & counts[:, None],
  )
  whole = jax.vmap(returns_lib.at_last)(given.outcome, flow.token_mask)
  whole -= returns_lib.masked(given.penalty, flow.token_mask)
  of_whole = flow.discounted(whole)
  steps = jax.vmap(functools.partial(shaped, config=config))(
    given.steps, flow.step_mask
  )
  of_steps = flow.step_returns(steps)
  returns = to_come = of_steps + of_whole
  total = returns[:, 0]
  baseline = config.baseline
  if baseline == "gae":
    gae = functools.partial(
      advantages_lib.gae, discount=config.discount, trace=config.trace
    )
    found, returns = jax.vmap(gae)(
      flow.placed(steps) + whole, given.values, flow.token_mask
    )
  elif baseline == "prime":
    found = flow.prime(given.tokens, given.outcome, implicit_weight)
    found -= flow.discounted(returns_lib.masked(given.penalty, flow.token_mask))
  elif baseline in rl_config.STEP_BASELINES:
    found = flow.step_returns(flow.compared_steps(steps))
    found += flow.compared(of_whole, counts, baseline == "group_step")
  elif baseline == "moving":
    less, _ = advantages_lib.moving(mean, total, counts, config.moving_decay)
    found = returns - (total - less)[:, None]
  elif baseline in ("none", "keep"):
    found = returns
  else:
    found = flow.compared(returns, counts, baseline == "group")
  if config.whiten:
    found = advantages_lib.whiten(found, flow.token_mask)
  return Credit(
    returns_lib.masked(found, flow.token_mask),
    returns_lib.masked(returns, flow.token_mask),
    returns_lib.masked(to_come, flow.token_mask),
    total,
    of_steps[:, 0],
  )


class _Flow(NamedTuple):
  """Rewards of N solutions on their way to tokens."""

  config: rl_config.CreditConfig
  samples: int
  step_ends: Int[Array, "N K"]
  step_mask: Bool[Array, "N K"]
  token_mask: Bool[Array, "N S"]

  def placed(self, steps: Float[Array, "N K"]) -> Float[Array, "N S"]:
    """Returns the rewards at the tokens that close their steps."""
    S = self.token_mask.shape[1]
    place = functools.partial(returns_lib.place, num_tokens=S)
    return jax.vmap(place)(steps, self.step_ends, self.step_mask)

  def discounted(self, rewards: Float[Array, "N S"]) -> Float[Array, "N S"]:
    """Returns the sum of each token's and later rewards."""
    of_one = functools.partial(
      returns_lib.discounted, discount=self.config.discount
    )
    return jax.vmap(of_one)(rewards, self.token_mask)

  def step_returns(self, steps: Float[Array, "N K"]) -> Float[Array, "N S"]:
    """Returns each token's return from the rewards of its and later steps."""
    if self.config.returns != "min_strict":
      return self.discounted(self.placed(steps))
    S = self.token_mask.shape[1]
    lowest = jax.vmap(returns_lib.strict_min)(steps, self.step_mask)
    spread = functools.partial(returns_lib.spread, num_tokens=S)
    return jax.vmap(spread)(lowest, self.step_ends, self.step_mask)

  def compared(
    self, returns: Float[Array, "N S"], counts: Bool[Array, " N"], group: bool
  ) -> Float[Array, "N S"]:
    """Returns the advantages over the other solutions of a problem.

    By the return of the whole, its first token's. group: GRPO's, one number
    for all tokens; else each token's own return less the others' mean.
    """
    total = returns[:, 0]
    if group:
      normalise = functools.partial(
        advantages_lib.group_normalised, scale=self.config.scale
      )
      found = self._by_problem(normalise, total, counts)
      return jnp.broadcast_to(found[:, None], returns.shape)
    less = self._by_problem(advantages_lib.leave_one_out, total, counts)
    return returns - (total - less)[:, None]

  def compared_steps(self, steps: Float[Array, "N K"]) -> Float[Array, "N K"]:
    """Returns step rewards less what the other solutions' steps get."""
    if self.config.baseline == "leave_one_out_step":
      function = advantages_lib.leave_one_out_steps
      return self._by_problem(function, steps, self.step_mask)
    if self.config.baseline == "leave_one_out_token":
      return self._by_problem(
        advantages_lib.leave_one_out_tokens,
        steps,
        _step_tokens(self.step_ends, self.step_mask),
        self.step_mask,
      )
    normalise = functools.partial(
      advantages_lib.group_normalised_steps, scale=self.config.scale
    )
    return self._by_problem(normalise, steps, self.step_mask)

  def prime(
    self,
    tokens: Float[Array, "N S"],
    outcome: Float[Array, " N"],
    weight: float,
  ) -> Float[Array, "N S"]:
    """Returns PRIME's advantages, token rewards scaled over the rollout."""
    scaled = advantages_lib.max_return_scaled(tokens, self.token_mask)
    of_problem = functools.partial(
      advantages_lib.prime,
      process_weight=weight,
      outcome_weight=1.0,
      discount=self.config.discount,
      scale=None,
    )
    return self._by_problem(of_problem, scaled, self.token_mask, outcome)

  def _by_problem(self, function: Callable, *arrays: Array) -> Array:
    """Returns a function's result of each problem's solutions, together."""

    def split(x):
      return x.reshape(-1, self.samples, *x.shape[1:])

    found = jax.vmap(function)(*map(split, arrays))
    return found.reshape(-1, *found.shape[2:])


def _step_tokens(
  ends: Int[Array, "N K"], mask: Bool[Array, "N K"]
) -> Int[Array, "N K"]:
  """Returns how many tokens each step has."""
  reached = jax.lax.cummax(jnp.where(mask, ends + 1, 0), axis=1)
  before = jnp.pad(reached[:, :-1], ((0, 0), (1, 0)))
  return jnp.where(mask, reached - before, 0)
