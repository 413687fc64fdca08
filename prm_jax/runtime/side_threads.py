"""Work that is done by several threads, and settled by the one that asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import queue
import threading
from typing import Any, TypeVar

_T = TypeVar("_T")


def each(
  items: Sequence[int],
  work: Callable[[int], _T],
  settle: Callable[[int, _T], None],
  concurrency: int,
  stop: threading.Event,
) -> None:
  """Calls settle(i, work(i)) for each item, as the work is finished.

  Up to `concurrency` threads do the work; the caller's thread settles. After
  an error no further work begins, and the work that has begun is settled;
  Ctrl-C waits for nothing.

  Args:
    items: The numbers of the items.
    work: Does an item's work, in any thread.
    settle: Takes an item and what its work returned.
    concurrency: The most threads.
    stop: Is set when the work ends, or fails.
  """
  todo: queue.SimpleQueue[int] = queue.SimpleQueue()
  done: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
  for item in items:
    todo.put(item)

  def serve() -> None:
    while not stop.is_set():
      try:
        i = todo.get_nowait()
      except queue.Empty:
        return
      try:
        done.put((i, work(i)))
      except BaseException as e:
        done.put((i, e))  # before the others see that it is over
        stop.set()

  threads = [
    threading.Thread(target=serve, daemon=True)
    for _ in range(min(concurrency, len(items)))
  ]
  try:
    for thread in threads:
      thread.start()
    for _ in items:
      i, result = done.get()
      if isinstance(result, BaseException):
        for thread in threads:
          thread.join()
        while not done.empty():
          i, late = done.get()
          if not isinstance(late, BaseException):
            settle(i, late)
        raise result
      settle(i, result)
  finally:
    stop.set()
