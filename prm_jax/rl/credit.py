"""Turns the rewards of a rollout into the advantage of every token.

A token's return has three parts: the rewards of steps, at the tokens that end
them; the reward of the whole solution, at its last token; and the distance to
the reference, at every token. rl/returns.py and rl/advantages.py have the
formulas for one solution or one problem; this file and rl/baselines.py choose
among them and apply them to a rollout.
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
RETURNS = ("sum", "soft_min", "min_to_go")


@dataclasses.dataclass(frozen=True)
class CreditConfig:
  """How rewards become advantages; docs/returns.md has the formulas.

  Args:
    shape: How step rewards are changed: clip to min(r - threshold, 0), delta to
      r_k - r_k+1 (Gao et al. 2024, arXiv 2410.15115), or both.
    threshold: The threshold of clip.
    returns: The sum of the rewards of this and later steps, PURE's soft
      minimum, which is a sum too, or the least reward of this and later steps.
    min_temperature: The temperature of the soft minimum.
    discount: The factor for each token.
    baseline: What a return is compared with, one of baselines.BASELINES.
    gae_lambda: The lambda of the baseline gae.
    moving_decay: The decay of the baseline moving.
    scale: Whether group baselines divide by the standard deviation.
    whiten: Whether the advantages of a rollout get mean 0 and variance 1.
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
    if self.returns == "min_to_go" and sums_only:
      raise errors.InputError(
        f"credit.returns='min_to_go' with credit.baseline={self.baseline!r},"
        f" credit.discount={self.discount}: a minimum isn't a sum of rewards;"
        " take 'soft_min', or baseline 'leave_one_out' and discount 1"
      )

  @property
  def needs(self) -> baselines.Baseline:
    """The baseline itself, whose fields say what it needs."""
    return baselines.BASELINES[self.baseline]


@struct.dataclass
class Credit:
  """The credit of a rollout's N solutions.

  Args:
    advantages: The advantage of each token.
    returns: The critic's target at each token.
    to_come: The rewards from each token on, without a critic's values.
    total: The return of each whole solution, from its first token.
    steps: The part of the total that comes from step rewards.
  """

  advantages: Float[ArrayLike, "N S"]
  returns: Float[ArrayLike, "N S"]
  to_come: Float[ArrayLike, "N S"]
  total: Float[ArrayLike, " N"]
  steps: Float[ArrayLike, " N"]


@functools.partial(
  jax.jit,
  static_argnames=("config", "samples", "max_tokens", "implicit_weight"),
)
def assign(
  rewards: baselines.Rewards,
  mean: advantages_lib.MovingMean,
  *,
  config: CreditConfig,
  samples: int,
  max_tokens: int,
  implicit_weight: float = 1.0,
) -> Credit:
  """Returns the credit of a rollout.

  Args:
    rewards: The rewards of its solutions. Those that don't count get advantage
      0.
    mean: The mean of the returns of earlier rollouts, for the moving baseline.
    config: Which formulas to use.
    samples: The number of solutions of each problem.
    max_tokens: The most tokens that a solution may have.
    implicit_weight: The weight of token rewards, relative to the outcome.
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
    max_tokens=max_tokens,
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
  """Returns step rewards after credit.shape and the soft minimum are applied.

  With delta, the last step (the answer) is left to the outcome, as in the
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
  """Returns each token's return from the rewards of its own and later steps."""
  steps = rewards.steps, rewards.step_ends, rewards.step_mask
  num_tokens = rewards.token_mask.shape[1]
  if config.returns != "min_to_go":
    placed = baselines.placed(*steps, num_tokens)
    return baselines.discounted(placed, rewards.token_mask, config.discount)
  values, ends, mask = steps
  lowest = jax.vmap(returns_lib.min_to_go)(values, mask)
  spread = functools.partial(returns_lib.spread, num_tokens=num_tokens)
  return jax.vmap(spread)(lowest, ends, mask)
