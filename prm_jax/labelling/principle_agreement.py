"""How far each principle of a rubric finds the first errors that people find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
import dataclasses
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.evaluation import agreement
from prm_jax.evaluation import tables
from prm_jax.labelling import judge_prompts
from prm_jax.labelling import rubrics
from prm_jax.records import identity

# The row of the labels, which are made of all principles, and that of a judge
# that reads nothing: it always gives the first error that is the most frequent.
# The spaces keep them apart from names of principles.
LABEL, CONSTANT = "the label", "always the same"
# Which solutions count: by whether people find an error in them.
GROUPS = ("all", "with_an_error", "without_error")
_HEADS = ("all", "with an error", "without")


def measured(
  judged: Sequence[schema.Solution], people: Sequence[schema.Solution]
) -> list[dict[str, Any]]:
  """Returns how often each principle has the first error that people have.

  Only solutions count that a judge graded by a rubric and whose first error
  people know. A principle that never finds an error agrees on all solutions
  without one, so these stand apart.

  Args:
    judged: The solutions as a judge with a rubric labels them.
    people: The same solutions as people label them, in any order.

  Returns:
    A row of each principle, of overall, of the labels and of CONSTANT, whose
    first error is each group's most frequent one: its name as `principle`, and
    of each of GROUPS None if it is empty, or `solutions`, and the shares
    `first_error_same` and `first_error_within_one`, each with value and
    interval of 95 %.

  Raises:
    InputError: Two rubrics have other principles, or grades aren't one for each
      step.
  """
  by_id = {s.id: s for s in judged if judge_prompts.GRADED in s.extra}
  pairs = []
  for s in people:
    error = agreement.first_error(agreement.values_of(s))
    if s.id in by_id and by_id[s.id].steps == s.steps and error is not None:
      pairs.append((by_id[s.id], s, error))
  if not pairs:
    return []
  names = rubrics.graded_by(pairs[0][0])
  for solution, *_ in pairs:
    if rubrics.graded_by(solution) != names:
      raise errors.InputError(
        f"solution {solution.id!r}: was graded by other principles than"
        f" {pairs[0][0].id!r}; compare solutions of one rubric"
      )
  rows = []
  for name in (*names, LABEL, CONSTANT):
    row: dict[str, Any] = dict(principle=name)
    for group in GROUPS:
      of = [
        x
        for x in pairs
        if group == "all" or (group == "with_an_error") == (x[2] >= 0)
      ]
      usual = _most_frequent([error for *_, error in of])
      row[group] = _agreement(
        [(_by(name, solution, usual), human) for solution, human, _ in of]
      )
    rows.append(row)
  return rows


def labelled_by(name: str, solution: schema.Solution) -> schema.Solution:
  """Returns a graded solution with the labels of a principle, or of all.

  Args:
    name: The principle's, or LABEL.
    solution: The solution, which a judge with a rubric labels.
  """
  if name == LABEL:
    return solution
  graded = rubrics.of_principle(solution, name)
  assert graded is not None  # It was chosen for that.
  return graded


def _by(name: str, solution: schema.Solution, usual: int) -> schema.Solution:
  """Returns the solution with the labels that a row is about."""
  if name != CONSTANT:
    return labelled_by(name, solution)
  labels = tuple(float(not 0 <= usual <= k) for k in range(len(solution.steps)))
  return dataclasses.replace(solution, labels=labels)


def _most_frequent(first_errors: Sequence[int]) -> int:
  """Returns the most frequent first error, of several the earliest."""
  counts = Counter(first_errors)
  return min(counts, key=lambda x: (-counts[x], x), default=-1)


def _agreement(
  pairs: Sequence[tuple[schema.Solution, schema.Solution]],
) -> dict[str, Any] | None:
  results = agreement.measured(
    agreement.Judgement(
      rater,
      solution.id,
      identity.problem_key(solution.problem),
      agreement.values_of(solution),
    )
    for pair in pairs
    for rater, solution in zip(("judge", "people"), pair)
  )
  if results is None:
    return None
  (pair,) = results["pairs"]
  names = ("first_error_same", "first_error_within_one")
  return dict(solutions=pair["solutions"]) | {x: pair[x] for x in names}


def table(rows: Sequence[dict[str, Any]]) -> tables.Table:
  """Returns a table of how often first errors are the same.

  Args:
    rows: What `measured` returns.
  """
  columns = {
    group: tables.Column(
      head
      if rows[0][group] is None
      else f"{head} ({rows[0][group]['solutions']:,})"
    )
    for group, head in zip(GROUPS, _HEADS)
  }
  return tables.Table(
    columns,
    [(x["principle"], {g: _number(x[g]) for g in GROUPS}) for x in rows],
  )


def _number(results: dict[str, Any] | None) -> tables.Number:
  if results is None:
    return tables.Number(None)
  same = results["first_error_same"]
  return tables.Number(same["value"], *(same["interval"] or ()))
