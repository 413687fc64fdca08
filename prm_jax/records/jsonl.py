"""Our own JSON Lines format, which holds every field of a Solution.

A trajectory's record has `messages` and `tools`, as text.messages reads them;
its problem and steps follow from these, and may be left out.

`read` adds a group to each solution without one and refuses ids that come
twice, because scores are matched to solutions by id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
import functools
import re
import reprlib
from typing import Any, TypeVar

from prm_jax import errors
from prm_jax import schema
from prm_jax.records import fields
from prm_jax.records import mapping_guess
from prm_jax.records import record_files
from prm_jax.runtime import arguments
from prm_jax.runtime import checks
from prm_jax.runtime import files
from prm_jax.text import messages as messages_lib
from prm_jax.text import solution_texts

_Noun = TypeVar("_Noun", schema.Problem, schema.Solution)


def read(path: files.PathLike) -> Iterator[schema.Solution]:
  """Yields the solutions of a file.

  Args:
    path: The JSON Lines file; its name may end with .gz.

  Yields:
    Each solution, with extra["group"] set.

  Raises:
    InputError: A line isn't a solution, or an id comes twice.
  """
  seen: dict[str, str] = {}
  for where, record in record_files.read_records(path):
    if not seen:
      _check_form(record, where)
    solution = solution_from_record(record, where)
    fields.unique_id(seen, solution.id, where)
    yield grouped(solution)


def grouped(solution: schema.Solution) -> schema.Solution:
  """Returns a solution with a group, which is its problem's if it has none.

  Args:
    solution: The solution.

  Returns:
    It, with extra["group"].
  """
  group = fields.group(solution.problem)
  return dataclasses.replace(solution, extra={"group": group, **solution.extra})


def _check_form(record: Mapping[str, Any], where: str) -> None:
  """Refuses a file of another form by its first record, and says what may do."""
  missing = [name for name in ("problem", "steps") if name not in record]
  if "messages" in record or not missing:
    return
  found = mapping_guess.guess(record)
  example = "problem=FIELD,steps=FIELD" if found is None else found
  raise errors.InputError(
    f"{where}: no {' and no '.join(missing)}; the record has"
    f" {', '.join(map(repr, record)) or 'no field'}. If the file has another"
    f" format, name it (docs/data.md), or say where its fields are:"
    f" `map='{example}'`" + ("" if found is None else " (a guess)")
  )


def check(solution: schema.Solution) -> None:
  """Accepts every solution, because the format can hold them all.

  Args:
    solution: The solution.
  """
  del solution


def write(path: files.PathLike, solutions: Iterable[schema.Solution]) -> int:
  """Writes solutions to a file: all of them, or none if an error occurs.

  Args:
    path: The file to write.
    solutions: The solutions.

  Returns:
    The number of lines.
  """
  return write_solutions(path, solutions)


# --- Records and dataclasses ------------------------------------------------


def _one_per_step(record, where, name, num_steps, kind, valid, form):
  """Returns one number of type `kind`, or None, for each step; or None."""
  values = fields.field(record, where, name, list, default=None)
  if values is None:
    return None
  if len(values) != num_steps:
    raise errors.InputError(
      f'{where}: "{name}" has {len(values)} entries for {num_steps} steps;'
      " give one per step, null where unknown"
    )
  for i, value in enumerate(values):
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (is_number and valid(value)):
      raise errors.InputError(
        f'{where}: "{name}"[{i}] is {reprlib.repr(value)};'
        f" expected {form} or null"
      )
  return tuple(None if value is None else kind(value) for value in values)


def solution_from_record(
  record: Mapping[str, Any], where: str
) -> schema.Solution:
  """Returns the solution that a record of our format holds.

  Args:
    record: The fields, as JSON has them.
    where: The file and line, for messages.

  Returns:
    The solution; further fields of the record are in `extra`.

  Raises:
    InputError: A field is missing, has the wrong type or is out of range.
  """
  messages, tools = _conversation(record, where)
  if messages is not None:
    turns = [x.shown for x in messages if x.role == "assistant"]
    told = dict(problem=messages_lib.problem_of(messages), steps=turns)
    record = told | dict(record)
  steps = fields.texts(record, where, "steps")
  _check_path_ratings(record, where, len(steps))
  per_step = functools.partial(
    _one_per_step, record, where, num_steps=len(steps)
  )
  values: dict[str, Any] = dict(
    id=str(fields.field(record, where, "id", str, int)),
    problem=fields.field(record, where, "problem", str),
    steps=steps,
    labels=per_step(
      name="labels",
      kind=float,
      valid=lambda x: 0 <= x <= 1,
      form="P(correct so far) in [0, 1]",
    ),
    ratings=per_step(
      name="ratings", kind=int, valid=(-1, 0, 1).__contains__, form="-1, 0, 1"
    ),
    answer=fields.field(record, where, "answer", str, default=None),
    outcome=fields.field(record, where, "outcome", bool, default=None),
    source=fields.field(record, where, "source", str, default=""),
    extra=_others(record, schema.Solution),
    raw_text=fields.field(record, where, "raw_text", str, default=None),
    spans=_spans(record, where),
    messages=messages,
    tools=tools,
  )
  try:
    solution = schema.Solution(**values)
  except errors.InputError as e:
    raise errors.InputError(f"{where}: {e}") from None
  solution_texts.check_sampled(solution, where)
  return solution


def trajectory_from_record(
  record: Mapping[str, Any],
  where: str,
  places: Sequence[str] | None = None,
  **extra: Any,
) -> schema.Solution:
  """Returns the trajectory that a record holds, in the group of its problem.

  Readers of other forms of conversations make such a record of theirs.

  Args:
    record: The fields, as solution_from_record takes them, with messages.
    where: The file and line, for messages.
    places: Where in the file's record each message is, if not in its messages.
    **extra: Further fields of the solution.

  Returns:
    The trajectory.

  Raises:
    InputError: A field is missing, has the wrong type or is out of range.
  """
  fields.field(record, where, "messages", list)
  try:
    solution = solution_from_record(record, where)
  except errors.InputError as e:
    if places is None:
      raise
    told = re.sub(
      r": messages\[(\d+)\]",
      lambda x: f": {places[int(x[1])]}",
      str(e),
      count=1,
    )
    raise errors.InputError(told) from None
  fields.check_one_kind(solution, where)
  extra = dict(group=fields.group(solution.problem), **extra)
  return dataclasses.replace(solution, extra=extra)


def _conversation(
  record: Mapping[str, Any], where: str
) -> tuple[tuple[schema.Message, ...] | None, tuple[Mapping[str, Any], ...]]:
  """Returns a record's messages, None if it is no trajectory, and its tools."""
  records = fields.field(record, where, "messages", list, default=None)
  tools = messages_lib.read_tools(record.get("tools"), where)
  if records is None:
    return None, tools
  return messages_lib.read(records, where), tools


def _check_path_ratings(
  record: Mapping[str, Any], where: str, num_steps: int
) -> None:
  """Refuses ratings of the steps before an alternative that are no ratings."""
  if "path_ratings" not in record:
    return
  ratings = fields.field(record, where, "path_ratings", list)
  faults = _wrong_path_ratings(ratings, num_steps)
  errors.raise_first(faults, f'{where}: "path_ratings"')


def _wrong_path_ratings(ratings: list[Any], num_steps: int) -> Iterator[str]:
  for i, rating in enumerate(ratings):
    whole = rating is None or checks.is_a(rating, int)
    if not whole or rating not in (-1, 0, 1, None):
      yield f"[{i}] is {reprlib.repr(rating)}; expected -1, 0, 1 or null"
  if len(ratings) > num_steps:
    yield (
      f" has {len(ratings)} entries for {num_steps} steps; give one per step"
      " before the rated one"
    )


def _spans(
  record: Mapping[str, Any], where: str
) -> tuple[schema.Span, ...] | None:
  """Returns the places of the steps in raw_text; Solution checks them."""
  spans = fields.field(record, where, "spans", list, default=None)
  if spans is None:
    return None
  for i, span in enumerate(spans):
    if not (
      isinstance(span, list)
      and len(span) == 2
      and all(isinstance(x, int) and not isinstance(x, bool) for x in span)
    ):
      raise errors.InputError(
        f'{where}: "spans"[{i}] is {reprlib.repr(span)}; expected [first'
        " character, the one after the last]"
      )
  return tuple((start, end) for start, end in spans)


def _others(record: Mapping[str, Any], noun: type) -> dict[str, Any]:
  """Returns the fields of a record that aren't fields of the dataclass."""
  own = {field.name for field in dataclasses.fields(noun)} - {"extra"}
  return {name: value for name, value in record.items() if name not in own}


def record_from_solution(solution: schema.Solution) -> dict[str, Any]:
  """Returns the record of a solution, the inverse of solution_from_record.

  Args:
    solution: The solution.

  Returns:
    The fields, as JSON has them.
  """
  record: dict[str, Any] = dict(
    id=solution.id,
    problem=solution.problem,
    steps=list(solution.steps),
    labels=None if solution.labels is None else list(solution.labels),
    answer=solution.answer,
    outcome=solution.outcome,
    source=solution.source,
  )
  if solution.ratings is not None:
    record["ratings"] = list(solution.ratings)
  if solution.raw_text is not None:
    record["raw_text"] = solution.raw_text
  if solution.spans is not None:
    record["spans"] = [list(span) for span in solution.spans]
  if solution.messages is not None:
    record["messages"] = [messages_lib.record_of(x) for x in solution.messages]
  if solution.tools:
    record["tools"] = [dict(x) for x in solution.tools]
  return record | dict(solution.extra)


def problem_from_record(
  record: Mapping[str, Any], where: str
) -> schema.Problem:
  """Returns the problem that a record {"id", "problem", "answer"?, ...} holds.

  Args:
    record: The fields, as JSON has them.
    where: The file and line, for messages.

  Returns:
    The problem; further fields of the record are in `extra`.

  Raises:
    InputError: A field is missing or has the wrong type.
  """
  return schema.Problem(
    id=str(fields.field(record, where, "id", str, int)),
    problem=fields.field(record, where, "problem", str),
    answer=fields.field(record, where, "answer", str, default=None),
    extra=_others(record, schema.Problem),
  )


@arguments.checked
def read_solutions(path: files.PathLike) -> list[schema.Solution]:
  """Returns the solutions of a JSON Lines file.

  Args:
    path: The file; its name may end with .gz.

  Returns:
    The solutions, in the order of the lines.

  Raises:
    InputError: The file can't be read, or a line isn't a solution.
  """
  return _each(path, solution_from_record)


def read_problems(path: files.PathLike) -> list[schema.Problem]:
  """Returns the problems of a JSON Lines file.

  Args:
    path: The file; its name may end with .gz.

  Returns:
    The problems, in the order of the lines.

  Raises:
    InputError: The file can't be read, or a line isn't a problem.
  """
  return _each(path, problem_from_record)


def _each(
  path: files.PathLike, of_record: Callable[[Mapping[str, Any], str], _Noun]
) -> list[_Noun]:
  return [of_record(r, where) for where, r in record_files.read_records(path)]


@arguments.checked
def write_solutions(
  path: files.PathLike, solutions: Iterable[schema.Solution]
) -> int:
  """Writes solutions to a JSON Lines file: all, or none if an error occurs.

  Args:
    path: The file to write; a name that ends with .gz is compressed.
    solutions: The solutions.

  Returns:
    The number of lines.

  Raises:
    InputError: The file can't be written.
  """
  return files.write_records(path, map(record_from_solution, solutions))


def write_problems(
  path: files.PathLike, problems: Iterable[schema.Problem]
) -> int:
  """Writes problems to a JSON Lines file: all, or none if an error occurs.

  Args:
    path: The file to write; a name that ends with .gz is compressed.
    problems: The problems.

  Returns:
    The number of lines.

  Raises:
    InputError: The file can't be written.
  """
  records = (
    dict(id=p.id, problem=p.problem, answer=p.answer) | dict(p.extra)
    for p in problems
  )
  return files.write_records(path, records)
