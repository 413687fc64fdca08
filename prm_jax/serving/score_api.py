"""`POST /v1/prm/score`: the request that a server reads, and its reply.

prm_jax/client.py has the client's half.

  {"model": "prm", "aggregate": "min", "items": [
    {"problem": "2 + 2?", "response": "2 + 2 = 4.\\n\\nAnswer 4"},
    {"problem": "2 + 2?", "steps": ["2 + 2 = 5.", "Answer 5"]},
    {"messages": [{"role": "user", "content": "2 + 2?"},
                  {"role": "assistant", "content": "Answer 4"}]},
    {"messages": [...], "tools": [...], "steps_are": "turns"}]}

Two plain messages are a problem and a response, which the model's segmenter
cuts. All others, or on demand these, are a conversation: its steps are the
assistant's turns, and the rest is context.

A text is text: no separator or control token that is typed into it moves a
boundary of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
import re
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.serving import chat_requests
from prm_jax.serving import forms
from prm_jax.serving import models
from prm_jax.serving import refusals
from prm_jax.serving import score_fields
from prm_jax.serving import served_sources
from prm_jax.text import messages as messages_lib


def read(
  record: score_fields.Request, reader: chat_requests.Reader
) -> list[forms.Item]:
  """Returns the items of a request.

  Args:
    record: The body.
    reader: What it doesn't need.
  """
  del reader
  return [forms.Item(f"items[{i}]", x) for i, x in enumerate(record["items"])]


def solution(
  asked: forms.Item, model: served_sources.Served
) -> schema.Solution:
  """Returns an item's solution.

  Args:
    asked: The item.
    model: The model, which cuts a text into steps.

  Raises:
    RefusedError: It has no problem, or not one of steps, response and messages;
      or its messages make no sense together.
  """
  where, item = asked
  given = [x for x in ("steps", "response", "messages") if x in item]
  if len(given) != 1:
    raise refusals.invalid(
      "give one of steps, response and messages, and with the first two the"
      " problem",
      where,
    )
  if given == ["messages"]:
    if "problem" in item:
      raise refusals.invalid("the problem is in the messages", where)
    if _is_conversation(item):
      return _conversation(item, where)
    return model.cut(*_two_texts(item["messages"], f"{where}.messages"), where)
  for name in ("tools", "steps_are"):
    if name in item:
      raise refusals.invalid(
        "only messages have it; give them, or take it out", f"{where}.{name}"
      )
  problem = item.get("problem", "")
  if not problem.strip():
    raise refusals.invalid(
      "expected a text that isn't blank", f"{where}.problem"
    )
  if given == ["response"]:
    return model.cut(problem, item["response"], where)
  return schema.Solution("0", problem, tuple(item["steps"]))


def reply(asked: forms.Asked) -> score_fields.Reply:
  """Returns the body of a reply.

  Args:
    asked: The request and its scores.
  """
  return score_fields.Reply(
    object="list",
    model=asked.model.name,
    model_fingerprint=asked.model.fingerprint,
    aggregate=asked.aggregate,
    data=[
      _entry(i, *of_item)
      for i, of_item in enumerate(
        zip(asked.rows, asked.prepared, asked.scores, strict=True)
      )
    ],
    usage=score_fields.Usage(
      prompt_tokens=sum(asked.num_tokens),
      cached_tokens=sum(x.reused for x in asked.results),
    ),
  )


FORM = forms.Form(
  score_fields.ROUTE,
  read,
  lambda asked: reply(asked),
  solution=solution,
  listed="items",
)


def _entry(
  index: int, row: schema.StepScores, prepared: models.Prepared, score: float
) -> Any:
  entry: dict[str, Any] = dict(index=index, step_scores=list(row.scores))
  if row.spans is not None:
    entry["segments"] = list(row.spans)
  if prepared.solution.messages is not None:
    entry["turns"] = _turns(prepared.solution.messages)
    # Of a model without tokens of ours it isn't known.
    known = row.without_thinking if prepared.num_tokens else ()
    for turn, unread in zip(entry["turns"], known):
      turn["without_thinking"] = unread
  if row.judged is not None:
    entry["judged"] = list(row.judged)
  if row.graded is not None:
    entry["graded"] = row.graded
  return entry | dict(
    score=score, num_tokens=prepared.num_tokens, truncated=False
  )


def _turns(messages: Sequence[schema.Message]) -> list[score_fields.Turn]:
  """Returns where the turns of a conversation are, one for each step."""
  return [
    score_fields.Turn(
      message=i, span=(0, len(x.text)) if x.text.strip() else None
    )
    for i, x in enumerate(messages)
    if x.role == "assistant"
  ]


def _is_conversation(item: score_fields.Item) -> bool:
  """Returns whether the turns of an item's messages are its steps."""
  messages: list[Any] = item["messages"]
  return (
    bool("steps_are" in item or item.get("tools"))
    or [x["role"] for x in messages] != ["user", "assistant"]
    or any(
      x.get(name)
      for x in messages
      for name in ("tool_calls", *messages_lib.THINKING)
    )
  )


# What an error of a conversation begins with: the place of what is wrong.
_WRONG = re.compile(r"(?:messages|tools)(?:\[\d+\])?")


def _conversation(item: score_fields.Item, where: str) -> schema.Solution:
  """Returns a conversation, whose steps are the assistant's turns."""
  try:
    messages = messages_lib.read(item["messages"], where)
    tools = messages_lib.read_tools(item.get("tools"), where)
  except errors.InputError as e:
    text = str(e).removeprefix(f"{where}: ")
    wrong = _WRONG.match(text)
    assert wrong is not None, text
    raise refusals.invalid(text, f"{where}.{wrong[0]}") from e
  return messages_lib.trajectory(messages, tools=tools)


def _two_texts(messages: list[Any], where: str) -> tuple[str, str]:
  """Returns the problem and the response of a chat of two turns."""
  for message in messages:
    # Others may be there if they are empty, as servers of chats write them.
    unknown = {x for x in message if message[x]} - {"role", "content"}
    if unknown:
      raise refusals.invalid(
        f"unknown field {min(unknown)[:60]!r}; there are role, content"
        f"{_AS_TURNS}",
        where,
      )
  texts = [message.get("content") for message in messages]
  if not all(isinstance(text, str) for text in texts) or not texts[0].strip():
    raise refusals.invalid(
      "expected `content` to be a text in both, and the problem not blank"
      f"{_AS_TURNS}",
      where,
    )
  return texts[0], texts[1]


# What makes a conversation of two messages that are no problem and response.
_AS_TURNS = '; "steps_are": "turns" makes them a conversation'
