"""Files that are read: regular ones only, and never more than their limit.

A device may never end, and a pipe can be read only once and hangs until someone
writes to it, whereas a command may read its input twice (a digest, a check). So
neither is opened. The standard input is copied to a file first.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import errno
import functools
import gzip
import os
import shutil
import stat
import sys
import tempfile
from typing import Any, cast, IO
import zlib

from prm_jax import errors
from prm_jax.runtime import exhausted
from prm_jax.runtime import limits

PathLike = str | os.PathLike[str]

# The standard input, as messages name it; it may be opened several times.
STDIN = "<stdin>"

BROKEN_GZIP = (gzip.BadGzipFile, zlib.error, EOFError)


def check_regular(path: PathLike) -> None:
  """Refuses a path that is there and is no regular file, before it is opened.

  Raises:
    InputError: It is a folder, a pipe, a device or a socket.
  """
  try:
    mode = os.stat(_on_disk(path)).st_mode
  except (OSError, ValueError):
    return  # Whoever opens it says why it can't.
  _check_mode(path, mode)


def _check_mode(path: PathLike, mode: int) -> None:
  reason = "not a regular file but a device or a socket; give a file"
  if stat.S_ISREG(mode):
    return
  if stat.S_ISDIR(mode):
    reason = "can't be read: Is a directory"
  if stat.S_ISFIFO(mode):
    reason = (
      "a pipe, not a regular file; write its content to a file first, or give -"
      " for the standard input where a command takes it"
    )
  raise errors.InputError(f"{path}: {reason}")


@contextlib.contextmanager
def opened(path: PathLike) -> Iterator[IO[bytes]]:
  """Opens a regular file, gunzipping `*.gz`; every failure names the file.

  A break in a gzip file is raised as one of BROKEN_GZIP.

  Raises:
    InputError: It can't be opened or read, or isn't a regular file.
  """
  try:
    with open(_descriptor(path), "rb") as f:
      packed = str(path).endswith(".gz")
      yield cast(IO[bytes], gzip.GzipFile(fileobj=f)) if packed else f
  except gzip.BadGzipFile:
    raise
  except OSError as e:
    reason = f"can't be read: {exhausted.reason_of(e)}"
    if isinstance(e, FileNotFoundError):
      reason = "no such file; check the path"
    raise errors.InputError(f"{path}: {reason}") from None


def _on_disk(path: PathLike) -> PathLike:
  return _copy_of_stdin().name if str(path) == STDIN else path


@functools.cache
def _copy_of_stdin() -> IO[bytes]:
  """Returns a temporary file with all of the standard input."""
  copy = tempfile.NamedTemporaryFile(prefix="prm_jax_stdin_")  # noqa: SIM115
  shutil.copyfileobj(sys.stdin.buffer, copy)
  copy.flush()
  return copy


def _descriptor(path: PathLike) -> int:
  try:
    # Without a wait for somebody who writes, if it is a pipe.
    fd = os.open(_on_disk(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
  except ValueError:
    raise errors.InputError(
      f"{str(path)!r}: can't be read: a NUL in its name"
    ) from None
  except OSError as e:
    if e.errno == errno.ENXIO:
      _check_mode(path, stat.S_IFSOCK)
    raise
  try:
    _check_mode(path, os.fstat(fd).st_mode)
  except BaseException:
    os.close(fd)
    raise
  return fd


def read_bytes(path: PathLike, most: int = limits.FILE_BYTES) -> bytes:
  """Returns the content of a file, gunzipped if its name ends in .gz.

  Args:
    path: The file.
    most: The number of bytes that it may hold.

  Raises:
    InputError: It can't be read, or holds more.
  """
  try:
    with opened(path) as f:
      content = f.read(most + 1)
  except BROKEN_GZIP as e:
    raise errors.InputError(
      f"{path}: broken gzip: {e}; copy it again"
    ) from None
  if len(content) > most:
    raise errors.InputError(
      f"{path}: holds more than {most >> 20} MiB, the limit for such a file;"
      " give the right one"
    )
  return content


def lines(f: Any, path: PathLike) -> Iterator[bytes]:
  """Yields each line of an open file, blank ones too, with its line break.

  Args:
    f: The file, of bytes.
    path: Its name, for messages.

  Raises:
    InputError: A line is too long.
  """
  number = 0
  while line := f.readline(limits.LINE_BYTES + 1):
    number += 1
    if len(line) > limits.LINE_BYTES:
      raise errors.InputError(
        f"{path}:{number}: a line of more than {limits.LINE_BYTES >> 20} MiB;"
        " write one JSON object per line"
      )
    yield line


def read_lines(path: PathLike) -> Iterator[tuple[int, bytes]]:
  """Yields the number and the content of each line that isn't blank.

  At most one line is in memory.

  Raises:
    InputError: It can't be read, or a line is too long.
  """
  with opened(path) as f:
    number = 0
    try:
      for number, line in enumerate(lines(f, path), 1):
        if not line.isspace():
          yield number, line
    except BROKEN_GZIP as e:
      raise errors.InputError(
        f"{path}:{number + 1}: broken gzip: {e}; copy the file again"
      ) from None
