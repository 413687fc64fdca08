"""How far several raters of the same steps agree, people or labellers.

  alpha       Krippendorff's alpha, nominal and ordinal, of all raters at once
  kappa       Cohen's kappa, of a pair of raters
  first error of a pair: the same step (or none in both), and within one step

A step counts "until the first error" if no rater of its solution finds an error
before it: what follows an error isn't judged by the same rule by all, and often
not at all. It also counts in "all". The step of the first error itself counts in
both, for there raters differ. Intervals are of 95 %, over resampled problems.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
import dataclasses
import functools
import itertools
import math
from typing import Any

from jaxtyping import Bool, Float, Int
import numpy as np

from prm_jax import schema
from prm_jax.evaluation import bootstrap
from prm_jax.evaluation import rater_coefficients

SCOPES = ("until_first_error", "all")
_NO_ERROR, _UNKNOWN = -1, -2
# Of other values the nominal alpha takes the side, and the ordinal one the
# nearest twentieth: a table of all values that a judge can give is too large.
_NAMED = (0.0, 0.5, 1.0)
_STEPS_OF_ORDER = 20
_NUM_RESAMPLES = 1_000

# Sums over units (..., K) -> the number that they make, NaN if it isn't defined.
_Statistic = Callable[[Float[np.ndarray, "R K"]], Float[np.ndarray, " R"]]


@dataclasses.dataclass(frozen=True)
class _Part:
  """Each problem's row, the number that their sum makes, and how many steps."""

  rows: Float[np.ndarray, "P K"]
  statistic: _Statistic
  steps: int | None = None


@dataclasses.dataclass(frozen=True)
class Judgement:
  """What one rater says of the steps of one solution.

  Args:
    rater: The name of the rater.
    solution: The solution, the same for all its raters.
    problem: Its problem; intervals resample problems.
    values: P(correct so far) of each step, None where the rater says nothing.
  """

  rater: str
  solution: Hashable
  problem: Hashable
  values: Sequence[float | None]


def values_of(solution: schema.Solution) -> tuple[float | None, ...]:
  """Returns a solution's ratings -1, 0, 1 as 0, 0.5, 1, or else its labels.

  Args:
    solution: The solution.
  """
  if solution.ratings is not None:
    return tuple(None if x is None else (x + 1) / 2 for x in solution.ratings)
  return tuple(solution.labels or (None,) * len(solution.steps))


def is_right_by_half(value: float) -> bool:
  """Returns whether a label says that a step is right.

  Args:
    value: P(correct so far).
  """
  return value >= schema.THRESHOLD


def first_error(
  values: Iterable[float | None],
  is_right: Callable[[float], bool] = is_right_by_half,
) -> int | None:
  """Returns where the first step is that isn't right.

  Args:
    values: The label of each step, None where it isn't known.
    is_right: Whether a label says that the step is right.

  Returns:
    The index, -1 if all steps are right; None if that depends on a missing
    label.
  """
  for i, value in enumerate(values):
    if value is None:
      return None
    if not is_right(value):
      return i
  return _NO_ERROR


# --- All of it --------------------------------------------------------------


def measured(
  judgements: Iterable[Judgement],
  *,
  num_resamples: int = _NUM_RESAMPLES,
  seed: int = 0,
) -> dict[str, Any] | None:
  """Returns the agreement of all raters, of each pair and what each rater did.

  Values below 0.5 are errors. The nominal alpha and kappa take 0, 0.5 and 1 as
  they are, and the side of other values. A rater's second judgement of a
  solution is left out and counted. Each number is an object of value, None where
  it isn't defined, and interval, None for one problem, too.

  Args:
    judgements: What the raters say, in any order.
    num_resamples: The number of resamples of each interval.
    seed: The seed of their draws.

  Returns:
    The measures as JSON has them; None if no solution has two raters.
  """
  table, judged_twice = _table(judgements)
  if table is None:
    return None
  draw = (num_resamples, seed)
  return dict(
    raters=len(table.names),
    solutions=len(table.length),
    problems=int(table.problem.max()) + 1,
    judged_twice=judged_twice,
    alpha=_alphas(table, draw),
    by_rater=_by_rater(table),
    pairs=_pairs(table, draw),
  )


@dataclasses.dataclass(frozen=True)
class _Table:
  """Judgements as arrays.

  names: the raters. length and problem: of each solution. rater, solution,
  error (the first value below 0.5; the number of steps without one) and first
  (the first error, if it is known): of each judgement, in the order of raters.
  judgement, step, value: of each value that is known.
  """

  names: list[str]
  length: Int[np.ndarray, " S"]
  problem: Int[np.ndarray, " S"]
  rater: Int[np.ndarray, " J"]
  solution: Int[np.ndarray, " J"]
  error: Int[np.ndarray, " J"]
  first: Int[np.ndarray, " J"]
  judgement: Int[np.ndarray, " F"]
  step: Int[np.ndarray, " F"]
  value: Float[np.ndarray, " F"]


def _table(judgements: Iterable[Judgement]) -> tuple[_Table | None, int]:
  """Returns the table of what several raters judged, and what is left out."""
  by_solution: dict[Hashable, dict[str, Judgement]] = {}
  judged_twice = 0
  for x in judgements:
    by_rater = by_solution.setdefault(x.solution, {})
    judged_twice += x.rater in by_rater
    by_rater.setdefault(x.rater, x)
  shared = [list(x.values()) for x in by_solution.values() if len(x) > 1]
  if not shared:
    return None, judged_twice
  names = sorted({x.rater for of in shared for x in of})
  number = {name: i for i, name in enumerate(names)}
  rows = [(x, s) for s, of in enumerate(shared) for x in of]
  known = [
    [i for i, v in enumerate(x.values) if v is not None] for x, _ in rows
  ]
  first = (first_error(x.values) for x, _ in rows)
  return _Table(
    names=names,
    length=np.array([len(of[0].values) for of in shared]),
    problem=bootstrap.numbered(of[0].problem for of in shared),
    rater=np.array([number[x.rater] for x, _ in rows]),
    solution=np.array([s for _, s in rows]),
    error=np.array([_error(x.values) for x, _ in rows]),
    first=np.array([_UNKNOWN if x is None else x for x in first]),
    judgement=np.repeat(np.arange(len(rows)), [len(x) for x in known]),
    step=np.array([i for of in known for i in of], np.int64),
    value=np.array(
      [x.values[i] for (x, _), of in zip(rows, known) for i in of], np.float64
    ),
  ), judged_twice


def _error(values: Sequence[float | None]) -> int:
  error = schema.first_error(values)
  return len(values) if error < 0 else error


def _coded(
  table: _Table, level: rater_coefficients.Level
) -> tuple[Int[np.ndarray, " F"], int]:
  """Returns each value's number in the order of values, and how many they are."""
  value = table.value
  if level == "ordinal":
    value = np.round(value * _STEPS_OF_ORDER)
  else:
    sides = (value >= schema.THRESHOLD).astype(np.float64)
    value = np.where(np.isin(value, _NAMED), value, sides)
  values, code = np.unique(value, return_inverse=True)
  return code, len(values)


def _counted(
  table: _Table, scope: str, among: Bool[np.ndarray, " J"]
) -> Bool[np.ndarray, " F"]:
  """Returns which values count if these judgements alone are compared."""
  of = table.judgement
  if scope == "all":
    return among[of]
  end = np.full(len(table.length), np.iinfo(np.int64).max)
  np.minimum.at(end, table.solution[among], table.error[among])
  return among[of] & (table.step <= end[table.solution[of]])


def _alphas(table: _Table, draw) -> dict[str, Any]:
  """Returns the alpha of each scope and level."""
  starts = np.cumsum(table.length) - table.length
  unit = starts[table.solution[table.judgement]] + table.step
  problem = np.repeat(table.problem, table.length)
  num_problems = int(table.problem.max()) + 1
  parts: dict[tuple[str, str], _Part] = {}
  for scope, level in itertools.product(SCOPES, rater_coefficients.LEVELS):
    counted = _counted(table, scope, np.ones(len(table.rater), bool))
    code, num_values = _coded(table, level)
    counts = rater_coefficients.unit_counts(
      unit[counted], code[counted], len(problem), num_values
    )
    parts[scope, level] = _Part(
      rater_coefficients.coincidences(counts, problem, num_problems),
      functools.partial(rater_coefficients.alphas, level=level),
      steps=int((counts.sum(axis=1) > 1).sum()),
    )
  estimates = _estimates(parts, draw)
  return {
    scope: {x: estimates[scope, x] for x in rater_coefficients.LEVELS}
    for scope in SCOPES
  }


def _by_rater(table: _Table) -> list[dict[str, Any]]:
  rater = table.rater[table.judgement]
  wrong = table.value < schema.THRESHOLD
  num = len(table.names)
  columns = zip(
    table.names,
    np.bincount(table.rater, minlength=num).tolist(),
    np.bincount(rater, minlength=num).tolist(),
    np.bincount(rater[wrong], minlength=num).tolist(),
    np.bincount(table.rater[table.first >= 0], minlength=num).tolist(),
  )
  names = ("rater", "solutions", "steps", "wrong", "with_an_error")
  return [dict(zip(names, row)) for row in columns]


def _pairs(table: _Table, draw) -> list[dict[str, Any]]:
  """Returns the agreement of each pair, those with the most solutions first."""
  of = [np.flatnonzero(table.rater == r) for r in range(len(table.names))]
  pairs = []
  for a, b in itertools.combinations(range(len(table.names)), 2):
    in_a, in_b = table.solution[of[a]], table.solution[of[b]]
    _, at_a, at_b = np.intersect1d(in_a, in_b, return_indices=True)
    if len(at_a):
      both = _pair(table, of[a][at_a], of[b][at_b], draw)
      pairs.append(dict(a=table.names[a], b=table.names[b]) | both)
  return sorted(pairs, key=lambda x: (-x["solutions"], x["a"], x["b"]))


def _pair(
  table: _Table, a: Int[np.ndarray, " N"], b: Int[np.ndarray, " N"], draw
) -> dict[str, Any]:
  """Returns the agreement of two raters; a and b are the same solutions'."""
  problems, problem = np.unique(
    table.problem[table.solution[a]], return_inverse=True
  )
  num = len(problems)
  # First errors, of solutions where both are known.
  x, y = table.first[a], table.first[b]
  known = (x != _UNKNOWN) & (y != _UNKNOWN)
  near = (np.abs(x - y) <= 1) & ((x < 0) == (y < 0))
  columns = (known, known & (x == y), known & near)
  errors = np.stack(
    [np.bincount(problem, w.astype(float), minlength=num) for w in columns],
    axis=1,
  )
  parts = dict(
    first_error_same=_Part(errors[:, [1, 0]], _share),
    first_error_within_one=_Part(errors[:, [2, 0]], _share),
  )
  code, num_values = _coded(table, "nominal")
  among = np.zeros(len(table.rater), bool)
  among[a] = among[b] = True
  place = np.full(len(table.rater), -1)
  place[a] = place[b] = np.arange(len(a))
  longest = int(table.length.max()) + 1
  key = place[table.judgement] * longest + table.step
  is_a = np.isin(table.judgement, a)
  size = num_values**2
  for scope in SCOPES:
    counted = _counted(table, scope, among)
    keys, in_a, in_b = np.intersect1d(
      key[counted & is_a], key[counted & ~is_a], return_indices=True
    )
    cell = code[counted & is_a][in_a] * num_values
    cell += code[counted & ~is_a][in_b]
    cell += problem[keys // longest] * size
    rows = np.bincount(cell, minlength=num * size).reshape(num, size)
    parts[scope] = _Part(
      rows.astype(np.float64), rater_coefficients.kappas, steps=len(keys)
    )
  estimates = _estimates(parts, draw)
  kappa = {scope: estimates.pop(scope) for scope in SCOPES}
  told = dict(solutions=len(a), first_errors=int(known.sum()))
  return told | estimates | dict(kappa=kappa)


def _share(sums: Float[np.ndarray, "R 2"]) -> Float[np.ndarray, " R"]:
  total = sums[:, 1]
  return np.where(total > 0, sums[:, 0] / np.maximum(total, 1), np.nan)


def _estimates(
  parts: dict[Any, _Part], draw: tuple[int, int]
) -> dict[Any, Any]:
  """Returns the number of each part, and its interval, by the same draws."""
  rows = np.concatenate([part.rows for part in parts.values()], axis=1)
  drawn = bootstrap.sums(rows, *draw) if len(rows) > 1 else None
  estimates, start = {}, 0
  for name, part in parts.items():
    end = start + part.rows.shape[1]
    value = float(part.statistic(part.rows.sum(axis=0, keepdims=True))[0])
    is_defined = not math.isnan(value)
    estimate: dict[str, Any] = dict(
      value=value if is_defined else None, interval=None
    )
    if is_defined and drawn is not None:
      values = part.statistic(drawn[:, start:end])
      estimate["interval"] = bootstrap.interval(values)
    if part.steps is not None:
      estimate = dict(steps=part.steps) | estimate
    estimates[name] = estimate
    start = end
  return estimates
