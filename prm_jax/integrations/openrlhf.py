"""OpenRLHF: a file for `--reward.remote_url`; one reward of each response.

OpenRLHF has no rewards of steps inside a response. It hands over the whole
text, special tokens included, of one sample at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from prm_jax import errors
from prm_jax.integrations import scoring
from prm_jax.integrations import trainer_chats


def reward_func(
  score_texts: scoring.ScoreTexts,
  *,
  aggregate: str = "min",
  problem_of: Callable[[str], str] = trainer_chats.problem_of,
  ends: Sequence[str] = (),
) -> Callable[..., dict[str, Any]]:
  """Returns the function `reward_func` that OpenRLHF looks for in the file.

  OpenRLHF logs what this raises at level INFO and goes on without a reward.

  Args:
    score_texts: Scores whole responses (scoring.cut_and_score).
    aggregate: product, min, last or mean of the scores of a response's steps.
    problem_of: Returns the question of a prompt as the policy reads it, such as
      trainer_chats.between("<|im_start|>user\\n", "<|im_end|>"). By default it
      is the prompt itself.
    ends: Names of the tokens that end a response, such as "<|im_end|>".

  Returns:
    The function.
  """
  import torch

  def reward(
    queries: Sequence[str], prompts: Sequence[str], labels: Any, **_: Any
  ) -> dict[str, Any]:
    texts = [_response(q, p, ends) for q, p in zip(queries, prompts)]
    scores = score_texts(list(map(problem_of, prompts)), texts)
    values = torch.tensor([scoring.overall(x, aggregate) for x in scores])
    steps = torch.tensor([float(len(x)) for x in scores])
    return dict(rewards=values, scores=values, extra_logs=dict(steps=steps))

  return reward


def _response(query: str, prompt: str, ends: Sequence[str]) -> str:
  """Returns what follows the prompt, without the tokens that end it."""
  if not query.startswith(prompt):
    raise errors.InputError(
      "a query doesn't begin with its prompt, which OpenRLHF cuts if it is too"
      " long; raise data.max_len or leave out long prompts"
    )
  text = query[len(prompt) :]
  while (end := next((x for x in ends if text.endswith(x)), None)) is not None:
    text = text[: -len(end)]
  return text
