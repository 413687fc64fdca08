"""Best of N as `prm-jax eval` runs it: a pool of solutions in a file."""

from __future__ import annotations

from collections import Counter
from collections import defaultdict
from collections.abc import Sequence
import dataclasses
import logging
from typing import Any

import numpy as np

from prm_jax import errors as errors_lib
from prm_jax import schema
from prm_jax import voting
from prm_jax.checkpoints import model_json
from prm_jax.data import sources
from prm_jax.evaluation import best_of_n
from prm_jax.evaluation import results as outputs
from prm_jax.evaluation import run
from prm_jax.evaluation import scores as scores_lib
from prm_jax.grading import answers
from prm_jax.grading import pool
from prm_jax.runtime import files
from prm_jax.runtime import progress

_logger = logging.getLogger(__name__)


def best_of_n_pool(
  format_name: str,
  path: files.PathLike,
  source: scores_lib.Source,
  seed: int,
  aggregate: str | None = None,
  grader: str | None = None,
  *,
  limit: int | None = None,
) -> outputs.Evaluation:
  """Returns best-of-N curves over a pool with outcomes.

  All problems use the number of samples of the problem with the fewest, which
  is printed. Besides the model, these baselines are measured: the source's own
  accuracy on the other problems (a prior that reads no solution), the number of
  steps, the length of the text, and the majority vote. A sample's prediction is
  its answer; `picked` says whether it is the best of its problem.

  Args:
    format_name: The format of the file.
    path: The file.
    source: What scores the steps.
    seed: The seed of the bootstrap, and of the draw of `limit`.
    aggregate: How step scores become a solution's score; None is what the
      checkpoint names, or product.
    grader: One of pool.GRADERS, which finds the outcomes again from each answer
      and extra["reference_answer"]; an answer that times out is counted and
      isn't right. None keeps the outcomes.
    limit: The number of problems to draw; None takes all.
  """
  solutions = run.read(format_name, path)
  problems = dict.fromkeys(s.problem for s in solutions)
  chosen = frozenset(sources.drawn(problems, limit, seed, path, str))
  solutions = [s for s in solutions if s.problem in chosen]
  given = [
    s.answer if s.answer is not None else answers.of_solution(s)
    for s in solutions
  ]
  grades: list[pool.Grade] = []
  grading: dict[str, Any] = {"grader": grader}
  if grader is not None:
    grades = _grade(solutions, given, grader, path)
    solutions, counts = _regraded(solutions, grades)
    grading |= counts
  index, left_out = _groups(solutions, path)
  if aggregate is None and source.checkpoint is not None:
    aggregate = model_json.read_description(source.checkpoint).aggregate
  aggregate = aggregate or "product"
  scored = scores_lib.step_scores(solutions, source)
  voting.warn_of_unjudged(scored.rows, aggregate)
  score = np.array([voting.aggregate(s, aggregate) for s in scored.step_scores])
  ranking = np.array(voting.ranking_scores(scored.rows, aggregate))
  by_name = {"model": ranking} | _trivial_scores(solutions)
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
    weights={"model": score[index]},
    seed=seed,
  )
  facts = dict(
    scored_by=scored.by, aggregate=aggregate, left_out=left_out, grading=grading
  )
  references = [s.extra.get(schema.REFERENCE) for s in solutions]
  samples = scores_lib.samples(solutions, scored, given, references)
  picked = {int(row[voting.best(ranking[row].tolist())]) for row in index}
  used = set(index.ravel().tolist())
  for i, (sample, s) in enumerate(zip(samples, solutions, strict=True)):
    sample |= dict(
      right=s.outcome,
      score=float(score[i]),
      # Null: without a step; it ranks below all others.
      ranking_score=float(ranking[i]) if np.isfinite(ranking[i]) else None,
      used=i in used,
      picked=i in picked,
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
      " or `grader` and a reference_answer to find it"
    )
  groups: dict[str, list[int]] = defaultdict(list)
  for i, s in enumerate(solutions):
    groups[s.problem].append(i)
  num = min(map(len, groups.values()))
  left_out = len(solutions) - num * len(groups)
  if left_out:
    _logger.info(
      f"left out: {left_out} solutions, to have {num} of every problem"
    )
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
        f"{path}: solution {solution.id!r} has no reference_answer; `grader`"
        " needs one (str) in each"
      )
    pairs.append((answer, reference))
  with (
    pool.Grader(grader) as of_answers,
    progress.showing("grade", len(pairs)) as update,
  ):
    return of_answers.grade(pairs, update)


def _trivial_scores(
  solutions: Sequence[schema.Solution],
) -> dict[str, np.ndarray]:
  """Returns scores of solutions that read no mathematics, higher is better."""
  num_steps = [len(s.steps) for s in solutions]
  num_letters = [sum(map(len, s.steps)) for s in solutions]
  result = {
    "shortest": -np.array(num_steps, np.float64),
    "shortest_text": -np.array(num_letters, np.float64),
  }
  if len({s.source for s in solutions}) > 1:
    result["source_prior"] = _source_prior(solutions)
  return result


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
