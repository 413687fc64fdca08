"""`prm_jax.CPMI`: labels by how far a step moves a policy to the right answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
import contextlib
import dataclasses
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.jobs import policies
from prm_jax.jobs import references
from prm_jax.labelling import cpmi
from prm_jax.labelling import label_job
from prm_jax.labelling import label_plan
from prm_jax.runtime import files


@dataclasses.dataclass(frozen=True)
class CPMI(cpmi.Options, label_job.PolicyLabeller):
  """Labels each step by how far it moves a policy to the right answer.

  Nothing is written, only read: contrastive pointwise mutual information (Lee
  et al. 2026, arXiv 2604.10660).

  Args:
    policy: The model, a checkpoint folder, or a server that returns the
      log-probabilities of a prompt (docs/cpmi.md).

  Example:
    prm-jax label cpmi --policy=runs/demo/policy --force=answer \\
      --input=samples.jsonl --output=labelled.jsonl
  """

  kind = "cpmi"

  def _faults(self) -> Iterator[str]:
    yield from super()._faults()
    if self._policy.slots is not None:
      yield f"`slots={self._policy.slots}`: nothing is sampled; take it out"

  def run(self, job: label_job.AnswersJob) -> None:
    """Labels the solutions of a file.

    Args:
      job: The files.

    Raises:
      InputError: A shard is to be labelled by what is over the whole input.
    """
    if self.map != "none" and job.part.count > 1:
      raise errors.InputError(
        f"`map={self.map}`: is over the whole input, and `shard={job.shard}` is"
        " a part of it; give `map=none`"
      )
    self.label_file(job, job.problems)

  def _options(self) -> dict[str, Any]:
    # What labels are made of is in the journal; they are made at the end.
    names = ("form", "force", "phrasing", "num_wrong", "wrong_weight")
    options = {name: getattr(self, name) for name in names}
    return options | dict(phrasing=list(self.phrasing))

  def _finished(
    self, solutions: list[schema.Solution]
  ) -> list[schema.Solution]:
    return cpmi.with_labels(solutions, self)

  def _read(
    self, job: label_job.LabelJob, problems: files.PathLike | None
  ) -> label_job.Task:
    task = super()._read(job, problems)
    for s in task.solutions:
      cpmi.named_wrong_answers(s, f"{job.input.path}: solution")
    return task

  def _why_not(self, solution: schema.Solution) -> str | None:
    if solution.messages is not None:
      return "a conversation"
    return super()._why_not(solution)

  def _planned(self, task, lengths):
    self._refuse_chat()
    right = references.of(references.claimed(task.solutions, "solution"))
    return label_plan.cpmi(task.solutions, right, self, lengths)

  def _refuse_chat(self) -> None:
    if self._policy.is_server and self._policy.server.chat:
      raise errors.InputError(
        f"`policy={self._policy.source}`: a chat doesn't give the"
        " log-probabilities of a given text; take `chat` out"
      )

  @contextlib.contextmanager
  def _labelling(
    self,
    writer: policies.Writer,
    references: Mapping[str, str],
    counts: Counter[str],
  ) -> Iterator[label_job.Label]:
    del counts
    self._refuse_chat()
    weigher = writer.weigher
    assert weigher is not None  # of a chat alone

    def label(solutions, tell):
      del tell
      return cpmi.label(solutions, weigher, references, self)

    yield label
