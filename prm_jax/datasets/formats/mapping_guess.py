"""A guess of the mapping that would read a record, to be printed and not used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

# Names that data sets give to a field, the likelier ones first; compared without
# case, blanks, - and _.
_NAMES = dict(
  problem=("problem", "question", "prompt", "query", "instruction", "input"),
  steps=(
    *("steps", "solutionsteps", "modelsolutionsteps", "reasoningsteps"),
    *("completions", "cot", "chainofthought", "rationale", "reasoning"),
    *("solution", "response", "output", "trace", "text"),
  ),
  id=("id", "uid", "uuid", "uniqueid", "questionuuid", "idx", "index"),
  answer=("answer", "gold", "groundtruth", "target", "finalanswer"),
  outcome=(
    *("outcome", "correct", "iscorrect", "finalanswercorrect"),
    *("modelsolutioncorrectness", "correctness"),
  ),
)
_LABELS = ("labels", "label", "steplabels", "scores", "rewards")
_RATINGS = ("ratings", "rating", *_LABELS)
_FIRST_ERRORS = (
  *("firsterror", "firsterrorstep", "modelsolutionfirsterrorstep"),
  *("mistakeindex", "errorindex", "errorstep", "label"),
)
_ROWS = ("samples", "solutions", "candidates", "chainofthoughts", "responses")


def guess(record: Mapping[str, Any]) -> str | None:
  """Returns a mapping for the records of a file, None without an idea.

  Args:
    record: One of them.
  """
  plain = {_plain(name): name for name in record}
  rows = next((plain[x] for x in _ROWS if x in plain), None)
  inner: Mapping[str, Any] = record
  if rows is not None and _is_list_of(record[rows], dict):
    inner = {**record, **record[rows][0]}
    plain = {_plain(name): name for name in inner if name != rows}
  else:
    rows = None
  found = {
    field: next((plain[x] for x in names if x in plain), None)
    for field, names in _NAMES.items()
  }
  problem, steps = found["problem"], found["steps"]
  if problem is None or steps is None:
    return None
  parts = [] if rows is None else [f"rows={rows}"]
  parts += [f"{field}={name}" for field, name in found.items() if name]
  if isinstance(inner[steps], str):
    blank_line = "\n\n" in inner[steps]
    parts.append(r"separator=\n\n" if blank_line else r"separator=\n")
  parts += _judged(inner, plain)
  return ",".join(parts)


def _judged(record: Mapping[str, Any], plain: Mapping[str, str]) -> list[str]:
  """Returns the part of the mapping that says which steps are right."""
  for name in _RATINGS:
    values = record.get(plain.get(name, ""))
    if _is_list_of(values, int, float, bool, str):
      are_ratings = any(x == -1 for x in values) or name in _RATINGS[:2]
      return [f"{'ratings' if are_ratings else 'labels'}={plain[name]}"]
  for name in _FIRST_ERRORS:
    value = record.get(plain.get(name, ""), [])
    if value is None or isinstance(value, int | str):
      return [f"first_error={plain[name]}"]
  return []


def _plain(name: str) -> str:
  return "".join(c for c in name.lower() if c not in " -_")


def _is_list_of(values: Any, *kinds: type) -> TypeGuard[list[Any]]:
  if not isinstance(values, list) or not values:
    return False
  return all(isinstance(x, kinds) for x in values)
