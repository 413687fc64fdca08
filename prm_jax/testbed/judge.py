"""An LLM judge for the testbed: its template, and chains to train it on.

The form is ThinkPRM's, in the few words of a dial problem. The prompt holds
the steps and then the problem, so that the chain follows it as a solution does
in the texts that a base model knows:

  check so 3 + 4 = 7 ; then 7 * 7 = 2 ; answer 2 ; Ann dials 3 up 4 times 7 .

For each step up to the first wrong one, a chain writes the right step, repeats
the given one without its connective, and gives the verdict; its last line is
about the whole solution:

  3 + 4 = 7 check 3 + 4 = 7 correct
  7 * 7 = 1 check 7 * 7 = 2 incorrect
  solution no
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
import re

from prm_jax import schema
from prm_jax.labelling import judge_prompts
from prm_jax.testbed import arithmetic

# What the judge's vocabulary must have besides the testbed's words.
WORDS = (
  "check",
  ";",
  "nothing",
  "correct",
  "incorrect",
  "solution",
  "yes",
  "no",
)

_LINE = re.compile(
  r"(?:[0-7] [-+*] [0-9] = [0-7]|answer [0-7]|nothing) check(?: .*)?"
  r"( correct| incorrect)"
)
_LAST = re.compile(r"solution( yes| no)")


def _read(text: str, num_steps: int) -> judge_prompts.Verdict | str:
  """Reads a chain: a line with a verdict per step, then the whole's."""
  *lines, last = text.split("\n")
  of_whole = _LAST.fullmatch(last)
  if of_whole is None:
    return "no_verdict"
  right, places, start = [], [], 0
  for line in lines:
    match = _LINE.fullmatch(line)
    if match is None:
      return "no_verdict"
    right.append(match[1] == " correct")
    places.append(start + match.start(1))
    start += len(line) + 1
  error = judge_prompts.settle(right, num_steps, stops=True)
  if isinstance(error, str):
    return error
  if (of_whole[1] == " yes") != (error < 0):
    return "contradicting_verdicts"
  return judge_prompts.Verdict(error, tuple(places), start + of_whole.start(1))


TEMPLATE = judge_prompts.Template(
  name="dial",
  prompt="check {steps} {problem}",
  step="{text} ;",
  between=" ",
  # Not in the vocabulary: it is read as an unknown word.
  reserved=re.compile(rf"(?<!\S)(?:{'|'.join(WORDS)})(?!\S)"),
  instead="?",
  read=_read,
  step_words=(" correct", " incorrect"),
  whole_words=(" yes", " no"),
  whole_question="solution",
)

# All that a judge may be asked by.
TEMPLATES = judge_prompts.TEMPLATES | {TEMPLATE.name: TEMPLATE}


def chains(
  solutions: Iterable[schema.Solution],
) -> tuple[list[schema.Solution], dict[str, int]]:
  """Returns what the judge should write about labelled solutions, and counts.

  Each has the prompt as its problem and the chain as its steps: training data
  of the program `sft`. labels counts the verdicts in the chains. Solutions
  without steps, or with a label missing up to the first error, are left out and
  counted.
  """
  prompts_and_chains = []
  counts = Counter(dict.fromkeys(("chains", "labels"), 0))
  for solution in solutions:
    labels = solution.labels or (None,) * len(solution.steps)
    error = schema.first_error(labels)
    judged = labels[: error + 1] if error >= 0 else labels
    if not solution.steps:
      counts["without_steps"] += 1
    elif None in judged:
      counts["unlabelled"] += 1
    else:
      counts["chains"] += 1
      counts["labels"] += len(judged)
      prompt = judge_prompts.ask(TEMPLATE, solution)
      lines = _lines(solution, len(judged), error)
      prompts_and_chains.append(
        schema.Solution(solution.id, prompt, lines, source="exact chain")
      )
  return prompts_and_chains, dict(counts)


def exercises(solutions: Iterable[schema.Solution]) -> list[schema.Solution]:
  """Returns chains of all steps, without verdicts; they need no label.

  A base model learns from them to redo steps and to repeat given ones, which a
  pretrained language model can do before it learns to judge.
  """
  return [
    schema.Solution(
      s.id, judge_prompts.ask(TEMPLATE, s), tuple(_redone(s)), source="exercise"
    )
    for s in solutions
    if s.steps
  ]


def _lines(
  solution: schema.Solution, num_judged: int, error: int
) -> tuple[str, ...]:
  """Returns a chain: each step redone, its verdict, and the whole's."""
  lines = [
    f"{line} {'incorrect' if k == error else 'correct'}"
    for k, line in enumerate(_redone(solution)[:num_judged])
  ]
  return (*lines, f"solution {'yes' if error < 0 else 'no'}")


def _redone(solution: schema.Solution) -> list[str]:
  """Returns each step as it should be, and beside it as it is."""
  value, turns = arithmetic.parse(solution.problem)
  lines = []
  for k, step in enumerate(solution.steps):
    right = "nothing" if k > len(turns) else f"answer {value}"
    if k < len(turns):
      sign, n = turns[k]
      result = arithmetic.turn(value, sign, n)
      right = f"{value} {sign} {n} = {result}"
      value = result
    given = judge_prompts.plain(TEMPLATE, step)
    connective, _, rest = given.partition(" ")
    if connective in arithmetic.CONNECTIVES:
      given = rest
    lines.append(f"{right} check {given}")
  return lines
