"""Calculations step by step, of which one step may be wrong, and which one.

Each step is one equation: of whole numbers, decimals, fractions, percentages,
money, lengths or times, in plain text, in LaTeX or as GSM8K annotates them.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from prm_jax import schema

# An equation of a value that may be off by some.
_Write = Callable[[np.random.Generator, int], str]


def solution(id_: str, random: np.random.Generator) -> schema.Solution:
  """Returns a solution with exact labels; every second one has an error.

  Its steps after the error are equations that hold, so the labels of steps by
  themselves differ from these, which are P(correct so far).

  Args:
    id_: Its id.
    random: The source of its numbers.
  """
  num = int(random.integers(2, 8))
  error = int(random.integers(num)) if random.random() < 0.5 else num
  steps = []
  for i in range(num):
    write = _WRITERS[random.integers(len(_WRITERS))]
    off = int(random.integers(1, 10)) if i == error else 0
    steps.append(write(random, off))
  labels = tuple(float(i < error) for i in range(num))
  return schema.Solution(
    id_, f"Calculate ({id_}).", tuple(steps), labels, source="calculations"
  )


def _terms(random: np.random.Generator, most: int = 200) -> list[int]:
  return [int(x) for x in random.integers(2, most, size=3)]


def _sum(random: np.random.Generator, off: int) -> str:
  a, b, c = _terms(random)
  return f"So there are {a} + {b} - {c} = {a + b - c + off} left in all."


def _product(random: np.random.Generator, off: int) -> str:
  a, b, c = _terms(random)
  sign = random.choice(["*", "x", "×", r"\times", r"\cdot"])
  return f"They need ({a} + {b}) {sign} {c} = {(a + b) * c + off:,} of them."


def _annotated(random: np.random.Generator, off: int) -> str:
  a, b, _ = _terms(random)
  return (
    f"She has {a} red and {b} more, <<{a}+{b}={a + b + off}>>{a + b + off}."
  )


def _fraction(random: np.random.Generator, off: int) -> str:
  a, b, c = _terms(random, 20)
  value = Fraction(a, b) + Fraction(1, c) + off
  right = rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
  return rf"Then $\frac{{{a}}}{{{b}}} + \frac{{1}}{{{c}}} = {right}$."


def _rounded(random: np.random.Generator, off: int) -> str:
  a, b, _ = _terms(random)
  places = int(random.integers(1, 5))
  value = round(Fraction(a, b), places) + Fraction(off, 10**places)
  return f"Each gets {a} / {b} = {float(value):.{places}f} then."


def _percent(random: np.random.Generator, off: int) -> str:
  a, b, _ = _terms(random)
  return f"The discount is {a}% of ${b}00 = ${a * b + off:,}"


def _money(random: np.random.Generator, off: int) -> str:
  a, b, _ = _terms(random)
  cents = a * b * 5 + off
  return f"The {a} books * {b * 5} cents = ${cents // 100}.{cents % 100:02}"


def _length(random: np.random.Generator, off: int) -> str:
  a, b, _ = _terms(random)
  return f"It is {a} m + {b} cm = {a * 100 + b + off} cm long."


def _time(random: np.random.Generator, off: int) -> str:
  a, b, _ = _terms(random, 60)
  return f"The trip takes {a} hours {b} minutes = {a * 60 + b + off} minutes"


def _chain(random: np.random.Generator, off: int) -> str:
  a, b, c = _terms(random)
  whole, power = a * b + c**2, c**2
  return f"= {a}*{b} + {c}^2 = {a * b} + {power} = {whole + off}"


_WRITERS: tuple[_Write, ...] = (
  *(_sum, _product, _annotated, _fraction, _rounded, _percent, _money),
  *(_length, _time, _chain),
)
