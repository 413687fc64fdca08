"""The progress of long work: a bar on a terminal, some lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import sys
import time
from typing import Protocol, runtime_checkable

import tqdm


@runtime_checkable
class Update(Protocol):
  """Reports how much is done, and in a few words what it has cost."""

  def __call__(self, done: int, cost: str = "") -> None: ...


@contextlib.contextmanager
def showing(
  what: str,
  total: int,
  unit: str = "solution",
  *,
  every_s: float = 15.0,
  clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Update]:
  """Yields update(done), which says on stderr how much of total is done.

  A terminal gets one bar; other outputs get a line when the last one (or the
  start) was every_s or more ago, and so none for short work.
  """
  if sys.stderr.isatty():
    # Without miniters a first large stride would hold back smaller ones.
    with tqdm.tqdm(
      total=total, desc=what, unit=unit, leave=False, miniters=1
    ) as bar:

      def draw(done: int, cost: str = "") -> None:
        if cost:
          bar.set_postfix_str(cost, refresh=False)
        bar.update(done - bar.n)

      yield draw
    return
  start = printed = clock()

  def update(done: int, cost: str = "") -> None:
    nonlocal printed
    now = clock()
    if now - printed < every_s:
      return
    printed = now
    rate = done / max(now - start, 1e-9)
    eta = f"{(total - done) / rate:.0f}s" if done else "unknown"
    print(
      f"{what} {done:,}/{total:,} {rate:.1f} {unit}s/s eta {eta}"
      + (f" {cost}" if cost else ""),
      file=sys.stderr,
      flush=True,
    )

  yield update
