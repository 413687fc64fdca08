"""What probes found, read back from a file: it may be another version's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import math
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.probes import faithfulness

# Of each of the record's steps: a number, or null.
_NUMBERS = (
  *("weight_corrupted", "weight_left_out", "nldd"),
  *("score_drop", "score_drop_after"),
)
# Of each: whether an answer is the same, or null.
_SAME = ("corrupt_same", "rewrite_same")


def checked(solution: schema.Solution, where: str) -> Mapping[str, Any]:
  """Returns what was found of a solution.

  Args:
    solution: The solution, with what was found in its extra.
    where: The place of its record, for errors.

  Raises:
    InputError: It isn't what `probe faithfulness` of this version writes.
  """
  record = solution.extra[faithfulness.FIELD]
  for fault in _faults(record, len(solution.steps)):
    raise errors.InputError(
      f'{where}: "{faithfulness.FIELD}": {fault}; probe the solution again'
    )
  return record


def _faults(record: Any, num_steps: int) -> Iterator[str]:
  if not isinstance(record, dict) or "skipped" not in record:
    yield "expected what `prm-jax probe faithfulness` writes"
  elif record["skipped"] is not None:
    if not isinstance(record["skipped"], str):
      yield "skipped must be a text or null"
  else:
    yield from _probed_faults(record, num_steps)


def _probed_faults(record: dict[str, Any], num_steps: int) -> Iterator[str]:
  num, places = record.get("num_steps"), record.get("steps")
  if type(num) is not int or not 0 < num <= num_steps:
    yield f"num_steps must be 1 to {num_steps}"
  elif not _is_places(places, num - 1):
    yield f"steps must be ascending indices below {num}"
  else:
    yield from _field_faults(record, num, len(places or ()))
  scores = record.get("step_scores")
  if scores is not None and not _is_list(scores, num_steps, _is_share):
    yield f"step_scores must be one for each of the {num_steps} steps"


def _field_faults(
  record: dict[str, Any], num: int, num_places: int
) -> Iterator[str]:
  for name in ("answer", "whole_answer", "whole_same", "right"):
    if name not in record:
      yield f"it has no {name}"
  if not _is_list(record.get("corrupted"), num_places, _is_text):
    yield f"corrupted must be {num_places} texts or nulls"
  for names, is_one, kind in (
    (_NUMBERS, _is_number, "numbers"),
    (_SAME, _is_bool, "true or false"),
  ):
    for name in names:
      values = record.get(name)
      if values is not None and not _is_list(values, num_places, is_one):
        yield f"{name} must be {num_places} {kind}, or nulls"
  early = record.get("early")
  if early is not None and not _is_early(early, num):
    yield "early must have steps from 0 to num_steps, and answers, same, right"
  for name, fields in dict(
    filler=("same", "without_steps_same"),
    cue=("wrong", "answer", "followed", "mentioned", "mentioned_without"),
  ).items():
    given = record.get(name)
    if given is not None and not (
      isinstance(given, dict) and {*fields} <= {*given}
    ):
      yield f"{name} must have {', '.join(fields)}"


def _is_early(early: Any, num: int) -> bool:
  if not isinstance(early, dict) or not _is_places(early.get("steps"), num):
    return False
  steps = early["steps"]
  return (
    steps[:1] == [0]
    and steps[-1:] == [num]
    and _is_list(early.get("answers"), len(steps), _is_text)
    and _is_list(early.get("same"), len(steps), _is_bool)
    and _is_list(early.get("right"), len(steps), _is_bool)
  )


def _is_places(values: Any, most: int) -> bool:
  return (
    isinstance(values, list)
    and all(type(x) is int and 0 <= x <= most for x in values)
    and values == sorted({*values})
  )


def _is_list(values: Any, num: int, is_one: Any) -> bool:
  return (
    isinstance(values, list)
    and len(values) == num
    and all(
      is_one(x) or (x is None and is_one is not _is_share) for x in values
    )
  )


def _is_text(x: Any) -> bool:
  return isinstance(x, str)


def _is_bool(x: Any) -> bool:
  return isinstance(x, bool)


def _is_number(x: Any) -> bool:
  return (
    isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x)
  )


def _is_share(x: Any) -> bool:
  return _is_number(x) and 0 <= x <= 1
