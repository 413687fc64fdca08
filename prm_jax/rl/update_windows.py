"""Means of a run's metrics over windows of updates, and how noisy they are.

The hacking monitor compares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import math
from typing import Any

import numpy as np

Record = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Series:
  """A metric's windows, by their last update [T]; nan if unknown.

  A window of which less than half is known is unknown.

  Args:
    mean: The mean of each window.
    num: The number of known values in each window.
    short_mean: The mean of each short window, by its last update.
    short_num: The number of known values in each short window.
    noise: The variance of a single update's value, from the successive
      differences in the lookback (von Neumann 1941), which a trend hardly
      changes.
    noise_then: The same for the last update before a short window, of what the
      lookback of the short window's end contains up to there.
  """

  mean: np.ndarray
  num: np.ndarray
  short_mean: np.ndarray
  short_num: np.ndarray
  noise: np.ndarray
  noise_then: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Windows:
  """The windows of several metrics, by name.

  Args:
    updates: The T updates.
    series: The windows of each metric.
  """

  updates: list[int]
  series: dict[str, Series]


def of_records(
  records: Sequence[Record],
  names: Iterable[str],
  *,
  window: int,
  short_window: int,
  lookback: int,
) -> Windows:
  """Returns the windows of some metrics of a run's updates.

  Args:
    records: The records of T updates in a row, each with its `step`. A value
      that is missing, null or not finite is unknown.
    names: The metrics.
    window: The number of updates of a window.
    short_window: The number of updates of a short window.
    lookback: The number of updates whose differences tell the noise.
  """
  sizes = window, short_window, lookback
  return Windows(
    [int(r["step"]) for r in records],
    {name: _series(_values(records, name), *sizes) for name in names},
  )


def _values(records: Sequence[Record], name: str) -> np.ndarray:
  given = (r.get(name) for r in records)
  values = np.array([math.nan if x is None else float(x) for x in given])
  return np.where(np.isfinite(values), values, math.nan)


def _series(
  values: np.ndarray, window: int, short_window: int, lookback: int
) -> Series:
  mean, num = _means(values, window)
  short_mean, short_num = _means(values, short_window)
  known = np.isfinite(values)
  squares, is_pair = np.zeros((2, len(values)))
  places = np.flatnonzero(known)
  squares[places[1:]] = np.square(np.diff(values[places])) / 2
  is_pair[places[1:]] = 1
  # The first known value from each update on.
  at = np.arange(len(values))
  first = np.where(known, at, len(values))
  first = np.minimum.accumulate(first[::-1])[::-1]

  def noise(pairs):
    # Of two known values the first must be in the lookback, too.
    begin = np.minimum(first[np.maximum(at - pairs, 0)], at)
    total, num = (np.cumsum(x) for x in (squares, is_pair))
    return (total - total[begin]) / np.maximum(num - num[begin], 1)

  return Series(
    mean,
    num,
    short_mean,
    short_num,
    noise=noise(lookback - 1),
    noise_then=noise(lookback - 1 - short_window),
  )


def _means(values: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns the means of windows, and the numbers of their known values."""
  known = np.isfinite(values)
  num = _sum_of_last(known, window)
  total = _sum_of_last(np.where(known, values, 0), window)
  mean = total / np.maximum(num, 1)
  return np.where(2 * num >= window, mean, math.nan), num


def _sum_of_last(values: np.ndarray, count: int) -> np.ndarray:
  """Returns, at each index, the sum of the last `count` values up to it."""
  sums = np.cumsum(values, dtype=np.float64)
  sums[count:] -= sums[: max(len(sums) - count, 0)].copy()
  return sums
