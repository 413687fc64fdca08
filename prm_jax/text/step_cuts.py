"""The cuts of a text, and the steps between them.

A cut is a range of characters that belong to no step. Between two cuts is a
step; white space at its ends isn't part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import re

from prm_jax import schema

# White space, for all segmenters: a device that reads bytes knows it, too.
# Others, such as a no-break space, are text.
BLANK = " \t\r\f\v"
WHITE = f"{BLANK}\n"

# What ends a step, and how far it goes on. paragraph: a line break, blanks
# alone, and another one. line: a line break.
PARAGRAPH_BREAK = re.compile(rf"\n[{BLANK}]*\n")
LINE_BREAK = re.compile(r"\n")


@dataclasses.dataclass(frozen=True)
class Cuts:
  """The cuts of a text.

  Args:
    places: The range of each cut in characters, in order; it may be empty.
    num_settled: The number of first cuts that stay as they are, whatever text
      follows, and with no further cut before or between them.
  """

  places: Sequence[schema.Span]
  num_settled: int


def at_points(points: Sequence[int], undecided: int) -> Cuts:
  """Returns cuts that are points between characters.

  Args:
    points: The points, in order.
    undecided: The first character at which later text may change a cut.
  """
  num_settled = sum(point < undecided for point in points)
  return Cuts([(point, point) for point in points], num_settled)


def at_breaks(text: str, breaks: re.Pattern[str]) -> Cuts:
  """Returns the matches of a pattern whose matches no later text changes."""
  places = [match.span() for match in breaks.finditer(text)]
  return Cuts(places, len(places))


def after(cuts: Cuts, start: int) -> Cuts:
  """Returns the cuts of a text's end; their places are in that end.

  Args:
    cuts: The cuts of the whole text.
    start: Where its end begins. What is cut before stays as it is.
  """
  num_before = sum(end <= start for _, end in cuts.places)
  places = [
    (max(first - start, 0), end - start)
    for first, end in cuts.places[num_before:]
  ]
  return Cuts(places, max(cuts.num_settled - num_before, 0))


def steps(text: str, cuts: Cuts) -> tuple[tuple[schema.Span, ...], int]:
  """Returns the steps between cuts, and how many of the first are settled.

  Args:
    text: The text.
    cuts: Its cuts.

  Returns:
    The span of each step, without blank ends; pieces of white space alone are
    none. And the number of first steps that no later text moves: those before
    the last settled cut.
  """
  spans: list[schema.Span] = []
  num_settled = start = 0
  for k, (end, after) in enumerate([*cuts.places, (len(text), len(text))]):
    piece = text[start:end]
    first = start + len(piece) - len(piece.lstrip(WHITE))
    last = start + len(piece.rstrip(WHITE))
    if first < last:
      spans.append((first, last))
    if k < cuts.num_settled:
      num_settled = len(spans)
    start = after
  return tuple(spans), num_settled
