"""Processes that read what may be hostile, so that a crash ends only them.

A worker is a file of Python that imports nothing of prm_jax, so that it starts
at once. It limits its own memory before it reads its input, which is its
standard input, and writes lines to its standard output.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import pathlib
import signal
import subprocess
import sys
from typing import IO


@contextlib.contextmanager
def started(
  worker: pathlib.Path, *arguments: object, stdin: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
  """Starts a worker, and ends it with the block, whatever it is doing then.

  Args:
    worker: Its file.
    *arguments: Its arguments.
    stdin: The file that it reads.

  Yields:
    The process; its stdout is a pipe.
  """
  process = subprocess.Popen(
    # -P: no module is taken from the worker's folder.
    [sys.executable, "-P", str(worker), *map(str, arguments)],
    stdin=stdin,
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    start_new_session=True,  # a terminal's Ctrl-C is the parent's
  )
  try:
    yield process
  finally:
    process.kill()
    process.wait()
    if process.stdout is not None:
      process.stdout.close()


def how_ended(process: subprocess.Popen[bytes]) -> str:
  """Returns how a worker ended that wasn't done: its signal or exit code."""
  code = process.wait()
  if code >= 0:
    return f"exit code {code}"
  try:
    return signal.Signals(-code).name
  except ValueError:
    return f"signal {-code}"
