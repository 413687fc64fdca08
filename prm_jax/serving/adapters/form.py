"""What the wire forms of all clients share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
from typing import Any, NamedTuple

from prm_jax import schema
from prm_jax import voting
from prm_jax.serving import chats
from prm_jax.serving import fields
from prm_jax.serving import models
from prm_jax.serving import refusals
from prm_jax.serving import score_api
from prm_jax.serving import sources

Record = dict[str, Any]


class Item(NamedTuple):
  """A solution of a request: the field that it is in, and what it says."""

  where: str
  turns: chats.Turns


@dataclasses.dataclass(frozen=True)
class Scored:
  """The scores of a request.

  Args:
    model: The name of the model.
    aggregate: How step scores become a solution's score.
    rows: The step scores of each solution.
    num_tokens: The number of tokens of each solution.
  """

  model: str
  aggregate: str
  rows: Sequence[schema.StepScores]
  num_tokens: Sequence[int]

  @property
  def scores(self) -> list[float]:
    """The score of each solution."""
    return [voting.aggregate(row.scores, self.aggregate) for row in self.rows]


@dataclasses.dataclass(frozen=True)
class Form:
  """The wire form of one kind of client.

  Args:
    route: Its route.
    read: Returns the solutions of a request that fits the route's schema.
    write: Returns the reply to a request.
    mark: The field that tells it from other forms of the same path; "" is the
      form of all other requests.
  """

  route: fields.Route
  read: Callable[[Record, chats.Reader], list[Item]]
  write: Callable[[Record, Scored], Any]
  mark: str = ""


def chosen(of_path: Sequence[Form], record: Any) -> Form:
  """Returns the form that a request has.

  Args:
    of_path: The forms of the request's path.
    record: The body.

  Raises:
    RefusedError: The body has no form's fields.
  """
  if not isinstance(record, dict):
    raise refusals.invalid("expected a JSON object")
  marked = (form for form in of_path if form.mark and form.mark in record)
  form = next(marked, of_path[-1])
  assert form.route.request is not None
  fields.check(record, form.route.request)
  return form


def prepare(
  form: Form, record: Record, model: sources.Served, client: str
) -> list[models.Prepared]:
  """Returns the solutions of a request with their ids.

  Args:
    form: The request's form.
    record: The body.
    model: The model that scores them.
    client: Who asks.

  Raises:
    RefusedError: A solution can't be read, or it is above a limit.
  """
  reader = chats.reader(model.template)
  items = form.read(record, reader)
  field = items[0].where.partition("[")[0] if items else ""
  score_api.check_number(len(items), model.limits, field)
  out = []
  for where, turns in items:
    if not turns.problem.strip():
      raise refusals.invalid("the problem is blank", where)
    steps = reader.read_steps(turns.response, where)
    if steps is None:
      solution = model.cut(turns.problem, turns.response, where)
    else:
      solution = schema.Solution("0", turns.problem, steps)
    out.append(model.prepare(solution, where, client))
  return out


# What is likely if a score is high.
LABEL = "correct"
# The query parameters of routes that reply with one score for a solution.
AGGREGATE = ("aggregate",)
TEXTS = fields.one_of(fields.TEXT, fields.several(fields.TEXT, 1))
PAIR = fields.several(fields.TEXT, 2, 2)
_PART = fields.record(
  fields.Field("type", fields.TEXT, "text, input_text or output_text."),
  fields.Field("text", fields.TEXT, "The text.", True),
  is_open=True,
)
_CONTENT = fields.one_of(fields.TEXT, fields.several(_PART, 1))
MESSAGE = fields.record(
  fields.Field("role", fields.TEXT, "Who says it.", True),
  fields.Field("content", _CONTENT, "What is said.", True),
  is_open=True,
)
MODEL = fields.Field(
  "model",
  fields.one_of(fields.TEXT, fields.NULL),
  "The name of a served model.",
)


def rendered(value: Any, name: str, reader: chats.Reader) -> list[Item]:
  """Returns the solutions of rendered chats.

  Args:
    value: A text, or a list: of texts, or of pairs of a problem and a response.
    name: The field that it is.
    reader: The model's reader.

  Raises:
    RefusedError: A text isn't such a chat.
  """
  if isinstance(value, str):
    return [Item(name, reader.read(value, name))]
  items = []
  for i, x in enumerate(value):
    where = f"{name}[{i}]"
    turns = reader.read(x, where) if isinstance(x, str) else chats.Turns(*x)
    items.append(Item(where, turns))
  return items


def _content(content: Any) -> str:
  """Returns the text of a message."""
  if isinstance(content, str):
    return content
  return "".join(part["text"] for part in content)


def said(messages: Sequence[Record], where: str, *roles: str) -> list[str]:
  """Returns the texts of a chat's turns, without those that instruct.

  Args:
    messages: The messages.
    where: The field that they are.
    roles: The roles that they must have.

  Raises:
    RefusedError: They have other roles.
  """
  turns = [x for x in messages if x["role"] not in ("system", "developer")]
  if [x["role"] for x in turns] != [*roles]:
    raise refusals.invalid(
      f"expected one message of each of {', '.join(roles)}, in this order;"
      " messages of system and developer may come before",
      where,
    )
  return [_content(x["content"]) for x in turns]
