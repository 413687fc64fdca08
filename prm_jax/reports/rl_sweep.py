"""The variants of an experiment on reinforcement learning, over seeds.

Curves are means over seeds with bands from the least to the greatest of them,
by updates or by sampled tokens: as figures, and as one HTML page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import itertools
import math
from typing import Any

import numpy as np

from prm_jax import errors
from prm_jax.evaluation import figures
from prm_jax.reports import html
from prm_jax.reports import plot
from prm_jax.reports import rl_metrics

# One seed's run: "eval" of evaluations, "train" of updates -> metric -> values
# at the updates in "step". Those of "train" have "sampled_tokens".
Curves = Mapping[str, Mapping[str, Sequence[float | None]]]
# Variant -> its seeds.
Runs = Mapping[str, Sequence[Curves]]

STEP, TOKENS = "step", "sampled_tokens"
# More variants in one picture can't be told apart.
MAX_VARIANTS = 6
_AXES = {STEP: "updates", TOKENS: "sampled tokens"}
_KINDS = dict(eval="held out, greedy", train="samples")
# What a page shows of each group of variants: (kind, metric, against).
_EVAL = ("accuracy", "all_steps_correct")
_TRAIN = (
  *("accuracy", "prm_score", "heldout_prm", "kl_nats", "entropy_nats", "steps"),
  *("tokens", "distinct", "explained_variance"),
)
_PICTURES = (
  *(("eval", metric, x) for x in (STEP, TOKENS) for metric in _EVAL),
  *(("train", metric, STEP) for metric in _TRAIN),
)
# What its table has: (kind, metric, column, format, scale).
_TABLE = (
  ("train", STEP, "updates", "{:,.0f}", 1),
  ("train", TOKENS, "M tokens", "{:.2f}", 1e-6),
  ("eval", "accuracy", "right answers, %", "{:.1f}", 100),
  ("eval", "all_steps_correct", "all steps correct, %", "{:.1f}", 100),
  ("train", "prm_score", "PRM's score", "{:.3f}", 1),
  ("train", "heldout_prm", "held-out PRM", "{:.3f}", 1),
  ("train", "kl_nats", "KL, nats", "{:.3f}", 1),
)


def figure(
  runs: Runs,
  metric: str,
  *,
  kind: str = "eval",
  against: str = STEP,
  variants: Sequence[str] = (),
) -> figures.Figure:
  """Returns one metric of some variants, by default of all, for a file.

  Args:
    runs: The runs.
    metric: The metric.
    kind: Whether it is that of evaluations or of updates (train).
    against: The x axis: STEP or TOKENS.
    variants: The names of the variants.

  Raises:
    InputError: There are more than MAX_VARIANTS, one doesn't exist, or none has
      the metric.
  """
  chosen = variants or list(runs)
  curves, axes = _picture(runs, chosen, kind, metric, against)
  if not curves:
    raise errors.InputError(
      f"{metric}: no {kind} curve of {', '.join(chosen)} has it; choose"
      " another metric"
    )
  lines = []
  for curve in curves:
    x, y, low, high, _ = zip(*curve.points)
    ends = (low, high) if curve.band() else ()
    lines.append(figures.Line(curve.style.label, x, y, *ends))
  panel = figures.Panel(
    *("", axes.x_label, axes.y_label, lines),
    is_share=axes.scale == 100,
    holds=axes.holds,
  )
  return figures.Figure(axes.title, [panel])


def render(
  title: str,
  runs: Runs,
  *,
  groups: Mapping[str, Sequence[str]] | None = None,
  about: Mapping[str, tuple[str, str]] | None = None,
  details: Mapping[str, Any] | None = None,
) -> str:
  """Returns the page of all variants.

  Args:
    title: The title.
    runs: The runs.
    groups: Title -> the variants that are drawn together; None draws all. A
      variant without a run is left out.
    about: Variant -> a sentence that says what it is, and the address of a page
      that explains it.
    details: Config, versions, machine and command, as far as known.

  Raises:
    InputError: A group has more than MAX_VARIANTS.
  """
  shown = []
  for name, group in (groups or {"Curves": list(runs)}).items():
    variants = [v for v in group if v in runs]
    drawn = (_picture(runs, variants, *which) for which in _PICTURES)
    pictures = [
      ("", plot.draw(curves, axes, (440, 300), "below", "small"))
      for curves, axes in drawn
      if curves
    ]
    grid = html.part("pictures", pictures, "columns")
    shown.append(html.Section("curves", grid, dict(title=name)))
  head, body = table(runs)
  rows = [
    [html.Cell(style.label, mark=html.part("swatch", style)), *body[name]]
    for name, style in _styles(runs).items()
  ]
  name = "First and last values of each variant"
  cells = html.table(name, ["variant", *head], rows, "stick full cells")
  explained = {name: x for name, x in (about or {}).items() if name in runs}
  cells += html.part("variants", explained)
  sections = [html.Section("variants", cells), *shown, html.made(details or {})]
  num_seeds = max(map(len, runs.values()), default=0)
  text = html.sentence(
    "seeds" if num_seeds > 1 else "one_seed", dict(num=num_seeds)
  )
  return html.page(title, "prm_jax experiment", text, sections)


def _styles(runs: Runs) -> dict[str, plot.LineStyle]:
  return plot.styles({name: name for name in runs})


def against_tokens(seed: Curves, kind: str) -> list[float | None]:
  """Returns the tokens that were sampled up to each record of a seed.

  An update's own are among them; an evaluation is of the policy that the
  updates up to its own made. None if some update before isn't known.
  """
  train, steps = seed.get("train", {}), seed.get(kind, {}).get(STEP, ())
  if TOKENS not in train:
    return [None] * len(steps)
  tokens = np.array(train[TOKENS], float)  # NaN for None
  total = dict(zip(train[STEP], np.cumsum(tokens), strict=True)) | {0: 0.0}
  sums = (total.get(step, math.nan) for step in steps)
  return [None if math.isnan(x) else float(x) for x in sums]


def over_seeds(
  lines: Sequence[tuple[Sequence[float], Sequence[float]]],
) -> list[plot.Point]:
  """Returns the band of several seeds' lines: a Point at each x of any of them.

  A line is straight between its points. The band is where all lines are: means
  of fewer would jump where a seed begins or ends. Lines without points are left
  out.
  """
  known = [(xs, ys) for xs, ys in lines if len(xs)]
  if not known:
    return []
  first = max(xs[0] for xs, _ in known)
  last = min(xs[-1] for xs, _ in known)
  places = {x for xs, _ in known for x in xs if first <= x <= last}
  return [
    plot.point(x, [float(np.interp(x, xs, ys)) for xs, ys in known])
    for x in sorted(places)
  ]


def table(runs: Runs) -> tuple[list[str], dict[str, list[html.Cell]]]:
  """Returns (columns, variant -> cells): each one's results, over seeds.

  A cell has the last value, as the mean over seeds; below it the least and the
  greatest and, of metrics, the first value. Columns that no variant has are
  left out.
  """
  head = ["seeds"]
  body = {name: [html.Cell(str(len(seeds)))] for name, seeds in runs.items()}
  for kind, name, label, form, scale in _TABLE:
    values = {
      variant: [
        [scale * x for x in _values(seed, kind, name) if x is not None]
        for seed in seeds
      ]
      for variant, seeds in runs.items()
    }
    if not any(itertools.chain(*values.values())):
      continue
    head.append(label)
    for variant, seeds in values.items():
      last, first = ([x[i] for x in seeds if x] for i in (-1, 0))
      body[variant].append(_cell(last, [] if name in _AXES else first, form))
  return head, body


def _cell(last, first, form):
  """Returns the mean of the last values, above their range and the first."""
  if not last:
    return html.Cell("\N{EN DASH}")
  mean, least, most, start = (
    form.format(x)
    for x in (np.mean(last), min(last), max(last), np.mean(first or last))
  )
  space = "\N{NO-BREAK SPACE}"
  small = [f"{least}{space}to{space}{most}"] if least != most else []
  small += [f"from {start}"] if first else []
  return html.Cell(mean, "\n".join(small))


def _picture(
  runs: Runs, variants: Sequence[str], kind: str, metric: str, against: str
) -> tuple[list[plot.Curve], plot.Axes]:
  """Returns the curves of the variants that have the metric, and their axes."""
  if len(variants) > MAX_VARIANTS:
    raise errors.InputError(
      f"{len(variants)} variants in one picture ({', '.join(variants)}):"
      f" choose up to {MAX_VARIANTS}"
    )
  if unknown := [v for v in variants if v not in runs]:
    raise errors.InputError(
      f"{', '.join(unknown)}: no such variant; expected some of"
      f" {', '.join(runs)}"
    )
  described = rl_metrics.METRICS[metric]
  seeds = [seed for v in variants for seed in runs[v]]
  longest = max((len(_values(seed, kind, STEP)) for seed in seeds), default=0)
  bin_size = plot.bin_size(longest, rl_metrics.MAX_POINTS)
  curves = []
  for name, style in _styles(runs).items():
    lines = []
    for seed in runs[name] if name in variants else ():
      x, y = (_values(seed, kind, n) for n in (against, metric))
      points = plot.bins(list(zip(x, y)), bin_size)
      lines.append(([p.x for p in points], [p.mean for p in points]))
    band = over_seeds(lines)
    texts = [_text(p, described, against) for p in band]
    curves += [plot.Curve(style, band, texts)] if band else []
  means = f", means of {bin_size}" if bin_size > 1 else ""
  bands = (
    "; bands reach over the seeds" if any(c.band() for c in curves) else ""
  )
  return curves, plot.Axes(
    title=f"{described.label} ({_KINDS[kind]}) against {_AXES[against]}",
    x_label=_AXES[against] + means + bands,
    y_label=f"{described.axis} ({_KINDS[kind]})",
    scale=described.scale,
  )


def _values(seed: Curves, kind: str, name: str) -> Sequence[float | None]:
  if name == TOKENS:
    return against_tokens(seed, kind)
  return seed.get(kind, {}).get(name, ())


def _text(point, metric, against):
  return f"{point.x:,.0f} {_AXES[against]}: {point.text(metric.text)}"
