"""Which items a model makes most wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import math
from typing import Literal

from prm_jax import schema
from prm_jax.people import judgements

Order = Literal["convincing", "uncertain", "file"]


def ordered(
  items: Sequence[judgements.Item],
  scores: Mapping[str, schema.StepScores],
  order: Order | None = None,
) -> list[judgements.Item]:
  """Returns the items, the most wanted first; equal ones as they come.

  Args:
    items: The items.
    scores: A model's scores of items of one solution, by their ids.
    order: convincing: wrong answers before the others, and those with the
      highest least score first; uncertain: those with a least score near 0.5
      first; file: as they come. None is convincing if there are scores.
  """
  order = order or ("convincing" if scores else "file")

  def wanted(item: judgements.Item) -> tuple[bool, float]:
    row = scores.get(item.id)
    least = min(row.scores, default=0.0) if row is not None else -math.inf
    if order == "convincing":
      return item.solutions[0].outcome is not False, -least
    return False, abs(least - schema.THRESHOLD)

  return [*items] if order == "file" else sorted(items, key=wanted)
