"""SIGTERM: a run ends at the next safe place, with all that it did on disk.

Clouds and schedulers give notice that way before they take a machine away. A
signal may come at any line, so it is only recorded; a run calls `check` where it
can stop.

Python runs its handlers between two lines of the main thread, so not while
that compiles a program, which may take minutes. A thread receives each signal
at once: the second one need not wait.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os
import signal
import threading

# "Give the same command again": what launchers restart a run for.
EXIT_CODE = 42


class PreemptedError(SystemExit):
  """SIGTERM has come; the process ends with EXIT_CODE unless it is caught."""

  def __init__(self) -> None:
    super().__init__(EXIT_CODE)


# Of the process, as signals are.
_asked = threading.Event()


@contextlib.contextmanager
def noticed() -> Iterator[None]:
  """Records SIGTERM inside, for `check`; a second one ends the process at once.

  It does nothing outside the main thread, where Python receives no signal, and
  inside another `noticed`.
  """
  main = threading.current_thread() is threading.main_thread()
  if not main or signal.getsignal(signal.SIGTERM) is _record:
    yield
    return
  before = signal.signal(signal.SIGTERM, _record)
  try:
    with _heard_at_once():
      yield
  finally:
    signal.signal(signal.SIGTERM, before)
    _asked.clear()


def check() -> None:
  """Raises PreemptedError if SIGTERM has come."""
  if _asked.is_set():
    raise PreemptedError


def _record(number: int, frame: object) -> None:
  del number, frame
  _asked.set()


@contextlib.contextmanager
def _heard_at_once() -> Iterator[None]:
  """Starts a thread that reports SIGTERM and ends the process at a second one."""
  reader, writer = os.pipe()
  os.set_blocking(writer, False)
  before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
  thread = threading.Thread(
    target=_listen, args=(reader,), name="preemption", daemon=True
  )
  thread.start()
  try:
    yield
  finally:
    signal.set_wakeup_fd(before)
    os.close(writer)
    thread.join()
    os.close(reader)


def _listen(reader: int) -> None:
  """Reads the number of each signal that comes, until there can be no more."""
  came = False
  while number := os.read(reader, 1):
    if number[0] != signal.SIGTERM:
      continue
    if came:
      os._exit(128 + signal.SIGTERM)
    came = True
    _asked.set()
    # sys.stderr may be what the main thread is writing to.
    message = (
      b"SIGTERM: ending at the next safe place; once more ends at once\n"
    )
    with contextlib.suppress(OSError):
      os.write(2, message)
