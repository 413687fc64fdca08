"""What the wire forms of all clients share: our own and other programs'.

A form has a route, a function that reads its request and one that writes its
reply; the rest (limits, batches, refusals) is the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

from prm_jax import errors
from prm_jax import schema
from prm_jax import voting
from prm_jax.scoring import cached_scorer
from prm_jax.serving import chat_requests
from prm_jax.serving import declarations
from prm_jax.serving import models
from prm_jax.serving import refusals
from prm_jax.serving import served_sources
from prm_jax.serving import server_limits as limits_lib

Record = dict[str, Any]


class Item(NamedTuple):
  """A solution of a request: the field that it is in, and what it says.

  Args:
    where: The field.
    content: Two texts, or what the form's `solution` reads.
  """

  where: str
  content: Any


@dataclasses.dataclass(frozen=True)
class Asked:
  """A request, with its scores once it has them.

  Args:
    form: Its form.
    record: Its body.
    model: The model.
    aggregate: How step scores become a solution's score.
    prepared: The solutions.
    results: Their scores.
  """

  form: Form
  record: Any
  model: served_sources.Served
  aggregate: str
  prepared: Sequence[models.Prepared]
  results: Sequence[cached_scorer.Scored] = ()

  @property
  def rows(self) -> list[schema.StepScores]:
    """The step scores of each solution."""
    return [x.scores for x in self.results]

  @property
  def scores(self) -> list[float]:
    """The score of each solution."""
    return [voting.aggregate(row.scores, self.aggregate) for row in self.rows]

  @property
  def num_tokens(self) -> list[int]:
    """The number of tokens of each solution."""
    return [x.num_tokens for x in self.prepared]


def of_texts(item: Item, model: served_sources.Served) -> schema.Solution:
  """Returns the solution of a problem and a response.

  Args:
    item: The two texts.
    model: The model, which cuts the response if it has no marks.

  Raises:
    RefusedError: The problem is blank, the marks make no sense, or the response
      can't be cut.
  """
  turns: chat_requests.Turns = item.content
  if not turns.problem.strip():
    raise refusals.invalid("the problem is blank", item.where)
  steps = chat_requests.reader(model.template).read_steps(
    turns.response, item.where
  )
  if steps is None:
    return model.cut(turns.problem, turns.response, item.where)
  return schema.Solution("0", turns.problem, steps)


@dataclasses.dataclass(frozen=True)
class Form:
  """The wire form of one kind of client.

  Args:
    route: Its route.
    read: Returns the items of a request that fits the route's schema.
    write: Returns the reply to a scored request.
    mark: The field that tells it from other forms of the same path; "" is the
      form of all other requests.
    solution: Returns the solution of an item.
    listed: The field that is a list of solutions, if it is always one.
  """

  route: declarations.Route
  read: Callable[[Any, chat_requests.Reader], list[Item]]
  write: Callable[[Asked], Any]
  mark: str = ""
  solution: Callable[[Item, served_sources.Served], schema.Solution] = of_texts
  listed: str = ""

  @property
  def path(self) -> str:
    """The path of its route."""
    return self.route.path


def chosen(
  of_path: Sequence[Form], record: Record, limits: limits_lib.Limits
) -> Form:
  """Returns the form that a request has.

  Args:
    of_path: The forms of the request's path.
    record: The body.
    limits: The limits.

  Raises:
    RefusedError: The body has no form's fields, or too many solutions.
  """
  marked = (form for form in of_path if form.mark and form.mark in record)
  form = next(marked, of_path[-1])
  assert form.route.request is not None
  # Before each of them is looked at.
  _check_number(record.get(form.listed), limits, form.listed)
  declarations.check(record, form.route.request)
  return form


def prepare(
  form: Form, record: Record, model: served_sources.Served, client: str
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
  items = form.read(record, chat_requests.reader(model.template))
  field = items[0].where.partition("[")[0] if items else ""
  _check_number(items, model.limits, field)
  out = []
  for item in items:
    try:
      solution = form.solution(item, model)
    except errors.InputError as e:
      raise refusals.of_solution(e, item.where) from e
    out.append(model.prepare(solution, item.where, client))
  return out


def _check_number(items: Any, limits: limits_lib.Limits, where: str) -> None:
  most = limits.max_items
  if isinstance(items, list) and len(items) > most:
    raise refusals.too_large(
      f"{len(items)} items; this server takes up to {most} in a request", where
    )


# What is likely if a score is high.
Label = Literal["correct"]
LABEL: Label = "correct"


class _Part(TypedDict):
  """A part of a content.

  Args:
    type: text, input_text or output_text.
    text: The text.
  """

  type: NotRequired[str]
  text: str


class _Message(TypedDict):
  """A message.

  Args:
    role: Who says it.
    content: What is said.
  """

  role: str
  content: (
    str
    | Annotated[list[Annotated[_Part, declarations.OPEN]], declarations.SOME]
  )


Message = Annotated[_Message, declarations.OPEN]
Messages = Annotated[list[Message], declarations.SOME]


def rendered(value: Any, name: str, reader: chat_requests.Reader) -> list[Item]:
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
    turns = (
      reader.read(x, where) if isinstance(x, str) else chat_requests.Turns(*x)
    )
    items.append(Item(where, turns))
  return items


def said(messages: Sequence[Message], where: str, *roles: str) -> list[str]:
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
  return [_text(x["content"]) for x in turns]


def _text(content: str | list[_Part]) -> str:
  """Returns the text of a content."""
  if isinstance(content, str):
    return content
  return "".join(part["text"] for part in content)
