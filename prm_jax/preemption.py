"""SIGTERM: a run ends at the next safe place, with all that it did on disk.

Clouds and schedulers give notice that way before they take a machine away. A
signal may come at any line, so its handler only takes it down; who is at a
place that can be left asks `check`.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os
import signal
import sys
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
  """Has SIGTERM taken down inside, for `check`; a second one ends at once.

  Outside the main thread, where Python hears no signal, and inside another
  `noticed`, nothing is changed.
  """
  main = threading.current_thread() is threading.main_thread()
  if not main or signal.getsignal(signal.SIGTERM) is _take_down:
    yield
    return
  before = signal.signal(signal.SIGTERM, _take_down)
  try:
    yield
  finally:
    signal.signal(signal.SIGTERM, before)
    _asked.clear()


def check() -> None:
  """Raises PreemptedError if SIGTERM has come."""
  if _asked.is_set():
    raise PreemptedError


def _take_down(number: int, frame: object) -> None:
  del frame
  if _asked.is_set():
    os._exit(128 + number)
  _asked.set()
  # print may be what the signal has interrupted; write isn't.
  said = b"SIGTERM: ending at the next safe place; once more ends at once\n"
  with contextlib.suppress(OSError):
    os.write(sys.stderr.fileno(), said)
