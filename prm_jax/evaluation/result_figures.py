"""What the plot of an evaluation shows: --plot of `prm-jax eval`.

A line is made of the results and samples alone, as they are written, so anybody
can draw it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np

from prm_jax.evaluation import figures
from prm_jax.evaluation import prmbench_metrics
from prm_jax.evaluation import processbench_metrics
from prm_jax.evaluation import results as results_lib
from prm_jax.evaluation import step_metrics

# More points of a curve over all steps can't be told apart.
_MOST_POINTS = 400
# The thresholds that F1 is drawn at, besides those of the results.
_THRESHOLDS = np.linspace(0, 1, 41)
_Values = Sequence[float] | np.ndarray


def of_steps(evaluation: results_lib.Evaluation) -> figures.Figure:
  """Returns calibration, ROC and first errors of `eval steps`."""
  results, samples = evaluation.results, evaluation.samples
  steps = step_metrics.judged_steps(
    [x["step_scores"] for x in samples], [x["labels"] for x in samples]
  )
  calibration = reliability(
    f"ECE {_number(results['ece'])}", results["reliability"]
  )
  return figures.Figure(
    f"Step scores by {_scored_by(results)}",
    [
      figures.Panel(
        *("Calibration", "mean score of a bin", "right steps, %", calibration),
        holds=(0, 1),
        has_diagonal=True,
      ),
      _roc("steps", steps.scores, steps.correct, results),
      _first_errors("step", samples),
    ],
  )


def reliability(
  label: str, bins: Sequence[Mapping[str, Any]]
) -> list[figures.Line]:
  """Returns the line of the share of right steps against the score.

  Args:
    label: What it is called.
    bins: What step_metrics.evaluate returned as "reliability".
  """
  x, y = (
    [row[name] for row in bins] for name in ("mean_score", "share_correct")
  )
  return _line(label, x, y)


def of_processbench(evaluation: results_lib.Evaluation) -> figures.Figure:
  """Returns F1 against the threshold and first errors of `eval processbench`.

  The lines of F1 have the intervals of the results, at their thresholds.
  """
  model, samples = evaluation.results["model"], evaluation.samples
  measured = [model[x] for x in ("fixed", "tuned") if model[x] is not None]
  known = [next(iter(x["subsets"].values()))["threshold"] for x in measured]
  at = np.unique([*_THRESHOLDS, *known])
  f1: dict[str, Any] = {}
  ends: dict[str, list[Any]] = {}
  for name in model["fixed"]["subsets"]:
    f1[name] = _first_error_f1([x for x in samples if x["subset"] == name], at)
    of_subset = [x["subsets"][name]["interval"] or {} for x in measured]
    ends[name] = [interval.get("f1") for interval in of_subset]
  if len(f1) > 1:
    f1["mean"] = np.mean(list(f1.values()), axis=0)
    ends["mean"] = [x["mean_f1_interval"] for x in measured]
  lines = [
    line
    for name, y in f1.items()
    for line in _line(name, at, y, _where(at, known, ends[name]))
  ]
  return figures.Figure(
    f"ProcessBench by {_scored_by(evaluation.results)}",
    [
      figures.Panel(
        "F1 against the threshold",
        f"threshold; 95 % intervals at {' and '.join(map(_number, known))}",
        "F1, %",
        lines,
        holds=(0, 1),
        marks=known,
      ),
      _first_errors("step", samples),
    ],
  )


def of_prmbench(evaluation: results_lib.Evaluation) -> figures.Figure:
  """Returns the PRMScore of each class, and of all against the threshold."""
  results = evaluation.results
  overall, threshold = results["overall"], results["threshold"]
  scored = {x["short"]: x for x in results["classes"].values()}
  samples = [
    x
    for x in evaluation.samples
    if x["classification"] != prmbench_metrics.CONTROL
  ]
  scores = _flat([x["step_scores"] for x in samples])
  wrong = [
    [i in x["target"] for i in range(len(x["step_scores"]))] for x in samples
  ]
  at = np.unique([*_THRESHOLDS, threshold])
  right, above = _flat(wrong) == 0, scores > at[:, None]
  cells = (right & above, right & ~above, ~right & above, ~right & ~above)
  counts = np.stack([cell.sum(1) for cell in cells], axis=-1).astype(float)
  of_all = _line(
    "all steps",
    at,
    prmbench_metrics.prm_score(counts),
    _where(at, [threshold], [overall["interval"]]),
  )
  return figures.Figure(
    f"PRMBench by {_scored_by(results)}",
    [
      _of_names(
        *("PRMScore of each class of errors", "PRMScore, %"),
        {
          name: (x["prm_score"], x["interval"])
          for name, x in (*scored.items(), ("all", overall))
        },
      ),
      figures.Panel(
        "PRMScore against the threshold",
        f"threshold; 95 % interval at {_number(threshold)}",
        "PRMScore, %",
        of_all,
        holds=(0, 1),
        marks=(threshold,),
      ),
    ],
  )


def of_turns(evaluation: results_lib.Evaluation) -> figures.Figure:
  """Returns ROC, first errors and pairs of `eval turns`."""
  results, samples = evaluation.results, evaluation.samples
  rated = np.array(
    [
      (score, rating)
      for x in samples
      for score, rating in zip(x["step_scores"], x["ratings"], strict=True)
      if rating
    ]
  ).reshape(-1, 2)
  pairs = results["pairs"] or dict(subsets={}, mean=None, mean_interval=None)
  of_pairs = {
    name: (x["accuracy"], x["interval"]) for name, x in pairs["subsets"].items()
  }
  if len(of_pairs) > 1:
    of_pairs["mean"] = (pairs["mean"], pairs["mean_interval"])
  ends = dict(auroc_interval=results["interval"]["auroc"])
  return figures.Figure(
    f"Turns by {_scored_by(results)}",
    [
      _roc("turns", rated[:, 0], rated[:, 1] > 0, results | ends),
      _first_errors("turn", samples),
      _of_names("Pairs: the chosen action wins", "accuracy, %", of_pairs),
    ],
  )


def of_best_of_n(evaluation: results_lib.Evaluation) -> figures.Figure:
  """Returns the accuracy of each way to choose against N."""
  results = evaluation.results
  panel = best_of_n(
    results["n"],
    results["accuracy"],
    results["interval"],
    "right answers; bands are 95 % intervals over problems",
  )
  return figures.Figure(f"Best of N by {_scored_by(results)}", [panel])


def best_of_n(
  ns: Sequence[int],
  accuracy: Mapping[str, Sequence[float]],
  interval: Mapping[str, Sequence[Sequence[float]]],
  title: str,
) -> figures.Panel:
  """Returns the panel of accuracies against the number of samples.

  Args:
    ns: The numbers of samples of a problem.
    accuracy: By the name of each way to choose, its share of right answers with
      each number.
    interval: The same names, the ends of each share's interval.
    title: The title of the panel.
  """
  return figures.Panel(
    title,
    "samples of a problem, N (log scale)",
    "right answers, %",
    [
      line
      for name, shares in accuracy.items()
      for line in _line(name, ns, shares, interval[name])
    ],
    x_ticks=ns,
    x_is_log=True,
    holds=(1,),
  )


# --- Private ----------------------------------------------------------------


def _line(
  label: str,
  x: _Values,
  y: _Values | Sequence[int],
  intervals: Sequence[Any] = (),
  *,
  is_joined: bool = True,
) -> list[figures.Line]:
  """Returns a line, or none if no value is known; None stands for NaN."""
  values = np.array(y, float)
  if not np.isfinite(values).any():
    return []
  low, high = (
    tuple(float("nan") if not x or x[i] is None else x[i] for x in intervals)
    for i in (0, 1)
  )
  return [
    figures.Line(
      label, tuple(map(float, x)), tuple(values.tolist()), low, high, is_joined
    )
  ]


def _of_names(
  title: str, y_label: str, values: Mapping[str, tuple[float | None, Any]]
) -> figures.Panel:
  """Returns a panel of values with intervals, one for each name."""
  at, (y, intervals) = (
    range(len(values)),
    zip(*values.values()) if values else ((), ()),
  )
  lines = _line("model", at, y, intervals, is_joined=False)
  return figures.Panel(
    *(title, "", y_label, lines), x_ticks=at, x_names=[*values], holds=(0, 1)
  )


def _roc(
  units: str,
  scores: np.ndarray,
  correct: np.ndarray,
  results: Mapping[str, Any],
) -> figures.Panel:
  """Returns the ROC of finding what is wrong by a low score.

  Its area is the AUROC: P(what is right outscores what is wrong).
  """
  panel = figures.Panel(
    f"ROC: wrong {units} found by a low score",
    f"right {units} called wrong (share)",
    f"wrong {units} found, %",
    [],
    holds=(0, 1),
    has_diagonal=True,
  )
  if results["auroc"] is None:
    return panel
  _, group = np.unique(scores, return_inverse=True)
  x, y = (
    np.concatenate([[0], np.cumsum(np.bincount(group, of)) / of.sum()])
    for of in (correct, ~correct)
  )
  if len(x) > _MOST_POINTS:
    kept = np.linspace(0, len(x) - 1, _MOST_POINTS).round().astype(int)
    x, y = x[kept], y[kept]
  text = f"AUROC {_number(results['auroc'])}"
  ends = results["auroc_interval"]
  if ends and None not in ends:
    text += f" [{_number(ends[0])}, {_number(ends[1])}]"
  return dataclasses.replace(panel, lines=_line(text, x, y))


def _first_errors(
  unit: str, samples: Sequence[Mapping[str, Any]]
) -> figures.Panel:
  """Returns how many solutions have their first error at each place."""
  known = [x for x in samples if x["target"] is not None]
  counts = {
    "labelled": Counter(x["target"] for x in known),
    "predicted": Counter(x["prediction"] for x in known),
    "predicted, and right": Counter(
      x["target"] for x in known if x["prediction"] == x["target"]
    ),
  }
  last = max((place for of in counts.values() for place in of), default=-1)
  at = range(last + 1)
  lines = [
    line
    for name, of in counts.items()
    for line in _line(name, at, [of[place] for place in at])
  ]
  return figures.Panel(
    "First errors by position",
    f"first wrong {unit}, from 0",
    "solutions",
    lines,
    is_share=False,
    holds=(0,),
  )


def _first_error_f1(
  samples: Sequence[Mapping[str, Any]], thresholds: _Values
) -> np.ndarray:
  """Returns F1 at each threshold; NaN without errors, or without others."""
  scores = [x["step_scores"] for x in samples]
  truth = np.array([x["target"] for x in samples], np.int64)
  return np.array(
    [
      processbench_metrics.accuracies(
        step_metrics.predicted_first_errors(scores, threshold), truth
      )["f1"]
      for threshold in thresholds
    ]
  )


def _where(
  at: _Values, known: Sequence[float], intervals: Sequence[Any]
) -> list[Any]:
  """Returns the interval at each place; None where it isn't known."""
  of = dict(zip(known, intervals, strict=True))
  return [of.get(x) for x in at]


def _flat(rows: Sequence[Sequence[float]]) -> np.ndarray:
  return np.array([x for row in rows for x in row], float)


def _number(value: float | None) -> str:
  return "undefined" if value is None else f"{value:.3f}"


def _scored_by(results: Mapping[str, Any]) -> str:
  """Returns the checkpoint, or the file of the scores and their field."""
  by = results["scored_by"]
  place = str(by.get("checkpoint", by.get("scores", "a function")))
  return f"{place}, {by['field']}" if by.get("field") else place
