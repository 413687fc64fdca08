"""MATH-APS: Monte-Carlo values of prefixes, as OmegaPRM's search leaves them.

Luo et al. 2024 (arXiv 2406.06592), in the form of OpenR's preprocessing. One
{question, final_answer, reasoning_steps, question_id} per line, and
reasoning_steps in one of two forms:

  a list of {solution_prefix, mc_value}: every searched prefix as one text, the
    question, a blank line, and what was written so far. Where a step ends is
    known only where the list has the shorter prefix too.
  a tree {text, mc_value, children} from the question down: a node is a step.

mc_value is the share of completions from there that were right. A prefix that
the search met twice stands there twice, with two values.

Both are given as one solution per prefix: its steps, of which only the last
has a label. So every value counts once, as in the paper's pointwise loss, and
rows packed as trees store the shared steps once. The value of the question
alone belongs to no step: extra["problem_value"].
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import itertools
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.records import fields
from prm_jax.records import record_files
from prm_jax.runtime import files

_BREAK = "\n\n"
# A step is two levels of JSON, and its readers give up at about a thousand.
_MAX_DEPTH = 200
_OWN = ("question", "final_answer", "reasoning_steps")
# A step with its value, or None, where nobody gave it one.
_Node = tuple[tuple[str, ...], float | None]


def read(path: files.PathLike) -> Iterator[schema.Solution]:
  """Yields the prefixes of every row, in the file's order; rows of both forms.

  In a list, a step begins behind the two line breaks that end the longest
  shorter prefix; further blanks are the step's. ids are
  "math_aps/FILE:N/INDEX", counted from the question, 0. extra: group,
  problem_value and reference_answer (final_answer) where the row has them.
  """
  for where, row in record_files.read_records(path):
    problem = fields.field(row, where, "question", str)
    content = fields.field(row, where, "reasoning_steps", list, dict)
    nodes = list(
      _listed(content, problem, where)
      if isinstance(content, list)
      else _walked(content, problem, where)
    )
    values = [value for steps, value in nodes if not steps]
    if len(values) > 1:
      raise errors.InputError(
        f'{where}: "reasoning_steps" gives {len(values)} values to the question'
        " alone; give one"
      )
    answer = fields.field(row, where, "final_answer", str, default=None)
    shared = fields.given(
      group=fields.group(problem),
      reference_answer=answer,
      problem_value=values[0] if values else None,
    ) | fields.beyond(row, *_OWN)
    name = fields.row_id("math_aps", path, where)
    for i, (steps, value) in enumerate(nodes):
      if steps:
        yield schema.Solution(
          id=f"{name}/{i}",
          problem=problem,
          steps=steps,
          labels=(None,) * (len(steps) - 1) + (value,),
          source="math_aps",
          extra=dict(shared),
        )


def check(solution: schema.Solution) -> None:
  """Raises InputError if the form can't hold the solution.

  Where its steps end may be told by its neighbours: that only `write` sees.
  """
  if not solution.labels or solution.labels[-1] is None:
    raise fields.cannot_hold(
      solution,
      "its last step has no label, and a list of prefixes holds labelled"
      " ones only; cut the solution behind its last label",
    )
  _whole_row(solution, [])


def write(path: files.PathLike, solutions: Iterable[schema.Solution]) -> int:
  """Writes lists of prefixes, all or nothing; returns the number of rows.

  Neighbours that share problem, reference_answer, problem_value and "fields"
  become one row. A solution with several labels becomes a prefix for each; so
  labels come back the same, but every one in a solution of its own. The form
  has no place for `id`, `answer`, `outcome` and `source`.

  Raises:
    InputError: a prefix would come back with other steps: where one ends is
      only told by a shorter prefix with a label.
  """
  return files.write_records(path, map(_list_row, _rows(solutions)))


def write_trees(
  path: files.PathLike, solutions: Iterable[schema.Solution]
) -> int:
  """Writes trees, all or nothing; returns the number of rows.

  As `write`, but steps need no labels: the end of every step is told. A node
  stands below the latest solution that it goes on from.

  Raises:
    InputError: there is no step, or too many to be nested.
  """
  return files.write_records(path, map(tree_row, _rows(solutions)))


def tree_row(solutions: Iterable[schema.Solution]) -> dict[str, Any]:
  """Returns the row, as a tree, of solutions of one problem."""
  solutions = list(solutions)
  root = _node(solutions[0].problem, solutions[0].extra.get("problem_value"))
  path: list[dict[str, Any]] = []
  for solution in solutions:
    steps = solution.steps
    labels = solution.labels or (None,) * len(steps)
    if not 1 <= len(steps) <= _MAX_DEPTH:
      raise fields.cannot_hold(
        solution,
        f"no step or more than {_MAX_DEPTH}; a tree can't hold it: leave it out",
      )
    shared = 0
    # A step with a label is a node of its own: no value counts for two.
    for node, step, label in zip(path, steps[:-1], labels):
      if node["text"] != step or label is not None:
        break
      shared += 1
    del path[shared:]
    for step, label in list(zip(steps, labels))[shared:]:
      node = _node(step, label)
      (path[-1] if path else root)["children"].append(node)
      path.append(node)
  return _whole_row(solutions[0], root)


def _rows(solutions) -> Iterator[list[schema.Solution]]:
  """Yields the solutions that make a row."""

  def row(solution):
    names = ("reference_answer", "problem_value", "fields")
    return solution.problem, [solution.extra.get(name) for name in names]

  for _, members in itertools.groupby(solutions, row):
    yield list(members)


def _listed(content, problem, where) -> Iterator[_Node]:
  """Yields the steps and the value of each prefix of a list."""
  entries = []
  for i, entry in enumerate(content):
    at = f"{where}: reasoning_steps[{i}]"
    prefix = fields.field(fields.record(entry, at), at, "solution_prefix", str)
    if prefix != problem and not prefix.startswith(problem + _BREAK):
      raise errors.InputError(
        f'{at}: "solution_prefix" must begin with the question and a blank line'
      )
    entries.append((prefix, _value(entry, at)))
  known = {prefix for prefix, _ in entries}
  for prefix, value in entries:
    yield _steps(prefix, len(problem), known), value


def _steps(prefix: str, start: int, known: set[str]) -> tuple[str, ...]:
  """Returns the steps of a prefix: its text between the known ones in it."""
  if len(prefix) == start:
    return ()
  start += len(_BREAK)
  steps = []
  end = prefix.find(_BREAK, start)
  while end >= 0:
    if prefix[:end] in known:
      steps.append(prefix[start:end])
      start = end = end + len(_BREAK)
    else:
      end += 1
    end = prefix.find(_BREAK, end)
  return (*steps, prefix[start:])


def _walked(root, problem, where) -> Iterator[_Node]:
  """Yields the steps and the value of each node of a tree, parents first."""
  stack: list[tuple[Any, tuple[str, ...], str]] = [(root, (), "")]
  while stack:
    node, above, name = stack.pop()
    at = f"{where}: reasoning_steps{name}"
    text = fields.field(fields.record(node, at), at, "text", str)
    if not name and text != problem:
      raise errors.InputError(
        f'{at}: "text" of the root must be the question; put it above'
      )
    steps = (*above, text) if name else ()
    value = _value(node, at, default=None)
    children = fields.field(node, at, "children", list, default=[])
    # What goes on from a node without a value holds all that it says.
    if value is not None or not children:
      yield steps, value
    stack += [
      (child, steps, f"{name}.children[{i}]")
      for i, child in reversed(list(enumerate(children)))
    ]


def _value(record, at, **default: None) -> float | None:
  value = fields.field(record, at, "mc_value", int, float, **default)
  if value is not None and not 0 <= value <= 1:
    raise errors.InputError(
      f'{at}: "mc_value" is {value}; expected a share in [0, 1]'
    )
  return None if value is None else float(value)


def _list_row(solutions: Iterable[schema.Solution]) -> dict[str, Any]:
  """Returns the row, as a list, of solutions of one problem."""
  solutions = list(solutions)
  problem = solutions[0].problem
  value = solutions[0].extra.get("problem_value")
  entries = [] if value is None else [(problem, value)]
  labelled: list[tuple[schema.Solution, tuple[str, ...]]] = []
  for solution in solutions:
    check(solution)
    for i, label in enumerate(solution.labels or (), 1):
      if label is not None:
        steps = solution.steps[:i]
        entries.append((_BREAK.join([problem, *steps]), label))
        labelled.append((solution, steps))
  known = {prefix for prefix, _ in entries}
  for solution, steps in labelled:
    prefix = _BREAK.join([problem, *steps])
    if _steps(prefix, len(problem), known) != steps:
      raise fields.cannot_hold(
        solution,
        "its steps would come back cut otherwise: a list of prefixes needs a"
        " label on every step, and no blank line that looks like an end; write"
        " math_aps_tree",
      )
  content = [{"solution_prefix": text, "mc_value": x} for text, x in entries]
  return _whole_row(solutions[0], content)


def _whole_row(solution: schema.Solution, content: Any) -> dict[str, Any]:
  row = fields.given(
    question=solution.problem,
    final_answer=solution.extra.get("reference_answer"),
    reasoning_steps=content,
  )
  return fields.rejoin(solution, row)


def _node(text: str, value: float | None) -> dict[str, Any]:
  return {"text": text, "mc_value": value, "children": []}
