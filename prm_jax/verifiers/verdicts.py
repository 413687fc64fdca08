"""What a verifier says of each step, and what a verifier is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import reprlib

from prm_jax import errors
from prm_jax import schema


@dataclasses.dataclass(frozen=True)
class Verdict:
  """What a verifier says of a step.

  Args:
    label: 1 if the step is right, 0 if it is wrong, None if the verifier can't
      tell.
    reason: Why, in a line.

  Raises:
    InputError: A value is another one.
  """

  label: float | None
  reason: str

  def __post_init__(self):
    errors.raise_first(self._faults(), "Verdict: ")

  def _faults(self) -> Iterator[str]:
    if self.label is not None and self.label not in (0, 1):
      yield f"label is {reprlib.repr(self.label)}; expected 1, 0 or None"
    if not isinstance(self.reason, str):
      yield f"reason is {reprlib.repr(self.reason)}; expected a str"


# A solution -> a verdict on each of its steps, in their order. A verifier judges
# a step by itself: that what follows an error isn't correct so far is added
# where verdicts become labels.
Verifier = Callable[[schema.Solution], Sequence[Verdict]]


def labels(verdicts: Sequence[Verdict]) -> tuple[float | None, ...]:
  """Returns the verdicts as labels, which are P(correct so far).

  Args:
    verdicts: The verdict on each step.

  Returns:
    The label of each step; 0 for all from the first wrong one on.
  """
  error = schema.first_error([x.label for x in verdicts])
  return tuple(
    None
    if x.label is None and not 0 <= error < i
    else float(bool(x.label) and not 0 <= error < i)
    for i, x in enumerate(verdicts)
  )
