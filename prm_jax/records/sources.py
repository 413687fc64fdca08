"""Reads the sources of solutions that a config names.

A source is written "FORMAT:PATH", where FORMAT may be map(...), a mapping of
any file's fields (datasets/formats/mapped.py). If a relative path doesn't
exist, it is taken relative to the folder in the environment variable
PRM_JAX_DATA. "arrayrecord:FOLDER" stays in its files; records.array_record
reads it by number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import contextlib
import difflib
import hashlib
import itertools
import logging
import os
import pathlib
import re
from typing import cast, TypeVar

from prm_jax import errors
from prm_jax import schema
from prm_jax.records import array_record
from prm_jax.records import dataset_folders
from prm_jax.records import formats
from prm_jax.runtime import files
from prm_jax.runtime import progress

_logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Reader = Callable[[pathlib.Path, Counter[str]], Iterable[schema.Solution]]

STORED = "arrayrecord"
# These are read, and never written.
_READ_ONLY: dict[str, Reader] = {
  "tool_prm_bench": lambda path, left_out: formats.load("tool_prm_bench").read(
    path
  ),
  "gsm8k_pool": lambda path, left_out: formats.load("gsm8k").read_pool(path),
  "people": lambda path, left_out: formats.load("people_folder").read(path),
  STORED: lambda path, left_out: array_record.Stored(path),
}


# Formats that are told more than a file: how to read it, or what it is about.
_CALLED = re.compile(r"(map|potato)\((.*)\)", re.DOTALL)


def format_names() -> list[str]:
  return sorted({*formats.FORMATS, *_READ_ONLY})


def read(
  format_name: str, path: files.PathLike, limit: int | None = None
) -> tuple[list[schema.Solution], Counter[str]]:
  """Returns the solutions of a file, and what was left out, by reason.

  Args:
    format_name: The format.
    path: The file.
    limit: The number of solutions to read, the first ones; None reads all.

  Raises:
    InputError: The format is unknown, there is no such file, or a row is bad.
  """
  left_out: Counter[str] = Counter()
  solutions = stream(format_name, path, left_out)
  shown = progress.through(f"read {path}", solutions)
  return first(shown, limit, path), left_out


def first(
  items: Iterable[Item], limit: int | None, where: object
) -> list[Item]:
  """Returns the first items, and logs it if there are more.

  Args:
    items: The items.
    limit: Their number; None takes all.
    where: What they are read from.

  Raises:
    InputError: The limit is 0.
  """
  if limit is None:
    return list(items)
  _check_limit(limit)
  rest = iter(items)
  taken = list(itertools.islice(rest, limit))
  if next(rest, None) is not None:
    _logger.info(f"{where}: the first {limit:,} alone, see `limit`")
  return taken


def drawn(
  items: Iterable[Item],
  limit: int | None,
  seed: int,
  where: object,
  name: Callable[[Item], str],
) -> list[Item]:
  """Returns some of the items, in their order, and logs it if there are more.

  Whether an item is taken depends on the seed and on all items' names, not on
  their order: published files are sorted, wrong solutions first or class by
  class, so that their first rows are no sample of them. More items with the
  same seed include fewer.

  Args:
    items: The items.
    limit: Their number; None takes all.
    seed: The seed of the draw.
    where: What they are read from.
    name: Returns the name of an item, each of its own.

  Raises:
    InputError: The limit is 0.
  """
  items = list(items)
  if limit is None:
    return items
  _check_limit(limit)

  def place(i: int) -> bytes:
    return hashlib.sha256(f"{seed} {name(items[i])}".encode()).digest()

  if limit < len(items):
    _logger.info(
      f"{where}: {limit:,} of {len(items):,}, drawn by `seed={seed}`, see"
      " `limit`"
    )
  chosen = sorted(range(len(items)), key=place)[:limit]
  return [items[i] for i in sorted(chosen)]


def _check_limit(limit: int) -> None:
  if limit < 1:
    raise errors.InputError(f"`limit={limit}`: give 1 or more")


def stream(
  format_name: str, path: files.PathLike, left_out: Counter[str]
) -> Iterator[schema.Solution]:
  """Returns the solutions of a file one by one; counts what it leaves out."""
  return iter(reader(format_name)(find(path), left_out))


def reader(format_name: str) -> Reader:
  """Returns a function that reads a file of a format row by row.

  It also counts what it leaves out.

  Raises:
    InputError: The format is unknown, or a mapping has another form.
  """
  called = _CALLED.fullmatch(format_name)
  if called and called[1] == "map":
    mapped = formats.load("mapped")
    parsed = mapped.parse_mapping(called[2])
    return lambda path, left_out: mapped.read(path, parsed)
  if called:
    given_format, given = _given(called[2])
    reader(given_format)
    return lambda path, left_out: formats.load("potato").read(
      path, stream(given_format, given, left_out), left_out
    )
  if format_name == "potato":
    raise errors.InputError(
      "format 'potato': its export has no texts; name the file that the tool"
      " was given, as in potato(solutions.jsonl), or potato(FORMAT:FILE)"
    )
  known = format_names()
  if format_name not in known:
    near = difflib.get_close_matches(format_name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise errors.InputError(
      f"format {format_name!r}: expected one of {', '.join(known)}, or"
      f" map(problem=FIELD,...){hint}"
    )
  if format_name in _READ_ONLY:
    return _READ_ONLY[format_name]
  module = formats.FORMATS[format_name]
  if format_name in formats.COUNTING:
    return cast(Reader, module.read)
  return lambda path, left_out: module.read(path)


def left_out_texts(left_out: Mapping[str, int]) -> list[str]:
  """Returns a line for each reason to leave something out."""
  return [
    f"left out: {count:,} {reason.replace('_', ' ')}"
    for reason, count in sorted(left_out.items())
  ]


def find(path: files.PathLike) -> pathlib.Path:
  """Returns the path, or that below PRM_JAX_DATA if it doesn't exist."""
  path = pathlib.Path(path)
  if str(path) == files.STDIN:
    return path
  root = os.environ.get("PRM_JAX_DATA")
  # A dataset's split is written like a path below it.
  here = path.exists() or (path.parent / array_record.INFO).exists()
  here = here or dataset_folders.files_of(path) is not None
  if path.is_absolute() or here or not root:
    return path
  return pathlib.Path(root) / path


def stored_at(path: files.PathLike) -> pathlib.Path:
  """Returns what a path is read from: of a dataset's split, its folder."""
  path = find(path)
  if path.exists() or str(path) == files.STDIN:
    return path
  is_split = (path.parent / array_record.INFO).exists()
  is_split = is_split or dataset_folders.files_of(path) is not None
  return path.parent if is_split else path


def files_of(format_name: str, path: files.PathLike) -> list[pathlib.Path]:
  """Returns what a file of a format is read from: it, and what it is joined with.

  Args:
    format_name: The format, as in reader.
    path: The file.
  """
  called = _CALLED.fullmatch(format_name)
  given = [_given(called[2])[1]] if called and called[1] == "potato" else []
  return [stored_at(x) for x in (path, *given)]


def paths_of(sources: Sequence[str]) -> list[pathlib.Path]:
  """Returns what "FORMAT:PATH" sources are read from; skips bad ones."""
  paths = []
  for source in sources:
    with contextlib.suppress(errors.InputError):
      path = split(source)[1]
      paths += [path] if path else []
  return [stored_at(path) for path in paths]


def read_sources(sources: Sequence[str]) -> list[schema.Solution]:
  """Returns the solutions of "FORMAT:PATH" sources; reports what it omits."""
  return [s for source in sources for s in open_source(source)]


def open_source(source: str) -> Sequence[schema.Solution]:
  """Returns the solutions of a source; reports how many, and what it omits.

  Raises:
    InputError: The text isn't "FORMAT:PATH", or the file can't be read.
  """
  format_name, path = split(source)
  left_out: Counter[str] = Counter()
  solutions: Sequence[schema.Solution]
  if format_name == STORED:
    solutions = array_record.Stored(find(path))
  else:
    solutions, left_out = read(format_name, path)
  log_counts(source, len(solutions), left_out)
  return solutions


def log_counts(where: str, count: int, left_out: Mapping[str, int]) -> None:
  """Logs how many solutions there are, and what was left out and why."""
  reasons = ", ".join(
    f"{n:,} {why}" for why, n in sorted(left_out.items()) if n
  )
  more = f"; left out: {reasons}" if reasons else ""
  _logger.info(f"{where}: {count:,} solutions{more}")


def split(source: str) -> tuple[str, str]:
  # A mapping may hold a colon.
  head = _CALLED.match(source.rpartition("):")[0] + ")")
  if head:
    return head[0], source.removeprefix(head[0] + ":")
  format_name, colon, path = source.partition(":")
  if not colon:
    raise errors.InputError(
      f"data source {source!r}: write it FORMAT:PATH, as in"
      " jsonl:solutions.jsonl"
    )
  return format_name, path


def _given(text: str) -> tuple[str, str]:
  """Returns the format, jsonl if there is none, and the path of a file."""
  is_path = ":" not in text
  return ("jsonl", text) if is_path else split(text)
