"""The evaluations as `prm-jax eval` runs them: files in, an Evaluation out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
import functools
import logging
from typing import Any

import numpy as np

from prm_jax import errors as errors_lib
from prm_jax import schema
from prm_jax.data import encoding
from prm_jax.data import sources
from prm_jax.data.formats import fields
from prm_jax.evaluation import prmbench
from prm_jax.evaluation import processbench
from prm_jax.evaluation import results as outputs
from prm_jax.evaluation import scores as scores_lib
from prm_jax.evaluation import step_metrics
from prm_jax.runtime import files

_logger = logging.getLogger(__name__)


def read(
  format_name: str,
  path: files.PathLike,
  limit: int | None = None,
  seed: int = 0,
) -> list[schema.Solution]:
  """Returns the solutions of a file; logs how many are left out, and why.

  Args:
    format_name: The format of the file.
    path: The file.
    limit: The number of solutions to draw; None takes all.
    seed: The seed of the draw.

  Raises:
    InputError: The file has no solution, or sources.read refuses it.
  """
  solutions, left_out = sources.read(format_name, path)
  for reason, count in sorted(left_out.items()):
    _logger.info(f"left out: {count:,} {reason.replace('_', ' ')}")
  if not solutions:
    raise errors_lib.InputError(f"{path}: no solutions")
  return sources.drawn(solutions, limit, seed, path, lambda s: s.id)


def _baselines(
  solutions: Sequence[schema.Solution],
  measure: Callable[[list[list[float]]], dict[str, Any]],
  names: Sequence[str],
) -> dict[str, dict[str, Any]]:
  """Returns some measures of the scores that read no mathematics."""
  result = {}
  for baseline, score in processbench.BASELINES.items():
    measured = measure(score(solutions))
    result[baseline] = {name: measured[name] for name in names}
  return result


# --- Steps ------------------------------------------------------------------


def steps(
  format_name: str,
  path: files.PathLike,
  policy: encoding.LabelPolicy,
  source: scores_lib.Source,
  seed: int,
  *,
  limit: int | None = None,
) -> outputs.Evaluation:
  """Returns the step metrics over a file of labelled solutions.

  "baselines" holds those of scores that read no mathematics: everything is
  right, the step's index, its length. "sources", where the solutions have
  several, those of each source by itself.
  """
  solutions = read(format_name, path, limit, seed)
  labels = [encoding.step_labels(s, policy) for s in solutions]
  if not any(x is not None for row in labels for x in row):
    raise errors_lib.InputError(f"{path}: no step has a label to compare with")

  def measure(step_scores, rows=range(len(solutions)), judged=None):
    return step_metrics.evaluate(
      [step_scores[i] for i in rows],
      [labels[i] for i in rows],
      judged=None if judged is None else [judged[i] for i in rows],
      problems=[solutions[i].problem for i in rows],
      outcomes=[solutions[i].outcome for i in rows],
      seed=seed,
    )

  scored = scores_lib.step_scores(solutions, source)
  results = {"scored_by": scored.by}
  results |= measure(scored.step_scores, judged=scored.judged)
  names = ("auroc", "auroc_interval", "auprc_error")
  results["baselines"] = _baselines(solutions, measure, names)
  by_source: dict[str, list[int]] = defaultdict(list)
  for i, s in enumerate(solutions):
    by_source[s.source].append(i)
  if len(by_source) > 1:
    results["sources"] = {
      name: measure(scored.step_scores, rows, scored.judged)
      for name, rows in sorted(by_source.items())
    }
  truth = step_metrics.judged_steps(scored.step_scores, labels).first_error
  predicted = step_metrics.predicted_first_errors(scored.step_scores, 0.5)
  samples = scores_lib.samples(solutions, scored, predicted.tolist(), truth)
  return outputs.Evaluation(results, samples)


# --- ProcessBench and PRMBench ----------------------------------------------


def processbench_subsets(
  inputs: Sequence[str],
  source: scores_lib.Source,
  tune_on: str,
  seed: int,
  *,
  limit: int | None = None,
) -> outputs.Evaluation:
  """Returns ProcessBench's results for "SUBSET=FILE" inputs.

  One file of scores may hold those of all subsets. The trivial baselines
  stand beside the model. A sample's prediction and target are first errors;
  it has the prediction at the tuned threshold too, null if none is tuned
  because all solutions of the subset have an error, or none has.
  """
  subsets = _subsets(inputs, tune_on, limit, seed)
  truth = {
    n: [schema.first_error(s.labels or ()) for s in x]
    for n, x in subsets.items()
  }
  # Scoring takes minutes; this is known before.
  if not processbench.can_tune(truth[tune_on]):
    _logger.warning(
      f"`tune_on={tune_on}`: no threshold is tuned, since"
      f" {processbench.count_errors(truth[tune_on])}; 0.5 alone is measured"
    )
  flat = [s for rows in subsets.values() for s in rows]
  scored = scores_lib.step_scores(flat, source)
  rest = iter(scored.step_scores)
  scores_of = {
    "model": {n: [next(rest) for _ in x] for n, x in subsets.items()}
  }
  for name, baseline in processbench.BASELINES.items():
    scores_of[name] = {n: baseline(x) for n, x in subsets.items()}
  results: dict[str, Any] = {"scored_by": scored.by}
  results |= {
    name: processbench.evaluate_subsets(
      model_scores,
      truth,
      tune_on=tune_on,
      right_answer={n: [s.outcome for s in x] for n, x in subsets.items()},
      problems={n: [s.problem for s in x] for n, x in subsets.items()},
      seed=seed,
    )
    for name, model_scores in scores_of.items()
  }
  fixed, tuned = (
    _predictions(scored.step_scores, results["model"][rule], tune_on)
    for rule in ("fixed", "tuned")
  )
  targets = [error for errors in truth.values() for error in errors]
  samples = scores_lib.samples(flat, scored, fixed, targets)
  names = [name for name, x in subsets.items() for _ in x]
  for sample, name, prediction in zip(samples, names, tuned, strict=True):
    sample["subset"] = name
    sample["prediction_tuned"] = prediction
    sample["right_tuned"] = (
      None if prediction is None else prediction == sample["target"]
    )
  return outputs.Evaluation(results, samples)


def _predictions(
  step_scores: Sequence[Sequence[float]],
  measured: dict[str, Any] | None,
  subset: str,
) -> list[int | None]:
  """Returns the first errors that a measured threshold predicts.

  Args:
    step_scores: The scores of each solution.
    measured: The numbers at this threshold; None if there is none.
    subset: One of the subsets, which all have the same threshold.
  """
  if measured is None:
    return [None] * len(step_scores)
  threshold = measured["subsets"][subset]["threshold"]
  return step_metrics.predicted_first_errors(step_scores, threshold).tolist()


def _subsets(
  inputs: Sequence[str], tune_on: str, limit: int | None, seed: int
) -> dict[str, list[schema.Solution]]:
  """Returns the solutions of each subset, given as "SUBSET=FILE"."""
  subsets: dict[str, list[schema.Solution]] = {}
  for item in inputs:
    name, equals, path = item.partition("=")
    if not equals:
      raise errors_lib.InputError(
        f"`input={item}`: write it SUBSET=FILE, as in gsm8k=gsm8k.json"
      )
    if name in subsets:
      raise errors_lib.InputError(
        f"`input={item}`: subset {name!r} is given twice; name each once"
      )
    subsets[name] = read("processbench", path, limit, seed)
  if tune_on not in subsets:
    raise errors_lib.InputError(
      f"`tune_on={tune_on}`: no such subset; have {', '.join(subsets)}"
    )
  return subsets


def prmbench_files(
  format_name: str,
  paths: Sequence[files.PathLike],
  source: scores_lib.Source,
  seed: int,
  *,
  limit: int | None = None,
) -> outputs.Evaluation:
  """Returns PRMBench's results over files whose solutions name their class.

  A solution has extra["classification"] and a label, 0 or 1, on every step.
  The right solutions that the rows of class redundency were made from
  (extra["original"], {"problem", "steps"}) are scored as controls; a file of
  scores may leave them out. A sample's prediction and target are its wrong
  steps, 0-based.
  """
  solutions: list[schema.Solution] = []
  seen: dict[str, str] = {}
  for path in paths:
    for solution in read(format_name, path, limit, seed):
      fields.unique_id(seen, solution.id, str(path))
      prmbench.check(
        solution.extra.get("classification"),
        solution.labels,
        f"{path}: solution {solution.id!r}",
      )
      solutions.append(solution)
  controls = list({s.id: s for s in map(_control, solutions) if s}.values())
  controls = [s for s in controls if s.id not in seen]
  if source.scores is not None:
    records = files.read_records(source.scores)
    scored_ids = {str(record.get("id")) for _, record in records}
    left_out = sum(s.id not in scored_ids for s in controls)
    if left_out:
      _logger.info(
        f"left out: {left_out:,} controls that {source.scores} has no scores of"
      )
    controls = [s for s in controls if s.id in scored_ids]
  solutions += controls
  scored = scores_lib.step_scores(solutions, source)
  measure = functools.partial(
    prmbench.evaluate,
    labels=[s.labels or () for s in solutions],
    classes=[s.extra["classification"] for s in solutions],
    problems=[str(s.extra.get("problem_id", s.problem)) for s in solutions],
    seed=seed,
  )
  results = {"scored_by": scored.by} | measure(scored.step_scores)
  judged = [x for row in scored.judged for x in row]
  results["steps_judged"] = {"num": sum(judged), "of": len(judged)}
  names = ("overall", "categories")
  results["baselines"] = _baselines(solutions, measure, names)
  wrong = [
    np.flatnonzero(~prmbench.predicted_right(x)).tolist()
    for x in scored.step_scores
  ]
  truth = [
    [i for i, label in enumerate(s.labels or ()) if label == 0]
    for s in solutions
  ]
  samples = scores_lib.samples(solutions, scored, wrong, truth)
  for sample, s in zip(samples, solutions, strict=True):
    sample["classification"] = s.extra["classification"]
  return outputs.Evaluation(results, samples)


def _control(solution: schema.Solution) -> schema.Solution | None:
  """Returns the right solution behind a row of the class that brings them."""
  original = solution.extra.get("original")
  if solution.extra["classification"] != "redundency" or not original:
    return None
  try:
    problem, steps = original["problem"], tuple(original["steps"])
    if not all(isinstance(x, str) for x in (problem, *steps)):
      raise TypeError
  except (KeyError, TypeError):
    raise errors_lib.InputError(
      f'solution {solution.id!r}: "original" must be {{"problem", "steps"}}'
    ) from None
  name = str(solution.extra.get("problem_id", solution.id))
  return schema.Solution(
    f"prmbench/{prmbench.CONTROL}/{name}",
    problem,
    steps,
    labels=(1.0,) * len(steps),
    extra={"classification": prmbench.CONTROL, "problem_id": name},
  )
