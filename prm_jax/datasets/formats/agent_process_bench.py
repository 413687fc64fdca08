"""AgentProcessBench: agents' trajectories, every turn rated by people.

arXiv 2603.14465, for evaluation only. One object per line:

  messages      OpenAI's; the turns of the assistant are the steps
  tools         the declarations, OpenAI's or bare {"name", "description", ...}
  step_labels   {the index of an assistant's message, as a text: -1, 0 or 1}
  final_label   1 if the task is done, -1 if not, 0 if people couldn't say
  question, data_source, answer_text, total_index (0..999), and of some rows
    query_index, sample_index, ground_truth, tool_metrics, task_description

A 1 moves the task forward, a 0 explores or has an unclear effect. An error
counts until it is corrected: later turns that build on it are -1 too, and turns
after the correction aren't. So labels after a first error mean something; a
label policy keeps them by after_first_error = "keep".
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
import re
import reprlib
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.records import fields
from prm_jax.records import jsonl
from prm_jax.records import record_files
from prm_jax.runtime import checks
from prm_jax.runtime import files
from prm_jax.text import messages as messages_lib

_FORM = "agent_process_bench"
_NAMES = (
  *("total_index", "messages", "tools", "step_labels", "final_label"),
  *("answer_text", "data_source"),
)
_OUTCOMES = {1: True, -1: False, 0: None, None: None}
_UNDECIDED = "final_label"


def read(
  path: files.PathLike, left_out: collections.Counter[str] | None = None
) -> Iterator[schema.Solution]:
  """Yields every row; ratings are its step_labels, None for a turn without one.

  ids are "agent_process_bench/TOTAL_INDEX". outcome is whether final_label is
  1; extra has final_label if it is 0, group, and the rest in "fields". The
  problem is the question, or what users say before the first turn.

  Args:
    path: The file.
    left_out: Counts "trajectories_with_arguments_that_are_not_JSON": the agent
      wrote a text that isn't the JSON of an object. Without left_out they raise
      InputError, as every other bad row does.
  """
  seen: dict[str, str] = {}
  for where, row in record_files.read_records(path):
    index = fields.field(row, where, "total_index", int, default=None)
    final = fields.field(row, where, "final_label", int, default=None)
    if final not in _OUTCOMES:
      raise errors.InputError(
        f'{where}: "final_label" is {final}; expected -1, 0 or 1'
      )
    records = fields.messages(row, where)
    try:
      messages = [*messages_lib.read(records, where)]
    except messages_lib.ArgumentsError:
      if left_out is None:
        raise
      left_out["trajectories_with_arguments_that_are_not_JSON"] += 1
      continue
    name = f"{_FORM}/{index}"
    record = dict(
      id=fields.row_id(_FORM, path, where) if index is None else name,
      messages=messages,
      tools=fields.from_text(row, where, "tools"),
      answer=fields.field(row, where, "answer_text", str, default=None),
      outcome=_OUTCOMES[final],
      source=fields.field(row, where, "data_source", str, default=_FORM),
    )
    record["ratings"] = _ratings(row, messages, where)
    question = fields.field(row, where, "question", str, default="")
    if question.strip():
      record["problem"] = question
    own = [x for x in _NAMES if row.get(x) not in fields.EMPTY]
    extra = fields.beyond(row, "messages", *own)
    if final == 0:
      extra[_UNDECIDED] = 0
    solution = jsonl.trajectory_from_record(record, where, **extra)
    fields.unique_id(seen, solution.id, where)
    yield solution


def check(solution: schema.Solution) -> None:
  """Raises InputError if the form can't hold the solution."""
  _row(solution)


def write(path: files.PathLike, solutions: Iterable[schema.Solution]) -> int:
  """Writes all rows or none; returns their number.

  The form has no place for an id that isn't one of its own.

  Raises:
    InputError: A solution is no trajectory, its turns are cut into steps, or a
      label is neither 0 nor 1.
  """
  return files.write_records(path, map(_row, solutions))


def _ratings(
  row: Mapping[str, Any], messages: Sequence[schema.Message], where: str
) -> list[int | None] | None:
  """Returns the rating of each of the assistant's messages."""
  labels = fields.from_text(row, where, "step_labels")
  if labels is None:
    return None
  labels = {
    k: x
    for k, x in fields.record(labels, f'{where}: "step_labels"').items()
    if x is not None
  }
  turns = [str(i) for i, x in enumerate(messages) if x.role == "assistant"]
  for key, label in labels.items():
    if key not in turns:
      raise errors.InputError(
        f'{where}: "step_labels" has {reprlib.repr(key)}, which isn\'t the'
        " index of an assistant's message; these are"
        f" {reprlib.repr([*map(int, turns)])}"
      )
    if not checks.is_a(label, int) or label not in (-1, 0, 1):
      raise errors.InputError(
        f'{where}: "step_labels"[{key}] is {reprlib.repr(label)}; expected -1,'
        " 0 or 1"
      )
  return [labels.get(turn) for turn in turns]


def _row(solution: schema.Solution) -> dict[str, Any]:
  fields.check_whole_turns(solution, "AgentProcessBench's form")
  messages = solution.messages or ()
  ratings = solution.ratings
  if ratings is None and solution.labels is not None:
    if any(x not in (0, 1, None) for x in solution.labels):
      raise fields.cannot_hold(
        solution,
        "AgentProcessBench's form needs labels that are 0 or 1, or ratings;"
        " change them",
      )
    ratings = tuple(
      None if x is None else int(2 * x - 1) for x in solution.labels
    )
  turns = [i for i, x in enumerate(messages) if x.role == "assistant"]
  final = {True: 1, False: -1, None: solution.extra.get(_UNDECIDED)}
  index = re.fullmatch(rf"{_FORM}/(-?\d+)", solution.id)
  values = (
    None if index is None else int(index[1]),
    [messages_lib.record_of(x) for x in messages],
    [dict(x) for x in solution.tools] or None,
    None
    if ratings is None
    else {str(i): x for i, x in zip(turns, ratings) if x is not None},
    final[solution.outcome],
    solution.answer,
    None if solution.source == _FORM else solution.source or None,
  )
  row = fields.given(**dict(zip(_NAMES, values, strict=True)))
  is_told = solution.problem == messages_lib.problem_of(messages)
  question = {} if is_told else dict(question=solution.problem)
  return question | fields.rejoin(solution, row)
