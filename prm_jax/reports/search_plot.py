"""The picture of a comparison of searches: accuracy against sampled tokens."""

from __future__ import annotations

from collections.abc import Mapping
import math
from typing import Any

from prm_jax.reports import plot

# The accuracy of these, of a search that drew whole solutions, is a curve.
_SAMPLING = dict(
  majority="majority", weighted="weighted vote", best="best", oracle="oracle"
)


def draw(compared: Mapping[str, Any]) -> bytes:
  """Returns the picture as an SVG file.

  Searches whose names differ only after an @ (beam@256, beam@512) are one
  curve.

  Args:
    compared: What search_curves.compare returned.

  Returns:
    The bytes of the file.
  """
  lines: dict[str, list[plot.Point]] = {}
  for name, curve in compared["curves"].items():
    for how, label in _SAMPLING.items():
      lines[f"{name}, {label}"] = [
        plot.Point(math.log2(tokens), y, y, y)
        for tokens, y in zip(curve["tokens"], curve[how], strict=True)
      ]
  for name, found in compared["searches"].items():
    if name in compared["curves"] or not found["cost"]["sampled"]:
      continue
    best = found["accuracy"]["best"]
    lines.setdefault(name.partition("@")[0], []).append(
      plot.Point(
        *(math.log2(found["cost"]["sampled"]), best["mean"]),
        *(best["low"], best["high"]),
      )
    )
  styles = plot.styles({name: name for name in lines})
  curves = [
    plot.Curve(
      styles[name],
      sorted(points),
      [f"{2**p.x:,.0f} tokens: {100 * p.mean:.1f} %" for p in sorted(points)],
    )
    for name, points in lines.items()
  ]
  places = [p.x for points in lines.values() for p in points] or [0.0]
  low, high = math.floor(min(places)), math.ceil(max(places))
  ticks = [(float(x), f"{2**x:,}") for x in range(low, max(high, low + 1) + 1)]
  axes = plot.Axes(
    "Accuracy of searches",
    "sampled tokens per problem",
    "right answers, %",
    ticks[:: math.ceil(len(ticks) / 9)],
    (),
    100,
  )
  return plot.draw(curves, axes, (960, 470), "right").encode()
