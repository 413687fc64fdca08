"""The nouns of the host: problems, solutions, and their JSON Lines files.

Every stage speaks `Solution`: people, Monte-Carlo rollouts, a judge and the
published datasets all end as the same steps with the same kind of label,
P(correct so far) in [0, 1].
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import errno
import gzip
import io
import json
import os
import pathlib
import reprlib
from typing import Any, IO
import zlib

PathLike = str | os.PathLike[str]


class InputError(ValueError):
  """The user's input can't be used: one line says what, where and the mend.

  exit_code: what a command ends with; docs/faults.md has all codes.
  """

  exit_code = 1


class BusyError(InputError):
  """Another process is at it."""


class DamagedError(InputError):
  """A checkpoint isn't what was saved, and there is no whole one to use."""

  exit_code = 3


class DiskFullError(InputError):
  """What was to be written didn't fit; what was there before is whole."""

  exit_code = 4


class NotFiniteError(InputError):
  """Too many updates in a row were skipped; saves are whole."""

  exit_code = 5


@dataclasses.dataclass(frozen=True)
class Problem:
  """A question with, where known, its reference answer."""

  id: str
  problem: str
  answer: str | None = None
  extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    _check_extra(self)


@dataclasses.dataclass(frozen=True)
class Solution:
  """A problem's worked steps and what is known about them.

  labels: P(correct so far) of every step, None where nobody judged it.
  ratings: PRM800K's -1/0/+1 of every step, None where nobody rated it; a
    label policy turns them into labels (data.encoding.LabelPolicy), and the
    labels above are not read.
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
    _check_extra(self)


def _check_extra(noun: Problem | Solution) -> None:
  """Refuses further fields that would hide our own when they are written."""
  clash = (vars(noun).keys() & noun.extra.keys()) - {"extra"}
  if clash:
    raise InputError(
      f"{type(noun).__name__.lower()} {noun.id!r}: extra holds"
      f" {', '.join(sorted(clash))}, a field of its own; give it another name"
    )


# Unfinished solutions (no step yet, or some), n -> n whole ones of each: the
# given steps and the continuation. A completion depends on the prefix's id and
# text and on its own index: who wants others asks under another id.
Generate = Callable[[Sequence[Solution], int], list[list[Solution]]]
# What a completion's extra says of its new tokens; log-probabilities in nats.
STATISTICS = (
  *("ended", "stopped", "num_tokens"),
  *("log_prob_mean", "log_prob_min"),
)
# Unfinished solutions and texts that may follow their last step, within it ->
# log-probabilities in nats, one row per solution, one column per text.
Weigh = Callable[[Sequence[Solution], Sequence[str]], list[list[float]]]
# Where a solution's extra holds the right answer to its problem.
REFERENCE = "reference_answer"
# Does a whole solution end in the right answer; None where that can't be told
# (no reference, a grader that was killed).
Verify = Callable[[Sequence[Solution]], list[bool | None]]
# P(correct so far), one float per step of each solution.
Score = Callable[[Sequence[Solution]], list[list[float]]]


def first_error(labels: Sequence[float | None], threshold: float = 0.5) -> int:
  """Returns the 0-based index of the first label below threshold, or -1."""
  for i, label in enumerate(labels):
    if label is not None and label < threshold:
      return i
  return -1


# --- JSON Lines -------------------------------------------------------------


_BROKEN_GZIP = (gzip.BadGzipFile, zlib.error, EOFError)


@contextlib.contextmanager
def open_text(path: PathLike, *, errors: str = "strict") -> Iterator[IO[str]]:
  """Opens a text file, gunzipping `*.gz`; every failure names the file."""
  opener = gzip.open if str(path).endswith(".gz") else open
  try:
    with opener(path, "rt", encoding="utf-8", errors=errors) as f:
      yield f
  except FileNotFoundError:
    raise InputError(f"{path}: no such file; check the path") from None
  except _BROKEN_GZIP as e:
    raise InputError(f"{path}: broken gzip: {e}; copy it again") from None
  except OSError as e:
    raise InputError(f"{path}: can't be read: {e.strerror or e}") from None
  except UnicodeDecodeError:
    raise InputError(f"{path}: not UTF-8; convert it to UTF-8") from None


def read_text(path: PathLike) -> str:
  """Returns a file's text; a byte that isn't UTF-8 is named by its line."""
  # surrogateescape lets bad bytes through, so that they can be counted up to.
  with open_text(path, errors="surrogateescape") as f:
    text = f.read()
  try:
    text.encode()
  except UnicodeEncodeError as e:
    line = text.count("\n", 0, e.start) + 1
    column = e.start - text.rfind("\n", 0, e.start)
    raise InputError(
      f"{path}:{line}: not UTF-8 at column {column}; convert the file to UTF-8"
    ) from None
  return text


def read_json(path: PathLike) -> dict[str, Any]:
  """Returns the object in a JSON file; raises InputError."""
  try:
    record = json.loads(read_text(path))
  except json.JSONDecodeError as e:
    raise InputError(
      f"{path}:{e.lineno}: not JSON: {e.msg} at column {e.colno}; copy the file"
      " again"
    ) from None
  except RecursionError:
    raise InputError(f"{path}: nested too deeply; copy it again") from None
  if not isinstance(record, dict):
    raise InputError(
      f"{path}: expected a JSON object, found {type(record).__name__}"
    )
  return record


def read_records(path: PathLike) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields ("FILE:LINE", record) for each line that isn't blank."""
  # surrogateescape lets bad bytes through, so that their own line is named.
  with open_text(path, errors="surrogateescape") as f:
    number = 0
    try:
      for number, line in enumerate(f, 1):
        if line.strip():
          where = f"{path}:{number}"
          yield where, _parse(line, where)
    except _BROKEN_GZIP as e:
      raise InputError(
        f"{path}:{number + 1}: broken gzip: {e}; copy the file again"
      ) from None


def _no_constant(name: str) -> None:
  # Python reads and writes these; JSON and other readers don't have them.
  raise ValueError(f"{name} is no number of JSON; write null")


def _names_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  # Python keeps the last of them, other readers the first.
  record = dict(pairs)
  if len(record) < len(pairs):
    ((twice, _),) = collections.Counter(x for x, _ in pairs).most_common(1)
    raise InputError(f'"{twice}" stands twice in an object; keep one of them')
  return record


def _parse(line: str, where: str) -> dict[str, Any]:
  """Returns the JSON object in a line; raises InputError."""
  try:
    line.encode()
  except UnicodeEncodeError as e:
    raise InputError(
      f"{where}: not UTF-8 at column {e.start + 1}; convert the file to UTF-8"
    ) from None
  try:
    # Some editors put a byte order mark at the start of a file.
    text = line.rstrip().removeprefix("\ufeff")
    record = json.loads(
      text, parse_constant=_no_constant, object_pairs_hook=_names_once
    )
    if "\\ud" in line or "\\uD" in line:
      # The escape of half a surrogate pair: no file could hold it unescaped.
      json.dumps(record, ensure_ascii=False).encode()
  except InputError as e:
    raise InputError(f"{where}: {e}") from None
  except json.JSONDecodeError as e:
    raise InputError(
      f"{where}: not JSON: {e.msg} at column {e.colno};"
      " write one JSON object per line"
    ) from None
  except UnicodeEncodeError:
    raise InputError(f"{where}: {_LONE_SURROGATE}") from None
  except ValueError as e:
    # An integer of more than 4,300 digits gets here too.
    reason = str(e).partition("; use sys.")[0]
    raise InputError(f"{where}: not JSON: {reason}") from None
  except RecursionError:
    raise InputError(f"{where}: nested too deeply; flatten it") from None
  if not isinstance(record, dict):
    raise InputError(
      f"{where}: expected a JSON object, found {type(record).__name__}"
    )
  return record


_LONE_SURROGATE = (
  "a lone surrogate, half of a character, has no UTF-8 form;"
  " replace it by \\ufffd"
)


def local_path(text: str) -> pathlib.Path:
  """Returns a path on this machine; refuses gs://bucket and the like.

  As a path that would be a local folder named after the scheme.
  """
  if "://" in text:
    raise InputError(
      f"{text}: remote paths aren't supported yet; give a local one"
    )
  return pathlib.Path(text)


@contextlib.contextmanager
def replacing(path: PathLike, mode: str = "w") -> Iterator[IO[Any]]:
  """Opens a temporary file that becomes `path` only if the block succeeds.

  mode: w is UTF-8 text, gzipped if the path ends in .gz; wb is bytes as they
    are.
  """
  # A link stays a link, to the new file.
  target = pathlib.Path(os.path.realpath(path))
  # Hosts that share a disk may have equal process numbers, as in containers.
  mine = f"{os.uname().nodename}.{os.getpid()}"
  temporary = target.with_name(f".{target.name}.{mine}.tmp")
  gzipped = mode == "w" and target.suffix == ".gz"
  encoding = "utf-8" if mode == "w" and not gzipped else None
  try:
    if target.exists() and not target.is_file():
      raise InputError(f"{path}: not a regular file; give another path")
    target.parent.mkdir(parents=True, exist_ok=True)
    f = open(temporary, "wb" if gzipped else mode, encoding=encoding)  # noqa: SIM115
  except (FileExistsError, NotADirectoryError):
    raise InputError(
      f"{path}: can't be written: a folder on its path is a file"
    ) from None
  except OSError as e:
    raise unwritable(path, e) from None
  try:
    with f:
      if gzipped:
        with _gzipped(f) as text:
          yield text
      else:
        yield f
      f.flush()
      os.fsync(f.fileno())
    os.replace(temporary, target)
  except BaseException as e:
    temporary.unlink(missing_ok=True)
    if isinstance(e, OSError) and e.errno in _FULL:
      raise unwritable(path, e) from None
    raise


_FULL = (errno.ENOSPC, errno.EDQUOT)


def unwritable(path: PathLike, error: OSError, mend: str = "") -> InputError:
  """Returns the error to raise where a file can't be written.

  A full disk has an exit code of its own. mend: what is safe, and what to do.
  """
  kind = DiskFullError if error.errno in _FULL else InputError
  return kind(
    f"{path}: can't be written: {error.strerror}{'; ' * bool(mend)}{mend}"
  )


@contextlib.contextmanager
def _gzipped(raw: IO[bytes]) -> Iterator[IO[str]]:
  # No name and no time in its header: equal content makes equal bytes.
  with (
    gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
    io.TextIOWrapper(packed, encoding="utf-8") as text,
  ):
    yield text


def dump_json(value: Any, where: str, indent: int | None = None) -> str:
  """Returns the JSON of a value and a line break; raises InputError.

  where: names the value in the error.
  """
  try:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    text.encode()
  except UnicodeEncodeError:
    raise InputError(f"{where}: {_LONE_SURROGATE}") from None
  except ValueError as e:
    raise InputError(
      f"{where}: can't be written as JSON: {e}; write null instead"
    ) from None
  return text + "\n"


def write_records(path: PathLike, records: Iterable[Mapping[str, Any]]) -> int:
  """Writes one JSON object per line, all or nothing; returns their number.

  Raises:
    InputError: a number isn't finite, or a text holds half a character.
  """
  count = 0
  with replacing(path) as f:
    for count, record in enumerate(records, 1):
      f.write(dump_json(record, f"{path}:{count}"))
  return count


def differences(a: Any, b: Any, prefix: str = "") -> set[str]:
  """Returns the names, as "model.remat", of what isn't the same in JSON data."""
  if isinstance(a, Mapping) and isinstance(b, Mapping):
    found: set[str] = set()
    for key in {*a, *b}:
      where = f"{prefix}.{key}" if prefix else str(key)
      found |= differences(a.get(key), b.get(key), where)
    return found
  return set() if a == b else {prefix}


def write_json(path: PathLike, value: Any) -> None:
  """Writes one indented JSON document, all or nothing."""
  with replacing(path) as f:
    f.write(dump_json(value, str(path), indent=2))


# --- Records and dataclasses ------------------------------------------------


def _take(record: dict, where: str, name: str, *kinds: type, default=...):
  """Pops a field; `default` also stands for null. Raises InputError."""
  form = " or ".join(kind.__name__ for kind in kinds)
  if name not in record and default is ...:
    raise InputError(f'{where}: missing field "{name}" ({form})')
  value = record.pop(name, None)
  if value is None and default is not ...:
    return default
  # True and False are of type int too.
  is_bool = isinstance(value, bool)
  if not isinstance(value, kinds) or (is_bool and bool not in kinds):
    raise InputError(
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
    raise InputError(
      f'{where}: "{name}" has {len(values)} entries for {len(steps)} steps;'
      " give one per step, null where unknown"
    )
  for i, value in enumerate(values):
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (is_number and valid(value)):
      raise InputError(
        f'{where}: "{name}"[{i}] is {reprlib.repr(value)};'
        f" expected {form} or null"
      )
  return tuple(None if value is None else kind(value) for value in values)


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
        f'{where}: "steps"[{i}] must be str, found {_kind(step)}'
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


def record_from_solution(solution: Solution) -> dict[str, Any]:
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
  """Writes a JSON Lines file, all or nothing; returns the number of lines."""
  return write_records(path, map(record_from_solution, solutions))


def write_problems(path: PathLike, problems: Iterable[Problem]) -> int:
  """Writes a JSON Lines file, all or nothing; returns the number of lines."""
  return write_records(path, map(record_from_problem, problems))
