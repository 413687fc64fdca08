"""What a reward model's step scores lose when a number of a step is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prm_jax import schema
from prm_jax.probes import interventions


def of(
  solutions: Sequence[schema.Solution],
  records: Sequence[Mapping[str, Any]],
  score: schema.Score,
) -> list[dict[str, Any]]:
  """Returns the step scores of solutions, and what they lose.

  Args:
    solutions: The solutions.
    records: What faithfulness.probe found of each.
    score: The reward model.

  Returns:
    For each solution `step_scores`; and, of each of the record's steps,
    `score_drop`, its score minus that with the number changed, and
    `score_drop_after`, the same of the lowest score from there on; None if it
    wasn't changed. Nothing of a solution that wasn't probed.
  """
  asked, sizes = [], []
  for solution, record in zip(solutions, records, strict=True):
    texts = [*_changed(solution, record)]
    asked += texts
    sizes.append(len(texts))
  rows = iter([x.scores for x in score(asked)])
  out = []
  for record, size in zip(records, sizes, strict=True):
    before, *after = [next(rows) for _ in range(size)] or [()]
    changed = iter(after)
    drops = [
      None if new is None else (k, next(changed))
      for k, new in zip(record.get("steps", ()), record.get("corrupted", ()))
    ]
    out.append(
      dict(
        step_scores=[*map(float, before)],
        score_drop=[x and float(before[x[0]] - x[1][x[0]]) for x in drops],
        score_drop_after=[
          x and float(min(before[x[0] :]) - min(x[1][x[0] :])) for x in drops
        ],
      )
      if size
      else {}
    )
  return out


def _changed(solution, record):
  """Yields a solution, and it with each corrupted step, in the same words."""
  if record["skipped"] is not None:
    return
  text, steps = interventions.Text(solution), [*enumerate(solution.steps)]
  yield text.prefix("scored", steps)
  for k, new in zip(record["steps"], record["corrupted"], strict=True):
    if new is not None:
      changed = [*steps[:k], (k, new), *steps[k + 1 :]]
      yield text.prefix(f"scored/{k}", changed)
