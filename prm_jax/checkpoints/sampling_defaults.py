"""How a published policy is sampled if nobody says otherwise, as plain numbers.

An import takes them from generation_config.json and saves them in model.json.
They decide nothing about a score.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
import math
import reprlib
from typing import Any

_Check = Callable[[float], bool]
# A name, whether it is a whole number, what it may be, and that in words.
_FIELDS: Mapping[str, tuple[bool, _Check, str]] = dict(
  temperature=(False, lambda x: 0 <= x < math.inf, "a number of at least 0"),
  top_p=(False, lambda x: 0 < x <= 1, "a number above 0 and at most 1"),
  top_k=(True, lambda x: 0 <= x < 1 << 31, "a whole number of at least 0"),
  min_p=(False, lambda x: 0 <= x <= 1, "a number from 0 to 1"),
  max_new_tokens=(True, lambda x: 1 <= x < 1 << 31, "a whole number above 0"),
)
NAMES = tuple(_FIELDS)


def faults(sampling: Any, where: object) -> Iterator[str]:
  """Yields why this is no mapping of NAMES to numbers in their ranges.

  Args:
    sampling: temperature, top_p, top_k, min_p and max_new_tokens, those that
      are known.
    where: The file, for the message.
  """
  if not isinstance(sampling, Mapping):
    yield (
      f"{where}: sampling is {reprlib.repr(sampling)}; expected an object;"
      " restore the original file"
    )
    return
  for name, value in sampling.items():
    if name not in _FIELDS:
      yield (
        f"{where}: sampling has {reprlib.repr(name)}; expected"
        f" {', '.join(NAMES)}"
      )
    is_whole, is_right, words = _FIELDS[name]
    kind = int if is_whole else (int, float)
    is_number = isinstance(value, kind) and not isinstance(value, bool)
    if not is_number or not is_right(value):
      yield (
        f"{where}: {name} is {reprlib.repr(value)}; expected {words}; correct"
        " the file"
      )
