"""The picture of a comparison of searches: accuracy against sampled tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prm_jax.evaluation import figures

# The accuracy of these, of a search that drew whole solutions, is a curve.
_SAMPLING = dict(
  majority="majority", weighted="weighted vote", best="best", oracle="oracle"
)


def figure(compared: Mapping[str, Any]) -> figures.Figure:
  """Returns what is drawn of a comparison.

  Searches whose names differ only after an @ (beam@256, beam@512) are one
  line.

  Args:
    compared: What search_curves.compare returned.
  """
  lines = [
    figures.Line(f"{name}, {label}", curve["tokens"], curve[how])
    for name, curve in compared["curves"].items()
    for how, label in _SAMPLING.items()
  ]
  sizes: dict[str, list[tuple[float, ...]]] = {}
  for name, found in compared["searches"].items():
    tokens = found["cost"]["sampled"]
    if name not in compared["curves"] and tokens:
      best = found["accuracy"]["best"]
      point = (tokens, best["mean"], best["low"], best["high"])
      sizes.setdefault(name.partition("@")[0], []).append(point)
  lines += [
    figures.Line(name, x, y, low, high)
    for name, points in sizes.items()
    for x, y, low, high in [zip(*sorted(points))]
  ]
  panel = figures.Panel(
    *("", "sampled tokens per problem (log scale)", "right answers, %", lines),
    x_is_log=True,
  )
  return figures.Figure("Accuracy of searches", [panel])
