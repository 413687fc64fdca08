"""Tunix: one reward of a completion, or advantages of its tokens.

A reward function of Tunix returns one number per completion and sees texts
alone. The loss of its GRPO takes advantages [B, T], which step_advantages makes
from the completion's ids. The experimental V2 asks a worker for the scores of
items: score_items, for trajectories in ATIF 1.7 (Tunix c7d8950f).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def reward_fn(
  score_texts: scoring.ScoreTexts,
  *,
  aggregate: str = "min",
  problem_column: str | None = None,
  name: str = "prm",
) -> Callable[..., list[float]]:
  """Returns a function for a learner's `reward_fns`.

  Args:
    score_texts: Scores whole responses (scoring.cut_and_score).
    aggregate: product, min, last or mean of the scores of a response's steps.
    problem_column: The data's column with the question; by default the prompt.
    name: The name of the reward in Tunix's logs.

  Returns:
    The function.
  """

  def reward(
    prompts: Sequence[str], completions: Sequence[str], **columns: Any
  ) -> list[float]:
    problems = columns[problem_column] if problem_column else prompts
    scores = score_texts([*map(str, problems)], [*map(str, completions)])
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
    score_texts: Scores whole responses (scoring.cut_and_score).
    decode: Returns the text of the policy's ids (placement.decoder).
    rewards: What the rewards of steps are, given their scores.

  Returns:
    token_credit.process_advantages within each group, float32, 0 where the mask
    is false. Add the learner's own advantages [B] as [:, None].

  Raises:
    InputError: The batch isn't whole groups, or a reward has no place.
  """
  mask = np.asarray(completion_mask).astype(bool)
  ids = list(map(scoring.token_ids, np.asarray(completion_ids), mask))
  scored = scoring.score_responses(score_texts, decode, problems, ids)
  rows = token_credit.in_groups(scored, num_generations, rewards=rewards)
  return placement.align(rows, mask)


def score_items(
  items: Sequence[Any],
  *,
  score: schema.Score,
  aggregate: str = "min",
  conversation_of: Callable[[Any], turn_rewards.Conversation] | None = None,
) -> list[float]:
  """Returns what a worker's `score(items)` returns to DistributedRLEngine.

  Args:
    items: The items: TrajectoryItems whose steps have chat_completions, or
      trajectories in ATIF, unless conversation_of says otherwise.
    score: Scores trajectories (prm_jax.load_score).
    aggregate: product, min, last or mean of the scores of an item's turns.
    conversation_of: Returns the conversation of an item.

  Returns:
    One number for each item, 0 without turns.

  Raises:
    InputError: An item has no messages.
  """
  conversations = list(map(conversation_of or _conversation, items))
  scores = turn_rewards.score_turns(score, conversations)
  return [scoring.overall(each, aggregate) for each in scores]


def _conversation(item: Any) -> turn_rewards.Conversation:
  """Returns the conversation of a TrajectoryItem or of a trajectory in ATIF."""
  trajectory = getattr(item, "traj", None)
  if trajectory is None:
    return atif_conversation(item)
  steps = trainer_chats.field(trajectory, "steps")
  # An agent keeps the whole conversation in each step.
  messages = trainer_chats.field(steps[-1], "chat_completions") if steps else ()
  if not messages:
    raise errors.InputError(
      "a TrajectoryItem has no chat_completions in its last step; give"
      " conversation_of, which returns its conversation"
    )
  return turn_rewards.conversation((), messages)


def atif_conversation(trajectory: Any) -> turn_rewards.Conversation:
  """Returns a trajectory in ATIF as a conversation.

  Args:
    trajectory: The trajectory (tunix.experimental.trajectory), or its record.

  Returns:
    The conversation. Its own turns are the agent's steps, except those without
    a call of the model and those copied from an earlier run. Results answer the
    open calls, in order if they name none. A step of the system with results
    says them alone: its message repeats them (Tunix's create_env_step).
  """
  record = turn_rewards.record_of(trajectory)
  messages: list[turn_rewards.Record] = []
  own = []
  open_calls: list[str | None] = []
  for step in map(turn_rewards.record_of, record["steps"]):
    results = (step.get("observation") or {}).get("results") or ()
    is_agent = step["source"] == "agent"
    message = dict(role=str(step["source"]), content=step["message"])
    if is_agent:
      message["role"] = "assistant"
      open_calls = []
      message |= {x: step[x] for x in ("reasoning_content",) if x in step}
      if step.get("tool_calls"):
        message["tool_calls"] = list(map(_call, step["tool_calls"]))
        open_calls = [x["id"] for x in message["tool_calls"]]
      is_written = step.get("llm_call_count") != 0
      if is_written and not step.get("is_copied_context"):
        own.append(len(messages))
    if message["role"] != "system" or not results:
      messages.append(message)
    for result in results:
      said = dict(role="user", content=result.get("content"))
      answers = result.get("source_call_id") or next(iter(open_calls), None)
      if answers in open_calls:
        open_calls.remove(answers)
        said |= dict(role="tool", tool_call_id=answers)
      messages.append(said)
  tools = record.get("agent", {}).get("tool_definitions") or ()
  return turn_rewards.Conversation(tuple(messages), tuple(own), tuple(tools))


def _call(call: Any) -> dict[str, Any]:
  """Returns a tool call of ATIF as OpenAI writes it."""
  function = dict(name=call["function_name"], arguments=call["arguments"])
  return dict(id=call.get("tool_call_id"), type="function", function=function)
