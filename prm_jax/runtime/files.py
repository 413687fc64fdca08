"""Text, JSON and JSON Lines files: read strictly, written whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
import contextlib
import gzip
import hashlib
import io
import json
import os
import pathlib
from typing import Any, IO

from prm_jax import errors
from prm_jax.runtime import exhausted
from prm_jax.runtime import inputs
from prm_jax.runtime import json_text
from prm_jax.runtime import limits

PathLike = inputs.PathLike

# What `-` on the command line stands for, so that messages name it.
STDIN = inputs.STDIN
STDOUT = "<stdout>"


@contextlib.contextmanager
def open_text(
  path: PathLike, *, bad_bytes: str = "strict"
) -> Iterator[IO[str]]:
  """Opens a text file, gunzipping `*.gz`; every failure names the file."""
  try:
    with (
      inputs.opened(path) as raw,
      io.TextIOWrapper(raw, "utf-8", bad_bytes) as f,
    ):
      yield f
  except inputs.BROKEN_GZIP as e:
    raise errors.InputError(
      f"{path}: broken gzip: {e}; copy it again"
    ) from None
  except UnicodeDecodeError:
    raise errors.InputError(f"{path}: not UTF-8; convert it to UTF-8") from None


def read_bytes(path: PathLike) -> bytes:
  """Returns a file's content, of limits.FILE_BYTES at most."""
  return inputs.read_bytes(path)


def read_text(path: PathLike, most: int = limits.FILE_BYTES) -> str:
  """Returns a file's text, with line ends of any kind as "\\n".

  Args:
    path: The file.
    most: The number of bytes that it may hold.

  Raises:
    InputError: It can't be read; a byte that isn't UTF-8 is named by its line.
  """
  content = inputs.read_bytes(path, most)
  text = _decoded(content, path, 1)
  return text.replace("\r\n", "\n").replace("\r", "\n")


def _decoded(content: bytes, path: PathLike, first_line: int) -> str:
  """Returns the text of some lines of a file.

  Args:
    content: The lines.
    path: The file.
    first_line: The number of the first of them.
  """
  try:
    return content.decode()
  except UnicodeDecodeError as e:
    line = first_line + content.count(b"\n", 0, e.start)
    begin = content.rfind(b"\n", 0, e.start) + 1
    column = len(content[begin : e.start].decode()) + 1
    raise errors.InputError(
      f"{path}:{line}: not UTF-8 at column {column}; convert the file to UTF-8"
    ) from None


def read_json(path: PathLike) -> dict[str, Any]:
  """Returns the object in a JSON file; raises errors.InputError."""
  text = read_text(path, limits.JSON_BYTES)
  return _object(text, str(path), "copy the file again", numbered=True)


def read_records(path: PathLike) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields ("FILE:LINE", record) for each line that isn't blank."""
  for number, line in inputs.read_lines(path):
    where = f"{path}:{number}"
    text = _decoded(line, path, number)
    if text := text.rstrip().removeprefix("\ufeff"):
      yield where, _object(text, where, _ONE_EACH)


_ONE_EACH = "write one JSON object per line"


def _object(
  text: str, where: str, fix: str, *, numbered: bool = False
) -> dict[str, Any]:
  """Returns the JSON object in a text.

  Args:
    text: The text.
    where: The name of the text in an error.
    fix: What to do if it isn't JSON.
    numbered: Whether an error has the line's number, too.

  Raises:
    InputError: It isn't an object, or isn't JSON that we read.
  """
  try:
    # Some editors put a byte order mark at the start of a file.
    record = json_text.parse(text.removeprefix("\ufeff"))
    if isinstance(record, dict):
      return record
    reason = f"expected a JSON object, found {type(record).__name__}"
  except json_text.JSONTextError as e:
    where = f"{where}:{e.line}" if numbered else where
    reason = f"{e.reason}; {e.fix or fix}"
  raise errors.InputError(f"{where}: {reason}")


def digest_of(path: PathLike) -> str:
  """Returns the SHA-256 of a file, as its bytes are on the disk."""
  with open(path, "rb") as f:
    return hashlib.file_digest(f, "sha256").hexdigest()


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
    path: The file. STDOUT is the standard output, which gets what is written
      at once: it can't be taken back.
    mode: w for UTF-8 text, gzipped if the path ends in .gz; wb for bytes.
  """
  if str(path) == STDOUT:
    with _standard_output(mode) as f:
      yield f
    return
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


@contextlib.contextmanager
def _standard_output(mode: str) -> Iterator[IO[Any]]:
  """Opens the standard output, also if what is printed goes elsewhere."""
  encoding = None if "b" in mode else "utf-8"
  try:
    with open(1, mode, encoding=encoding, closefd=False) as f:
      yield f
  except OSError as e:
    if e.errno in exhausted.DISK:
      raise unwritable(STDOUT, e) from None
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
  reason = exhausted.reason_of(error)
  return kind(f"{path}: can't be written: {reason}{'; ' * bool(fix)}{fix}")


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
    InputError: The value can't be JSON, or JSON that we read again.
  """
  try:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    text.encode()
    json_text.check_nesting(text)
  except (RecursionError, ValueError) as e:
    raise errors.InputError(f"{where}: {_no_json(e)}") from None
  return text + "\n"


def _no_json(error: Exception) -> str:
  """Returns why a value isn't JSON, and what to do."""
  if isinstance(error, UnicodeEncodeError):
    return "; ".join(json_text.LONE_SURROGATE)
  if isinstance(error, RecursionError):
    return "nested too deeply; flatten it"
  if isinstance(error, json_text.JSONTextError):
    return str(error)
  return f"can't be written as JSON: {error}; write null instead"


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
