"""Independent samples of problems, as a best-of-n search leaves them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
    errors.raise_first(_faults(s), f"problem {s.id!r} ")
    nodes, candidates = s.extra["tree"]["nodes"], s.extra["candidates"]
    values.append(
      [
        -1.0
        if needs_answer and c["answer"] is None
        else nodes[c["node"] - 1][field]
        for c in candidates
      ]
    )
    right.append([c["outcome"] is True for c in candidates])
  return values, right


def _faults(result: schema.Solution) -> Iterator[str]:
  """Yields why a result isn't of samples with outcomes."""
  if "tree" not in result.extra:
    yield "has no tree; give what a best-of-n search returned"
  nodes, rounds = (result.extra["tree"][x] for x in ("nodes", "rounds"))
  # The first round draws, the second has the candidates.
  if len(rounds) != 2 or any(node["parent"] for node in nodes):
    yield (
      "was searched step by step, or its samples were chosen by their scores;"
      " give what `prm-jax search best_of_n` wrote"
    )
  outcomes = [c["outcome"] for c in result.extra["candidates"]]
  if None in outcomes or not outcomes:
    yield "has samples of unknown outcome; give problems with answers"
