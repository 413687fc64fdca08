"""JSON Lines whose lines each have a digest, so that damage is noticed.

A digest is a CRC-32; it contains no secret and detects no attack. It is in one
of two places:

- The last field of the line, `"crc32": "0a1b2c3d"`, of the bytes before it.
- A line of the file NAME.crc, of the line's bytes without its line break. The
  digest is written first, so a killed process leaves no line without one.

If there is a NAME.crc, a line must have its digest there or in itself. Lines of
a version before digests have none and aren't checked, but after a line with a
digest no line may lack it.

Lines are appended, so a killed process leaves at most its last one unfinished:
torn. Any other line that can't be used is damaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
import contextlib
import json
import logging
import os
import pathlib
import re
from typing import Any, NamedTuple
import zlib

from prm_jax import errors
from prm_jax.runtime import files
from prm_jax.runtime import inputs

_logger = logging.getLogger(__name__)

FIELD = "crc32"
_END = re.compile(rb', "crc32": "([0-9a-f]{8})"}')
_END_LENGTH = len(b', "crc32": "01234567"}')
# A message names so many lines.
_NAMED = 8

Record = dict[str, Any]


class Line(NamedTuple):
  """A line of a file.

  Args:
    number: Its number, from 1 on.
    content: Its bytes, with the line break.
    record: The object in it, without the digest; None if the line is torn or
      damaged.
    is_torn: Whether it is the unfinished last line of a killed process.
    is_checked: Whether it has its digest.
  """

  number: int
  content: bytes
  record: Record | None
  is_torn: bool
  is_checked: bool


def line_of(text: str) -> str:
  """Returns the line of a JSON object that has a field, with its digest."""
  body = text.rstrip("\n").removesuffix("}")
  return f'{body}, "{FIELD}": "{zlib.crc32(body.encode()):08x}"}}\n'


def append(fd: int, text: str, *, sync: bool = False) -> int:
  """Appends a JSON object's line to a file, all of it or nothing.

  Args:
    fd: The descriptor of the file, which nobody else writes.
    text: The object; see line_of.
    sync: Whether the line is on disk when this returns.

  Returns:
    Where the line begins, in bytes.

  Raises:
    OSError: The disk is full, for example.
  """
  begin = os.fstat(fd).st_size
  rest = memoryview(line_of(text).encode())
  try:
    while rest:
      rest = rest[os.write(fd, rest) :]
    if sync:
      os.fsync(fd)
  except OSError:
    # If this fails too, the next run cuts the torn line off.
    with contextlib.suppress(OSError):
      os.ftruncate(fd, begin)
    raise
  return begin


def digests_of(path: files.PathLike) -> pathlib.Path:
  """Returns the path of the digests of a file's lines."""
  path = pathlib.Path(path)
  return path.with_name(f"{path.name}.crc")


def digest_of(line: bytes) -> str:
  """Returns the digest of a line as its file of digests has it."""
  # An editor may write line ends of two bytes.
  body = line.removesuffix(b"\n").removesuffix(b"\r")
  return f"{zlib.crc32(body):08x}"


def read_digests(path: files.PathLike) -> frozenset[str] | None:
  """Returns the digests of a file's lines; None if they have no file."""
  digests = digests_of(path)
  if not digests.exists():
    return None
  return frozenset(inputs.read_bytes(digests).decode(errors="replace").split())


def scan(
  lines: Iterable[bytes], digests: frozenset[str] | None = None
) -> Iterator[Line]:
  """Yields every line of a file.

  Args:
    lines: Its lines with their line breaks.
    digests: See read_digests.
  """
  rest = enumerate(lines, 1)
  following = next(rest, None)
  has_digests = False
  while following is not None:
    number, content = following
    following = next(rest, None)
    record, digest_is_right = _checked(content)
    if digests is not None and digest_is_right is None:
      digest_is_right = digest_of(content) in digests
    is_whole = record is not None and content.endswith(b"\n")
    if not is_whole or digest_is_right is False:
      record = None
    if digest_is_right is None and has_digests:
      record = None
    has_digests = has_digests or bool(digest_is_right)
    # A line break is written last. A power failure can leave NULs instead.
    is_written = content.endswith(b"\n") and content.strip(b"\0\n")
    is_torn = following is None and not is_written
    yield Line(number, content, record, is_torn, bool(digest_is_right))


def read(path: files.PathLike) -> Iterator[tuple[str, Record]]:
  """Yields ("FILE:LINE", record) for each line; leaves a torn one out.

  Raises:
    InputError: The file can't be read, or a line is damaged.
  """
  digests = read_digests(path)
  with inputs.opened(path) as f:
    for line in scan(map(_ended, inputs.lines(f, path)), digests):
      where = f"{path}:{line.number}"
      if line.is_torn:
        _logger.warning(f"{where}: warning: unfinished, and left out")
        return
      if line.record is None:
        raise errors.InputError(
          f"{where}: damaged: it isn't what was written; put the original line"
          " back, or take the line out"
        )
      yield where, line.record


def read_metrics(path: files.PathLike) -> Iterator[tuple[str, Record]]:
  """Yields, as `read`, the records of a run's metrics.jsonl.

  Raises:
    InputError: As of `read`; or a record is there twice, or after that of a
      later step.
  """
  keys: set[tuple[str, int]] = set()
  last = None
  for where, record in read(path):
    key = metrics_key(record)
    if key is not None:
      kind, step = key
      what = f"{where}: the {kind} record of step {step}"
      fix = "take the line out"
      is_late = last is not None and step < last
      if key in keys or is_late:
        why = f"comes after one of step {last}"
        why = "is there twice" if key in keys else why
        raise errors.InputError(f"{what} {why}; {fix}")
      keys.add(key)
      last = step
    yield where, record


def metrics_key(record: Record) -> tuple[str, int] | None:
  """Returns the kind and step of a record of metrics; None of another one.

  A run writes one record of each kind and step.
  """
  kind, step = record.get("kind"), record.get("step")
  if not isinstance(kind, str) or type(step) is not int:
    return None
  return kind, step


def metric(record: Mapping[str, Any], name: str) -> Any:
  """Returns a metric by its name; None if there is none.

  A loss that isn't in nats is named loss. Both names find it: configs and runs
  of before have loss_nats for each.
  """
  if name in record:
    return record[name]
  source, slash, last = name.rpartition("/")
  other = dict(loss="loss_nats", loss_nats="loss").get(last, last)
  return record.get(f"{source}{slash}{other}")


def named(numbers: Sequence[int]) -> str:
  """Returns the numbers of lines or steps in words, but not all of many."""
  some = ", ".join(map(str, numbers[:_NAMED]))
  rest = len(numbers) - _NAMED
  return some if rest <= 0 else f"{some} and {rest:,} more"


def _ended(line: bytes) -> bytes:
  """Returns a line; whole, it gets the break that an editor may leave out."""
  if line.endswith(b"\n") or _parsed(line) is None:
    return line
  return line + b"\n"


def _checked(content: bytes) -> tuple[Record | None, bool | None]:
  """Returns a line's object, and whether its digest is right, None without."""
  # An editor may write line ends of two bytes.
  line = content.removesuffix(b"\n").removesuffix(b"\r")
  match = _END.fullmatch(line, max(len(line) - _END_LENGTH, 0))
  if match is None:
    record = _parsed(line)
    # A digest that isn't as we write it: the line was edited.
    return record, False if record is not None and FIELD in record else None
  body = line[: match.start()]
  return _parsed(body + b"}"), int(match[1], 16) == zlib.crc32(body)


def _parsed(body: bytes) -> Record | None:
  """Returns the object in JSON text, or None."""
  try:
    record = json.loads(body.decode())
  except (ValueError, RecursionError):
    return None
  return record if isinstance(record, dict) else None
