"""Where a picture's curves, ticks and names stand; parts.html draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import Any


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


def lay_out(
  curves: Sequence[Mapping[str, Any]],
  *,
  x_ticks: Sequence[tuple[float, str]],
  y_ticks: Sequence[tuple[float, str]],
  size: tuple[int, int],
  key: str = "",
  **words: Any,
) -> dict[str, Any]:
  """Returns the picture in pixels, x to the right, y down.

  The axes reach from the first tick to the last. key: where the names of the
  curves stand, "right", "below" or nowhere.
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
        "points": [(*p, note) for p, note in zip(points, c["notes"])],
        "end": points[-1] if points else (left, bottom),
      }
    )
  if key == "right":
    _spread(drawn, bottom)
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
    "curves": drawn,
    "diagonal": line([at(0, 0), at(1, 1)]) if "diagonal" in words else "",
  }


def _spread(drawn, bottom, gap=18):
  """Puts each name beside the end of its curve, none over another."""
  order = sorted(drawn, key=lambda d: d["end"][1])
  y = -math.inf
  for d in order:
    y = max(d["end"][1], y + gap)
    d["key"] = (d["end"][0] + 26, y)
  limit = bottom
  for d in reversed(order):
    d["key"] = (d["key"][0], min(d["key"][1], limit))
    limit = d["key"][1] - gap
