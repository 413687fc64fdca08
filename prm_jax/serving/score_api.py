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

from collections.abc import Callable, Sequence
import dataclasses
import re
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax import voting
from prm_jax.scoring import cached_scorer
from prm_jax.serving import fields
from prm_jax.serving import limits as limits_lib
from prm_jax.serving import models
from prm_jax.serving import refusals
from prm_jax.serving import score_fields
from prm_jax.serving import sources
from prm_jax.text import messages as messages_lib

Record = dict[str, Any]
# Returns a text as a solution: (problem, text, where).
Cut = Callable[[str, str, str], schema.Solution]


@dataclasses.dataclass(frozen=True)
class Request:
  """What is asked for.

  Args:
    model: The name of the model; "" leaves it to the server.
    items: The items, as they came.
    aggregate: How step scores become a solution's score; None leaves it to the
      model.
  """

  model: str
  items: list[Record]
  aggregate: str | None


def read(record: Any, limits: limits_lib.Limits) -> Request:
  """Returns a request whose fields have the right types.

  Args:
    record: The body.
    limits: The limits.

  Raises:
    RefusedError: It isn't such a request.
  """
  if not isinstance(record, dict):
    raise refusals.invalid("expected a JSON object with a list `items`")
  _check_fields(record, score_fields.ROUTE.request, "")
  model = record.get("model", "")
  if not isinstance(model, str):
    raise refusals.invalid("expected a text", "model")
  aggregate = record.get("aggregate")
  if aggregate is not None and aggregate not in voting.AGGREGATES:
    raise refusals.invalid(
      f"expected one of {', '.join(voting.AGGREGATES)}", "aggregate"
    )
  items = record.get("items")
  if not isinstance(items, list) or not items:
    raise refusals.invalid("expected a list with one item or more", "items")
  check_number(len(items), limits, "items")
  for i, item in enumerate(items):
    if not isinstance(item, dict):
      raise refusals.invalid("expected an object", place(i))
    _check_fields(item, score_fields.ITEM, place(i))
  return Request(model, items, aggregate)


def check_number(num: int, limits: limits_lib.Limits, where: str) -> None:
  """Refuses more solutions than a request may have.

  Args:
    num: The number of solutions.
    limits: The limits.
    where: The field that they are, for errors.

  Raises:
    RefusedError: There are more.
  """
  if num > limits.max_items:
    raise refusals.too_large(
      f"{num} items; this server takes up to {limits.max_items} in a request",
      where,
    )


def place(index: int) -> str:
  """Returns what an item is called in errors."""
  return f"items[{index}]"


def solution(item: Record, where: str, cut: Cut) -> schema.Solution:
  """Returns an item's solution.

  Args:
    item: The item.
    where: What it is called in errors.
    cut: Cuts a text into steps.

  Raises:
    RefusedError: It has no problem, or not one of steps, response and messages,
      or one has another type; or its messages make no sense together.
  """
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
    _check_messages(item, where)
    if _is_conversation(item, where):
      return _conversation(item, where)
    return cut(*_two_texts(item["messages"], f"{where}.messages"), where)
  for name in ("tools", "steps_are"):
    if name in item:
      raise refusals.invalid(
        "only messages have it; give them, or take it out", f"{where}.{name}"
      )
  problem = item.get("problem")
  if not isinstance(problem, str) or not problem.strip():
    raise refusals.invalid(
      "expected a text that isn't blank", f"{where}.problem"
    )
  if given == ["response"]:
    text = item["response"]
    if not isinstance(text, str):
      raise refusals.invalid("expected a text", f"{where}.response")
    return cut(problem, text, where)
  steps = item["steps"]
  if not isinstance(steps, list) or not all(
    isinstance(step, str) for step in steps
  ):
    raise refusals.invalid("expected a list of texts", f"{where}.steps")
  return schema.Solution("0", problem, tuple(steps))


def reply(
  model: sources.Served,
  aggregate: str | None,
  prepared: Sequence[models.Prepared],
  rows: Sequence[cached_scorer.Scored],
) -> Record:
  """Returns the body of a reply.

  Args:
    model: The model.
    aggregate: How step scores become a solution's score; None is the model's
      own way.
    prepared: The solutions.
    rows: Their scores.
  """
  how = aggregate or model.aggregate
  data = [
    _entry(i, row.scores, x, how)
    for i, (x, row) in enumerate(zip(prepared, rows, strict=True))
  ]
  return dict(
    object="list",
    model=model.name,
    model_fingerprint=model.fingerprint,
    aggregate=how,
    data=data,
    usage=dict(
      prompt_tokens=sum(x["num_tokens"] for x in data),
      cached_tokens=sum(row.reused for row in rows),
    ),
  )


def _entry(
  index: int, row: schema.StepScores, prepared: models.Prepared, how: str
) -> Record:
  entry: Record = dict(index=index, step_scores=list(row.scores))
  if row.spans is not None:
    entry["segments"] = [list(span) for span in row.spans]
  if prepared.solution.messages is not None:
    entry["turns"] = _turns(prepared.solution.messages)
    # Of a model without tokens of ours it isn't known.
    known = row.without_thinking if prepared.num_tokens else ()
    for turn, unread in zip(entry["turns"], known):
      turn["without_thinking"] = unread
  if row.judged is not None:
    entry["judged"] = list(row.judged)
  return entry | dict(
    score=voting.aggregate(row.scores, how),
    num_tokens=prepared.num_tokens,
    truncated=False,
  )


def _turns(messages: Sequence[schema.Message]) -> list[Record]:
  """Returns where the turns of a conversation are, one for each step."""
  return [
    dict(message=i, span=[0, len(x.text)] if x.text.strip() else None)
    for i, x in enumerate(messages)
    if x.role == "assistant"
  ]


def _check_messages(item: Record, where: str) -> None:
  """Refuses what is no list, or says nothing in a form that there isn't.

  What says something is checked where it is read.
  """
  if not isinstance(item["messages"], list):
    raise refusals.invalid(
      "expected a list of messages: one message of the user, the problem, and"
      " one of the assistant, or a conversation",
      f"{where}.messages",
    )
  known = score_fields.MESSAGE["properties"]
  thought = known[messages_lib.THINKING[0]]
  known = dict.fromkeys(messages_lib.THINKING, thought) | known
  _check_empty(
    item, dict(tools=score_fields.ITEM["properties"]["tools"]), where
  )
  for i, message in enumerate(item["messages"]):
    if isinstance(message, dict):
      _check_empty(message, known, f"{where}.messages[{i}]")


def _check_empty(
  record: Record, known: dict[str, fields.Schema], where: str
) -> None:
  for name, schema_of in known.items():
    if name in record and not record[name]:
      fields.check(record[name], schema_of, f"{where}.{name}")


def _is_conversation(item: Record, where: str) -> bool:
  """Returns whether the turns of an item's messages are its steps."""
  if item.get("steps_are", "turns") != "turns":
    raise refusals.invalid("expected turns", f"{where}.steps_are")
  if "steps_are" in item or item.get("tools"):
    return True
  records = [x if isinstance(x, dict) else {} for x in item["messages"]]
  return [x.get("role") for x in records] != ["user", "assistant"] or any(
    x.get(name)
    for x in records
    for name in ("tool_calls", *messages_lib.THINKING)
  )


# What an error of a conversation begins with: the place of what is wrong.
_WRONG = re.compile(r"(?:messages|tools)(?:\[\d+\])?")


def _conversation(item: Record, where: str) -> schema.Solution:
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
    filled = {name: x for name, x in message.items() if x}
    _check_fields(filled, score_fields.PLAIN, where, _AS_TURNS)
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


def _check_fields(
  record: Record, expected: fields.Schema | None, where: str, fix: str = ""
) -> None:
  """Refuses a field that isn't read: it may be one that was misspelt."""
  known = expected["properties"] if expected else {}
  unknown = record.keys() - known.keys()
  if unknown:
    raise refusals.invalid(
      f"unknown field {min(unknown)[:60]!r}; there are {', '.join(known)}{fix}",
      where,
    )
