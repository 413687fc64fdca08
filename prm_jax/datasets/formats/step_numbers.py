"""The numbers that steps begin with, as "Step 1: " or "1. "."""

from __future__ import annotations

from collections.abc import Sequence
import re


def without(steps: Sequence[str]) -> tuple[str, ...]:
  """Returns the steps, without their numbers where they begin with these.

  The third step's is "Step 3:", "step 3.", "**Step 3:**", "3." or "(3)". A step
  that is nothing but its number, or begins with another one, stays as it is.
  """
  cut = []
  for i, step in enumerate(steps, 1):
    match = _begins(i, step)
    cut.append(step[match.end() :] if match else step)
  return tuple(cut)


def count(steps: Sequence[str]) -> int:
  """Returns how many of the steps begin with their number."""
  return sum(bool(_begins(i, step)) for i, step in enumerate(steps, 1))


def _begins(number: int, step: str) -> re.Match[str] | None:
  word = rf"step *{number}(?:\*\*)? *[:.)–-]"
  return re.match(
    rf"\s*(?:#+ *)?(?:\*\*)?(?:{word}|\(?{number}[.):](?=\s|\*))(?:\*\*)?\s*(?=\S)",
    step,
    re.IGNORECASE,
  )
