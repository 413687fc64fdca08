"""Step rewards to the advantages of tokens, for trainers that take those.

GRPO with process supervision and the baseline to go, in plain Python;
rl/advantages.py has the same and more in jax, and docs/returns.md says what the
choices mean.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
import itertools
import math

from prm_jax import errors
from prm_jax.integrations import placement
from prm_jax.integrations import scoring


def process_advantages(
  group: Sequence[scoring.ScoredResponse],
  *,
  rewards: scoring.Rewards = scoring.judged,
  scale: bool = True,
  epsilon: float = 1e-6,
) -> list[list[float]]:
  """Returns the advantage of each token of the responses to one problem.

  Shao et al. 2024 (arXiv 2402.03300), section 4.1.3: rewards of steps are
  normalised over all steps of all responses, and a token's advantage is the sum
  of those of the steps that are completed at it or later.

  Args:
    group: The responses to one problem.
    rewards: What the rewards of steps are, given their scores.
    scale: Whether to divide by the standard deviation.
    epsilon: What is added to the deviation, which is the population's.

  Returns:
    A list for each response, with one advantage for each token.

  Raises:
    InputError: A reward has no place (placement.place_step_rewards).
  """
  raw = [rewards(scored.scores) for scored in group]
  rows = normalised(raw, scale=scale, epsilon=epsilon)
  return list(map(token_advantages, group, rows))


def to_go_advantages(
  group: Sequence[scoring.ScoredResponse],
  *,
  rewards: scoring.Rewards = scoring.delta,
) -> list[list[float]]:
  """Returns the advantage of each token, without a bonus or a cost of length.

  The return of a step is the sum of its reward and those of later ones; its
  advantage is the return less the mean return, from the same step on, of the
  others that have such a step (0 if none has). All tokens of a step have its
  advantage, and what follows the last step counts as one more step
  (rl.advantages.leave_one_out_to_go; docs/returns.md). A step without a reward
  has no advantage, and no other is compared with it.

  By scoring.delta the return from a step on is that step's score. So each turn
  of a conversation is compared with the same turn of the others, and whether one
  more follows doesn't count. In a text it does: after a step the policy goes on
  or ends, and ending is compared with the steps of those that went on. By
  scoring.judged the return is the sum of the scores to come. In expectation the
  gradient is then that of the expected sum, which each further step raises.

  Args:
    group: The responses to one problem.
    rewards: What the rewards of steps are, given their scores.

  Returns:
    A list for each response, with one advantage for each token.

  Raises:
    InputError: A reward has no place (placement.place_step_rewards).
  """
  raw = [rewards(x.scores) for x in group]
  returns = [token_advantages(x, own) for x, own in zip(group, raw)]
  steps = [_steps_of_tokens(x) for x in group]
  # Of each response the return from each of its steps with a reward on.
  begun = [
    {k: row[of.index(k)] for k in of if k >= len(own) or own[k] is not None}
    for row, of, own in zip(returns, steps, raw, strict=True)
  ]
  advantages = []
  for own, of in zip(begun, steps, strict=True):
    compared = {}
    for k, value in own.items():
      others = [x[k] for x in begun if x is not own and k in x]
      compared[k] = value - math.fsum(others) / max(len(others), 1)
    advantages.append([compared.get(k, 0.0) for k in of])
  return advantages


def _steps_of_tokens(scored: scoring.ScoredResponse) -> list[int]:
  """Returns how many steps are complete before each token."""
  ends = placement.completing_tokens(
    scored.scores.spans or (), scored.token_offsets
  )
  return [
    bisect.bisect_left(ends, token)
    for token in range(len(scored.token_offsets))
  ]


def in_groups(
  scored: Sequence[scoring.ScoredResponse],
  group_size: int,
  *,
  rewards: scoring.Rewards | None = None,
  advantages: Callable[..., list[list[float]]] = process_advantages,
) -> list[list[float]]:
  """Returns the advantages of a batch of several problems' responses.

  Args:
    scored: The responses, those to one problem one after the other.
    group_size: How many responses each problem has.
    rewards: What the rewards of steps are, given their scores; None is what
      `advantages` takes by itself.
    advantages: process_advantages or to_go_advantages.

  Returns:
    A list for each response, with one advantage for each token.

  Raises:
    InputError: The batch isn't whole groups, or a reward has no place.
  """
  options = {} if rewards is None else dict(rewards=rewards)
  if group_size < 1 or len(scored) % group_size:
    raise errors.InputError(
      f"{len(scored)} responses aren't groups of {group_size}; give the number"
      " of responses to each problem"
    )
  return [
    row
    for start in range(0, len(scored), group_size)
    for row in advantages(scored[start : start + group_size], **options)
  ]


def token_advantages(
  scored: scoring.ScoredResponse, step_rewards: Sequence[float | None]
) -> list[float]:
  """Returns the sum of the rewards of the steps completed at a token or later.

  Args:
    scored: The response.
    step_rewards: The reward of each of its steps, None for no reward.

  Returns:
    One advantage for each token.

  Raises:
    InputError: A reward has no place (placement.place_step_rewards).
  """
  spans = scored.scores.spans or ()
  return returns_to_go(
    placement.place_step_rewards(spans, step_rewards, scored.token_offsets)
  )


def normalised(
  rows: Sequence[Sequence[float | None]],
  *,
  scale: bool = True,
  epsilon: float = 1e-6,
) -> list[list[float | None]]:
  """Returns (r - mean) / (std + epsilon) over all rewards of all rows.

  Args:
    rows: The rewards of the steps of each response to one problem. None counts
      in neither.
    scale: Whether to divide by the standard deviation.
    epsilon: What is added to the deviation, which is the population's.

  Returns:
    The rows with the new rewards; exactly 0 if all rewards are equal.
  """
  real = [x for row in rows for x in row if x is not None]
  mean = math.fsum(real) / max(len(real), 1)
  if real and min(real) == max(real):
    mean = real[0]
  variance = math.fsum((x - mean) ** 2 for x in real) / max(len(real), 1)
  divisor = math.sqrt(variance) + epsilon if scale else 1.0
  return [
    [None if x is None else (x - mean) / divisor for x in row] for row in rows
  ]


def returns_to_go(
  token_rewards: Sequence[float], discount: float = 1.0
) -> list[float]:
  """Returns the sum of the rewards from each token on.

  Args:
    token_rewards: The reward of each token.
    discount: The factor for each token, in [0, 1].

  Returns:
    One return for each token.
  """
  backwards = itertools.accumulate(
    reversed(token_rewards), lambda later, now: now + discount * later
  )
  return list(backwards)[::-1]


def with_outcomes(
  advantages: Sequence[Sequence[float]],
  outcomes: Sequence[float],
  *,
  process_weight: float = 1.0,
) -> list[list[float]]:
  """Returns the sum of the advantages of steps and of whole responses.

  Args:
    advantages: The advantage of each token of the responses to one problem.
    outcomes: The reward of each whole response. Its advantage is the reward
      minus the mean of all, at each token.
    process_weight: The factor of the advantages of steps.

  Returns:
    A list for each response, with one advantage for each token.

  Raises:
    InputError: There isn't one outcome for each response.
  """
  if len(outcomes) != len(advantages):
    raise errors.InputError(
      f"{len(outcomes)} outcomes for {len(advantages)} responses; give one of"
      " each response"
    )
  values = list(map(float, outcomes))
  mean = math.fsum(values) / max(len(values), 1)
  return [
    [process_weight * x + value - mean for x in row]
    for row, value in zip(advantages, values, strict=True)
  ]
