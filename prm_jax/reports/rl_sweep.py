"""Arms of an experiment on reinforcement learning, each over several seeds.

Curves are means over seeds with bands from the least to the greatest of them,
by updates or by sampled tokens: as SVG files, and as a page (rl_arms.html).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from prm_jax import errors
from prm_jax.reports import html
from prm_jax.reports import plot
from prm_jax.reports import rl_metrics as rl_curves
from prm_jax.runtime import files

# Metric -> its values, beside "step" -> the updates that they are of.
Columns = Mapping[str, Sequence[float | None]]
# One seed of an arm: "eval" -> columns of evaluations, "train" -> of updates,
# which have "sampled_tokens" of each.
Curves = Mapping[str, Columns]
Runs = Mapping[str, Sequence[Curves]]

STEP, TOKENS = "step", "sampled_tokens"
# More arms in one picture can't be told apart.
MOST_ARMS = 6
_ACROSS = {STEP: "updates", TOKENS: "sampled tokens"}
_OF = dict(eval="held out, greedy", train="samples")
# What a page shows of each group of arms: (kind, metric, against).
_PICTURES = (
  *(("eval", "accuracy", STEP), ("eval", "faithful", STEP)),
  *(("eval", "accuracy", TOKENS), ("eval", "faithful", TOKENS)),
  *(("train", "accuracy", STEP), ("train", "prm_score", STEP)),
  *(("train", "heldout_prm", STEP), ("train", "kl_nats", STEP)),
  *(("train", "entropy_nats", STEP), ("train", "steps", STEP)),
  *(("train", "tokens", STEP), ("train", "distinct", STEP)),
  ("train", "explained_variance", STEP),
)
# What its table has: (kind, metric, column).
_TABLE = (
  ("eval", "accuracy", "right answers, %"),
  ("eval", "faithful", "all steps right, %"),
  ("train", "prm_score", "PRM's score"),
  ("train", "heldout_prm", "held-out PRM"),
  ("train", "kl_nats", "KL, nats"),
)


class Point(NamedTuple):
  """A place on a band: mean, least and greatest of the seeds that reach it."""

  x: float
  mean: float
  low: float
  high: float
  num: int


def figure(
  runs: Runs,
  metric: str,
  *,
  kind: str = "eval",
  against: str = STEP,
  arms: Sequence[str] = (),
) -> bytes:
  """Returns one metric of some arms as an SVG file that stands alone.

  runs: arm -> its seeds. kind: of evaluations or of updates (train). against:
  STEP or TOKENS. arms: which are drawn, all by default.

  Raises:
    InputError: more than MOST_ARMS, one that isn't there, or none of them has
      the metric.
  """
  found = _picture(
    runs, kind, metric, against, arms or list(runs), (960, 470), "right"
  )
  if found is None:
    raise errors.InputError(
      f"{metric}: no {kind} curve of {', '.join(arms or runs)} has it; choose"
      " another metric"
    )
  return html.draw(found)


def write(
  path: files.PathLike,
  title: str,
  runs: Runs,
  *,
  groups: Mapping[str, Sequence[str]] | None = None,
  details: Mapping[str, Any] | None = None,
) -> None:
  """Writes the page of all arms, all or nothing.

  groups: title -> the arms that are drawn together; all together by default.
  Arms that have no run yet are left out. details: config, versions, machine
  and command, each if known.

  Raises:
    InputError: a group of more than MOST_ARMS.
  """
  shown = []
  for name, arms in (groups or {"": list(runs)}).items():
    here = [arm for arm in arms if arm in runs]
    pictures = [
      found
      for kind, metric, against in _PICTURES
      for found in [
        _picture(runs, kind, metric, against, here, (440, 300), "below")
      ]
      if found is not None
    ]
    if pictures:
      shown.append((name, pictures))
  text = html.fill(
    "rl_arms.html",
    title=title,
    groups=shown,
    table=table(runs),
    looks=looks(runs),
    num_seeds=max((len(seeds) for seeds in runs.values()), default=0),
    details=details or {},
  )
  with files.replacing(path) as f:
    f.write(text)


# --- Numbers ----------------------------------------------------------------


def against_tokens(curves: Curves, kind: str) -> list[float | None]:
  """Returns the tokens that were sampled up to each record of a seed.

  An update's own are among them; an evaluation is of the policy that the
  updates up to its own made. None where some update before isn't known.
  """
  train = curves.get("train", {})
  steps = list(train.get(STEP, ()))
  tokens = np.array(
    [math.nan if x is None else x for x in train.get(TOKENS, ())], float
  )
  if not len(tokens):
    return [None] * len(curves[kind][STEP])
  total = dict(zip(steps, np.cumsum(tokens), strict=True)) | {0: 0.0}
  found = (total.get(step) for step in curves[kind][STEP])
  return [None if x is None or math.isnan(x) else float(x) for x in found]


def over_seeds(lines: Sequence[tuple[Sequence[float], Sequence[float]]]):
  """Returns the band of several seeds' lines: a Point at each x of any of them.

  A line is straight between its points, and isn't known before its first x or
  behind its last.
  """
  found = []
  for x in sorted({x for xs, _ in lines for x in xs}):
    values = [
      float(np.interp(x, xs, ys))
      for xs, ys in lines
      if len(xs) and xs[0] <= x <= xs[-1]
    ]
    mean = sum(values) / len(values)
    found.append(Point(x, mean, min(values), max(values), len(values)))
  return found


def table(
  runs: Runs,
) -> tuple[list[str], dict[str, list[tuple[str, str]]]]:
  """Returns (columns, arm -> cells): what each arm came to, over seeds.

  A cell has the last and, of metrics, the first value, each as "mean [least,
  greatest]". Columns that no arm has are left out.
  """
  head = ["seeds", "updates", "M tokens"]
  body = {}
  for arm, seeds in runs.items():
    trained = [c["train"] for c in seeds if "train" in c]
    steps = [_last(c[STEP]) for c in trained]
    tokens = [_last(against_tokens(dict(train=c), "train")) for c in trained]
    millions = [None if x is None else x / 1e6 for x in tokens]
    body[arm] = [
      (str(len(seeds)), ""),
      (_spread(steps, "{:,.0f}"), ""),
      (_spread(millions, "{:.2f}"), ""),
    ]
  for kind, name, label in _TABLE:
    metric = rl_curves.METRICS[name]
    columns = {
      arm: [
        [x for x in c.get(kind, {}).get(name, ()) if x is not None]
        for c in seeds
      ]
      for arm, seeds in runs.items()
    }
    if not any(itertools.chain(*columns.values())):
      continue
    form = "{:.1f}" if metric.unit == "%" else "{:.3f}"
    head.append(label)
    for arm, values in columns.items():
      last, first = (
        _spread([metric.scale * x[i] for x in values if x], form)
        for i in (-1, 0)
      )
      body[arm].append((last, first))
  return head, body


def _last(values):
  known = [x for x in values if x is not None]
  return known[-1] if known else None


def _spread(values, form):
  known = [x for x in values if x is not None]
  if not known:
    return "\N{EN DASH}"
  mean, low, high = (
    form.format(x) for x in (sum(known) / len(known), min(known), max(known))
  )
  return mean if low == high else f"{mean} [{low}, {high}]"


# --- Pictures ---------------------------------------------------------------

_SHAPES = (
  *((rl_curves.CIRCLE, True), (rl_curves.TRIANGLE, True)),
  *((rl_curves.DIAMOND, True), (rl_curves.SQUARE, False)),
  *((rl_curves.CIRCLE, False), (rl_curves.CROSS, False)),
)
_COLOURS = ("k0", "k2", "k3", "k1", "k5", "k6", "k8", "k9", "k7", "k4")
_DASHES = ("none", "8 3", "10 3 2 3", "5 3", "2 3", "12 3 2 3 2 3")


def looks(arms: Iterable[str]) -> dict[str, plot.Look]:
  """Returns each arm's look, the same in all pictures of these runs.

  Colours repeat after 10 arms, shapes and dashes after 6: of 30 no two are
  alike, nor do two of 6 in a row differ by colour alone.
  """
  found = {}
  for i, arm in enumerate(arms):
    marker, filled = _SHAPES[i % len(_SHAPES)]
    colour, dash = _COLOURS[i % len(_COLOURS)], _DASHES[i % len(_DASHES)]
    found[arm] = plot.Look(arm, colour, marker, dash, 2.2, filled)
  return found


def _picture(runs, kind, metric, against, arms, size, key):
  """Returns a picture, or None if no arm has the metric."""
  if len(arms) > MOST_ARMS:
    raise errors.InputError(
      f"{len(arms)} arms in one picture ({', '.join(arms)}): choose up to"
      f" {MOST_ARMS}"
    )
  if unknown := [arm for arm in arms if arm not in runs]:
    raise errors.InputError(
      f"{', '.join(unknown)}: no such arm; expected some of {', '.join(runs)}"
    )
  chosen = {arm: runs[arm] for arm in arms}
  longest = max(
    (len(c.get(kind, {}).get(STEP, ())) for s in chosen.values() for c in s),
    default=0,
  )
  bin_size = rl_curves.bin_size(longest)
  words = rl_curves.METRICS[metric]
  curves = []
  for arm, look in looks(runs).items():
    if arm in chosen:
      lines = [_line(c, kind, metric, against, bin_size) for c in chosen[arm]]
      band = over_seeds([line for line in lines if line[0]])
      if band:
        curves.append(_curve(look, band, words, against, len(lines)))
  means = f", means of {bin_size}" if bin_size > 1 else ""
  banded = any(c["band"] for c in curves)
  return rl_curves.picture(
    curves,
    title=f"{words.label} ({_OF[kind]}) against {_ACROSS[against]}",
    x_label=_ACROSS[against]
    + means
    + ("; bands reach over the seeds" if banded else ""),
    y_label=f"{words.axis} ({_OF[kind]})",
    size=size,
    key=key,
  )


def _line(curves: Curves, kind: str, metric: str, against: str, bin_size: int):
  """Returns x and y of one seed's curve where both are known."""
  columns = curves.get(kind, {})
  if metric not in columns:
    return [], []
  x = columns[STEP]
  if against == TOKENS:
    x = against_tokens(curves, kind)
  y = columns[metric]
  pairs = [(a, b) for a, b in zip(x, y, strict=True) if a is not None]
  found = plot.bins([a for a, _ in pairs], [b for _, b in pairs], bin_size)
  return [b.x for b in found], [b.mean for b in found]


def _curve(look, band, metric, against, num_seeds):
  every = math.ceil(len(band) / 12)
  notes = []
  for i, p in enumerate(band):
    said = f"{look.label}, {p.x:,.0f} {_ACROSS[against]}: {metric.text(p.mean)}"
    if p.num > 1:
      said += f" ({metric.text(p.low)} to {metric.text(p.high)})"
    if p.num < num_seeds:
      said += f", {p.num} of {num_seeds} seeds"
    notes.append(said if i % every == 0 else "")
  return dict(
    look=look,
    x=[p.x for p in band],
    y=[metric.scale * p.mean for p in band],
    band=[(metric.scale * p.low, metric.scale * p.high) for p in band]
    if num_seeds > 1
    else [],
    notes=notes,
  )
