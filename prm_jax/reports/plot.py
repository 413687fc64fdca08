"""Where a picture's curves, ticks and names stand; parts.html draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import Any, NamedTuple


@dataclasses.dataclass(frozen=True)
class Look:
  """A curve's name and line: no two curves differ by colour alone."""

  label: str
  colour: str  # a class of the page's style
  marker: str  # an SVG path around 0, 0
  dash: str = "none"
  width: float = 1.8
  filled: bool = True


def round_ticks(low: float, high: float, most: int = 5) -> list[float]:
  """Returns round numbers from at most `low` to at least `high`."""
  span = (high - low) or abs(high) or 1.0
  power = 10.0 ** math.floor(math.log10(span / most))
  step = next(k * power for k in (1, 2, 5, 10, 20) if k * power * most >= span)
  first, last = math.floor(low / step), math.ceil(high / step)
  return [round(i * step, 12) for i in range(first, max(last, first + 1) + 1)]


def axis(low: float, high: float) -> list[tuple[float, str]]:
  """Returns round_ticks with texts short enough to stand beside a picture."""
  ticks = round_ticks(low, high)
  most = max(map(abs, ticks))
  units = ((1e9, "G"), (1e6, "M"), (1e4, "k"))
  unit, letter = next(((u, x) for u, x in units if most >= u), (1.0, ""))
  unit = min(unit, 1e3) if letter == "k" else unit
  texts = [f"{t / unit:g}{letter if t else ''}" for t in ticks]
  if most < 0.01 and max(map(len, texts)) > 5:
    # 5e-04 -> 5e-4
    parts = [f"{t:.1e}".partition("e") for t in ticks]
    texts = [f"{float(a):g}e{int(b)}" if float(a) else "0" for a, _, b in parts]
  return list(zip(ticks, texts, strict=True))


class Bin(NamedTuple):
  """Points that are drawn as one: means of x and y, least and most y."""

  x: float
  mean: float
  low: float
  high: float


def bins(
  x: Sequence[float], y: Sequence[float | None], size: int = 1
) -> list[Bin]:
  """Returns one point for each `size` successive ones.

  What isn't known, None or not finite, is in no mean; a bin of nothing else is
  left out.
  """
  pairs = list(zip(x, y, strict=True))
  found = []
  for i in range(0, len(pairs), size):
    known = [
      (a, b)
      for a, b in pairs[i : i + size]
      if b is not None and math.isfinite(b)
    ]
    if known:
      xs, ys = zip(*known, strict=True)
      num = len(known)
      found.append(Bin(sum(xs) / num, sum(ys) / num, min(ys), max(ys)))
  return found


def lay_out(
  curves: Sequence[Mapping[str, Any]],
  *,
  x_ticks: Sequence[tuple[float, str]],
  y_ticks: Sequence[tuple[float, str]],
  size: tuple[int, int],
  key: str = "",
  marks: Sequence[tuple[float, str]] = (),
  **words: Any,
) -> dict[str, Any]:
  """Returns the picture in pixels, x to the right, y down.

  The axes reach from the first tick to the last. key: where the names of the
  curves stand, "right", "below" or nowhere. Notes of a curve are what a reader
  sees who points at its markers; a point whose note is "" has none. marks:
  places on the x axis with a line through the picture, and what they are.
  """
  width, height = size
  left, top, bottom = 44, 34, height - 46
  right = width - (178 if key == "right" else 20)

  def at(x, y):
    u, v = (
      (value - ticks[0][0]) / ((ticks[-1][0] - ticks[0][0]) or 1)
      for value, ticks in ((x, x_ticks), (y, y_ticks))
    )
    return round(left + u * (right - left), 1), round(
      bottom - v * (bottom - top), 1
    )

  def line(points):
    return "M" + "L".join(f"{x} {y}" for x, y in points) if points else ""

  drawn = []
  for c in curves:
    points = [at(x, y) for x, y in zip(c["x"], c["y"])]
    edge = [at(x, high) for x, (_, high) in zip(c["x"], c["band"])]
    edge += [at(x, low) for x, (low, _) in zip(c["x"], c["band"])][::-1]
    drawn.append(
      {
        "look": c["look"],
        "path": line(points),
        "band": line(edge),
        "points": [(*p, note) for p, note in zip(points, c["notes"]) if note],
        "end": points[-1] if points else (left, bottom),
      }
    )
  if key == "right":
    _spread(drawn, right, bottom)
  if key == "below":
    for i, d in enumerate(drawn):
      d["key"] = (8 + i % 2 * width // 2, bottom + 62 + i // 2 * 18)
    height = drawn[-1]["key"][1] + 22
  return words | {
    "width": width,
    "height": height,
    "left": left,
    "right": right,
    "bottom": bottom,
    "x_ticks": [(at(x, y_ticks[0][0])[0], text) for x, text in x_ticks],
    "y_ticks": [(at(x_ticks[0][0], y)[1], text) for y, text in y_ticks],
    "key": key,
    "top": top,
    "marks": [(at(x, y_ticks[0][0])[0], note) for x, note in marks],
    "curves": drawn,
    "diagonal": line([at(0, 0), at(1, 1)]) if "diagonal" in words else "",
  }


def _spread(drawn, right, bottom, gap=18):
  """Puts each name beside the height of its curve's end, none over another."""
  order = sorted(drawn, key=lambda d: d["end"][1])
  y = -math.inf
  for d in order:
    y = max(d["end"][1], y + gap)
    d["key"] = (right + 26.0, y)
  limit = bottom
  for d in reversed(order):
    d["key"] = (d["key"][0], min(d["key"][1], limit))
    limit = d["key"][1] - gap
