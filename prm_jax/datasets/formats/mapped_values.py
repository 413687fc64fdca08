"""What a mapped field may say: texts, truths, labels, ratings, first errors.

Each function returns a value, or raises ValueError that says what is expected.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
import re
from typing import Any

from prm_jax.runtime import json_text

_RIGHT = ("true", "correct", "right", "yes", "1", "+")
_WRONG = ("false", "incorrect", "wrong", "no", "0", "-")
# What stands for no wrong step where a number would stand.
_NO_ERROR = ("n/a", "na", "none", "-1")


def text(value: Any) -> str:
  """Returns a text."""
  if not isinstance(value, str):
    raise ValueError("expected a text")
  return value


def identity(value: Any) -> str:
  """Returns a text, or a number as one."""
  if isinstance(value, bool) or not isinstance(value, str | int | float):
    raise ValueError("expected a text or a number")
  return str(value)


def joined(value: Any) -> str:
  """Returns a text or a number; of several the lines, of options with names.

  A list has a line for each entry, an object a line "NAME: ENTRY".
  """
  if isinstance(value, list):
    return "\n".join(map(identity, value))
  if isinstance(value, Mapping):
    return "\n".join(f"{name}: {identity(x)}" for name, x in value.items())
  return identity(value)


def truth(value: Any) -> bool | None:
  """Returns whether a value says right or wrong; None for a blank text."""
  if isinstance(value, str) and not value.strip():
    return None
  found = word(value)
  if isinstance(value, str | bool | int | float) and found in _RIGHT + _WRONG:
    return found in _RIGHT
  raise ValueError(f"expected one of {', '.join(_RIGHT + _WRONG)}")


def word(value: Any) -> str:
  """Returns a value as a word that is compared."""
  return str(value).strip().lower().removesuffix(".0")


def listed(value: Any) -> list[Any]:
  """Returns a list, which may be written as a text: JSON's form or Python's."""
  if isinstance(value, str) and value.strip().startswith("["):
    value = _parsed(value.strip())
  if not isinstance(value, list):
    raise ValueError("expected a list, with one entry for each step")
  return value


def _parsed(value: str) -> Any:
  try:
    return json_text.parse(value)
  except json_text.JSONTextError as e:
    reason = e.reason
  try:
    return ast.literal_eval(value)
  except (ValueError, SyntaxError, MemoryError, RecursionError):
    raise ValueError(f"a list as a text, and not JSON ({reason})") from None


def index(value: Any, steps: range, none: str | None) -> int | None:
  """Returns a step's index from 0, -1 if no step is wrong, None for a blank.

  Args:
    value: What a record says.
    steps: The numbers of its steps.
    none: What says that no step is wrong, in addition to _NO_ERROR.
  """
  said = word(value)
  if not said:
    return None
  is_number = not isinstance(value, bool) and re.fullmatch(r"\d{1,9}", said)
  is_step = bool(is_number) and int(said) in steps
  is_none = none is not None and said == word(none)
  if is_step and is_none:
    advice = f"none={none} has no place here"
    if said == "0":
      advice = "if steps count from 1, map first_error_from_1"
    raise ValueError(f"a step's number, counted from {steps.start}; {advice}")
  if is_step:
    return int(said) - steps.start
  plain = not isinstance(value, bool | list | dict)
  if is_none or (plain and said in _NO_ERROR):
    return -1
  if not is_number:
    raise ValueError(
      "expected the number of a step, or -1 or N/A if none is wrong; another"
      " value for that is none=VALUE"
    )
  raise ValueError(
    f"the {len(steps)} steps are counted from {steps.start};"
    f" {_other_readings(int(said), steps)}"
  )


def _other_readings(number: int, steps: range) -> str:
  """Returns what a number that is no step's may say, as advice."""
  if steps.start and not number:
    return (
      "if 0 says that no step is wrong, add none=0; to count from 0, map"
      " first_error"
    )
  if not steps.start and number == len(steps):
    return (
      "to count from 1, map first_error_from_1, and add none=0 if 0 says that no"
      " step is wrong"
    )
  return f"if {number} says that no step is wrong, add none={number}"


def probabilities(values: Any) -> list[float | None]:
  """Returns P(correct so far) of each step."""
  return [_probability(x) for x in listed(values)]


def _probability(value: Any) -> float | None:
  if value is None:
    return None
  if isinstance(value, int | float) and not isinstance(value, bool):
    if 0 <= value <= 1:
      return float(value)
    raise ValueError(
      "expected labels in [0, 1]; -1, 0 and 1 of people are ratings"
    )
  found = truth(value)
  return None if found is None else float(found)


def ratings(values: Any, words: Mapping[str, int] | None) -> list[int | None]:
  """Returns -1, 0, 1 or None for each step.

  Args:
    values: What a record says.
    words: What a word stands for; None if there are none.
  """
  return [_rating(x, words or {}) for x in listed(values)]


def _rating(value: Any, words: Mapping[str, int]) -> int | None:
  if value is None:
    return None
  if not isinstance(value, bool | list | dict) and word(value) in words:
    return words[word(value)]
  # false would be the rating 0, neutral; as a label it is wrong.
  is_plain = isinstance(value, str | int | float) and not isinstance(
    value, bool
  )
  if is_plain and word(value) in ("-1", "0", "1"):
    return int(word(value))
  known = "".join(f", {x}" for x in words)
  more = "" if words else "; for other words give `words=good=1,ok=0,bad=-1`"
  raise ValueError(f"expected -1, 0, 1{known} or null for each step{more}")
