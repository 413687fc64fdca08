"""The evaluations as `prm-jax eval` runs them: files in, an Evaluation out."""

from __future__ import annotations

from collections import Counter
from collections import defaultdict
from collections.abc import Callable, Sequence
import dataclasses
import functools
import pathlib
from typing import Any

import numpy as np

from prm_jax import errors as errors_lib
from prm_jax import schema
from prm_jax import voting
from prm_jax.checkpoints import model_json
from prm_jax.data import encoding
from prm_jax.data import sources
from prm_jax.data.formats import fields
from prm_jax.evaluation import best_of_n
from prm_jax.evaluation import prmbench
from prm_jax.evaluation import processbench
from prm_jax.evaluation import results as outputs
from prm_jax.evaluation import scores as scores_lib
from prm_jax.evaluation import step_metrics
from prm_jax.grading import answers
from prm_jax.grading import pool
from prm_jax.runtime import files
from prm_jax.runtime import progress


def _read(format_name: str, path: files.PathLike) -> list[schema.Solution]:
  """Returns the solutions of a file; prints what is left out."""
  solutions, left_out = sources.read(format_name, path)
  for reason, count in sorted(left_out.items()):
    print(f"left out: {count:,} {reason.replace('_', ' ')}")
  return solutions


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
  checkpoint: pathlib.Path | None,
  scores: files.PathLike | None,
  seed: int,
  step: int | None = None,
) -> outputs.Evaluation:
  """Returns the step metrics over a file of labelled solutions.

  "baselines" holds those of scores that read no mathematics: everything is
  right, the step's index, its length. "sources", where the solutions have
  several, those of each source by itself.
  """
  solutions = _read(format_name, path)
  labels = [encoding.step_labels(s, policy) for s in solutions]
  if not any(x is not None for row in labels for x in row):
    raise errors_lib.InputError(f"{path}: no step has a label to compare with")

  def measure(step_scores, rows=range(len(solutions))):
    return step_metrics.evaluate(
      [step_scores[i] for i in rows],
      [labels[i] for i in rows],
      problems=[solutions[i].problem for i in rows],
      outcomes=[solutions[i].outcome for i in rows],
      seed=seed,
    )

  scored = scores_lib.step_scores(solutions, checkpoint, scores, step)
  results = {"scored_by": scored.by} | measure(scored.step_scores)
  names = ("auroc", "auroc_interval", "auprc_error")
  results["baselines"] = _baselines(solutions, measure, names)
  by_source: dict[str, list[int]] = defaultdict(list)
  for i, s in enumerate(solutions):
    by_source[s.source].append(i)
  if len(by_source) > 1:
    results["sources"] = {
      name: measure(scored.step_scores, rows)
      for name, rows in sorted(by_source.items())
    }
  truth = step_metrics.judged_steps(scored.step_scores, labels).first_error
  predicted = step_metrics.predicted_first_errors(scored.step_scores, 0.5)
  samples = scores_lib.samples(solutions, scored, predicted.tolist(), truth)
  return outputs.Evaluation(results, samples)


# --- ProcessBench and PRMBench ----------------------------------------------


def processbench_subsets(
  inputs: Sequence[str],
  checkpoint: pathlib.Path | None,
  scores: files.PathLike | None,
  tune_on: str,
  seed: int,
  step: int | None = None,
) -> outputs.Evaluation:
  """Returns ProcessBench's results for "SUBSET=FILE" inputs.

  One file of scores may hold those of all subsets. The trivial baselines
  stand beside the model. A sample's prediction and target are first errors;
  it has the prediction at the tuned threshold too.
  """
  subsets = {}
  for item in inputs:
    name, equals, path = item.partition("=")
    if not equals:
      raise errors_lib.InputError(
        f"--input={item}: write it SUBSET=FILE, as in gsm8k=gsm8k.json"
      )
    if name in subsets:
      raise errors_lib.InputError(
        f"--input={item}: subset {name!r} is given twice; name each once"
      )
    subsets[name] = _read("processbench", path)
  if tune_on not in subsets:
    raise errors_lib.InputError(
      f"--tune_on={tune_on}: no such subset; have {', '.join(subsets)}"
    )
  flat = [s for rows in subsets.values() for s in rows]
  scored = scores_lib.step_scores(flat, checkpoint, scores, step)
  rest = iter(scored.step_scores)
  scores_of = {
    "model": {n: [next(rest) for _ in x] for n, x in subsets.items()}
  }
  for name, baseline in processbench.BASELINES.items():
    scores_of[name] = {n: baseline(x) for n, x in subsets.items()}
  truth = {
    n: [schema.first_error(s.labels or ()) for s in x]
    for n, x in subsets.items()
  }
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
  of_tuned = results["model"]["tuned"]["subsets"][tune_on]
  fixed, tuned = (
    step_metrics.predicted_first_errors(scored.step_scores, threshold).tolist()
    for threshold in (0.5, of_tuned["threshold"])
  )
  targets = [error for errors in truth.values() for error in errors]
  samples = scores_lib.samples(flat, scored, fixed, targets)
  names = [name for name, x in subsets.items() for _ in x]
  for sample, name, prediction in zip(samples, names, tuned, strict=True):
    sample["subset"] = name
    sample["prediction_tuned"] = prediction
    sample["right_tuned"] = prediction == sample["target"]
  return outputs.Evaluation(results, samples)


def prmbench_files(
  format_name: str,
  paths: Sequence[files.PathLike],
  checkpoint: pathlib.Path | None,
  scores: files.PathLike | None,
  seed: int,
  step: int | None = None,
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
    for solution in _read(format_name, path):
      fields.claim(seen, solution.id, str(path))
      prmbench.check(
        solution.extra.get("classification"),
        solution.labels,
        f"{path}: solution {solution.id!r}",
      )
      solutions.append(solution)
  controls = list({s.id: s for s in map(_control, solutions) if s}.values())
  controls = [s for s in controls if s.id not in seen]
  if scores is not None:
    there = {str(row.get("id")) for _, row in files.read_records(scores)}
    left_out = sum(s.id not in there for s in controls)
    if left_out:
      print(f"left out: {left_out:,} controls that {scores} has no scores of")
    controls = [s for s in controls if s.id in there]
  solutions += controls
  scored = scores_lib.step_scores(solutions, checkpoint, scores, step)
  measure = functools.partial(
    prmbench.evaluate,
    labels=[s.labels or () for s in solutions],
    classes=[s.extra["classification"] for s in solutions],
    problems=[s.extra.get("problem_id", s.problem) for s in solutions],
    seed=seed,
  )
  results = {"scored_by": scored.by} | measure(scored.step_scores)
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


# --- Best of N --------------------------------------------------------------


def best_of_n_pool(
  format_name: str,
  path: files.PathLike,
  checkpoint: pathlib.Path | None,
  scores: files.PathLike | None,
  seed: int,
  aggregate: str | None = None,
  step: int | None = None,
  grader: str | None = None,
) -> outputs.Evaluation:
  """Returns best-of-N curves over a pool with outcomes.

  aggregate: how step scores become one per solution; None for the way that
  the checkpoint names, or the product. grader: one of pool.GRADERS, to find
  the outcomes anew from each answer and extra["reference_answer"]; one that
  runs out of time isn't right, and counted.

  Solutions of one problem belong together; all problems take the number of
  samples that the problem with the fewest has, which is printed. Beside the
  model: the source's own accuracy on the other problems (a prior that reads no
  solution), the number of steps, the length of the text and the majority vote.
  A sample's prediction is its answer; `picked`: it is the best of its problem.
  """
  solutions = _read(format_name, path)
  given = [
    s.answer if s.answer is not None else answers.extract(list(s.steps))
    for s in solutions
  ]
  grades: list[pool.Grade] = []
  grading: dict[str, Any] = {"grader": grader}
  if grader is not None:
    grades = _grade(solutions, given, grader, path)
    solutions, counts = _regraded(solutions, grades)
    grading |= counts
  index, left_out = _groups(solutions, path)
  if aggregate is None and checkpoint is not None:
    aggregate = model_json.read_description(checkpoint).aggregate
  aggregate = aggregate or "product"
  scored = scores_lib.step_scores(solutions, checkpoint, scores, step)
  score = np.array([voting.aggregate(s, aggregate) for s in scored.step_scores])
  by_name = {
    "model": score,
    "shortest": np.array([-float(len(s.steps)) for s in solutions]),
    "shortest_text": np.array(
      [-float(sum(map(len, s.steps))) for s in solutions]
    ),
  }
  if len({s.source for s in solutions}) > 1:
    by_name["source_prior"] = _source_prior(solutions)
  ns = [2**k for k in range(12) if 2**k <= index.shape[1]]
  results = best_of_n.evaluate(
    {name: x[index] for name, x in by_name.items()},
    np.array([bool(s.outcome) for s in solutions])[index],
    [[given[i] for i in row] for row in index],
    ns,
    pairs=[
      ("model", other, ns[-1])
      for other in ("majority", *by_name)
      if other != "model"
    ],
    weighted=["model"],
    seed=seed,
  )
  facts = dict(
    scored_by=scored.by,
    aggregate=aggregate,
    left_out=left_out,
    grading=grading,
  )
  references = [s.extra.get(schema.REFERENCE) for s in solutions]
  samples = scores_lib.samples(solutions, scored, given, references)
  picked = {int(row[voting.best(score[row].tolist())]) for row in index}
  used = set(index.ravel().tolist())
  for i, (sample, s) in enumerate(zip(samples, solutions, strict=True)):
    sample |= dict(
      right=s.outcome, score=float(score[i]), used=i in used, picked=i in picked
    )
    if grades:
      sample["grade"] = grades[i].verdict
      sample["opinions"] = list(grades[i].opinions)
  return outputs.Evaluation(facts | results, samples)


def _groups(
  solutions: Sequence[schema.Solution], path: files.PathLike
) -> tuple[np.ndarray, int]:
  """Returns [problem, sample]: indices, equally many; and how many are left."""
  unknown = sum(s.outcome is None for s in solutions)
  if unknown:
    raise errors_lib.InputError(
      f'{path}: {unknown} solutions have no "outcome"; best-of-N needs each,'
      " or --grader and a reference_answer to find it"
    )
  groups: dict[str, list[int]] = defaultdict(list)
  for i, s in enumerate(solutions):
    groups[s.problem].append(i)
  if not groups:
    raise errors_lib.InputError(f"{path}: no solutions")
  num = min(map(len, groups.values()))
  left_out = len(solutions) - num * len(groups)
  if left_out:
    print(f"left out: {left_out} solutions, to have {num} of every problem")
  return np.array([rows[:num] for rows in groups.values()]), left_out


def _regraded(
  solutions: Sequence[schema.Solution], grades: Sequence[pool.Grade]
) -> tuple[list[schema.Solution], dict[str, int]]:
  """Returns the solutions with the grades as outcomes, and counts of both."""
  right = [grade.verdict == "right" for grade in grades]
  changed = sum(
    s.outcome is not None and s.outcome != x for s, x in zip(solutions, right)
  )
  graded = [dataclasses.replace(s, outcome=x) for s, x in zip(solutions, right)]
  return graded, pool.count(grades) | dict(outcomes_changed=changed)


def _grade(
  solutions: Sequence[schema.Solution],
  given: Sequence[str | None],
  grader: str,
  path: files.PathLike,
) -> list[pool.Grade]:
  """Returns a grade for each answer; raises where there is no reference."""
  pairs = []
  for solution, answer in zip(solutions, given, strict=True):
    reference = solution.extra.get(schema.REFERENCE)
    if not isinstance(reference, str):
      raise errors_lib.InputError(
        f"{path}: solution {solution.id!r} has no reference_answer; --grader"
        " needs one (str) in each"
      )
    pairs.append((answer, reference))
  with (
    pool.Grader(grader) as of_answers,
    progress.showing("grade", len(pairs)) as update,
  ):
    return of_answers.grade(pairs, update)


def _source_prior(solutions: Sequence[schema.Solution]) -> np.ndarray:
  """Returns each solution's source's accuracy on all other problems."""
  right: Counter[Any] = Counter()
  count: Counter[Any] = Counter()
  for s in solutions:
    for group in (s.source, (s.source, s.problem)):
      right[group] += bool(s.outcome)
      count[group] += 1
  prior = []
  for s in solutions:
    own = (s.source, s.problem)
    others = count[s.source] - count[own]
    prior.append((right[s.source] - right[own]) / others if others else 0.5)
  return np.array(prior)
