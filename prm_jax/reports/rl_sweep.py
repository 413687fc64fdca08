"""The variants of an experiment on reinforcement learning, over seeds.

Curves are means over seeds with bands from the least to the greatest of them,
by updates or by sampled tokens: as SVG files, and as one HTML page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import itertools
from typing import Any

import numpy as np

from prm_jax import errors
from prm_jax.reports import html
from prm_jax.reports import plot
from prm_jax.reports import rl_metrics

# Metric -> its values, beside "step" -> the updates that they are of.
Columns = Mapping[str, Sequence[float | None]]
# One seed's run: "eval" -> columns of evaluations, "train" -> of updates, which
# have "sampled_tokens" of each.
Curves = Mapping[str, Columns]
# Variant -> its seeds.
Runs = Mapping[str, Sequence[Curves]]

STEP, TOKENS = "step", "sampled_tokens"
# More variants in one picture can't be told apart.
MAX_VARIANTS = 6
_AXES = {STEP: "updates", TOKENS: "sampled tokens"}
_KINDS = dict(eval="held out, greedy", train="samples")
# What a page shows of each group of variants: (kind, metric, against).
_PICTURES = (
  *(("eval", "accuracy", STEP), ("eval", "all_steps_correct", STEP)),
  *(("eval", "accuracy", TOKENS), ("eval", "all_steps_correct", TOKENS)),
  *(("train", "accuracy", STEP), ("train", "prm_score", STEP)),
  *(("train", "heldout_prm", STEP), ("train", "kl_nats", STEP)),
  *(("train", "entropy_nats", STEP), ("train", "steps", STEP)),
  *(("train", "tokens", STEP), ("train", "distinct", STEP)),
  ("train", "explained_variance", STEP),
)
# What its table has: (kind, metric, column).
_TABLE = (
  ("eval", "accuracy", "right answers, %"),
  ("eval", "all_steps_correct", "all steps right, %"),
  ("train", "prm_score", "PRM's score"),
  ("train", "heldout_prm", "held-out PRM"),
  ("train", "kl_nats", "KL, nats"),
)


def figure(
  runs: Runs,
  metric: str,
  *,
  kind: str = "eval",
  against: str = STEP,
  variants: Sequence[str] = (),
) -> bytes:
  """Returns one metric of some variants, by default of all, as an SVG file.

  kind: of evaluations or of updates (train). against: STEP or TOKENS.

  Raises:
    InputError: more than MAX_VARIANTS, one that isn't there, or none of them
      has the metric.
  """
  chosen = variants or list(runs)
  drawn = _picture(runs, kind, metric, against, chosen, (960, 470), "right")
  if drawn is None:
    raise errors.InputError(
      f"{metric}: no {kind} curve of {', '.join(chosen)} has it; choose"
      " another metric"
    )
  return drawn.encode()


def render(
  title: str,
  runs: Runs,
  *,
  groups: Mapping[str, Sequence[str]] | None = None,
  details: Mapping[str, Any] | None = None,
) -> str:
  """Returns the page of all variants.

  groups: title -> the variants that are drawn together; all by default. Those
  that have no run yet are left out. details: config, versions, machine and
  command, each if known.

  Raises:
    InputError: a group of more than MAX_VARIANTS.
  """
  shown = []
  for name, group in (groups or {"": list(runs)}).items():
    variants = [v for v in group if v in runs]
    pictures = [
      _picture(runs, *which, variants, (440, 300), "below", "small")
      for which in _PICTURES
    ]
    if any(pictures):
      shown.append((name, [("", drawn) for drawn in pictures if drawn]))
  head, rows = table(runs)
  return html.fill(
    "rl_sweep.html",
    title=title,
    groups=shown,
    head=head,
    rows=rows,
    styles=styles(runs),
    num_seeds=max((len(seeds) for seeds in runs.values()), default=0),
    details=details or {},
  )


# --- Numbers ----------------------------------------------------------------


def against_tokens(curves: Curves, kind: str) -> list[float | None]:
  """Returns the tokens that were sampled up to each record of a seed.

  An update's own are among them; an evaluation is of the policy that the
  updates up to its own made. None if some update before isn't known.
  """
  train = curves.get("train", {})
  tokens = np.array(train.get(TOKENS, ()), float)  # NaN for None
  if not len(tokens):
    return [None] * len(curves[kind][STEP])
  total = dict(zip(train[STEP], np.cumsum(tokens), strict=True)) | {0: 0.0}
  sums = (total.get(step) for step in curves[kind][STEP])
  return [None if x is None or np.isnan(x) else float(x) for x in sums]


def over_seeds(
  lines: Sequence[tuple[Sequence[float], Sequence[float]]],
) -> list[plot.Point]:
  """Returns the band of several seeds' lines: a Point at each x of any of them.

  A line is straight between its points, and isn't known before its first x or
  after its last.
  """
  band = []
  for x in sorted({x for xs, _ in lines for x in xs}):
    values = [
      float(np.interp(x, xs, ys))
      for xs, ys in lines
      if len(xs) and xs[0] <= x <= xs[-1]
    ]
    mean = sum(values) / len(values)
    band.append(plot.Point(x, mean, min(values), max(values), len(values)))
  return band


def table(
  runs: Runs,
) -> tuple[list[str], dict[str, list[tuple[str, str]]]]:
  """Returns (columns, variant -> cells): each one's results, over seeds.

  A cell has the last and, of metrics, the first value, each as "mean [least,
  greatest]". Columns that no variant has are left out.
  """
  head, body = ["seeds", "updates", "M tokens"], {}
  for name, seeds in runs.items():
    trained = [seed for seed in seeds if "train" in seed]
    steps = [_known(seed["train"][STEP])[-1:] for seed in trained]
    tokens = [_known(against_tokens(s, "train"))[-1:] for s in trained]
    millions = [x / 1e6 for values in tokens for x in values]
    body[name] = [
      (str(len(seeds)), ""),
      (_spread([*itertools.chain(*steps)], "{:,.0f}"), ""),
      (_spread(millions, "{:.2f}"), ""),
    ]
  for kind, name, label in _TABLE:
    metric = rl_metrics.METRICS[name]
    values = {
      variant: [_known(_columns(seed, kind).get(name, ())) for seed in seeds]
      for variant, seeds in runs.items()
    }
    if not any(itertools.chain(*values.values())):
      continue
    form = "{:.1f}" if metric.unit == "%" else "{:.3f}"
    head.append(label)
    for variant, of_seeds in values.items():
      last, first = (
        _spread([metric.scale * x[i] for x in of_seeds if x], form)
        for i in (-1, 0)
      )
      body[variant].append((last, first))
  return head, body


def _columns(seed: Curves, kind: str) -> Columns:
  return rl_metrics.renamed(seed.get(kind, {}))


def _known(values):
  return [x for x in values if x is not None]


def _spread(values, form):
  if not values:
    return "\N{EN DASH}"
  mean, low, high = (
    form.format(x)
    for x in (sum(values) / len(values), min(values), max(values))
  )
  return mean if low == high else f"{mean} [{low}, {high}]"


# --- Pictures ---------------------------------------------------------------

_MARKERS = (
  *(plot.CIRCLE, plot.TRIANGLE, plot.DIAMOND),
  *(plot.BOX, plot.RING, plot.CROSS),
)
_COLOURS = ("k0", "k2", "k3", "k1", "k5", "k6", "k8", "k9", "k7", "k4")
_DASHES = ("none", "8 3", "10 3 2 3", "5 3", "2 3", "12 3 2 3 2 3")


def styles(variants: Iterable[str]) -> dict[str, plot.LineStyle]:
  """Returns each variant's style, the same in all pictures of these runs.

  Colours repeat after 10 variants, markers and dashes after 6: of 30 no two are
  alike, nor do two of 6 in a row differ by colour alone.
  """
  looks = zip(*map(itertools.cycle, (_COLOURS, _MARKERS, _DASHES)))
  return {
    name: plot.LineStyle(name, colour, marker, dash, width=2.2)
    for name, (colour, marker, dash) in zip(variants, looks)
  }


def _picture(runs, kind, metric, against, variants, size, names, page_class=""):
  """Returns a picture, or None if no variant has the metric."""
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
  metric = rl_metrics.new_name(metric)
  words = rl_metrics.METRICS[metric]
  seeds = [seed for v in variants for seed in runs[v]]
  longest = max(
    (len(seed.get(kind, {}).get(STEP, ())) for seed in seeds), default=0
  )
  bin_size = rl_metrics.bin_size(longest)
  curves = []
  for name, style in styles(runs).items():
    if name not in variants:
      continue
    lines = [_line(s, kind, metric, against, bin_size) for s in runs[name]]
    band = over_seeds([line for line in lines if line[0]])
    if band:
      curves.append(_curve(style, band, words, against, len(lines)))
  if not curves:
    return None
  means = f", means of {bin_size}" if bin_size > 1 else ""
  banded = any(c.band for c in curves)
  axes = plot.Axes(
    title=f"{words.label} ({_KINDS[kind]}) against {_AXES[against]}",
    x_label=_AXES[against] + means + "; bands reach over the seeds" * banded,
    y_label=f"{words.axis} ({_KINDS[kind]})",
  )
  return plot.draw(curves, axes, size, names, page_class)


def _line(curves: Curves, kind: str, metric: str, against: str, bin_size: int):
  """Returns x and y of one seed's curve as far as both are known."""
  columns = _columns(curves, kind)
  if metric not in columns:
    return [], []
  x = columns[STEP] if against == STEP else against_tokens(curves, kind)
  points = plot.bins(x, columns[metric], bin_size)
  return [p.x for p in points], [p.mean for p in points]


def _curve(style, band, metric, against, num_seeds):
  notes = []
  for p in band:
    note = f"{style.label}, {p.x:,.0f} {_AXES[against]}: {metric.text(p.mean)}"
    if p.num > 1:
      note += f" ({metric.text(p.low)} to {metric.text(p.high)})"
    if p.num < num_seeds:
      note += f", {p.num} of {num_seeds} seeds"
    notes.append(note)
  return rl_metrics.curve(
    style, band, notes, scale=metric.scale, band=num_seeds > 1
  )
