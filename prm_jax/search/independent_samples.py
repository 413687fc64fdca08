"""Independent samples of problems, as a best-of-n search leaves them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prm_jax import errors
from prm_jax import schema


def independent(
  results: Sequence[schema.Solution],
  field: str,
  *,
  needs_answer: bool = False,
) -> tuple[list[list[float]], list[list[bool]]]:
  """Returns a field of each problem's samples, and whether each is right.

  Args:
    results: What a best-of-n search returned, or a file of it holds.
    field: The field of the samples' nodes, such as score.
    needs_answer: Whether the field is -1 for a sample that states no answer.

  Raises:
    InputError: A search went step by step, chose its samples by their scores,
      or didn't know whether they are right.
  """
  values: list[list[float]] = []
  right: list[list[bool]] = []
  for s in results:
    if "tree" not in s.extra:
      raise errors.InputError(
        f"problem {s.id!r} has no tree; give what a best-of-n search returned"
      )
    nodes, rounds = s.extra["tree"]["nodes"], s.extra["tree"]["rounds"]
    # The first round draws, the second has the candidates.
    if len(rounds) != 2 or any(node["parent"] for node in nodes):
      raise errors.InputError(
        f"problem {s.id!r} was searched step by step, or its samples were"
        " chosen by their scores; give what `prm-jax search best_of_n` wrote"
      )
    candidates = s.extra["candidates"]
    outcomes: Sequence[Any] = [c["outcome"] for c in candidates]
    if None in outcomes or not outcomes:
      raise errors.InputError(
        f"problem {s.id!r} has samples of unknown outcome; give problems with"
        " answers"
      )
    values.append(
      [
        -1.0
        if needs_answer and c["answer"] is None
        else nodes[c["node"] - 1][field]
        for c in candidates
      ]
    )
    right.append([outcome is True for outcome in outcomes])
  return values, right
