"""How a text is cut into steps; a checkpoint saves the name of its segmenter.

A segmenter gives spans of characters, so every step is an unchanged part of the
text, and a score belongs to a place in it.
"""

from __future__ import annotations

from collections.abc import Mapping
import re

from prm_jax import schema
from prm_jax.runtime import checks

# What ends a step. paragraphs: blank lines (Qwen2.5-Math-PRM). lines: each
# line that isn't blank.
_BREAKS: Mapping[str, re.Pattern[str]] = dict(
  paragraphs=re.compile(r"\n[^\S\n]*\n\s*"),
  lines=re.compile(r"\n\s*"),
)
NAMES = tuple(_BREAKS)


def spans(text: str, segmenter: str) -> tuple[schema.Span, ...]:
  """Returns where the steps of a text are, in order, without blank ends.

  Args:
    text: A whole solution.
    segmenter: One of NAMES.
  """
  checks.check_choice("segmenter", segmenter, NAMES)
  places, start = [], 0
  for end, after in [
    *(match.span() for match in _BREAKS[segmenter].finditer(text)),
    (len(text), len(text)),
  ]:
    step = text[start:end]
    first = start + len(step) - len(step.lstrip())
    last = start + len(step.rstrip())
    if first < last:
      places.append((first, last))
    start = after
  return tuple(places)
