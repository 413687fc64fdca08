"""The errors to raise if the user's input or machine is at fault."""

from __future__ import annotations


class InputError(ValueError):
  """The user's input can't be used; one line says what, where and the fix.

  The attribute exit_code is what a command exits with; docs/faults.md lists all
  codes.
  """

  exit_code = 1


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
