"""Small programs in steps with unit tests, of which one step may be wrong.

The error is one of Python's grammar, an exception on the tests' inputs, a broken
assertion or a loop without an end, of a step known by how it was planted; or a
wrong result, which only the whole code shows, on its last step.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from prm_jax import schema


@dataclasses.dataclass(frozen=True)
class _Program:
  """A task, its steps, and the tests' inputs and what they give."""

  task: str
  steps: tuple[str, ...]
  tests: tuple[str, ...]


_PROGRAMS = (
  _Program(
    "Return the sum of the even numbers.",
    (
      "def solve(numbers):",
      "  total = 0",
      "  for x in numbers:\n    if x % 2 == 0:\n      total += x",
      "  return total",
    ),
    ("assert solve([1, 2, 4]) == 6", "assert solve([]) == 0"),
  ),
  _Program(
    "Count the words by their first letters.",
    (
      "import collections",
      "def solve(text):",
      "  words = text.split()",
      "  counts = collections.Counter(\n    w[0] for w in words\n  )",
      "  result = dict(counts)",
      "  return result",
    ),
    (
      "assert solve('an apple bed') == {'a': 2, 'b': 1}",
      "assert solve('') == {}",
    ),
  ),
  _Program(
    "Return the greatest common divisor.",
    (
      "def solve(a, b):",
      "  while b:",
      "    a, b = b, a % b",
      "  result = abs(a)",
      "  return result",
    ),
    ("assert solve(12, 18) == 6", "assert solve(7, 0) == 7"),
  ),
  _Program(
    "Return the words backwards, each once.",
    (
      "def solve(words):",
      "  seen = []",
      "  for word in words:",
      "    if word not in seen:",
      "      seen.append(word)",
      "  seen.reverse()",
      "  return tuple(seen)",
    ),
    ("assert solve(['a', 'b', 'a']) == ('b', 'a')",),
  ),
  _Program(
    "Return the square root of n, rounded down, by a helper.",
    (
      "def guess(n):",
      "  root = 0",
      "  while (root + 1) ** 2 <= n:\n    root += 1",
      "  return root",
      "def solve(n):",
      "  root = guess(n)",
      "  assert root * root <= n",
      "  return root",
    ),
    ("assert solve(17) == 4", "assert solve(0) == 0"),
  ),
)
# A line, at a step's place and depth, that makes the code wrong from there on.
_ERRORS = (
  "x = = 1",
  "return (1",
  "undefined_name",
  "[1, 2][5]",
  "1 / 0",
  "assert 1 == 2, 'never'",
  "int('seven')",
  "while True: pass",
)


def solution(id_: str, random: np.random.Generator) -> schema.Solution:
  """Returns a solution with exact labels; two of three have an error.

  Args:
    id_: Its id.
    random: The source of its choices.
  """
  program = _PROGRAMS[random.integers(len(_PROGRAMS))]
  steps, num = list(program.steps), len(program.steps)
  error, kind = num, random.random()
  if kind < 0.5:
    # In the function that the tests call, which is the last one, where a
    # statement of its own begins.
    start = max(i for i, x in enumerate(steps) if x.startswith("def"))
    places = [
      i
      for i, step in enumerate(steps)
      if i > start and not step.startswith("   ")
    ]
    error = int(random.choice(places))
    wrong = _ERRORS[random.integers(len(_ERRORS))]
    steps[error] = f"  {wrong}\n{steps[error]}"
    while steps[error + 1 : error + 2] and steps[error + 1].startswith("   "):
      # A loop is judged with what it holds.
      steps[error : error + 2] = ["\n".join(steps[error : error + 2])]
  elif kind < 0.67:
    steps[-1] = "  return 'something else'"
    error = num - 1
  labels = tuple(float(i < error) for i in range(len(steps)))
  return schema.Solution(
    id_,
    program.task,
    tuple(steps),
    labels,
    outcome=error == num,
    source="small_programs",
    extra=dict(tests=list(program.tests)),
  )
