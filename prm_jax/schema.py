"""The nouns of the host: problems, solutions, and their JSON Lines files.

Every stage speaks `Solution`: people, Monte-Carlo rollouts, a judge and the
published datasets all end as the same steps with the same kind of label,
P(correct so far) in [0, 1].
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import gzip
import json
import math
import os
import pathlib
from typing import IO, Any

PathLike = str | os.PathLike[str]


class InputError(ValueError):
  """The user's input can't be used: one line says what, where and the mend."""


@dataclasses.dataclass(frozen=True)
class Problem:
  """A question with, where known, its reference answer."""

  id: str
  problem: str
  answer: str | None = None
  extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Solution:
  """A problem's worked steps and what is known about them.

  labels: P(correct so far) of every step, None where nobody judged it.
  ratings: PRM800K's -1/0/+1 of every step, None where nobody rated it; a
    label policy turns them into labels (data.encode.LabelPolicy).
  answer: the solution's own final answer. outcome: is that answer right.
  extra: further fields of the record; they pass through to the output.
  """

  id: str
  problem: str
  steps: tuple[str, ...]
  labels: tuple[float | None, ...] | None = None
  answer: str | None = None
  outcome: bool | None = None
  source: str = ""
  ratings: tuple[int | None, ...] | None = None
  extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    for name in ("labels", "ratings"):
      values = getattr(self, name)
      if values is not None and len(values) != len(self.steps):
        raise InputError(
          f"solution {self.id!r}: {len(values)} {name} for"
          f" {len(self.steps)} steps; give one per step, null where unknown"
        )


# Unfinished solutions (no step yet, or some), n -> n whole ones of each: the
# given steps and the continuation. Steps stay apart; no text is ever split.
Generate = Callable[[Sequence[Solution], int], list[list[Solution]]]
# P(correct so far), one float per step of each solution.
Score = Callable[[Sequence[Solution]], list[list[float]]]


def first_error(labels: Sequence[float | None], threshold: float = 0.5) -> int:
  """Returns the 0-based index of the first label below threshold, or -1."""
  for i, label in enumerate(labels):
    if label is not None and label < threshold:
      return i
  return -1


# --- JSON Lines -------------------------------------------------------------


@contextlib.contextmanager
def open_text(path: PathLike) -> Iterator[IO[str]]:
  """Opens a text file, gunzipping `*.gz`; every failure names the file."""
  opener = gzip.open if str(path).endswith(".gz") else open
  try:
    with opener(path, "rt", encoding="utf-8") as f:
      yield f
  except FileNotFoundError:
    raise InputError(f"{path}: no such file; check the path") from None
  except (OSError, EOFError) as e:
    reason = getattr(e, "strerror", None) or e
    raise InputError(f"{path}: can't be read: {reason}") from None
  except UnicodeDecodeError as e:
    raise InputError(
      f"{path}: not UTF-8 at byte {e.start}; convert the file to UTF-8"
    ) from None


def read_records(path: PathLike) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields ("FILE:LINE", record) for each line that isn't blank."""
  with open_text(path) as f:
    for number, line in enumerate(f, 1):
      if not line.strip():
        continue
      where = f"{path}:{number}"
      try:
        record = json.loads(line)
      except json.JSONDecodeError as e:
        raise InputError(
          f"{where}: not JSON: {e.msg} at column {e.colno};"
          " write one JSON object per line"
        ) from None
      except RecursionError:
        raise InputError(f"{where}: nested too deeply; flatten it") from None
      if not isinstance(record, dict):
        raise InputError(
          f"{where}: expected a JSON object, found {type(record).__name__}"
        )
      yield where, record


@contextlib.contextmanager
def replacing(path: PathLike, mode: str = "w") -> Iterator[IO[Any]]:
  """Opens a temporary file that becomes `path` only if the block succeeds."""
  path = pathlib.Path(path)
  temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
  encoding = None if "b" in mode else "utf-8"
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    f = open(temporary, mode, encoding=encoding)
  except OSError as e:
    raise InputError(f"{path}: can't be written: {e.strerror}") from None
  try:
    with f:
      yield f
      f.flush()
      os.fsync(f.fileno())
    os.replace(temporary, path)
  except BaseException:
    temporary.unlink(missing_ok=True)
    raise


def write_records(path: PathLike, records: Iterable[Mapping[str, Any]]) -> int:
  """Writes one JSON object per line, all or nothing; returns their number."""
  count = 0
  with replacing(path) as f:
    for record in records:
      line = json.dumps(record, ensure_ascii=False, allow_nan=False)
      f.write(line + "\n")
      count += 1
  return count


def write_json(path: PathLike, value: Any) -> None:
  """Writes one indented JSON document, all or nothing."""
  with replacing(path) as f:
    json.dump(value, f, ensure_ascii=False, allow_nan=False, indent=2)
    f.write("\n")


# --- Records and dataclasses ------------------------------------------------


def _take(record: dict, where: str, name: str, *kinds: type, default=...):
  """Pops a field; `default` also stands for null. Raises InputError."""
  form = " or ".join(kind.__name__ for kind in kinds)
  if name not in record and default is ...:
    raise InputError(f'{where}: missing field "{name}" ({form})')
  value = record.pop(name, None)
  if value is None and default is not ...:
    return default
  if not isinstance(value, kinds):
    raise InputError(
      f'{where}: field "{name}" must be {form}, found {type(value).__name__}'
    )
  return value


def _judgements(record, where, name, steps, valid, form):
  """Returns a tuple of one number or None per step, or None."""
  values = _take(record, where, name, list, default=None)
  if values is None:
    return None
  if len(values) != len(steps):
    raise InputError(
      f'{where}: "{name}" has {len(values)} entries for {len(steps)} steps;'
      " give one per step, null where unknown"
    )
  for i, value in enumerate(values):
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (is_number and valid(value)):
      raise InputError(
        f'{where}: "{name}"[{i}] is {value!r}; expected {form} or null'
      )
  return tuple(values)


def solution_from_record(record: Mapping[str, Any], where: str) -> Solution:
  """Returns the solution in a record of our JSON Lines form.

  Raises:
    InputError: a field is missing, of the wrong type or out of range.
  """
  record = dict(record)
  steps = _take(record, where, "steps", list)
  for i, step in enumerate(steps):
    if not isinstance(step, str):
      raise InputError(
        f'{where}: "steps"[{i}] must be str, found {type(step).__name__}'
      )
  return Solution(
    id=str(_take(record, where, "id", str, int)),
    problem=_take(record, where, "problem", str),
    steps=tuple(steps),
    labels=_judgements(
      record,
      where,
      "labels",
      steps,
      lambda x: math.isfinite(x) and 0 <= x <= 1,
      "P(correct so far) in [0, 1]",
    ),
    ratings=_judgements(
      record, where, "ratings", steps, lambda x: x in (-1, 0, 1), "-1, 0, 1"
    ),
    answer=_take(record, where, "answer", str, default=None),
    outcome=_take(record, where, "outcome", bool, default=None),
    source=_take(record, where, "source", str, default=""),
    extra=record,
  )


def record_from_solution(solution: Solution) -> dict[str, Any]:
  """Returns the JSON form of a solution; the inverse of the above."""
  record = dict(
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


def problem_from_record(record: Mapping[str, Any], where: str) -> Problem:
  """Returns the problem in a record {"id", "problem", "answer"?, ...}."""
  record = dict(record)
  return Problem(
    id=str(_take(record, where, "id", str, int)),
    problem=_take(record, where, "problem", str),
    answer=_take(record, where, "answer", str, default=None),
    extra=record,
  )


def record_from_problem(problem: Problem) -> dict[str, Any]:
  """Returns the JSON form of a problem; the inverse of the above."""
  return dict(
    id=problem.id, problem=problem.problem, answer=problem.answer
  ) | dict(problem.extra)


def read_solutions(path: PathLike) -> list[Solution]:
  """Reads a JSON Lines file of solutions; raises InputError at a bad line."""
  return [solution_from_record(r, where) for where, r in read_records(path)]


def read_problems(path: PathLike) -> list[Problem]:
  """Reads a JSON Lines file of problems; raises InputError at a bad line."""
  return [problem_from_record(r, where) for where, r in read_records(path)]


def write_solutions(path: PathLike, solutions: Iterable[Solution]) -> int:
  return write_records(path, map(record_from_solution, solutions))


def write_problems(path: PathLike, problems: Iterable[Problem]) -> int:
  return write_records(path, map(record_from_problem, problems))
