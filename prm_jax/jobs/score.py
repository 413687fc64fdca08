"""`prm_jax.Score`: the scores of each step of solutions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import functools
import logging
import pathlib
from typing import Any, Literal, TYPE_CHECKING

from prm_jax import schema
from prm_jax.jobs import job_inputs
from prm_jax.jobs import journal
from prm_jax.jobs import journaled
from prm_jax.jobs import report
from prm_jax.jobs import reward_models
from prm_jax.jobs import workers
from prm_jax.runtime import files
from prm_jax.runtime import progress
from prm_jax.runtime import verbs

if TYPE_CHECKING:
  from prm_jax.scoring import scorer as scorer_lib

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ScoreJob(journaled.MappedJob):
  """Which solutions are scored, and where their scores go.

  Args:
    input: The solutions to score.
    batch: The most solutions that are scored together; those of one problem
      stay together, however many they are; on another number the last digits
      of scores depend.
    output: The JSON Lines file to write, one line for each solution: its id,
      step_scores, step_logits, judged, product, min, last and mean
      (docs/evaluation.md); - is the standard output, and messages go to stderr
      (a file is written whole or not at all, the standard output isn't).
  """

  input: job_inputs.Solutions
  output: verbs.OutputOrStdout
  batch: verbs.Count = dataclasses.field(default=2048, kw_only=True)


@dataclasses.dataclass(frozen=True)
class Score(verbs.Verb):
  """Scores each step of solutions with a reward model.

  Args:
    checkpoint: The reward model.
    layout: How solutions are put into the rows of a batch: padded (one in each
      row), packed (rows are filled with several), or tree (solutions of one
      problem also share their common steps); the scores are the same
      (docs/evaluation.md).
    reference: A policy that --checkpoint is compared with.

  Example:
    prm-jax score --checkpoint=runs/demo/prm --input=samples.jsonl \\
      --output=scores.jsonl
  """

  checkpoint: reward_models.RewardModel | files.PathLike
  layout: Literal["padded", "packed", "tree"] = "padded"
  reference: reward_models.ReferencePolicy | files.PathLike | None = None

  compiles = True
  writes_new = False

  @functools.cached_property
  def scorer(self) -> scorer_lib.Scorer:
    """The model, loaded when it is first asked for."""
    return self._model.load(self.layout, self._reference)

  @property
  def _model(self) -> reward_models.RewardModel:
    return verbs.made(reward_models.RewardModel, self.checkpoint)

  @property
  def _reference(self) -> reward_models.ReferencePolicy | None:
    if self.reference is None:
      return None
    return verbs.made(reward_models.ReferencePolicy, self.reference)

  def __call__(
    self, solutions: Sequence[schema.Solution]
  ) -> list[schema.StepScores]:
    """Returns the scores of the steps of each solution.

    Args:
      solutions: The solutions.
    """
    with progress.showing(
      "score", len(solutions), first="compiling and scoring"
    ) as update:
      return self.scorer.score(solutions, progress=update)

  def run(self, job: ScoreJob) -> None:
    """Scores the solutions of a file.

    Args:
      job: The files.
    """
    read = [job.input.stored_at, self._model.folder]
    if self._reference is not None:
      read.append(self._reference.reference)
    job.check(read)
    with job.opened(self) as worker:
      solutions, left_out = job.input.read(job.shard)
      report.computed(worker.compute_dtype())
      done = journaled.mapped(
        *(job, solutions),
        dict(kind="score", shard=str(job.part)),
        worker,
        doing="score",
        first="compiling and scoring",
        form=journal.RECORDS,
      )
    scored = done.solutions
    _logger.info(f"{job.output}: {len(scored)} solutions")
    for what, count in done.work.items():
      if count:
        _logger.info(f"{count} solutions are {what}; they are scored whole")
    if unjudged := sum(not all(x["judged"]) for x in scored):
      _logger.info(
        f"{unjudged} solutions have steps that the model wasn't trained to"
        ' judge; "judged" marks them (docs/evaluation.md)'
      )
    report.left_out(left_out)

  @contextlib.contextmanager
  def working(self) -> Iterator[workers.Worker]:
    """Scores batches in this process.

    Yields:
      What does it; it makes a record of each solution.
    """
    from prm_jax.checkpoints import model_json

    scorer = self.scorer
    folder = pathlib.Path(self._model.folder)

    def depends_on() -> dict[str, Any]:
      return dict(
        model=model_json.fingerprint(folder, scorer.params),
        compute_dtype=scorer.config.compute_dtype,
        layout=self.layout,
        **scorer.scoring,
      )

    most = scorer.encoding.max_tokens
    what = f"longer than the {most} tokens that the model was trained with"

    def work_on(
      batch: Sequence[schema.Solution], tell: workers.Tell
    ) -> tuple[list[dict[str, Any]], dict[str, int]]:
      scores = scorer.score(batch, progress=lambda done: tell("", done))
      longer = scorer.longer_than_trained(batch)
      return list(map(record_of, batch, scores)), {what: longer}

    dtypes = dict(scorer=scorer.config.compute_dtype)
    yield workers.here(depends_on, work_on, dtypes)


def record_of(
  solution: schema.Solution, steps: schema.StepScores
) -> dict[str, Any]:
  """Returns the record of a solution's scores: its id, fields_of, aggregates.

  Args:
    solution: The solution.
    steps: The scores of its steps.

  Returns:
    The record, as the command writes it.
  """
  from prm_jax import voting

  aggregates = {
    how: voting.aggregate(steps.scores, how) for how in voting.AGGREGATES
  }
  return dict(id=solution.id, **fields_of(steps), **aggregates)


def fields_of(row: schema.StepScores) -> dict[str, Any]:
  """Returns the scores of a solution's steps as fields of a record.

  Args:
    row: The scores.

  Returns:
    step_scores, step_logits (log-odds in nats; None if the scorer has none) and
    judged (whether the model was trained to judge each step); and
    without_thinking if a turn was read so.
  """
  unread = dict(without_thinking=list(row.without_thinking))
  return dict(
    step_scores=list(row.scores),
    step_logits=None if row.logits is None else list(row.logits),
    judged=list(row.judged),
    **(unread if any(row.without_thinking) else {}),
  )
