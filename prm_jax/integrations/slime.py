"""slime: a reward function, and advantages of tokens by way of `rewards`.

  --custom-rm-path my_file.custom_rm --reward-key score
  --custom-reward-post-process-path prm_jax.integrations.slime.post_process
  --custom-advantage-function-path prm_jax.integrations.slime.set_advantages

slime sends few fields of a sample to its trainer, `rewards` among them. So
post_process puts the advantages of tokens there, and set_advantages takes them.
turn_rm and post_process_turns take the place of custom_rm and post_process where
a sample has several turns (slime 624b824a): the loss mask says which tokens are
the policy's.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
import functools
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.integrations import placement
from prm_jax.integrations import scoring
from prm_jax.integrations import token_credit
from prm_jax.integrations import trainer_chats
from prm_jax.integrations import turn_rewards

# The scores of a sample's steps, and its tokens with those that have a place
# there: none in a sample that is kept from training.
_Scored = tuple[schema.StepScores, scoring.ScoredResponse]


def custom_rm(
  score_texts: scoring.ScoreTexts,
  decode: placement.Decode,
  *,
  aggregate: str = "min",
  rewards: scoring.Rewards = scoring.judged,
  problem_of: Callable[[Any], str] = trainer_chats.problem_of,
) -> Callable[..., Coroutine[Any, Any, dict[str, Any]]]:
  """Returns a function for `--custom-rm-path`, with `--reward-key score`.

  Args:
    score_texts: Scores whole responses (scoring.cut_and_score).
    decode: Returns the text of the policy's ids (placement.decoder).
    aggregate: product, min, last or mean of the scores of a response's steps.
    rewards: What the rewards of steps are, given their scores.
    problem_of: Returns the question of a sample's prompt. With
      --apply-chat-template the prompt is a rendered text: then give
      trainer_chats.between, such as for OpenRLHF.

  Returns:
    The function. Its dict has the aggregate as `score`, and the steps.
  """

  def score(sample: Any, ids: Any) -> _Scored:
    own = scoring.token_ids(ids, sample.loss_mask)
    problems = [problem_of(sample.prompt)]
    (one,) = scoring.score_responses(score_texts, decode, problems, [own])
    return one.scores, one

  return _reward(score, aggregate, rewards)


def turn_rm(
  score: schema.Score,
  decode: placement.Decode,
  *,
  aggregate: str = "min",
  rewards: scoring.Rewards = scoring.delta,
  problem_of: Callable[[Any], str] = trainer_chats.problem_of,
  between: Callable[[str], str] = str.strip,
  messages_of: Callable[[Any], Sequence[Any] | None] = lambda sample: None,
) -> Callable[..., Coroutine[Any, Any, dict[str, Any]]]:
  """Returns a function for `--custom-rm-path` of samples with several turns.

  Args:
    score: Scores trajectories (prm_jax.load_score).
    decode: Returns the text of the policy's ids (placement.decoder).
    aggregate: product, min, last or mean of the scores of a sample's turns.
    rewards: What the rewards of turns are, given their scores.
    problem_of: Returns the question of a sample's prompt, if it is a text.
    between: Returns what was said between two turns (turn_rewards.decoded).
    messages_of: Returns the messages after a sample's prompt, which your
      rollout function has put into `sample.metadata`; None takes the tokens.

  Returns:
    The function. Its dict has the aggregate as `score`, turn_rewards.metrics as
    `prm`, and the turns.
  """

  def score_sample(sample: Any, ids: Any) -> _Scored:
    mask = [1] * len(ids) if sample.loss_mask is None else sample.loss_mask
    prompt = sample.prompt
    prompt = problem_of(prompt) if isinstance(prompt, str) else prompt
    said = messages_of(sample)
    if said is None:
      asked = turn_rewards.decoded(prompt, ids, mask, decode, between=between)
    else:
      asked = turn_rewards.conversation(prompt, said)
    (scores,) = turn_rewards.score_turns(score, [asked])
    return scores, turn_rewards.placed(scores, turn_rewards.run_lengths(mask))

  return _reward(score_sample, aggregate, rewards, turn_rewards.metrics)


def _reward(
  score: Callable[[Any, Any], _Scored],
  aggregate: str,
  rewards: scoring.Rewards,
  metrics: Callable[..., dict[str, float]] | None = None,
) -> Callable[..., Coroutine[Any, Any, dict[str, Any]]]:
  """Returns a function for `--custom-rm-path`.

  Args:
    score: Scores a sample, given it and its response's ids.
    aggregate: How the scores become `score`.
    rewards: What the rewards of steps are, given their scores.
    metrics: Returns what is also logged, of a list of scores, as `prm`.
  """

  async def reward(args: Any, sample: Any, **_: Any) -> dict[str, Any]:
    import asyncio

    ids = sample.tokens[len(sample.tokens) - sample.response_length :]
    scores, one = await asyncio.to_thread(score, sample, ids)
    more = {} if metrics is None else dict(prm=metrics([scores]))
    return more | dict(
      score=scoring.overall(scores, aggregate),
      spans=one.scores.spans or (),
      step_rewards=list(rewards(one.scores)),
      token_offsets=one.token_offsets,
    )

  return reward


def post_process(
  args: Any,
  samples: Sequence[Any],
  *,
  advantages: Callable[
    ..., list[list[float]]
  ] = token_credit.process_advantages,
) -> tuple[list[float], list[Any]]:
  """Returns the scores of samples, and the advantages of their tokens.

  Args:
    args: slime's arguments.
    samples: slime's samples, with the rewards of custom_rm or turn_rm.
    advantages: token_credit.process_advantages, or its to_go_advantages.

  Returns:
    The scores, and for each sample a float32 tensor with one value for each
    token of the response: the advantages within its group.

  Raises:
    InputError: A sample's reward isn't custom_rm's.
  """
  import torch

  groups: dict[Any, list[int]] = {}
  for i, sample in enumerate(samples):
    if not isinstance(sample.reward, dict) or "spans" not in sample.reward:
      raise errors.InputError(
        f"sample {sample.index}: its reward has no steps; set custom_rm_path"
        " to a function that slime.custom_rm made"
      )
    groups.setdefault(sample.group_index, []).append(i)
  out: list[Any] = [None] * len(samples)
  for members in groups.values():
    group = [_with_rewards(samples[i].reward) for i in members]
    rows = advantages(group, rewards=scoring.judged)
    for i, row in zip(members, rows, strict=True):
      mask = samples[i].loss_mask or [1] * samples[i].response_length
      out[i] = torch.from_numpy(placement.align([row], [mask])[0])
  return [sample.get_reward_value(args) for sample in samples], out


# For samples with several turns, whose number is the policy's choice.
post_process_turns = functools.partial(
  post_process, advantages=token_credit.to_go_advantages
)


def set_advantages(args: Any, rollout_data: Any) -> None:
  """Sets the advantages and returns of slime's trainer to post_process's.

  Args:
    args: slime's arguments.
    rollout_data: The trainer's batch; "kl" has a value for each token that this
      rank holds.
  """
  values = []
  pairs = zip(rollout_data["rewards"], rollout_data["kl"], strict=True)
  for i, (row, kl) in enumerate(pairs):
    if len(row) != len(kl):
      # Context parallelism: this rank has a part of the response.
      from slime.backends.megatron_utils import cp_utils

      names = ("total_lengths", "response_lengths")
      lengths = (rollout_data[name][i] for name in names)
      row = cp_utils.slice_log_prob_with_cp(row, *lengths)
    values.append(row.to(kl))
  rollout_data["advantages"] = values
  rollout_data["returns"] = [value.clone() for value in values]


def _with_rewards(found: Mapping[str, Any]) -> scoring.ScoredResponse:
  """Returns a response whose scores are the rewards of its steps."""
  rewards = found["step_rewards"]
  scores = schema.StepScores(
    tuple(x or 0.0 for x in rewards),
    spans=found["spans"],
    judged=tuple(x is not None for x in rewards),
  )
  return scoring.ScoredResponse(scores, found["token_offsets"])
