"""The values that a number of a config may have."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import math
import os
import reprlib
import types
import typing
from typing import Any

from prm_jax import errors

# The largest size of an axis of an array: its indices are int32.
MAX_COUNT = 2**31 - 1
# The largest seed: jax silently takes larger ones modulo 2**32.
MAX_SEED = 2**32 - 1


def check_seed(seed: int) -> None:
  """Refuses a seed that jax can't tell from every other."""
  if not 0 <= seed <= MAX_SEED:
    raise errors.InputError(f"seed={seed}: expected 0 to {MAX_SEED}")


def check(
  config: Any,
  names: Sequence[str],
  holds: Callable[[float], bool],
  expected: str,
  group: str = "",
) -> None:
  """Refuses the first of the named fields for which `holds` is false.

  Args:
    config: The config.
    names: The names of the fields.
    holds: The condition; it must be false for NaN, too.
    expected: The range, in words.
    group: The group of the config that has the fields, with its dot.
  """
  for name in names:
    value = getattr(config, name)
    if not holds(value):
      raise errors.InputError(
        f"{group}{name}={_shown(value)}: expected {expected}"
      )


def _shown(value: Any) -> str:
  return str(value) if len(str(value)) <= 60 else reprlib.repr(value)


def check_types(kind: type, values: Mapping[str, Any], group: str = "") -> None:
  """Refuses the first value that isn't of its field's type.

  NaN and infinity are floats here: their range is another check's.

  Args:
    kind: A dataclass.
    values: The values of its fields. Other names aren't checked.
    group: The group of the config that has the fields, with its dot.
  """
  hints = _hints(kind)
  for name, value in values.items():
    if name in hints and not is_a(value, hints[name], finite=False):
      raise errors.InputError(
        f"{group}{name} must be {type_name(hints[name])}, found"
        f" {reprlib.repr(value)}"
      )


@functools.cache
def _hints(kind: type) -> Mapping[str, Any]:
  return typing.get_type_hints(kind)


def is_a(value: Any, kind: Any, *, finite: bool = True) -> bool:
  """Returns whether a value may stand where the type is expected.

  A whole number is a float, too, a list a tuple, and a bool is no number.

  Args:
    value: The value.
    kind: The type.
    finite: Whether NaN and infinity, which JSON doesn't have, are no numbers.
  """
  arguments = typing.get_args(kind)
  origin = typing.get_origin(kind)
  if origin in (types.UnionType, typing.Union):
    return any(is_a(value, x, finite=finite) for x in arguments)
  if kind in (bool, str, types.NoneType):
    return isinstance(value, kind)
  if kind in (int, float):
    fits = isinstance(value, int) or (
      kind is float
      and isinstance(value, float)
      and (math.isfinite(value) or not finite)
    )
    return fits and not isinstance(value, bool)
  if origin is tuple and arguments[1:] == (...,):
    return isinstance(value, list | tuple) and all(
      is_a(x, arguments[0], finite=finite) for x in value
    )
  if origin is tuple:
    return (
      isinstance(value, list | tuple)
      and len(value) == len(arguments)
      and all(map(functools.partial(is_a, finite=finite), value, arguments))
    )
  if origin is os.PathLike:
    kind = origin
  if dataclasses.is_dataclass(kind) or kind is os.PathLike:
    return isinstance(value, typing.cast(type, kind))
  return True


def type_name(kind: Any) -> str:
  """Returns a type in words."""
  origin, members = typing.get_origin(kind), typing.get_args(kind)
  if origin is typing.Annotated:
    return type_name(members[0])
  if origin in (types.UnionType, typing.Union):
    is_path = os.PathLike[str] in members
    names = [type_name(x) for x in members if not (is_path and x is str)]
    return " | ".join(names)
  if origin is os.PathLike:
    return "a path"
  if origin is abc.Callable:
    return "a function"
  if origin in (abc.Sequence, abc.Iterable, list):
    return f"a list of {type_name(members[0])}"
  if kind is types.NoneType:
    return "None"
  return kind.__name__ if isinstance(kind, type) and not members else str(kind)


def check_choice(name: str, value: Any, allowed: Sequence[str]) -> None:
  """Refuses a value that isn't one of those allowed.

  Args:
    name: The name of the field, with its group.
    value: The value.
    allowed: The values that are allowed.
  """
  if value not in allowed:
    raise errors.InputError(
      f"{name}={reprlib.repr(value)}: expected one of {', '.join(allowed)}"
    )


def check_counts(config: Any, names: Sequence[str], group: str = "") -> None:
  """Refuses a field below 1, or above what an array's axis can be."""
  check(config, names, lambda x: x >= 1, "1 or more", group)
  most = f"at most {MAX_COUNT}"
  check(config, names, lambda x: x <= MAX_COUNT, most, group)


def check_at_most(
  config: Any, names: Sequence[str], most: int, group: str = ""
) -> None:
  """Refuses a field outside 1 to `most`."""
  check_counts(config, names, group)
  check(config, names, lambda x: x <= most, f"at most {most:,}", group)


def check_shares(config: Any, names: Sequence[str], group: str = "") -> None:
  """Refuses a field outside [0, 1]."""
  check(config, names, lambda x: 0 <= x <= 1, "a share in [0, 1]", group)


def check_positive(config: Any, names: Sequence[str], group: str = "") -> None:
  """Refuses a field that isn't above 0 and finite."""
  inf = float("inf")
  check(config, names, lambda x: 0 < x < inf, "a number above 0", group)


def check_natural(config: Any, names: Sequence[str], group: str = "") -> None:
  """Refuses a field that is negative or not finite."""
  inf = float("inf")
  check(config, names, lambda x: 0 <= x < inf, "0 or more", group)


def check_unset(
  config: Any, names: Sequence[str], readers: str, group: str = "objective."
) -> None:
  """Refuses a field that isn't None.

  Args:
    config: The config.
    names: The names of the fields.
    readers: What reads the fields, in words.
    group: The group of the config that has the fields, with its dot.
  """
  for name in names:
    value = getattr(config, name)
    if value is not None:
      raise errors.InputError(
        f"{group}{name}={value!r}: only loss={readers} reads it; set it to None"
      )


def check_margin(margin: float | None) -> None:
  """Refuses a margin that is negative or not finite."""
  if margin is not None and not 0 <= margin < float("inf"):
    raise errors.InputError(f"objective.margin={margin}: expected 0 or more")
