"""How far each principle of a rubric finds the first errors that people find."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prm_jax import schema
from prm_jax.evaluation import agreement
from prm_jax.labelling import judge_prompts
from prm_jax.labelling import rubrics
from prm_jax.records import identity

# The row of the labels, which are made of all principles.
LABEL = "label"
# Which solutions count: by whether people find an error in them.
GROUPS = ("all", "with_an_error", "without_error")


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
    A row of each principle, of overall and of the labels: its name as
    `principle`, and of each of GROUPS None if it is empty, or `solutions`, and
    the shares `first_error_same` and `first_error_within_one`, each with value
    and interval of 95 %.

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
  first = pairs[0][0].extra[judge_prompts.GRADED]["principles"]
  rows = []
  for name in (*first, LABEL):
    row: dict[str, Any] = dict(principle=name)
    for group in GROUPS:
      among = [
        (solution if name == LABEL else _graded(solution, name), by_people)
        for solution, by_people, error in pairs
        if group == "all" or (group == "with_an_error") == (error >= 0)
      ]
      row[group] = _agreement(among)
    rows.append(row)
  return rows


def _graded(solution: schema.Solution, name: str) -> schema.Solution:
  graded = rubrics.of_principle(solution, name)
  assert graded is not None  # It was chosen for that.
  return graded


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


def texts(rows: Sequence[dict[str, Any]]) -> list[str]:
  """Returns the lines of a table.

  Args:
    rows: What `measured` returns.
  """
  numbers = [
    "" if rows[0][x] is None else f" ({rows[0][x]['solutions']:,})"
    for x in GROUPS
  ]
  heads = ("all", "with an error", "without")
  width = max(len(x["principle"]) for x in rows) + 2
  lines = [
    "first errors that are also those of the labels that these replace",
    "",
    " " * width
    + "".join(f"{a + b:>24}" for a, b in zip(heads, numbers)).rstrip(),
  ]
  for row in rows:
    cells = "".join(f"{_text(row[x]):>24}" for x in GROUPS)
    lines.append(f"{row['principle']:<{width}}{cells}")
  return lines


def _text(results: dict[str, Any] | None) -> str:
  if results is None:
    return "-"
  estimate = results["first_error_same"]
  text = f"{estimate['value']:.2f}"
  if estimate["interval"] is None:
    return text
  low, high = estimate["interval"]
  return f"{text} [{low:.2f}, {high:.2f}]"
