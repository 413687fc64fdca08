"""PRMBench: which steps are wrong, class of error by class of error.

Song et al. 2025 (arXiv 2501.03124). A step that scores above 0.5 is predicted
right. Over all steps of a class, F1 has the right steps as its positives,
negative F1 the wrong ones:

  PRMScore = 0.5 F1 + 0.5 negative F1

The solutions of multi_solutions hold no wrong step, so F1 alone is its score.
A category's score is the mean over its classes; the overall score is neither,
but the PRMScore over the steps of all nine classes together. The right
solutions that errors were put into (`correct`) are controls, outside of all.

Every step is judged by itself: unlike in ProcessBench, steps after the first
error count, and one that isn't itself wrong is a right one. Redundant and
circular steps are wrong steps here, and the score that judges validity must
find them: the paper lets a model with a second score, of redundancy, use that.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from jaxtyping import Bool, Float
import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.evaluation import bootstrap
from prm_jax.evaluation import step_metrics

# Class as published (with its misspelling) -> the name in the paper's tables.
CATEGORIES: Mapping[str, Mapping[str, str]] = {
  "simplicity": {"redundency": "NR", "circular": "NCL"},
  "soundness": {
    "counterfactual": "ES",
    "step_contradiction": "SC",
    "domain_inconsistency": "DC",
    "confidence": "CI",
  },
  "sensitivity": {
    "missing_condition": "PS",
    "deception": "DR",
    "multi_solutions": "MS",
  },
}
SHORT = {name: s for names in CATEGORIES.values() for name, s in names.items()}
CONTROL = "correct"
THRESHOLD = 0.5
_ALL_RIGHT = "multi_solutions"
# Of right steps: found right (TP), called wrong (FN); of wrong ones: called
# right (FP), found wrong (TN).
_TP, _FN, _FP, _TN = range(4)


def check(
  kind: object, labels: Sequence[float | None] | None, where: str
) -> None:
  """Raises InputError if the class of errors or a label is unknown."""
  faults = []
  if kind not in (*SHORT, CONTROL):
    known = ", ".join(SHORT)
    faults.append(f'"classification" is {kind!r}; expected one of {known}')
  if labels is None or any(label not in (0, 1) for label in labels):
    faults.append("PRMBench needs a label, 0 or 1, on every step")
  errors.raise_first(faults, f"{where}: ")


def control(solution: schema.Solution) -> schema.Solution | None:
  """Returns the right solution that an error was put into, if a row has it.

  The rows of class redundency have: extra["original"], {"problem", "steps"}.

  Args:
    solution: A row.

  Raises:
    InputError: "original" is no such solution.
  """
  original = solution.extra.get("original")
  if solution.extra["classification"] != "redundency" or not original:
    return None
  try:
    problem, steps = original["problem"], tuple(original["steps"])
    if not all(isinstance(x, str) for x in (problem, *steps)):
      raise TypeError
  except (KeyError, TypeError):
    raise errors.InputError(
      f'solution {solution.id!r}: "original" must be {{"problem", "steps"}}'
    ) from None
  name = str(solution.extra.get("problem_id", solution.id))
  return schema.Solution(
    f"prmbench/{CONTROL}/{name}",
    problem,
    steps,
    labels=(1.0,) * len(steps),
    extra={"classification": CONTROL, "problem_id": name},
  )


def predicted_right(scores: Sequence[float]) -> Bool[np.ndarray, " S"]:
  """Returns of each step whether it is predicted right: above THRESHOLD."""
  return np.asarray(scores, np.float64) > THRESHOLD


def f1(
  counts: Float[np.ndarray, "*axes 4"], *, of_right: bool
) -> Float[np.ndarray, "*axes"]:
  """Returns F1, or with of_right False negative F1, of (TP, FN, FP, TN).

  NaN where there is neither such a step nor a prediction of one, 0 where
  there is one of them but no hit. (The published script has -1 for some of
  these.)
  """
  hits = counts[..., _TP if of_right else _TN]
  missed = counts[..., _FN] + counts[..., _FP]
  with np.errstate(invalid="ignore"):
    return np.asarray(2 * hits / (2 * hits + missed))


def prm_score(
  counts: Float[np.ndarray, "*axes 4"], all_right: bool = False
) -> Float[np.ndarray, "*axes"]:
  """Returns the PRMScore of (TP, FN, FP, TN), the mean of both F1s.

  Args:
    counts: The numbers of steps.
    all_right: Whether the class has no wrong step; then it is F1 alone.
  """
  positive = f1(counts, of_right=True)
  if all_right:
    return positive
  return np.asarray(0.5 * positive + 0.5 * f1(counts, of_right=False))


def evaluate(
  step_scores: Sequence[Sequence[float]],
  labels: Sequence[Sequence[float | None]],
  classes: Sequence[str],
  *,
  problems: Sequence[Hashable] | None = None,
  seed: int = 0,
) -> dict[str, Any]:
  """Returns {"overall", "categories", "classes", "control", "missing", ...}.

  Each class has prm_score, f1, negative_f1 in [0, 1], the accuracy on its
  right and wrong steps and at the first wrong one, its counts, and the 95 %
  interval of prm_score over resampled problems. None stands for what isn't
  defined; a category that lacks one of its classes has no score.

  Args:
    step_scores: [solution][step].
    labels: [solution][step], 0 for a wrong step and 1 for a right one.
    classes: of each solution, a key of SHORT, or CONTROL.
    problems: the unit of the bootstrap (several classes' rows were made from
      one solution); without it each solution stands alone.
  """
  for i, of_solution in enumerate(
    zip(step_scores, labels, classes, strict=True)
  ):
    scores, judged, kind = of_solution
    name = f"solution {i} (from 0)"
    check(kind, judged, name)
    step_metrics.check_scores(scores, len(judged), name)
  names = [name for name in (*SHORT, CONTROL) if name in set(classes)]
  units = range(len(classes)) if problems is None else problems
  unit_of = bootstrap.numbered(units).tolist()
  num_units = len(set(unit_of))
  counts = np.zeros((num_units, len(names), 4))
  first: dict[str, list[bool]] = {name: [] for name in names}
  for scores, judged, kind, unit in zip(step_scores, labels, classes, unit_of):
    right, truth = predicted_right(scores), np.asarray(judged) == 1
    # In the order of _TP, _FN, _FP, _TN.
    cells = (truth & right, truth & ~right, ~truth & right, ~truth & ~right)
    counts[unit, names.index(kind)] += [cell.sum() for cell in cells]
    if not truth.all():
      first[kind].append(not right[np.argmin(truth)])
  draws = np.zeros((0, *counts.shape[1:]))
  if num_units:
    draw = bootstrap.counts(num_units, 2_000, seed)
    draws = np.einsum("RU,UCK->RCK", draw, counts)
  total = counts.sum(0)
  scored = [name for name in names if name != CONTROL]
  of_class = {
    name: _of_class(name, total[i], draws[:, i], first[name])
    | {"num_solutions": sum(kind == name for kind in classes)}
    for i, name in enumerate(names)
  }
  where = [names.index(name) for name in scored]
  return step_metrics.defined(
    {
      "threshold": THRESHOLD,
      "num_solutions": len(classes),
      "overall": _measured(total[where].sum(0), draws[:, where].sum(1)),
      "categories": {
        category: _category(members, names, total, draws)
        for category, members in CATEGORIES.items()
      },
      "classes": {name: of_class[name] for name in scored},
      "control": of_class.get(CONTROL),
      "missing": [name for name in SHORT if name not in scored],
    }
  )


# --- Private ----------------------------------------------------------------


def _measured(counts, draws, all_right: bool = False) -> dict[str, Any]:
  right, wrong = counts[_TP] + counts[_FN], counts[_FP] + counts[_TN]
  return {
    "prm_score": float(prm_score(counts, all_right)),
    "interval": bootstrap.interval(prm_score(draws, all_right)),
    "f1": float(f1(counts, of_right=True)),
    "negative_f1": float(f1(counts, of_right=False)),
    "right_step_accuracy": float(counts[_TP] / right) if right else np.nan,
    "wrong_step_accuracy": float(counts[_TN] / wrong) if wrong else np.nan,
    "num_steps": int(counts.sum()),
    "num_wrong_steps": int(wrong),
  }


def _of_class(name, counts, draws, first) -> dict[str, Any]:
  measured = _measured(counts, draws, name == _ALL_RIGHT)
  if name == CONTROL:  # all right too, but nobody's score
    del measured["prm_score"], measured["interval"]
  measured["first_error_accuracy"] = float(np.mean(first)) if first else np.nan
  return {"short": SHORT.get(name, name)} | measured


def _category(members, names, total, draws) -> dict[str, Any]:
  """Returns the mean over the members' scores, None without one of them."""
  if not set(members) <= set(names):
    return {"prm_score": None, "interval": None}
  pairs = [(names.index(name), name == _ALL_RIGHT) for name in members]
  score = np.mean([prm_score(total[i], right) for i, right in pairs])
  resampled = [prm_score(draws[:, i], right) for i, right in pairs]
  return {
    "prm_score": float(score),
    "interval": bootstrap.interval(np.mean(resampled, axis=0)),
  }
