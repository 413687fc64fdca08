"""`prm_jax.EvaluateTurns`: the turns of agents, and pairs of last turns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
import dataclasses

from prm_jax import errors
from prm_jax import schema
from prm_jax.evaluation import evaluate
from prm_jax.evaluation import results as results_lib
from prm_jax.jobs import step_scores as step_scores_lib
from prm_jax.records import fields
from prm_jax.runtime import verbs


@dataclasses.dataclass(frozen=True)
class TurnsJob(evaluate.Job):
  """Which files of trajectories are evaluated, and where the results go.

  Args:
    input: A file of trajectories; repeat the option for each file.
    format: The format of --input, such as agent_process_bench, tool_prm_bench,
      chat and atif; docs/data.md lists the formats.
  """

  input: tuple[verbs.Input, ...]
  format: str = "agent_process_bench"


@dataclasses.dataclass(frozen=True)
class EvaluateTurns(evaluate.Evaluate):
  """Measures StepAcc, FirstErrAcc and AUROC on rated turns, and pairs of them.

  Example:
    prm-jax eval turns --checkpoint=runs/demo/prm --input=hotpotqa.jsonl
  """

  def __call__(
    self,
    solutions: Sequence[schema.Solution],
    score: schema.Score | None = None,
  ) -> results_lib.Evaluation:
    """Returns the measures of rated or labelled trajectories.

    A turn that scores below 0.5 is predicted to be wrong;
    evaluation.turn_metrics says what is measured. "pairs" is null unless the
    trajectories are pairs, as those of tool_prm_bench are. "baselines" holds
    the measures of scores that read nothing: everything is right, the turn's
    index, its length; "sources", if the trajectories have several, those of
    each source. A sample's prediction and target are first wrong turns,
    0-based.

    Args:
      solutions: The trajectories. Each step of a solution without messages
        counts as a turn.
      score: What scores them, instead of the checkpoint or file of scores.

    Raises:
      InputError: An id comes twice, a turn is cut into steps, or no turn has a
        rating or label.
    """
    from prm_jax.evaluation import step_metrics
    from prm_jax.evaluation import turn_metrics

    evaluate.check_each(solutions, "solutions", _check, {})
    _check_rated(solutions, "solutions", "")
    ratings = [turn_metrics.ratings_of(s) for s in solutions]
    units = turn_metrics.units_of(solutions)

    def of_turns(step_scores, rows=range(len(solutions))):
      return turn_metrics.evaluate(
        [step_scores[i] for i in rows],
        [ratings[i] for i in rows],
        units=[units[i] for i in rows],
        seed=self.seed,
      )

    def measure(step_scores, ranked=None):
      last = [x[-1] if x else 0.0 for x in ranked or step_scores]
      pairs = turn_metrics.evaluate_pairs(last, solutions, seed=self.seed)
      return of_turns(step_scores) | dict(pairs=pairs)

    scored = self.step_scores(solutions, score)
    ranked = [x.scores if x.logits is None else x.logits for x in scored.rows]
    results = {"scored_by": scored.by}
    results |= measure(scored.step_scores, ranked)
    judged = [x for row in scored.judged for x in row]
    results["turns_judged"] = dict(num=sum(judged), of=len(judged))
    names = (*turn_metrics.MEASURES, "interval", "pairs")
    results["baselines"] = evaluate.baselines(solutions, measure, names)
    by_source: dict[str, list[int]] = defaultdict(list)
    for i, s in enumerate(solutions):
      by_source[s.source].append(i)
    if len(by_source) > 1:
      results["sources"] = {
        name: of_turns(scored.step_scores, rows)
        for name, rows in sorted(by_source.items())
      }
    predicted = step_metrics.predicted_first_errors(
      scored.step_scores, schema.THRESHOLD
    )
    truth = [turn_metrics.first_error(x) for x in ratings]
    samples = step_scores_lib.samples(
      solutions, scored, predicted.tolist(), truth
    )
    for sample, rated, s in zip(samples, ratings, solutions, strict=True):
      sample["ratings"] = list(rated)
      sample |= fields.given(
        pair=s.extra.get("pair"), choice=s.extra.get("choice")
      )
    return results_lib.Evaluation(results, samples)

  def run(self, job: TurnsJob) -> None:
    """Evaluates the trajectories of files.

    Args:
      job: The files.
    """
    from prm_jax.evaluation import views

    job.check(job.input, self)
    solutions = evaluate.read_files(
      job.format, job.input, job.limit, self.seed, _check
    )
    _check_rated(
      solutions,
      ", ".join(map(str, job.input)),
      f"; is `format={job.format}` its format?",
    )
    evaluated = job.evaluated(self, solutions)
    evaluation = self(solutions)
    job.write(evaluation, views.TURNS, evaluated)


def _check(solution: schema.Solution, where: str) -> None:
  """Refuses a trajectory whose turns are cut."""
  if solution.messages is not None and solution.spans is not None:
    raise errors.InputError(
      f"{where}: its turns are cut into steps; give the trajectory of whole turns"
    )


def _check_rated(
  solutions: Sequence[schema.Solution], where: str, hint: str
) -> None:
  """Refuses solutions of which no turn has a rating or label."""
  from prm_jax.evaluation import turn_metrics

  rated = [x for s in solutions for x in turn_metrics.ratings_of(s)]
  if solutions and not any(x is not None for x in rated):
    raise errors.InputError(
      f"{where}: no turn has a rating or label to compare with{hint}"
    )
