r"""Any file of records, by a mapping of its fields to those of a Solution.

The format's name holds the mapping: "map(problem=question,steps=rationale)".
One of NAMES is to the left of =, and where a record has it to the right: a path
(field_paths.py), or a+b, the text of both with a line break between them.

  separator=\n     what stands between steps, if they are one text
  none=0           what a first error says if no step is wrong, beside -1 and N/A
  words=good:1;bad:-1   what the words of ratings stand for
  numbers=remove   "Step 1: " and the like are taken off the steps
  rows=PATH        each record holds several solutions: rows=samples of a list of
                   objects, rows=code+score of lists, rows=*.* of a file of one
                   object

A comma in a separator is written \x2c.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
import contextlib
import dataclasses
import functools
import logging
import reprlib
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.datasets.formats import field_paths
from prm_jax.datasets.formats import mapped_values
from prm_jax.datasets.formats import step_numbers
from prm_jax.records import fields
from prm_jax.records import record_files
from prm_jax.runtime import files

_logger = logging.getLogger(__name__)

# The number of the first step, for each way to count first errors.
_FIRST_STEP = {"first_error": 0, "first_error_from_1": 1}
_FIELDS = (
  *("problem", "steps", "id", "labels", "ratings", *_FIRST_STEP, "answer"),
  *("outcome", "source", "annotator"),
)
_OPTIONS = ("separator", "none", "words", "numbers", "rows")
NAMES = (*_FIELDS, *_OPTIONS)
_OF_STEPS = ("labels", "ratings", *_FIRST_STEP)


@dataclasses.dataclass(frozen=True)
class FieldMapping:
  """Where the fields of a Solution are in a record.

  Args:
    paths: The path of each field, for some of NAMES.
    separator: What stands between the steps of a text; None if steps are a
      list.
    rows: What holds the solutions of a record; None if it is one.
    none: What a first error says if no step is wrong, in addition to -1 and
      N/A; None if nothing else does.
    words: The ratings that words stand for; None if none do.
    unnumbered: Whether the numbers of steps are taken off them.

  Raises:
    InputError: A name is unknown, problem or steps are missing, two fields say
      which steps are right, or an option has no field to be one of.
  """

  paths: Mapping[str, str]
  separator: str | None = None
  rows: str | None = None
  none: str | None = None
  words: Mapping[str, int] | None = None
  unnumbered: bool = False

  def __post_init__(self):
    for name, path in self.paths.items():
      if name not in _FIELDS:
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
    for name in ("separator", "none", "rows"):
      if getattr(self, name) == "":
        raise errors.InputError(f"`map`: {name} is empty; give its value")
    if self.none is not None and not _FIRST_STEP.keys() & told:
      raise errors.InputError(
        f"`map`: none={self.none} is a value of the first error; give"
        f" {' or '.join(f'{name}=FIELD' for name in _FIRST_STEP)} with it"
      )
    if self.words is not None and told != ["ratings"]:
      raise errors.InputError(
        "`words`: they are those of ratings; map ratings=FIELD"
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
  separator, rows, none, words, numbers = (
    paths.pop(name, None)
    for name in ("separator", "rows", "none", "words", "numbers")
  )
  if numbers not in (None, "remove"):
    raise errors.InputError(
      f"`map`: numbers={numbers}: give numbers=remove, or leave it out"
    )
  return FieldMapping(
    paths,
    None if separator is None else _unescaped(separator),
    rows,
    none,
    None
    if words is None
    else parse_words(words.replace(":", "=").replace(";", ",")),
    numbers is not None,
  )


def parse_words(text: str) -> dict[str, int]:
  """Returns the rating of each word of a text such as "good=1,ok=0,bad=-1".

  Raises:
    InputError: The text has another form, or a word is there twice.
  """
  ratings: dict[str, int] = {}
  for part in text.split(","):
    name, _, value = part.rpartition("=")
    name = mapped_values.word(name)
    if not name or name in ratings or value.strip() not in ("-1", "0", "1"):
      raise errors.InputError(
        f"`words`: {part!r}: expected WORD=RATING, each word once, with a rating"
        " of -1, 0 or 1, as in good=1,ok=0,bad=-1"
      )
    ratings[name] = int(value)
  return ratings


def read(
  path: files.PathLike, mapping: FieldMapping
) -> Iterator[schema.Solution]:
  """Yields the solution of every record, or of every row of the records.

  Labels are P(correct so far) in [0, 1], true and false, or a word for either.
  first_error is the index of the first wrong step, from 0 (first_error_from_1:
  from 1); -1, a text such as "N/A" or the mapping's `none` says that no step is
  wrong, and null that it isn't known. Steps after the first wrong one have no
  label. Lists may be texts of JSON or Python, as tables of texts have them.
  Fields that aren't mapped are kept in extra["fields"].

  A warning is logged after the last record if 0 seems to say that no step is
  wrong and is read as an error in the first step, and if records hold no rows.

  Args:
    path: The file: JSON Lines, indented JSON, CSV, TSV, Parquet or Arrow.
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
  for number, (where, record) in enumerate(_records(path, mapping.rows), 1):
    get = functools.partial(_mapped, record, where, mapping.paths)
    problem = get("problem", mapped_values.joined)
    steps = _steps(get("steps", _as_is), where, mapping)
    listed = get("labels", mapped_values.probabilities)
    labels = _one_each(listed, "labels", where, len(steps))
    error = _first_error(get, mapping, len(steps))
    if error is not None:
      first_errors[error] += 1
      labels = fields.labels_until(error, len(steps))
    ratings = get(
      "ratings", functools.partial(mapped_values.ratings, words=mapping.words)
    )
    place = where if mapping.rows is None else f"{path}:{number}"
    name = get("id", mapped_values.identity) or fields.row_id(
      "map", path, place
    )
    annotator = get("annotator", mapped_values.identity)
    yield schema.Solution(
      id=fields.unique_id(seen, name, where),
      problem=problem,
      steps=step_numbers.without(steps) if mapping.unnumbered else steps,
      labels=labels,
      ratings=_one_each(ratings, "ratings", where, len(steps)),
      answer=get("answer", mapped_values.identity),
      outcome=get("outcome", mapped_values.truth),
      source=get("source", mapped_values.text) or "map",
      extra={
        "group": fields.group(problem),
        **fields.given(**{schema.ANNOTATOR: annotator}),
        **fields.beyond(record, *whole),
      },
    )
  if "first_error" in mapping.paths:
    _warn_of_zeros(path, mapping.paths["first_error"], first_errors)


def _records(
  path: files.PathLike, rows: str | None
) -> Iterator[record_files.Record]:
  """Yields the records, or their rows; warns of records without any."""
  num_empty = 0
  for where, record in record_files.read_records(path):
    if rows is None:
      yield where, record
      continue
    found = list(field_paths.rows(record, where, rows))
    num_empty += not found
    yield from found
  if num_empty:
    _logger.warning(f"{path}: {num_empty:,} records have no rows at {rows}")


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
  parts = [field_paths.value_of(record, part) for part in path.split("+")]
  required = name in ("problem", "steps") or len(parts) > 1
  if any(x is field_paths.MISSING or (required and x is None) for x in parts):
    raise errors.InputError(
      f"{where}: no {path!r}, which `map` takes as {name}; the record has"
      f" {', '.join(map(repr, record))}"
    )
  value: Any = parts[0] if len(parts) == 1 else parts
  try:
    if len(parts) > 1:
      value = "\n".join(map(mapped_values.joined, parts))
    return None if value is None else convert(value)
  except ValueError as e:
    raise errors.InputError(
      f"{where}: {path!r}, which `map` takes as {name}, is"
      f" {reprlib.repr(value)}; {e}"
    ) from None


def _as_is(value: Any) -> Any:
  return value


def _steps(value: Any, where: str, mapping: FieldMapping) -> tuple[str, ...]:
  if isinstance(value, str) and mapping.separator is None:
    # A list as a text, as tables of texts have it.
    with contextlib.suppress(ValueError):
      value = mapped_values.listed(value)
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
        name,
        functools.partial(mapped_values.index, steps=steps, none=mapping.none),
      )
  return None


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
