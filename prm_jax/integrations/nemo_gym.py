"""NeMo-Gym: `step_rewards` of an episode, one number for each assistant's turn.

The field is issue 1298's proposal; at 07d6b0d07 a verified episode has `reward`
alone, and other fields travel with it. Call `verified` in a resources server's
`verify`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.integrations import scoring
from prm_jax.integrations import trainer_chats
from prm_jax.integrations import turn_rewards


def verified(
  body: Any,
  *,
  score: schema.Score,
  aggregate: str = "min",
  rewards: scoring.Rewards = scoring.delta,
) -> dict[str, Any]:
  """Returns the reply to a request of /verify.

  Args:
    body: The request (BaseVerifyRequest), or its record.
    score: Scores trajectories (prm_jax.load_score).
    aggregate: product, min, last or mean of the scores of the turns, which is
      `reward`.
    rewards: What the rewards of turns are, given their scores. No reward is 0.

  Returns:
    The request with `reward`, `step_rewards` and turn_rewards.metrics as
    `prm_...`, of which NeMo-Gym makes statistics.

  Raises:
    InputError: The episode has an item that isn't of a conversation.
  """
  record = body if isinstance(body, Mapping) else body.model_dump()
  (scores,) = turn_rewards.score_turns(score, [conversation(record)])
  metrics = turn_rewards.metrics([scores])
  return {
    **record,
    "reward": scoring.overall(scores, aggregate),
    "step_rewards": [x or 0.0 for x in rewards(scores)],
    **{f"prm_{name}": value for name, value in metrics.items()},
  }


def conversation(record: Mapping[str, Any]) -> turn_rewards.Conversation:
  """Returns an episode as a conversation.

  What the policy writes until a tool's result or another message is one turn:
  reasoning, text and calls.

  Args:
    record: A request of /verify.

  Returns:
    The conversation, whose own turns are those of `response.output`.

  Raises:
    InputError: An item is neither a message, reasoning, a call nor a result.
  """
  asked = record["responses_create_params"]
  first = asked["input"]
  if isinstance(first, str):
    first = [dict(role="user", content=first)]
  if asked.get("instructions"):
    first = [dict(role="system", content=asked["instructions"]), *first]
  return turn_rewards.conversation(
    _messages(first),
    _messages(record["response"]["output"]),
    asked.get("tools") or (),
  )


def _messages(items: Iterable[Any]) -> Sequence[turn_rewards.Record]:
  """Returns items of the Responses API, or a chat's messages, as messages."""
  out: list[dict[str, Any]] = []

  def turn() -> dict[str, Any]:
    """Returns the turn that the policy is in."""
    if not out or out[-1]["role"] != "assistant":
      out.append(dict(role="assistant", content=""))
    return out[-1]

  for item in map(turn_rewards.record_of, items):
    kind = item.get("type", "message")
    if kind == "message" and item.get("role") == "assistant":
      turn()["content"] += trainer_chats.text_of(item)
      if item.get("tool_calls"):
        turn().setdefault("tool_calls", []).extend(item["tool_calls"])
    elif kind == "message":
      names = ("role", "content", "tool_call_id")
      out.append({name: item[name] for name in names if name in item})
    elif kind == "reasoning":
      text = "".join(x.get("text", "") for x in item.get("summary") or ())
      turn()["reasoning_content"] = turn().get("reasoning_content", "") + text
    elif kind == "function_call":
      function = {x: item.get(x) for x in ("name", "arguments")}
      call = dict(id=item.get("call_id"), type="function", function=function)
      turn().setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
      result = dict(role="tool", tool_call_id=item.get("call_id"))
      out.append(result | dict(content=item.get("output")))
    else:
      raise errors.InputError(
        f"an item of type {kind!r}; an episode's items are message, reasoning,"
        " function_call and function_call_output"
      )
  return out
