"""Locks for one process at a time, which end with the process that has them.

They are POSIX `flock`: a killed process leaves no lock, only its name in the
file. A network file system must support it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import fcntl
import functools
import os
import pathlib
import socket

from prm_jax import errors
from prm_jax.runtime import files
from prm_jax.runtime import inputs

NAME = ".lock"


@contextlib.contextmanager
def held(folder: pathlib.Path, doing: str) -> Iterator[Callable[[], None]]:
  """Holds a folder's lock inside; the lock file names the process.

  Yields a function that raises MovedError if the folder no longer holds the
  lock file, because it was renamed, removed or replaced.

  Args:
    folder: The folder.
    doing: What no other process may do there, such as "training into it".

  Raises:
    BusyError: Another process holds the lock.
    InputError: The folder can't be written to.
  """
  path = folder / NAME
  with opened(path, path, "give another folder") as fd:
    if not taken(fd):
      who = os.read(fd, 200).decode("utf-8", "replace").strip()
      raise errors.BusyError(
        f"{folder}: another process ({who or 'unknown'}) is {doing}; wait for"
        " that one or end it, or give another folder"
      )
    os.ftruncate(fd, 0)
    os.write(fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    yield functools.partial(_check_place, folder, path, fd)


def _check_place(folder: pathlib.Path, path: pathlib.Path, fd: int) -> None:
  """Raises MovedError if another file or none has the name of a lock file."""
  own = os.fstat(fd)
  try:
    there = os.stat(path)
  except OSError:
    there = None
  if there is not None and os.path.samestat(own, there):
    return
  now = _place_of(fd)
  if now is None:
    raise errors.MovedError(
      f"{folder}: it or its {NAME} was removed during the run, which ends; the"
      " same command resumes from the last save that is left"
    )
  raise errors.MovedError(
    f"{folder}: was renamed during the run, which ends; its work is in"
    f" {now.parent}: give that folder to resume from its last save. What a save"
    " under way may have left under the old name isn't needed"
  )


def _place_of(fd: int) -> pathlib.Path | None:
  """Returns where an open file is now; None if that isn't known."""
  try:
    path = pathlib.Path(os.readlink(f"/proc/self/fd/{fd}"))
    return path if os.path.samestat(os.fstat(fd), os.stat(path)) else None
  except OSError:  # it was removed, or this system has no /proc
    return None


@contextlib.contextmanager
def opened(path: pathlib.Path, named: pathlib.Path, fix: str) -> Iterator[int]:
  """Yields the descriptor of a lock file, which is made if need be.

  Args:
    path: of the lock file.
    named: the file or folder that an error names.
    fix: what an error advises.

  Raises:
    InputError: it can't be written to.
  """
  try:
    path.absolute().parent.mkdir(parents=True, exist_ok=True)
    inputs.check_regular(path)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
  except OSError as e:
    raise files.unwritable(named, e, fix) from None
  try:
    yield fd
  finally:
    os.close(fd)


def taken(fd: int) -> bool:
  """Returns whether this process has the lock of an open file now."""
  try:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    return False
  return True
