"""`prm_jax.EvaluateProcessBench`: first errors on ProcessBench."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import logging
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.evaluation import evaluate
from prm_jax.evaluation import labelled_scores
from prm_jax.evaluation import results as results_lib
from prm_jax.jobs import step_scores

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ProcessBenchJob(evaluate.Job):
  """Which subsets of ProcessBench are evaluated, and where the results go.

  Args:
    input: A subset of ProcessBench and its file, such as gsm8k=gsm8k.json;
      repeat the option for each subset (default: the records of --scores name
      their "label" and "subset").
  """

  input: tuple[str, ...] = dataclasses.field(
    default=(), metadata=dict(metavar="SUBSET=FILE")
  )

  def _faults(self) -> Iterator[str]:
    seen = set[str]()
    for item in self.input:
      name, equals, _ = item.partition("=")
      if not equals:
        yield f"`input={item}`: write it SUBSET=FILE, as in gsm8k=gsm8k.json"
      if name in seen:
        yield f"`input={item}`: subset {name!r} is given twice; name each once"
      seen.add(name)

  @property
  def files(self) -> dict[str, str]:
    """The file of each subset."""
    return dict(item.split("=", 1) for item in self.input)


@dataclasses.dataclass(frozen=True)
class EvaluateProcessBench(evaluate.Evaluate):
  """Measures F1 on ProcessBench, with threshold 0.5 and with a tuned threshold.

  Args:
    tune_on: The subset, one of --input or of --scores, on which the threshold
      is tuned; its own tuned result is no test.

  Example:
    prm-jax eval processbench --checkpoint=runs/demo/prm \\
      --input=gsm8k=gsm8k.json --input=math=math.json
  """

  tune_on: str = "gsm8k"

  def __call__(
    self,
    subsets: Mapping[str, Sequence[schema.Solution]],
    score: schema.Score | None = None,
  ) -> results_lib.Evaluation:
    """Returns ProcessBench's results on subsets.

    One file of scores may hold those of all subsets. The results also have the
    trivial baselines. A sample has the first error that is predicted, and the
    target; and the prediction at the tuned threshold, which is null if the
    tuning subset has only wrong or only right solutions.

    Args:
      subsets: The solutions of each subset by its name.
      score: What scores them, instead of the checkpoint or file of scores.

    Raises:
      InputError: There is no subset to tune the threshold on.
    """
    from prm_jax.evaluation import processbench_metrics

    if self.tune_on not in subsets:
      raise errors.InputError(
        f"no subset {self.tune_on}, on which the threshold would be tuned; give"
        f" `tune_on`, one of {', '.join(subsets)}"
      )
    truth = {
      n: [schema.first_error(s.labels or ()) for s in x]
      for n, x in subsets.items()
    }
    # Scoring takes minutes; this is known before.
    if not processbench_metrics.can_tune(truth[self.tune_on]):
      _logger.warning(
        f"`tune_on={self.tune_on}`: no threshold is tuned, since"
        f" {processbench_metrics.count_errors(truth[self.tune_on])}; 0.5 alone is"
        " measured"
      )
    flat = [s for rows in subsets.values() for s in rows]
    scored = self.step_scores(flat, score)
    rest = iter(scored.step_scores)
    scores_of = {
      "model": {n: [next(rest) for _ in x] for n, x in subsets.items()}
    }
    for name, baseline in processbench_metrics.BASELINES.items():
      if name == "step_length" and not labelled_scores.have_texts(flat):
        continue
      scores_of[name] = {n: baseline(x) for n, x in subsets.items()}
    results: dict[str, Any] = {"scored_by": scored.by}
    results |= {
      name: processbench_metrics.evaluate_subsets(
        model_scores,
        truth,
        tune_on=self.tune_on,
        right_answer={n: [s.outcome for s in x] for n, x in subsets.items()},
        problems={n: [s.problem for s in x] for n, x in subsets.items()},
        seed=self.seed,
      )
      for name, model_scores in scores_of.items()
    }
    fixed, tuned = (
      self._predictions(scored, results["model"][rule])
      for rule in ("fixed", "tuned")
    )
    targets = [error for errors in truth.values() for error in errors]
    samples = step_scores.samples(flat, scored, fixed, targets)
    names = [name for name, x in subsets.items() for _ in x]
    for sample, name, prediction in zip(samples, names, tuned, strict=True):
      sample["subset"] = name
      sample["prediction_tuned"] = prediction
      sample["right_tuned"] = (
        None if prediction is None else prediction == sample["target"]
      )
    return results_lib.Evaluation(results, samples)

  def _predictions(
    self, scored: step_scores.Scored, measured: dict[str, Any] | None
  ) -> list[int | None]:
    """Returns the first errors that a measured threshold predicts.

    Args:
      scored: The scores of each solution.
      measured: The numbers at this threshold; None if there is none. All
        subsets have the same threshold.
    """
    from prm_jax.evaluation import step_metrics

    if measured is None:
      return [None] * len(scored.rows)
    threshold = measured["subsets"][self.tune_on]["threshold"]
    found = step_metrics.predicted_first_errors(scored.step_scores, threshold)
    return found.tolist()

  def run(self, job: ProcessBenchJob) -> None:
    """Evaluates the subsets of files.

    Args:
      job: The files.
    """
    from prm_jax.evaluation import views

    job.check(job.files.values(), self)
    subsets = self._read(job)
    flat = [s for rows in subsets.values() for s in rows]
    sizes = {name: len(rows) for name, rows in subsets.items()}
    evaluated = job.evaluated(self, flat, subsets=sizes)
    evaluation = self(subsets)
    job.write(evaluation, views.PROCESSBENCH, evaluated)

  def _read(self, job: ProcessBenchJob) -> dict[str, list[schema.Solution]]:
    """Returns the solutions of each subset."""
    from prm_jax.records import sources

    if job.input:
      return {
        name: evaluate.read("processbench", path, job.limit, self.seed)
        for name, path in job.files.items()
      }
    if self.scores is None:
      raise errors.InputError(
        "give `input`, SUBSET=FILE of each subset; only `scores` of a file with"
        " labels need none"
      )
    return {
      name: sources.drawn(rows, job.limit, self.seed, name, lambda s: s.id)
      for name, rows in labelled_scores.read(self.scores, self.field).items()
    }
