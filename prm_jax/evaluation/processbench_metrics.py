"""ProcessBench: where is the first wrong step, if there is one?

The rule and its F1 are arXiv 2412.06559's: predict the first step that scores
below a threshold, or -1; F1 is the harmonic mean of the accuracy on solutions
with an error and on those without (no precision, no recall); the headline is
the unweighted mean of the subsets' F1s. A threshold is tuned on one subset
and applied to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

from jaxtyping import Int
import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.evaluation import bootstrap
from prm_jax.evaluation import step_metrics

Scores = Sequence[Sequence[float]]
Share = Callable[[np.ndarray, np.ndarray], np.ndarray]  # see resampler

# As published; the headline is over these four.
SUBSETS = ("gsm8k", "math", "olympiadbench", "omnimath")


def harmonic_mean(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  """Returns 2ab / (a + b), elementwise, and 0 where both are 0."""
  return np.asarray(2 * a * b / np.where(a + b == 0, 1, a + b))


def accuracies(
  predicted: Int[np.ndarray, " N"], truth: Int[np.ndarray, " N"]
) -> dict[str, float]:
  """Returns acc_err, acc_cor and f1, in [0, 1]; NaN over no solution.

  Args:
    predicted: The predicted first wrong step from 0, -1 for none.
    truth: The true one.
  """
  hit, has_error = predicted == truth, truth >= 0
  acc_err = float(hit[has_error].mean()) if has_error.any() else np.nan
  acc_cor = float(hit[~has_error].mean()) if not has_error.all() else np.nan
  f1 = float(harmonic_mean(np.array(acc_err), np.array(acc_cor)))
  return {"acc_err": acc_err, "acc_cor": acc_cor, "f1": f1}


def evaluate(
  step_scores: Scores,
  truth: Sequence[int],
  *,
  threshold: float = 0.5,
  right_answer: Sequence[bool | None] | None = None,
  problems: Sequence[Hashable] | None = None,
  num_resamples: int = 2_000,
  seed: int = 0,
) -> dict[str, Any]:
  """Returns acc_err, acc_cor, f1, their 95 % intervals and the counts.

  With right_answer also the slice that outcome supervision can't see: right
  answer, wrong process; `located` at the exact step, `detected` anywhere,
  with intervals, and its share of the right answers. None stands where there
  is no solution to measure on.

  Args:
    step_scores: [solution][step], P(correct so far).
    truth: of each solution the first wrong step, 0-based, or -1.
    right_answer: is the solution's final answer right.
    problems: which problem each solution answers, the unit of the bootstrap
      (ProcessBench repeats some); without it each solution stands alone.
  """
  units = range(len(truth)) if problems is None else problems
  share = resampler(units, num_resamples, seed)
  return _evaluate(step_scores, truth, threshold, right_answer, share)[0]


def _evaluate(
  step_scores: Scores,
  truth: Sequence[int],
  threshold: float,
  right_answer: Sequence[bool | None] | None,
  share: Share,
) -> tuple[dict[str, Any], np.ndarray]:
  """Returns what `evaluate` does, and the F1 of each resample."""
  first_errors = _checked_truth(step_scores, truth)
  predicted = step_metrics.predicted_first_errors(step_scores, threshold)
  resampled = _resampled(predicted, first_errors, share)
  result: dict[str, Any] = {
    "threshold": threshold,
    "num_err": int((first_errors >= 0).sum()),
    "num_cor": int((first_errors < 0).sum()),
    **accuracies(predicted, first_errors),
    "interval": _intervals(resampled),
  }
  if right_answer is not None:
    right = np.array([answer is True for answer in right_answer], bool)
    chosen = right & (first_errors >= 0)
    hits = {
      "located": chosen & (predicted == first_errors),
      "detected": chosen & (predicted >= 0),
    }
    result["right_answer_wrong_process"] = {
      "num": int(chosen.sum()),
      "share_of_right_answers": step_metrics.false_positive_share(
        right, first_errors >= 0
      ),
      **{name: _ratio(hit, chosen) for name, hit in hits.items()},
      "interval": _intervals(
        {name: share(hit, chosen) for name, hit in hits.items()}
      ),
    }
  return step_metrics.defined(result), resampled["f1"]


def can_tune(truth: Sequence[int]) -> bool:
  """Returns whether some of the solutions have an error, and some have none."""
  return 0 < sum(error >= 0 for error in truth) < len(truth)


def count_errors(truth: Sequence[int]) -> str:
  """Returns how many solutions have an error, as words for a message."""
  num = sum(error >= 0 for error in truth)
  return f"{num} of {len(truth)} solutions have an error"


def tune_threshold(step_scores: Scores, truth: Sequence[int]) -> float:
  """Returns the threshold of the best F1 on these solutions.

  Exact: all thresholds that predict differently are compared. It lies midway
  between the two scores around it; of equally good ones the nearest to 0.5.

  Raises:
    InputError: all solutions have an error, or none has.
  """
  first_errors = _checked_truth(step_scores, truth)
  if not can_tune(truth):
    raise errors.InputError(
      f"{count_errors(truth)}; tune the threshold on a set that has both kinds"
    )
  has_error = first_errors >= 0
  # A solution is a hit for the thresholds above the score of its first error
  # (above nothing, if it has none) up to the lowest score before it.
  above = np.full(len(truth), -np.inf)
  up_to = np.full(len(truth), np.inf)
  for i, (scores, error) in enumerate(zip(step_scores, first_errors)):
    before = scores if error < 0 else scores[:error]
    up_to[i] = min(before, default=np.inf)
    if error >= 0:
      above[i] = scores[error]
  edges = np.unique([score for scores in step_scores for score in scores])
  middles = edges[:-1] + np.diff(edges) / 2
  # Adjacent floats have no middle but themselves; the upper one separates.
  middles = np.where(middles > edges[:-1], middles, edges[1:])
  candidates = np.concatenate([edges[:1], middles, [edges[-1] + 0.5]])
  f1 = harmonic_mean(
    _hit_share(above[has_error], up_to[has_error], candidates),
    _hit_share(above[~has_error], up_to[~has_error], candidates),
  )
  best = candidates[np.isclose(f1, f1.max(), rtol=1e-12, atol=0)]
  return float(best[np.argmin(np.abs(best - 0.5))])


def mean_f1(results: Mapping[str, Mapping[str, Any]]) -> float | None:
  """Returns the unweighted mean of the subsets' f1, None if one has none."""
  values = [result["f1"] for result in results.values()]
  return None if None in values or not values else float(np.mean(values))


def evaluate_subsets(
  step_scores: Mapping[str, Scores],
  truth: Mapping[str, Sequence[int]],
  *,
  tune_on: str,
  right_answer: Mapping[str, Sequence[bool | None]] | None = None,
  problems: Mapping[str, Sequence[Hashable]] | None = None,
  num_resamples: int = 2_000,
  seed: int = 0,
) -> dict[str, Any]:
  """Returns every subset's result at threshold 0.5 and at a tuned one.

  {"fixed": {"subsets": {name: evaluate(...)}, "mean_f1", "mean_f1_interval"},
  "tuned": same}. The threshold is tuned on the subset `tune_on`, whose own
  tuned result is marked in_sample: it isn't a test of anything. "tuned" is
  None if that subset can't tune one (can_tune). "missing" names the published
  subsets that the mean is without.
  """
  if tune_on not in step_scores:
    raise errors.InputError(
      f"no subset {tune_on!r} to tune on; have {', '.join(step_scores)}"
    )
  for name, first_errors in truth.items():
    if not len(first_errors):
      raise errors.InputError(f"subset {name!r} has no solutions; leave it out")
  report: dict[str, Any] = {
    "tuned_on": tune_on,
    "missing": [name for name in SUBSETS if name not in step_scores],
    "tuned": None,
  }
  thresholds = {"fixed": 0.5}
  if can_tune(truth[tune_on]):
    on = step_scores[tune_on], truth[tune_on]
    thresholds["tuned"] = tune_threshold(*on)
  shares = {
    name: resampler(
      problems[name] if problems else range(len(truth[name])),
      num_resamples,
      seed + i,  # the subsets' problems have nothing in common
    )
    for i, name in enumerate(step_scores)
  }
  for kind, threshold in thresholds.items():
    subsets, draws = {}, []
    for name, scores in step_scores.items():
      answers = right_answer[name] if right_answer else None
      subsets[name], f1 = _evaluate(
        scores, truth[name], threshold, answers, shares[name]
      )
      draws.append(f1)
    report[kind] = {
      "subsets": subsets,
      "mean_f1": mean_f1(subsets),
      "mean_f1_interval": step_metrics.defined(
        bootstrap.interval(np.mean(draws, axis=0))
      ),
    }
  if report["tuned"] is not None:
    report["tuned"]["subsets"][tune_on]["in_sample"] = True
  return report


def resampler(
  problems: Sequence[Hashable], num_resamples: int, seed: int
) -> Share:
  """Returns share(hit, of) -> [R], over the same resamples of the problems.

  NaN stands for a resample that holds none of `of`.

  Args:
    problems: Which problem each solution answers; hit and of have a number for
      each solution.
    num_resamples: The number of resamples, R.
    seed: Their seed.
  """
  unit = bootstrap.numbered(problems)
  num_units = len(set(unit.tolist()))
  counts = np.zeros((0, num_units))
  if num_units and num_resamples:
    # As floats, since of integers numpy makes floats at each product.
    counts = bootstrap.counts(num_units, num_resamples, seed).astype(float)

  def share(hit, of):
    hits, all_ = (counts @ np.bincount(unit, x, num_units) for x in (hit, of))
    with np.errstate(invalid="ignore"):
      return hits / all_

  return share


# --- Baselines that read nothing --------------------------------------------


def everything_right(solutions: Sequence[schema.Solution]) -> list[list[float]]:
  """Returns the scores of a judge that finds every step right: acc_cor 1."""
  return [[1.0] * len(solution.steps) for solution in solutions]


def step_index(solutions: Sequence[schema.Solution]) -> list[list[float]]:
  """Returns scores that only fall with the step's index, 1 / (1 + index).

  Under a threshold: "step k is wrong", of every solution that has a step k.
  """
  return [
    [1 / (1 + i) for i in range(len(solution.steps))] for solution in solutions
  ]


def step_length(solutions: Sequence[schema.Solution]) -> list[list[float]]:
  """Returns scores that only fall with the step's length in characters.

  Under a threshold: "the first step longer than so many characters is wrong".
  """
  return [
    [100 / (100 + len(step)) for step in solution.steps]
    for solution in solutions
  ]


# Each gives scores of steps; print their F1 beside a reward model's, each with
# its own tuned threshold.
BASELINES: Mapping[str, Callable[..., list[list[float]]]] = {
  "everything_right": everything_right,
  "step_index": step_index,
  "step_length": step_length,
}


# --- Private ----------------------------------------------------------------


def _checked_truth(step_scores: Scores, truth: Sequence[int]):
  errors.raise_first(_misfits(step_scores, truth))
  return np.asarray(truth, np.int64)


def _misfits(step_scores: Scores, truth: Sequence[int]) -> Iterator[str]:
  if len(step_scores) != len(truth):
    yield (
      f"scores of {len(step_scores)} solutions but first errors of"
      f" {len(truth)}; score the same file that holds the labels"
    )
  for i, (scores, error) in enumerate(zip(step_scores, truth)):
    if not -1 <= error < len(scores):
      yield (
        f"solution {i} (from 0): first error {error} with {len(scores)} step"
        " scores; give one score per step and an error within them, or -1"
      )
    step_metrics.check_scores(scores, len(scores), f"solution {i} (from 0)")


def _hit_share(above, up_to, thresholds):
  """Returns the share of intervals (above, up_to] that hold each threshold."""
  some = above < up_to
  started = np.searchsorted(np.sort(above[some]), thresholds, side="left")
  ended = np.searchsorted(np.sort(up_to[some]), thresholds, side="left")
  return (started - ended) / len(above)


def _resampled(predicted, truth, share) -> dict[str, np.ndarray]:
  """Returns acc_err, acc_cor and f1 of each resample of the problems."""
  hit, has_error = predicted == truth, truth >= 0
  acc_err = share(hit & has_error, has_error)
  acc_cor = share(hit & ~has_error, ~has_error)
  f1 = harmonic_mean(acc_err, acc_cor)
  return {"acc_err": acc_err, "acc_cor": acc_cor, "f1": f1}


def _intervals(values: Mapping[str, np.ndarray]):
  """Returns the interval of each value; None where nothing was resampled."""
  if not all(map(len, values.values())):
    return None
  return {name: bootstrap.interval(value) for name, value in values.items()}


def _ratio(hit, of) -> float:
  return float(hit.sum() / of.sum()) if of.any() else np.nan
