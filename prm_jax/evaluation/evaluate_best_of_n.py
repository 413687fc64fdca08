"""`prm_jax.EvaluateBestOfN`: how often the best of N solutions is right."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.evaluation import evaluate
from prm_jax.evaluation import results as results_lib
from prm_jax.grading import pool
from prm_jax.jobs import step_scores
from prm_jax.runtime import progress
from prm_jax.runtime import verbs
from prm_jax.text import answers


@dataclasses.dataclass(frozen=True, kw_only=True)
class PoolJob(evaluate.SolutionsJob):
  """Which solutions are chosen among, and where the results go.

  Args:
    limit: Use only N problems of --input, drawn by --seed, with all their
      solutions (default: all).
  """

  limit: verbs.Natural | None = None


@dataclasses.dataclass(frozen=True)
class EvaluateBestOfN(evaluate.Evaluate):
  """Measures how often the best of N solutions, or a vote of all N, is right.

  Args:
    aggregate: How the scores of a solution's steps become one score (default:
      what the checkpoint names; product with --scores).
    grader: What compares an answer with the right one (docs/answers.md); all
      but rules need the extra verify (default: the outcomes in the file are
      used, and nothing is compared).

  Example:
    prm-jax eval best_of_n --checkpoint=runs/demo/prm --input=samples.jsonl
  """

  aggregate: schema.Aggregate | None = None
  grader: pool.GraderName | None = None

  def __call__(
    self,
    solutions: Sequence[schema.Solution],
    score: schema.Score | None = None,
    where: object = "solutions",
  ) -> results_lib.Evaluation:
    """Returns best-of-N curves over a pool of solutions with outcomes.

    All problems use the number of samples of the problem with the fewest, which
    is logged. Besides the model, these baselines are measured: the source's own
    accuracy on the other problems (a prior that reads no solution), the number
    of steps, the length of the text, and the majority vote. A sample's
    prediction is its answer; `picked` says whether it is the best of its
    problem.

    With a grader the outcomes are found again, from each answer and
    extra["reference_answer"]; an answer that times out is counted and isn't
    right.

    Args:
      solutions: The solutions.
      score: What scores them, instead of the checkpoint or file of scores.
      where: What they were read from, for errors.

    Raises:
      InputError: A solution lacks an outcome, or an answer to find it by.
    """
    import numpy as np

    from prm_jax import voting
    from prm_jax.evaluation import best_of_n

    given = [
      s.answer if s.answer is not None else answers.of_solution(s)
      for s in solutions
    ]
    grades: list[pool.Grade] = []
    grading: dict[str, Any] = {"grader": self.grader}
    if self.grader is not None:
      grades = _grade(solutions, given, self.grader, where)
      solutions, counts = _regraded(solutions, grades)
      grading |= counts
    index, left_out = best_of_n.groups(solutions, where)
    aggregate = self.aggregate or self.own_aggregate
    scored = self.step_scores(solutions, score)
    voting.warn_of_unjudged(scored.rows, aggregate)
    of_each = [voting.aggregate(s, aggregate) for s in scored.step_scores]
    ranking = np.array(voting.ranking_scores(scored.rows, aggregate))
    by_name = {"model": ranking} | best_of_n.trivial_scores(solutions)
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
      weights={"model": np.array(of_each)[index]},
      seed=self.seed,
    )
    facts = dict(
      scored_by=scored.by,
      aggregate=aggregate,
      left_out=left_out,
      grading=grading,
    )
    references = [s.extra.get(schema.REFERENCE) for s in solutions]
    samples = step_scores.samples(solutions, scored, given, references)
    picked = {int(row[voting.best(ranking[row].tolist())]) for row in index}
    used = set(index.ravel().tolist())
    for i, (sample, s) in enumerate(zip(samples, solutions, strict=True)):
      sample |= dict(
        right=s.outcome,
        score=float(of_each[i]),
        # Null: without a step; it ranks below all others.
        ranking_score=float(ranking[i]) if np.isfinite(ranking[i]) else None,
        used=i in used,
        picked=i in picked,
      )
      if grades:
        sample["grade"] = grades[i].verdict
        sample["opinions"] = list(grades[i].opinions)
    return results_lib.Evaluation(facts | results, samples)

  def run(self, job: PoolJob) -> None:
    """Evaluates the solutions of a file.

    Args:
      job: The files.
    """
    from prm_jax.evaluation import views

    if self.grader is not None:
      pool.check(self.grader)
    job.check([job.input], self)
    solutions = evaluate.read(
      *(job.format, job.input, job.limit, self.seed), whole_problems=True
    )
    evaluated = job.evaluated(self, solutions)
    evaluation = self(solutions, where=job.input)
    job.write(evaluation, views.BEST_OF_N, evaluated)


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
  where: object,
) -> list[pool.Grade]:
  """Returns a grade for each answer; raises where there is no reference."""
  pairs = []
  for solution, answer in zip(solutions, given, strict=True):
    reference = solution.extra.get(schema.REFERENCE)
    if not isinstance(reference, str):
      raise errors.InputError(
        f"{where}: solution {solution.id!r} has no reference_answer; `grader`"
        " needs one (str) in each"
      )
    pairs.append((answer, reference))
  with (
    pool.Grader(grader) as of_answers,
    progress.showing("grade", len(pairs)) as update,
  ):
    return of_answers.grade(pairs, update)
