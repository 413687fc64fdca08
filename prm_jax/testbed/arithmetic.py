"""The embedded testbed: dial problems, with an exact verifier of every step.

A dial has eight positions, 0 to 7. A problem gives a start and a few turns in
words, "Ann dials 3 up 4 times 7 back 2 .", and a solution is one line per turn,
"so 3 + 4 = 7" (modulo 8), then "answer 7". Every line opens with one of eight
connectives, so that right solutions are as varied as wrong ones: without that,
picking the best of many means picking among duplicates, which distorts every
curve. Times is many-to-one modulo 8, so a wrong path can end right by chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import dataclasses
import functools
import hashlib
import re
import reprlib

import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.runtime import checks

POSITIONS = 8
NAMES = ("Ann", "Ben", "Cal", "Dee", "Eli", "Fay", "Gus", "Hal")
CONNECTIVES = ("so", "then", "now", "next", "thus", "hence", "well", "ok")
WORDS = {"+": ("up", "plus"), "-": ("back", "minus"), "*": ("times", "by")}
SIGNS = {word: sign for sign, words in WORDS.items() for word in words}
# What a systematic slip takes a sign for.
CONFUSED = {"*": "+", "+": "-", "-": "+"}
SPLITS = ("train", "validation", "test")

# Not \d, which stands for the digits of every script.
_TURN = re.compile(rf" ({'|'.join(SIGNS)}) ([0-9])")
_PROBLEM = re.compile(rf"[A-Za-z]+ dials ([0-7])((?:{_TURN.pattern})*) \.")
_STEP = re.compile(r"(\w+) ([0-7]) ([-+*]) ([0-9]) = ([0-7])")
_ANSWER = re.compile(r"answer ([0-7])")


@dataclasses.dataclass(frozen=True)
class Task:
  """What problems look like, and how the imperfect annotator errs.

  The probabilities of slips are per line.

  Args:
    min_turns: The fewest turns.
    max_turns: The most turns.
    times_share: The share of turns that multiply.
    slip_times_hard: P(slip) when multiplying by `hard_from` or more.
    slip_times_easy: P(slip) when multiplying by less.
    slip_shift: P(slip) when going up or back.
    hard_from: The factor from which multiplying is hard.
    confusion: The share of slips that are systematic: adding instead of
      multiplying, and turning the wrong way. In other slips a digit is random.
    times: The factors.
    shifts: The amounts to go up or back.
  """

  min_turns: int = 3
  max_turns: int = 6
  times_share: float = 1 / 3
  slip_times_hard: float = 0.65
  slip_times_easy: float = 0.2
  slip_shift: float = 0.12
  hard_from: int = 4
  confusion: float = 0.8
  times: tuple[int, ...] = (2, 3, 4, 5)
  shifts: tuple[int, ...] = (1, 2, 3)

  def __post_init__(self):
    slips = ("slip_times_hard", "slip_times_easy", "slip_shift")
    checks.check_shares(self, ("times_share", *slips, "confusion"), "task.")
    errors.raise_first(self._faults(), "task: ")

  def _faults(self) -> Iterator[str]:
    if not 0 <= self.min_turns <= self.max_turns:
      yield (
        f"turns from {self.min_turns} to {self.max_turns}; expected"
        " 0 <= min_turns <= max_turns"
      )
    digits = set(range(10))
    if not (
      self.times and self.shifts and digits >= {*self.times, *self.shifts}
    ):
      yield f"times={self.times}, shifts={self.shifts}; expected digits"


def turn(value: int, sign: str, n: int) -> int:
  """Returns the dial's position after a turn."""
  return {"+": value + n, "-": value - n, "*": value * n}[sign] % POSITIONS


def parse(problem: str) -> tuple[int, list[tuple[str, int]]]:
  """Returns the start and the turns (sign, number) of a problem's text.

  Raises:
    InputError: the text is no dial problem.
  """
  start, turns = _parsed(problem)
  return start, list(turns)


@functools.lru_cache(maxsize=1 << 10)
def _parsed(problem: str) -> tuple[int, tuple[tuple[str, int], ...]]:
  match = _PROBLEM.fullmatch(problem)
  if match is None:
    raise errors.InputError(
      f"{reprlib.repr(problem)} is no dial problem; expected such as"
      " 'Ann dials 3 up 4 times 7 .'"
    )
  turns = tuple((SIGNS[word], int(n)) for word, n in _TURN.findall(match[2]))
  return int(match[1]), turns


def answer(problem: str) -> str:
  """Returns the right final answer, a digit."""
  value, turns = parse(problem)
  for sign, n in turns:
    value = turn(value, sign, n)
  return str(value)


def split_of(problem: str) -> str:
  """Returns train (80 %), validation or test: by the turns, not the words.

  Problems of different splits differ in start or turns by construction.
  """
  digest = hashlib.sha256(repr(parse(problem)).encode()).digest()
  return {0: "validation", 1: "test"}.get(digest[0] % 10, "train")


def problems(
  count: int, split: str, task: Task, random: np.random.Generator
) -> list[schema.Problem]:
  """Returns distinct problems of a split, drawn at random.

  Raises:
    InputError: there is no such split, or it has fewer problems than that.
  """
  checks.check_choice("split", split, SPLITS)
  out: dict[str, schema.Problem] = {}
  seen = set()
  draws_since_new = 0
  while len(out) < count:
    draws_since_new += 1
    if draws_since_new > 20_000:
      raise errors.InputError(
        f"{count} {split} problems are wanted and {len(out)} were found; ask"
        " for fewer, or raise max_turns"
      )
    value = int(random.integers(POSITIONS))
    text = f"{random.choice(NAMES)} dials {value}"
    for _ in range(random.integers(task.min_turns, task.max_turns + 1)):
      if random.random() < task.times_share:
        sign, n = "*", random.choice(task.times)
      else:
        sign, n = random.choice(["+", "-"]), random.choice(task.shifts)
      text += f" {random.choice(WORDS[sign])} {n}"
    text += " ."
    key = repr(parse(text))
    if split_of(text) == split and key not in seen:
      seen.add(key)
      draws_since_new = 0
      id_ = f"dial-{split}-{len(out)}"
      out[id_] = schema.Problem(id_, text, answer(text))
  return list(out.values())


def solve(
  problem: schema.Problem, random: np.random.Generator, task: Task | None = None
) -> schema.Solution:
  """Returns a right solution, or with a task the imperfect annotator's.

  The annotator slips now and then and carries on from the wrong value.
  """
  value, turns = parse(problem.problem)
  steps = []
  for sign, n in turns:
    step, value = line(value, sign, n, random, task)
    steps.append(step)
  steps.append(f"answer {value}")
  return schema.Solution(
    id=problem.id,
    problem=problem.problem,
    steps=tuple(steps),
    source="annotator" if task else "reference",
  )


def line(
  value: int,
  sign: str,
  n: int,
  random: np.random.Generator,
  task: Task | None = None,
) -> tuple[str, int]:
  """Returns the line of a turn, and the position that it says it leads to."""
  result = turn(value, sign, n)
  if task is not None:
    result = _slip(value, sign, n, result, random, task)
  word = CONNECTIVES[random.integers(len(CONNECTIVES))]
  return f"{word} {value} {sign} {n} = {result}", result


def _slip(value, sign, n, result, random, task: Task) -> int:
  if sign != "*":
    rate = task.slip_shift
  elif n >= task.hard_from:
    rate = task.slip_times_hard
  else:
    rate = task.slip_times_easy
  if random.random() >= rate:
    return result
  if random.random() < task.confusion:
    return turn(value, CONFUSED[sign], n)
  return int(random.integers(POSITIONS))


def check(problem: str, steps: Sequence[str]) -> list[float]:
  """Returns the exact label of every step: 1 while all is right so far."""
  value, turns = parse(problem)
  right, labels = True, []
  for k, step in enumerate(steps):
    if k < len(turns):
      sign, n = turns[k]
      expected = (str(value), sign, str(n), str(turn(value, sign, n)))
      match = _STEP.fullmatch(step)
      right = (
        right
        and match is not None
        and match[1] in CONNECTIVES
        and match.groups()[1:] == expected
      )
      value = turn(value, sign, n)
    else:
      right = right and k == len(turns) and step == f"answer {value}"
    labels.append(float(right))
  return labels


def stated(steps: Sequence[str]) -> str | None:
  """Returns the digit of a closing "answer" line, if there is one."""
  match = _ANSWER.fullmatch(steps[-1]) if steps else None
  return match[1] if match else None


def final_answer(solution: schema.Solution) -> str | None:
  """Returns the answer that a solution states: a schema.FindAnswer."""
  return stated(solution.steps)


def judge(solution: schema.Solution) -> schema.Solution:
  """Returns the solution with exact labels, its answer and the outcome."""
  given = final_answer(solution)
  return dataclasses.replace(
    solution,
    labels=tuple(check(solution.problem, solution.steps)),
    answer=given,
    outcome=given == answer(solution.problem),
  )


def verify(solutions: Sequence[schema.Solution]) -> list[bool | None]:
  """Returns whether each solution ends in the right answer: a schema.Verify."""
  return [final_answer(s) == answer(s.problem) for s in solutions]


def verifier(solutions: Sequence[schema.Solution]) -> list[schema.StepScores]:
  """The exact step verifier: a schema.Score."""
  return [
    schema.StepScores(tuple(check(s.problem, s.steps))) for s in solutions
  ]
