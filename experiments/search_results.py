"""The results of search_testbed.py, as arrays, tables and pictures.

Not a command.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import search_runs
import search_statistics as stats
from search_statistics import Point
from search_statistics import Values

from prm_jax.reports import plot

STRATEGIES = ("beam", "dvts", "rebase", "particles")
OTHERS = ("lookahead1", "lookahead3", "beam_product", "calibrated")
PRMS = ("good", "poor")
Record = dict[str, Any]


class Results:
  """The measurements of all runs and seeds, as arrays."""

  def __init__(
    self, records: Mapping[str, Sequence[search_runs.Arrays]], num: int
  ):
    self.runs = {n: stats.stacked(r, num) for n, r in records.items()}
    samples = self.runs["samples"]
    self.rate = samples["right"][..., search_runs.CURVE_SAMPLES :].mean(-1)
    self.fifths = stats.fifths(self.rate)
    self.samples = {
      prm: stats.sample_curves(samples, prm)
      for prm in search_runs.SAMPLE_SCORERS
    }

  def point(self, name: str, field: str = "weighted_right") -> Point:
    """Returns a run's values and costs."""
    run = self.runs[name]
    return Point(run[field], stats.costs(run))

  def curve(
    self, strategy: str, prm: str, field: str = "weighted_right"
  ) -> dict[int, Point]:
    """Returns a strategy's points by their N."""
    head = f"{strategy}.{prm}."
    sizes = sorted(int(n[len(head) :]) for n in self.runs if n.startswith(head))
    return {n: self.point(f"{head}{n}", field) for n in sizes}

  def hard(self) -> Values:
    """Whether a problem is of the two hardest fifths."""
    return self.fifths < 2

  def easy(self) -> Values:
    """Whether a problem is of the two easiest fifths."""
    return self.fifths >= 3

  def against(
    self,
    point: Point,
    curve: Sequence[Point],
    kind: str = "tokens",
    keep: Values | None = None,
  ) -> Record:
    """Returns a run minus a curve at equal mean cost, over its problems."""
    known = ~np.isnan(point.values)
    if keep is not None:
      known &= keep
    cost = float(point.costs[kind][known].mean())
    other = stats.at_cost(curve, kind, cost, known)
    return stats.interval(point.values - other, known)


# --- Accuracy ---------------------------------------------------------------


def accuracy(r: Results) -> Iterator[tuple[str, Record]]:
  """Yields each search's accuracy, by way to choose and by fifth, and cost.

  minus: its weighted vote minus what independent samples give at equal tokens
  or FLOPs.
  """
  for prm in (*PRMS, "worst"):
    for strategy in (*STRATEGIES, *OTHERS):
      for n in r.curve(strategy, prm):
        name = f"{strategy}.{prm}.{n}"
        run, point = r.runs[name], r.point(name)
        known = ~np.isnan(point.values)
        yield (
          name,
          dict(
            weighted=short(stats.interval(point.values)),
            **{
              how: stats.mean_of(run[field], known)
              for how, field in (
                ("best", "best_right"),
                ("majority", "majority_right"),
                ("all_steps", "weighted_steps"),
                ("oracle", "oracle"),
              )
            },
            by_fifth=[
              stats.mean_of(point.values, known & (r.fifths == k))
              for k in range(stats.FIFTHS)
            ],
            cost={k: stats.mean_of(v, known) for k, v in point.costs.items()},
            minus={
              how: {
                kind: short(r.against(point, r.samples[prm][how], kind))
                for kind in stats.COSTS
              }
              for how in ("weighted", "best.product", "majority")
            },
          ),
        )


def short(difference: Record) -> list[float]:
  return [difference[k] for k in ("mean", "low", "high")]


def samples(r: Results) -> Iterator[tuple[str, Record]]:
  """Yields the accuracy of independent samples, by N."""
  for prm in (*PRMS, "worst"):
    for how, points in r.samples[prm].items():
      if how in ("majority", "pass") and prm != PRMS[0]:
        continue
      name = how if how in ("majority", "pass") else f"{how}.{prm}"
      yield (
        name,
        dict(
          n=list(search_runs.VOTE_SIZES),
          accuracy=[stats.rounded(p.values.mean()) for p in points],
          tokens=[stats.rounded(p.costs["tokens"].mean()) for p in points],
          big=[stats.rounded(p.costs["big"].mean()) for p in points],
          by_fifth={
            str(n): [
              stats.mean_of(p.values, r.fifths == k)
              for k in range(stats.FIFTHS)
            ]
            for n, p in zip(search_runs.VOTE_SIZES, points, strict=True)
            if n in (4, 16, 64, 256)
          },
        ),
      )


def curves(r: Results, some: int) -> Record:
  """Returns the picture's curves, all over the same problems of each seed."""
  keep = np.zeros(r.rate.shape, bool)
  keep[:, :some] = True
  curves: Record = {}
  for prm in PRMS:
    rows: dict[str, Sequence[Point]] = {
      name: [p for n, p in r.curve(name, prm).items() if n <= 64]
      for name in STRATEGIES
    }
    for how in ("weighted", "best.product", "majority"):
      rows[how] = r.samples[prm][how]
    curves[prm] = {
      name: [
        [
          stats.mean_of(p.costs["tokens"], keep),
          *short(stats.interval(p.values, keep)),
        ]
        for p in points
      ]
      for name, points in rows.items()
    }
  return curves


# --- Table and picture ------------------------------------------------------


def table(result: Mapping[str, Any]) -> str:
  """Returns the verdicts and the accuracies as Markdown."""
  rows = [("claim", "verdict")]
  rows += [
    (f"{number} {claim['name']}", _flat(claim["verdicts"]))
    for number, claim in result["claims"].items()
  ]
  body = ["| " + " | ".join(row) + " |" for row in rows]
  body.insert(1, "|---|---|")
  lines = [
    *body,
    "",
    "| search | weighted | best | tokens |",
    "|---|---|---|---|",
  ]
  for name, row in result["accuracy"].items():
    mean, low, high = (100 * x for x in row["weighted"])
    lines.append(
      f"| {name} | {mean:.1f} [{low:.1f}, {high:.1f}] |"
      f" {100 * row['best']:.1f} | {row['cost']['tokens']:,.0f} |"
    )
  return "\n".join(lines)


def _flat(verdicts: Any) -> str:
  if isinstance(verdicts, str):
    return verdicts
  return "; ".join(f"{name}: {_flat(v)}" for name, v in verdicts.items())


LABELS = dict(
  beam="beam",
  dvts="DVTS",
  rebase="REBASE",
  particles="particle filter",
  weighted="weighted best of N",
  **{"best.product": "best of N, product"},
  majority="majority",
)


def picture(result: Mapping[str, Any], prm: str) -> bytes:
  """Returns accuracy against sampled tokens at one noise, as an SVG file."""
  curves, ticks = [], set()
  for name, style in plot.styles(LABELS).items():
    points = [
      plot.Point(float(np.log2(tokens)), mean, low, high)
      for tokens, mean, low, high in result["curves"][prm][name]
      if tokens < 5_000
    ]
    texts = [
      f"{2**p.x:,.0f} tokens: {p.text(lambda v: f'{100 * v:.1f}')} %"
      for p in points
    ]
    curves.append(
      plot.Curve(style, points, texts, with_band=name in STRATEGIES)
    )
    ticks |= {int(p.x) for p in points}
  axes = plot.Axes(
    title=f"Right answers of searches by a {prm} PRM, against sampled tokens",
    x_label="tokens sampled for a problem (log scale); bands are 95 %",
    y_label="right answers, %",
    x_ticks=[(x, f"{2**x:,}") for x in range(min(ticks), max(ticks) + 2)],
    holds=(0, 1),
    scale=100,
  )
  return plot.draw(curves, axes, (960, 470), "right").encode()
