"""Curves of our HTML pages, and of the demo's files: `draw` gives an SVG picture.

It is our own, as a page has notes at markers and colours of both modes, and the
demo runs without extras. All other pictures are drawn by figure_files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import itertools
import math
from typing import NamedTuple

from prm_jax.reports import html

Ticks = Sequence[tuple[float, str]]


class Marker(NamedTuple):
  """An SVG path around 0, 0."""

  path: str
  filled: bool = True


CIRCLE = Marker("M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z")
DIAMOND = Marker("M0-5L5 0L0 5L-5 0z")
TRIANGLE = Marker("M0-5L4.6 3.4H-4.6z")
SQUARE = Marker("M-3.5-3.5h7v7h-7z")
CROSS = Marker("M-4-4L4 4M-4 4L4-4", filled=False)
RING, BOX = CIRCLE._replace(filled=False), SQUARE._replace(filled=False)

# Every curve of `styles` has one of each, in turn.
_COLOURS = ("k0", "k2", "k3", "k1", "k5", "k6", "k8", "k9", "k7", "k4")
_MARKERS = (CIRCLE, TRIANGLE, DIAMOND, BOX, RING, CROSS, SQUARE)
_DASHES = ("none", "8 3", "10 3 2 3", "5 3", "2 3", "12 3 2 3 2 3")


class LineStyle(NamedTuple):
  """A curve's name and line: no two curves differ by colour alone."""

  label: str
  colour: str  # a class of the page's style
  marker: Marker = CIRCLE
  dash: str = "none"
  width: float = 2.2


class Point(NamedTuple):
  """Some values as one: means of x and y, least and greatest y, how many."""

  x: float
  mean: float
  low: float
  high: float
  num: int = 1

  def text(self, number: Callable[[float], str]) -> str:
    """Returns "mean [low, high]", or the mean alone of equal values."""
    mean, low, high = map(number, self[1:4])
    return mean if low == high else f"{mean} [{low}, {high}]"


class Curve(NamedTuple):
  """A line through the points' means, with a band from their lows to highs.

  Args:
    style: The style of the line.
    points: The points.
    texts: The text of each point, or none. At most 12 of them have a marker,
      which shows the text.
    with_band: Whether the band is drawn.
  """

  style: LineStyle
  points: Sequence[Point]
  texts: Sequence[str] = ()
  with_band: bool = True

  def line(self) -> list[tuple[float, float]]:
    return [(p.x, p.mean) for p in self.points]

  def band(self) -> list[tuple[float, float]]:
    """Returns the band's outline; empty without a band."""
    if not self.with_band or all(p.low == p.high for p in self.points):
      return []
    highs = [(p.x, p.high) for p in self.points]
    return highs + [(p.x, p.low) for p in reversed(self.points)]

  def notes(self) -> list[tuple[float, float, str]]:
    """Returns (x, y, text) of the points with a marker."""
    every = math.ceil(len(self.points) / 12)
    noted = list(zip(self.line(), self.texts))[::every]
    return [(x, y, f"{self.style.label}, {text}") for (x, y), text in noted]


class Axes(NamedTuple):
  """Axes that hold the curves, from their first ticks to their last.

  Args:
    title: The title.
    x_label: The label of x.
    y_label: The label of y.
    x_ticks: The ticks of x; whole numbers by default.
    holds: Values that y must also include.
    scale: The factor of y's numbers, such as 100 for percent.
    marks: Values of x with a vertical line, and its note.
    diagonal: Whether the diagonal is drawn.
  """

  title: str
  x_label: str
  y_label: str = ""
  x_ticks: Ticks = ()
  holds: Sequence[float] = (0,)
  scale: float = 1
  marks: Ticks = ()
  diagonal: bool = False


def draw(
  curves: Sequence[Curve],
  axes: Axes,
  size: tuple[int, int],
  names: str = "",
  page_class: str = "",
) -> html.Markup:
  """Returns the picture for a page, or for a file if it has no page_class.

  Args:
    curves: The curves.
    axes: The axes.
    size: The width and height.
    names: Where the curves' names are: "right", "below" or nowhere.
    page_class: The class in a page.
  """
  curves = [c for c in curves if c.points]
  width, height = size
  bottom, right = height - 46, width - (178 if names == "right" else 20)
  x_ticks, y_ticks = _ticks(curves, axes)
  at_x, at_y = _scale(x_ticks, 44, right), _scale(y_ticks, bottom, 34)

  def path(points):
    return "M" + "L".join(f"{at_x(x)} {at_y(y)}" for x, y in points)

  last = [c.points[-1] for c in curves]
  ends = [(at_x(p.x), at_y(p.mean)) for p in last]
  labels = [(right + 26.0, y) for y in _apart([y for _, y in ends], bottom)]
  if names == "below":
    rows = [divmod(i, 2) for i in range(len(curves))]
    labels = [(8 + j * width // 2, bottom + 62 + i * 18) for i, j in rows]
    height = bottom + 84 + rows[-1][0] * 18
  box = dict(width=width, height=height, left=44, top=34, right=right)
  scales = dict(at_x=at_x, at_y=at_y, x_ticks=x_ticks, y_ticks=y_ticks)
  at = dict(box, bottom=bottom, path=path, **scales)
  drawn = list(zip(curves, ends, labels))
  return html.part("picture", drawn, axes, at, names, page_class)


def wide_and_narrow(curves: Sequence[Curve], axes: Axes) -> html.Markup:
  """Returns a picture for each width of a page, if any; one of them is shown."""
  if not any(c.points for c in curves):
    return html.NOTHING
  wide = draw(curves, axes, (960, 430), "right", "wide")
  return wide + draw(curves, axes, (360, 330), "below", "narrow")


def styles(labels: Mapping[str, str]) -> dict[str, LineStyle]:
  """Returns each curve's style, given its label.

  Colours repeat after 10 curves, markers after 7 and dashes after 6: of 42 no
  two differ by colour alone, nor have two of 6 in a row a marker in common.
  """
  parts = zip(*map(itertools.cycle, (_COLOURS, _MARKERS, _DASHES)))
  pairs = zip(labels.items(), parts)
  return {name: LineStyle(label, *part) for (name, label), part in pairs}


def axis(low: float, high: float, most: int = 5) -> list[tuple[float, str]]:
  """Returns round numbers around low and high, with texts of 6 letters at most.

  There are about `most` of them.
  """
  span = (high - low) or abs(high) or 1.0
  power = 10.0 ** math.floor(math.log10(span / most))
  step = next(k * power for k in (1, 2, 5, 10, 20) if k * power * most >= span)
  first, last = math.floor(low / step), math.ceil(high / step)
  numbers = range(first, max(last, first + 1) + 1)
  ticks = [round(i * step, 12) for i in numbers]
  top = max(map(abs, ticks))
  units = ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"), (0, 1, ""))
  unit, letter = next((unit, x) for least, unit, x in units if top >= least)
  texts = [f"{t / unit:g}{letter if t else ''}" for t in ticks]
  if top < 0.01 and max(map(len, texts)) > 5:
    # 5e-04 -> 5e-4
    parts = [f"{t:.1e}".partition("e") for t in ticks]
    texts = [f"{float(a):g}e{int(b)}" if float(a) else "0" for a, _, b in parts]
  return list(zip(ticks, texts))


def point(x: float, values: Sequence[float]) -> Point:
  """Returns some values at x as one."""
  mean = sum(values) / len(values)
  return Point(x, mean, min(values), max(values), len(values))


def bins(pairs: Sequence[Sequence[float | None]], size: int = 1) -> list[Point]:
  """Returns one point for each `size` successive pairs of x and y.

  What isn't known, None or not finite, is in no mean; a bin of nothing else is
  left out.
  """
  points = []
  for i in range(0, len(pairs), size):
    known = [
      (x, y)
      for x, y in pairs[i : i + size]
      if x is not None and y is not None and math.isfinite(y)
    ]
    if known:
      xs, ys = zip(*known)
      points.append(point(sum(xs) / len(xs), ys))
  return points


def by_update(
  style: LineStyle,
  pairs: Sequence[Sequence[float | None]],
  size: int,
  number: Callable[[float], str],
  with_band: bool = True,
) -> Curve:
  """Returns the curve of (update, value); a point is of `size` of them."""
  points = bins(pairs, size)
  texts = [f"update {p.x:g}: {p.text(number)}" for p in points]
  return Curve(style, points, texts, with_band)


def bin_size(num: int, most: int) -> int:
  """Returns how many points make one for a curve of at most `most`."""
  return max(1, math.ceil(num / most))


def _ticks(curves: Sequence[Curve], axes: Axes) -> tuple[Ticks, Ticks]:
  points = [p for c in curves for p in c.points]
  last = math.ceil(max((p.x for p in points), default=1))
  whole = [(t, text) for t, text in axis(0, last) if t == int(t)]
  values = [y for c in curves for _, y in (*c.line(), *c.band())]
  values += axes.holds
  low, high = min(values, default=0), max(values, default=1)
  # A change of a few percent would fill the picture and look like a great one.
  if high - low < 0.05 * max(abs(low), abs(high)):
    low, high = min(0, low), max(0, high)
  numbers = axis(axes.scale * low, axes.scale * high)
  y_ticks = [(y / axes.scale, text) for y, text in numbers]
  return axes.x_ticks or whole, y_ticks


def _scale(ticks: Ticks, start: float, end: float) -> Callable[[float], float]:
  """Returns the place in pixels of a value: ticks reach from start to end."""
  low, span = ticks[0][0], (ticks[-1][0] - ticks[0][0]) or 1
  return lambda value: round(start + (value - low) / span * (end - start), 1)


def _apart(heights: Sequence[float], bottom: float, gap=18) -> list[float]:
  """Returns heights of names that don't overlap, each near the given one."""
  order = sorted(range(len(heights)), key=heights.__getitem__)
  places, y = list(heights), -math.inf
  for i in order:
    places[i] = y = max(heights[i], y + gap)
  for i in reversed(order):
    places[i] = min(places[i], bottom)
    bottom = places[i] - gap
  return places
