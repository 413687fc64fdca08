"""`prm_jax.EvaluatePRMBench`: wrong steps on PRMBench, class by class."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import logging

from prm_jax import schema
from prm_jax.evaluation import evaluate
from prm_jax.evaluation import results as results_lib
from prm_jax.jobs import step_scores
from prm_jax.runtime import verbs

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class PRMBenchJob(evaluate.Job):
  """Which files of PRMBench are evaluated, and where the results go.

  Args:
    input: A file of PRMBench; repeat the option for each file.
    format: The format of --input; docs/data.md lists the formats, such as jsonl
      and prm800k.
  """

  input: tuple[verbs.Input, ...]
  format: str = "prmbench"


@dataclasses.dataclass(frozen=True)
class EvaluatePRMBench(evaluate.Evaluate):
  """Measures the PRMScore of PRMBench's nine classes and three categories.

  Example:
    prm-jax eval prmbench --checkpoint=runs/demo/prm --input=prmbench.jsonl
  """

  def __call__(
    self,
    solutions: Sequence[schema.Solution],
    score: schema.Score | None = None,
  ) -> results_lib.Evaluation:
    """Returns PRMBench's results on solutions that name their class.

    A solution has extra["classification"] and a label, 0 or 1, on every step.
    The right solutions that the rows of class redundency were made from
    (prmbench.control) are scored as controls; a file of scores may leave them
    out. A sample's prediction and target are its wrong steps, 0-based.

    Args:
      solutions: The solutions.
      score: What scores them, instead of the checkpoint or file of scores.

    Raises:
      InputError: A solution lacks its class or a label.
    """
    from prm_jax.evaluation import prmbench_metrics

    evaluate.check_each(solutions, "solutions", _check, {})
    seen = {s.id for s in solutions}
    controls = {s.id: s for s in map(prmbench_metrics.control, solutions) if s}
    more = [s for s in controls.values() if s.id not in seen]
    if self.scores is not None and score is None:
      records = step_scores.read_records(self.scores, self.field)
      scored_ids = {identity for _, identity, *_ in records}
      left_out = sum(s.id not in scored_ids for s in more)
      if left_out:
        _logger.info(
          f"left out: {left_out:,} controls that {self.scores} has no scores of"
        )
      more = [s for s in more if s.id in scored_ids]
    solutions = [*solutions, *more]
    scored = self.step_scores(solutions, score)
    measure = functools.partial(
      prmbench_metrics.evaluate,
      labels=[s.labels or () for s in solutions],
      classes=[s.extra["classification"] for s in solutions],
      problems=[str(s.extra.get("problem_id", s.problem)) for s in solutions],
      seed=self.seed,
    )
    results = {"scored_by": scored.by} | measure(scored.step_scores)
    judged = [x for row in scored.judged for x in row]
    results["steps_judged"] = {"num": sum(judged), "of": len(judged)}
    names = ("overall", "categories")
    results["baselines"] = evaluate.baselines(solutions, measure, names)
    wrong = [
      [
        i
        for i, right in enumerate(prmbench_metrics.predicted_right(x))
        if not right
      ]
      for x in scored.step_scores
    ]
    truth = [
      [i for i, label in enumerate(s.labels or ()) if label == 0]
      for s in solutions
    ]
    samples = step_scores.samples(solutions, scored, wrong, truth)
    for sample, s in zip(samples, solutions, strict=True):
      sample["classification"] = s.extra["classification"]
    return results_lib.Evaluation(results, samples)

  def run(self, job: PRMBenchJob) -> None:
    """Evaluates the solutions of files.

    Args:
      job: The files.
    """
    from prm_jax.evaluation import views

    job.check(job.input, self)
    solutions = evaluate.read_files(
      job.format, job.input, job.limit, self.seed, _check
    )
    evaluated = job.evaluated(self, solutions)
    evaluation = self(solutions)
    job.write(evaluation, views.PRMBENCH, evaluated)


def _check(solution: schema.Solution, where: str) -> None:
  """Refuses a solution without a class or labels."""
  from prm_jax.evaluation import prmbench_metrics

  prmbench_metrics.check(
    solution.extra.get("classification"), solution.labels, where
  )
