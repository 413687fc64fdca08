"""From the rewards of a rollout to the advantage of every token.

Three streams of reward make up a token's return: those of steps, at the tokens
that close them; that of the whole solution, at its last token; and the
distance to the reference, at every token. rl/returns.py and rl/advantages.py
have the formulas, of one solution or one problem; here and in rl/baselines.py
they are chosen, and mapped over a rollout.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from flax import struct
import jax
from jax import numpy as jnp
from jaxtyping import Array, Bool, Float

from prm_jax import errors
from prm_jax.batch import ArrayLike
from prm_jax.rl import advantages as advantages_lib
from prm_jax.rl import baselines
from prm_jax.rl import returns as returns_lib
from prm_jax.runtime import checks

SHAPES = ("none", "clip", "delta", "clip_delta")
RETURNS = ("sum", "soft_min", "min")


@dataclasses.dataclass(frozen=True)
class CreditConfig:
  """How rewards become advantages; docs/returns.md has the formulas.

  shape: of step rewards: clip to min(r - threshold, 0), delta r_k - r_k+1
    (Gao et al. 2024), or both. returns: their sum, or the minimum over this
    step and those after it, or PURE's soft minimum at min_temperature.
    discount: per token.
  baseline: what a return is compared with, one of baselines.BASELINES. prime:
    PRIME's, of its token rewards. gae: a critic's, at gae_lambda.
    moving_decay: of the moving baseline. scale: group baselines divide by the
    standard deviation, too.
  whiten: advantages of a rollout get mean 0 and variance 1.
  """

  shape: str = "none"
  threshold: float = 0.5
  returns: str = "sum"
  min_temperature: float = 0.1
  discount: float = 1.0
  baseline: str = "leave_one_out"
  gae_lambda: float = 0.95
  moving_decay: float = 0.9
  scale: bool = True
  whiten: bool = False

  def __post_init__(self):
    for name, allowed in (
      ("shape", SHAPES),
      ("returns", RETURNS),
      ("baseline", tuple(baselines.BASELINES)),
    ):
      checks.check_choice(f"credit.{name}", getattr(self, name), allowed)
    shares = ("discount", "gae_lambda", "moving_decay")
    checks.check_shares(self, shares, "credit.")
    checks.check_positive(self, ("min_temperature",), "credit.")
    sums_only = self.needs.sums_only or self.discount != 1
    if self.returns == "min" and sums_only:
      raise errors.InputError(
        f"credit.returns='min' with credit.baseline={self.baseline!r},"
        f" credit.discount={self.discount}: a minimum isn't a sum of rewards;"
        " take 'soft_min', or baseline 'leave_one_out' and discount 1"
      )

  @property
  def needs(self) -> baselines.Baseline:
    """The baseline itself, which says what it needs."""
    return baselines.BASELINES[self.baseline]


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


@functools.partial(
  jax.jit, static_argnames=("config", "samples", "implicit_weight")
)
def assign(
  rewards: baselines.Rewards,
  mean: advantages_lib.MovingMean,
  *,
  config: CreditConfig,
  samples: int,
  implicit_weight: float = 1.0,
) -> Credit:
  """Returns the credit of a rollout.

  Args:
    rewards: of its solutions. Those that don't count get advantage 0.
    mean: of the returns of earlier rollouts, for the moving baseline.
    config: which formulas.
    samples: solutions of a problem.
    implicit_weight: of token rewards against the outcome.
  """
  given: Any = jax.tree.map(jnp.asarray, rewards)
  counts = given.counts[:, None]
  step_mask, token_mask = given.step_mask & counts, given.token_mask & counts
  shape = functools.partial(shaped, config=config)
  given = given.replace(
    steps=jax.vmap(shape)(given.steps, step_mask),
    step_mask=step_mask,
    token_mask=token_mask,
  )
  at_tokens = jax.vmap(returns_lib.at_last)(given.outcome, token_mask)
  at_tokens -= returns_lib.masked(given.penalty, token_mask)
  of_whole = baselines.discounted(at_tokens, token_mask, config.discount)
  of_steps = _step_returns(given, config)
  to_come = of_steps + of_whole
  stream = baselines.Stream(
    rewards=given,
    at_tokens=at_tokens,
    returns=to_come,
    of_whole=of_whole,
    mean=mean,
    samples=samples,
    discount=config.discount,
    gae_lambda=config.gae_lambda,
    moving_decay=config.moving_decay,
    scale=config.scale,
    implicit_weight=implicit_weight,
  )
  advantages, returns = config.needs.compare(stream)
  if config.whiten:
    advantages = advantages_lib.whiten(advantages, token_mask)
  return Credit(
    returns_lib.masked(advantages, token_mask),
    returns_lib.masked(returns, token_mask),
    returns_lib.masked(to_come, token_mask),
    to_come[:, 0],
    of_steps[:, 0],
  )


def shaped(
  rewards: Float[Array, " K"], mask: Bool[Array, " K"], config: CreditConfig
) -> Float[Array, " K"]:
  """Returns step rewards as credit.shape and a soft minimum make them.

  Under delta the last step, the answer, is left to the outcome, as in the
  paper.
  """
  if "clip" in config.shape:
    rewards = returns_lib.clip(rewards, config.threshold)
  if "delta" in config.shape:
    rewards = returns_lib.delta(rewards, returns_lib.all_but_last(mask))
  if config.returns == "soft_min":
    rewards = returns_lib.soft_min(rewards, mask, config.min_temperature)
  return returns_lib.masked(rewards, mask)


def _step_returns(
  rewards: baselines.Rewards, config: CreditConfig
) -> Float[Array, "N S"]:
  """Returns each token's return from the rewards of its and later steps."""
  steps = rewards.steps, rewards.step_ends, rewards.step_mask
  num_tokens = rewards.token_mask.shape[1]
  if config.returns != "min":
    placed = baselines.placed(*steps, num_tokens)
    return baselines.discounted(placed, rewards.token_mask, config.discount)
  values, ends, mask = steps
  lowest = jax.vmap(returns_lib.strict_min)(values, mask)
  spread = functools.partial(returns_lib.spread, num_tokens=num_tokens)
  return jax.vmap(spread)(lowest, ends, mask)
