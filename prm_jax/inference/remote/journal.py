"""A file of finished requests, so that no request is paid for twice."""

from __future__ import annotations

from collections.abc import Callable
import json
import os
from typing import Any

from prm_jax import errors
from prm_jax.runtime import files
from prm_jax.runtime import locks

Record = dict[str, Any]


class Journal:
  """Finished requests in a file, one JSON object per line, found by key.

  torn_lines: 1 if the last line of a killed run was cut off, else 0.
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
    self.torn_lines = 0
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
    """Returns the reply to a request, None if the journal lacks it."""
    if key not in self._at:
      return None
    self._in.seek(self._at[key])
    return _parsed(self._in.readline())["found"]

  def put(self, key: str, who: Record, record: Record) -> None:
    """Adds a line; it is on disk after at most sync_every_s of further lines."""
    line = json.dumps(dict(key=key) | who | dict(found=record)).encode() + b"\n"
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
    return errors.InputError(
      f"{self._path}: can't be written: {error.strerror}; make room and start"
      " again: what is in it isn't asked for again"
    )

  def _read(self) -> None:
    """Reads the lines of the file, and cuts off a torn last one."""
    if not locks.taken(self._out.fileno()):
      raise errors.InputError(
        f"{self._path}: another run writes this journal; give each its own"
      )
    end = 0
    for number, line in enumerate(self._in, 1):
      try:
        if line.endswith(b"\n"):
          self._at[_parsed(line)["key"]] = end
          end += len(line)
        elif _BEGIN.startswith(line[: len(_BEGIN)]):
          self.torn_lines = 1
        else:
          raise ValueError
      except (ValueError, KeyError, TypeError):
        raise errors.InputError(
          f"{self._path}:{number}: no record of a journal; give another file,"
          " or take this line out"
        ) from None
    self._out.truncate(end)


_BEGIN = b'{"key": "'


def _parsed(line: bytes) -> Record:
  """Returns a line's record; raises ValueError, KeyError or TypeError."""
  record = json.loads(line)
  if not isinstance(record["key"], str) or not isinstance(
    record["found"], dict
  ):
    raise TypeError
  return record
