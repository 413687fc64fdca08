"""JSON Lines whose lines each end in a digest, so that damage is noticed.

The digest is the last field, `"crc32": "0a1b2c3d"`: the CRC-32 of the bytes
before it. It detects every flipped bit, whatever that makes of the line; it
contains no secret and detects no attack.

Lines are appended, so a killed process leaves at most its last one unfinished:
torn. Any other line that can't be used is damaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
import json
import logging
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
  """

  number: int
  content: bytes
  record: Record | None
  is_torn: bool


def line_of(text: str) -> str:
  """Returns the line of a JSON object that has a field, with its digest."""
  body = text.rstrip("\n").removesuffix("}")
  return f'{body}, "{FIELD}": "{zlib.crc32(body.encode()):08x}"}}\n'


def scan(lines: Iterable[bytes]) -> Iterator[Line]:
  """Yields every line of a file, given its lines with their line breaks."""
  rest = enumerate(lines, 1)
  following = next(rest, None)
  while following is not None:
    number, content = following
    following = next(rest, None)
    record = _checked(content) if content.endswith(b"\n") else None
    # A line break is written last. A power failure can leave NULs instead.
    is_written = content.endswith(b"\n") and content.strip(b"\0\n")
    is_torn = following is None and not is_written
    yield Line(number, content, record, is_torn)


def read(path: files.PathLike) -> Iterator[tuple[str, Record]]:
  """Yields ("FILE:LINE", record) for each line; leaves a torn one out.

  Raises:
    InputError: The file can't be read, or a line is damaged.
  """
  with inputs.opened(path) as f:
    for line in scan(map(_ended, inputs.lines(f, path))):
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
      if key in keys:
        raise errors.InputError(f"{what} is there twice; {fix}")
      if last is not None and step < last:
        raise errors.InputError(f"{what} comes after one of step {last}; {fix}")
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


def _checked(content: bytes) -> Record | None:
  """Returns a line's object; None if there is none, or its digest isn't right."""
  # An editor may write line ends of two bytes.
  line = content.removesuffix(b"\n").removesuffix(b"\r")
  match = _END.fullmatch(line, max(len(line) - _END_LENGTH, 0))
  body = line[: match.start()] if match else b""
  if match is None or int(match[1], 16) != zlib.crc32(body):
    return None
  return _parsed(body + b"}")


def _parsed(body: bytes) -> Record | None:
  """Returns the object in JSON text, or None."""
  try:
    record = json.loads(body.decode())
  except (ValueError, RecursionError):
    return None
  return record if isinstance(record, dict) else None
