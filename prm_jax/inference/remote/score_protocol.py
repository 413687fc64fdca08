"""The request and the reply of `POST /v1/prm/score`: step scores over HTTP.

  POST /v1/prm/score
  {"items": [{"problem": "2 + 2?", "steps": ["2 + 2 = 4.", "Answer 4."]}]}

  {"model": "prm-1.5b", "model_fingerprint": "sha256:...",
   "data": [{"index": 0, "step_scores": [0.98, 0.97], "truncated": false}]}

`data` has one entry for each item, in any order; `index` is the item's number.
Fields that aren't named here may be there, and aren't read.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import reprlib
from typing import Any

from prm_jax import errors
from prm_jax import schema

# After the address up to and including /v1.
ROUTE = "prm/score"

Record = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Reply:
  """The scores of a request's items, and which model they are of.

  Args:
    step_scores: The scores of each item's steps, in the items' order.
    model: The name of the model; None if the server gives none.
    model_fingerprint: A digest of the model; None if the server gives none.
  """

  step_scores: list[list[float]]
  model: str | None
  model_fingerprint: str | None


def request(solutions: Sequence[schema.Solution], model: str = "") -> Record:
  """Returns the body of a request for the scores of solutions' steps.

  Args:
    solutions: The solutions.
    model: The name of the model at the server; "" leaves it to the server.
  """
  items = [dict(problem=s.problem, steps=list(s.steps)) for s in solutions]
  return dict(model=model, items=items) if model else dict(items=items)


def read_reply(
  record: Record, solutions: Sequence[schema.Solution], url: str
) -> Reply:
  """Returns the content of a reply.

  The number of a solution's scores and their range aren't looked at: that is
  `score_checks`' work, for all that gives scores.

  Args:
    record: The reply's object.
    solutions: The solutions of the request.
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
  if len(entries) != len(solutions):
    raise errors.InputError(
      f'{url}: "data" has {len(entries)} entries for {len(solutions)} items;'
      " the server must reply with one for each"
    )
  rows: list[list[float] | None] = [None] * len(solutions)
  for entry in entries:
    index = entry.get("index") if isinstance(entry, dict) else None
    missing = [i for i, row in enumerate(rows) if row is None]
    if type(index) is not int or index not in missing:
      raise errors.InputError(
        f'{url}: an entry of "data" has index {reprlib.repr(index)}; expected'
        f" each of 0 to {len(rows) - 1} once"
      )
    rows[index] = _scores(entry, solutions[index], url)
  return Reply(
    [row for row in rows if row is not None],
    _text(record, "model"),
    _text(record, "model_fingerprint"),
  )


def _scores(entry: Record, solution: schema.Solution, url: str) -> list[float]:
  """Returns an entry's scores; refuses those of a text that was cut."""
  scores = entry.get("step_scores")
  if not isinstance(scores, list) or not all(map(_is_number, scores)):
    raise errors.InputError(
      f'{url}: solution {solution.id!r}: "step_scores" is'
      f" {reprlib.repr(scores)}; expected a list of numbers"
    )
  if entry.get("truncated"):
    raise errors.InputError(
      f"{url}: solution {solution.id!r}: the server cut it, so its scores"
      " aren't those of the whole; start the server with a longer limit"
    )
  return scores


def _is_number(value: Any) -> bool:
  return isinstance(value, int | float) and not isinstance(value, bool)


def _text(record: Record, name: str) -> str | None:
  value = record.get(name)
  return value if isinstance(value, str) else None
