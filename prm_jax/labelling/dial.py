"""A judge for the testbed: its template, and chains to train it on by `sft`.

The form is ThinkPRM's, in the few words of a dial problem. The prompt is

  Ann dials 3 up 4 times 7 . check one so 3 + 4 = 7 two then 7 * 7 = 2 ...

and a chain does each step over and gives its verdict, up to the first wrong
one; its last line is about the whole solution:

  one 3 + 4 = 7 correct
  two 7 * 7 = 1 incorrect
  solution no
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
import re

from prm_jax import arithmetic
from prm_jax import schema
from prm_jax.labelling import verdicts

NAMES = (
  *("one", "two", "three", "four", "five", "six", "seven", "eight"),
  *("nine", "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen"),
)
# What the judge's vocabulary must have besides the testbed's words.
WORDS = (*NAMES, "check", "correct", "incorrect", "solution", "yes", "no")

_LINE = re.compile(r"(\S+)(?: .*)?( correct| incorrect)")
_LAST = re.compile(r"solution( yes| no)")


def _read(text: str, num_steps: int) -> verdicts.Verdict | str:
  """Reads a chain: numbered lines with verdicts, then the whole's."""
  *lines, last = text.split("\n")
  of_whole = _LAST.fullmatch(last)
  if of_whole is None:
    return "no_verdict"
  right, places, start = [], [], 0
  for k, line in enumerate(lines):
    found = _LINE.fullmatch(line)
    if found is None:
      return "no_verdict"
    if k >= num_steps:
      return "out_of_range"
    if found[1] != NAMES[k]:
      return "out_of_order"
    right.append(found[2] == " correct")
    places.append(start + found.start(2))
    start += len(line) + 1
  error = verdicts.settle(right, num_steps, stops=True)
  if isinstance(error, str):
    return error
  if (of_whole[1] == " yes") != (error < 0):
    return "contradicting_verdicts"
  return verdicts.Verdict(error, tuple(places), start + of_whole.start(1))


TEMPLATE = verdicts.Template(
  name="dial",
  prompt="{problem} check {steps}",
  step="{number} {text}",
  between=" ",
  first=1,
  names=NAMES,
  # No word of the vocabulary: it is read as unknown.
  reserved=re.compile(rf"(?<!\S)(?:{'|'.join(WORDS)})(?!\S)"),
  instead="?",
  read=_read,
  step_words=(" correct", " incorrect"),
  whole_words=(" yes", " no"),
  whole_question="solution",
)


def chains(
  solutions: Iterable[schema.Solution],
) -> tuple[list[schema.Solution], dict[str, int]]:
  """Returns what the judge should write about labelled solutions, and counts.

  Each is a problem, the prompt, with the chain as its steps: training data of
  the program `sft`. labels counts those that the chains tell. Left out, and
  counted: without steps, with too many, or with a label missing up to the
  first error.
  """
  found = []
  counts = Counter(dict.fromkeys(("chains", "labels"), 0))
  for solution in solutions:
    prompt = verdicts.ask(TEMPLATE, solution)
    labels = solution.labels or (None,) * len(solution.steps)
    error = schema.first_error(labels)
    judged = labels[: error + 1] if error >= 0 else labels
    if not solution.steps:
      counts["without_steps"] += 1
    elif prompt is None:
      counts["too_many_steps"] += 1
    elif None in judged:
      counts["unlabelled"] += 1
    else:
      counts["chains"] += 1
      counts["labels"] += len(judged)
      lines = _lines(solution.problem, len(judged), error)
      found.append(
        schema.Solution(solution.id, prompt, lines, source="exact chain")
      )
  return found, dict(counts)


def _lines(problem: str, num_judged: int, error: int) -> tuple[str, ...]:
  """Returns a chain: each step done over, its verdict, and the whole's."""
  value, turns = arithmetic.parse(problem)
  lines = []
  for k in range(num_judged):
    words = [NAMES[k]]
    if k < len(turns):
      sign, n = turns[k]
      result = arithmetic.turn(value, sign, n)
      words.append(f"{value} {sign} {n} = {result}")
      value = result
    elif k == len(turns):
      words.append(f"answer {value}")
    lines.append(" ".join([*words, "incorrect" if k == error else "correct"]))
  return (*lines, f"solution {'yes' if error < 0 else 'no'}")
