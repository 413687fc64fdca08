"""verl: rewards of tokens where a reward model is colocated, else one reward.

verl asks a reward manager for one number of a response and puts it on the last
token, except where its reward model shares the policy's GPUs: there the manager
fills the tensor [B, T]. verl's GAE and REINFORCE++ use it; GRPO and RLOO sum
it. After an agent loop `response_mask` says which tokens are the policy's, and
each run of them is a turn (verl 1dda039b): turn_reward_manager.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import math
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.integrations import placement
from prm_jax.integrations import scoring
from prm_jax.integrations import trainer_chats
from prm_jax.integrations import turn_rewards


def compute_score(
  score_texts: scoring.ScoreTexts,
  *,
  aggregate: str = "min",
  problem_key: str = "question",
) -> Callable[..., dict[str, float]]:
  """Returns a function for `reward.custom_reward_function`: one reward.

  Args:
    score_texts: Scores whole responses (scoring.cut_and_score).
    aggregate: product, min, last or mean of the scores of a response's steps.
    problem_key: The field of the data's `extra_info` with the question.

  Returns:
    The function. Its `score` is the reward.

  Raises:
    InputError: Raised by the function, if the data has no such field.
  """

  def score(
    data_source: Any,
    solution_str: str,
    ground_truth: Any,
    extra_info: Any = None,
    **_: Any,
  ) -> dict[str, float]:
    if not extra_info or problem_key not in extra_info:
      raise errors.InputError(
        f"the data's extra_info has no {problem_key!r}; name the field with the"
        " question as `problem_key`"
      )
    (row,) = score_texts([extra_info[problem_key]], [solution_str])
    return dict(score=scoring.overall(row, aggregate), steps=float(len(row)))

  return score


def step_reward_manager(
  score_texts: scoring.ScoreTexts, *, rewards: scoring.Rewards = scoring.delta
) -> Any:
  """Returns a class for `reward.reward_manager`: one reward per token.

  Args:
    score_texts: Scores whole responses (scoring.cut_and_score).
    rewards: What the rewards of steps are, given their scores.

  Returns:
    A subclass of verl's RewardManagerBase. It refuses a config in which verl
    takes one reward per response.
  """

  def row_of(item: Any, tokenizer: Any) -> tuple[list[float], dict[str, float]]:
    responses, mask = _response(item)
    ids = scoring.token_ids(responses, mask)
    problem = trainer_chats.problem_of(item.non_tensor_batch["raw_prompt"])
    decode = placement.decoder(tokenizer)
    (scored,) = scoring.score_responses(score_texts, decode, [problem], [ids])
    return scoring.token_rewards(scored, rewards), {}

  return _manager(row_of)


def turn_reward_manager(
  score: schema.Score,
  *,
  rewards: scoring.Rewards = scoring.delta,
  between: Callable[[str], str] = str.strip,
) -> Any:
  """Returns a class for `reward.reward_manager`: rewards of an agent's turns.

  verl's agent loops hand over the prompt's messages and tokens, so turns and
  tools' results are decoded.

  Args:
    score: Scores trajectories (prm_jax.load_score).
    rewards: What the rewards of turns are, given their scores.
    between: Returns what was said between two turns (turn_rewards.decoded).

  Returns:
    A subclass of verl's RewardManagerBase, as step_reward_manager. A turn's
    reward is on its last token; turn_rewards.metrics are in reward_extra_info.
  """

  def row_of(item: Any, tokenizer: Any) -> tuple[list[float], dict[str, float]]:
    responses, real = _response(item)
    mask = item.batch["response_mask"].tolist()
    asked = turn_rewards.decoded(
      list(item.non_tensor_batch["raw_prompt"]),
      responses,
      mask,
      placement.decoder(tokenizer),
      between=between,
    )
    (scores,) = turn_rewards.score_turns(score, [asked])
    scored = turn_rewards.placed(scores, turn_rewards.run_lengths(mask))
    row = placement.align([scoring.token_rewards(scored, rewards)], [mask])[0]
    extra = {f"prm_{k}": x for k, x in turn_rewards.metrics([scores]).items()}
    return [float(x) for x, keep in zip(row, real) if keep], extra

  return _manager(row_of)


def _response(item: Any) -> tuple[list[int], list[int]]:
  """Returns the ids of a response and which of them aren't padding."""
  responses = item.batch["responses"].tolist()
  return responses, item.batch["attention_mask"][-len(responses) :].tolist()


def _manager(
  row_of: Callable[[Any, Any], tuple[list[float], dict[str, float]]],
) -> Any:
  """Returns a class of reward managers whose rows row_of makes."""
  from verl.experimental.reward_loop.reward_manager import base

  class StepRewardManager(base.RewardManagerBase):
    """Rewards the tokens that complete steps or turns."""

    def __init__(
      self, config: Any, tokenizer: Any, compute_score: Any, **_: Any
    ):
      super().__init__(config, tokenizer, compute_score)
      check_colocated(config)

    async def run_single(self, data: Any) -> dict[str, Any]:
      return await self.loop.run_in_executor(None, self._row, data[-1:][0])

    def _row(self, item: Any) -> dict[str, Any]:
      row, extra = row_of(item, self.tokenizer)
      extra = dict(step_reward=math.fsum(row)) | extra
      return dict(reward_score=row, reward_extra_info=extra)

    @classmethod
    def assemble_rm_scores(cls, data: Any, scores: Any) -> Any:
      """Returns the tensor [B, T] of what run_single gave."""
      width = data.batch["prompts"].size(1)
      mask = data.batch["attention_mask"][:, width:]
      return rows_to_tensor(scores, mask)

  return StepRewardManager


def rows_to_tensor(rows: Sequence[Sequence[float]], mask: Any) -> Any:
  """Returns rows of token rewards as a tensor, at a mask's tokens.

  Args:
    rows: One reward for each real token of each response.
    mask: The responses' attention mask, a tensor [B, T].

  Returns:
    A float32 tensor [B, T] on the mask's device.

  Raises:
    InputError: A row doesn't have as many values as the mask has tokens.
  """
  import torch

  values = placement.align(rows, mask.tolist())
  return torch.as_tensor(values, device=mask.device)


def check_colocated(config: Any) -> None:
  """Refuses a config in which verl takes one reward per response.

  Args:
    config: verl's config, or its field `reward`'s parent.

  Raises:
    InputError: The reward model isn't colocated, or no custom reward function
      is named, without which verl doesn't ask the reward manager.
  """
  model = config.reward.reward_model
  if not model.enable or model.enable_resource_pool:
    raise errors.InputError(
      "verl takes rewards of tokens only from a colocated reward model; set"
      " reward.reward_model.enable=True and enable_resource_pool=False, or use"
      " compute_score, which gives one reward"
    )
  if config.reward.custom_reward_function.path is None:
    raise errors.InputError(
      "without reward.custom_reward_function.path verl asks its own reward"
      " model and not the reward manager; name this file there, too"
    )
