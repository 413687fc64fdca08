"""`prm_jax.Sample`: solutions of problems, written by a policy and graded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
import dataclasses
import logging
import pathlib

from prm_jax import schema
from prm_jax.grading import pool
from prm_jax.jobs import job_inputs
from prm_jax.jobs import policies
from prm_jax.jobs import report
from prm_jax.policy import sampling as sampling_lib
from prm_jax.runtime import files
from prm_jax.runtime import outputs
from prm_jax.runtime import progress
from prm_jax.runtime import verbs
from prm_jax.text import answers

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class SampleJob(verbs.Value):
  """Which problems are sampled, and where their solutions go.

  Args:
    input: The problems to solve.
    output: The JSON Lines file of solutions to write; - is the standard output,
      and messages go to stderr (a file is written whole or not at all, the
      standard output isn't).
  """

  input: job_inputs.Problems
  output: verbs.OutputOrStdout


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
    problems = list(problems)
    self._policy.check()
    solutions, _ = self._graded(problems, self._rows(problems, None, Counter()))
    return solutions

  def run(self, job: SampleJob) -> None:
    """Samples solutions of a file's problems.

    Args:
      job: The files.
    """
    from prm_jax.records import jsonl

    self._policy.check()
    is_server = self._policy.is_server
    read = [job.input.path]
    read += [] if is_server else [files.local_path(self._policy.source)]
    outputs.check(dict(output=job.output), read)
    replies = policies.replies_path(job.output) if is_server else None
    outputs.check(dict(output=replies), read)
    problems = job.input.read(schema.STATISTICS)
    counts: Counter[str] = Counter()
    rows = self._rows(problems, replies, counts)
    solutions, grades = self._graded(problems, rows)
    count = jsonl.write_solutions(job.output, solutions)
    ended = sum(s.extra["ended"] for s in solutions)
    unanswered = sum(s.answer is None for s in solutions)
    _logger.info(
      f"{job.output}: {count} solutions, {ended} ended by themselves,"
      f" {unanswered} without an answer"
    )
    report.counted(counts)
    if grades:
      _logger.info(pool.told(dict(grader=self.grader) | pool.count(grades)))

  def _rows(
    self,
    problems: Sequence[schema.Problem],
    replies: pathlib.Path | None,
    counts: Counter[str],
  ) -> list[list[schema.Solution]]:
    """Returns the solutions of each problem; counts a server's work."""
    starts = [
      schema.Solution(p.id, p.problem, (), extra=dict(p.extra))
      for p in problems
    ]
    if self._policy.is_server:
      return self._asked(starts, replies, counts)
    return self._drawn(starts)

  def _drawn(
    self, starts: Sequence[schema.Solution]
  ) -> list[list[schema.Solution]]:
    """Returns the solutions that a folder's policy writes."""
    import jax

    from prm_jax.policy import rollout_engine

    policy, slots = self._policy.load(), self._policy.slots
    report.computed(dict(policy=policy.config.compute_dtype))
    sampling = self._policy.sampling_of(policy, self.sampling)
    key, total = jax.random.key(self.seed), self.n * len(starts)
    if not policy.template.of_policy:
      if slots is not None:
        policy = dataclasses.replace(policy, batch_samples=slots)
      # It tells of whole batches alone.
      first = "compiling and sampling"
      with progress.showing("sample", total, first=first) as update:
        return policy.generate(starts, self.n, sampling, key, update)
    # Texts of a published policy differ in length, which slots are for.
    engine = rollout_engine.of(policy, slots=slots or policies.SLOTS)
    with progress.showing("sample", total, first=progress.COMPILING) as update:

      def tell(done: int, tokens: int) -> None:
        update(done, f"{tokens:,} tokens")

      return engine.generate(starts, self.n, sampling, key, tell)[0]

  def _asked(
    self,
    starts: Sequence[schema.Solution],
    replies: pathlib.Path | None,
    counts: Counter[str],
  ) -> list[list[schema.Solution]]:
    """Returns the solutions that a server's model writes."""
    from prm_jax.jobs import opened_policies

    how = self._policy, self.sampling, self.seed, replies, counts
    with (
      opened_policies.opened(*how) as writer,
      progress.showing("sample", self.n * len(starts)) as update,
    ):
      rows = writer.complete(starts, self.n, update)
    # As from a folder: raw_text has what `text` has.
    return [
      [
        dataclasses.replace(
          s,
          extra={**start.extra, **{k: s.extra[k] for k in schema.STATISTICS}},
        )
        for s in row
      ]
      for start, row in zip(starts, rows, strict=True)
    ]

  def _graded(
    self,
    problems: Sequence[schema.Problem],
    rows: Sequence[Sequence[schema.Solution]],
  ) -> tuple[list[schema.Solution], list[pool.Grade]]:
    """Returns the solutions with answer, reference and outcome where known."""
    solutions = [s for row in rows for s in row]
    references = [p.answer for p, row in zip(problems, rows) for _ in row]
    given = [answers.of_solution(s) for s in solutions]
    known = [i for i, x in enumerate(references) if x is not None]
    with (
      pool.Grader(self.grader) as of_answers,
      progress.showing("grade", len(known)) as update,
    ):
      grades = of_answers.grade(
        [(given[i], str(references[i])) for i in known], update
      )
    graded = [
      dataclasses.replace(s, answer=answer)
      for s, answer in zip(solutions, given)
    ]
    for i, grade in zip(known, grades, strict=True):
      graded[i] = dataclasses.replace(
        graded[i],
        outcome=pool.outcome(grade),
        extra={**graded[i].extra, schema.REFERENCE: references[i]},
      )
    return graded, grades
