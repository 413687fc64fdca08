"""Curves of metrics: means of successive values, with bands around them."""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import NamedTuple

from prm_jax.evaluation import figures

# Sums of greater values could overflow; neither NaN nor infinity is below it.
_MOST = 1e300

Pairs = Sequence[Sequence[float | None]]


class Point(NamedTuple):
  """Some values as one.

  Args:
    x: Their mean place.
    mean: Their mean.
    low: The least of them.
    high: The greatest of them.
  """

  x: float
  mean: float
  low: float
  high: float


def point(x: float, values: Sequence[float]) -> Point:
  """Returns some values at one place as a point.

  Args:
    x: The place.
    values: The values.
  """
  return Point(x, sum(values) / len(values), min(values), max(values))


def bin_size(num: int, most: int) -> int:
  """Returns how many values make one point.

  Args:
    num: The number of values.
    most: The most points of a curve.
  """
  return max(1, math.ceil(num / most))


def bins(pairs: Pairs, size: int = 1, *, has_gaps: bool = False) -> list[Point]:
  """Returns a point for each `size` successive pairs of x and y.

  What isn't known, None or not finite, is in no mean.

  Args:
    pairs: The pairs.
    size: How many make one point.
    has_gaps: Whether a bin of which only x is known is a point of NaN, a gap of
      the line; else it is left out.
  """
  points = []
  for i in range(0, len(pairs), size):
    placed = [
      (x, y) for x, y in pairs[i : i + size] if x is not None and abs(x) < _MOST
    ]
    known = [(x, y) for x, y in placed if y is not None and abs(y) < _MOST]
    if known:
      xs, ys = zip(*known)
      points.append(point(sum(xs) / len(xs), ys))
    elif placed and has_gaps:
      points.append(Point(placed[0][0], math.nan, math.nan, math.nan))
  return points


def lines(label: str, points: Sequence[Point]) -> list[figures.Line]:
  """Returns the line through points, with a band if they have ends.

  Args:
    label: What it is called.
    points: The points.

  Returns:
    One line; none without points, or with gaps alone.
  """
  if all(math.isnan(x.mean) for x in points):
    return []
  x, mean, low, high = zip(*points)
  ends = (low, high) if low != high else ()
  return [figures.Line(label, x, mean, *ends)]
