"""One process at a time: locks that die with whoever holds them.

By POSIX `flock`: a killed process leaves no lock behind, only its name in the
file. A network file system must have it.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import fcntl
import os
import pathlib
import socket

from prm_jax import errors
from prm_jax.runtime import files

NAME = ".lock"


@contextlib.contextmanager
def held(folder: pathlib.Path, doing: str) -> Iterator[None]:
  """Holds a folder's lock inside; the file in it says who does.

  doing: what nobody else may do there meanwhile, as in "training into it".

  Raises:
    BusyError: another process holds it.
    InputError: the folder can't be written to.
  """
  path = folder / NAME
  try:
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
  except OSError as e:
    raise files.unwritable(path, e, "give another folder") from None
  try:
    if not taken(fd):
      who = os.read(fd, 200).decode("utf-8", "replace").strip()
      raise errors.BusyError(
        f"{folder}: another process ({who or 'unknown'}) is {doing}; wait for"
        " that one or end it, or give another folder"
      )
    os.ftruncate(fd, 0)
    os.write(fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    yield
  finally:
    os.close(fd)


def taken(fd: int) -> bool:
  """Returns whether this process has the lock of an open file now."""
  try:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    return False
  return True
