"""Judgements as solutions with ratings, and preferences: what is exported.

A solution has the ratings of one person, whose name is in its extra. Several
people's are as many solutions, which datasets/annotators finds and merges.
`datasets/formats` writes them as PRM800K's rows and in the other forms.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import Any

from prm_jax import schema
from prm_jax.people import judgements
from prm_jax.records import fields


def solutions(
  item: judgements.Item,
  state: judgements.State,
  annotator: str,
  provenance: Mapping[str, Any],
) -> list[schema.Solution]:
  """Returns what a person says of an item, as solutions with ratings.

  Args:
    item: The item, not one of `pairs`.
    state: What the person says of it.
    annotator: The person.
    provenance: What else the extra says, such as how long it took.

  Returns:
    Of one solution the same with ratings; of `alternatives` the path and each
    rated alternative that wasn't taken, as PRM800K's reader gives a row. None of
    an item that is open or wasn't judged.
  """
  if state.reason is None or state.reason in judgements.NOT_JUDGED:
    return []
  extra = {
    **provenance,
    schema.ANNOTATOR: annotator,
    "finish_reason": state.reason,
  }
  if item.task == "alternatives":
    # In PRM800K's rows "found_error" says that the path ends in the error.
    extra["finish_reason"] = judgements.SOLUTION
    if state.reason == judgements.FOUND_ERROR:
      extra["finish_reason"] = "no_way_on"
    return _tree(item, state, annotator, extra)
  (solution,) = item.solutions
  ratings = tuple(state.rating(i) for i in range(len(solution.steps)))
  flags = sorted(step for step, _ in state.flags)
  split = (
    dict(flagged=True, flagged_steps=flags) if flags else dict(flagged=False)
  )
  return [
    dataclasses.replace(
      solution,
      id=f"{solution.id}/{annotator}",
      labels=None,
      ratings=ratings,
      extra={**solution.extra, **extra, **split},
    )
  ]


def preference(
  item: judgements.Item, state: judgements.State, annotator: str
) -> dict[str, Any] | None:
  """Returns which of two solutions a person prefers, as a record.

  Args:
    item: An item of `pairs`.
    state: What the person says of it.
    annotator: The person.

  Returns:
    The ids and the texts of both; None if neither is preferred, or nothing is
    said.
  """
  if state.reason != judgements.SOLUTION or state.preferred is None:
    return None
  chosen = item.solutions[state.preferred]
  rejected = item.solutions[1 - state.preferred]
  return dict(
    id=f"{item.id}/{annotator}",
    problem=chosen.problem,
    chosen=list(chosen.steps),
    rejected=list(rejected.steps),
    chosen_id=chosen.id,
    rejected_id=rejected.id,
    annotator=annotator,
  )


def _tree(
  item: judgements.Item,
  state: judgements.State,
  annotator: str,
  extra: Mapping[str, Any],
) -> list[schema.Solution]:
  """Returns the path, and the rated alternatives to its steps."""
  problem, source = item.solutions[0].problem, item.solutions[0].source
  name = f"{item.id}/{annotator}"

  references = (s.extra.get(schema.REFERENCE) for s in item.solutions)
  reference = next((x for x in references if x is not None), None)
  shared = {**extra, "group": fields.group(problem)}
  if reference is not None:
    shared[schema.REFERENCE] = reference

  def solution(suffix, steps, ratings, flags):
    more = dict(flagged_steps=flags) if flags else {}
    return schema.Solution(
      id=f"{name}/{suffix}",
      problem=problem,
      steps=tuple(steps),
      source=source,
      ratings=tuple(ratings),
      extra={**shared, "flagged": bool(flags), **more},
    )

  path, taken, flagged = list(state.path), [], []
  alternatives = []
  for step in range(len(path) + 1):
    before = path[:step]
    known = item.alternatives(before)
    on = path[step] if step < len(path) and step not in state.written else None
    for number, text in enumerate(known):
      rating = state.rating(step, number)
      is_flagged = (step, number) in state.flags
      if text == on:
        taken.append(rating)
        flagged += [step] * is_flagged
      elif rating is not None:
        alternatives.append(
          solution(
            f"{step}.{number}",
            [*before, text],
            [*[None] * step, rating],
            [step] * is_flagged,
          )
        )
    if step in state.written:
      taken.append(None)
  if not path:
    return alternatives
  return [solution("path", path, taken, flagged), *alternatives]
