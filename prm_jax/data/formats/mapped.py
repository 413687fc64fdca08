r"""Any file of records, by a mapping of its fields to those of a Solution.

The format's name holds the mapping: "map(problem=question,steps=rationale)".
One of NAMES is to the left of =, and where a record has it to the right:

  a             the field a
  a.b           the field b of the object a
  a.*           every entry of the list or object a; a.*.b is the field b of each
  a+b           the text of both, with a line break between them
  separator=\n  what stands between steps, if they are one text
  none=0        what a first error says if no step is wrong, beside -1 and N/A

rows=PATH says where in a file of one object its records are, as rows=data or
rows=*.*. A comma in a separator is written \x2c.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
import dataclasses
import functools
import logging
import re
import reprlib
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.data.formats import fields
from prm_jax.data.formats import record_files
from prm_jax.runtime import files

_logger = logging.getLogger(__name__)

# The number of the first step, for each way to count first errors.
_FIRST_STEP = {"first_error": 0, "first_error_from_1": 1}
NAMES = (
  *("problem", "steps", "id", "labels", "ratings", *_FIRST_STEP, "answer"),
  *("outcome", "source", "separator", "none", "rows"),
)
_OF_STEPS = ("labels", "ratings", *_FIRST_STEP)
_RIGHT = ("true", "correct", "right", "yes", "1", "+")
_WRONG = ("false", "incorrect", "wrong", "no", "0", "-")
# What stands for no wrong step where a number would stand.
_NO_ERROR = ("n/a", "na", "none", "-1")


@dataclasses.dataclass(frozen=True)
class FieldMapping:
  """Where the fields of a Solution are in a record.

  Args:
    paths: The path of each field, for some of NAMES.
    separator: What stands between the steps of a text; None if steps are a
      list.
    rows: Where the records are in a file of one object; None if each object of
      the file is a record.
    none: What a first error says if no step is wrong, in addition to -1 and
      N/A; None if nothing else does.

  Raises:
    InputError: A name is unknown, problem or steps are missing, two fields say
      which steps are right, or `none` has no first error to be one of.
  """

  paths: Mapping[str, str]
  separator: str | None = None
  rows: str | None = None
  none: str | None = None

  def __post_init__(self):
    for name, path in self.paths.items():
      if name not in NAMES:
        raise errors.InputError(
          f"`map`: {name!r} is no field; expected one of {', '.join(NAMES)}"
        )
      if not path:
        raise errors.InputError(f"`map`: {name} has no path; give {name}=FIELD")
    for name in ("problem", "steps"):
      if name not in self.paths:
        raise errors.InputError(f"`map`: {name} is missing; give {name}=FIELD")
    told = [name for name in _OF_STEPS if name in self.paths]
    if len(told) > 1:
      raise errors.InputError(
        f"`map`: {' and '.join(told)} both say which steps are right; give one"
      )
    if self.separator == "":
      raise errors.InputError("`map`: the separator is empty; give a text")
    if self.none == "":
      raise errors.InputError(
        "`map`: none is empty; give the value that says that no step is wrong"
      )
    if self.none is not None and not _FIRST_STEP.keys() & told:
      raise errors.InputError(
        f"`map`: none={self.none} is a value of the first error; give"
        f" {' or '.join(f'{name}=FIELD' for name in _FIRST_STEP)} with it"
      )


def parse_mapping(text: str) -> FieldMapping:
  """Returns the mapping that a text such as "problem=q,steps=s" describes.

  Raises:
    InputError: The text has another form, or names a field twice.
  """
  paths: dict[str, str] = {}
  for part in text.split(","):
    name, equals, path = part.partition("=")
    name = name.strip()
    if not equals or name in paths:
      state = "is there twice" if equals else "has no ="
      raise errors.InputError(
        f"`map`: {part!r} {state}; expected"
        " problem=FIELD,steps=FIELD,..., each once"
      )
    paths[name] = path if name == "separator" else path.strip()
  separator = paths.pop("separator", None)
  if separator is not None:
    separator = _unescaped(separator)
  rows, none = paths.pop("rows", None), paths.pop("none", None)
  return FieldMapping(paths, separator, rows, none)


def read(
  path: files.PathLike, mapping: FieldMapping
) -> Iterator[schema.Solution]:
  """Yields the solution of every record.

  Labels are P(correct so far) in [0, 1], true and false, or a word for either.
  first_error is the index of the first wrong step, from 0 (first_error_from_1:
  from 1); -1, a text such as "N/A" or the mapping's `none` says that no step is
  wrong, and null that it isn't known. Steps after the first wrong one have no
  label. Fields that aren't mapped are kept in extra["fields"].

  A warning is logged after the last record if 0 seems to say that no step is
  wrong and is read as an error in the first step.

  Args:
    path: The file: JSON Lines, indented JSON or Parquet.
    mapping: Where the fields are.

  Yields:
    Each solution. Without a mapped id it is "map/FILE:N".

  Raises:
    InputError: A record lacks a field, or has one of another form.
  """
  seen: dict[str, str] = {}
  first_errors: Counter[int] = Counter()
  # Of a.b the whole object a is kept.
  whole = [part for x in mapping.paths.values() for part in x.split("+")]
  for where, record in _records(path, mapping.rows):
    get = functools.partial(_mapped, record, where, mapping.paths)
    problem = get("problem", _text)
    steps = _steps(get("steps", _as_is), where, mapping)
    listed = get("labels", _probabilities)
    labels = _one_each(listed, "labels", where, len(steps))
    error = _first_error(get, mapping, len(steps))
    if error is not None:
      first_errors[error] += 1
      labels = fields.labels_until(error, len(steps))
    name = get("id", _identity) or fields.row_id("map", path, where)
    yield schema.Solution(
      id=fields.unique_id(seen, name, where),
      problem=problem,
      steps=steps,
      labels=labels,
      ratings=_one_each(get("ratings", _ratings), "ratings", where, len(steps)),
      answer=get("answer", _identity),
      outcome=get("outcome", _truth),
      source=get("source", _text) or "map",
      extra={"group": fields.group(problem)} | fields.beyond(record, *whole),
    )
  if "first_error" in mapping.paths:
    _warn_of_zeros(path, mapping.paths["first_error"], first_errors)


def _records(
  path: files.PathLike, rows: str | None
) -> Iterator[record_files.Record]:
  if rows is None:
    yield from record_files.read_records(path)
    return
  for i, row in enumerate(_at(record_files.read_document(path), rows), 1):
    if not isinstance(row, dict):
      found = "nothing" if row is _MISSING else type(row).__name__
      raise errors.InputError(
        f"{path}: rows={rows} leads to {found}, expected an object each; the"
        " entries of the list data are rows=data.*"
      )
    yield f"{path}:{i}", row


# --- Paths ------------------------------------------------------------------

_MISSING: Any = object()


def _at(value: Any, path: str) -> list[Any]:
  """Returns what a path leads to: one value, or one for each entry of a *.

  Where it leads to nothing, that is _MISSING.
  """
  if isinstance(value, Mapping) and path in value:
    return [value[path]]  # a name may hold a dot
  name, dot, rest = path.partition(".")
  if name != "*":
    found = [
      value.get(name, _MISSING) if isinstance(value, Mapping) else _MISSING
    ]
  elif isinstance(value, Mapping):
    found = list(value.values())
  else:
    found = value if isinstance(value, list) else [_MISSING]
  if not dot:
    return found
  return [x for entry in found for x in _at(entry, rest)]


def _value(record: Mapping[str, Any], path: str) -> Any:
  """Returns what a path of one field leads to; a list if it has a *."""
  values = _at(record, path)
  if any(x is _MISSING for x in values):
    return _MISSING
  is_list = "*" in path.split(".") and path not in record
  return values if is_list else values[0]


def _mapped(
  record: Mapping[str, Any],
  where: str,
  paths: Mapping[str, str],
  name: str,
  convert: Callable[[Any], Any],
) -> Any:
  """Returns a field of the solution, or None if it isn't mapped or is null."""
  if name not in paths:
    return None
  path = paths[name]
  parts = [_value(record, part) for part in path.split("+")]
  required = name in ("problem", "steps") or len(parts) > 1
  if any(x is _MISSING or (required and x is None) for x in parts):
    raise errors.InputError(
      f"{where}: no {path!r}, which `map` takes as {name}; the record has"
      f" {', '.join(map(repr, record))}"
    )
  value: Any = parts[0] if len(parts) == 1 else parts
  try:
    if len(parts) > 1:
      value = "\n".join(map(_identity, parts))
    return None if value is None else convert(value)
  except ValueError as e:
    raise errors.InputError(
      f"{where}: {path!r}, which `map` takes as {name}, is"
      f" {reprlib.repr(value)}; {e}"
    ) from None


# --- Values -----------------------------------------------------------------


def _as_is(value: Any) -> Any:
  return value


def _text(value: Any) -> str:
  if not isinstance(value, str):
    raise ValueError("expected a text")
  return value


def _identity(value: Any) -> str:
  """Returns a text, or a number as one."""
  if isinstance(value, bool) or not isinstance(value, str | int | float):
    raise ValueError("expected a text or a number")
  return str(value)


def _truth(value: Any) -> bool | None:
  if isinstance(value, str) and not value.strip():
    return None
  word = _word(value)
  if isinstance(value, str | bool | int | float) and word in _RIGHT + _WRONG:
    return word in _RIGHT
  raise ValueError(f"expected one of {', '.join(_RIGHT + _WRONG)}")


def _steps(value: Any, where: str, mapping: FieldMapping) -> tuple[str, ...]:
  if isinstance(value, str):
    if mapping.separator is None:
      raise errors.InputError(
        f"{where}: the steps are one text; say what stands between them, as in"
        r" separator=\n"
      )
    parts = [part.strip() for part in value.split(mapping.separator)]
    while parts and not parts[-1]:
      parts.pop()
    if "" in parts and _FIRST_STEP.keys() & mapping.paths.keys():
      raise errors.InputError(
        f"{where}: step {parts.index('')} (from 0) is blank, so the number of"
        " the first error is in doubt; take the blank steps out"
      )
    return tuple(part for part in parts if part)
  return fields.texts(dict(steps=value), where, "steps")


def _first_error(
  get: Callable[..., Any], mapping: FieldMapping, num_steps: int
) -> int | None:
  """Returns the index of the first wrong step, from 0, -1 if none is.

  Returns None if the record or the mapping doesn't say.
  """
  for name, base in _FIRST_STEP.items():
    if name in mapping.paths:
      steps = range(base, base + num_steps)
      return get(
        name, functools.partial(_index, steps=steps, none=mapping.none)
      )
  return None


def _index(value: Any, steps: range, none: str | None) -> int | None:
  """Returns a step's index from 0, -1 if no step is wrong, None for a blank.

  Args:
    value: What a record says.
    steps: The numbers of its steps.
    none: What says that no step is wrong, in addition to _NO_ERROR.
  """
  word = _word(value)
  if not word:
    return None
  is_number = not isinstance(value, bool) and re.fullmatch(r"\d{1,9}", word)
  is_step = bool(is_number) and int(word) in steps
  is_none = none is not None and word == _word(none)
  if is_step and is_none:
    advice = f"none={none} has no place here"
    if word == "0":
      advice = "if steps count from 1, map first_error_from_1"
    raise ValueError(f"a step's number, counted from {steps.start}; {advice}")
  if is_step:
    return int(word) - steps.start
  plain = not isinstance(value, bool | list | dict)
  if is_none or (plain and word in _NO_ERROR):
    return -1
  if not is_number:
    raise ValueError(
      "expected the number of a step, or -1 or N/A if none is wrong; another"
      " value for that is none=VALUE"
    )
  raise ValueError(
    f"the {len(steps)} steps are counted from {steps.start};"
    f" {_other_readings(int(word), steps)}"
  )


def _other_readings(number: int, steps: range) -> str:
  """Returns what a number that is no step's may say, as advice."""
  if steps.start and not number:
    return (
      "if 0 says that no step is wrong, add none=0; to count from 0, map"
      " first_error"
    )
  if not steps.start and number == len(steps):
    return (
      "to count from 1, map first_error_from_1, and add none=0 if 0 says that no"
      " step is wrong"
    )
  return f"if {number} says that no step is wrong, add none={number}"


def _word(value: Any) -> str:
  """Returns a value as a word that is compared."""
  return str(value).strip().lower().removesuffix(".0")


# Of wrong solutions in ProcessBench a fifth are wrong in the first step.
_MANY_ZEROS = 0.25


def _warn_of_zeros(
  path: files.PathLike, name: str, first_errors: Counter[int]
) -> None:
  """Warns if 0 may say that no step is wrong, and was read as the first step.

  Args:
    path: The file.
    name: The path of the field.
    first_errors: How many records say which index, -1 for no step.
  """
  zeros, num_told = first_errors[0], first_errors.total()
  if first_errors[-1] or zeros < 3 or zeros < _MANY_ZEROS * num_told:
    return
  _logger.warning(
    f"{path}: of {num_told:,} first errors {zeros:,} are 0, read as an error in"
    " the first step, and none says that no step is wrong; if 0 says that, map"
    f" first_error_from_1={name},none=0"
  )


def _probabilities(values: Any) -> list[float | None]:
  return [_probability(x) for x in _listed(values)]


def _probability(value: Any) -> float | None:
  if value is None:
    return None
  if isinstance(value, int | float) and not isinstance(value, bool):
    if 0 <= value <= 1:
      return float(value)
    raise ValueError(
      "expected labels in [0, 1]; -1, 0 and 1 of people are ratings"
    )
  truth = _truth(value)
  return None if truth is None else float(truth)


def _ratings(values: Any) -> list[int | None]:
  entries = _listed(values)
  # false would be the rating 0, neutral; as a label it is wrong.
  if any(isinstance(x, bool) or x not in (-1, 0, 1, None) for x in entries):
    raise ValueError("expected -1, 0, 1 or null for each step")
  return [None if x is None else int(x) for x in entries]


def _listed(values: Any) -> list[Any]:
  if not isinstance(values, list):
    raise ValueError("expected a list, with one entry for each step")
  return values


def _one_each(
  values: list[Any] | None, name: str, where: str, num_steps: int
) -> tuple[Any, ...] | None:
  if values is not None and len(values) != num_steps:
    raise errors.InputError(
      f"{where}: {len(values)} {name} for {num_steps} steps; there must be one"
      " for each step"
    )
  return None if values is None else tuple(values)


def _unescaped(text: str) -> str:
  r"""Returns the text with \n, \t, \\ and \x2c replaced by what they say."""
  try:
    raw = text.encode("latin-1", "backslashreplace")
    return raw.decode("unicode_escape")
  except UnicodeDecodeError:
    raise errors.InputError(
      f"`map`: separator={text!r}: a \\ begins an escape such as \\n; write"
      " \\\\ for the character itself"
    ) from None
