"""Solutions whose first error is known exactly: one sum of theirs is spoiled.

A sum is what can be checked in a text, NUMBER OP NUMBER = NUMBER, and adds up.
Spoiling changes its result, an operand or the operator; with the latter two the
sum still adds up, and is another one than the solution needs. The solution ends
with this step, whose label is 0; all steps before have 1.
"""

from __future__ import annotations

import dataclasses
import fractions
import operator
import re

import numpy as np

from prm_jax import schema

_NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?"
_SUM = re.compile(
  rf"(?<![\d.,/*×+-])(?<![/*×+-]\s)\$?(?P<a>{_NUMBER})"
  r"(?P<op>\s*(?:\+|-|\*|/|×|÷|x|\\times|\\div)\s*)"
  rf"\$?(?P<b>{_NUMBER})(?P<equals>\s*=\s*\\?\$?)(?P<c>{_NUMBER})(?![\d%]|[.,/]\d)"
)
_OPERATORS = {"+": operator.add, "-": operator.sub}
_OPERATORS |= dict.fromkeys(("*", "×", "x", r"\times"), operator.mul)
_OPERATORS |= dict.fromkeys(("/", "÷", r"\div"), operator.truediv)
# What an operator is taken for by mistake.
_OTHERS = {"+": "*-", "-": "+", "*": "+/", "/": "*-"}


def _value(text: str) -> fractions.Fraction:
  return fractions.Fraction(text.replace(",", ""))


def _result(a: str, op: str, b: str) -> fractions.Fraction | None:
  try:
    return _OPERATORS[op.strip()](_value(a), _value(b))
  except ZeroDivisionError:
    return None


def sums(text: str) -> list[re.Match[str]]:
  """Returns the sums of a text that add up."""
  return [
    found
    for found in _SUM.finditer(text)
    if _result(found["a"], found["op"], found["b"]) == _value(found["c"])
  ]


def spoiled(
  solution: schema.Solution, random: np.random.Generator
) -> schema.Solution | None:
  """Returns a right solution up to a step with a spoiled sum.

  Args:
    solution: The solution, all of whose steps are right.
    random: What decides which sum is spoiled, and how.

  Returns:
    The solution with labels, and in extra[SPOILED] the way of WAYS; None if no
    sum can be checked.
  """
  places = [
    (i, found) for i, step in enumerate(solution.steps) for found in sums(step)
  ]
  if not places:
    return None
  i, found = places[random.integers(len(places))]
  for k in random.permutation(len(WAYS)):
    name = list(WAYS)[k]
    changed = WAYS[name](found, solution.problem, random)
    if changed is not None:
      step = _replaced(solution.steps[i], found, *changed)
      return dataclasses.replace(
        solution,
        id=f"{solution.id}/spoiled",
        steps=(*solution.steps[:i], step),
        labels=(1.0,) * i + (0.0,),
        answer=None,
        outcome=False,
        extra={**solution.extra, SPOILED: name},
      )
  return None


def _replaced(step: str, found: re.Match[str], a, op, b, c) -> str:
  """Returns the step with another sum, its new result wherever it is used."""
  start, end = found.span()
  parts = [("a", a), ("op", op), ("b", b), ("c", c)]
  text, at = "", start
  for name, new in parts:
    text += step[at : found.start(name)] + new
    at = found.end(name)
  old = re.escape(found["c"])
  after = re.sub(rf"(?<![\d.,]){old}(?![\d]|[.,]\d)", lambda m: c, step[end:])
  return step[:start] + text + after


def _other_result(found, problem, random):
  """A result that is off by a little, a digit or a factor of 10."""
  del problem
  c, way = _value(found["c"]), random.integers(3)
  if way == 0:
    new = c + int(random.choice([-2, -1, 1, 2, 10, -10]))
  elif way == 1:
    digits = list(found["c"])
    at = random.choice([i for i, x in enumerate(digits) if x.isdigit()])
    digits[at] = str(random.choice([x for x in "123456789" if x != digits[at]]))
    new = _value("".join(digits))
  else:
    new = c * 10 if random.random() < 0.5 else c / 10
  text = _written(new)
  if text is None or new == c:
    return None
  return found["a"], found["op"], found["b"], text


def _other_operand(found, problem, random):
  """A number of the problem in an operand's place."""
  numbers = sorted({*re.findall(_NUMBER, problem)} - {found["a"], found["b"]})
  if not numbers:
    return None
  other = str(random.choice(numbers))
  a, b = (other, found["b"]) if random.random() < 0.5 else (found["a"], other)
  return _summed(found, a, found["op"], b)


def _other_operator(found, problem, random):
  """Another operation on the same numbers."""
  del problem
  plain = {"×": "*", "x": "*", r"\times": "*", "÷": "/", r"\div": "/"}
  old = found["op"].strip()
  new = str(random.choice(list(_OTHERS[plain.get(old, old)])))
  return _summed(found, found["a"], f" {new} ", found["b"])


def _summed(found, a: str, op: str, b: str):
  value = _result(a, op, b)
  text = None if value is None else _written(value)
  if text is None or value == _value(found["c"]):
    return None
  return a, op, b, text


def _written(value: fractions.Fraction) -> str | None:
  """Returns a number as solutions write it; None if they wouldn't."""
  if value < 0 or (100 * value).denominator != 1:
    return None
  return f"{float(value):.2f}".rstrip("0").rstrip(".")


# Where a solution's extra says what was changed.
SPOILED = "spoiled"
WAYS = dict(
  result=_other_result, operand=_other_operand, operator=_other_operator
)
