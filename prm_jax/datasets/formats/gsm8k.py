"""GSM8K: questions with a reference solution, and pools of models' solutions.

Cobbe et al. 2021 (arXiv 2110.14168). One {question, answer} per line: the
answer holds one step per line, with calculator marks such as <<48/2=24>>, and
ends in the line "#### GOLD". That line becomes a last step in words,
"The answer is GOLD", so that the answer is stated in a step that can be
scored. The solution is the reference: its outcome is True and every label 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import re
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.records import fields
from prm_jax.records import record_files
from prm_jax.runtime import files

_MARK = re.compile(r"<<[^<>\n]*>>")
_GOLD = "#### "
_LAST_STEP = "The answer is "


def read(
  path: files.PathLike, *, keep_marks: bool = False
) -> Iterator[schema.Solution]:
  """Yields the reference solution of every question; blank lines are no steps.

  Args:
    path: The file.
    keep_marks: Whether to keep the <<...>> in the steps. Without them the file
      can't be written back letter for letter.
  """
  for where, row in record_files.read_records(path):
    question = fields.field(row, where, "question", str)
    text = fields.field(row, where, "answer", str)
    lines = text.rstrip().split("\n")
    gold = lines[-1].removeprefix(_GOLD).strip()
    if not lines[-1].startswith(_GOLD) or not gold:
      raise errors.InputError(
        f'{where}: "answer" must end in a line "#### GOLD",'
        f" found {lines[-1][:40]!r}"
      )
    steps = (*_steps(lines[:-1], keep_marks), _LAST_STEP + gold)
    yield schema.Solution(
      id=fields.row_id("gsm8k", path, where),
      problem=question,
      steps=steps,
      labels=(1.0,) * len(steps),
      answer=gold,
      outcome=True,
      source="gsm8k",
      extra={"group": fields.group(question)}
      | fields.beyond(row, "question", "answer"),
    )


def check(solution: schema.Solution) -> None:
  """Raises InputError if the form can't hold the solution."""
  _row(solution)


def write(path: files.PathLike, solutions: Iterable[schema.Solution]) -> int:
  """Writes all reference solutions or none; returns their number.

  Steps that hold <<...>> come back the same by read(keep_marks=True) only.

  Raises:
    InputError: the form can't hold the solution: it isn't marked right
      throughout, a step is blank or longer than a line, or the last step
      isn't "The answer is ANSWER".
  """
  return files.write_records(path, map(_row, solutions))


def read_pool(path: files.PathLike) -> Iterator[schema.Solution]:
  """Yields every candidate of a pool: many models' solutions per question.

  Rows are {idx, question, gold, candidates: [{source, text, pred, correct}]}.
  Steps are the non-blank lines of the text, stripped at both ends; answer is
  pred, outcome is correct, source is the candidate's. extra: problem_id (idx),
  reference_answer (gold), group.
  """
  seen: dict[str, str] = {}
  for where, row in record_files.read_records(path):
    question = fields.field(row, where, "question", str)
    index = str(fields.field(row, where, "idx", int, str))
    fields.unique_id(seen, index, where)
    extra = {
      "group": fields.group(question),
      "problem_id": index,
      "reference_answer": fields.field(row, where, "gold", str),
    }
    candidates = fields.field(row, where, "candidates", list)
    for i, candidate in enumerate(candidates):
      at = f'{where}: "candidates"[{i}]'
      text = fields.field(fields.record(candidate, at), at, "text", str)
      lines = [line.strip() for line in text.split("\n")]
      yield schema.Solution(
        id=f"gsm8k_pool/{index}/{i}",
        problem=question,
        steps=_steps(lines, keep_marks=False),
        answer=fields.field(candidate, at, "pred", str, default=None),
        outcome=fields.field(candidate, at, "correct", bool),
        source=fields.field(candidate, at, "source", str),
        extra=dict(extra),
      )


def without_marks(text: str) -> str:
  """Returns a text without its <<...>>."""
  return _MARK.sub("", text)


def _steps(lines: list[str], keep_marks: bool) -> tuple[str, ...]:
  if not keep_marks:
    lines = [without_marks(line) for line in lines]
  return tuple(line for line in lines if line.strip())


def _row(solution: schema.Solution) -> dict[str, Any]:
  def refuse(reason):
    return fields.cannot_hold(solution, reason)

  fields.check_reference(solution, "GSM8K")
  answer = solution.answer or ""
  if not solution.steps or solution.steps[-1] != _LAST_STEP + answer:
    raise refuse(f'the last step must be "{_LAST_STEP}ANSWER"; add it')
  if not answer or answer != answer.strip() or "\n" in answer:
    raise refuse("the answer must be one line without blanks at its ends")
  lines = solution.steps[:-1]
  if any(not line.strip() or "\n" in line for line in lines):
    raise refuse("a step is blank or longer than a line; join or drop lines")
  text = "\n".join([*lines, _GOLD + answer])
  row = {"question": solution.problem, "answer": text}
  return fields.rejoin(solution, row)
