"""Counts of work, which add up field by field."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import operator
from typing import Any, TypeVar

CountsT = TypeVar("CountsT", bound="Counts")


@dataclasses.dataclass(frozen=True)
class Counts:
  """The base of a frozen dataclass whose fields are all counts."""

  def __add__(self: CountsT, other: CountsT) -> CountsT:
    return self._each(operator.add, other)

  def __sub__(self: CountsT, other: CountsT) -> CountsT:
    return self._each(operator.sub, other)

  def _each(
    self: CountsT, combine: Callable[[Any, Any], Any], other: CountsT
  ) -> CountsT:
    # Not dataclasses.astuple, which copies every count on its own.
    return type(self)(
      *(
        combine(getattr(self, name), getattr(other, name))
        for name in type(self).__dataclass_fields__
      )
    )
