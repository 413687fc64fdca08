"""How many labels does active selection save?

Command:  python experiments/labelling_active.py
          [--output=docs/results/labelling_active.json] [--seeds=0,1,2]
          [--workdir=runs/labelling] [--only=start_100,active_200,...]
          [--small] [--table]
Hardware, time and result: see experiments/README.md.

A pool of the arithmetic testbed's solutions, with outcomes; the exact verifier
replaces people who label steps. Solutions are drawn at random, or are the
convincing wrong answers (80/20, as in Let's Verify Step by Step), in three
settings:

  start  The first 100 are drawn at random, a PRM of them selects all others,
         and they count: n is the number of all labelled solutions.
  apart  The selecting PRM learned SELECTOR solutions of other problems, one
         each, whose labels don't count, as in the paper.
  rare   As apart, on a part of the pool whose answers are wrong in RARE of the
         solutions.

Every PRM has as many updates of as many tokens. The data-efficiency factor is
how many times the labels random selection needs for the same best of 64. What
the output already holds is not computed again; results of another config are
refused. --small is a test of the path whose numbers mean nothing. --table
prints the means over seeds as Markdown.
"""

from collections.abc import Iterator, Sequence
import functools
import math
import time
from typing import Any

import labelling_testbed as testbed
import numpy as np

from prm_jax import schema
from prm_jax.evaluation import bootstrap
from prm_jax.labelling import active_selection

OUTPUT = "docs/results/labelling_active.json"
START = 100
SIZES = (200, 400, 800, 1_600)
# Solutions that the selecting PRM apart learns, and the share of wrong answers in
# the rare pool.
SELECTOR, RARE = 1_000, 0.1
# Setting -> the ways of its random and its active curve.
SETTINGS = dict(
  start=("random", "active"),
  apart=("random", "apart"),
  rare=("rare_random", "rare_apart"),
)


def name_of(way: str, size: int) -> str:
  """Returns the name of a way's point at a number of labelled solutions.

  Of the ways that have the first 100 in common, these have one point.
  """
  shared = size == START and way in SETTINGS["start"]
  return f"start_{size}" if shared else f"{way}_{size}"


NAMES = tuple(
  dict.fromkeys(
    name_of(way, n)
    for ways in SETTINGS.values()
    for n in (START, *SIZES)
    for way in ways
  )
)
RESAMPLES = 1_000
# Times the testbed's updates of a PRM: with fewer, more labels do not help.
TIMES = 4


def points_of_seed(
  bed: testbed.Testbed, todo: Sequence[str]
) -> Iterator[dict[str, Any]]:
  """Yields one way's measures at one number of labels after another."""
  first, _ = active_selection.at_random(
    bed.pool, active_selection.Budget(START), seed=bed.seed
  )
  # Trained once; the start's own point loads it again.
  current = functools.cache(
    lambda: testbed.train(bed, "active_start", first, times=TIMES)
  )
  apart = functools.cache(
    lambda: testbed.train(bed, "active_apart", others(bed), times=TIMES)
  )
  for name in todo:
    way, _, size = name.rpartition("_")
    start = time.perf_counter()
    if way in ("apart", "rare_random", "rare_apart"):
      pool = rare(bed) if way.startswith("rare") else bed.pool
      chosen, counts = choose_apart(pool, way, int(size), apart, bed.seed)
    else:
      chosen, counts = choose(bed, way, int(size), first, current)
    select_s = time.perf_counter() - start
    print(f"{bed.seed} {name}: {testbed.described(counts)}", flush=True)
    start = time.perf_counter()
    scorer = (
      current()
      if way == "start"
      else testbed.train(bed, f"active_{name}", chosen, times=TIMES)
    )
    train_s = time.perf_counter() - start
    start = time.perf_counter()
    measured = testbed.measure(bed, scorer)
    point = dict(
      name=name,
      way=way,
      solutions=len(chosen),
      labels=sum(len(s.steps) for s in chosen),
      with_error=sum(schema.first_error(s.labels or ()) >= 0 for s in chosen),
      counts=counts,
      select_s=round(select_s, 1),
      train_s=round(train_s, 1),
      measure_s=round(time.perf_counter() - start, 1),
      **measured,
    )
    print(f"{bed.seed} {name}: AUROC {point['step_auroc']:.4f}", flush=True)
    yield point


def choose(
  bed: testbed.Testbed, way: str, size: int, first, current
) -> tuple[list[schema.Solution], dict[str, int]]:
  """Returns the labelled solutions, the first ones among them, and counts.

  current: gives the PRM of the first ones, if it is needed.
  """
  if way == "start":
    return list(first), dict(chosen=len(first))
  exclude = [s.id for s in first]
  budget = active_selection.Budget(size - len(first))
  if way == "random":
    more, counts = active_selection.at_random(
      bed.pool, budget, exclude=exclude, seed=bed.seed
    )
  else:
    more, counts = active_selection.most_convincing(
      bed.pool, current().score, budget, exclude=exclude, seed=bed.seed
    )
  return [*first, *more], counts


def others(bed: testbed.Testbed) -> list[schema.Solution]:
  """Returns labelled solutions of problems after the pool's, one of each."""
  solutions = testbed.solutions_of(
    bed, "selector_solutions", bed.c.pool_problems, SELECTOR
  )
  return list({s.problem: s for s in reversed(solutions)}.values())


def rare(bed: testbed.Testbed) -> list[schema.Solution]:
  """Returns the pool's right answers, and the first wrong ones up to RARE."""
  right = sum(bool(s.outcome) for s in bed.pool)
  left = round(right * RARE / (1 - RARE))
  kept = []
  for s in bed.pool:
    if s.outcome or left > 0:
      kept.append(s)
      left -= not s.outcome
  return kept


def choose_apart(
  pool: Sequence[schema.Solution], way: str, size: int, selector, seed: int
) -> tuple[list[schema.Solution], dict[str, int]]:
  """Returns the labelled solutions, none of which the selector learned."""
  budget = active_selection.Budget(size)
  if way.endswith("random"):
    return active_selection.at_random(pool, budget, seed=seed)
  return active_selection.most_convincing(
    pool, selector().score, budget, seed=seed
  )


# --- The factor -------------------------------------------------------------


def efficiency(
  sizes: Sequence[float],
  random: Sequence[float],
  active: Sequence[float],
  active_sizes: Sequence[float] | None = None,
) -> float:
  """Returns how many times the labels random selection takes for as much.

  The geometric mean of n_random / n_active over the accuracies that either
  curve has after its first size and both reach. Between sizes n is
  interpolated in log n; a curve that falls counts as its highest value so
  far. NaN if there is no such accuracy. active_sizes: the numbers of labels of
  the active curve, if they are others.
  """
  curves = [np.maximum.accumulate(x) for x in (random, active)]
  low = max(curve[0] for curve in curves)
  high = min(curve[-1] for curve in curves)
  levels = [float(y) for curve in curves for y in curve[1:] if low < y <= high]
  if not levels:
    return math.nan
  at = [np.log(x) for x in (sizes, active_sizes or sizes)]
  gaps = [
    testbed.reached(at[0], curves[0], y) - testbed.reached(at[1], curves[1], y)
    for y in levels
  ]
  return math.exp(sum(gaps) / len(gaps))


def factor(
  points: Sequence[testbed.Point], ways: Sequence[str]
) -> tuple[float, list[float], int] | None:
  """Returns the factor of two mean curves, its interval, and NaN resamples.

  The 95 % interval is over seeds and the problems within them, both drawn with
  replacement. Seeds that lack a point are skipped; None if none is complete.
  """
  by_name = {(p["seed"], p["name"]): p for p in points}
  seeds = sorted({p["seed"] for p in points})
  sizes = (START, *SIZES)
  names = [[name_of(way, n) for n in sizes] for way in ways]
  whole = [
    s for s in seeds if all((s, x) in by_name for row in names for x in row)
  ]
  if not whole:
    return None
  picks = [
    [
      [[float(x) for x in by_name[s, name]["picks"].split()] for name in row]
      for row in names
    ]
    for s in whole
  ]
  return of_picks(np.array(picks), sizes)


def of_picks(
  picks: np.ndarray,
  sizes: Sequence[float],
  active_sizes: Sequence[float] | None = None,
) -> tuple[float, list[float], int]:
  """Returns a factor, its interval, and NaN resamples; see factor.

  picks: [seed, way, size, problem]. active_sizes: see efficiency.
  """
  generator = np.random.default_rng(0)
  num_seeds, num_problems = picks.shape[0], picks.shape[-1]
  drawn = []
  for _ in range(RESAMPLES):
    curves = np.mean(
      [
        picks[s][..., generator.integers(num_problems, size=num_problems)]
        for s in generator.integers(num_seeds, size=num_seeds)
      ],
      axis=(0, -1),
    )
    drawn.append(efficiency(sizes, *curves, active_sizes))
  interval = bootstrap.interval(np.array(drawn))
  value = efficiency(sizes, *picks.mean((0, -1)), active_sizes)
  return value, interval, int(np.isnan(drawn).sum())


def table(points: Sequence[testbed.Point]) -> str:
  """Returns each setting's curves as a Markdown table, and its factor."""
  parts = []
  for setting, ways in SETTINGS.items():
    rows = [
      (
        f"labelled solutions, {setting}",
        *(f"{way}: best of 64, %" for way in ways),
        *(f"{way}: step AUROC" for way in ways),
        *(f"{way}: with an error, %" for way in ways),
        "seeds",
      )
    ]
    for n in (START, *SIZES):
      arms = [
        [p for p in points if p["name"] == name_of(way, n)] for way in ways
      ]
      if all(arms):
        rows.append(_row(n, arms))
    if rows[1:]:
      parts += [testbed.markdown(rows), _factor_text(points, ways)]
  votes = {p["seed"]: p["majority"] for p in points}
  if not votes:
    return "no points yet"
  parts.append(f"Majority vote {testbed.mean(list(votes.values()), 100)} %.")
  return "\n\n".join(parts)


def _row(n: int, arms: Sequence[Sequence[testbed.Point]]) -> tuple[str, ...]:
  return (
    f"{n:,}",
    *(
      testbed.mean([p["best_of_n"]["min"][-1] for p in own], 100)
      for own in arms
    ),
    *(testbed.mean([p["step_auroc"] for p in own], digits=3) for own in arms),
    *(
      testbed.mean([p["with_error"] / p["solutions"] for p in own], 100)
      for own in arms
    ),
    str(min(map(len, arms))),
  )


def _factor_text(points: Sequence[testbed.Point], ways: Sequence[str]) -> str:
  efficiency = factor(points, ways)
  if efficiency is None:
    return "no seed is complete"
  value, (low, high), undefined = efficiency
  return (
    f"Data-efficiency factor {value:.2f} [{low:.2f}, {high:.2f}]; {undefined} of"
    f" {RESAMPLES:,} resamples had no accuracy in common."
  )


if __name__ == "__main__":
  testbed.run(__doc__.splitlines()[0], OUTPUT, NAMES, points_of_seed, table)
