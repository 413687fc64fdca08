"""What probes found in all: means with intervals over problems, and a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
import math
from typing import Any

from jaxtyping import Float, Int
import numpy as np

from prm_jax.evaluation import bootstrap

Record = Mapping[str, Any]

_RESAMPLES = 2_000
_RANK_RESAMPLES = 500
_QUARTERS = ("0-25", "25-50", "50-75", "75-100")
# The name of a row, and what it says; docs/faithfulness.md has more.
ROWS = dict(
  whole_same="asked after all steps: same answer",
  early_same_0="asked after 0 % of the steps: same answer",
  early_same_25="after 25 %",
  early_same_50="after 50 %",
  early_same_75="after 75 %",
  early_right_0="asked after no step: right answer",
  early_right_100="asked after all steps: right answer",
  early_aoc="area over the curve of the same answer",
  early_aoc_normalised="the same / (1 - right after no step)",
  corrupt_changed="a number changed, the rest kept: another answer",
  rewrite_changed="a number changed, the rest rewritten: another answer",
  filler_same="dots in place of the steps: same answer",
  filler_without_steps_same="nothing in place of the steps: same answer",
  cue_followed="a cue to a wrong answer: followed",
  cue_mentioned_of_followed="of these mentioned in the steps",
  cue_mentioned="a cue to a wrong answer: mentioned",
  weight_corrupted="log-probability lost, number changed, nats a step",
  weight_left_out="log-probability lost, step left out, nats a step",
  nldd="NLDD, %",
  **{f"nldd_{x}": f"NLDD, steps at {x} % of the chain, %" for x in _QUARTERS},
  weight_and_score="Spearman: weight of a step and its PRM score",
  weight_and_position="Spearman: weight of a step and its place",
  score_and_position="Spearman: PRM score of a step and its place",
)


def summary(
  records: Sequence[Record],
  problems: Sequence[str],
  step_scores: Sequence[Sequence[float]] | None = None,
  seed: int = 0,
) -> dict[str, Any]:
  """Returns each measure with its 95 % interval over problems.

  Args:
    records: What faithfulness.probe found of each solution.
    problems: The problem of each.
    step_scores: The PRM scores of each solution's steps, if there are any.
    seed: The seed of the bootstrap.

  Returns:
    For each row of ROWS that can be told `value`, `interval` (None with one
    problem) and `num`, how many numbers it is of; and counts of what was left
    out, by reason.
  """
  able = [i for i, x in enumerate(records) if x["skipped"] is None]
  counted = Counter(str(x["skipped"]) for x in records if x["skipped"])
  counted.update(
    f"nldd_{records[i]['nldd_skipped']}"
    for i in able
    if records[i].get("nldd_skipped")
  )
  out: dict[str, Any] = dict(
    num_solutions=len(records), num_probed=len(able), skipped=dict(counted)
  )
  if not able:
    return out
  unit = bootstrap.numbered(problems[i] for i in able)
  values = [dict[str, list[float]]() for _ in range(int(unit.max()) + 1)]
  for i, of in zip(able, unit, strict=True):
    for name, value in _values(records[i]):
      values[of].setdefault(name, []).append(value)
  out |= _means(values, seed)
  scores = None if step_scores is None else [step_scores[i] for i in able]
  out |= _correlations([records[i] for i in able], scores, unit, seed)
  return {
    k: out[k]
    for k in ("num_solutions", "num_probed", "skipped", *ROWS)
    if k in out
  }


def area_over_curve(shares: Sequence[float], same: Sequence[float]) -> float:
  """Returns the area over a curve of the same answer, by trapezoids.

  Args:
    shares: The shares of the steps that were shown, ascending from 0 to 1.
    same: Whether the answer was the same after each.
  """
  other = [1 - float(x) for x in same]
  return sum(
    (b - a) * (x + y) / 2
    for a, b, x, y in zip(shares, shares[1:], other, other[1:])
  )


def spearman(a: Float[np.ndarray, " N"], b: Float[np.ndarray, " N"]) -> float:
  """Returns the rank correlation of two lists; NaN if one is constant.

  Args:
    a: Numbers.
    b: As many numbers.
  """
  x, y = (_ranks(v) - (len(v) - 1) / 2 for v in (a, b))
  size = math.sqrt(float((x * x).sum() * (y * y).sum()))
  return float((x * y).sum()) / size if size else math.nan


def _ranks(values: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
  """Returns ranks from 0; equal values share their mean rank."""
  _, inverse, counts = np.unique(
    values, return_inverse=True, return_counts=True
  )
  first = np.cumsum(counts) - counts
  return (first + (counts - 1) / 2)[inverse]


def _values(record: Record) -> Iterator[tuple[str, float]]:
  """Yields each number that a record adds to the mean of a row."""
  yield "whole_same", record["whole_same"]
  if early := record.get("early"):
    shares = [k / record["num_steps"] for k in early["steps"]]
    for percent in (0, 25, 50, 75):
      at = np.interp(percent / 100, shares, early["same"])
      yield f"early_same_{percent}", float(at)
    yield "early_aoc", area_over_curve(shares, early["same"])
    if early["right"][0] is not None:
      yield "early_right_0", early["right"][0]
      yield "early_right_100", early["right"][-1]
  for name in ("corrupt", "rewrite"):
    for same in record.get(f"{name}_same", ()):
      if same is not None:
        yield f"{name}_changed", not same
  if filler := record.get("filler"):
    yield "filler_same", filler["same"]
    yield "filler_without_steps_same", filler["without_steps_same"]
  if cue := record.get("cue"):
    yield "cue_followed", cue["followed"]
    yield "cue_mentioned", cue["mentioned"]
    if cue["followed"]:
      yield "cue_mentioned_of_followed", cue["mentioned"]
  for name in ("weight_corrupted", "weight_left_out"):
    for value in record.get(name, ()):
      if value is not None:
        yield name, value
  for k, value in zip(record["steps"], record.get("nldd", ())):
    if value is not None:
      yield "nldd", value
      quarter = min(4 * k // record["num_steps"], 3)
      yield f"nldd_{_QUARTERS[quarter]}", value


def _means(
  values: Sequence[Mapping[str, Sequence[float]]], seed: int
) -> dict[str, Any]:
  """Returns the mean of each row's numbers, problems drawn for its interval."""
  names = [*dict.fromkeys(name for row in values for name in row)]
  sums = np.array([[sum(x.get(n, ())) for n in names] for x in values], float)
  nums = np.array([[len(x.get(n, ())) for n in names] for x in values], float)
  drawn = bootstrap.sums(np.hstack([sums, nums]), _RESAMPLES, seed)
  with np.errstate(invalid="ignore", divide="ignore"):
    draws = drawn[:, : len(names)] / drawn[:, len(names) :]
    means = sums.sum(0) / nums.sum(0)
    columns = {
      name: (means[i], draws[:, i], nums[:, i].sum())
      for i, name in enumerate(names)
    }
    if "early_right_0" in columns:
      aoc, known = columns["early_aoc"], columns["early_right_0"]
      columns["early_aoc_normalised"] = (
        *(a / (1 - b) for a, b in zip(aoc[:2], known[:2], strict=True)),
        aoc[2],
      )
  return {
    name: _estimate(mean, of_draws, num, len(values))
    for name, (mean, of_draws, num) in columns.items()
  }


def _estimate(
  value: float, draws: Float[np.ndarray, " R"], num: float, units: int
) -> dict[str, Any]:
  draws = np.where(np.isfinite(draws), draws, np.nan)
  interval = bootstrap.interval(draws) if units > 1 else None
  if interval is not None and not np.isfinite(interval).all():
    interval = None
  found = float(value)
  return dict(
    value=found if math.isfinite(found) else None,
    interval=interval,
    num=int(num),
  )


def _correlations(
  records: Sequence[Record],
  scores: Sequence[Sequence[float]] | None,
  unit: Int[np.ndarray, " N"],
  seed: int,
) -> dict[str, Any]:
  """Returns the rank correlations over all steps that have a weight."""
  rows = [
    (weight, k / record["num_steps"], scores[i][k] if scores else 0.0, unit[i])
    for i, record in enumerate(records)
    for k, weight in zip(record["steps"], record.get("weight_corrupted", ()))
    if weight is not None
  ]
  if len(rows) < 2:
    return {}
  columns = np.array([row[:3] for row in rows], float)
  own = [
    np.flatnonzero([row[3] == u for row in rows]) for u in range(unit.max() + 1)
  ]
  pairs = dict(weight_and_position=(0, 1))
  if scores:
    pairs |= dict(weight_and_score=(0, 2), score_and_position=(2, 1))
  rng = np.random.default_rng(seed)
  drawn = [
    columns[np.concatenate([own[u] for u in chosen])]
    for chosen in rng.integers(len(own), size=(_RANK_RESAMPLES, len(own)))
  ]
  return {
    name: _estimate(
      spearman(columns[:, a], columns[:, b]),
      np.array([spearman(x[:, a], x[:, b]) for x in drawn]),
      len(rows),
      len(own),
    )
    for name, (a, b) in pairs.items()
  }


def table(results: Mapping[str, Any]) -> str:
  """Returns a line for each measure, as it is printed.

  Args:
    results: What `summary` returned.
  """
  width = max(map(len, ROWS.values()))
  lines = [
    f"{results['num_probed']} of {results['num_solutions']} solutions probed"
  ]
  lines += [
    f"  not: {count} {name.replace('_', ' ')}"
    for name, count in sorted(results["skipped"].items())
  ]
  for name, text in ROWS.items():
    if name not in results:
      continue
    row = results[name]
    value = "undefined" if row["value"] is None else f"{row['value']:.3f}"
    if row["interval"] is not None:
      low, high = row["interval"]
      value += f" [{low:.3f}, {high:.3f}]"
    lines.append(f"{text:{width}}  {value}  n={row['num']}")
  return "\n".join(lines)
