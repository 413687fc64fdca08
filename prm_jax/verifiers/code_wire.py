"""Plain values as JSON and back, without running any code: what workers exchange.

Of a value's own class, so that no object of someone's own passes for a number.
It imports nothing of prm_jax, and is the only module of it that workers import.
"""

from __future__ import annotations

from typing import Any

_ITEMS = dict(list=list, tuple=tuple, set=set, frozenset=frozenset)


class UntoldError(Exception):
  """A value has another type."""


def encoded(value: Any) -> Any:
  """Returns a value as JSON has it.

  Raises:
    UntoldError: It isn't made of numbers, texts, bytes, None, lists, tuples,
      dicts and sets.
  """
  kind = type(value).__name__
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
    return [kind, [[encoded(k), encoded(v)] for k, v in value.items()]]
  if type(value) in _ITEMS.values():
    return [kind, [encoded(x) for x in value]]
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
