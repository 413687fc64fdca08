"""How well step scores tell right steps from wrong ones.

A score is P(correct so far); a label of at least 0.5 counts as correct. Steps
after the first labelled error are masked (nobody can say whether a step built
on a wrong one is right), and so are steps that nobody labelled; both are
counted. Calibration also leaves out, and counts, the steps that the model
wasn't trained to judge: most PRMs learn nothing about the steps after an error,
so they judge no step after their own first score below 0.5.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
import dataclasses
from typing import Any

from jaxtyping import Bool, Float, Int, Shaped
import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.evaluation import bootstrap

Labels = Sequence[float | None]


@dataclasses.dataclass(frozen=True)
class JudgedSteps:
  """The steps that count, of all solutions one after another.

  Args:
    scores: The score of each step.
    correct: Whether each step is right.
    solution: The index of each step's solution.
    judged: Whether the model was trained to judge each step.
    first_error: The first wrong step of each solution from 0, -1 for none; None
      if that depends on a missing label.
    num_after_error: The number of steps after a first error.
    num_unlabelled: The number of steps without a label.
  """

  scores: Float[np.ndarray, " S"]
  correct: Bool[np.ndarray, " S"]
  solution: Int[np.ndarray, " S"]
  judged: Bool[np.ndarray, " S"]
  first_error: tuple[int | None, ...]
  num_after_error: int
  num_unlabelled: int


def check_scores(scores: Sequence[float], num_steps: int, where: str) -> None:
  """Raises InputError if they aren't one P(correct so far) of each step."""
  errors.raise_first(_wrong_scores(scores, num_steps), f"{where}: ")


def _wrong_scores(scores: Sequence[float], num_steps: int) -> Iterator[str]:
  if len(scores) != num_steps:
    yield f"{len(scores)} scores for {num_steps} steps; give one per step"
  for i, score in enumerate(scores):
    if not 0 <= score <= 1:  # NaN fails too
      yield (
        f"score {score} of step {i} isn't a probability; give P(correct so far)"
        " in [0, 1]"
      )


def judged_steps(
  step_scores: Sequence[Sequence[float]],
  labels: Sequence[Labels],
  judged: Sequence[Sequence[bool]] | None = None,
) -> JudgedSteps:
  """Returns the steps up to the first error that have a label.

  Args:
    step_scores: [solution][step], P(correct so far).
    labels: [solution][step], in [0, 1], None where nobody judged the step.
    judged: [solution][step], whether the model was trained to judge the step;
      None means all (schema.StepScores.judged).

  Raises:
    InputError: the lengths differ, or a score isn't in [0, 1].
  """
  if judged is None:
    judged = [(True,) * len(x) for x in step_scores]
  if not len(step_scores) == len(labels) == len(judged):
    raise errors.InputError(
      f"scores of {len(step_scores)} solutions but labels of {len(labels)};"
      " score the same file that holds the labels"
    )
  scores, correct, solution, is_judged = [], [], [], []
  first_errors: list[int | None] = []
  num_after = num_unlabelled = 0
  for i, (of_steps, given) in enumerate(zip(step_scores, labels)):
    check_scores(of_steps, len(given), f"solution {i} (from 0)")
    error = schema.first_error(given)
    end = len(given) if error < 0 else error + 1
    num_after += len(given) - end
    known = [k for k in range(end) if given[k] is not None]
    num_unlabelled += end - len(known)
    scores += [of_steps[k] for k in known]
    correct += [(given[k] or 0.0) >= 0.5 for k in known]
    is_judged += [judged[i][k] for k in known]
    solution += [i] * len(known)
    first_errors.append(error if len(known) == end else None)
  return JudgedSteps(
    scores=np.array(scores, np.float64),
    correct=np.array(correct, bool),
    solution=np.array(solution, np.int64),
    judged=np.array(is_judged, bool),
    first_error=tuple(first_errors),
    num_after_error=num_after,
    num_unlabelled=num_unlabelled,
  )


# --- Ranking ----------------------------------------------------------------


def auroc(
  scores: Float[np.ndarray, " S"], correct: Bool[np.ndarray, " S"]
) -> float:
  """Returns P(a right step outscores a wrong one), ties counted half.

  NaN where all steps are right or all are wrong.
  """
  return _auroc(*_counts_by_score(scores, correct))


def auprc_error(
  scores: Float[np.ndarray, " S"], correct: Bool[np.ndarray, " S"]
) -> float:
  """Returns the average precision at finding wrong steps by a low score.

  The sum over thresholds of precision times the gain in recall; steps of
  equal score enter together. Chance is 1 - base rate. NaN without a wrong
  step.
  """
  right, wrong = _counts_by_score(scores, correct)
  if not wrong.sum():
    return np.nan
  hits = np.cumsum(wrong)
  precision = hits / (hits + np.cumsum(right))
  return float(precision @ wrong / wrong.sum())


def mean_problem_auroc(
  scores: Float[np.ndarray, " S"],
  correct: Bool[np.ndarray, " S"],
  problem: Int[np.ndarray, " S"],
) -> tuple[float, int]:
  """Returns the mean of the problems' own AUROCs, and how many have one.

  Only problems with right and wrong steps do. Unlike the pooled AUROC it
  isn't raised by a score that merely knows which problems are hard.
  """
  order = np.argsort(problem, kind="stable")
  starts = np.flatnonzero(np.diff(problem[order], prepend=-1))
  values = [
    auroc(scores[steps], correct[steps]) for steps in np.split(order, starts)
  ]
  defined = [value for value in values if not np.isnan(value)]
  return (float(np.mean(defined)) if defined else np.nan), len(defined)


# --- Calibration ------------------------------------------------------------


def brier(
  scores: Float[np.ndarray, " S"], correct: Bool[np.ndarray, " S"]
) -> float:
  """Returns the mean squared distance of the score from 0 or 1."""
  return float(np.mean((scores - correct) ** 2)) if len(scores) else np.nan


def reliability(
  scores: Float[np.ndarray, " S"],
  correct: Bool[np.ndarray, " S"],
  bins: int = 15,
) -> list[dict[str, float]]:
  """Returns the rows of the reliability curve, in bins of equal mass.

  Steps of equal score may fall into two bins; each then counts as their mean,
  so that the order of the input changes nothing. Fewer steps than bins make
  as many bins as steps.
  """
  if bins < 1:
    raise errors.InputError(f"bins = {bins}; choose at least 1")
  values, group = np.unique(scores, return_inverse=True)
  mean = np.bincount(group, correct, len(values)) / np.bincount(group)
  order = np.argsort(scores, kind="stable")
  num_bins = min(bins, len(scores))
  return [
    {
      "low": float(scores[steps[0]]),
      "high": float(scores[steps[-1]]),
      "count": len(steps),
      "mean_score": float(scores[steps].mean()),
      "share_correct": float(mean[group[steps]].mean()),
    }
    for steps in (np.array_split(order, num_bins) if num_bins else [])
  ]


def ece(rows: Sequence[dict[str, float]]) -> float:
  """Returns the expected calibration error of a reliability curve's rows."""
  count = sum(row["count"] for row in rows)
  gaps = (
    row["count"] * abs(row["mean_score"] - row["share_correct"]) for row in rows
  )
  return sum(gaps) / count if count else np.nan


# --- Places -----------------------------------------------------------------


def predicted_first_errors(
  step_scores: Sequence[Sequence[float]], threshold: float
) -> Int[np.ndarray, " N"]:
  """Returns each solution's first step that scores below threshold, or -1."""
  return np.array(
    [schema.first_error(scores, threshold) for scores in step_scores], np.int64
  )


def first_error_shares(
  predicted: Int[np.ndarray, " N"], truth: Int[np.ndarray, " N"]
) -> dict[str, float]:
  """Returns how the predicted first errors lie to the true ones.

  Over the solutions with an error, exact + early + late + missed = 1, where
  missed means that none was predicted; within_one contains exact. Over those
  without, `none` is the share where none was predicted. NaN over no solution.
  """
  wrong, right = truth >= 0, truth < 0
  p, t = predicted[wrong], truth[wrong]
  predicted_one = p >= 0
  return {
    "exact": _share(p == t),
    "within_one": _share(predicted_one & (np.abs(p - t) <= 1)),
    "early": _share(predicted_one & (p < t)),
    "late": _share(p > t),
    "missed": _share(~predicted_one),
    "none": _share(predicted[right] < 0),
  }


def min_on_last_share(step_scores: Sequence[Sequence[float]]) -> float:
  """Returns the share of solutions whose lowest score is the last step's.

  A PRM that has drifted towards judging the outcome shows a high share
  (arXiv 2501.07301). k equal minima count 1/k each. Solutions
  without steps are left out; NaN if there are no others.
  """
  shares = []
  for scores in step_scores:
    if len(scores):
      lowest = np.asarray(scores) == min(scores)
      shares.append(lowest[-1] / lowest.sum())
  return _share(shares)


def false_positive_share(
  right: Shaped[np.ndarray, "*shape"], flawed: Shaped[np.ndarray, "*shape"]
) -> float:
  """Returns the share with a wrong step among solutions with a right answer.

  Called trace error in arXiv 2211.14275. NaN without a right answer.
  """
  return _share(np.asarray(flawed)[np.asarray(right, bool)])


# --- Uncertainty ------------------------------------------------------------


def auroc_interval(
  scores: Float[np.ndarray, " S"],
  correct: Bool[np.ndarray, " S"],
  unit: Int[np.ndarray, " S"],
  num_resamples: int,
  seed: int,
) -> list[Any] | None:
  """Returns the AUROC's 95 % interval over resampled units of the steps.

  None without a step or a resample.
  """
  if not len(unit) or not num_resamples:
    return None
  order = np.argsort(scores, kind="stable")
  scores, correct = scores[order], correct[order]
  starts = np.flatnonzero(np.diff(scores, prepend=-1.0))  # of equal scores
  _, unit = np.unique(unit[order], return_inverse=True)
  values = []
  draws = bootstrap.counts(int(unit.max()) + 1, num_resamples, seed)
  for draw in draws.astype(np.float64):
    weights = draw[unit]
    right = np.add.reduceat(weights * correct, starts)
    values.append(_auroc(right, np.add.reduceat(weights, starts) - right))
  return bootstrap.interval(np.array(values))


# --- All of it --------------------------------------------------------------


def evaluate(
  step_scores: Sequence[Sequence[float]],
  labels: Sequence[Labels],
  *,
  judged: Sequence[Sequence[bool]] | None = None,
  problems: Sequence[Hashable] | None = None,
  outcomes: Sequence[bool | None] | None = None,
  threshold: float = 0.5,
  bins: int = 15,
  num_resamples: int = 1_000,
  seed: int = 0,
) -> dict[str, Any]:
  """Returns every measure of this file by name; None where it isn't defined.

  Args:
    step_scores: [solution][step], P(correct so far).
    labels: [solution][step], in [0, 1], None where nobody judged the step.
    judged: [solution][step], whether the model was trained to judge the step;
      None means all. brier, ece and reliability count judged steps only.
    problems: which problem each solution answers, the unit of the bootstrap
      and of mean_problem_auroc; without it each solution stands alone.
    outcomes: is the solution's answer right; for false_positive_share.
    threshold: a step below it is predicted to be wrong.
  """
  steps = judged_steps(step_scores, labels, judged)
  of_judged, correct = steps.scores[steps.judged], steps.correct[steps.judged]
  rows = reliability(of_judged, correct, bins)
  closed = [i for i, error in enumerate(steps.first_error) if error is not None]
  truth = np.array([steps.first_error[i] for i in closed], np.int64)
  predicted = predicted_first_errors(step_scores, threshold)[closed]
  result: dict[str, Any] = {
    "num_solutions": len(labels),
    "num_steps": len(steps.scores),
    "num_steps_after_error": steps.num_after_error,
    "num_steps_unlabelled": steps.num_unlabelled,
    "num_steps_not_judged": int((~steps.judged).sum()),
    "num_steps_calibration": len(of_judged),
    "num_first_error_unknown": len(labels) - len(closed),
    "num_with_error": int((truth >= 0).sum()),
    "num_without_error": int((truth < 0).sum()),
    "base_rate": _share(steps.correct),
    "auroc": auroc(steps.scores, steps.correct),
    "auprc_error": auprc_error(steps.scores, steps.correct),
    "brier": brier(of_judged, correct),
    "ece": ece(rows),
    "reliability": rows,
    "threshold": threshold,
    "min_on_last_share": min_on_last_share(step_scores),
  }
  shares = first_error_shares(predicted, truth)
  result |= {f"first_error_{name}": value for name, value in shares.items()}
  units = range(len(labels)) if problems is None else problems
  unit = bootstrap.numbered(units)[steps.solution]
  result["auroc_interval"] = auroc_interval(
    steps.scores, steps.correct, unit, num_resamples, seed
  )
  if problems is not None:
    mean, num_problems = mean_problem_auroc(steps.scores, steps.correct, unit)
    result["mean_problem_auroc"] = mean
    result["num_problems_with_auroc"] = num_problems
  if outcomes is not None:
    right = np.array([outcomes[i] is True for i in closed], bool)
    result["num_right_answers"] = int(right.sum())
    result["false_positive_share"] = false_positive_share(right, truth >= 0)
  return defined(result)


def defined(value: Any) -> Any:
  """Returns results with None for NaN, which JSON doesn't have."""
  if isinstance(value, dict):
    return {name: defined(v) for name, v in value.items()}
  if isinstance(value, list):
    return [defined(v) for v in value]
  return None if isinstance(value, float) and np.isnan(value) else value


# --- Private ----------------------------------------------------------------


def _counts_by_score(scores, correct):
  """Returns the right and the wrong steps at each distinct score, ascending."""
  _, group = np.unique(scores, return_inverse=True)
  right = np.bincount(group, correct)
  return right, np.bincount(group) - right


def _auroc(right, wrong):
  """Returns the AUROC from the counts at each distinct score, ascending."""
  pairs = right.sum() * wrong.sum()
  below = np.cumsum(wrong) - wrong
  won = np.sum(right * (below + wrong / 2))  # a threaded dot is slower here
  return float(won / pairs) if pairs else np.nan


def _share(values) -> float:
  return float(np.mean(values)) if len(values) else np.nan
