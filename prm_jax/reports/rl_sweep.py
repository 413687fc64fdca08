"""The variants of an experiment on reinforcement learning, over seeds.

Curves are means over seeds with bands from the least to the greatest of them,
by updates or by sampled tokens: as figures for files, and as a page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import math
from typing import Any

import numpy as np

from prm_jax import errors
from prm_jax.evaluation import figures
from prm_jax.evaluation import tables
from prm_jax.reports import curves
from prm_jax.reports import result_page
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
# What its table has: (kind, metric) and column.
_TABLE = {
  ("train", STEP): tables.Column("updates", is_share=False),
  ("train", TOKENS): tables.Column("sampled tokens", is_share=False),
  ("eval", "accuracy"): tables.Column("right answers"),
  ("eval", "all_steps_correct"): tables.Column("all steps correct"),
  ("train", "prm_score"): tables.Column("PRM's score", is_share=False),
  ("train", "heldout_prm"): tables.Column("held-out PRM", is_share=False),
  ("train", "kl_nats"): tables.Column("KL, nats", is_share=False),
}


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
  panel = _panel(runs, chosen, kind, metric, against)
  if not panel.lines:
    raise errors.InputError(
      f"{metric}: no {kind} curve of {', '.join(chosen)} has it; choose"
      " another metric"
    )
  title = f"{rl_metrics.METRICS[metric].label} ({_KINDS[kind]})"
  return figures.Figure(f"{title} against {_AXES[against]}", [panel])


def page(
  title: str,
  runs: Runs,
  *,
  groups: Mapping[str, Sequence[str]] | None = None,
  about: Mapping[str, tuple[str, str]] | None = None,
  details: Mapping[str, Any] | None = None,
) -> result_page.Page:
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
  num_seeds = max(map(len, runs.values()), default=0)
  lead = "One seed of each variant: how far they scatter isn't known."
  if num_seeds > 1:
    lead = (
      f"Lines are means over up to {num_seeds} seeds; bands reach from the least"
      " of them to the greatest. Between a seed's points its curve is a straight"
      " line. A line ends where the first of its seeds ends."
    )
  results = result_page.Section(
    "Results of each variant",
    table=table(runs),
    facts=[
      result_page.Fact(name, *told)
      for name, told in (about or {}).items()
      if name in runs
    ],
    note="A value is the last, with several seeds their mean, and the least and"
    " the greatest of them. Right answers and right steps are of greedy answers"
    " to held-out problems, the rest of an update's samples.",
  )
  drawn = []
  for name, group in (groups or {"Curves": list(runs)}).items():
    variants = [v for v in group if v in runs]
    panels = [_panel(runs, variants, *which) for which in _PICTURES]
    drawn.append(result_page.Section(name, panels=panels))
  made = result_page.made(details or {})
  return result_page.Page(title, lead, (), [results, *drawn, made])


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
) -> list[curves.Point]:
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
    curves.point(x, [float(np.interp(x, xs, ys)) for xs, ys in known])
    for x in sorted(places)
  ]


def table(runs: Runs) -> tables.Table:
  """Returns the results of each variant, over its seeds.

  A number is the mean of the seeds' last values, and its ends the least and the
  greatest of them. Columns that no variant has are left out.

  Args:
    runs: The runs.
  """
  columns = dict(seeds=tables.Column("seeds", is_share=False))
  rows: dict[str, dict[str, tables.Number]] = {
    name: dict(seeds=tables.Number(len(seeds))) for name, seeds in runs.items()
  }
  for (kind, metric), column in _TABLE.items():
    for variant, seeds in runs.items():
      known = [
        [x for x in _values(seed, kind, metric) if x is not None]
        for seed in seeds
      ]
      if last := [values[-1] for values in known if values]:
        columns[metric] = column
        # Updates and tokens are whole numbers.
        told = [*map(round, last)] if metric in _AXES else last
        rows[variant][metric] = _number(told)
  return tables.Table(columns, list(rows.items()))


def _number(values: Sequence[float]) -> tables.Number:
  mean, least, most = sum(values) / len(values), min(values), max(values)
  mean = round(mean) if isinstance(most, int) else mean
  return tables.Number(mean, *((least, most) if least != most else ()))


def _panel(
  runs: Runs, variants: Sequence[str], kind: str, metric: str, against: str
) -> figures.Panel:
  """Returns a picture of the variants that have the metric."""
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
  size = curves.bin_size(longest, rl_metrics.MAX_POINTS)
  lines: list[figures.Line] = []
  for name in variants:
    of_seeds = []
    for seed in runs[name]:
      x, y = (_values(seed, kind, n) for n in (against, metric))
      points = curves.bins(list(zip(x, y)), size)
      of_seeds.append(([p.x for p in points], [p.mean for p in points]))
    lines += curves.lines(name, over_seeds(of_seeds))
  means = f", means of {size}" if size > 1 else ""
  bands = "; bands reach over the seeds" if any(x.low for x in lines) else ""
  return figures.Panel(
    *("", _AXES[against] + means + bands),
    f"{described.axis} ({_KINDS[kind]})",
    lines,
    is_share=described.is_share,
    holds=(0,),
  )


def _values(seed: Curves, kind: str, name: str) -> Sequence[float | None]:
  if name == TOKENS:
    return against_tokens(seed, kind)
  return seed.get(kind, {}).get(name, ())
