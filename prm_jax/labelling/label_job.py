"""What labellers share that ask a policy: files, journal and what they say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import logging
import pathlib
import time
from typing import Any, ClassVar

from prm_jax import errors
from prm_jax import schema
from prm_jax.jobs import job_inputs
from prm_jax.jobs import journal
from prm_jax.jobs import journaled
from prm_jax.jobs import policies
from prm_jax.jobs import references as references_lib
from prm_jax.jobs import report
from prm_jax.jobs import workers
from prm_jax.labelling import label_plan
from prm_jax.policy import sampling as sampling_lib
from prm_jax.runtime import files
from prm_jax.runtime import outputs
from prm_jax.runtime import progress
from prm_jax.runtime import verbs

_logger = logging.getLogger(__name__)

# Labels solutions, and tells of the completions that it has drawn.
Label = Callable[
  [Sequence[schema.Solution], policies.Tell],
  tuple[Sequence[schema.Solution], Mapping[str, int]],
]


@dataclasses.dataclass(frozen=True)
class LabelJob(journaled.EngineJob):
  """Which solutions are labelled, and where they go.

  Args:
    input: The solutions to label.
    output: The JSON Lines file of solutions to write.
    batch: The most lines of --input that are labelled before they are saved;
      those of one problem stay together, however many they are.
    fresh: Discard the labels that an earlier run saved in OUTPUT.journal and
      replace --output, instead of resuming.
  """

  input: job_inputs.Solutions
  output: verbs.Output


@dataclasses.dataclass(frozen=True)
class PolicyJob(label_plan.Planned, LabelJob):
  """Which solutions a policy labels, and where they go."""


@dataclasses.dataclass(frozen=True)
class AnswersJob(PolicyJob):
  """Which solutions are labelled by right answers, and where they go.

  Args:
    problems: A file of problems with their right answers, one JSON object per
      line, in addition to the field reference_answer of the solutions; two
      different answers to one problem are an error (default: only
      reference_answer).
  """

  problems: verbs.Local | None = None


@dataclasses.dataclass(frozen=True)
class Task:
  """What is to be labelled.

  Args:
    solutions: The solutions of this shard, with the right answers that are known.
    unable: Why a solution can't be labelled, by id.
    left_out: What the reader left out, by reason.
  """

  solutions: list[schema.Solution]
  unable: Mapping[str, str]
  left_out: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class PolicyLabeller(verbs.Verb):
  """Labels solutions by a policy.

  Args:
    policy: The model.
  """

  policy: policies.Policy | files.PathLike

  compiles = True
  # Its name, as what labels depend on has it; whether it needs right answers;
  # and whether it writes new solutions of problems, which need no steps.
  kind: ClassVar[str]
  needs_reference: ClassVar[bool] = True
  writes_new: ClassVar[bool] = False

  @property
  def _drawing(self) -> tuple[sampling_lib.Sampling, int]:
    """How the policy samples, and the seed; nothing is drawn by default."""
    return sampling_lib.Sampling(max_tokens=1, temperature=1.0), 0

  def _options(self) -> dict[str, Any]:
    """Returns the options that labels depend on, as plain data."""
    raise NotImplementedError

  def _planned(
    self, task: Task, lengths: label_plan.Lengths
  ) -> label_plan.Work:
    """Returns what there is to do of a task, all of which can be labelled."""
    raise NotImplementedError

  def _finished(
    self, solutions: list[schema.Solution]
  ) -> list[schema.Solution]:
    """Returns the labelled solutions of all batches as they are written."""
    return solutions

  def _labelling(
    self,
    writer: policies.Writer,
    references: Mapping[str, str],
    counts: Counter[str],
  ) -> contextlib.AbstractContextManager[Label]:
    """Returns the labeller, for the time that it is used.

    Args:
      writer: The policy.
      references: The right answer to each problem's text.
      counts: The counts to which its work is added.
    """
    raise NotImplementedError

  def __call__(
    self, solutions: Iterable[schema.Solution]
  ) -> list[schema.Solution]:
    """Returns the solutions with labels of their steps; logs the work's counts.

    Args:
      solutions: The solutions; in `extra` of each, `reference_answer` is the
        right answer, if it is needed.

    Raises:
      InputError: A right answer is missing that is needed.
    """
    solutions = list(solutions)
    references = {}
    if self.needs_reference:
      references = references_lib.of_all(solutions)
    counts: Counter[str] = Counter()
    with self._opened(references, None, counts) as (label, _):
      labelled, work = label(solutions, lambda done, tokens=0: None)
    report.counted({**work, **counts})
    return self._finished(list(labelled))

  @property
  def _also_read(self) -> list[files.PathLike | None]:
    """Files that its options name, which no output may replace."""
    return []

  @property
  def _policy(self) -> policies.Policy:
    return verbs.made(policies.Policy, self.policy)

  @contextlib.contextmanager
  def _opened(
    self,
    references: Mapping[str, str],
    replies: pathlib.Path | None,
    counts: Counter[str],
  ) -> Iterator[tuple[Label, policies.Writer]]:
    from prm_jax.jobs import opened_policies

    how = self._policy, *self._drawing, replies, counts
    with (
      opened_policies.opened(*how) as writer,
      self._labelling(writer, references, counts) as label,
    ):
      yield label, writer

  def label_file(
    self, job: PolicyJob, problems: files.PathLike | None = None
  ) -> Mapping[str, int]:
    """Labels the solutions of a file, and returns the work; none of a plan.

    Args:
      job: The files.
      problems: A file of problems with further right answers.
    """
    self._policy.check()
    _check_outputs(job, self._policy, [problems, *self._also_read])
    task = self._read(job, problems)
    claim = dict(kind=self.kind, shard=str(job.part))
    claim |= self._options()
    if not job.fresh:
      from prm_jax.jobs import opened_policies

      sampling, seed = self._drawing
      known = opened_policies.asked(self._policy, sampling)
      known |= claim | dict(seed=seed)
      journal.check(job.output, task.solutions, known)
    if job.plan:
      self._tell_plan(job, task)
      return {}
    here = self.working(policies.replies_path(job.output))
    with job.opened(self, here) as worker:
      report.computed(worker.compute_dtype())
      start = time.perf_counter()
      is_server = self._policy.is_server
      done = journaled.run(
        *(job, job.output, task.solutions, claim, worker),
        doing="label",
        first="starting" if is_server else progress.COMPILING,
        so_far=_cost,
        are_new=self.writes_new,
        finished=self._finished,
      )
      elapsed_s = time.perf_counter() - start
    self._report(job, task, done)
    if tokens := done.work.get("tokens", 0) - done.before.get("tokens", 0):
      _logger.info(f"{tokens / elapsed_s:,.0f} tokens/s since this start")
    return done.work

  @contextlib.contextmanager
  def working(
    self, replies: pathlib.Path | None = None
  ) -> Iterator[workers.Worker]:
    """Labels batches in this process.

    Args:
      replies: The journal of a server's replies; None keeps none.

    Yields:
      What does it.
    """
    counts: Counter[str] = Counter()
    references: dict[str, str] = {}
    with self._opened(references, replies, counts) as (label, writer):

      def work_on(batch, tell):
        references.clear()
        if self.needs_reference:
          claims = references_lib.claimed(batch, "solution")
          references.update(references_lib.of(claims))
        return self._batch(batch, tell, label, counts)

      dtypes = dict(policy=writer.compute_dtype)
      yield workers.here(lambda: writer.depends_on, work_on, dtypes)

  def _why_not(self, solution: schema.Solution) -> str | None:
    """Returns why a solution can't be labelled; None if it can."""
    if not solution.steps and not self.writes_new:
      return "no steps"
    if self.needs_reference and solution.extra.get(schema.REFERENCE) is None:
      return "no reference answer"
    return None

  def _tell_plan(self, job: PolicyJob, task: Task) -> None:
    """Says what is left to do, and does none of it."""
    lengths = label_plan.lengths_of(self._policy)
    kept = frozenset[str]() if job.fresh else journal.ids_of(job.output)
    left = [
      s for s in task.solutions if s.id not in kept and s.id not in task.unable
    ]
    label_plan.tell(
      *(task.solutions, task.unable, kept),
      self._planned(dataclasses.replace(task, solutions=left), lengths),
      max_tokens=self._drawing[0].max_tokens,
      how=lengths.how,
      tokens_per_s=job.tokens_per_s,
    )
    report.left_out(task.left_out)

  def _read(self, job: LabelJob, problems: files.PathLike | None) -> Task:
    """Returns what is to be labelled; refuses bad input before any work."""
    part = job.part
    solutions, left_out = job.input.read_some(takes_problems=self.writes_new)
    references = {}
    if self.needs_reference:
      named = f"{job.input.path}: solution"
      claims = [
        *references_lib.read(problems),
        *references_lib.claimed(solutions, named),
      ]
      references = references_lib.of(claims)
    # With the whole input, so that no shard is refused that others aren't.
    if self.needs_reference and not any(
      s.problem in references for s in solutions
    ):
      raise errors.InputError(
        f'{job.input.path}: no solution has a "{schema.REFERENCE}"; prm-jax'
        " sample writes them, or give `problems=FILE` with answers"
      )
    mine, unable = [], {}
    for s in solutions:
      if not part.holds(s.problem):
        continue
      is_known = s.extra.get(schema.REFERENCE) is not None
      has_work = s.steps or self.writes_new
      if has_work and not is_known and s.problem in references:
        # It stays with the solution: its labels depend on it.
        extra = {**s.extra, schema.REFERENCE: references[s.problem]}
        s = dataclasses.replace(s, extra=extra)
      if why := self._why_not(s):
        unable[s.id] = why
      mine.append(s)
    return Task(mine, unable, left_out)

  def _batch(
    self,
    batch: Sequence[schema.Solution],
    tell: journaled.Tell,
    label: Label,
    counts: Counter[str],
  ) -> tuple[list[schema.Solution], dict[str, int]]:
    """Returns a batch's solutions, labelled if they can be, and the work."""
    counts.update({name: -n for name, n in counts.items()})  # to 0

    def drawn(done: int, tokens: int = 0) -> None:
      tell(_cost(dict(tokens=tokens) if tokens else dict(rollouts=done)))

    unable = {s.id for s in batch if self._why_not(s)}
    labelled, work = label([s for s in batch if s.id not in unable], drawn)
    # Labels of another kind would pass for this one's.
    blank = (
      dataclasses.replace(s, labels=None, ratings=None)
      for s in batch
      if s.id in unable and not self.writes_new
    )
    by_id = {s.id: s for s in (*labelled, *blank)}
    ids = by_id if self.writes_new else [s.id for s in batch]
    return [by_id[id_] for id_ in ids], {**work, **counts}

  def _report(self, job: LabelJob, task: Task, done: journaled.Done) -> None:
    """Says what was labelled, what wasn't and why, and what it took."""
    labelled, work = done.solutions, done.work
    unable = Counter(task.unable.values())
    if not self.writes_new:
      unable["no step could be told"] = sum(
        not is_labelled(s) and s.id not in task.unable for s in labelled
      )
    steps = sum(len(s.steps) for s in labelled)
    known = [x for s in labelled for x in s.labels or () if x is not None]
    _logger.info(f"{job.output}: {len(labelled):,} solutions, {steps:,} steps")
    report.counted(
      dict(
        solutions_labelled=sum(map(is_labelled, labelled)),
        steps_labelled=len(known),
      )
      | {f"without labels: {why}": n for why, n in unable.items() if n}
    )
    if before := sum(map(is_labelled, task.solutions)):
      report.counted({"had labels already, which these replace": before})
    report.left_out(task.left_out)
    report.counted(work)
    if work.get("slot_steps"):
      _logger.info(f"slots in use: {work['tokens'] / work['slot_steps']:.0%}")
    rollouts = work.get("rollouts", 0)
    if rollouts and work.get("unended") == rollouts:
      _logger.info(
        "no rollout ended within"
        f" `max_tokens={self._drawing[0].max_tokens}`: give more, or another"
        " policy; these labels say little"
      )


@dataclasses.dataclass(frozen=True)
class Labeller(PolicyLabeller):
  """Labels solutions by what a policy writes.

  Args:
    policy: The model that writes.
    sampling: How it samples.
    seed: The seed of all random numbers.
  """

  sampling: sampling_lib.Sampling = dataclasses.field(
    default_factory=sampling_lib.Sampling
  )
  seed: verbs.Seed = 0

  @property
  def _drawing(self) -> tuple[sampling_lib.Sampling, int]:
    return self.sampling, self.seed


def is_labelled(solution: schema.Solution) -> bool:
  """Returns whether a step of a solution has a label or a rating.

  Args:
    solution: The solution.
  """
  values = (*(solution.labels or ()), *(solution.ratings or ()))
  return any(value is not None for value in values)


def _cost(work: Mapping[str, int]) -> str:
  names = ("tokens", "forward_tokens", "rollouts")
  return ", ".join(f"{work[n]:,} {n}" for n in names if n in work)


def _check_outputs(
  job: LabelJob,
  policy: policies.Policy,
  also_read: Iterable[files.PathLike | None],
) -> None:
  """Refuses an output, or what is written beside it, that harms an input."""
  read = [job.input.stored_at, *also_read]
  if not policy.is_server:
    read.append(files.local_path(policy.source))
  for path in (
    job.output,
    journal.path_of(job.output),
    policies.replies_path(job.output),
  ):
    outputs.check(dict(output=path), read)
