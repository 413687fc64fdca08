"""Our own JSON Lines form, as `schema` defines it: nothing is lost.

The reader adds the group where the file has none and insists on unique ids,
because scores are matched to solutions by id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
import dataclasses
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
    fields.claim(seen, solution.id, where)
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


def _take(record: dict, where: str, name: str, *kinds: type, default=...):
  """Pops a field; `default` also stands for null. Raises errors.InputError."""
  form = " or ".join(kind.__name__ for kind in kinds)
  if name not in record and default is ...:
    raise errors.InputError(f'{where}: missing field "{name}" ({form})')
  value = record.pop(name, None)
  if value is None and default is not ...:
    return default
  # True and False are of type int too.
  is_bool = isinstance(value, bool)
  if not isinstance(value, kinds) or (is_bool and bool not in kinds):
    raise errors.InputError(
      f'{where}: field "{name}" must be {form}, found {_kind(value)}'
    )
  return value


def _kind(value: Any) -> str:
  return "null" if value is None else type(value).__name__


def _judgements(record, where, name, steps, kind, valid, form):
  """Returns a tuple of one `kind` of number or None per step, or None."""
  values = _take(record, where, name, list, default=None)
  if values is None:
    return None
  if len(values) != len(steps):
    raise errors.InputError(
      f'{where}: "{name}" has {len(values)} entries for {len(steps)} steps;'
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
  record = dict(record)
  steps = _take(record, where, "steps", list)
  for i, step in enumerate(steps):
    if not isinstance(step, str):
      raise errors.InputError(
        f'{where}: "steps"[{i}] must be str, found {_kind(step)}'
      )
  return schema.Solution(
    id=str(_take(record, where, "id", str, int)),
    problem=_take(record, where, "problem", str),
    steps=tuple(steps),
    labels=_judgements(
      record,
      where,
      "labels",
      steps,
      float,
      lambda x: 0 <= x <= 1,
      "P(correct so far) in [0, 1]",
    ),
    ratings=_judgements(
      record, where, "ratings", steps, int, (-1, 0, 1).__contains__, "-1, 0, 1"
    ),
    answer=_take(record, where, "answer", str, default=None),
    outcome=_take(record, where, "outcome", bool, default=None),
    source=_take(record, where, "source", str, default=""),
    extra=record,
  )


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
  return record | dict(solution.extra)


def problem_from_record(
  record: Mapping[str, Any], where: str
) -> schema.Problem:
  """Returns the problem in a record {"id", "problem", "answer"?, ...}."""
  record = dict(record)
  return schema.Problem(
    id=str(_take(record, where, "id", str, int)),
    problem=_take(record, where, "problem", str),
    answer=_take(record, where, "answer", str, default=None),
    extra=record,
  )


def record_from_problem(problem: schema.Problem) -> dict[str, Any]:
  """Returns the JSON form of a problem; the inverse of the above."""
  return dict(
    id=problem.id, problem=problem.problem, answer=problem.answer
  ) | dict(problem.extra)


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
  return files.write_records(path, map(record_from_problem, problems))
