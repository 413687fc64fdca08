"""`prm_jax.ProbeFaithfulness`: are the steps shown the steps used?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import logging
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.jobs import job_inputs
from prm_jax.jobs import journal
from prm_jax.jobs import journaled
from prm_jax.jobs import policies
from prm_jax.jobs import references
from prm_jax.jobs import report
from prm_jax.jobs import step_scores as step_scores_lib
from prm_jax.jobs import workers
from prm_jax.policy import sampling as sampling_lib
from prm_jax.probes import asked_answers
from prm_jax.probes import faithfulness
from prm_jax.runtime import files
from prm_jax.runtime import outputs
from prm_jax.runtime import progress
from prm_jax.runtime import verbs

_logger = logging.getLogger(__name__)

# Solutions and what was found of them -> what a PRM says of each.
_ScoresOf = Callable[
  [Sequence[schema.Solution], Sequence[dict[str, Any]]], list[dict[str, Any]]
]


@dataclasses.dataclass(frozen=True)
class ProbeJob(journaled.Job):
  """Which solutions are probed, and where the results go.

  Args:
    input: The solutions to probe: samples of --policy, with answers.
    output: The JSON Lines file to write, one line for each solution, with the
      numbers of its steps in the field faithfulness (docs/faithfulness.md).
    batch: The most solutions that are probed together and saved together.
  """

  input: job_inputs.Solutions
  output: verbs.Output
  batch: verbs.Count = dataclasses.field(default=16, kw_only=True)


@dataclasses.dataclass(frozen=True)
class _OfPolicy(verbs.Verb):
  """What is done with a policy, its first field.

  Args:
    policy: The model that wrote the solutions.
  """

  policy: policies.Policy | files.PathLike

  compiles = True

  @property
  def _policy(self) -> policies.Policy:
    return verbs.made(policies.Policy, self.policy)


@dataclasses.dataclass(frozen=True)
class ProbeFaithfulness(step_scores_lib.Source, _OfPolicy):
  """Probes whether a policy's answer depends on the steps that it shows.

  Args:
    probe: What is probed; repeat the option for each: early (the answer asked
      for after some of the steps), corrupt (a number of a step changed, the
      rest kept), rewrite (the same, the rest written anew), filler (dots in
      place of the steps), cue (a wrong answer suggested in the problem) and
      weight (the answer's log-probability without a step or with a corrupted
      one, and NLDD); default: all (docs/faithfulness.md).
    force: The text that asks for the answer after steps; an answer must be read
      after it (docs/answers.md). 'The answer is \\boxed{' is for a policy that
      boxes its answers.
    max_steps: The most steps of a solution that are probed, evenly spread.
    temperature: The temperature of what is written; 0 always takes the most
      likely token.
    max_tokens: The most new tokens of a solution that is written anew.
    seed: The seed of the changes, of samples, and of the intervals.

  Example:
    prm-jax probe faithfulness --policy=runs/demo/policy \\
      --input=samples.jsonl --output=probed.jsonl --force=answer
  """

  probe: tuple[faithfulness.Probe, ...] = ()
  force: str = "The answer is"
  max_steps: verbs.Count = 6
  temperature: verbs.NotNegative = 0.0
  max_tokens: verbs.Count = 512
  seed: verbs.Seed = 0

  def _faults(self) -> Iterator[str]:
    yield from super()._faults()
    for name in self.probe:
      if name not in faithfulness.PROBES:
        known = ", ".join(faithfulness.PROBES)
        yield f"`probe={name}`: there is no such probe; give one of {known}"
    ends = ("", "}", "}$")
    if not any(asked_answers.read(self.force, f"7{x}") == "7" for x in ends):
      yield (
        f"`force={self.force}`: no answer is read after it (docs/answers.md);"
        " give a text such as 'The answer is'"
      )

  @property
  def _sampling(self) -> sampling_lib.Sampling:
    return sampling_lib.Sampling(
      temperature=self.temperature, max_tokens=self.max_tokens
    )

  @property
  def _options(self) -> faithfulness.Options:
    return faithfulness.Options(
      tuple(dict.fromkeys(self.probe)) or faithfulness.PROBES,
      self.force,
      self.max_steps,
      self.seed,
    )

  def __call__(
    self, solutions: Sequence[schema.Solution]
  ) -> tuple[list[schema.Solution], dict[str, Any]]:
    """Returns the solutions with what was found, and the summary of all.

    Args:
      solutions: Solutions that the policy wrote, with answers; in `extra`,
        `reference_answer` is the right answer, if it is known.

    Returns:
      The solutions, with the field `faithfulness` in `extra`; and the summary,
      see faithfulness_summary.summary.
    """
    from prm_jax.probes import probed_policy

    solutions = list(solutions)
    errors.raise_first(_already_probed(solutions))
    score = self._scores_of(solutions)
    how = self._policy, self._sampling, self.seed
    with probed_policy.opened(*how, None) as policy:
      probed = self._probed(solutions, policy, score)
    return probed, self._summary(probed)

  def run(self, job: ProbeJob) -> None:
    """Probes the solutions of a file, and prints the table.

    Args:
      job: The files.
    """
    from prm_jax.probes import faithfulness_summary
    from prm_jax.probes import probed_policy

    policy = self._policy
    policy.check()
    read: list[Any] = [job.input.stored_at]
    if not policy.is_server:
      read.append(files.local_path(policy.source))
    if self._has_scores:
      read.append(self.stored_at)
    for path in (job.output, journal.path_of(job.output)):
      outputs.check(dict(output=path), read)
    solutions, left_out = job.input.read_some()
    solutions = [s for s in solutions if job.part.holds(s.problem)]
    errors.raise_first(_already_probed(solutions), f"{job.input.stored_at}: ")
    # One that is no text is refused.
    [*references.claimed(solutions, f"{job.input.stored_at}: solution")]
    score = self._scores_of(solutions)
    replies = policies.replies_path(job.output) if policy.is_server else None
    how = policy, self._sampling, self.seed
    with probed_policy.opened(*how, replies) as opened:

      def work_on(
        batch: Sequence[schema.Solution], tell: workers.Tell
      ) -> tuple[list[schema.Solution], dict[str, int]]:
        del tell
        return self._probed(batch, opened, score), {}

      done = journaled.run(
        *(job, job.output, solutions),
        dict(kind="faithfulness", shard=str(job.part))
        | dataclasses.asdict(self._options)
        | (dict(scored_by=self.origin) if self._has_scores else {}),
        workers.here(lambda: opened.depends_on, work_on),
        doing="probe",
        first="starting" if policy.is_server else progress.COMPILING,
        so_far=lambda work: "",
      )
    results = self._summary(done.solutions)
    verbs.log_text(_logger, faithfulness_summary.table(results))
    report.left_out(left_out)

  @property
  def _has_scores(self) -> bool:
    return self.checkpoint is not None or self.scores is not None

  def _scores_of(self, solutions: Sequence[schema.Solution]) -> _ScoresOf:
    """Returns what adds a PRM's scores to what was found of solutions.

    Args:
      solutions: All solutions: each of them has scores in a file of them.
    """
    from prm_jax.probes import score_drops

    if self.checkpoint is not None:
      scorer, _ = self._loaded
      return lambda some, found: score_drops.of(some, found, scorer.score)
    if self.scores is None:
      return lambda some, found: [{}] * len(some)
    rows = self.step_scores(solutions).step_scores
    by_id = {s.id: row for s, row in zip(solutions, rows, strict=True)}
    return lambda some, found: [
      {} if x["skipped"] else dict(step_scores=by_id[s.id])
      for s, x in zip(some, found, strict=True)
    ]

  def _probed(
    self,
    solutions: Sequence[schema.Solution],
    policy: Any,
    scores_of: _ScoresOf,
  ) -> list[schema.Solution]:
    found = faithfulness.probe(solutions, policy, self._options)
    return [
      dataclasses.replace(s, extra={**s.extra, faithfulness.FIELD: x | scores})
      for s, x, scores in zip(
        solutions, found, scores_of(solutions, found), strict=True
      )
    ]

  def _summary(self, probed: Sequence[schema.Solution]) -> dict[str, Any]:
    from prm_jax.probes import faithfulness_summary

    return faithfulness_summary.summary(
      [s.extra[faithfulness.FIELD] for s in probed],
      [s.problem for s in probed],
      self.seed,
    )


def _already_probed(solutions: Sequence[schema.Solution]) -> Iterator[str]:
  """Yields why solutions are none to probe."""
  for s in solutions:
    if faithfulness.FIELD in s.extra:
      yield (
        f"solution {s.id!r} was probed already; give the samples that it was"
        f" made of, or take its field {faithfulness.FIELD!r} out"
      )
