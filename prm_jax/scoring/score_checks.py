"""What a function or a server returns for solutions, checked in one place.

A score is a probability, because all that reads scores takes it for one: a step
below 0.5 is wrong, a product of scores is one again, 2 p - 1 goes from -1 to 1.
A reward of a whole solution may be any finite number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import math
import reprlib
from typing import Any

import numpy as np

from prm_jax import errors
from prm_jax import schema


def step_scores(
  rows: Any, solutions: Sequence[schema.Solution], name: str
) -> list[schema.StepScores]:
  """Returns the scores of solutions' steps.

  Args:
    rows: For each solution StepScores or a list of numbers, one of each step.
    solutions: The solutions.
    name: The name of what returned the rows, for errors.

  Raises:
    InputError: There isn't one row for each solution and one score for each
      step, or a score isn't a number in [0, 1].
  """
  form = "a list with the step scores of each solution"
  checked = []
  for row, s in zip(_listed(rows, solutions, name, form), solutions):
    scores = row.scores if isinstance(row, schema.StepScores) else row
    if not _is_sequence(scores):
      raise errors.InputError(
        f"{name}: returned {_shown(row)} for solution {s.id!r}; expected a list"
        " with a score of each step"
      )
    if len(scores) != len(s.steps):
      raise errors.InputError(
        f"{name}: {len(scores)} scores for the {len(s.steps)} steps of solution"
        f" {s.id!r}; give one for each step"
      )
    numbers = [_number(score) for score in scores]
    for i, number in enumerate(numbers):
      if not 0 <= number <= 1:
        raise errors.InputError(
          f"{name}: the score of step {i + 1} of solution {s.id!r} is"
          f" {_shown(scores[i])}; expected P(correct so far) in [0, 1]"
        )
    if not isinstance(row, schema.StepScores):
      row = schema.StepScores(tuple(numbers))
    checked.append(row)
  return checked


def outcome_rewards(
  values: Any, solutions: Sequence[schema.Solution], name: str
) -> list[float]:
  """Returns the rewards of whole solutions, one finite number for each."""
  form = "a list with one number for each solution"
  rewards = [_number(x) for x in _listed(values, solutions, name, form)]
  for i, reward in enumerate(rewards):
    if not math.isfinite(reward):
      raise errors.InputError(
        f"{name}: the reward of solution {solutions[i].id!r} is"
        f" {_shown(values[i])}; expected a finite number"
      )
  return rewards


def verdicts(
  values: Any, solutions: Sequence[schema.Solution], name: str
) -> list[bool | None]:
  """Returns whether solutions are right: True, False or None for each."""
  form = "a list with True, False or None for each solution"
  for value, s in zip(_listed(values, solutions, name, form), solutions):
    if not isinstance(value, bool | np.bool_ | None):
      raise errors.InputError(
        f"{name}: the verdict on solution {s.id!r} is {_shown(value)}; expected"
        " True, False, or None if it can't be told"
      )
  return [None if value is None else bool(value) for value in values]


def scoring(function: Callable[[Any], Any], name: str) -> schema.Score:
  """Returns a function of solutions as one whose step scores are checked."""

  def score(
    solutions: Sequence[schema.Solution],
  ) -> list[schema.StepScores]:
    return step_scores(function(solutions), solutions, name)

  return score


def rewarding(
  function: Callable[[Any], Any], name: str
) -> schema.OutcomeReward:
  """Returns a function of solutions as one whose rewards are checked."""

  def reward(solutions: Sequence[schema.Solution]) -> list[float]:
    return outcome_rewards(function(solutions), solutions, name)

  return reward


def verifying(function: Callable[[Any], Any], name: str) -> schema.Verify:
  """Returns a function of solutions as one whose verdicts are checked."""

  def verify(solutions: Sequence[schema.Solution]) -> list[bool | None]:
    return verdicts(function(solutions), solutions, name)

  return verify


def _listed(
  values: Any, solutions: Sequence[schema.Solution], name: str, form: str
) -> Any:
  """Returns what has one entry for each solution; refuses all else."""
  if not _is_sequence(values):
    raise errors.InputError(
      f"{name}: returned {_shown(values)}; expected {form}"
    )
  if len(values) != len(solutions):
    raise errors.InputError(
      f"{name}: returned {len(values)} entries for {len(solutions)} solutions;"
      f" expected {form}"
    )
  return values


def _is_sequence(value: Any) -> bool:
  """Whether a value has entries in order, as a list or an array has."""
  if isinstance(value, str | bytes | dict):
    return False
  is_indexed = hasattr(value, "__len__") and hasattr(value, "__getitem__")
  return is_indexed and bool(getattr(value, "shape", True))


def _number(value: Any) -> float:
  """Returns a number, also one of an array, as a float; NaN if it is none.

  A bool is no number.
  """
  shape = getattr(value, "shape", ())
  if shape or isinstance(value, str | bytes | bool | np.bool_):
    return math.nan
  try:
    return float(value)
  except (TypeError, ValueError, OverflowError):
    return math.nan


def _shown(value: Any) -> str:
  return " ".join(reprlib.repr(value).split())
