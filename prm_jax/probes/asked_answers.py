"""What a policy answers when it is asked to: read, shortened and compared."""

from __future__ import annotations

import re

from prm_jax.grading import equality
from prm_jax.text import answers

# One number among words: "18 eggs", "$624 every day", "that she sold 3/4".
_LONE_NUMBER = re.compile(
  r"(?P<before>[^\d=\\^_(){}\[\]*/+]*?)"
  r"(?P<number>(?<![\w.,/])[-\u2212]?[$€£]?[-\u2212]?"
  r"\d+(?:,\d{3})*(?:\.\d+)?(?:/\d+)?%?)(?!\w)"
  r"(?P<after>[^\d=\\^_(){}\[\]*/+]*)"
)
# With these words it is another number, or part of an expression.
_NO_UNITS = re.compile(
  r"\b(?:not|no|than|half|twice|double|times|plus|minus|over|squared|cubed"
  r"|root|dozens?|hundreds?|thousands?|millions?|billions?|pi|am|pm|and|or|to"
  r"|[b-z])\b",
  re.I,
)


def read(force: str, text: str) -> str | None:
  """Returns the answer in what a policy wrote after it was asked.

  Args:
    force: The text that asks.
    text: What was written after it; its first line that isn't blank is read.
  """
  line = text.strip().split("\n", 1)[0]
  if not line:
    return None
  # A tokenizer's decoder may leave out a space at the beginning of a text.
  gap = "" if line[:1] in (":", ",", ".") else " "
  return answers.extract(f"{force}{gap}{line}")


def short(answer: str) -> str:
  """Returns the number of an answer that has one among words, else all of it.

  That is 72 of "48 + 24 = 72 clips".

  Args:
    answer: The answer.
  """
  found = _LONE_NUMBER.fullmatch(answer.rpartition("=")[2].strip())
  if found is None or _NO_UNITS.search(found["before"] + " " + found["after"]):
    return answer
  return found["number"]


def same(a: str | None, b: str | None) -> bool:
  """Returns whether two answers are equal, or their numbers among words are.

  equality.equal knows measures and money, but not that "18 eggs" are 18.

  Args:
    a: An answer.
    b: Another one; None equals nothing.
  """
  if a is None or b is None:
    return False
  if equality.equal(a, b):
    return True
  if None not in (equality.parse(a).value, equality.parse(b).value):
    return False
  return equality.equal(short(a), short(b))
