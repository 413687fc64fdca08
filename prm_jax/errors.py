"""The errors to raise if the user's input or machine is at fault."""

from __future__ import annotations


class InputError(ValueError):
  """The user's input can't be used: one line says what, where and the fix.

  exit_code: what a command ends with; docs/faults.md has all codes.
  """

  exit_code = 1


class BusyError(InputError):
  """Another process uses it."""


class DamagedError(InputError):
  """A checkpoint isn't what was saved, and there is no whole one to use."""

  exit_code = 3


class DiskFullError(InputError):
  """What was to be written didn't fit; what was there before is whole."""

  exit_code = 4


class NotFiniteError(InputError):
  """Too many updates in a row were skipped; saves are whole."""

  exit_code = 5
