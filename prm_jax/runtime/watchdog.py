"""Ends a run that hangs and prints where, so that it can be started again.

If one of several processes that compute together hangs, all others wait for it,
and no error ever comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import faulthandler
import os
import threading

from prm_jax.runtime import preemption

# The function to call whenever something was done.
Alive = Callable[[], None]


@contextlib.contextmanager
def watching(seconds: float) -> Iterator[Alive]:
  """Yields what must be called at least every so many seconds inside.

  Else the stacks of all threads go to stderr and the process ends at once with
  preemption.EXIT_CODE: what hangs can't be told to end. 0 waits for ever.
  """
  if seconds <= 0:
    yield lambda: None
    return
  done, ended = threading.Event(), threading.Event()

  def watch():
    while done.wait(seconds):
      done.clear()
    if not ended.is_set():
      _end(seconds)

  threading.Thread(target=watch, name="watchdog", daemon=True).start()
  try:
    yield done.set
  finally:
    ended.set()


def _end(seconds: float) -> None:
  message = f"nothing was done for {seconds:g} s; where all threads stand:\n"
  with contextlib.suppress(OSError, ValueError):
    os.write(2, message.encode())
    faulthandler.dump_traceback(file=2, all_threads=True)
  os._exit(preemption.EXIT_CODE)
