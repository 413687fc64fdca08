"""Labelled chains of three domains with the same three kinds of error.

Not a command: transfer.py draws its data here. A problem names a start and some
moves, and each step makes one: it adds or takes a number (arithmetic), follows
an implication (logic), or assigns a variable (code). In two of three solutions
one step is wrong, by one of KINDS:

  within   wrong by itself: 7+5=13, "d and not d", b=b+5
  link     at odds with the step before: it starts from another value, a letter
           that doesn't hold, an older variable
  premise  at odds with the problem: another number, sign or letter

The steps after it go on from what it says. It has about as many characters as a
right step has. `extra` holds what the exact verifiers read (docs/verifiers.md),
and the kind of the error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import itertools

import numpy as np

from prm_jax import schema

KINDS = ("within", "link", "premise")
_MOST = 5
_LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")


def solutions(
  domain: str, num: int, seed: Sequence[int]
) -> list[schema.Solution]:
  """Returns labelled solutions of one of DOMAINS.

  Args:
    domain: The domain.
    num: How many.
    seed: What they are drawn by.
  """
  random = np.random.default_rng([*seed, [*DOMAINS].index(domain)])
  drawn: list[schema.Solution] = []
  for i in range(num):
    kind = str(random.choice(KINDS)) if random.random() < 2 / 3 else None
    # Drawn once: what the numbers allow says nothing of the error's place.
    place = float(random.random())
    solution = None
    while solution is None:
      solution = DOMAINS[domain](f"{domain}/{i}", random, kind, place)
    drawn.append(solution)
  return drawn


def right(domain: str, num: int, seed: Sequence[int]) -> list[schema.Solution]:
  """Returns as many solutions without an error."""
  drawn = solutions(domain, 4 * num + 20, seed)
  return [x for x in drawn if "kind" not in x.extra][:num]


def _solution(
  id_: str,
  problem: str,
  steps: Sequence[str],
  error: int,
  kind: str | None,
  **extra,
) -> schema.Solution:
  labels = tuple(float(error < 0 or i < error) for i in range(len(steps)))
  known = {} if kind is None else dict(kind=kind)
  source = id_.partition("/")[0]
  return schema.Solution(
    id_, problem, tuple(steps), labels, source=source, extra=extra | known
  )


def _moves(random: np.random.Generator) -> tuple[int, list[int]]:
  """Returns a start and what is added to it, the values from 0 to _MOST."""
  values = [int(random.integers(1, 10))]
  moves: list[int] = []
  for _ in range(int(random.integers(3, 5))):
    able = [x for x in range(-9, 10) if x and 0 <= values[-1] + x <= _MOST]
    moves.append(int(random.choice(able)))
    values.append(values[-1] + moves[-1])
  return values[0], moves


def _signed(move: int) -> str:
  return f"{move:+d}"


def _other_move(move: int, value: int, random: np.random.Generator) -> int:
  """Returns another move, of another sign or number."""
  able = [-move, *(x for x in range(-9, 10) if x * move > 0 and x != move)]
  able = [x for x in able if 0 <= value + x <= _MOST]
  return int(random.choice(able)) if able else move


def _other(least: int, most: int, but: int, random) -> int:
  value = int(random.integers(least, most))
  return value + (value >= but)


def _task(start: int, moves: Sequence[int]) -> str:
  words = (f"{'add' if x > 0 else 'take'} {abs(x)}" for x in moves)
  return f"Start with {start}, {', '.join(words)}."


def _arithmetic(
  id_: str, random: np.random.Generator, kind: str | None, place: float
) -> schema.Solution | None:
  start, moves = _moves(random)
  error = int(place * len(moves)) if kind else -1
  value, steps = start, []
  for i, move in enumerate(moves):
    at, made = value, move
    if i == error and kind == "link":
      at = _other(0, _MOST, value, random)
    if i == error and kind == "premise":
      made = _other_move(move, value, random)
      if made == move:
        return None
    value = at + made
    if i == error and kind == "within":
      value = _other(0, _MOST, value, random)
    if not 0 <= value <= _MOST:
      return None
    steps.append(f"{at}{_signed(made)}={value}")
  problem = ";".join([str(start), *map(_signed, moves)])
  return _solution(id_, problem, steps, error, kind)


def _logic(
  id_: str, random: np.random.Generator, kind: str | None, place: float
) -> schema.Solution:
  num = int(random.integers(3, 5))
  letters = [str(x) for x in random.permutation(_LETTERS)]
  chain, idle = letters[: num + 1], letters[num + 1 : 2 * num + 3]
  premises = [
    f"{a}->{b}" for x in (chain, idle) for a, b in itertools.pairwise(x)
  ]
  premises = [str(x) for x in random.permutation(premises)]
  error = int(place * num) if kind else -1
  steps, path = [], chain
  for i in range(num):
    a, b = path[i], path[i + 1]
    # As long as others are: else length would tell what is wrong within.
    twice = "not not " if random.random() < 0.5 else ""
    plain = f"{a} and {twice}{b}"
    if random.random() < 0.25 and i != error:
      plain = f"{b} or not {b}"
    if i == error and kind == "within":
      plain = f"{b} and not {b}"
    if i == error and kind == "link":
      plain = f"{idle[i]} and {twice}{b}"
    if i == error and kind == "premise":
      path = idle
      plain = f"{a} and {twice}{path[i + 1]}"
    steps.append(f"So {plain}")
  return _solution(
    id_,
    f"{chain[0]}; {'; '.join(premises)}",
    steps,
    error,
    kind,
    premises=[chain[0], *premises],
  )


def _code(
  id_: str, random: np.random.Generator, kind: str | None, place: float
) -> schema.Solution | None:
  start, moves = _moves(random)
  num = len(moves)
  names = [str(x) for x in random.permutation(_LETTERS[: num + 4])]
  # The first step has none before it, and the last one no number.
  first, last = (2, num + 1) if kind == "link" else (0, num)
  error = first + int(place * (last + 1 - first)) if kind else -1

  def wrong(step: int, by: str) -> bool:
    return (step, by) == (error, kind)

  value = start
  if wrong(0, "premise"):
    value = _other(1, 9, start, random)
  steps = [f"  {names[0]}={names[0] if wrong(0, 'within') else value}"]
  values = [value]
  for i, move in enumerate(moves):
    at, made = names[i], move
    if wrong(i + 1, "link"):
      older = int(random.integers(i))
      at, value = names[older], values[older]
    if (
      wrong(i + 1, "premise")
      and (made := _other_move(move, value, random)) == move
    ):
      return None
    if wrong(i + 1, "within"):
      at = names[i + 1]
    value += made
    values.append(value)
    steps.append(f"  {names[i + 1]}={at}{_signed(made)}")
  given = int(random.integers(num)) if wrong(num + 1, "link") else num
  answer = start + sum(moves)
  if kind in ("link", "premise") and values[given] == answer:
    return None
  steps.append(f"  return {names[given]}")
  return _solution(
    id_,
    _task(start, moves),
    steps,
    error,
    kind,
    prompt="def f():\n",
    tests=[f"assert f() == {answer}"],
  )


# The solution with an error of a kind, or without one; None if the numbers drawn
# don't allow it.
_Draw = Callable[[str, np.random.Generator, str | None], schema.Solution | None]
DOMAINS: dict[str, _Draw]
DOMAINS = dict(arithmetic=_arithmetic, logic=_logic, code=_code)
