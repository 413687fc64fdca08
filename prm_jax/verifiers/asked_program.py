"""A program that answers on its pipes, within limits of time and length."""

from __future__ import annotations

import os
import re
import select
import subprocess
import time

_MOST_BYTES = 1 << 20


class UntoldError(Exception):
  """There is no answer, or one that says nothing of what was asked."""


class AskedProgram:
  """A running program.

  Attributes:
    process: Its process.
  """

  def __init__(self, process: subprocess.Popen[bytes], name: str):
    """Makes one.

    Args:
      process: The program.
      name: What messages call it.
    """
    assert process.stdin is not None and process.stdout is not None
    self.process = process
    self._in, self._out = process.stdin.fileno(), process.stdout.fileno()
    os.set_blocking(self._in, False)
    self._read, self._name = b"", name

  def exchange(
    self, data: bytes, end: re.Pattern[bytes], limit_s: float
  ) -> tuple[bytes, re.Match[bytes]]:
    """Returns what the program says, and the end of it.

    Args:
      data: What it is sent.
      end: What its answer ends with.
      limit_s: The longest that it may take, in seconds.

    Raises:
      UntoldError: There is no answer in time, or a longer one than 1 MiB.
    """
    deadline = time.monotonic() + limit_s
    while not (found := end.search(self._read)):
      left_s = max(0.0, deadline - time.monotonic())
      writes = [self._in] if data else []
      reads, writes, _ = select.select([self._out], writes, [], left_s)
      if not reads and not writes:
        raise UntoldError(f"not decided within {limit_s:g} s")
      try:
        if writes:
          data = data[os.write(self._in, data) :]
        more = os.read(self._out, 1 << 16) if reads else None
      except OSError:  # it has ended
        more = b""
      if more == b"":
        raise UntoldError(f"{self._name} ended: {_last_line(self._read)}")
      self._read += more or b""
      if len(self._read) > _MOST_BYTES:
        raise UntoldError(f"{self._name} said more than 1 MiB")
    said, self._read = self._read[: found.start()], self._read[found.end() :]
    return said, found


def _last_line(said: bytes) -> str:
  lines = said.decode(errors="replace").split("\n")
  lines = [x.strip() for x in lines if x.strip()]
  return lines[-1][-200:] if lines else "it may need more memory"
