"""`prm_jax.Select`: which solutions to label next."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
import dataclasses
import logging

from prm_jax import errors
from prm_jax import schema
from prm_jax.jobs import job_inputs
from prm_jax.jobs import report
from prm_jax.jobs import shards
from prm_jax.jobs import step_scores
from prm_jax.labelling import label_job
from prm_jax.runtime import outputs
from prm_jax.runtime import verbs

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class SelectJob(shards.Sharded):
  """Among which solutions is chosen, and where the chosen ones go.

  Args:
    input: The solutions to choose among.
    output: The JSON Lines file of solutions to write.
    labelled: A file of solutions that aren't chosen again; repeat the option
      for each file.
  """

  input: job_inputs.Solutions
  output: verbs.Output
  labelled: tuple[verbs.Local, ...] = dataclasses.field(
    default=(), metadata=dict(metavar="FILE")
  )


@dataclasses.dataclass(frozen=True)
class Select(step_scores.Source, verbs.Verb):
  """Chooses which solutions to label next: mostly convincing wrong ones.

  Args:
    budget: The most solutions to choose in all; give this, --per_problem or
      both, and with several shards only --per_problem (default: no limit).
    per_problem: The most solutions to choose of each problem (default: no
      limit).
    wrong_share: The share of the chosen solutions for which those with a wrong
      answer and the highest scores are taken, in [0, 1]; the rest are the best
      scored of the others, whatever their answer, and more if too few are
      wrong.
    aggregate: How the scores of a solution's steps become one score (default:
      what the checkpoint names; product with --scores).
    random: Choose at random, without scores, as a baseline to compare with.
    seed: The seed of all random numbers.

  Example:
    prm-jax label select --checkpoint=runs/demo/prm --input=samples.jsonl \\
      --output=to_label.jsonl --budget=1000
  """

  budget: int | None = None
  per_problem: int | None = None
  wrong_share: verbs.Share = 0.8
  aggregate: schema.Aggregate | None = None
  random: bool = False
  seed: verbs.Seed = 0

  compiles = True

  def _faults(self) -> Iterator[str]:
    yield from super()._faults()
    given = [x for x in (self.budget, self.per_problem) if x is not None]
    if not given or min(given) < 1:
      yield (
        "give `budget` (solutions in all), `per_problem` or both, 1 or more"
      )

  def __call__(
    self,
    solutions: Iterable[schema.Solution],
    exclude: Collection[str] = (),
  ) -> list[schema.Solution]:
    """Returns the solutions to label next, in the order given.

    Args:
      solutions: The solutions, with outcomes.
      exclude: The ids of those that aren't chosen, besides those that have
        labels.

    Returns:
      The chosen ones.
    """
    return self._chosen(list(solutions), exclude)[0]

  def run(self, job: SelectJob) -> None:
    """Chooses among the solutions of a file.

    Args:
      job: The files.

    Raises:
      InputError: No solution has an outcome, or the budget is of all problems
        and the job of some.
    """
    from prm_jax.records import jsonl

    model = None if self.checkpoint is None else self.checkpoint.folder
    read = [job.input.stored_at, *job.labelled, model, self.scores]
    outputs.check(dict(output=job.output), read)
    shard = job.part
    if self.budget is not None and shard.count > 1:
      raise errors.InputError(
        f"`budget={self.budget}` is of all problems and `shard={shard}` sees"
        " some; give `per_problem` alone"
      )
    solutions, left_out = job.input.read_some()
    if not self.random and all(s.outcome is None for s in solutions):
      raise errors.InputError(
        f'{job.input.path}: no solution has an "outcome", so none is known to'
        " be wrong; prm-jax sample finds them where problems have answers"
      )
    solutions = [s for s in solutions if shard.holds(s.problem)]
    exclude = {s.id for x in job.labelled for s in jsonl.read_solutions(x)}
    chosen, counts = self._chosen(solutions, exclude)
    jsonl.write_solutions(job.output, chosen)
    _logger.info(
      f"{job.output}: {len(chosen):,} of {len(solutions):,} solutions"
    )
    report.counted(counts)
    report.left_out(left_out)

  def _chosen(
    self, solutions: Sequence[schema.Solution], exclude: Collection[str]
  ) -> tuple[list[schema.Solution], Mapping[str, int]]:
    from prm_jax.labelling import active_selection

    budget = active_selection.Budget(self.budget, self.per_problem)
    labelled = {s.id for s in solutions if label_job.is_labelled(s)}
    exclude = labelled.union(exclude)
    if self.random:
      return active_selection.at_random(
        solutions, budget, exclude=exclude, seed=self.seed
      )

    def score(pool: Sequence[schema.Solution]) -> list[schema.StepScores]:
      scored = self.step_scores(pool)
      report.computed(dict(scorer=scored.by.get("compute_dtype")))
      return scored.rows

    return active_selection.most_convincing(
      solutions,
      score,
      budget,
      wrong_share=self.wrong_share,
      aggregate=self.aggregate or self.own_aggregate,
      exclude=exclude,
      seed=self.seed,
    )
