"""`prm_jax.EvaluateSteps`: step scores compared with labels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
import dataclasses
from typing import Literal

from prm_jax import errors
from prm_jax import schema
from prm_jax.evaluation import evaluate
from prm_jax.evaluation import results as results_lib
from prm_jax.jobs import step_scores as step_scores_lib


@dataclasses.dataclass(frozen=True)
class EvaluateSteps(evaluate.Evaluate):
  """Compares step scores with labels: AUROC, calibration and first errors.

  Args:
    neutral: What PRM800K's rating 0 becomes: good (label 1), bad (label 0),
      ignore (no label) or three_way (label 0.5).

  Example:
    prm-jax eval steps --checkpoint=runs/demo/prm --input=labelled.jsonl
  """

  neutral: Literal["good", "bad", "ignore", "three_way"] = "good"

  def __call__(
    self,
    solutions: Sequence[schema.Solution],
    score: schema.Score | None = None,
    where: object = "solutions",
  ) -> results_lib.Evaluation:
    """Returns the step metrics of labelled solutions.

    "baselines" holds those of scores that read no mathematics: everything is
    right, the step's index, its length. "sources", where the solutions have
    several, those of each source by itself.

    Args:
      solutions: The solutions.
      score: What scores them, instead of the checkpoint or file of scores.
      where: What they were read from, for errors.

    Raises:
      InputError: No step has a label.
    """
    from prm_jax.evaluation import step_metrics
    from prm_jax.text import encoding

    policy = encoding.LabelPolicy(neutral=self.neutral)
    labels = [encoding.step_labels(s, policy) for s in solutions]
    if not any(x is not None for row in labels for x in row):
      raise errors.InputError(f"{where}: no step has a label to compare with")

    def measure(step_scores, rows=range(len(solutions)), judged=None):
      return step_metrics.evaluate(
        [step_scores[i] for i in rows],
        [labels[i] for i in rows],
        judged=None if judged is None else [judged[i] for i in rows],
        problems=[solutions[i].problem for i in rows],
        outcomes=[solutions[i].outcome for i in rows],
        seed=self.seed,
      )

    scored = self.step_scores(solutions, score)
    results = {"scored_by": scored.by}
    results |= measure(scored.step_scores, judged=scored.judged)
    names = ("auroc", "auroc_interval", "auprc_error")
    results["baselines"] = evaluate.baselines(solutions, measure, names)
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
    samples = step_scores_lib.samples(
      solutions, scored, predicted.tolist(), truth
    )
    for sample, of_steps in zip(samples, labels, strict=True):
      sample["labels"] = list(of_steps)
    return results_lib.Evaluation(results, samples)

  def run(self, job: evaluate.SolutionsJob) -> None:
    """Evaluates the solutions of a file.

    Args:
      job: The files.
    """
    from prm_jax.evaluation import views

    job.check([job.input], self)
    solutions = evaluate.read(job.format, job.input, job.limit, self.seed)
    evaluated = job.evaluated(self, solutions)
    evaluation = self(solutions, where=job.input)
    job.write(evaluation, views.STEPS, evaluated)
