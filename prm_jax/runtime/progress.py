"""The progress of long work: a bar on a terminal, some lines elsewhere.

The lines are logged. The bar is drawn by tqdm: a log line can't be rewritten in
place, and one line for each redraw would fill the terminal. It is drawn only if
the logger takes progress (INFO), so a Python program shows none by default.

Rates and remaining times count from the first report of more than 0 done: what
comes before it, such as a compilation, doesn't come again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
import contextlib
import logging
import sys
import threading
import time
from typing import Any, Protocol, runtime_checkable, TypeVar

from prm_jax.runtime import terminal

_logger = logging.getLogger(__name__)

Item = TypeVar("Item")
# What comes before the first report of a jitted function.
COMPILING = "compiling"


@runtime_checkable
class Update(Protocol):
  """Reports how much is done, and in a few words what it has cost."""

  def __call__(self, done: int, cost: str = "") -> None: ...


def log(text: str) -> None:
  """Logs a line that isn't of the result: the command line has it on stderr.

  Args:
    text: The line.
  """
  _logger.info(text)


def has_bar(logger: logging.Logger) -> bool:
  """Returns whether a bar shows what the logger would report in lines."""
  return sys.stderr.isatty() and logger.isEnabledFor(logging.INFO)


@contextlib.contextmanager
def showing(
  what: str,
  total: int | None,
  unit: str = "solution",
  *,
  first: str = "starting",
  every_s: float = 5.0,
  clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Update]:
  """Yields update(done), which reports how much of the total is done.

  If stderr is a terminal, it gets one bar. Otherwise a line is logged every few
  seconds, whether update is called or not, and so none for short work.

  Args:
    what: What is done, in a word or two.
    total: The number of units; None if it isn't known.
    unit: The name of one.
    first: What happens before the first report, which may be of 0 done.
    every_s: The seconds from one line to the next in the first minute; they
      become three times as many in the third.
    clock: Returns the time in seconds.
  """
  if has_bar(_logger):
    import tqdm  # check-device shows progress on a machine without it

    # Without miniters a first large stride would hold back smaller ones.
    with tqdm.tqdm(
      total=total,
      desc=terminal.visible(what, one_line=True),
      unit=unit,
      leave=False,
      miniters=1,
    ) as bar:
      bar.set_postfix_str(first)

      def draw(done: int, cost: str = "") -> None:
        bar.set_postfix_str(
          terminal.visible(cost, one_line=True), refresh=False
        )
        if bar.n == bar.initial == 0 and done:
          restart(bar, done)
        else:
          bar.update(done - bar.n)

      with _repeating(bar.refresh, 1.0):
        yield draw
    return
  lines = _Lines(what, total, unit, first, every_s, clock)
  with _repeating(lines.log, every_s):
    yield lines.update


def through(
  what: str,
  items: Iterable[Item],
  total: int | None = None,
  unit: str = "solution",
) -> Iterator[Item]:
  """Yields the items, and shows how many were taken.

  Args:
    what: What is done with them, in a word or two.
    items: The items.
    total: Their number; None if it isn't known.
    unit: The name of one.
  """
  with showing(what, total, unit) as update:
    for done, item in enumerate(items):
      if done % 16 == 0:
        update(done)
      yield item


def restart(bar: Any, done: int) -> None:
  """Lets a bar count rate and remaining time from here, with `done` done."""
  bar.unpause()
  bar.initial = bar.n = bar.last_print_n = done
  bar.refresh()


class _Lines:
  """The lines of some work. Its methods are called by two threads."""

  def __init__(self, what, total, unit, first, every_s, clock):
    self._what, self._total, self._unit = what, total, unit
    self._first, self._every_s, self._clock = first, every_s, clock
    self._start = self._printed = clock()
    # What was done, and when, at the first report of more than nothing.
    self._since: tuple[int, float] | None = None
    self._done, self._cost, self._is_told = 0, "", False
    self._lock = threading.Lock()

  def update(self, done: int, cost: str = "") -> None:
    self._done, self._cost, self._is_told = done, cost, True
    if self._since is None and done:
      self._since = done, self._clock()
    self.log()

  def log(self) -> None:
    """Logs a line if the last one, or the start, was every_s or more ago."""
    with self._lock:
      now = self._clock()
      minutes = (now - self._start) / 60
      if now - self._printed < self._every_s * min(max(minutes, 1.0), 3.0):
        return
      self._printed = now
      line = self._line(now)
    _logger.info(f"{line} {self._cost}".rstrip())

  def _line(self, now: float) -> str:
    of = "" if self._total is None else f"/{self._total:,}"
    line = f"{self._what} {self._done:,}{of}"
    unit = "" if of else f" {self._unit}s"
    if not self._is_told:
      return f"{line}{unit} {self._first} {now - self._start:.0f}s"
    first, at = self._since or (self._done, now)
    done, since = self._done - first, now - at
    if not done or since <= 0:
      eta = "0s" if self._done == self._total else "unknown"
      return line + (f" eta {eta}" if of else unit)
    rate = done / since
    line += f" {rate:.1f} {self._unit}s/s"
    if self._total is None:
      return line
    return f"{line} eta {(self._total - self._done) / rate:.0f}s"


@contextlib.contextmanager
def _repeating(
  function: Callable[[], object], every_s: float
) -> Iterator[None]:
  """Calls a function again and again in a thread, until the block ends."""
  ended = threading.Event()

  def repeat():
    while not ended.wait(max(every_s, 1.0)):
      # A reader that went away ends the work where it prints, not here.
      with contextlib.suppress(OSError, ValueError):
        function()

  thread = threading.Thread(target=repeat, name="progress", daemon=True)
  thread.start()
  try:
    yield
  finally:
    ended.set()
    thread.join()
