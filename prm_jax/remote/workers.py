"""Work that is done by several threads, and settled by the one that asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import queue
import threading
from typing import Any

Record = dict[str, Any]


def each(
  items: Sequence[int],
  work: Callable[[int], Record],
  settle: Callable[[int, Record], None],
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
  for thread in threads:
    thread.start()
  try:
    for _ in items:
      i, record = done.get()
      if isinstance(record, BaseException):
        for thread in threads:
          thread.join()
        while not done.empty():
          i, late = done.get()
          if not isinstance(late, BaseException):
            settle(i, late)
        raise record
      settle(i, record)
  finally:
    stop.set()
