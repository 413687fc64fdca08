"""Files of step scores that also have the first error of each solution.

Published scores come so, without the texts of the solutions: {"id", "label",
a list of scores}, perhaps with "subset", "num_steps", "steps", "problem" and
"final_answer_correct". What is missing isn't measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import pathlib
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.jobs import step_scores
from prm_jax.records import fields
from prm_jax.runtime import files


def read(
  path: files.PathLike, field: str | None = None
) -> dict[str, list[schema.Solution]]:
  """Returns the solutions of each subset that a file has the scores of.

  Args:
    path: The file. Records without "subset" are of the subset that the file is
      named after.
    field: The field that has the scores.

  Returns:
    The solutions; steps without a text are empty, and a solution without its
    problem counts as of its own.

  Raises:
    InputError: There is no record, a label is missing or out of range, or
      scores.read_records refuses a record.
  """
  name_of_file = pathlib.Path(path).name.partition(".")[0]
  subsets: dict[str, list[schema.Solution]] = {}
  for where, identity, record, row in step_scores.read_records(path, field):
    texts = isinstance(record.get("steps"), list)
    solution = schema.Solution(
      identity,
      _optional(record, where, "problem", str) or identity,
      fields.texts(record, where, "steps") if texts else ("",) * len(row),
      labels=_labels(record, where, len(row)),
      outcome=_optional(record, where, "final_answer_correct", bool),
    )
    subset = _optional(record, where, "subset", str) or name_of_file
    subsets.setdefault(subset, []).append(solution)
  if not subsets:
    raise errors.InputError(f"{path}: no scores")
  return subsets


def have_texts(solutions: Sequence[schema.Solution]) -> bool:
  """Returns whether a step of the solutions has a text."""
  return any(step for s in solutions for step in s.steps)


def _optional(
  record: Mapping[str, Any], where: str, name: str, kind: type
) -> Any:
  return fields.field(record, where, name, kind, default=None)


def _labels(
  record: Mapping[str, Any], where: str, num_steps: int
) -> tuple[float | None, ...]:
  """Returns what a record's first wrong step says of all its steps."""
  if record.get("label") is None:
    raise errors.InputError(
      f'{where}: has no "label", the first wrong step from 0 or -1 for none; add'
      " it, or give `input`, the files with the labels"
    )
  return fields.labels_of(record, where, num_steps)
