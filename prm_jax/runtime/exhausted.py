"""What a machine has run out of: room on a disk, open files, or memory.

The system has a number for each, but libraries report most of them alike:
TensorStore calls a full disk, too many open files and too little memory
RESOURCE_EXHAUSTED, as XLA does with the memory of a device.
"""

from __future__ import annotations

from collections.abc import Iterator
import errno
import os
import re

from prm_jax import errors

DISK = (errno.ENOSPC, errno.EDQUOT)
OPEN_FILES = (errno.EMFILE, errno.ENFILE)
_ALL = (*DISK, *OPEN_FILES, errno.ENOMEM)

FILES = (
  "Too many open files: raise this process's limit, for example with"
  " ulimit -n 4096"
)
_MEMORY = (
  "use a smaller model or smaller batches, or a machine with more memory"
)


def errno_of(error: BaseException) -> int | None:
  """Returns the system's number of an error, or of one that it comes from."""
  for each in _chain(error):
    if isinstance(each, OSError) and each.errno is not None:
      return each.errno
    if isinstance(each, MemoryError):
      return errno.ENOMEM
    number = re.search(r"os_error_code='(\d+)'", str(each))
    if number:
      return int(number[1])
    for known in _ALL:
      if os.strerror(known) in str(each):
        return known
  return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
  seen: list[BaseException] = []
  while error is not None and error not in seen:
    seen.append(error)
    yield error
    error = error.__cause__ or error.__context__


def is_exhausted(error: BaseException) -> bool:
  """Returns whether the error says that one of these resources ran out."""
  return errno_of(error) in _ALL or "RESOURCE_EXHAUSTED" in str(error)


def reason(number: int) -> str:
  """Returns what a number of the system means, and for open files the fix."""
  return FILES if number in OPEN_FILES else os.strerror(number)


def reason_of(error: OSError) -> str:
  """Returns why the system refused, and for open files the fix."""
  return str(error) if error.errno is None else reason(error.errno)


def refusal(error: BaseException) -> errors.InputError | None:
  """Returns the error to report instead; None if this machine isn't the cause.

  A path that the system refuses is one, too: it may be too long, or in a folder
  that can't be searched.
  """
  number = errno_of(error)
  name = error.filename if isinstance(error, OSError) else None
  where = "" if name is None else f"{os.fsdecode(name)}: "
  if number in DISK:
    return errors.DiskFullError(
      f"{where}the disk is full; make room, and give the same command again"
    )
  if number in OPEN_FILES:
    text = f"{where}{FILES}"
  elif is_exhausted(error):
    message = " ".join(str(error).split())[:160]
    text = f"not enough memory{': ' * bool(message)}{message}; {_MEMORY}"
  elif where and number is not None:
    text = f"{where}{reason(number)}; give another path"
  else:
    return None
  return errors.InputError(text)
