"""The metrics of a rollout: what is true, next to what is rewarded."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import math

import numpy as np

from prm_jax import schema
from prm_jax.rl import baselines
from prm_jax.rl import credit as credit_lib
from prm_jax.rl import rewards as rewards_lib
from prm_jax.rl import text_metrics


def of_rollout(
  solutions: Sequence[schema.Solution],
  outputs: rewards_lib.RewardOutputs,
  rewards: baselines.Rewards,
  credit: credit_lib.Credit,
  *,
  rewards_steps: bool,
  has_critic: bool,
) -> dict[str, float]:
  """Returns the metrics of a rollout; nan is a value that isn't known.

    accuracy            share of right answers among those that are known
    all_steps_correct   share of solutions with a right answer and no wrong step
    prm_return          mean return from step rewards, as credit.returns defines
                        it; from all rewards if no step is rewarded
    prm_return_std      its standard deviation over solutions
    total_return        the same with all other rewards
    prm_score           mean score of all steps by the PRM
    heldout_prm         the same by the PRM that rewards nothing
    outcome_score       mean of the outcome function's rewards
    advantage_mean      over tokens
    advantage_std       over tokens
    explained_variance  share of the variance of the rewards to come that the
                        critic's values explain. (The critic's targets contain
                        its own values, so any critic explains those.)

  The metrics of text_metrics.of_rollout are added.

  Args:
    solutions: The rollout's solutions, as sampled.
    outputs: The outputs of the reward functions.
    rewards: The rewards that were made of them.
    credit: The credit that was assigned.
    rewards_steps: Whether steps are rewarded.
    has_critic: Whether rewards.values are a critic's.
  """
  right = [x for x in outputs.right if x is not None]
  counts = np.asarray(rewards.counts)
  mask = np.asarray(rewards.token_mask)[counts]
  advantages = np.asarray(credit.advantages)[counts][mask]
  rewarded = np.asarray(credit.steps if rewards_steps else credit.total)[counts]
  facts = text_metrics.of_rollout(_labelled(solutions, outputs))
  facts |= dict(
    accuracy=_mean(right),
    prm_return=_mean(rewarded),
    prm_return_std=float(rewarded.std()) if rewarded.size else math.nan,
    total_return=_mean(np.asarray(credit.total)[counts]),
    advantage_mean=_mean(advantages),
    advantage_std=float(advantages.std()) if advantages.size else math.nan,
  )
  if outputs.exact is not None:
    facts["all_steps_correct"] = all_steps_correct(outputs)
  for name, scores in (
    ("prm_score", outputs.prm),
    ("heldout_prm", outputs.held_out),
  ):
    if scores is not None:
      facts[name] = _mean([p for row in scores for p in row])
  if outputs.outcome is not None:
    facts["outcome_score"] = _mean(outputs.outcome)
  if has_critic:
    facts["explained_variance"] = explained_variance(
      np.asarray(rewards.values)[counts][mask],
      np.asarray(credit.to_come)[counts][mask],
    )
  return facts


def zero_advantages(
  rewards: baselines.Rewards, credit: credit_lib.Credit
) -> float:
  """Returns 1 if solutions count and none of their tokens has an advantage.

  The policy then learns nothing from the rollout, whatever form of credit it
  is; otherwise 0.
  """
  counts = np.asarray(rewards.counts)
  advantages = np.asarray(credit.advantages)[counts]
  return float(advantages.size > 0 and not advantages.any())


def _labelled(solutions, outputs) -> list[schema.Solution]:
  """Returns the solutions with exact labels, and with answers if known."""
  return [
    dataclasses.replace(
      s,
      labels=None if outputs.exact is None else tuple(outputs.exact[i]),
      answer="" if outputs.answered[i] else None,
    )
    for i, s in enumerate(solutions)
  ]


def all_steps_correct(outputs: rewards_lib.RewardOutputs) -> float:
  """Returns the share of solutions with a right answer and no wrong step.

  Right steps alone aren't enough: a solution that stops after its first step
  may have no wrong one.
  """
  assert outputs.exact is not None
  return _mean(
    [
      bool(right) and schema.first_error(steps) < 0
      for right, steps in zip(outputs.right, outputs.exact, strict=True)
    ]
  )


def explained_variance(values: np.ndarray, returns: np.ndarray) -> float:
  """Returns 1 - Var[returns - values] / Var[returns]; nan if returns agree."""
  variance = float(np.var(returns)) if returns.size else 0.0
  if variance <= 0:
    return math.nan
  return 1 - float(np.var(returns - values)) / variance


def _mean(values) -> float:
  values = np.asarray(values, np.float64)
  return float(values.mean()) if values.size else math.nan
