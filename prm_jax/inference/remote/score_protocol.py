"""The request and the reply of `POST /v1/prm/score`: step scores over HTTP.

  POST /v1/prm/score
  {"items": [{"problem": "2 + 2?", "steps": ["2 + 2 = 4.", "Answer 4."]}]}

  {"model": "prm-1.5b", "model_fingerprint": "sha256:...",
   "data": [{"index": 0, "step_scores": [0.98, 0.97], "truncated": false}]}

`data` has one entry for each item, in any order; `index` is the item's number.
An item may have a text, `response`, in place of steps; its entry then has the
places of the steps in the text, `segments`. An entry may say which scores the
model was trained to give, `judged`. Fields that aren't named here may be there,
and aren't read. serving/score_api.py is the server's half.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import reprlib
from typing import Any

from prm_jax import errors
from prm_jax import schema

# After the address up to and including /v1.
ROUTE = "prm/score"

Record = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Entry:
  """The scores of an item.

  Args:
    step_scores: The scores of its steps.
    segments: The places of the steps in its text; None if the server gives
      none.
    judged: Whether the model was trained to give each score; None if the server
      doesn't say.
  """

  step_scores: list[float]
  segments: list[tuple[int, int]] | None = None
  judged: list[bool] | None = None


@dataclasses.dataclass(frozen=True)
class Reply:
  """The scores of a request's items, and which model they are of.

  Args:
    entries: The scores of each item, in the items' order.
    model: The name of the model; None if the server gives none.
    model_fingerprint: A digest of the model; None if the server gives none.
  """

  entries: list[Entry]
  model: str | None
  model_fingerprint: str | None


def item(solution: schema.Solution) -> Record:
  """Returns what is sent of a solution: its problem and its steps.

  Args:
    solution: The solution.
  """
  return dict(problem=solution.problem, steps=list(solution.steps))


def text_item(problem: str, text: str) -> Record:
  """Returns what is sent of a text, which the server cuts into steps.

  Args:
    problem: The problem.
    text: The text.
  """
  return dict(problem=problem, response=text)


def request(items: Sequence[Record], model: str = "") -> Record:
  """Returns the body of a request.

  Args:
    items: The items.
    model: The name of the model at the server; "" leaves it to the server.
  """
  body: Record = dict(items=list(items))
  return dict(model=model, **body) if model else body


def read_reply(record: Record, names: Sequence[str], url: str) -> Reply:
  """Returns the content of a reply.

  The number of a solution's scores and their range aren't looked at: that is
  `score_checks`' work, for all that gives scores.

  Args:
    record: The reply's object.
    names: What errors call each item of the request.
    url: The address, for errors.

  Raises:
    InputError: An item has no entry or several, an entry's scores aren't
      numbers, or the server cut a solution.
  """
  entries = record.get("data")
  if not isinstance(entries, list):
    raise errors.InputError(
      f'{url}: a reply without a list "data"; see that the server has {ROUTE}'
    )
  if len(entries) != len(names):
    raise errors.InputError(
      f'{url}: "data" has {len(entries)} entries for {len(names)} items;'
      " the server must reply with one for each"
    )
  rows: list[Entry | None] = [None] * len(names)
  for entry in entries:
    index = entry.get("index") if isinstance(entry, dict) else None
    missing = [i for i, row in enumerate(rows) if row is None]
    if type(index) is not int or index not in missing:
      raise errors.InputError(
        f'{url}: an entry of "data" has index {reprlib.repr(index)}; expected'
        f" each of 0 to {len(rows) - 1} once"
      )
    rows[index] = _entry(entry, names[index], url)
  return Reply(
    [row for row in rows if row is not None],
    _text(record, "model"),
    _text(record, "model_fingerprint"),
  )


def _entry(record: Record, name: str, url: str) -> Entry:
  """Returns an entry; refuses that of a text that was cut."""
  scores = record.get("step_scores")
  if not isinstance(scores, list) or not all(map(_is_number, scores)):
    raise errors.InputError(
      f'{url}: {name}: "step_scores" is {reprlib.repr(scores)}; expected a list'
      " of numbers"
    )
  if record.get("truncated"):
    raise errors.InputError(
      f"{url}: {name}: the server cut it, so its scores aren't those of the"
      " whole; start the server with a longer limit"
    )
  segments, judged = record.get("segments"), record.get("judged")
  if segments is not None:
    _check_each(segments, scores, "segments", _is_segment, name, url)
    segments = [(start, end) for start, end in segments]
  if judged is not None:
    _check_each(
      judged, scores, "judged", lambda x: isinstance(x, bool), name, url
    )
  return Entry(scores, segments, judged)


def _check_each(
  values: Any,
  scores: list[float],
  field: str,
  is_right: Callable[[Any], bool],
  name: str,
  url: str,
) -> None:
  """Refuses a field that isn't a list with a right value for each score."""
  is_list = isinstance(values, list) and len(values) == len(scores)
  if not is_list or not all(map(is_right, values)):
    raise errors.InputError(
      f'{url}: {name}: "{field}" is {reprlib.repr(values)}; expected a list with'
      " one for each score"
    )


def _is_segment(value: Any) -> bool:
  return (
    isinstance(value, list)
    and len(value) == 2
    and all(type(x) is int for x in value)
    and 0 <= value[0] <= value[1]
  )


def _is_number(value: Any) -> bool:
  return isinstance(value, int | float) and not isinstance(value, bool)


def _text(record: Record, name: str) -> str | None:
  value = record.get(name)
  return value if isinstance(value, str) else None
