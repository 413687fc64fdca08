"""What a check is and finds, and the JSON file that keeps it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import hashlib
import math
import pathlib
from typing import Any, NamedTuple

from prm_jax import errors
from prm_jax.runtime import checks
from prm_jax.runtime import files
from prm_jax.runtime import json_text
from prm_jax.runtime import limits

FORMAT = 1
MODES = ("quick", "standard", "full")
STATUSES = ("pass", "fail", "not run")
_NUMBER = (int, float, type(None))


class NotRun(Exception):
  """Raised by a check that this machine can't do; the text says why."""


@dataclasses.dataclass(frozen=True)
class Setting:
  """What the checks of a run depend on.

  Attributes:
    mode: quick (small shapes, few cases), standard or full (all cases).
    platform: cpu, gpu or tpu.
    device_kind: the device's own name, as "NVIDIA H200".
    num_devices: how many devices jax finds.
    memory: bytes that a program can have on a device; None if unknown.
    known: numbers of the results so far, by name.
  """

  mode: str
  platform: str
  device_kind: str
  num_devices: int
  memory: int | None = None
  known: Mapping[str, float] = dataclasses.field(default_factory=dict)

  @property
  def small(self) -> bool:
    """Whether shapes are small: in quick mode, and always on a CPU."""
    return self.mode == "quick" or self.platform == "cpu"


@dataclasses.dataclass(frozen=True)
class Measured:
  """What a check returns.

  Attributes:
    number: what was measured, in `unit`.
    limit: the most that passes, or with `at_least` the least; None if the
      number is only reported.
    note: one line for a person.
    details: more, for programs: JSON data.
  """

  number: float
  unit: str = ""
  limit: float | None = None
  at_least: bool = False
  note: str = ""
  details: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def passed(self) -> bool:
    """Whether the number keeps the limit; one that isn't finite never does."""
    if not math.isfinite(self.number):
      return False
    if self.limit is None:
      return True
    if self.at_least:
      return self.number >= self.limit
    return self.number <= self.limit


class Check(NamedTuple):
  """One line of the report.

  Attributes:
    name: dotted; the first part is its group.
    run: measures; with `more` it returns what it measured by name.
    required: the verdict depends on it.
    stage: checks of one stage share a process; see suite.stages.
    more: names of further results that the same run gives.
    limit_s: after so many seconds it is taken to hang.
    needs_s: it doesn't begin with less time left.
    lane: checks of one lane run one after another, since they share programs
      or state; those of different lanes run side by side. Empty: it runs alone,
      since it measures a speed or uses several devices.
  """

  name: str
  run: Callable[[Setting], Measured | Mapping[str, Measured]]
  required: bool = True
  stage: str = "right"
  more: tuple[str, ...] = ()
  limit_s: float = 300.0
  needs_s: float = 0.0
  lane: str = ""

  @property
  def names(self) -> tuple[str, ...]:
    """Names of all its results."""
    return (self.name, *self.more)


@dataclasses.dataclass(frozen=True)
class Result:
  """What became of a check; fields as in Measured.

  Attributes:
    status: one of STATUSES.
    seconds: how long it took, compilation included.
    reached: False if it never began, or its process was ended or died: a later
      call tries it again.
  """

  name: str
  status: str
  required: bool
  number: float | None = None
  unit: str = ""
  limit: float | None = None
  at_least: bool = False
  seconds: float = 0.0
  note: str = ""
  details: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  reached: bool = True

  def __post_init__(self):
    numbers = (self.number, self.limit, self.seconds)
    right = isinstance(self.name, str) and self.status in STATUSES
    if not right or not all(isinstance(x, _NUMBER) for x in numbers):
      raise TypeError(f"not a result: {self.name!r}")

  def line(self, width: int = 0) -> str:
    """Returns the result as one line; names are padded to the width."""
    number = "-" if self.number is None else f"{self.number:.3g}"
    limit = "-"
    if self.limit is not None:
      limit = f"{'>=' if self.at_least else '<='} {self.limit:.3g}"
    columns = (
      f"{self.name:<{width}}",
      f"{self.status:<7}",
      f"{f'{number} {self.unit}'.strip():<18}",
      f"{limit:<11}",
      f"{self.seconds:6.1f} s",
    )
    note = " ".join(self.note.split())
    return "  ".join((*columns, note)).rstrip()


def is_asked(name: str, only: Sequence[str]) -> bool:
  """Whether a check is to run.

  Args:
    name: of the check.
    only: names of checks, or their first parts: "attention"; empty: all.
  """
  return not only or any(
    name == wanted or name.startswith(f"{wanted}.") for wanted in only
  )


def of(name: str, required: bool, measured: Measured) -> Result:
  """Returns the result of a check that ran to its end."""
  status = "pass" if measured.passed else "fail"
  fields: dict[str, Any] = dict(vars(measured))
  if not math.isfinite(measured.number):
    fields["number"] = None
    fields["note"] = f"measured {measured.number}; {measured.note}".rstrip("; ")
  return Result(name, status, required, **fields)


class Planned(NamedTuple):
  """A result that there is to be; fields as in Check."""

  name: str
  stage: str
  required: bool


@dataclasses.dataclass
class Record:
  """What the file holds.

  Attributes:
    mode: as in Setting.
    code: digest of the package's source; see `code`.
    about: command, versions, revision.
    machine: what the first worker found; empty before.
    planned: of each result its name, its stage and whether it is required.
    results: in the order in which they ended, each name once.
    verdict: see verdict.of; None before the end.
  """

  mode: str
  code: str
  about: dict[str, Any]
  machine: dict[str, Any] = dataclasses.field(default_factory=dict)
  planned: list[Planned] = dataclasses.field(default_factory=list)
  results: list[Result] = dataclasses.field(default_factory=list)
  verdict: dict[str, Any] | None = None

  def add(self, result: Result) -> None:
    """Puts a result in the place of the check's earlier one, if any."""
    others = [r for r in self.results if r.name != result.name]
    self.results = [*others, result]

  @property
  def done(self) -> set[str]:
    """Names of the results that needn't be measured again."""
    return {r.name for r in self.results if r.status != "not run" and r.reached}

  @property
  def known(self) -> dict[str, float]:
    """Numbers by name."""
    return {r.name: r.number for r in self.results if r.number is not None}

  def write(self, path: pathlib.Path) -> None:
    """Writes the file whole, or leaves the old one."""
    files.write_json(path, dict(format=FORMAT) | dataclasses.asdict(self))


def code() -> str:
  """Returns a digest of the package's source: of other code, other results."""
  root = pathlib.Path(__file__).parents[1]
  digest = hashlib.sha256()
  for path in sorted(root.rglob("*.py")):
    digest.update(str(path.relative_to(root)).encode())
    digest.update(path.read_bytes())
  return digest.hexdigest()[:16]


def _result(fields: dict[str, Any]) -> Result:
  """Returns a saved result; raises TypeError if it isn't one."""
  try:
    checks.check_types(Result, fields)
  except errors.InputError as e:
    raise TypeError(str(e)) from None
  return Result(**fields)


def read(path: pathlib.Path) -> Record:
  """Returns what a file holds.

  Raises:
    InputError: it can't be read, or isn't such a file.
  """
  try:
    record = json_text.parse(files.read_text(path, limits.JSON_BYTES))
    if record.pop("format") != FORMAT:
      raise errors.InputError(f"{path}: of another format; update prm_jax")
    results = [_result(r) for r in record.pop("results")]
    planned = [Planned(*x) for x in record.pop("planned")]
    return Record(**record, results=results, planned=planned)
  except errors.InputError:
    raise
  except (ValueError, KeyError, TypeError, AttributeError):
    raise errors.InputError(
      f"{path}: isn't a result of check-device; give another name, or remove it"
    ) from None
