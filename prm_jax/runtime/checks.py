"""The values that a number of a config may have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
      raise errors.InputError(f"{group}{name}={value}: expected {expected}")


def check_choice(name: str, value: str, allowed: Sequence[str]) -> None:
  """Refuses a value that isn't one of those allowed.

  Args:
    name: The name of the field, with its group.
    value: The value.
    allowed: The values that are allowed.
  """
  if value not in allowed:
    raise errors.InputError(
      f"{name}={value!r}: expected one of {', '.join(allowed)}"
    )


def check_counts(config: Any, names: Sequence[str], group: str = "") -> None:
  """Refuses a field below 1, or above what an array's axis can be."""
  check(config, names, lambda x: x >= 1, "1 or more", group)
  most = f"at most {MAX_COUNT}"
  check(config, names, lambda x: x <= MAX_COUNT, most, group)


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
