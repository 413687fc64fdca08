"""Solved examples before a problem, for policies that know no chat.

The problems and solutions are ours, in the manner of GSM8K: a line for each
step, and a last line with the answer, which `text.answers` reads.
"""

from __future__ import annotations

from collections.abc import Sequence
import re

# A problem, and the lines of its solution.
Example = tuple[str, str]

# The opening of a problem; after a solution it ends the solution.
STOP = "\n\nProblem:"

GSM8K: tuple[Example, ...] = (
  (
    "A baker fills 4 trays with 12 rolls each and sells 30 rolls. How many"
    " rolls are left?",
    "The trays hold 4 * 12 = 48 rolls.\n"
    "After the sale 48 - 30 = 18 rolls are left.\n"
    "The answer is: 18",
  ),
  (
    "Mia reads 15 pages a day from Monday to Friday and 20 pages on each of the"
    " other two days. How many pages does she read in a week?",
    "From Monday to Friday she reads 5 * 15 = 75 pages.\n"
    "On the other two days she reads 2 * 20 = 40 pages.\n"
    "In the week she reads 75 + 40 = 115 pages.\n"
    "The answer is: 115",
  ),
  (
    "A shirt costs $40. It is sold with 25% off, and shipping costs $6. How"
    " much does a customer pay?",
    "The discount is 40 * 25 / 100 = 10 dollars.\n"
    "The shirt then costs 40 - 10 = 30 dollars.\n"
    "With shipping the customer pays 30 + 6 = 36 dollars.\n"
    "The answer is: 36",
  ),
  (
    "Three friends share the cost of a taxi. The ride costs $2 per mile for 9"
    " miles, and a fee of $6. How much does each of them pay?",
    "The miles cost 9 * 2 = 18 dollars.\n"
    "The whole ride costs 18 + 6 = 24 dollars.\n"
    "Each friend pays 24 / 3 = 8 dollars.\n"
    "The answer is: 8",
  ),
)


def prompt(examples: Sequence[Example]) -> str:
  """Returns a text with solved examples and {problem}, up to a solution.

  Args:
    examples: Problems and their solutions.
  """
  pairs = (*examples, ("{problem}", ""))
  return "\n\n".join(
    f"Problem: {problem}\nSolution:\n{solution}" for problem, solution in pairs
  )


def stop_of(prompt: str) -> tuple[str, ...]:
  """Returns the opening of a problem, if a prompt's examples have it, too.

  The opening is what the last paragraph has before the problem, "Problem:", or
  the last line. An example begins with it, at the beginning of a line; what
  comes before the examples doesn't matter.

  Args:
    prompt: A text with {problem} in it, up to a solution.

  Returns:
    The opening with the line breaks before it, or nothing.
  """
  before = prompt.partition("{problem}")[0]
  for breaks in ("\n\n", "\n"):
    earlier, _, opening = before.rpartition(breaks)
    opening = opening.rstrip()
    # Marks such as "-" begin lines of solutions, too.
    has_letters = any(map(str.isalpha, opening))
    if not opening or not (has_letters or breaks == "\n\n"):
      continue
    first = "^" if has_letters else r"(?:\A|\n\n)"
    # "Q" doesn't begin "Question".
    last = r"\b" if re.fullmatch(r"\w", opening[-1]) else ""
    if re.search(first + re.escape(opening) + last, earlier, re.MULTILINE):
      return (breaks + opening,)
  return ()
