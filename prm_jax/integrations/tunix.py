"""Tunix: one reward of a completion, or advantages of its tokens.

A reward function of Tunix returns one number per completion and sees texts
alone. The loss of its GRPO takes advantages [B, T], which step_advantages makes
from the completion's ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jaxtyping import Float
import numpy as np

from prm_jax.integrations import credit
from prm_jax.integrations import placement
from prm_jax.integrations import scoring


def reward_fn(
  score_texts: scoring.ScoreTexts,
  *,
  aggregate: str = "min",
  problem_column: str | None = None,
  name: str = "prm",
) -> Callable[..., list[float]]:
  """Returns a function for a learner's `reward_fns`.

  Args:
    score_texts: Scores whole responses (scoring.text_scorer).
    aggregate: product, min, last or mean of the scores of a response's steps.
    problem_column: The data's column with the question; by default the prompt.
    name: The name of the reward in Tunix's logs.

  Returns:
    The function.
  """

  def reward(
    prompts: Sequence[str], completions: Sequence[str], **columns: Any
  ) -> list[float]:
    asked = columns[problem_column] if problem_column else prompts
    problems = [str(x) for x in asked]
    scores = score_texts(problems, [str(x) for x in completions])
    return [scoring.overall(each, aggregate) for each in scores]

  reward.__name__ = name
  return reward


def step_advantages(
  problems: Sequence[str],
  completion_ids: Any,
  completion_mask: Any,
  *,
  num_generations: int,
  score_texts: scoring.ScoreTexts,
  decode: placement.Decode,
  rewards: scoring.Rewards = scoring.judged,
) -> Float[np.ndarray, "B T"]:
  """Returns the advantages of the steps of a batch of completions.

  Args:
    problems: The question of each completion.
    completion_ids: The ids [B, T] of the completions.
    completion_mask: Which of them are real, [B, T].
    num_generations: The number of completions of each problem, which stand one
      after the other.
    score_texts: Scores whole responses (scoring.text_scorer).
    decode: Returns the text of the policy's ids (placement.decoder).
    rewards: What the rewards of steps are, given their scores.

  Returns:
    credit.process_advantages within each group, float32, 0 where the mask is
    false. Add the learner's own advantages [B] as [:, None].

  Raises:
    InputError: The batch isn't whole groups, or a reward has no place.
  """
  mask = np.asarray(completion_mask).astype(bool)
  ids = list(map(scoring.token_ids, np.asarray(completion_ids), mask))
  scored = scoring.score_responses(score_texts, decode, problems, ids)
  rows = credit.in_groups(scored, num_generations, rewards=rewards)
  return placement.align(rows, mask)
