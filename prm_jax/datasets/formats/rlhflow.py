"""RLHFlow: Monte-Carlo labelled steps as a chat, to train a chat model on.

Xiong et al. 2024, math-rm of github.com/RLHFlow/RLHF-Reward-Modeling. One
{conversations: [{role, content}, ...]} per line: a user's turn is a step, the
first one the question, a space and the first step; the assistant's turn after
it is + if any of 16 completions from there was right, else -.

Two sets have this form. Mistral's steps begin with "Step 1: " and so on, so
that the question's end is known. DeepSeek's do not: there the question ends
at the only "?" of the first turn, or nobody can tell.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.datasets.formats import math_shepherd
from prm_jax.records import fields
from prm_jax.records import record_files
from prm_jax.runtime import files
from prm_jax.text import answers

_SIGNS = {"+": 1.0, "-": 0.0}


def read(
  path: files.PathLike,
  left_out: collections.Counter[str] | None = None,
  *,
  keep_numbers: bool = False,
  problems: Collection[str] = (),
) -> Iterator[schema.Solution]:
  """Yields every conversation; labels are 1.0 for +, 0.0 for -.

  A last step without an answer has label None. The answer is what the last step
  states. Nothing is left to complete after it, so its sign is the outcome.

  Args:
    path: The file.
    left_out: Counts "rows_without_a_cut", whose question has no clear end;
      without left_out they raise InputError.
    keep_numbers: Whether to keep "Step 1: " and so on in the steps. They are
      removed only if every step has its number.
    problems: Texts of problems; a first turn that begins with one of them is
      cut there.
  """
  known = frozenset(problems)
  lengths = sorted({len(problem) for problem in known}, reverse=True)
  for where, row in record_files.read_records(path):
    turns, labels = _turns(row, where)
    parts = _cut_known(turns, known, lengths) or _cut(turns)
    parts = math_shepherd.known_cut(parts, where, left_out)
    if parts is None:
      continue
    problem, steps = parts
    answer = answers.extract(steps)
    known_outcome = answer is not None and labels[-1] is not None
    yield schema.Solution(
      id=fields.row_id("rlhflow", path, where),
      problem=problem,
      steps=tuple(steps if keep_numbers else math_shepherd.unnumbered(steps)),
      labels=tuple(labels),
      answer=answer,
      outcome=labels[-1] == 1 if known_outcome else None,
      source="rlhflow",
      extra={"group": fields.group(problem)}
      | fields.beyond(row, "conversations"),
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
  """Writes all conversations or none; returns their number.

  The format has no place for `id`, `answer`, `outcome` and `source`.

  Args:
    path: The file.
    solutions: The solutions.
    add_numbers: Whether to put "Step 1: " and so on before the steps, as in
      Mistral's set; False for steps that were read with keep_numbers.

  Raises:
    InputError: The format can't hold the solution: no step, a label that is
      neither 0 nor 1 (the last one may be None), or a "Step 1:" or white space
      where it would be misread.
  """
  return files.write_records(
    path, (_row(solution, add_numbers) for solution in solutions)
  )


def _turns(row, where) -> tuple[list[str], list[float | None]]:
  """Returns the texts of the user's turns, and a label for each."""
  turns = fields.field(row, where, "conversations", list)
  texts: list[str] = []
  labels: list[float | None] = []
  for i, turn in enumerate(turns):
    at = f'{where}: "conversations"[{i}]'
    expected = "assistant" if i % 2 else "user"
    role = fields.field(fields.record(turn, at), at, "role", str)
    if role != expected:
      raise errors.InputError(
        f'{at}: "role" is {role!r}; expected {expected!r}: a step, then its'
        " sign"
      )
    text = fields.field(turn, at, "content", str)
    if expected == "user":
      texts.append(text)
      labels.append(None)
    elif text not in _SIGNS:
      raise errors.InputError(
        f'{at}: "content" is {text[:40]!r}; expected "+" or "-"'
      )
    else:
      labels[-1] = _SIGNS[text]
  if not texts:
    raise errors.InputError(f'{where}: "conversations" is empty; give a step')
  return texts, labels


def _cut(turns: list[str]) -> math_shepherd.Cut | None:
  cut = math_shepherd.cut(turns)
  numbered = cut is not None and math_shepherd.FIRST_STEP.match(
    next(iter(cut[1]), "")
  )
  # Of several "?" one may be the first step's.
  if cut is None or not (numbered or turns[0].count("?") == 1):
    return None
  # A question that fills a turn would leave a sign without a step.
  return cut if len(cut[1]) == len(turns) else None


def _cut_known(turns, known, lengths) -> math_shepherd.Cut | None:
  first = turns[0]
  for length in lengths:
    if first[:length] in known and first[length : length + 1].isspace():
      return first[:length], [first[length + 1 :], *turns[1:]]
  return None


def _row(solution: schema.Solution, add_numbers: bool) -> dict[str, Any]:
  problem, steps, labels = solution.problem, solution.steps, solution.labels
  if not steps or labels is None:
    raise fields.cannot_hold(
      solution, "no step or no labels; RLHFlow's form needs both"
    )
  signs = [*labels[:-1], 1 if labels[-1] is None else labels[-1]]
  if any(label not in (0, 1) for label in signs):
    raise fields.cannot_hold(
      solution,
      "RLHFlow's form needs labels that are 0 or 1; apply a label policy or"
      " drop the solution",
    )
  if add_numbers:
    steps = tuple(f"Step {i}: {step}" for i, step in enumerate(steps, 1))
  turns = [f"{problem} {steps[0]}", *steps[1:]]
  if _cut(turns) != (problem, list(steps)):
    raise fields.cannot_hold(
      solution,
      'a "Step 1:" or a blank at an end would be misread, or the first step'
      ' has no "Step 1:"; rename or strip it',
    )
  conversations = []
  for turn, label in zip(turns, labels):
    conversations.append({"role": "user", "content": turn})
    if label is not None:
      sign = "+" if label else "-"
      conversations.append({"role": "assistant", "content": sign})
  return fields.rejoin(solution, {"conversations": conversations})
