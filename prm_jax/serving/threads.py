"""A thread for calls that may never end, and errors without their words."""

from __future__ import annotations

from collections.abc import Callable
import concurrent.futures
import functools
import logging
import queue
import threading
import traceback
from typing import Any

_logger = logging.getLogger(__name__)


class Thread(concurrent.futures.Executor):
  """A thread for calls that may never end: at the end nothing waits for them.

  Args:
    name: The name of the thread.
  """

  def __init__(self, name: str):
    self._calls: queue.SimpleQueue[Callable[[], None] | None]
    self._calls = queue.SimpleQueue()
    threading.Thread(target=self._run, name=name, daemon=True).start()

  def submit(
    self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
  ) -> concurrent.futures.Future[Any]:
    """Returns the result of a call to come."""
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    self._calls.put(functools.partial(_call, future, fn, args, kwargs))
    return future

  def shutdown(self, wait: bool = True, *, cancel_futures: bool = False):
    """Ends the thread after the call that it is in."""
    del wait, cancel_futures
    self._calls.put(None)

  def _run(self) -> None:
    while (call := self._calls.get()) is not None:
      call()


def log_place(name: str, error: BaseException) -> None:
  """Logs where an error was raised, and not its words: a client's may be in them.

  Args:
    name: What failed.
    error: The error.
  """
  trace = "".join(traceback.format_tb(error.__traceback__))
  _logger.error("%r failed (%s):\n%s", name, type(error).__name__, trace)


def _call(
  future: concurrent.futures.Future[Any],
  fn: Callable[..., Any],
  args: tuple[Any, ...],
  kwargs: dict[str, Any],
) -> None:
  if not future.set_running_or_notify_cancel():
    return
  try:
    result = fn(*args, **kwargs)
  except BaseException as e:
    # Not the error itself: its words may be a client's, and one that isn't an
    # Exception would end who waits for it.
    log_place("a call", e)
    future.set_exception(RuntimeError(type(e).__name__))
  else:
    future.set_result(result)
