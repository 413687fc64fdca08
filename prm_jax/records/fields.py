"""Checked access to the fields of a published record; not a format itself.

Every failure is one line: file, line, field, expected form. Two values are made
here for all readers:

  id: if the format has none, "FORMAT/FILE:N" with the file's bare name and the
    record's number in its place. It doesn't change as long as the file keeps its
    name and order.
  group: a digest of the problem's exact text, so that solutions of one problem
    are in one group even across files and formats.
"""

from __future__ import annotations

from collections.abc import Mapping
import hashlib
import pathlib
import re
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.runtime import files
from prm_jax.runtime import json_text

# What a record may say where it leaves a field out.
EMPTY: tuple[Any, ...] = (None, "", [])


def field(
  record: Mapping[str, Any],
  where: str,
  name: str,
  *kinds: type,
  default: Any = ...,
) -> Any:
  """Returns a field; `default` also stands for null. bool is no int here.

  Raises:
    InputError: the field is missing without a default, or of another type.
  """
  form = " or ".join(kind.__name__ for kind in kinds)
  value = record.get(name)
  if value is None:
    if default is not ...:
      return default
    state = "is null" if name in record else "is missing"
    fault = f"{state}; give a {form}"
  elif isinstance(value, kinds) and (
    bool in kinds or not isinstance(value, bool)
  ):
    return value
  else:
    fault = f"must be {form}, found {type(value).__name__}"
  raise errors.InputError(f'{where}: field "{name}" {fault}')


def texts(record: Mapping[str, Any], where: str, name: str) -> tuple[str, ...]:
  """Returns a field that must be a list of strings."""
  values = field(record, where, name, list)
  for i, value in enumerate(values):
    if not isinstance(value, str):
      raise errors.InputError(
        f'{where}: "{name}"[{i}] must be str, found {_type_name(value)}'
      )
  return tuple(values)


def record(value: Any, where: str) -> dict[str, Any]:
  """Returns a value that must be an object.

  Args:
    value: The value.
    where: Its name in the error.

  Raises:
    InputError: It isn't an object.
  """
  if not isinstance(value, dict):
    raise errors.InputError(
      f"{where} must be an object, found {_type_name(value)}"
    )
  return value


def _type_name(value: Any) -> str:
  return "null" if value is None else type(value).__name__


def given(**values: Any) -> dict[str, Any]:
  """Returns the named values that aren't None."""
  return {name: value for name, value in values.items() if value is not None}


def beyond(record: Mapping[str, Any], *names: str) -> dict[str, Any]:
  """Returns {"fields": the fields not in names}, or {} if there are none.

  They stay nested, so that no field of somebody else's record can pass for
  one of `Solution`'s when the solution is written in our own form.
  """
  others = {k: v for k, v in record.items() if k not in names}
  return {"fields": others} if others else {}


def rejoin(solution: schema.Solution, row: dict[str, Any]) -> dict[str, Any]:
  """Returns the row with the further fields that `beyond` set aside.

  A further field that is EMPTY gives way to the row's own.

  Raises:
    InputError: one of them bears the name of a field of the row. It came from
      another form, where the name meant something else.
  """
  others = solution.extra.get("fields", {})
  if not isinstance(others, Mapping):
    raise cannot_hold(solution, 'extra "fields" must be an object; rename it')
  clash = {k for k in row.keys() & others.keys() if others[k] not in EMPTY}
  if clash:
    names = ", ".join(sorted(clash))
    raise cannot_hold(
      solution,
      f'extra "fields" holds {names}, which the form to be written has itself;'
      f" rename {names} in the file that was read",
    )
  return row | {k: v for k, v in others.items() if k not in row}


def from_text(record: Mapping[str, Any], where: str, name: str) -> Any:
  """Returns a field, of which some data sets hold the JSON text."""
  value = record.get(name)
  if not isinstance(value, str):
    return value
  try:
    return json_text.parse(value)
  except json_text.JSONTextError as e:
    raise errors.InputError(
      f'{where}: field "{name}" is a text that isn\'t JSON ({e.reason}); give'
      " its value, or the JSON text of it"
    ) from None


# Where other forms have a conversation, and how to write it here.
_CONVERSATIONS = dict(
  conversations="its turns, from and value, as role and content",
  conversation="it",
  prompt="prompt and completion, or chosen and rejected, as one list",
)


def messages(record: Mapping[str, Any], where: str) -> list[Any]:
  """Returns the records of a conversation: a list, or the JSON text of one.

  Raises:
    InputError: It is missing, or no list.
  """
  there = next((x for x in _CONVERSATIONS if x in record), None)
  if record.get("messages") is None and there is not None:
    raise errors.InputError(
      f'{where}: field "messages" is missing, and "{there}" isn\'t read; write'
      f" {_CONVERSATIONS[there]} in messages"
    )
  field(record, where, "messages", list, str)
  found = dict(messages=from_text(record, where, "messages"))
  return field(found, where, "messages", list)


def cannot_hold(solution: schema.Solution, why: str) -> errors.InputError:
  """Returns the error of a form that can't hold a solution."""
  return errors.InputError(f"solution {solution.id!r}: {why}")


def row_id(form: str, path: files.PathLike, where: str) -> str:
  """Returns "FORMAT/FILE:N" for a row of a form that has no ids."""
  name = pathlib.Path(path).name.removesuffix(".gz")
  return f"{form}/{pathlib.Path(name).stem}:{where.rpartition(':')[2]}"


def is_row_id(form: str, identity: str) -> bool:
  """Returns whether `row_id` made this id for a row of the form."""
  return re.fullmatch(rf"{form}/.*:\d+", identity, re.S) is not None


def unique_id(
  seen: dict[str, str], identity: str, where: str, name: str = "id"
) -> str:
  """Returns the id and notes it in `seen`; an id of an earlier row raises."""
  if identity in seen:
    raise errors.InputError(
      f'{where}: "{name}" {identity!r} was used at {seen[identity]} already;'
      " give every row its own"
    )
  seen[identity] = where
  return identity


def labels_until(error: int, num_steps: int) -> tuple[float | None, ...]:
  """Returns labels of steps that were judged up to the first wrong one.

  Args:
    error: The index of the first wrong step, from 0; -1 if no step is wrong.
    num_steps: The number of steps.

  Returns:
    1 for each step before it, 0 for it and None for later ones.
  """
  if error < 0:
    return (1.0,) * num_steps
  return (1.0,) * error + (0.0,) + (None,) * (num_steps - error - 1)


def check_reference(solution: schema.Solution, form: str) -> None:
  """Refuses a solution that isn't marked right throughout."""
  labels = solution.labels
  all_right = labels is not None and all(label == 1 for label in labels)
  if solution.outcome is not True or not all_right:
    raise cannot_hold(
      solution,
      f"{form} holds reference solutions only; write those with outcome true"
      " and every label 1",
    )


def check_whole_turns(solution: schema.Solution, form: str) -> None:
  """Refuses what isn't a conversation whose steps are whole turns."""
  if solution.messages is None:
    raise cannot_hold(
      solution,
      f"no messages; {form} holds conversations, and plain steps go into"
      " another form",
    )
  if solution.spans is not None:
    raise cannot_hold(
      solution,
      f"its turns are cut into steps, and {form} has a place for whole turns;"
      " write jsonl",
    )
  check_one_kind(solution, f"solution {solution.id!r}")


def check_one_kind(solution: schema.Solution, where: str) -> None:
  """Refuses labels that ratings, which come before them, lack or contradict.

  Args:
    solution: The solution.
    where: What it is called in errors.

  Raises:
    InputError: It has such a label.
  """
  pairs = zip(solution.labels or (), solution.ratings or ())
  for i, (label, rating) in enumerate(pairs):
    if label is None or rating == 0:
      continue
    if rating is None or (label >= schema.THRESHOLD) != (rating > 0):
      raise errors.InputError(
        f'{where}: "labels"[{i}] is {label:g}, but "ratings"[{i}] is'
        f" {'null' if rating is None else rating}; labels aren't used where"
        " ratings are, so keep one of the two fields"
      )


def group(problem: str) -> str:
  """Returns the same short string for the same problem text."""
  data = problem.encode("utf-8", "surrogatepass")
  return hashlib.sha256(data).hexdigest()[:16]


def labels_of(
  row: Mapping[str, Any], where: str, num_steps: int
) -> tuple[float | None, ...]:
  """Returns the labels that a row's first wrong step, or -1, stands for.

  Args:
    row: The row.
    where: Its place.
    num_steps: The number of its steps.

  Raises:
    InputError: The label is no number of a step.
  """
  label = field(row, where, "label", int)
  if not -1 <= label < num_steps:
    raise errors.InputError(
      f'{where}: "label" is {label} for {num_steps} steps; give the 0-based'
      " first wrong step, or -1 for none"
    )
  return labels_until(label, num_steps)
