"""Chat records: conversations with tool calls, as OpenAI and Hugging Face do.

One object per line, {"messages", "tools"?}, where messages are those that
text.messages reads. It may also have id, labels or ratings (one for each turn
of the assistant, null where unknown), answer, outcome and source, as our own
format has them. Every other field, of the record, of a message or of a call, is
kept and written back; none changes what is read (OpenAI's weight doesn't).

`messages` and `tools` may be JSON texts, as some data sets have them; they are
written as lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.records import fields
from prm_jax.records import jsonl
from prm_jax.records import record_files
from prm_jax.runtime import files
from prm_jax.text import messages as messages_lib

_PER_TURN = ("labels", "ratings")
_NAMES = (
  *("id", "messages", "tools", *_PER_TURN),
  *("answer", "outcome", "source"),
)
# Where extra has an id that is a number.
_NUMBER = "number"


def read(path: files.PathLike) -> Iterator[schema.Solution]:
  """Yields every conversation; an id is "chat/FILE:N" if the row has none.

  extra: group, and in "fields" whatever else the row holds.
  """
  seen: dict[str, str] = {}
  for where, row in record_files.read_records(path):
    if row.get("functions") not in fields.EMPTY:
      raise errors.InputError(
        f'{where}: field "functions" isn\'t read; write it as tools'
      )
    empty = {k: (None,) if k in _PER_TURN else fields.EMPTY for k in _NAMES}
    given = {k: row[k] for k in _NAMES if row.get(k) not in empty[k]}
    rest = fields.beyond(row, "messages", *given)
    given["messages"] = fields.messages(row, where)
    given["tools"] = fields.from_text(row, where, "tools")
    number = given.get("id")
    name = given.setdefault("id", fields.row_id("chat", path, where))
    if number not in (None, str(name)):
      rest[_NUMBER] = number
    solution = jsonl.trajectory_from_record(given, where, **rest)
    fields.unique_id(seen, solution.id, where)
    yield solution


def check(solution: schema.Solution) -> None:
  """Raises InputError if the form can't hold the solution."""
  _row(solution)


def write(path: files.PathLike, solutions: Iterable[schema.Solution]) -> int:
  """Writes all rows or none; returns their number.

  An id that `read` made isn't written.

  Raises:
    InputError: A solution is no trajectory, or its turns are cut into steps.
  """
  return files.write_records(path, map(_row, solutions))


def _row(solution: schema.Solution) -> dict[str, Any]:
  fields.check_whole_turns(solution, "chat")
  number = solution.extra.get(_NUMBER)
  name = number if str(number) == solution.id else solution.id
  values = (
    None if fields.is_row_id("chat", solution.id) else name,
    [messages_lib.record_of(x) for x in solution.messages or ()],
    [dict(x) for x in solution.tools] or None,
    None if solution.labels is None else list(solution.labels),
    None if solution.ratings is None else list(solution.ratings),
    solution.answer,
    solution.outcome,
    solution.source or None,
  )
  row = fields.given(**dict(zip(_NAMES, values, strict=True)))
  return fields.rejoin(solution, row)
