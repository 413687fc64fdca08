"""`prm_jax.Sample`: solutions of problems, written by a policy and graded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import hashlib
import logging
import pathlib
from typing import Any, TYPE_CHECKING

from prm_jax import schema
from prm_jax.grading import pool
from prm_jax.jobs import job_inputs
from prm_jax.jobs import journal
from prm_jax.jobs import journaled
from prm_jax.jobs import policies
from prm_jax.jobs import report
from prm_jax.jobs import workers
from prm_jax.policy import sampling as sampling_lib
from prm_jax.runtime import files
from prm_jax.runtime import outputs
from prm_jax.runtime import progress
from prm_jax.runtime import verbs
from prm_jax.text import answers

if TYPE_CHECKING:
  from prm_jax.policy import sampler

_logger = logging.getLogger(__name__)

# In a start's extra its number in the input, by which random numbers are drawn.
_NUMBER = "sample_number"
# What begins the counts of grades.
_GRADED = "graded_"
# A sample has its start's id and its own number.
_OF_STARTS = dataclasses.replace(
  journal.SOLUTIONS, id_of=lambda s: s.id.rpartition("/")[0]
)
# Problems -> the solutions of each; tells how far it is.
_Complete = Callable[
  [Sequence[schema.Solution], workers.Tell], list[list[schema.Solution]]
]


@dataclasses.dataclass(frozen=True)
class SampleJob(journaled.MappedJob):
  """Which problems are sampled, and where their solutions go.

  Args:
    input: The problems to solve.
    batch: The most problems that are sampled together; on another number the
      last digits of log-probabilities depend.
    output: The JSON Lines file of solutions to write; - is the standard output,
      and messages go to stderr (a file is written whole or not at all, the
      standard output isn't).
  """

  input: job_inputs.Problems
  output: verbs.OutputOrStdout
  batch: verbs.Count = dataclasses.field(default=256, kw_only=True)


@dataclasses.dataclass(frozen=True)
class Sample(pool.Graded, verbs.Verb):
  """Samples solutions of problems from a policy and grades their answers.

  Args:
    policy: The model that writes solutions.
    n: The number of solutions to sample for each problem.
    sampling: How they are sampled.
    seed: The seed of the samples.

  Example:
    prm-jax sample --policy=runs/demo/policy --input=problems.jsonl \\
      --output=samples.jsonl --n=4
  """

  policy: policies.Policy | files.PathLike = dataclasses.field(
    metadata=dict(also=("checkpoint",))
  )
  n: verbs.Count = 16
  sampling: sampling_lib.Sampling = dataclasses.field(
    default_factory=sampling_lib.Sampling
  )
  seed: verbs.Seed = 0

  compiles = True
  writes_new = True

  @property
  def _policy(self) -> policies.Policy:
    return verbs.made(policies.Policy, self.policy)

  def __call__(
    self, problems: Sequence[schema.Problem]
  ) -> list[schema.Solution]:
    """Returns the solutions, n of each problem in their order.

    Args:
      problems: The problems.
    """
    starts = _numbered(job_inputs.starts(problems))
    with (
      self.working() as worker,
      progress.showing(
        "sample", len(starts), "problem", first=progress.COMPILING
      ) as update,
    ):
      done = worker.do(starts, lambda words, num=0: update(num, words))
    return list(done.results)

  def run(self, job: SampleJob) -> None:
    """Samples solutions of a file's problems.

    Args:
      job: The files.
    """
    self._policy.check()
    is_server = self._policy.is_server
    read = [job.input.path]
    read += [] if is_server else [files.local_path(self._policy.source)]
    job.check(read)
    replies = policies.replies_path(job.output) if is_server else None
    outputs.check(dict(output=replies), read)
    problems = job.input.read((*schema.STATISTICS, _NUMBER))
    starts = [
      s
      for s in _numbered(job_inputs.starts(problems))
      if job.part.holds(s.problem)
    ]
    with job.opened(self, self.working(replies)) as worker:
      report.computed(worker.compute_dtype())
      done = journaled.mapped(
        *(job, starts),
        dict(kind="sample", shard=str(job.part), n=self.n, grader=self.grader),
        worker,
        doing="sample",
        unit="problem",
        first="in the first batch" if is_server else progress.COMPILING,
        are_new=True,
        form=_OF_STARTS,
      )
    ended = sum(s.extra["ended"] for s in done.solutions)
    unanswered = sum(s.answer is None for s in done.solutions)
    _logger.info(
      f"{job.output}: {len(done.solutions)} solutions, {ended} ended by"
      f" themselves, {unanswered} without an answer"
    )
    grades = {
      name.removeprefix(_GRADED): n
      for name, n in done.work.items()
      if name.startswith(_GRADED)
    }
    report.counted(
      {k: n for k, n in done.work.items() if not k.startswith(_GRADED)}
    )
    if grades:
      _logger.info(pool.told(dict(grader=self.grader) | grades))

  @contextlib.contextmanager
  def working(
    self, replies: pathlib.Path | None = None
  ) -> Iterator[workers.Worker]:
    """Samples batches of problems in this process.

    Args:
      replies: The journal of a server's replies; None keeps none.

    Yields:
      What does it.
    """
    counts: Counter[str] = Counter()
    with (
      self._opened(replies, counts) as (complete, depends_on, dtype),
      pool.Grader(self.grader) as grader,
    ):

      def work_on(
        batch: Sequence[schema.Solution], tell: workers.Tell
      ) -> tuple[list[schema.Solution], dict[str, int]]:
        counts.update({name: -n for name, n in counts.items()})  # to 0
        rows = complete(batch, tell)
        found, grades = _graded(batch, rows, grader)
        graded = {f"{_GRADED}{k}": n for k, n in pool.count(grades).items()}
        return found, {**counts, **(graded if grades else {})}

      yield workers.here(depends_on, work_on, dict(policy=dtype))

  @contextlib.contextmanager
  def _opened(
    self, replies: pathlib.Path | None, counts: Counter[str]
  ) -> Iterator[tuple[_Complete, Callable[[], Mapping[str, Any]], str | None]]:
    """Yields what writes, what that depends on, and the type it computes in."""
    from prm_jax.jobs import opened_policies

    self._policy.check()
    if not self._policy.is_server:
      loaded = self._policy.load()
      sampling = self._policy.sampling_of(loaded, self.sampling)
      how = loaded, sampling, self.seed
      yield (
        self._drawing(loaded, sampling),
        lambda: self._policy.depends_on(*how),
        loaded.config.compute_dtype,
      )
      return
    with opened_policies.opened(
      self._policy, self.sampling, self.seed, replies, counts
    ) as writer:

      def complete(batch, tell):
        def told(done: int, tokens: int = 0) -> None:
          del tokens
          tell(f"{done:,} completions", done // self.n)

        starts = list(map(_bare, batch))
        rows = writer.complete(starts, self.n, told)
        return [
          [_as_from_a_folder(start, s) for s in row]
          for start, row in zip(starts, rows, strict=True)
        ]

      yield complete, lambda: writer.depends_on, None

  def _drawing(
    self, policy: sampler.Sampler, sampling: sampler.Sampling
  ) -> _Complete:
    """Returns what a folder's policy writes with."""
    import jax

    from prm_jax.policy import rollout_engine

    slots, key = self._policy.slots, jax.random.key(self.seed)
    if not policy.template.of_policy:
      if slots is not None:
        policy = dataclasses.replace(policy, batch_samples=slots)

      def whole(batch, tell):
        numbers = [s.extra.get(_NUMBER, _digest(s.id)) for s in batch]
        return policy.generate(
          *(list(map(_bare, batch)), self.n, sampling, key),
          lambda done: tell("", done // self.n),
          numbers,
        )

      return whole
    # Texts of a published policy differ in length, which slots are for.
    engine = rollout_engine.of(policy, slots=slots or policies.SLOTS)

    def by_slots(batch, tell):
      def told(done: int, tokens: int) -> None:
        tell(f"{tokens:,} tokens", done // self.n)

      starts = list(map(_bare, batch))
      return engine.generate(starts, self.n, sampling, key, told)[0]

    return by_slots


def _numbered(starts: Sequence[schema.Solution]) -> list[schema.Solution]:
  """Returns starts with their numbers, which a batch of them doesn't know."""
  return [
    dataclasses.replace(s, extra={**s.extra, _NUMBER: i})
    for i, s in enumerate(starts)
  ]


def _digest(id_: str) -> int:
  """Returns the number of a start of which none is known: 31 bits of its id."""
  digest = hashlib.sha256(id_.encode("utf-8", "replace")).digest()
  return int.from_bytes(digest[:4]) >> 1


def _as_from_a_folder(
  start: schema.Solution, s: schema.Solution
) -> schema.Solution:
  """Returns a server's solution; raw_text has what its field `text` has."""
  statistics = {name: s.extra[name] for name in schema.STATISTICS}
  return dataclasses.replace(s, extra={**start.extra, **statistics})


def _bare(start: schema.Solution) -> schema.Solution:
  """Returns a start as the policy sees it: without the answer."""
  extra = {
    k: x for k, x in start.extra.items() if k not in (_NUMBER, schema.REFERENCE)
  }
  return dataclasses.replace(start, extra=extra)


def _graded(
  starts: Sequence[schema.Solution],
  rows: Sequence[Sequence[schema.Solution]],
  grader: pool.Grader,
) -> tuple[list[schema.Solution], list[pool.Grade]]:
  """Returns the solutions with answer, reference and outcome where known."""
  solutions = [
    dataclasses.replace(s, answer=answers.of_solution(s))
    for row in rows
    for s in row
  ]
  references = [
    start.extra.get(schema.REFERENCE)
    for start, row in zip(starts, rows, strict=True)
    for _ in row
  ]
  known = [i for i, x in enumerate(references) if x is not None]
  grades = grader.grade(
    [(solutions[i].answer, str(references[i])) for i in known]
  )
  for i, grade in zip(known, grades, strict=True):
    solutions[i] = dataclasses.replace(
      solutions[i],
      outcome=pool.outcome(grade),
      extra={**solutions[i].extra, schema.REFERENCE: references[i]},
    )
  return solutions, grades
