"""How search_testbed.py compares: at equal cost, with paired intervals.

Not a command. Values have the axes seed and problem, S and P; NaN stands for a
problem that wasn't searched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import search_runs

from prm_jax import voting

Values = np.ndarray
RESAMPLES = 2_000
FIFTHS = 5
# 1e9 parameters of each model, and whether prefixes are cached.
POLICIES = dict(policy=1.5, draft=1.5, target=7.0)
FLOPS = dict(big=(7.0, True), equal=(1.5, True), uncached=(7.0, False))
COSTS = ("tokens", *FLOPS)


class Point(NamedTuple):
  """A strategy at one size.

  Args:
    values: What is compared.
    costs: Its cost, by kind.
  """

  values: Values
  costs: Mapping[str, Values]


def stacked(
  seeds: Sequence[search_runs.Arrays], num: int
) -> search_runs.Arrays:
  """Returns a run's arrays of all seeds as one, with NaN up to num problems."""
  arrays = {}
  for name in seeds[0]:
    if seeds[0][name].ndim:
      shape = (len(seeds), num, *seeds[0][name].shape[1:])
      arrays[name] = np.full(shape, np.nan)
      for row, seed in zip(arrays[name], seeds, strict=True):
        row[: len(seed[name])] = seed[name]
  return arrays


def costs(
  arrays: search_runs.Arrays, *, scored: bool = True
) -> dict[str, Values]:
  """Returns the sampled tokens, and 1e9 FLOPs by kind.

  Args:
    arrays: What a run measured.
    scored: Whether the scorer's work counts.
  """
  by_kind = dict(tokens=arrays["sampled"])
  for kind, (prm, cached) in FLOPS.items():
    read = "read_once" if cached else "read"
    total = np.zeros_like(arrays["sampled"])
    for name, size in POLICIES.items():
      if f"{name}.{read}" in arrays:
        tokens = arrays[f"{name}.sampled"] + arrays[f"{name}.{read}"]
        total = total + 2 * size * tokens
    if scored:
      total = total + 2 * prm * arrays[f"scorer.{read}"]
    by_kind[kind] = total
  return by_kind


def at_cost(
  points: Sequence[Point], kind: str, cost: float, keep: Values
) -> Values:
  """Returns a strategy's values at a cost, between its two nearest sizes.

  Linear in the logarithm of the mean cost over the problems kept; beyond its
  ends the end counts.
  """
  points = [p for p in points if not np.isnan(p.values[keep]).any()]
  logs = [float(np.log(p.costs[kind][keep].mean())) for p in points]
  order = np.argsort(logs)
  place = np.interp(np.log(cost), np.sort(logs), np.arange(len(logs)))
  low = int(np.floor(place))
  high = min(low + 1, len(points) - 1)
  share = place - low
  a, b = points[order[low]].values, points[order[high]].values
  return (1 - share) * a + share * b


def interval(values: Values, keep: Values | None = None) -> dict[str, Any]:
  """Returns a mean with its 95 % interval over problems, and each seed's mean.

  Problems are drawn again within each seed; the mean is over all of them.
  """
  known = ~np.isnan(values)
  if keep is not None:
    known &= keep
  totals = np.zeros(RESAMPLES)
  random = np.random.default_rng(0)
  for row, mask in zip(values, known, strict=True):
    pool = row[mask]
    if len(pool):
      drawn = random.integers(len(pool), size=(RESAMPLES, len(pool)))
      totals += pool[drawn].sum(axis=1)
  low, high = np.percentile(totals / known.sum(), [2.5, 97.5])
  return dict(
    mean=rounded(values[known].mean()),
    low=rounded(low),
    high=rounded(high),
    seeds=[
      rounded(row[mask].mean()) if mask.any() else None
      for row, mask in zip(values, known, strict=True)
    ],
    problems=int(known.sum()),
  )


def verdict(difference: Mapping[str, Any], sign: int = 1) -> str:
  """Returns what a difference says of the claim that it has a sign."""
  low, high = sorted([sign * difference["low"], sign * difference["high"]])
  if low > 0:
    return "confirmed"
  return "refuted" if high < 0 else "not seen"


def fifths(pass_rate: Values) -> Values:
  """Returns the fifth of each problem: 0 is the hardest, 4 the easiest."""
  order = np.argsort(pass_rate.ravel(), kind="stable")
  ranks = np.empty(len(order), int)
  ranks[order] = np.arange(len(order))
  return (ranks * FIFTHS // len(order)).reshape(pass_rate.shape)


def sample_curves(
  samples: search_runs.Arrays, prm: str
) -> dict[str, list[Point]]:
  """Returns what independent samples give at VOTE_SIZES, by way to choose.

  best.HOW: by the highest score; weighted; majority, without a PRM; pass: one
  of them is right.
  """
  num = search_runs.CURVE_SAMPLES
  ns = search_runs.VOTE_SIZES
  shape = samples["right"].shape[:2]
  right, answer, weight = (
    a[..., :num].reshape(-1, num)
    for a in (samples["right"], samples["answer"], samples[f"{prm}.weight"])
  )
  curves = {
    f"best.{how}": voting.best_of_n(
      samples[f"{prm}.{how}"].reshape(-1, num), right, ns
    )
    for how in ("last", "min", "product")
  }
  rows = answer.astype(int).tolist()
  curves["weighted"] = voting.vote_accuracy(rows, right, weight, ns)
  curves["majority"] = voting.vote_accuracy(rows, right, None, ns)
  curves["pass"] = voting.pass_at_n(right, ns)
  return {
    name: [
      Point(
        values[:, i].reshape(shape),
        {
          kind: cost[..., n - 1]
          for kind, cost in costs(samples, scored=name != "majority").items()
        },
      )
      for i, n in enumerate(ns)
    ]
    for name, values in curves.items()
  }


def turning(
  accuracy: Values, widths: Sequence[int], ratios: Sequence[float]
) -> dict[str, Any]:
  """Returns the turning widths, and the slope of their logarithm.

  Args:
    accuracy: That of each ratio and width, [ratios, widths, S, P].
    widths: The widths, ascending.
    ratios: (gap / noise)^2.

  Returns:
    `widths`, where the mean accuracy is highest, and `slope` of ln width on the
    ratio with its interval over problems, the widths found anew each time.
  """
  rows = [
    accuracy[:, :, s][..., ~np.isnan(a[0, 0])]
    for s, a in enumerate(np.moveaxis(accuracy, 2, 0))
  ]
  random = np.random.default_rng(0)
  means = np.zeros((RESAMPLES, len(ratios), len(widths)))
  for row in rows:
    num = row.shape[-1]
    counts = random.multinomial(num, np.full(num, 1 / num), size=RESAMPLES)
    means += np.einsum("rwp,bp->brw", row, counts.astype(float))
  logs = np.log(np.asarray(widths, float))
  slopes = _slope(ratios, logs[np.argmax(means, axis=2)])
  point = sum(row.sum(-1) for row in rows)
  best = np.argmax(point, axis=1)
  return dict(
    widths=[widths[i] for i in best],
    slope=rounded(float(_slope(ratios, logs[best][None])[0])),
    low=rounded(np.percentile(slopes, 2.5)),
    high=rounded(np.percentile(slopes, 97.5)),
  )


def _slope(x: Sequence[float], y: np.ndarray) -> np.ndarray:
  """Returns the slope of the least-squares line of each row of y."""
  centred = np.asarray(x) - np.mean(x)
  return (y - y.mean(axis=1, keepdims=True)) @ centred / (centred @ centred)


def rounded(number: float) -> float:
  return float(f"{float(number):.4g}")


def mean_of(values: Values, keep: Values) -> float | None:
  """Returns the mean over the problems kept, None if none was searched."""
  kept = values[keep & ~np.isnan(values)]
  return rounded(kept.mean()) if len(kept) else None
