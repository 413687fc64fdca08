"""Our own JSON Lines form, as `schema` defines it: nothing is lost.

The reader adds the group where the file has none and insists on unique ids,
because scores are matched to solutions by id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
import dataclasses
import functools
import reprlib
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.data.formats import fields
from prm_jax.runtime import files


def read(path: files.PathLike) -> Iterator[schema.Solution]:
  """Yields the solutions of a file; raises InputError at a bad line."""
  seen: dict[str, str] = {}
  for where, record in files.read_records(path):
    solution = solution_from_record(record, where)
    fields.unique_id(seen, solution.id, where)
    group = fields.group(solution.problem)
    yield dataclasses.replace(
      solution, extra={"group": group, **solution.extra}
    )


def check(solution: schema.Solution) -> None:
  """Raises nothing: the form holds every solution."""
  del solution


def write(path: files.PathLike, solutions: Iterable[schema.Solution]) -> int:
  """Writes all solutions or none; returns their number."""
  return write_solutions(path, solutions)


# --- Records and dataclasses ------------------------------------------------


def _one_per_step(record, where, name, num_steps, kind, valid, form):
  """Returns a tuple of one `kind` of number or None per step, or None."""
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
  """Returns the solution in a record of our JSON Lines form.

  Raises:
    errors.InputError: a field is missing, of the wrong type or out of range.
  """
  steps = fields.texts(record, where, "steps")
  per_step = functools.partial(
    _one_per_step, record, where, num_steps=len(steps)
  )
  return schema.Solution(
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
  )


def _spans(
  record: Mapping[str, Any], where: str
) -> tuple[schema.Span, ...] | None:
  """Returns the places of the steps in raw_text; Solution compares them."""
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
  """Returns the fields of a record that aren't the dataclass's own."""
  own = {field.name for field in dataclasses.fields(noun)} - {"extra"}
  return {name: value for name, value in record.items() if name not in own}


def record_from_solution(solution: schema.Solution) -> dict[str, Any]:
  """Returns the JSON form of a solution; the inverse of the above."""
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
  return record | dict(solution.extra)


def problem_from_record(
  record: Mapping[str, Any], where: str
) -> schema.Problem:
  """Returns the problem in a record {"id", "problem", "answer"?, ...}."""
  return schema.Problem(
    id=str(fields.field(record, where, "id", str, int)),
    problem=fields.field(record, where, "problem", str),
    answer=fields.field(record, where, "answer", str, default=None),
    extra=_others(record, schema.Problem),
  )


def read_solutions(path: files.PathLike) -> list[schema.Solution]:
  """Reads a JSON Lines file of solutions; raises errors.InputError at a bad line."""
  return [
    solution_from_record(r, where) for where, r in files.read_records(path)
  ]


def read_problems(path: files.PathLike) -> list[schema.Problem]:
  """Reads a JSON Lines file of problems; raises errors.InputError at a bad line."""
  return [
    problem_from_record(r, where) for where, r in files.read_records(path)
  ]


def write_solutions(
  path: files.PathLike, solutions: Iterable[schema.Solution]
) -> int:
  """Writes a JSON Lines file, all or nothing; returns the number of lines."""
  return files.write_records(path, map(record_from_solution, solutions))


def write_problems(
  path: files.PathLike, problems: Iterable[schema.Problem]
) -> int:
  """Writes a JSON Lines file, all or nothing; returns the number of lines."""
  records = (
    dict(id=p.id, problem=p.problem, answer=p.answer) | dict(p.extra)
    for p in problems
  )
  return files.write_records(path, records)
