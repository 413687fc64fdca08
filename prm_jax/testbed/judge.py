"""Chains to train an LLM judge of the testbed on.

Their form is that of `judge_prompts.DIAL`: for each step up to the first wrong
one the right step, the given one without its connective and the verdict, and a
last line about the whole solution.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prm_jax import schema
from prm_jax.labelling import judge_prompts
from prm_jax.testbed import arithmetic


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
      prompt = judge_prompts.ask(judge_prompts.DIAL, solution)
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
      s.id,
      judge_prompts.ask(judge_prompts.DIAL, s),
      tuple(_redone(s)),
      source="exercise",
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
    given = judge_prompts.plain(judge_prompts.DIAL, step)
    connective, _, rest = given.partition(" ")
    if connective in arithmetic.CONNECTIVES:
      given = rest
    lines.append(f"{right} check {given}")
  return lines
