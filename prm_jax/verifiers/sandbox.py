"""Starts programs that can reach nothing but their pipes, if the kernel allows it.

A program is started by fork and exec, without this process's environment and
descriptors, in a temporary folder; sandbox_worker says what it can't do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
import functools
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import IO

from prm_jax import errors
from prm_jax.runtime import limited_process

_WORKER = pathlib.Path(__file__).with_name("sandbox_worker.py")
_PROBE = "def main():\n  import os\n  os.write(1, b'inside')\n"
# The order of sets and of dictionaries' equal keys stays the same.
_ENVIRONMENT = dict(PYTHONHASHSEED="0", LANG="C.UTF-8", HOME="/tmp", PATH="")
_START_S = 30


@functools.cache
def why_none() -> str | None:
  """Returns why programs can't be kept apart here, None if they can."""
  if not sys.platform.startswith("linux"):
    return f"{sys.platform} has no namespaces"
  with tempfile.TemporaryDirectory() as folder:
    program = pathlib.Path(folder, "probe.py")
    program.write_text(_PROBE, encoding="utf-8")
    command = _command("namespaces", 512, (), program, ())
    try:
      done = subprocess.run(
        command,
        cwd=folder,
        env=_ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_START_S,
      )
    except subprocess.TimeoutExpired:
      return f"it didn't start within {_START_S} s"
  if done.stdout == b"inside":
    return None
  lines = done.stderr.decode(errors="replace").strip().splitlines()
  return lines[-1] if lines else f"exit code {done.returncode}"


def check(*, unsafe: bool) -> None:
  """Refuses to run code that can't be kept apart.

  Args:
    unsafe: Whether it may run all the same, with limits alone.

  Raises:
    InputError: It may not.
  """
  why = why_none()
  if why is not None and not unsafe:
    raise errors.InputError(
      f"the kernel allows no sandbox ({why}); run this in a container or as"
      " root, or give `unsafe_code=True`: then the code can read your files and"
      " use the network"
    )


@contextlib.contextmanager
def started(
  worker: pathlib.Path,
  *arguments: object,
  memory_mib: int,
  stdin: IO[bytes] | int,
  stdout: IO[bytes] | int = subprocess.PIPE,
  pass_fds: Sequence[int] = (),
  readable: Sequence[str] = (),
) -> Iterator[subprocess.Popen[bytes]]:
  """Starts a worker apart, and ends it with the block, whatever it does then.

  Args:
    worker: Its file, which has main(*arguments) and imports nothing of ours.
    *arguments: Its arguments.
    memory_mib: The most memory of a process, in MiB.
    stdin: What it reads.
    stdout: What it writes.
    pass_fds: Further descriptors that it has.
    readable: Further files and folders that it may read, as real paths.

  Yields:
    The process.
  """
  mode = "namespaces" if why_none() is None else "limits"
  with tempfile.TemporaryDirectory() as folder:
    process = subprocess.Popen(
      _command(mode, memory_mib, readable, worker, arguments),
      cwd=folder,
      env=_ENVIRONMENT,
      stdin=stdin,
      stdout=stdout,
      stderr=subprocess.DEVNULL,
      pass_fds=pass_fds,
      start_new_session=True,  # a terminal's Ctrl-C is the parent's
    )
    try:
      yield process
    finally:
      limited_process.end(process)


def _command(
  mode: str,
  memory_mib: int,
  readable: Sequence[str],
  worker: pathlib.Path,
  arguments: Sequence[object],
) -> list[str]:
  # -S: without installed packages; -P: no module is taken from a folder.
  start = (sys.executable, "-P", "-s", "-S", _WORKER, mode, memory_mib)
  paths = os.pathsep.join(readable)
  return [str(x) for x in (*start, paths, worker, *arguments)]
