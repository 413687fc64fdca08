"""Math-Shepherd: steps judged by Monte-Carlo completions, as tagged text.

Wang et al. 2024 (arXiv 2312.08935). One {input, label, task} per line. `input`
is the question, a space, and lines "Step 1: ... ки"; `label` is the same text
with + or - in place of each tag. The sign says whether any completion from
there reached the right answer (hard estimation).

A tag is a place where `input` has "ки" and `label` a sign; the same letters in
a question, equal in both texts, are text.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
import re
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.records import fields
from prm_jax.records import record_files
from prm_jax.runtime import files

TAG = "ки"
FIRST_STEP = re.compile(r"[Ss]tep 1:")
_LATER_STEP = re.compile(r"\s*[Ss]tep (?!1:)\d+:")
_ANSWER = "The answer is:"

# A row's problem and its steps.
Cut = tuple[str, list[str]]


def read(
  path: files.PathLike,
  left_out: collections.Counter[str] | None = None,
  *,
  keep_numbers: bool = False,
) -> Iterator[schema.Solution]:
  """Yields every row; labels are 1.0 for +, 0.0 for -.

  The question ends where "Step 1:" begins. A few published questions are broken
  over lines and have tags of their own; those judge no step and are left out.
  Without "Step 1:" the question ends at the last "?" of the first segment. Text
  after the last tag is a step with label None. The answer is what follows "The
  answer is:" in the last step. Nothing is left to complete after it, so the
  last sign is the outcome.

  Args:
    path: The file.
    left_out: Counts "question_labels", signs inside a question, and
      "rows_without_a_cut", whose question has no clear end; without left_out
      the latter raise InputError.
    keep_numbers: Whether to keep "Step 1: " and so on in the steps. They are
      removed only if every step has its number.
  """
  for where, row in record_files.read_records(path):
    segments, labels = _segments(
      fields.field(row, where, "input", str),
      fields.field(row, where, "label", str),
      where,
    )
    parts = known_cut(cut(segments), where, left_out)
    if parts is None:
      continue
    problem, steps = parts
    num_in_question = len(labels) - len(steps)
    if num_in_question and left_out is not None:
      left_out["question_labels"] += num_in_question
    labels = labels[num_in_question:]
    yield schema.Solution(
      id=fields.row_id("math_shepherd", path, where),
      problem=problem,
      steps=tuple(steps if keep_numbers else unnumbered(steps)),
      labels=tuple(labels),
      **_answer_and_outcome(steps, labels),
      source="math_shepherd",
      extra=fields.given(
        group=fields.group(problem),
        task=fields.field(row, where, "task", str, default=None),
      )
      | fields.beyond(row, "input", "label", "task"),
    )


def check(solution: schema.Solution) -> None:
  """Raises InputError if the form can't hold the solution."""
  _row(solution, add_numbers=True)


def write(
  path: files.PathLike,
  solutions: Iterable[schema.Solution],
  *,
  add_numbers: bool = True,
) -> int:
  """Writes all rows or none; returns their number.

  Args:
    path: The file.
    solutions: The solutions.
    add_numbers: Whether to put "Step 1: " and so on before the steps; False for
      steps that were read with keep_numbers.

  Raises:
    InputError: The format can't hold the solution: no step, a label that is
      neither 0 nor 1, a tag or a "Step 1:" where it would be misread.
  """
  return files.write_records(
    path, (_row(solution, add_numbers) for solution in solutions)
  )


def _segments(
  text: str, label: str, where: str
) -> tuple[list[str], list[float | None]]:
  """Returns the texts that end at a tag, and their labels."""
  segments: list[str] = []
  labels: list[float | None] = []
  current, position = "", 0
  parts = text.split(TAG)
  for i, part in enumerate(parts):
    if not label.startswith(part, position):
      raise errors.InputError(
        f'{where}: "label" differs from "input" after {i} tags; it must be the'
        " same text with + or - for each tag"
      )
    current += part
    position += len(part)
    if i == len(parts) - 1:
      break
    sign = label[position : position + 1]
    if sign in ("+", "-"):
      segments.append(current)
      labels.append(1.0 if sign == "+" else 0.0)
      current, position = "", position + 1
    elif label.startswith(TAG, position):
      current, position = current + TAG, position + len(TAG)
    else:
      raise errors.InputError(
        f'{where}: "label" has neither + nor - at tag {i + 1} of "input"'
      )
  if position != len(label):
    raise errors.InputError(f'{where}: "label" is longer than "input"')
  if not segments:
    raise errors.InputError(
      f'{where}: no tag "{TAG}" in "input"; end every step with it'
    )
  if current.strip():
    segments.append(current)
    labels.append(None)
  return segments, labels


def cut(segments: list[str]) -> Cut | None:
  """Returns the problem and the steps, or None if the problem has no clear end.

  Steps lose the line break before them and the space before their tag, no other
  white space.

  Args:
    segments: Texts, each of which ends where a step does.
  """
  for i, segment in enumerate(segments):
    if i and _LATER_STEP.match(segment):
      break
    first = FIRST_STEP.search(segment)
    if first:
      parts = [*segments[:i], segment[: first.start()]]
      steps = [segment[first.start() :], *segments[i + 1 :]]
      problem = "".join(part.removesuffix(" ") for part in parts)
      return problem, _stripped(steps)
  question, mark, first_step = segments[0].rpartition("?")
  if not mark:
    return None
  steps = [first_step.lstrip()] if first_step.strip() else []
  return question + mark, _stripped(steps + segments[1:])


def known_cut(
  parts: Cut | None, where: str, left_out: collections.Counter[str] | None
) -> Cut | None:
  """Returns a row's cut; one without is counted, or raises InputError."""
  if parts is not None:
    return parts
  if left_out is None:
    raise errors.InputError(
      f"{where}: can't tell where the question ends; begin the first step"
      ' with "Step 1: "'
    )
  left_out["rows_without_a_cut"] += 1
  return None


def _stripped(steps: list[str]) -> list[str]:
  return [step.removeprefix("\n").removesuffix(" ") for step in steps]


def unnumbered(steps: list[str]) -> list[str]:
  """Returns the steps without "Step 1: " and so on, if each has its number."""
  numbers = [f"Step {i}:" for i in range(1, len(steps) + 1)]
  if all(f"{s} ".startswith(f"{n} ") for s, n in zip(steps, numbers)):
    return [s[len(n) + 1 :] for s, n in zip(steps, numbers)]
  return steps


def _answer_and_outcome(steps, labels) -> dict[str, Any]:
  if not steps or _ANSWER not in steps[-1]:
    return {}
  answer = steps[-1].rpartition(_ANSWER)[2].strip() or None
  outcome = None if labels[-1] is None else labels[-1] == 1
  return {"answer": answer, "outcome": outcome}


def _row(solution: schema.Solution, add_numbers: bool) -> dict[str, Any]:
  def refuse(reason):
    return fields.cannot_hold(solution, reason)

  steps, labels = solution.steps, solution.labels or ()
  if not steps or any(label not in (0, 1) for label in labels):
    raise refuse(
      "Math-Shepherd's form needs a step, and labels that are 0 or 1; apply a"
      " label policy or drop the solution"
    )
  if len(labels) != len(steps):
    raise refuse("no labels; Math-Shepherd's form needs one per step")
  if any(TAG in text for text in (solution.problem, *steps)):
    raise refuse(f'"{TAG}" in its text would be read as a tag; replace it')
  if FIRST_STEP.search(solution.problem):
    raise refuse('"Step 1:" in the problem would end it; rename it')
  if add_numbers:
    steps = tuple(f"Step {i}: {step}" for i, step in enumerate(steps, 1))
  elif not FIRST_STEP.match(steps[0]):
    raise refuse('the first step doesn\'t begin with "Step 1:"; add numbers')

  def tagged(marks):
    lines = (f"{step} {mark}" for step, mark in zip(steps, marks))
    return f"{solution.problem} " + "\n".join(lines)

  row = fields.given(
    input=tagged([TAG] * len(steps)),
    label=tagged(["+" if label else "-" for label in labels]),
    task=solution.extra.get("task"),
  )
  return fields.rejoin(solution, row)
