"""What every stage speaks: problems, solutions, and functions on them.

People, Monte-Carlo rollouts, a judge and the published datasets all end as the
same steps with the same kind of label, P(correct so far) in [0, 1].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any

from prm_jax import errors


@dataclasses.dataclass(frozen=True)
class Problem:
  """A question with, where known, its reference answer."""

  id: str
  problem: str
  answer: str | None = None
  extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    _check_extra(self)


@dataclasses.dataclass(frozen=True)
class Solution:
  """A problem's worked steps and what is known about them.

  labels: P(correct so far) of every step, None where it is unknown.
  ratings: PRM800K's -1/0/+1 of every step, None where there is none; a
    label policy turns them into labels (data.encoding.LabelPolicy), and the
    labels above are not read.
  answer: the solution's own final answer. outcome: is that answer right.
  extra: further fields of the record; they pass through to the output.
  """

  id: str
  problem: str
  steps: tuple[str, ...]
  labels: tuple[float | None, ...] | None = None
  answer: str | None = None
  outcome: bool | None = None
  source: str = ""
  ratings: tuple[int | None, ...] | None = None
  extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    for name in ("labels", "ratings"):
      values = getattr(self, name)
      if values is not None and len(values) != len(self.steps):
        raise errors.InputError(
          f"solution {self.id!r}: {len(values)} {name} for"
          f" {len(self.steps)} steps; give one per step, null where unknown"
        )
    _check_extra(self)


def _check_extra(noun: Problem | Solution) -> None:
  """Refuses further fields that would hide our own when they are written."""
  clash = (vars(noun).keys() & noun.extra.keys()) - {"extra"}
  if clash:
    raise errors.InputError(
      f"{type(noun).__name__.lower()} {noun.id!r}: extra holds"
      f" {', '.join(sorted(clash))}, a field of its own; give it another name"
    )


# Unfinished solutions (no step yet, or some), n -> n whole ones of each: the
# given steps and the continuation. A completion depends on the prefix's id and
# text and on its own index: who wants others asks under another id.
Generate = Callable[[Sequence[Solution], int], list[list[Solution]]]


# What a completion's extra says of its new tokens; log-probabilities in nats.
STATISTICS = (
  *("ended", "stopped", "num_tokens"),
  *("log_prob_mean", "log_prob_min"),
)


# Unfinished solutions and texts that may follow their last step, within it ->
# log-probabilities in nats, one row per solution, one column per text.
LogLikelihood = Callable[[Sequence[Solution], Sequence[str]], list[list[float]]]


# Where a solution's extra holds the right answer to its problem.
REFERENCE = "reference_answer"


# Does a whole solution end in the right answer; None where that can't be told
# (no reference, a grader that was killed).
Verify = Callable[[Sequence[Solution]], list[bool | None]]


# P(correct so far), one float per step of each solution.
Score = Callable[[Sequence[Solution]], list[list[float]]]


def first_error(labels: Sequence[float | None], threshold: float = 0.5) -> int:
  """Returns the 0-based index of the first label below threshold, or -1."""
  for i, label in enumerate(labels):
    if label is not None and label < threshold:
      return i
  return -1
