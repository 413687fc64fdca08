"""What a command is: a frozen dataclass, called with records or run on files.

The command line makes its options of fields (cli/flags.py): a field's name is
the option's, its type says which values there are, and its entry in the
docstring's `Args` is the help. So an option is declared once. A verb is

  @dataclasses.dataclass(frozen=True)
  class Score(verbs.Verb):
    def __call__(self, solutions): ...  # on records in memory
    def run(self, job: ScoreJob) -> None: ...  # on files, as the command does

The fields of the job are options of the command, too. A field may hold another
value, as `policy` holds a `Policy`. The inner fields are options as well; the
first of them is named like the outer field (`--policy`). In Python this first
field may be given alone: `Sample("runs/demo/policy")`. A verb without records,
such as `Serve`, has no job: all its options are its own fields.

What a name and a type don't say of an option is in the field's metadata,
`dataclasses.field(metadata=dict(...))`: is_positional=True (a word without a
flag), flag="from" (a flag of another name), also=("checkpoint",) (further
flags), metavar="NAME=VALUE" (what the help shows for its value), is_option=False
(a field for Python alone), is_required=True (its default is for Python alone),
group="" (of a value: where the help shows its options).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import functools
import inspect
import logging
import math
import numbers
import os
import pathlib
import re
import reprlib
import textwrap
import types
import typing
from typing import Annotated, Any, ClassVar, Literal, TYPE_CHECKING, TypeVar

from prm_jax import errors
from prm_jax.runtime import arguments
from prm_jax.runtime import checks
from prm_jax.runtime import files

if TYPE_CHECKING:
  import ml_collections

Made = TypeVar("Made")
# The metadata of a field that is for Python alone.
NO_OPTION = types.MappingProxyType(dict(is_option=False))
# What `-` is as an output.
STDOUT = pathlib.Path(files.STDOUT)


# --- Kinds of values ------------------------------------------------------------


def whole(text: str, *, most: int = checks.MAX_COUNT) -> int:
  """Returns a whole number that a size or an index of an array can be."""
  try:
    value = int(text)
  except ValueError:
    raise ValueError(f"{text[:40]!r} isn't a whole number") from None
  if abs(value) > most:
    raise ValueError(f"{text[:40]!r} is more than {most}")
  return value


def natural(text: str, *, most: int = checks.MAX_COUNT) -> int:
  """Returns a whole number that isn't negative."""
  value = whole(text, most=most)
  if value < 0:
    raise ValueError(f"{text!r} isn't 0, 1, 2, ...")
  return value


@dataclasses.dataclass(frozen=True)
class Range:
  """The values that a number may have.

  Args:
    holds: Whether it may have a value; false for NaN, too.
    words: The values, in words.
  """

  holds: Callable[[float], bool]
  words: str

  def __call__(self, value: float) -> None:
    """Refuses another value.

    Raises:
      ValueError: It is another one.
    """
    if not self.holds(value):
      raise ValueError(f"expected {self.words}")


@dataclasses.dataclass(frozen=True)
class Endings:
  """The endings that the name of a file may have.

  Args:
    endings: The endings, such as .svg.
  """

  endings: tuple[str, ...]

  def __call__(self, path: pathlib.Path) -> None:
    """Refuses another name.

    Raises:
      ValueError: It is another one.
    """
    if path.suffix not in self.endings:
      raise ValueError(f"its name must end in {' or '.join(self.endings)}")


AT_LEAST_ONE = Range(lambda x: x >= 1, "1 or more")


def seed(text: str) -> int:
  """Returns a seed."""
  return natural(text, most=checks.MAX_SEED)


def step(text: str) -> int | str:
  """Returns the number of an update, or "best"."""
  if text == "best":
    return text
  try:
    return natural(text)
  except ValueError:
    raise ValueError(f"{text[:40]!r} isn't 0, 1, 2, ... or best") from None


def number(text: str) -> float:
  """Returns a finite number."""
  try:
    value = float(text)
  except ValueError:
    value = math.nan
  if not math.isfinite(value):
    raise ValueError(f"{text[:40]!r} isn't a finite number")
  return value


def positive(text: str) -> float:
  """Returns a finite number above 0."""
  value = number(text)
  if value <= 0:
    raise ValueError(f"{text!r} isn't a number above 0")
  return value


def named(text: str) -> str:
  """Returns the text that names a file, a folder, an address or a function."""
  if not text:
    raise ValueError("is empty; give a path")
  if text == "-":
    raise ValueError("-: give a path; this isn't a stream here")
  return text


def local(text: str) -> pathlib.Path:
  """Returns a path on this machine."""
  return files.local_path(named(text))


def output(text: str) -> pathlib.Path:
  """Returns a path on this machine that a command writes."""
  return local(text)


def workdir(text: str) -> pathlib.Path | str:
  """Returns a path on this machine, or the text of one in a bucket."""
  bucket, _, folder = text.removeprefix("gs://").partition("/")
  if not text.startswith("gs://"):
    return local(text)
  if not bucket or not folder.strip("/"):
    raise ValueError(f"{text}: give gs://BUCKET/FOLDER")
  return text.rstrip("/")


def config_file(text: str) -> pathlib.Path:
  """Returns the path of a config file."""
  return local(text)


def readable(text: str) -> str:
  """Returns a file to read; `-` is the standard input."""
  return files.STDIN if text == "-" else named(text)


def writable(text: str) -> pathlib.Path:
  """Returns a file to write; `-` is the standard output."""
  return STDOUT if text in ("-", files.STDOUT) else local(text)


Natural = Annotated[int, natural]
Count = Annotated[int, whole, AT_LEAST_ONE]
Seed = Annotated[int, seed]
Step = Annotated[int | Literal["best"] | None, step]
Positive = Annotated[float, positive]
NotNegative = Annotated[float, number, Range(lambda x: x >= 0, "0 or more")]
Share = Annotated[
  float, number, Range(lambda x: 0 <= x <= 1, "a share in [0, 1]")
]
ShareBelow1 = Annotated[
  float, number, Range(lambda x: 0 <= x < 1, "at least 0 and less than 1")
]
ShareAbove0 = Annotated[
  float, number, Range(lambda x: 0 < x <= 1, "above 0 and at most 1")
]
ShareInside = Annotated[
  float, number, Range(lambda x: 0 < x < 1, "above 0 and less than 1")
]
# What a text names, as it is; a file or folder of this machine; one that is
# written; a picture that is; the folder of a run, which may be in a bucket; what is read, with `-`
# for the standard input; and what is written, with `-` for the standard output.
Named = Annotated[files.PathLike, named]
Local = Annotated[files.PathLike, local]
Output = Annotated[files.PathLike, output]
Plot = Annotated[files.PathLike, output, Endings((".svg", ".png"))]
Workdir = Annotated[files.PathLike, workdir]
Input = Annotated[files.PathLike, readable]
OutputOrStdout = Annotated[files.PathLike, writable]
_PATH = os.PathLike[str]


@typing.runtime_checkable
class ConfigFields(typing.Protocol):
  """What get_config() returns, or a dict of its fields."""

  def items(self) -> Any: ...


# --- Values, and what is known of their fields ----------------------------------


class Value:
  """A dataclass whose fields are options; its border checks them, once.

  Attributes:
    first_is_whole: Whether the first field may be given alone in place of the
      value, and has the outer field's name as an option.
  """

  first_is_whole: ClassVar[bool] = True

  def __getstate__(self) -> dict[str, Any]:
    """Returns the fields alone: what was loaded by them isn't pickled."""
    return {x.name: getattr(self, x.name) for x in dataclasses.fields(self)}  # type: ignore[arg-type]

  def __post_init__(self):
    kind: Any = type(self)
    for field in fields(kind):
      value = getattr(self, field.name)
      made = field.checked(value)
      if made is not value:
        object.__setattr__(self, field.name, made)
    errors.raise_first(self._faults())

  def _faults(self) -> Iterator[str]:
    """Yields what is wrong with the fields together."""
    yield from ()


class Verb(Value):
  """What a command does.

  Attributes:
    compiles: Whether the programs that it compiles are kept on disk.
    is_printed: Whether its result is what it prints, unless it writes an
      output.
    without: Options of the values that it holds which its command hasn't.
  """

  compiles: ClassVar[bool] = False
  is_printed: ClassVar[bool] = False
  without: ClassVar[tuple[str, ...]] = ()

  def __init_subclass__(cls) -> None:
    super().__init_subclass__()
    if run := vars(cls).get("run"):
      cls.run = arguments.checked(run)  # type: ignore[attr-defined]

  @classmethod
  def job(cls, *values: Any, **fields: Any) -> Any:
    """Returns the job that `run` takes: the files of the command.

    Args:
      *values: The job's first fields.
      **fields: Its other fields, which are options of the command.

    Returns:
      The job.
    """
    kind = job_of(cls)
    if kind is None:
      raise errors.InputError(f"{cls.__name__}: runs without a job")
    return kind(*values, **fields)


def made(kind: type[Made], given: Any) -> Made:
  """Returns a value, or the one that its first field stands for.

  Args:
    kind: The class of the value.
    given: The value, or that of its first field.
  """
  make: Any = kind
  return given if isinstance(given, kind) else make(given)


@dataclasses.dataclass(frozen=True)
class Config(Value):
  """A config, of which some fields have other values.

  In Python the file may also be what get_config() returns, or a dict of its
  fields.

  Args:
    file: A config file, a Python file with get_config().
    overrides: The other values, each as FIELD=VALUE; the command line takes them
      as --config.FIELD=VALUE.
  """

  file: Annotated[files.PathLike | ConfigFields, config_file]
  overrides: tuple[str, ...] = dataclasses.field(default=(), metadata=NO_OPTION)

  @property
  def path(self) -> files.PathLike | None:
    """The file; None if the fields were given."""
    return None if isinstance(self.file, ConfigFields) else self.file

  @property
  def name(self) -> str:
    """What messages call it."""
    return "config" if self.path is None else str(self.path)

  def read(self) -> ml_collections.ConfigDict:
    """Returns a copy of the config as it was written."""
    from prm_jax.runtime import config_files

    if isinstance(self.file, ConfigFields):
      return config_files.copied(self.file)
    return config_files.read(self.file)

  def filled(
    self,
    expected: Any = None,
    prepare: Callable[[Any, pathlib.Path], None] | None = None,
    read: ml_collections.ConfigDict | None = None,
  ) -> ml_collections.ConfigDict:
    """Returns the config, completed and with the other values.

    Args:
      expected: See config_files.filled.
      prepare: See config_files.filled.
      read: What `read` returned; None reads it now.
    """
    from prm_jax.runtime import config_files

    given = self.read() if read is None else read
    known = self.name, self.overrides
    return config_files.filled(given, *known, expected, prepare)


# As a verb's field; `made` returns the Config.
AnyConfig = Config | files.PathLike | ConfigFields


@dataclasses.dataclass(frozen=True)
class Field:
  """A field of a value, as its declaration says it.

  Args:
    name: Its name.
    hint: Its type, without None if it may be None.
    is_optional: Whether it may be None.
    parse: Returns the value that a text stands for; raises ValueError.
    check: Raises ValueError for a value out of range; None takes each.
    inner: The dataclass whose fields are options, too; None if it is none.
    default: Its default; dataclasses.MISSING if it must be given.
    text: What the docstring says of it.
    metadata: What else the command line knows of it; see above.
  """

  name: str
  hint: Any
  is_optional: bool
  parse: Callable[[str], Any] | None
  check: Callable[[Any], None] | None
  inner: type[Value] | None
  default: Any
  text: str
  metadata: Mapping[str, Any]

  @property
  def choices(self) -> tuple[str, ...]:
    """The values of a Literal."""
    if typing.get_origin(self.hint) is Literal:
      return typing.get_args(self.hint)
    return ()

  @property
  def element(self) -> Any:
    """The type of each of a tuple's values; None if it is no tuple."""
    if typing.get_origin(self.hint) is not tuple:
      return None
    return typing.get_args(self.hint)[0]

  @property
  def _written(self) -> tuple[type, ...]:
    """The types of values that are parsed as their texts."""
    if self.element is not None:
      return ()
    is_path = self.hint is str or _PATH in typing.get_args(self.hint)
    return (str, os.PathLike) if is_path else (str, int, float)

  def checked(self, value: Any) -> Any:
    """Returns a value of the field, or what it stands for.

    Args:
      value: What was given.

    Raises:
      InputError: The field has no such value.
    """
    if value is None and (self.is_optional or self.default is None):
      return value
    if isinstance(value, numbers.Number) and hasattr(value, "item"):
      value = value.item()  # a number of numpy's
    if self.hint is float and type(value) is int:
      value = float(value)  # 1 and 1.0 are one record
    if self.inner is not None and self.inner.first_is_whole:
      if isinstance(value, str | pathlib.PurePath):
        return typing.cast(Any, self.inner)(os.fspath(value))
      if isinstance(value, ConfigFields):
        return typing.cast(Any, self.inner)(value)
    if self.element is not None and isinstance(value, list | tuple):
      return tuple(map(self._checked_element, value))
    if self.choices and value not in self.choices:
      raise errors.InputError(
        f"`{self.name}={reprlib.repr(value)}`: expected one of"
        f" {', '.join(self.choices)}"
      )
    if self.parse is not None and isinstance(value, self._written):
      return self._parsed(value)
    is_inner = self.inner is None or isinstance(value, self.inner)
    if not is_inner or not checks.is_a(value, self.hint):
      raise self._other_than(checks.type_name(self.hint), value)
    return value

  def _parsed(self, value: Any) -> Any:
    assert self.parse is not None
    try:
      parsed = self.parse(str(value))
      if self.check is not None:
        self.check(parsed)
      return parsed
    except ValueError as e:
      raise errors.InputError(f"`{self.name}={value}`: {e}") from None

  def _checked_element(self, value: Any) -> Any:
    kind = self.element
    if self.parse is not None:  # the element's
      kind = typing.get_args(kind)[0]
      if isinstance(value, str | os.PathLike):
        return self._parsed(value)
    if not checks.is_a(value, kind):
      raise self._other_than(f"{checks.type_name(kind)} each", value)
    return value

  def _other_than(self, expected: str, value: Any) -> errors.InputError:
    found = reprlib.repr(value)
    return errors.InputError(f"{self.name} must be {expected}, found {found}")


@functools.cache
def fields(kind: Any) -> tuple[Field, ...]:
  """Returns what is declared of a value's fields.

  Args:
    kind: The class of the value.
  """
  hints = typing.get_type_hints(kind, include_extras=True)
  texts = explained(kind)
  return tuple(
    _field(field, hints[field.name], texts.get(field.name, ""))
    for field in dataclasses.fields(kind)
    if field.init
  )


def _field(field: dataclasses.Field[Any], hint: Any, text: str) -> Field:
  default = field.default
  if field.default_factory is not dataclasses.MISSING:
    default = field.default_factory()
  kinds = _members(hint)
  is_optional = type(None) in kinds
  kinds = [x for x in kinds if x is not type(None)]
  parse = check = None
  if len(kinds) == 1 and typing.get_origin(kinds[0]) is Annotated:
    hint, parse, *checked = typing.get_args(kinds[0])
    check = next(iter(checked), None)
    is_optional |= type(None) in _members(hint)
    kinds = [hint]
  inner = next((x for x in kinds if _is_value(x)), None)
  if typing.get_origin(kinds[0]) is tuple:
    element = typing.get_args(kinds[0])[0]
    if typing.get_origin(element) is Annotated:
      _, parse, *_ = typing.get_args(element)
  hint = kinds[0] if len(kinds) == 1 else typing.Union[tuple(kinds)]  # noqa: UP007
  return Field(
    *(field.name, hint, is_optional, parse, check, inner, default, text),
    field.metadata,
  )


def _members(hint: Any) -> list[Any]:
  """Returns the types of a union, or the type itself."""
  if typing.get_origin(hint) in (types.UnionType, typing.Union):
    return list(typing.get_args(hint))
  return [hint]


def _is_value(kind: Any) -> bool:
  return isinstance(kind, type) and issubclass(kind, Value)


def job_of(kind: type[Value]) -> type[Value] | None:
  """Returns the class of a verb's job, which says on which files it runs."""
  hints = typing.get_type_hints(kind.run) if hasattr(kind, "run") else {}
  return hints.get("job")


def log_text(logger: logging.Logger, text: str) -> None:
  """Logs each line of a text as it is: it may quote anything.

  Args:
    logger: The logger of the module that says it.
    text: The text.
  """
  for line in text.split("\n"):
    logger.info("%s", line)


# --- Docstrings -----------------------------------------------------------------


def summary(kind: type) -> str:
  """Returns the first line of a docstring."""
  return (inspect.getdoc(kind) or "").partition("\n")[0]


@functools.cache
def explained(kind: type) -> Mapping[str, str]:
  """Returns what `Args` say of each field, each in one line.

  Args:
    kind: The class; the docstrings of its bases explain the fields of these.
  """
  return {
    name: " ".join(text.split()).removesuffix(".")
    for base in reversed(kind.__mro__)
    for name, text in _entries(_section(base, "Args"))
  }


def example(kind: type) -> str:
  """Returns the lines of a docstring's `Example`."""
  return textwrap.dedent(_section(kind, "Example")).strip()


def _section(kind: type, name: str) -> str:
  text = inspect.getdoc(kind) or ""
  found = re.search(rf"^{name}:\n((?:  .*\n?|\n)+)", text, re.MULTILINE)
  return found[1] if found else ""


def _entries(section: str) -> Iterator[tuple[str, str]]:
  yield from re.findall(r"^  (\w+): (.*(?:\n    .*)*)", section, re.MULTILINE)
