"""Plain values as JSON and back, without running any code: what workers exchange.

Of a value's own class, so that no object of someone's own passes for a number.
It imports nothing of prm_jax, and workers import it.
"""

from __future__ import annotations

from typing import Any

_ITEMS = dict(list=list, tuple=tuple, set=set, frozenset=frozenset)
MOST_ITEMS = 300_000


class UntoldError(Exception):
  """A value has another type, or too many items."""


def encoded(value: Any, most: int = MOST_ITEMS) -> Any:
  """Returns a value as JSON has it.

  Args:
    value: The value.
    most: How many values it may hold, itself included.

  Raises:
    UntoldError: It isn't made of numbers, texts, bytes, None, lists, tuples,
      dicts and sets, or holds more.
  """
  return _encoded(value, [most])


def _encoded(value: Any, room: list[int]) -> Any:
  kind = type(value).__name__
  room[0] -= 1
  if room[0] < 0:
    raise UntoldError(f"{kind}, too long")
  if value is None or type(value) in (bool, str):
    return value
  if type(value) is int:
    return [kind, hex(value)]
  if type(value) is float:
    return [kind, value.hex()]
  if type(value) is complex:
    return [kind, value.real.hex(), value.imag.hex()]
  if type(value) is bytes:
    return [kind, value.hex()]
  if type(value) is dict:
    items = value.items()
    return [kind, [[_encoded(k, room), _encoded(v, room)] for k, v in items]]
  if type(value) in _ITEMS.values():
    return [kind, [_encoded(x, room) for x in value]]
  raise UntoldError(kind)


def decoded(value: Any) -> Any:
  """Returns the value that was encoded."""
  if not isinstance(value, list):
    return value
  kind, *parts = value
  if kind == "int":
    return int(parts[0], 16)
  if kind == "float":
    return float.fromhex(parts[0])
  if kind == "complex":
    return complex(*map(float.fromhex, parts))
  if kind == "bytes":
    return bytes.fromhex(parts[0])
  if kind == "dict":
    return {decoded(k): decoded(v) for k, v in parts[0]}
  return _ITEMS[kind](decoded(x) for x in parts[0])
