r"""Any file of records, by a mapping of its fields to those of a Solution.

The format's name holds the mapping: "map(problem=question,steps=rationale)".
One of NAMES is to the left of =, and where a record has it to the right:

  a             the field a
  a.b           the field b of the object a
  a.*           every entry of the list or object a; a.*.b is the field b of each
  a+b           the text of both, with a line break between them
  separator=\n  what stands between steps, if they are one text

rows=PATH says where in a file of one object its records are, as rows=data or
rows=*.*. A comma in a separator is written \x2c.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import functools
import re
import reprlib
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.data.formats import fields
from prm_jax.data.formats import record_files
from prm_jax.runtime import files

NAMES = (
  *("problem", "steps", "id", "labels", "ratings", "first_error"),
  *("first_error_from_1", "answer", "outcome", "source", "separator", "rows"),
)
_OF_STEPS = ("labels", "ratings", "first_error", "first_error_from_1")
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

  Raises:
    InputError: A name is unknown, problem or steps are missing, or two fields
      say which steps are right.
  """

  paths: Mapping[str, str]
  separator: str | None = None
  rows: str | None = None

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
  separator, rows = paths.pop("separator", None), paths.pop("rows", None)
  if separator is not None:
    separator = _unescaped(separator)
  return FieldMapping(paths, separator, rows)


def read(
  path: files.PathLike, mapping: FieldMapping
) -> Iterator[schema.Solution]:
  """Yields the solution of every record.

  Labels are P(correct so far) in [0, 1], true and false, or a word for either.
  first_error is the index of the first wrong step, from 0 (first_error_from_1:
  from 1); -1 or a text such as "N/A" says that no step is wrong, and null that
  it isn't known. Steps after the first wrong one have no label. Fields that
  aren't mapped are kept in extra["fields"].

  Args:
    path: The file: JSON Lines, indented JSON or Parquet.
    mapping: Where the fields are.

  Yields:
    Each solution. Without a mapped id it is "map/FILE:LINE".

  Raises:
    InputError: A record lacks a field, or has one of another form.
  """
  seen: dict[str, str] = {}
  # Of a.b the whole object a is kept.
  whole = [part for x in mapping.paths.values() for part in x.split("+")]
  for where, record in _records(path, mapping.rows):
    get = functools.partial(_mapped, record, where, mapping.paths)
    problem = get("problem", _text)
    steps = _steps(get("steps", _as_is), where, mapping)
    name = get("id", _identity) or fields.row_id("map", path, where)
    yield schema.Solution(
      id=fields.unique_id(seen, name, where),
      problem=problem,
      steps=steps,
      labels=_labels(get, where, len(steps)),
      ratings=_one_each(get("ratings", _ratings), "ratings", where, len(steps)),
      answer=get("answer", _identity),
      outcome=get("outcome", _truth),
      source=get("source", _text) or "map",
      extra={"group": fields.group(problem)} | fields.beyond(record, *whole),
    )


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
  word = str(value).strip().lower().removesuffix(".0")
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
    if "" in parts and {"first_error", "first_error_from_1"} & {*mapping.paths}:
      raise errors.InputError(
        f"{where}: step {parts.index('')} (from 0) is blank, so the number of"
        " the first error is in doubt; take the blank steps out"
      )
    return tuple(part for part in parts if part)
  return fields.texts(dict(steps=value), where, "steps")


def _labels(
  get: Callable[..., Any], where: str, num_steps: int
) -> tuple[float | None, ...] | None:
  for name, base in (("first_error", 0), ("first_error_from_1", 1)):
    error = get(name, _index)
    if error is not None:
      return _until(error, base, where, num_steps)
  return _one_each(get("labels", _probabilities), "labels", where, num_steps)


def _index(value: Any) -> int | None:
  """Returns a step's number, -1 if no step is wrong, None for a blank text."""
  word = str(value).strip().lower().removesuffix(".0")
  if not word:
    return None
  if not isinstance(value, bool | list | dict) and word in _NO_ERROR:
    return -1
  if isinstance(value, bool) or not re.fullmatch(r"\d{1,9}", word):
    raise ValueError(
      "expected the number of a step, or -1 or N/A if none is wrong"
    )
  return int(word)


def _until(
  error: int, base: int, where: str, num_steps: int
) -> tuple[float | None, ...]:
  """Returns the labels if the first error is that step, counted from base."""
  if error >= 0 and not base <= error < num_steps + base:
    other = "first_error" if base else "first_error_from_1"
    raise errors.InputError(
      f"{where}: the first wrong step is {error}, of {num_steps} steps counted"
      f" from {base}; to count from {1 - base}, map {other}"
    )
  return fields.labels_until(error - base if error >= 0 else -1, num_steps)


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
