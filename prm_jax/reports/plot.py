"""One way to draw curves: `draw` gives an SVG picture, of a page or a file.

It is our own: to have notes at markers, colours of both modes and no link,
matplotlib's SVG took as many lines of ours, twice the bytes, and 100 MB of
packages in every installation.
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


class Curve(NamedTuple):
  """A line with a band of (low, high), if any, and notes, if any.

  Points with a note have a marker; a reader who points at it sees the note.
  """

  style: LineStyle
  x: Sequence[float]
  y: Sequence[float]
  band: Sequence[tuple[float, float]] = ()
  notes: Sequence[str] = ()


class Axes(NamedTuple):
  """Axes from their first ticks to their last; by default they hold the curves.

  zero: y has 0, too. marks: places on x with a vertical line, and its note.
  """

  title: str
  x_label: str
  y_label: str = ""
  x_ticks: Ticks = ()
  y_ticks: Ticks = ()
  zero: bool = True
  marks: Ticks = ()
  diagonal: bool = False


class Point(NamedTuple):
  """Some values as one: means of x and y, least and greatest y, how many."""

  x: float
  mean: float
  low: float
  high: float
  num: int


def draw(
  curves: Sequence[Curve],
  axes: Axes,
  size: tuple[int, int],
  names: str = "",
  page_class: str = "",
) -> html.Markup:
  """Returns the picture of a page, or of a file if it has no page_class.

  names: where the names of the curves are, "right", "below" or nowhere.
  """
  width, height = size
  bottom, right = height - 46, width - (178 if names == "right" else 20)
  axes = _with_ticks(curves, axes)
  at_x, at_y = _scale(axes.x_ticks, 44, right), _scale(axes.y_ticks, bottom, 34)

  def places(x, y):
    return [(at_x(a), at_y(b)) for a, b in zip(x, y)]

  def path(x, y):
    points = [f"{a} {b}" for a, b in places(x, y)]
    return "M" + "L".join(points) if points else ""

  lines = [places(c.x, c.y) for c in curves]
  ends = [line[-1] if line else (44, bottom) for line in lines]
  labels = [(right + 26.0, y) for y in _apart([y for _, y in ends], bottom)]
  if names == "below":
    rows = [divmod(i, 2) for i in range(len(curves))]
    labels = [(8 + j * width // 2, bottom + 62 + i * 18) for i, j in rows]
    height = bottom + 84 + rows[-1][0] * 18
  notes = [
    [(*place, note) for place, note in zip(line, c.notes) if note]
    for c, line in zip(curves, lines)
  ]
  box = dict(width=width, height=height, left=44, top=34, right=right)
  at = dict(at_x=at_x, at_y=at_y, path=path, bottom=bottom) | box
  drawn = list(zip(curves, notes, ends, labels))
  return html.part("picture", drawn, axes, at, names, page_class)


def wide_and_narrow(curves: Sequence[Curve], axes: Axes) -> html.Markup:
  """Returns a picture for each width of a page, if any; one of them is shown."""
  if not curves:
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


def bins(
  x: Sequence[float | None], y: Sequence[float | None], size: int = 1
) -> list[Point]:
  """Returns one point for each `size` successive ones.

  What isn't known, None or not finite, is in no mean; a bin of nothing else is
  left out.
  """
  points = []
  for i in range(0, len(x), size):
    pairs = zip(x[i : i + size], y[i : i + size])
    known = [
      (a, b)
      for a, b in pairs
      if a is not None and b is not None and math.isfinite(b)
    ]
    if known:
      xs, ys = zip(*known)
      num = len(known)
      points.append(Point(sum(xs) / num, sum(ys) / num, min(ys), max(ys), num))
  return points


def bin_size(num: int, most: int) -> int:
  """Returns how many points make one for a curve of at most `most`."""
  return max(1, math.ceil(num / most))


def curve(
  style: LineStyle,
  points: Sequence[Point],
  texts: Sequence[str],
  *,
  scale: float = 1,
  band: bool = False,
) -> Curve:
  """Returns the curve of points, and of their lows and highs if it has a band.

  At most 12 points have a note, with their text: enough to tell lines apart.
  """
  every = math.ceil(len(points) / 12)
  x, y = [p.x for p in points], [scale * p.mean for p in points]
  ranges = [(scale * p.low, scale * p.high) for p in points if band]
  notes = [f"{style.label}, {text}" for text in texts]
  notes = ["" if i % every else note for i, note in enumerate(notes)]
  return Curve(style, x, y, ranges, notes)


def _with_ticks(curves: Sequence[Curve], axes: Axes) -> Axes:
  last = math.ceil(max((v for c in curves for v in c.x), default=1))
  values = [v for c in curves for v in (*c.y, *itertools.chain(*c.band))]
  low, high = min(values, default=0), max(values, default=1)
  # A change of a few percent would fill the picture and look like a great one.
  if axes.zero or high - low < 0.05 * max(abs(low), abs(high)):
    low, high = min(0, low), max(0, high)
  whole = [(t, text) for t, text in axis(0, last) if t == int(t)]
  y_ticks = axes.y_ticks or axis(low, high)
  return axes._replace(x_ticks=axes.x_ticks or whole, y_ticks=y_ticks)


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
