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

_WORD = re.compile(r"\w")
_CLOSES = re.compile(r"\\\]|\$\$")
_TEXT = re.compile(r"\\(?:text|mathrm)\{([^{}]*)\}")
# After these an answer is written without a space.
_OPENS = ("{", "(", "[", "$")


def after(force: str, answer: str) -> str:
  """Returns an answer as it is written after the text that asks for it.

  Args:
    force: The text that asks.
    answer: The answer.
  """
  return answer if force.endswith(_OPENS) else f" {answer}"


def read(force: str, text: str) -> str | None:
  """Returns the answer in what a policy wrote after it was asked.

  Args:
    force: The text that asks.
    text: What was written after it; its first line that has a letter or digit
      and doesn't end with a colon is read, with a formula's marks around it.
  """
  lines = text.strip().split("\n")
  while lines and lines[0].rstrip("* ").endswith(":"):
    lines = "\n".join(lines[1:]).strip().split("\n") if lines[1:] else []
  end = next((i for i, x in enumerate(lines) if _WORD.search(x)), None)
  if end is None:
    return None
  if lines[end + 1 : end + 2] and _CLOSES.fullmatch(lines[end + 1].strip()):
    end += 1
  said = "\n".join(lines[: end + 1])
  # A tokenizer's decoder may leave out a space at the beginning of a text.
  gap = "" if said[:1] in (":", ",", ".") else after(force, "")
  found = answers.extract(f"{force}{gap}{said}")
  # The text that asks is none.
  return found if found is not None and found in said else None


def short(answer: str) -> str:
  """Returns the number of an answer that has one among words, else all of it.

  That is 72 of "48 + 24 = 72 clips".

  Args:
    answer: The answer.
  """
  text = _TEXT.sub(r"\1", equality.unwrapped(_dollars_off(answer.strip())))
  found = _LONE_NUMBER.fullmatch(text.rpartition("=")[2].strip())
  if found is None or _NO_UNITS.search(found["before"] + " " + found["after"]):
    return answer
  return found["number"]


def _dollars_off(text: str) -> str:
  """Returns the formula between dollar signs."""
  ends = text[:1], text[-1:]
  return text.strip("$") if len(text) > 2 and ends == ("$", "$") else text


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
