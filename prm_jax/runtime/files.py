"""Text, JSON and JSON Lines files: read strictly, written whole or not at all."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Mapping
import contextlib
import gzip
import io
import json
import os
import pathlib
from typing import Any, IO
import zlib

from prm_jax import errors
from prm_jax.runtime import exhausted

PathLike = str | os.PathLike[str]


_BROKEN_GZIP = (gzip.BadGzipFile, zlib.error, EOFError)


@contextlib.contextmanager
def open_text(
  path: PathLike, *, bad_bytes: str = "strict"
) -> Iterator[IO[str]]:
  """Opens a text file, gunzipping `*.gz`; every failure names the file."""
  opener = gzip.open if str(path).endswith(".gz") else open
  try:
    with opener(path, "rt", encoding="utf-8", errors=bad_bytes) as f:
      yield f
  except FileNotFoundError:
    raise errors.InputError(f"{path}: no such file; check the path") from None
  except _BROKEN_GZIP as e:
    raise errors.InputError(
      f"{path}: broken gzip: {e}; copy it again"
    ) from None
  except OSError as e:
    raise errors.InputError(f"{path}: can't be read: {_reason(e)}") from None
  except UnicodeDecodeError:
    raise errors.InputError(f"{path}: not UTF-8; convert it to UTF-8") from None


def read_text(path: PathLike) -> str:
  """Returns a file's text; a byte that isn't UTF-8 is named by its line."""
  # surrogateescape lets bad bytes through, so that they can be counted up to.
  with open_text(path, bad_bytes="surrogateescape") as f:
    text = f.read()
  try:
    text.encode()
  except UnicodeEncodeError as e:
    line = text.count("\n", 0, e.start) + 1
    column = e.start - text.rfind("\n", 0, e.start)
    raise errors.InputError(
      f"{path}:{line}: not UTF-8 at column {column}; convert the file to UTF-8"
    ) from None
  return text


def read_json(path: PathLike) -> dict[str, Any]:
  """Returns the object in a JSON file; raises errors.InputError."""
  try:
    record = json.loads(read_text(path))
  except json.JSONDecodeError as e:
    raise errors.InputError(
      f"{path}:{e.lineno}: not JSON: {e.msg} at column {e.colno}; copy the file"
      " again"
    ) from None
  except RecursionError:
    raise errors.InputError(
      f"{path}: nested too deeply; copy it again"
    ) from None
  if not isinstance(record, dict):
    raise errors.InputError(
      f"{path}: expected a JSON object, found {type(record).__name__}"
    )
  return record


def read_records(path: PathLike) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields ("FILE:LINE", record) for each line that isn't blank."""
  # surrogateescape lets bad bytes through, so that their own line is named.
  with open_text(path, bad_bytes="surrogateescape") as f:
    number = 0
    try:
      for number, line in enumerate(f, 1):
        if line.removeprefix("\ufeff").strip():
          where = f"{path}:{number}"
          yield where, parse_record(line, where)
    except _BROKEN_GZIP as e:
      raise errors.InputError(
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
    raise errors.InputError(
      f'"{twice}" occurs twice in an object; keep one of them'
    )
  return record


def parse_record(line: str, where: str) -> dict[str, Any]:
  """Returns the JSON object in a text, mostly a line, read strictly.

  Args:
    line: The text.
    where: Its place, for messages.

  Raises:
    InputError: It isn't one object, or has NaN, a name twice or bytes that
      aren't UTF-8.
  """
  try:
    line.encode()
  except UnicodeEncodeError as e:
    raise errors.InputError(
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
  except errors.InputError as e:
    raise errors.InputError(f"{where}: {e}") from None
  except json.JSONDecodeError as e:
    raise errors.InputError(
      f"{where}: not JSON: {e.msg} at column {e.colno};"
      " write one JSON object per line"
    ) from None
  except UnicodeEncodeError:
    raise errors.InputError(f"{where}: {_LONE_SURROGATE}") from None
  except ValueError as e:
    # An integer of more than 4,300 digits gets here too.
    reason = str(e).partition("; use sys.")[0]
    raise errors.InputError(f"{where}: not JSON: {reason}") from None
  except RecursionError:
    raise errors.InputError(f"{where}: nested too deeply; flatten it") from None
  if not isinstance(record, dict):
    raise errors.InputError(
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
    raise errors.InputError(
      f"{text}: remote paths aren't supported yet; give a local one"
    )
  return pathlib.Path(text)


@contextlib.contextmanager
def replacing(path: PathLike, mode: str = "w") -> Iterator[IO[Any]]:
  """Opens a temporary file that becomes `path` only if the block succeeds.

  Args:
    path: The file.
    mode: w for UTF-8 text, gzipped if the path ends in .gz; wb for bytes.
  """
  # A link stays a link, to the new file.
  target = pathlib.Path(os.path.realpath(path))
  # Hosts that share a disk may have equal process numbers, as in containers.
  mine = f"{os.uname().nodename}.{os.getpid()}"
  # With the end of a name that is almost as long as a name may be.
  temporary = target.with_name(f".{target.name[-40:]}.{mine}.tmp")
  gzipped = mode == "w" and target.suffix == ".gz"
  encoding = "utf-8" if mode == "w" and not gzipped else None
  try:
    if target.exists() and not target.is_file():
      raise errors.InputError(f"{path}: not a regular file; give another path")
    target.parent.mkdir(parents=True, exist_ok=True)
    f = open(temporary, "wb" if gzipped else mode, encoding=encoding)  # noqa: SIM115
  except (FileExistsError, NotADirectoryError):
    raise errors.InputError(
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
    if isinstance(e, OSError) and e.errno in exhausted.DISK:
      raise unwritable(path, e) from None
    raise


def unwritable(
  path: PathLike, error: OSError, fix: str = ""
) -> errors.InputError:
  """Returns the error to raise if a file can't be written.

  A full disk has an exit code of its own.

  Args:
    path: The file.
    error: What the system reported.
    fix: What is safe, and what to do.
  """
  full = error.errno in exhausted.DISK
  kind = errors.DiskFullError if full else errors.InputError
  return kind(
    f"{path}: can't be written: {_reason(error)}{'; ' * bool(fix)}{fix}"
  )


def _reason(error: OSError) -> str:
  if error.errno is None:
    return str(error)
  return exhausted.reason(error.errno)


@contextlib.contextmanager
def _gzipped(raw: IO[bytes]) -> Iterator[IO[str]]:
  # No name and no time in its header: equal content makes equal bytes.
  with (
    gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
    io.TextIOWrapper(packed, encoding="utf-8") as text,
  ):
    yield text


def dump_json(value: Any, where: str, indent: int | None = None) -> str:
  """Returns the JSON of a value and a line break.

  Args:
    value: The value.
    where: The name of the value in an error.
    indent: The indent of each level.

  Raises:
    InputError: The value can't be JSON.
  """
  try:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    text.encode()
  except UnicodeEncodeError:
    raise errors.InputError(f"{where}: {_LONE_SURROGATE}") from None
  except ValueError as e:
    raise errors.InputError(
      f"{where}: can't be written as JSON: {e}; write null instead"
    ) from None
  return text + "\n"


def write_records(path: PathLike, records: Iterable[Mapping[str, Any]]) -> int:
  """Writes one JSON object per line, all or nothing; returns their number.

  Raises:
    errors.InputError: a number isn't finite, or a text holds half a character.
  """
  count = 0
  with replacing(path) as f:
    for count, record in enumerate(records, 1):
      f.write(dump_json(record, f"{path}:{count}"))
  return count


def differences(a: Any, b: Any, prefix: str = "") -> set[str]:
  """Returns the names, as "model.remat", of what isn't the same in JSON data."""
  if isinstance(a, Mapping) and isinstance(b, Mapping):
    names: set[str] = set()
    for key in {*a, *b}:
      where = f"{prefix}.{key}" if prefix else str(key)
      names |= differences(a.get(key), b.get(key), where)
    return names
  return set() if a == b else {prefix}


def write_json(path: PathLike, value: Any) -> None:
  """Writes one indented JSON document, all or nothing."""
  with replacing(path) as f:
    f.write(dump_json(value, str(path), indent=2))
