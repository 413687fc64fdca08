"""Steps that begin with a number, or with a word such as "Wait" or "So"."""

from __future__ import annotations

from collections.abc import Sequence
import functools
import re

from prm_jax.text import sentence_cuts
from prm_jax.text import step_cuts

_BLANK = step_cuts.BLANK
# Before a heading: blanks, and Markdown's marks of headings and emphasis.
_OPENING = f"[{_BLANK}#*_>]*+"


def numbered(text: str, words: Sequence[str]) -> step_cuts.Cuts:
  """Returns the points before numbered headings at the beginning of a line.

  A heading is one of the words and a number, "Step 2:", or a number alone,
  "2." or "2)". Numbers alone count from 1 upwards: another number is part of
  its step. They count until the first heading with a word: those after it are
  lists within steps.

  Args:
    text: The text.
    words: The words that may be before a number, in small letters.
  """
  heading, begun = _headings(tuple(words))
  points, next_number, has_words = [], 1, False
  for match in heading.finditer(text):
    if match["word"]:
      has_words = True
    elif has_words or int(match["number"]) != next_number:
      continue
    else:
      next_number += 1
    points.append(match.start())
  # The end of the text may be half a heading.
  last_line = text.rfind("\n") + 1
  is_begun = begun.match(text, last_line) is not None
  return step_cuts.at_points(points, last_line if is_begun else len(text))


@functools.lru_cache(maxsize=16)
def _headings(
  words: tuple[str, ...],
) -> tuple[re.Pattern[str], re.Pattern[str]]:
  """Returns the patterns of a heading, and of the beginning of one."""
  any_word = "|".join(map(re.escape, words)) or r"(?!)"
  beginnings = {word[:k] for word in words for k in range(1, len(word) + 1)}
  any_beginning = "|".join(map(re.escape, sorted(beginnings))) or r"(?!)"
  numbered_word = rf"(?P<word>{any_word})[{_BLANK}]++\d{{1,3}}+"
  heading = (
    rf"^{_OPENING}(?:{numbered_word}(?=[{_BLANK}]*+[:.)*_–—\n-])"
    rf"|(?P<number>\d{{1,3}}+)[.)](?=[{_BLANK}*_\n]))"
  )
  begun = (
    rf"{_OPENING}(?:(?:{any_word})[{_BLANK}]++\d{{0,3}}+[{_BLANK}]*+"
    rf"|\d{{1,3}}+[.)]?+|{any_beginning})?\Z"
  )
  flags = re.IGNORECASE | re.MULTILINE | re.ASCII
  return re.compile(heading, flags), re.compile(begun, flags)


def marked(
  text: str, words: Sequence[str], min_chars: int, max_chars: int
) -> step_cuts.Cuts:
  """Returns the points before sentences that begin with one of the words.

  Args:
    text: The text.
    words: The words, in small letters.
    min_chars: A step isn't ended before it has so many characters.
    max_chars: A step ends before the sentence with which it would have more. A
      longer sentence stays whole.
  """
  sentences, num_settled = step_cuts.steps(text, sentence_cuts.sentences(text))
  marker, longest = _markers(tuple(words))
  points: list[int] = []
  undecided = len(text)
  start = last = 0
  for k, (first, end) in enumerate(sentences):
    is_settled = k < num_settled
    if k == 0:
      start = first
    else:
      size = last - start
      begins = size >= min_chars and marker.match(text, first) is not None
      if begins or end - start > max_chars:
        points.append(first)
        start = first
      # The first sentence that may grow: its first words may be known.
      is_known = begins and first + longest < len(text)
      if not (is_settled or is_known):
        undecided = min(undecided, first)
    if not is_settled:
      undecided = min(undecided, first + 1)
    last = end
  return step_cuts.at_points(points, undecided)


@functools.lru_cache(maxsize=16)
def _markers(words: tuple[str, ...]) -> tuple[re.Pattern[str], int]:
  """Returns the pattern of a marker, and the most characters that it reads."""
  opening = "[\"'“‘*_(]{0,4}+"
  pattern = rf"{opening}(?:{'|'.join(map(re.escape, words))})(?!\w)"
  longest = 4 + max(map(len, words)) + 1
  return re.compile(pattern, re.IGNORECASE), longest
