"""Work on what anyone may have written, in a process with limits.

A published model's chat template is a program, its tokenizer has patterns that
may take any time and memory, and a damaged table can make its reader crash. So
a worker does that work, and a loop, a full memory or a crash ends only it. A
worker is a file of Python that imports nothing of prm_jax, so that it starts at
once and needs little memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
from typing import Any, IO

_LIMITS = pathlib.Path(__file__).with_name("limited_worker.py")
# A thread has a share of the memory, and a machine may have hundreds of cores.
_ONE_THREAD = dict(RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")


def run(
  worker: pathlib.Path, job: Any, *, time_s: int, memory_mib: int
) -> Any | None:
  """Returns a worker's reply; None if it failed, or was ended at a limit.

  Args:
    worker: The worker's file: it reads one JSON value from stdin and writes one
      to stdout.
    job: What it reads, JSON's types only.
    time_s: The longest that it may take.
    memory_mib: The most memory, in MiB; only Linux enforces it.
  """
  arguments = (_LIMITS, time_s, memory_mib, worker)
  with started(*arguments, stdin=subprocess.PIPE) as process:
    try:
      # The worker ends itself; starting it takes time, too.
      out, _ = process.communicate(json.dumps(job).encode(), time_s + 60)
    except subprocess.TimeoutExpired:
      return None
  return None if process.returncode else json.loads(out)


@contextlib.contextmanager
def started(
  worker: pathlib.Path, *arguments: object, stdin: IO[bytes] | int
) -> Iterator[subprocess.Popen[bytes]]:
  """Starts a worker, and ends it with the block, whatever it is doing then.

  Args:
    worker: Its file. It sets its own limits.
    *arguments: Its arguments.
    stdin: The file that it reads.

  Yields:
    The process; its stdout is a pipe.
  """
  # -P: no module is taken from the worker's folder.
  command = (sys.executable, "-P", str(worker), *map(str, arguments))
  process = popen(command, stdin, **_ONE_THREAD)
  try:
    yield process
  finally:
    end(process)


def popen(
  command: Sequence[str], stdin: IO[bytes] | int, **variables: str
) -> subprocess.Popen[bytes]:
  """Starts a process that shares nothing with this one; `end` ends it.

  It is started by fork and exec: this process may have jax and its threads.

  Args:
    command: The program and its arguments.
    stdin: The file that it reads, or subprocess.PIPE.
    **variables: Environment variables besides this process's.

  Returns:
    The process; its stdout is a pipe.
  """
  return subprocess.Popen(
    command,
    stdin=stdin,
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    start_new_session=True,  # a terminal's Ctrl-C is the parent's
    env=os.environ | variables,
  )


def end(process: subprocess.Popen[bytes]) -> None:
  """Kills a process, whatever it is doing, and closes its pipes."""
  process.kill()
  process.wait()
  for pipe in (process.stdin, process.stdout):
    if pipe is not None:
      pipe.close()


def how_ended(process: subprocess.Popen[bytes]) -> str:
  """Returns how a worker ended that wasn't done: its signal or exit code."""
  code = process.wait()
  if code >= 0:
    return f"exit code {code}"
  try:
    return signal.Signals(-code).name
  except ValueError:
    return f"signal {-code}"
