r"""MATH: competition problems with a worked solution each, and MATH-500.

Hendrycks et al. 2021 (arXiv 2103.03874): a folder per subject of files with
one object each, {problem, level, type, solution}. MATH-500, the test problems
that PRM800K left out of training, is JSON Lines of {problem, solution, answer,
subject, level, unique_id}; level is a number there or "Level 2".

Steps are the paragraphs of the solution, which one blank line separates. The
solution is the reference: its outcome is True and every label 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import pathlib
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.records import fields
from prm_jax.records import record_files
from prm_jax.runtime import files
from prm_jax.text import answers

_PARAGRAPH = "\n\n"
_OWN = ("problem", "solution", "answer", "unique_id")
# Kept as they are: some files name the subject `type`.
_KNOWN = {"level": (str, int), "type": (str,), "subject": (str,)}


def read(path: files.PathLike) -> Iterator[schema.Solution]:
  r"""Yields the reference solution of every problem of a file or a folder.

  A folder is read with the folders in it, in the order of their names.
  id: unique_id, or in a folder the file's path in it; else FORMAT/FILE:N.
  answer: the row's own, else the last \boxed{} of the solution. extra: group,
  level, type and subject where the row has them.
  """
  seen: dict[str, str] = {}
  for where, name, row in _rows(path):
    problem = fields.field(row, where, "problem", str)
    text = fields.field(row, where, "solution", str)
    steps = tuple(text.split(_PARAGRAPH))
    if not all(step.strip() for step in steps):
      raise errors.InputError(
        f'{where}: "solution" has a blank paragraph; leave one blank line'
        " between two paragraphs and none at the ends"
      )
    name = fields.field(row, where, "unique_id", str, default=name)
    answer = fields.field(row, where, "answer", str, default=None)
    known = {
      key: fields.field(row, where, key, *kinds, default=None)
      for key, kinds in _KNOWN.items()
    }
    yield schema.Solution(
      id=fields.unique_id(seen, name, where),
      problem=problem,
      steps=steps,
      labels=(1.0,) * len(steps),
      answer=answers.extract(text) if answer is None else answer,
      outcome=True,
      source="math",
      extra={"group": fields.group(problem)}
      | fields.given(**known)
      | fields.beyond(row, *_OWN, *_KNOWN),
    )


def check(solution: schema.Solution) -> None:
  """Raises InputError if the form can't hold the solution."""
  _row(solution)


def write(path: files.PathLike, solutions: Iterable[schema.Solution]) -> int:
  """Writes all reference solutions as JSON Lines or none; returns their number.

  The form has no place for `source`.

  Raises:
    InputError: the form can't hold the solution: it isn't marked right
      throughout, or a step is blank or would come back as two.
  """
  return files.write_records(path, map(_row, solutions))


def _rows(path) -> Iterator[tuple[str, str, dict[str, Any]]]:
  """Yields (where, an id for want of a better one, row)."""
  folder = pathlib.Path(path)
  if not folder.is_dir():
    for where, row in record_files.read_records(path):
      yield where, fields.row_id("math", path, where), row
    return
  paths = sorted(folder.rglob("*.json"))
  if not paths:
    raise errors.InputError(
      f"{path}: no .json file in it; give MATH's folder of subjects"
    )
  for file in paths:
    row = files.read_json(file)
    yield str(file), file.relative_to(folder).as_posix(), row


def _row(solution: schema.Solution) -> dict[str, Any]:
  fields.check_reference(solution, "MATH")
  text = _PARAGRAPH.join(solution.steps)
  blank = not all(step.strip() for step in solution.steps)
  if blank or tuple(text.split(_PARAGRAPH)) != solution.steps:
    raise fields.cannot_hold(
      solution,
      "there is no step, or one is blank, holds a blank line or ends in a line"
      " break; join or drop lines",
    )
  if solution.answer is None and answers.extract(text) is not None:
    raise fields.cannot_hold(
      solution, "the text states an answer; give it as the solution's answer"
    )
  row = {"problem": solution.problem, "solution": text}
  row |= fields.given(answer=solution.answer)
  row |= {key: solution.extra[key] for key in _KNOWN if key in solution.extra}
  return fields.rejoin(solution, row | {"unique_id": solution.id})
