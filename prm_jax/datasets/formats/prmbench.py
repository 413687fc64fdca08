"""PRMBench: solutions with errors put in by a model, of nine classes.

Song et al. 2025 (arXiv 2501.03124), for evaluation only. One object per line:

  original_question, original_process  a problem and a right solution of it
  modified_question, modified_process  the same with the error in it: what is
    scored. The problem differs only where its change is the error.
  error_steps     the 1-based wrong steps of modified_process; none in the
    class multi_solutions, whose solutions are right in another way
  modified_steps  the 1-based steps that were changed; not all are wrong
  idx, classification  together the name of a row; classification is the
    class, spelled as published
  question, reason, and of some rows ground_truth and original_response  the
    problem as PRM800K prints it, what was changed and why, the answer, the
    text that multi_solutions' steps were cut from

Unlike elsewhere a label judges its step alone, not all so far: a step behind
an error that is not itself wrong has label 1.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
import dataclasses
from typing import Any

from prm_jax import errors as errors_lib
from prm_jax import schema
from prm_jax.records import fields
from prm_jax.records import record_files
from prm_jax.runtime import files

# Each category and its classes, in the order of the paper's tables.
CATEGORIES: dict[str, tuple[str, ...]] = {
  "simplicity": ("redundency", "circular"),
  "soundness": (
    "counterfactual",
    "step_contradiction",
    "domain_inconsistency",
    "confidence",
  ),
  "sensitivity": ("missing_condition", "deception", "multi_solutions"),
}
CLASSES = tuple(name for names in CATEGORIES.values() for name in names)
_WITH_CONTROLS = "redundency"
_NAMES = (
  "idx",
  "classification",
  "original_question",
  "original_process",
  "modified_question",
  "modified_process",
  "error_steps",
)


def read(
  path: files.PathLike, left_out: collections.Counter[str] | None = None
) -> Iterator[schema.Solution]:
  """Yields the modified process of every row: labels are 0 at its error steps.

  ids are "prmbench/CLASS/IDX". extra has group (of the modified problem),
  classification, problem_id (idx, which rows of several classes share),
  original ({"problem", "steps"}, see `original`), and the rest in "fields".

  Args:
    path: The file.
    left_out: Counts "repeated_rows", whose class and idx an earlier row had,
      and "error_steps_beyond_the_end", which mark no step. The benchmark's own
      evaluation ignores both. Without left_out they raise InputError.
  """
  seen: dict[str, str] = {}
  for where, row in record_files.read_records(path):
    kind = fields.field(row, where, "classification", str)
    if kind not in CLASSES:
      raise errors_lib.InputError(
        f'{where}: "classification" is {kind!r}; expected one of'
        f" {', '.join(CLASSES)}"
      )
    index = fields.field(row, where, "idx", str)
    name = f"prmbench/{kind}/{index}"
    if left_out is not None and name in seen:
      left_out["repeated_rows"] += 1
      continue
    problem = fields.field(row, where, "modified_question", str)
    steps = fields.texts(row, where, "modified_process")
    original = {
      "problem": fields.field(row, where, "original_question", str),
      "steps": list(fields.texts(row, where, "original_process")),
    }
    yield schema.Solution(
      id=fields.unique_id(seen, name, where),
      problem=problem,
      steps=steps,
      labels=_labels(row, where, len(steps), left_out),
      source="prmbench",
      extra={
        "group": fields.group(problem),
        "classification": kind,
        "problem_id": index,
        "original": original,
      }
      | fields.beyond(row, *_NAMES),
    )


def original(solution: schema.Solution) -> schema.Solution:
  """Returns the right solution that a row was made from: every label is 1.

  The benchmark scores those of the class redundency as its controls.
  """
  problem = solution.extra["original"]["problem"]
  steps = tuple(solution.extra["original"]["steps"])
  return dataclasses.replace(
    solution,
    id=f"prmbench/correct/{solution.extra['problem_id']}",
    problem=problem,
    steps=steps,
    labels=(1.0,) * len(steps),
    extra={
      "group": fields.group(problem),
      "classification": "correct",
      "problem_id": solution.extra["problem_id"],
    },
  )


def with_controls(
  solutions: Iterable[schema.Solution],
) -> Iterator[schema.Solution]:
  """Yields the solutions, then the controls that the benchmark scores too.

  They are the right solutions that the rows of the class redundency were made
  from, each once.
  """
  controls: dict[str, schema.Solution] = {}
  for solution in solutions:
    if solution.extra["classification"] == _WITH_CONTROLS:
      control = original(solution)
      controls[control.id] = control
    yield solution
  yield from controls.values()


def check(solution: schema.Solution) -> None:
  """Raises InputError if the form can't hold the solution."""
  _row(solution)


def write(path: files.PathLike, solutions: Iterable[schema.Solution]) -> int:
  """Writes all rows or none; returns their number.

  The form has no place for `answer`, `outcome` and `source`; an id is made
  of classification and problem_id.

  Raises:
    InputError: extra lacks classification, problem_id or original, or a label
      is neither 0 nor 1.
  """
  return files.write_records(path, map(_row, solutions))


def _labels(row, where, num_steps, left_out) -> tuple[float, ...]:
  labels = [1.0] * num_steps
  errors = fields.field(row, where, "error_steps", list)
  for i, step in enumerate(errors):
    if not isinstance(step, int) or isinstance(step, bool):
      raise errors_lib.InputError(
        f'{where}: "error_steps"[{i}] must be int, found {type(step).__name__}'
      )
    if 1 <= step <= num_steps:
      labels[step - 1] = 0.0
    elif left_out is None:
      raise errors_lib.InputError(
        f'{where}: "error_steps"[{i}] is {step} of {num_steps} steps; give a'
        " 1-based step"
      )
    else:
      left_out["error_steps_beyond_the_end"] += 1
  return tuple(labels)


def _row(solution: schema.Solution) -> dict[str, Any]:
  extra = solution.extra
  original = extra.get("original")
  if (
    extra.get("classification") not in CLASSES
    or not isinstance(extra.get("problem_id"), str)
    or not isinstance(original, dict)
    or not {"problem", "steps"} <= original.keys()
  ):
    raise fields.cannot_hold(
      solution,
      "PRMBench's form needs extra classification, problem_id and original"
      ' {"problem", "steps"}; only its own rows have them',
    )
  labels = solution.labels
  if labels is None or any(x not in (0, 1) for x in labels):
    raise fields.cannot_hold(
      solution, "PRMBench's form needs labels that are 0 or 1; change them"
    )
  values = (
    extra["problem_id"],
    extra["classification"],
    original["problem"],
    list(original["steps"]),
    solution.problem,
    list(solution.steps),
    [i for i, label in enumerate(labels, 1) if label == 0],
  )
  return fields.rejoin(solution, dict(zip(_NAMES, values)))
