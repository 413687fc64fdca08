"""A file of finished requests, so that no request is paid for twice."""

from __future__ import annotations

from collections.abc import Callable
import json
import logging
import os
from typing import Any, TypeGuard

from prm_jax import errors
from prm_jax.runtime import checked_lines
from prm_jax.runtime import files
from prm_jax.runtime import inputs
from prm_jax.runtime import locks

_logger = logging.getLogger(__name__)

Record = dict[str, Any]


class Journal:
  """Finished requests in a file, one JSON object per line, found by key.

  Each line ends in its digest. A damaged one stays in the file and isn't used:
  its request is made again.

  torn_lines: 1 if the last line of a killed run was cut off, else 0.
  damaged_lines: the number of damaged lines.
  """

  def __init__(
    self,
    path: files.PathLike,
    clock: Callable[[], float],
    sync_every_s: float = 1.0,
  ):
    """Opens or makes the file, and locks it.

    Args:
      path: The file.
      clock: Returns the time in seconds.
      sync_every_s: How often lines are forced to disk, in seconds.

    Raises:
      InputError: The file can't be used.
    """
    self._path, self._clock, self._every_s = path, clock, sync_every_s
    self._at: dict[str, int] = {}
    self.torn_lines = self.damaged_lines = 0
    inputs.check_regular(path)
    try:
      # What is written unbuffered outlives this process at once.
      self._out = open(path, "ab", buffering=0)  # noqa: SIM115
      self._in = open(path, "rb")  # noqa: SIM115
    except OSError as e:
      raise errors.InputError(
        f"{path}: can't be opened: {e.strerror}; give another journal"
      ) from None
    try:
      self._read()
    except BaseException:
      self._in.close()
      self._out.close()
      raise
    self._synced_s = clock()

  def get(self, key: str) -> Record | None:
    """Returns the reply to a request, None if the journal lacks it.

    Raises:
      InputError: The line was damaged after the journal was opened.
    """
    if key not in self._at:
      return None
    self._in.seek(self._at[key])
    (line,) = checked_lines.scan([self._in.readline()])
    if not _is_reply(line.record) or line.record["key"] != key:
      raise errors.InputError(
        f"{self._path}: was damaged during the run; start again: only what is"
        " damaged is asked for again"
      )
    return line.record["found"]

  def put(self, key: str, who: Record, record: Record) -> None:
    """Adds a line; it is on disk within sync_every_s of further lines."""
    text = json.dumps(dict(key=key) | who | dict(found=record))
    line = checked_lines.line_of(text).encode()
    end = self._out.seek(0, os.SEEK_END)
    try:
      rest = memoryview(line)
      while rest:
        rest = rest[self._out.write(rest) :]
    except OSError as e:
      self._out.truncate(end)
      raise self._full(e) from None
    self._at[key] = end
    if self._clock() - self._synced_s >= self._every_s:
      self.sync()

  def sync(self) -> None:
    """Forces all lines to disk."""
    try:
      os.fsync(self._out.fileno())
    except OSError as e:
      raise self._full(e) from None
    self._synced_s = self._clock()

  def close(self) -> None:
    """Closes the file and releases the lock."""
    if not self._out.closed:
      with self._in, self._out:
        self.sync()

  def _full(self, error: OSError) -> errors.InputError:
    fix = "make room and start again: what is in it isn't asked for again"
    return files.unwritable(self._path, error, fix)

  def _read(self) -> None:
    """Reads the lines of the file, and cuts off a torn last one."""
    if not locks.taken(self._out.fileno()):
      raise errors.InputError(
        f"{self._path}: another run writes this journal; give each its own"
      )
    end, bad = 0, []
    for line in checked_lines.scan(inputs.lines(self._in, self._path)):
      begins = _BEGIN.startswith(line.content[: len(_BEGIN)])
      if line.is_torn and (begins or self._at):
        self.torn_lines = 1
        break
      if _is_reply(line.record):
        self._at[line.record["key"]] = end
      else:
        bad.append(line.number)
      end += len(line.content)
    if bad and not self._at:
      raise errors.InputError(
        f"{self._path}:{bad[0]}: no record of a journal; give another file,"
        " or take this line out"
      )
    if bad:
      self.damaged_lines = len(bad)
      _logger.warning(
        f"{self._path}:{checked_lines.named(bad)}: WARNING: damaged and not"
        " used; these requests are made again"
      )
    self._out.truncate(end)


_BEGIN = b'{"key": "'


def _is_reply(record: Record | None) -> TypeGuard[Record]:
  return (
    record is not None
    and isinstance(record.get("key"), str)
    and isinstance(record.get("found"), dict)
  )
