"""Paths to the fields of a record, and the rows that a record holds.

a       the field a
a.b     the field b of the object a
a.0     the first entry of the list a
a.*     every entry of the list or object a; a.*.b is the field b of each
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prm_jax import errors

# Where a path leads to nothing.
MISSING: Any = object()


def at(value: Any, path: str) -> list[Any]:
  """Returns what a path leads to: one value, or one for each entry of a *.

  Args:
    value: The record, or a part of it.
    path: The path.

  Returns:
    The values; MISSING where it leads to nothing.
  """
  if isinstance(value, Mapping) and path in value:
    return [value[path]]  # a name may hold a dot
  name, dot, rest = path.partition(".")
  if name == "*":
    found = [MISSING]
    if isinstance(value, Mapping | list):
      found = [*(value.values() if isinstance(value, Mapping) else value)]
  elif isinstance(value, Mapping):
    found = [value.get(name, MISSING)]
  else:
    found = [_entry(value, name)]
  if not dot:
    return found
  return [x for entry in found for x in at(entry, rest)]


def _entry(value: Any, name: str) -> Any:
  """Returns an entry of a list by its index from 0."""
  is_index = isinstance(value, list) and name.isdecimal() and len(name) < 10
  return value[int(name)] if is_index and int(name) < len(value) else MISSING


def value_of(record: Mapping[str, Any], path: str) -> Any:
  """Returns what a path of one field leads to; a list if it has a *."""
  values = at(record, path)
  if any(x is MISSING for x in values):
    return MISSING
  is_list = "*" in path.split(".") and path not in record
  return values if is_list else values[0]


Row = tuple[str, dict[str, Any]]


def rows(record: Mapping[str, Any], where: str, path: str) -> Iterator[Row]:
  """Yields the rows of a record, each with the record's own fields.

  Args:
    record: The record.
    where: Its place, to which a row's number is added.
    path: What holds them: a list of objects, or a+b, lists of one length, where
      the i-th row has the i-th entry of each under the list's name.

  Yields:
    The place and the fields: the row's, then what the record has besides.

  Raises:
    InputError: It leads to no such lists.
  """
  parts = path.split("+")
  of_record = {
    name: x
    for name, x in record.items()
    if not any(
      part in (name, "*") or part.startswith((f"{name}.", "*."))
      for part in parts
    )
  }
  entries = _zipped(record, where, path) if len(parts) > 1 else None
  if entries is None:
    entries = at(record, path)
    if len(entries) == 1 and isinstance(entries[0], list):
      [entries] = entries
  for i, entry in enumerate(entries, 1):
    if not isinstance(entry, dict):
      found = "nothing" if entry is MISSING else type(entry).__name__
      raise errors.InputError(
        f"{where}: rows={path} leads to {found}, expected a list of objects; of"
        " lists with an entry for each solution, rows=a+b"
      )
    yield f"{where}.{i}", of_record | entry


def _zipped(
  record: Mapping[str, Any], where: str, path: str
) -> list[dict[str, Any]]:
  """Returns the i-th entries of several lists, by the lists' names."""
  lists = {}
  for part in path.split("+"):
    found = value_of(record, part)
    if not isinstance(found, list):
      kind = "nothing" if found is MISSING else type(found).__name__
      raise errors.InputError(
        f"{where}: rows={path}: {part} is {kind}, expected a list with an entry"
        " for each solution"
      )
    lists[part.removesuffix(".*").rpartition(".")[2]] = found
  lengths = {name: len(x) for name, x in lists.items()}
  if len({*lengths.values()}) > 1:
    counts = ", ".join(f"{n} of {name}" for name, n in lengths.items())
    raise errors.InputError(
      f"{where}: rows={path}: {counts}; each solution needs an entry of all"
    )
  return [dict(zip(lists, entries)) for entries in zip(*lists.values())]
