"""SkyRL: a reward for each token of `GeneratorOutput`.

SkyRL's GAE and REINFORCE++ use rewards of tokens; its GRPO and RLOO sum them.
with_step_rewards scores a response's text, with_turn_rewards the turns of a
conversation. In step-wise training each turn is a sample of its own, and SkyRL
gives all of them the advantage of the last one's reward (a9564572);
turn_advantages gives each its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxtyping import Float
import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.integrations import placement
from prm_jax.integrations import scoring
from prm_jax.integrations import token_credit
from prm_jax.integrations import trainer_chats
from prm_jax.integrations import turn_rewards


def with_step_rewards(
  generator_input: Mapping[str, Any],
  generator_output: Mapping[str, Any],
  *,
  score_texts: scoring.ScoreTexts,
  decode: placement.Decode,
  rewards: scoring.Rewards = scoring.delta,
  process_weight: float = 1.0,
) -> dict[str, Any]:
  """Returns a generator's output with the rewards of steps added to its own.

  Args:
    generator_input: The GeneratorInput, whose prompts are chats.
    generator_output: The GeneratorOutput. A reward of a whole response is added
      to its last token. Tokens with loss_masks 0 are no part of the response.
    score_texts: Scores whole responses (scoring.cut_and_score).
    decode: Returns the text of the policy's ids (placement.decoder).
    rewards: What the rewards of steps are, given their scores.
    process_weight: The factor of the rewards of steps.

  Returns:
    The output with one reward for each token of each response.

  Raises:
    InputError: The output has an entry for each turn (step-wise training), in
      which SkyRL reads the last turn's reward alone.
  """
  if generator_output.get("is_last_step") is not None:
    raise errors.InputError(
      "generator.step_wise_trajectories=true: SkyRL reads the rewards of the"
      " last turn alone; set it to false to train on steps, or take"
      " with_turn_rewards and turn_advantages"
    )
  masks = generator_output["loss_masks"]
  responses = generator_output["response_ids"]
  ids = list(map(scoring.token_ids, responses, masks))
  problems = list(map(trainer_chats.problem_of, generator_input["prompts"]))
  scored = scoring.score_responses(score_texts, decode, problems, ids)
  rows = [scoring.token_rewards(one, rewards) for one in scored]
  return _with_rewards(generator_output, rows, process_weight)


def with_turn_rewards(
  generator_input: Mapping[str, Any],
  generator_output: Mapping[str, Any],
  *,
  score: schema.Score,
  decode: placement.Decode,
  rewards: scoring.Rewards = scoring.delta,
  process_weight: float = 1.0,
  between: Callable[[str], str] = str.strip,
) -> dict[str, Any]:
  """Returns a generator's output with the rewards of turns added to its own.

  Args:
    generator_input: The GeneratorInput, whose prompts are chats.
    generator_output: The GeneratorOutput, of whole conversations or, in
      step-wise training, of single turns.
    score: Scores trajectories (prm_jax.load_score).
    decode: Returns the text of the policy's ids (placement.decoder).
    rewards: What the rewards of turns are, given their scores.
    process_weight: The factor of the rewards of turns.
    between: Returns what was said between two turns (turn_rewards.decoded).

  Returns:
    The output, with a turn's reward on its last own token and
    turn_rewards.metrics among `rollout_metrics`.

  Raises:
    InputError: There isn't a prompt for each conversation.
  """
  masks = generator_output["loss_masks"]
  ends = generator_output.get("is_last_step") or [True] * len(masks)
  members = _trajectories(ends)
  prompts = generator_input["prompts"]
  if len(prompts) != len(members):
    raise errors.InputError(
      f"{len(prompts)} prompts for {len(members)} conversations; give the input"
      " that the output was generated from"
    )
  asked = []
  for prompt, rows in zip(prompts, members, strict=True):
    ids = [x for i in rows for x in generator_output["response_ids"][i]]
    mask = [x for i in rows for x in masks[i]]
    asked.append(
      turn_rewards.decoded(prompt, ids, mask, decode, between=between)
    )
  scores = turn_rewards.score_turns(score, asked)
  out: list[list[float]] = []
  for each, rows in zip(scores, members, strict=True):
    lengths = [turn_rewards.run_lengths(masks[i]) for i in rows]
    scored = turn_rewards.placed(each, [x for row in lengths for x in row])
    values = iter(scoring.token_rewards(scored, rewards))
    out += [[next(values) for _ in range(sum(row))] for row in lengths]
  added = {f"prm/{k}": x for k, x in turn_rewards.metrics(scores).items()}
  known = generator_output.get("rollout_metrics") or {}
  whole = _with_rewards(generator_output, out, process_weight)
  return {**whole, "rollout_metrics": {**known, **added}}


def turn_advantages(
  rewards: Any,
  response_mask: Any,
  uids: Sequence[Any],
  is_last_step: Sequence[bool],
) -> Float[np.ndarray, "B T"]:
  """Returns the advantages of step-wise training, each turn's its own.

  A turn's return is the sum of the rewards from it on, and its advantage the
  return less the mean of the same turn's in the other conversations of the
  problem (token_credit.to_go_advantages).

  Args:
    rewards: The rewards [B, T] of a batch whose rows are turns.
    response_mask: Which tokens are real, [B, T].
    uids: The problem of each row.
    is_last_step: Whether a row is its conversation's last turn.

  Returns:
    The advantages, float32, 0 where the mask is false.
  """
  sums = np.asarray(rewards, np.float64).sum(axis=1).tolist()
  groups: dict[Any, list[list[int]]] = {}
  for rows in _trajectories(is_last_step):
    groups.setdefault(uids[rows[0]], []).append(rows)
  out = np.asarray(response_mask).astype(np.float32)
  for group in groups.values():
    scores = [schema.StepScores(tuple(sums[i] for i in x)) for x in group]
    scored = [turn_rewards.placed(row, [1] * len(row)) for row in scores]
    # The scores here are rewards already.
    of_turns = token_credit.to_go_advantages(scored, rewards=scoring.judged)
    for rows, values in zip(group, of_turns, strict=True):
      for i, value in zip(rows, values, strict=True):
        out[i] *= value
  return out


def _trajectories(is_last_step: Sequence[bool]) -> list[list[int]]:
  """Returns the rows of each conversation."""
  out: list[list[int]] = [[]]
  for i, is_last in enumerate(is_last_step):
    out[-1].append(i)
    if is_last:
      out.append([])
  return out if out[-1] else out[:-1]


def _with_rewards(
  generator_output: Mapping[str, Any],
  rewards: Sequence[Sequence[float]],
  process_weight: float,
) -> dict[str, Any]:
  """Returns the output with rewards of own tokens added to its own."""
  out = []
  given = generator_output["rewards"], generator_output["loss_masks"]
  for own, mask, values in zip(*given, rewards, strict=True):
    steps = placement.align([values], [mask])[0]
    row = [process_weight * float(x) for x in steps]
    if isinstance(own, list):
      row = [x + y for x, y in zip(row, own, strict=True)]
    elif row:
      row[-1] += float(own)
    out.append(row)
  return {**generator_output, "rewards": out}
