"""`prm_jax.MonteCarlo` and `prm_jax.OmegaPRM`: labels by a policy's rollouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
import contextlib
import dataclasses
import logging
from typing import Any, ClassVar

from prm_jax.grading import pool
from prm_jax.jobs import policies
from prm_jax.labelling import label_job
from prm_jax.labelling import label_plan
from prm_jax.labelling import monte_carlo
from prm_jax.labelling import omega_prm
from prm_jax.labelling import omega_tree

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class OmegaPRMJob(label_job.AnswersJob):
  """Which problems OmegaPRM solves, and where their solutions go.

  Args:
    input: The problems or solutions (with --format=jsonl, a line without steps
      is a problem); solutions count as rollouts of their problem.
  """


@dataclasses.dataclass(frozen=True)
class _ByRollouts(pool.Graded, label_job.Labeller):
  """Labels solutions by rollouts that are graded.

  Args:
    policy: The model that writes rollouts.
  """

  # The class of the options of rollouts, of which a labeller is one itself.
  of_options: ClassVar[Any]

  def _options(self) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(self.of_options)]
    return dict(grader=self.grader) | {x: getattr(self, x) for x in names}

  @contextlib.contextmanager
  def _labelling(
    self,
    writer: policies.Writer,
    references: Mapping[str, str],
    counts: Counter[str],
  ) -> Iterator[label_job.Label]:
    with pool.Grader(self.grader) as grader:
      verify = pool.verifier(grader, references, counts)

      def label(solutions, tell):
        return self._label(solutions, writer.bind(tell), verify, writer)

      yield label

  def _label(self, solutions, generate, verify, writer):
    raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class MonteCarlo(monte_carlo.Options, _ByRollouts):
  """Labels each step by the share of rollouts from it that end right.

  Math-Shepherd's labels (Wang et al. 2024, arXiv 2312.08935).

  Example:
    prm-jax label monte_carlo --policy=runs/demo/policy \\
      --input=samples.jsonl --output=labelled.jsonl
  """

  kind = "monte_carlo"
  of_options = monte_carlo.Options

  def run(self, job: label_job.AnswersJob) -> None:
    """Labels the solutions of a file.

    Args:
      job: The files.
    """
    self.label_file(job, job.problems)

  def _planned(self, task, lengths):
    return label_plan.monte_carlo(task.solutions, self, lengths)

  def _label(self, solutions, generate, verify, writer):
    del writer
    return monte_carlo.label(solutions, generate, verify, self)


@dataclasses.dataclass(frozen=True)
class OmegaPRM(omega_tree.Options, _ByRollouts):
  """Samples solutions, and finds their first errors by binary search.

  In a tree of rollouts, as OmegaPRM does (Luo et al. 2024, arXiv 2406.06592).

  Example:
    prm-jax label omega_prm --policy=runs/demo/policy \\
      --input=problems.jsonl --output=labelled.jsonl
  """

  kind = "omega_prm"
  of_options = omega_tree.Options
  writes_new = True

  def _faults(self) -> Iterator[str]:
    yield from super()._faults()
    if self.segments and self._policy.is_server:
      yield (
        f"`segments={self.segments}`: a server doesn't count the tokens of"
        " steps; take it out"
      )

  def run(self, job: OmegaPRMJob) -> None:
    """Labels new solutions of the problems of a file.

    Args:
      job: The files.
    """
    ratio = omega_prm.ratio(self.label_file(job, job.problems))
    if ratio == ratio:
      _logger.info(f"brute force would take {ratio:.1f} times the rollouts")

  def _planned(self, task, lengths):
    most = self.sampling.max_tokens
    return label_plan.omega_prm(task.solutions, self, most, lengths)

  def _label(self, solutions, generate, verify, writer):
    return omega_prm.label(
      *(solutions, generate, verify, self), count_tokens=writer.count_tokens
    )
