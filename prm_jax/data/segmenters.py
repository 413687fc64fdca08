"""How a text is cut into steps, as data that is saved with a checkpoint.

A segmenter gives spans of characters, so every step is an unchanged part of the
text, and a score belongs to a place in it.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import re
from typing import Any

from prm_jax import schema
from prm_jax.runtime import checks

# White space, for all segmenters: a device that reads bytes knows it, too.
# Others, such as a no-break space, are text.
BLANK = " \t\r\f\v"

# What ends a step, and how far it goes on. paragraph: a line break, blanks
# alone, and another one. line: a line break.
_BREAKS: Mapping[str, re.Pattern[str]] = dict(
  paragraph=re.compile(rf"\n[{BLANK}]*\n"),
  line=re.compile(r"\n"),
)
KINDS = tuple(_BREAKS)
# The names of these in checkpoints of before.
_RENAMED = dict(paragraphs="paragraph", lines="line")


@dataclasses.dataclass(frozen=True)
class Segmenter:
  """A way to cut a text into steps.

  Args:
    kind: One of KINDS: paragraph (steps have blank lines between them) or line
      (each line that isn't blank).
  """

  kind: str

  def __post_init__(self):
    checks.check_choice("segmenter", self.kind, KINDS)


PARAGRAPH = Segmenter("paragraph")
LINE = Segmenter("line")


def from_record(record: Any) -> Segmenter:
  """Returns the segmenter that JSON holds: its fields, or its kind alone.

  Raises:
    InputError: There is no such segmenter.
    TypeError: The record has other fields.
  """
  if isinstance(record, Mapping):
    return Segmenter(**record)
  return Segmenter(_RENAMED.get(record, record))


def spans(text: str, segmenter: Segmenter) -> tuple[schema.Span, ...]:
  """Returns where the steps of a text are, in order, without blank ends.

  Args:
    text: A solution, whole or begun.
    segmenter: How it is cut.
  """
  places, start = [], 0
  for end, after in [
    *(match.span() for match in _BREAKS[segmenter.kind].finditer(text)),
    (len(text), len(text)),
  ]:
    step = text[start:end]
    first = start + len(step) - len(step.lstrip(f"{BLANK}\n"))
    last = start + len(step.rstrip(f"{BLANK}\n"))
    if first < last:
      places.append((first, last))
    start = after
  return tuple(places)
