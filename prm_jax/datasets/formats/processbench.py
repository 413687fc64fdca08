"""ProcessBench: real solutions with the index of the first wrong step.

Zheng et al. 2024 (arXiv 2412.06559). One JSON array, or one object per line,
of {id, generator, problem, steps, final_answer_correct, label}; label is the
0-based first wrong step, -1 if there is none. The steps after the first error
were not judged: their labels are None. It is for evaluation only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.records import fields
from prm_jax.records import record_files
from prm_jax.runtime import files

_NAMES = (
  "id",
  "generator",
  "problem",
  "steps",
  "final_answer_correct",
  "label",
)


def read(path: files.PathLike) -> Iterator[schema.Solution]:
  """Yields every row; outcome is final_answer_correct.

  extra: generator (the model that wrote the solution), group, and in "fields"
  whatever else the row holds.
  """
  seen: dict[str, str] = {}
  for where, row in record_files.read_records(path):
    problem = fields.field(row, where, "problem", str)
    steps = fields.texts(row, where, "steps")
    name = str(fields.field(row, where, "id", str, int))
    yield schema.Solution(
      id=fields.unique_id(seen, name, where),
      problem=problem,
      steps=steps,
      labels=labels_of(row, where, len(steps)),
      outcome=fields.field(
        row, where, "final_answer_correct", bool, default=None
      ),
      source="processbench",
      extra=fields.given(
        group=fields.group(problem),
        generator=fields.field(row, where, "generator", str, default=None),
      )
      | fields.beyond(row, *_NAMES),
    )


def check(solution: schema.Solution) -> None:
  """Raises InputError if the form can't hold the solution."""
  _row(solution)


def write(path: files.PathLike, solutions: Iterable[schema.Solution]) -> int:
  """Writes all rows or none; returns their number.

  A path that ends in .json becomes one indented array, as published; any
  other one JSON Lines. The form has no place for `answer` and `source`.

  Raises:
    InputError: labels are not exactly "right up to the first error, then
      unknown", which is all that one index can say.
  """
  rows = [_row(solution) for solution in solutions]
  if str(path).removesuffix(".gz").endswith(".json"):
    files.write_json(path, rows)
    return len(rows)
  return files.write_records(path, rows)


def labels_of(
  row: Mapping[str, Any], where: str, num_steps: int
) -> tuple[float | None, ...]:
  """Returns the labels that a row's first wrong step, or -1, stands for.

  Args:
    row: The row.
    where: Its place.
    num_steps: The number of its steps.

  Raises:
    InputError: The label is no number of a step.
  """
  label = fields.field(row, where, "label", int)
  if not -1 <= label < num_steps:
    raise errors.InputError(
      f'{where}: "label" is {label} for {num_steps} steps; give the 0-based'
      " first wrong step, or -1 for none"
    )
  return fields.labels_until(label, num_steps)


def _row(solution: schema.Solution) -> dict[str, Any]:
  labels = solution.labels
  if labels is None:
    raise fields.cannot_hold(
      solution,
      "no labels; ProcessBench needs one per step up to the first error",
    )
  label = schema.first_error(labels)
  end = len(labels) if label < 0 else label
  if (
    any(x != 1 for x in labels[:end])
    or any(x != 0 for x in labels[end : end + 1])
    or any(x is not None for x in labels[end + 1 :])
  ):
    raise fields.cannot_hold(
      solution,
      "ProcessBench can only say 1 up to the first error, 0 there and null"
      " after it; change the labels to that form",
    )
  values = (
    solution.id,
    solution.extra.get("generator"),
    solution.problem,
    list(solution.steps),
    solution.outcome,
    label,
  )
  return fields.rejoin(solution, dict(zip(_NAMES, values)))
