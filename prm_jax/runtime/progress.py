"""The progress of long work: a bar on a terminal, some lines elsewhere.

The lines are logged. The bar is drawn by tqdm: a log line can't be rewritten in
place, and one line for each redraw would fill the terminal. It is drawn only if
the logger takes progress (INFO), so a Python program shows none by default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import logging
import sys
import time
from typing import Protocol, runtime_checkable

import tqdm

from prm_jax.runtime import terminal

_logger = logging.getLogger(__name__)


@runtime_checkable
class Update(Protocol):
  """Reports how much is done, and in a few words what it has cost."""

  def __call__(self, done: int, cost: str = "") -> None: ...


def has_bar(logger: logging.Logger) -> bool:
  """Returns whether a bar shows what the logger would report in lines."""
  return sys.stderr.isatty() and logger.isEnabledFor(logging.INFO)


@contextlib.contextmanager
def showing(
  what: str,
  total: int,
  unit: str = "solution",
  *,
  every_s: float = 15.0,
  clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Update]:
  """Yields update(done), which reports how much of total is done.

  If stderr is a terminal, it gets one bar; else a line is logged when the last one (or the
  start) was every_s or more ago, and so none for short work.
  """
  if has_bar(_logger):
    # Without miniters a first large stride would hold back smaller ones.
    with tqdm.tqdm(
      total=total,
      desc=terminal.visible(what, one_line=True),
      unit=unit,
      leave=False,
      miniters=1,
    ) as bar:

      def draw(done: int, cost: str = "") -> None:
        if cost:
          bar.set_postfix_str(
            terminal.visible(cost, one_line=True), refresh=False
          )
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
    _logger.info(
      f"{what} {done:,}/{total:,} {rate:.1f} {unit}s/s eta {eta}"
      + (f" {cost}" if cost else "")
    )

  yield update
