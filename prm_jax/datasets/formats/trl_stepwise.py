"""TRL's stepwise supervision: {prompt, completions, labels}, one per line.

Labels are bool (right or wrong) or float, P(correct so far) in [0, 1]. A soft
label stays what it is: 0.9 is not rounded, in either direction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import math
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.records import fields
from prm_jax.records import record_files
from prm_jax.runtime import files

_NAMES = ("prompt", "completions", "labels")


def read(path: files.PathLike) -> Iterator[schema.Solution]:
  """Yields every row. Further fields, an id too, are kept in extra["fields"].

  id: the row's own where it has one.
  """
  seen: dict[str, str] = {}
  for where, row in record_files.read_records(path):
    problem = fields.field(row, where, "prompt", str)
    steps = fields.texts(row, where, "completions")
    labels = fields.field(row, where, "labels", list)
    if len(labels) != len(steps):
      raise errors.InputError(
        f'{where}: {len(labels)} "labels" for {len(steps)} "completions";'
        " give one per completion"
      )
    name = fields.field(row, where, "id", str, int, default=None)
    if name is None:
      name = fields.row_id("stepwise", path, where)
    yield schema.Solution(
      id=fields.unique_id(seen, str(name), where),
      problem=problem,
      steps=steps,
      labels=tuple(
        _label(x, f'{where}: "labels"[{i}]') for i, x in enumerate(labels)
      ),
      source="stepwise",
      extra={"group": fields.group(problem)} | fields.beyond(row, *_NAMES),
    )


def check(solution: schema.Solution) -> None:
  """Raises InputError if the form can't hold the solution."""
  fields.rejoin(solution, dict.fromkeys(_NAMES))
  _known_labels(solution)


def write(path: files.PathLike, solutions: Iterable[schema.Solution]) -> int:
  """Writes all rows or none; returns their number.

  Labels are bool if every label of the file is 0 or 1, else float throughout:
  a column of both types can't be loaded as a table. The form has no place for
  `id`, `answer`, `outcome` and `source`.

  Raises:
    InputError: a step has no label; the form has no word for "unknown".
  """
  solutions = list(solutions)
  labels = [_known_labels(solution) for solution in solutions]
  hard = all(label in (0.0, 1.0) for row in labels for label in row)
  kind = bool if hard else float
  return files.write_records(
    path,
    (
      fields.rejoin(
        solution,
        {
          "prompt": solution.problem,
          "completions": list(solution.steps),
          "labels": [kind(label) for label in row],
        },
      )
      for solution, row in zip(solutions, labels)
    ),
  )


def _label(value: Any, at: str) -> float:
  # 0 and 1 are also met as integers, where a table turned bool into int.
  is_whole = isinstance(value, int) and value in (0, 1)
  is_share = isinstance(value, float) and 0 <= value <= 1
  if not (is_whole or is_share):
    raise errors.InputError(
      f"{at} is {value!r}; expected true, false or a number in [0, 1]"
    )
  return float(value)


def _known_labels(solution: schema.Solution) -> list[float]:
  labels = [x for x in solution.labels or () if x is not None]
  if solution.labels is None or len(labels) != len(solution.steps):
    raise fields.cannot_hold(
      solution,
      "a step has no label, and TRL's form needs all; cut the solution there,"
      " or let prm-jax data convert --fill do so",
    )
  if not all(math.isfinite(x) and 0 <= x <= 1 for x in labels):
    raise fields.cannot_hold(solution, "a label lies outside [0, 1]; change it")
  return labels
