"""`POST /v1/prm/score`: the request that a server reads, and its reply.

inference/remote/score_protocol.py is the client's half.

  {"model": "prm", "aggregate": "min", "items": [
    {"problem": "2 + 2?", "response": "2 + 2 = 4.\\n\\nAnswer 4"},
    {"problem": "2 + 2?", "steps": ["2 + 2 = 5.", "Answer 5"]},
    {"messages": [{"role": "user", "content": "2 + 2?"},
                  {"role": "assistant", "content": "Answer 4"}]}]}

A text is text: no separator or control token that is typed into it moves a
boundary of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
from typing import Any

from prm_jax import schema
from prm_jax import voting
from prm_jax.serving import limits as limits_lib
from prm_jax.serving import models
from prm_jax.serving import refusals

Record = dict[str, Any]
# Returns a text as a solution: (problem, text, where).
Cut = Callable[[str, str, str], schema.Solution]

_FIELDS = ("model", "items", "aggregate")
# Others may be there if they are empty, as servers of chats write them.
_MESSAGE_FIELDS = ("role", "content")
_ITEM_FIELDS = ("problem", "steps", "response", "messages")


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
  _check_fields(record, _FIELDS, "")
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
  if len(items) > limits.max_items:
    raise refusals.too_large(
      f"{len(items)} items; this server takes up to {limits.max_items} in a"
      " request",
      "items",
    )
  for i, item in enumerate(items):
    if not isinstance(item, dict):
      raise refusals.invalid("expected an object", place(i))
    _check_fields(item, _ITEM_FIELDS, place(i))
  return Request(model, items, aggregate)


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
      or one has another type.
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
    return cut(*_turns(item["messages"], f"{where}.messages"), where)
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
  model: models.Model,
  aggregate: str | None,
  prepared: Sequence[models.Prepared],
  rows: Sequence[schema.StepScores],
) -> Record:
  """Returns the body of a reply.

  Args:
    model: The model.
    aggregate: How step scores become a solution's score; None is the model's
      own way.
    prepared: The solutions.
    rows: Their scores.
  """
  how = aggregate or model.scorer.aggregate
  data = [
    _entry(i, row, len(x.encoded.tokens), how)
    for i, (x, row) in enumerate(zip(prepared, rows, strict=True))
  ]
  return dict(
    object="list",
    model=model.name,
    model_fingerprint=model.fingerprint,
    aggregate=how,
    data=data,
    usage=dict(
      prompt_tokens=sum(x["num_tokens"] for x in data), cached_tokens=0
    ),
  )


def _entry(
  index: int, row: schema.StepScores, num_tokens: int, how: str
) -> Record:
  entry: Record = dict(index=index, step_scores=list(row.scores))
  if row.spans is not None:
    entry["segments"] = [list(span) for span in row.spans]
  if row.judged is not None:
    entry["judged"] = list(row.judged)
  return entry | dict(
    score=voting.aggregate(row.scores, how),
    num_tokens=num_tokens,
    truncated=False,
  )


def _turns(messages: Any, where: str) -> tuple[str, str]:
  """Returns the problem and the response of a chat of two turns."""
  roles = (
    [m.get("role") for m in messages if isinstance(m, dict)]
    if isinstance(messages, list)
    else None
  )
  if roles != ["user", "assistant"] or len(messages) != 2:
    raise refusals.invalid(
      "expected one message of the user, the problem, and one of the assistant",
      where,
    )
  for message in messages:
    set_fields = {name: x for name, x in message.items() if x}
    _check_fields(set_fields, _MESSAGE_FIELDS, where)
  texts = [message.get("content") for message in messages]
  if not all(isinstance(text, str) for text in texts) or not texts[0].strip():
    raise refusals.invalid(
      "expected `content` to be a text in both, and the problem not blank",
      where,
    )
  return texts[0], texts[1]


def _check_fields(record: Record, known: Sequence[str], where: str) -> None:
  """Refuses a field that isn't read: it may be one that was misspelt."""
  unknown = sorted(record.keys() - set(known))
  if unknown:
    raise refusals.invalid(
      f"unknown field {unknown[0][:60]!r}; there are {', '.join(known)}", where
    )
