"""The errors to raise if the user's input or machine is at fault."""

from __future__ import annotations

from collections.abc import Iterable

# A message quotes values of files, which may be of any length.
_LONGEST = 2_000


def to_install(extra: str) -> str:
  """Says how an extra is installed, for a message that names it.

  The package is on no index, so its name alone installs nothing.

  Args:
    extra: One of the optional dependencies of pyproject.toml.

  Returns:
    The command, and where it works.
  """
  return f"pip install -e '.[{extra}]' in a checkout of prm_jax"


class InputError(ValueError):
  """The user's input can't be used; one line says what, where and the fix.

  The attribute exit_code is what a command exits with; docs/faults.md lists all
  codes.

  Args:
    message: The line. Of more than 2,000 characters the middle is left out.
  """

  exit_code = 1

  def __init__(self, message: str = ""):
    if len(message) > _LONGEST:
      half = (_LONGEST - 5) // 2
      message = f"{message[:half]} ... {message[-half:]}"
    super().__init__(message)


def raise_first(faults: Iterable[str], of: str = "") -> None:
  """Raises the first of the faults, if there is one.

  A value declares all that it refuses in one generator. They are looked for one
  after the other, so each may rely on those before it.

  Args:
    faults: What is wrong, each in a line.
    of: What begins the message: the name of the value, with its colon.

  Raises:
    InputError: There is a fault.
  """
  for fault in faults:
    raise InputError(of + fault)


class BusyError(InputError):
  """Another process uses the file or folder."""


class MovedError(InputError):
  """The folder of a run was renamed or replaced while the run wrote to it."""


class DamagedError(InputError):
  """A checkpoint isn't what was saved, and no undamaged one is left."""

  exit_code = 3


class DiskFullError(InputError):
  """The disk is too full for what was to be written; older files are whole."""

  exit_code = 4


class NotFiniteError(InputError):
  """Too many updates in a row were skipped; the checkpoints are undamaged."""

  exit_code = 5
