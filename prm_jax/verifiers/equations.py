"""Whether the equations of a step hold, exactly, by fractions.

A step is right if each equation that can be read holds, wrong if one doesn't,
and has no label without one. It is judged by itself: whether an equation follows
from the problem, whether its numbers are the right ones, and what the words say
isn't judged. So a wrong idea with right sums passes.

The rules:

  - A number with digits after the point equals what rounds to it, ties either
    way, if it stands alone: 10/3 = 3.33, 1/8 = 0.13 and 0.12, 2/3 = 0.66... (dots
    cut off); but 2/3 = 0.66, 7/2 = 3 and 0.33 * 3 = 1 are wrong. After a sign for
    about a whole number does so, too, to its last digit that isn't 0.
  - Units of both sides must be one or convert (units.py), and a sum's as well. A
    side without a unit has that of the other, or another of its dimension: 2
    hours = 2 * 60. In a product a unit may be missing (2 hours * 60 = 120
    minutes): if only the numbers agree, the equation isn't judged.
  - a = b + c = d is judged as it is written, except where b + c goes on from
    the value of a (3 + 4 = 7 * 2 = 14), which isn't judged. Nor is a quotient
    without its remainder (13 / 6 = 2) in a step that speaks of one, or what
    doesn't hold in a step that says so (2 = 3, a contradiction).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
import dataclasses
from fractions import Fraction
import re

from prm_jax import schema
from prm_jax.grading import formula_values
from prm_jax.grading.formula_parser import Node
from prm_jax.verifiers import equation_finder
from prm_jax.verifiers import units
from prm_jax.verifiers import verdicts
from prm_jax.verifiers.equation_finder import Side
from prm_jax.verifiers.equation_pieces import Quantity

VERSION = 2

_REMAINDER = re.compile(
  r"remain|\bleft|\b(?:full|whole|complete)\b|[0-9] ?[rR] ?[0-9]"
)
# In a step with such words an equation that doesn't hold may be meant so.
_DENIED = re.compile(
  r"contradict|impossible|absurd|\bfalse\b|\bwrong|incorrect|mistake|no solution"
  r"|not (?:true|equal|correct|right|possible|hold)|n't (?:true|equal|correct|hold)"
  r"|in binary|octal|hexadecimal|\bmod\b|modul|\bbase[- ]?[0-9]|\bin base\b"
  r"|\bnot [$0-9(]|=[^=.,;]{1,40}\?",
  re.I,
)
_Dimensions = tuple[tuple[str, int], ...]


class _UnitsDifferError(Exception):
  """A sum has units that don't convert."""


@dataclasses.dataclass(frozen=True)
class _Read:
  """A side with its values.

  Args:
    number: Its value as written, without units.
    value: Its value in the first units of its dimensions.
    dimensions: The dimensions; () is without a unit, None of a sum of several.
    tolerance: How far the number may be from one that it rounds; below 0 if it
      rounds none.
    scale: How many of its dimension's first unit a lone number's unit is.
  """

  number: Fraction
  value: Fraction
  dimensions: _Dimensions | None
  tolerance: Fraction
  scale: Fraction


def verify(solution: schema.Solution) -> list[verdicts.Verdict]:
  """Returns whether the equations of each step hold: a Verifier.

  Args:
    solution: The solution.
  """
  return [verify_step(step) for step in solution.steps]


def verify_step(step: str) -> verdicts.Verdict:
  """Returns whether the equations of a step hold.

  Args:
    step: The text of the step.
  """
  if len(step) > equation_finder.MAX_CHARS:
    most = f"{equation_finder.MAX_CHARS:,}"
    return verdicts.Verdict(None, f"longer than {most} characters: not read")
  held: list[str] = []
  unread: list[str] = []
  for chain in equation_finder.find(step):
    pairs = zip(chain.sides, chain.sides[1:], chain.are_about)
    for i, (left, right, is_about) in enumerate(pairs):
      if left is None or right is None:
        continue
      result, said = _compared(left, right, is_about)
      goes_on = i + 2 < len(chain.sides) and _goes_on(left, right)
      if result is False and goes_on:
        result, said = None, f"{left.text} = {right.text}: goes on with a value"
      if result is False and _REMAINDER.search(step) and _is_floor(left, right):
        result, said = None, f"{left.text} = {right.text}: leaves a remainder"
      if result is False and _DENIED.search(step):
        result, said = (
          None,
          f"{left.text} = {right.text}: is denied, or no claim",
        )
      if result is False:
        return verdicts.Verdict(0, said)
      (unread if result is None else held).append(said)
  if held:
    more = f", and {len(held) - 1} more" if len(held) > 1 else ""
    return verdicts.Verdict(1, f"{held[0]}{more}")
  return verdicts.Verdict(None, unread[0] if unread else "no readable equation")


def _compared(
  left: Side, right: Side, is_about: bool
) -> tuple[bool | None, str]:
  """Returns whether two sides are equal, None if that isn't certain, and why."""
  said = f"{left.text} {'≈' if is_about else '='} {right.text}"
  try:
    a, b = _read(left, is_about), _read(right, is_about)
  except formula_values.Undefined:
    return None, f"{said}: has no value, or one that is too long"
  sides = (left, right)
  in_product = any(_has_product(x.node) for x in sides)
  quantities = [q for x in sides for q in x.quantities.values()]
  if a.dimensions is None or b.dimensions is None:
    if any(q.has_letter for q in quantities):
      return None, f"{said}: could be variables"
    result = None if in_product else False
    return result, f"{said}: the units of a sum don't convert"
  as_written = _close(a.number - b.number, a.tolerance, b.tolerance)
  if _holds(a, b) or (as_written and _units_are_left_out(sides, a, b)):
    return True, said
  if any(_mixes_shares(x.node, x.quantities) for x in sides):
    return None, f"{said}: of what is the percentage?"
  has_factor = any(not q.dimensions for q in quantities)
  bare = not (a.dimensions and b.dimensions) or any(
    _has_bare_term(x) for x in sides
  )
  if bare and any(q.has_letter for q in quantities):
    return None, f"{said}: could be a variable"
  if a.dimensions != b.dimensions and a.dimensions and b.dimensions:
    if left.is_lone and right.is_lone:
      return None, f"{said}: the units don't convert"
    is_open = as_written or has_factor or _mixes_units(quantities)
    is_open = in_product and is_open
    result = None if is_open else False
    return result, f"{said}: the units don't agree"
  if as_written and (in_product or has_factor):
    return None, f"{said}: in numbers, but not in the units as written"
  if bare and quantities and _mixes_units(quantities):
    return None, f"{said}: which unit has the number without one?"
  return False, f"{said} is wrong{_value_shown(left, a)}"


def _read(side: Side, is_about: bool) -> _Read:
  scales = [q.scale for q in side.quantities.values()]
  try:
    dimensions = _dimensions_of(side.node, side.quantities)
  except _UnitsDifferError:
    dimensions = None
  return _Read(
    number=_value(side, dict.fromkeys(side.quantities, Fraction(1))),
    value=_value(side, {k: q.scale for k, q in side.quantities.items()}),
    dimensions=dimensions,
    tolerance=_tolerance(side, is_about),
    scale=scales[0] if scales and side.is_lone else Fraction(1),
  )


def _value(side: Side, scales: Mapping[str, Fraction]) -> Fraction:
  point = {k: q.number * scales[k] for k, q in side.quantities.items()}
  value = formula_values.value_of(side.node, point)
  if not isinstance(value, Fraction):
    raise formula_values.Undefined
  return value


def _tolerance(side: Side, is_about: bool) -> Fraction:
  """Returns how far a side may be from what it rounds, below 0 if it can't."""
  if side.places:
    digit = Fraction(1, 10**side.places)
    return digit if side.is_cut else digit / 2
  if side.places is None or not is_about:
    return Fraction(-1)
  number = abs(int(_value(side, dict.fromkeys(side.quantities, Fraction(1)))))
  last = 1
  while number and number % (last * 10) == 0:
    last *= 10
  return Fraction(last, 2)


def _close(difference: Fraction, *tolerances: Fraction) -> bool:
  return not difference or abs(difference) <= max(tolerances)


def _holds(a: _Read, b: _Read) -> bool:
  """Returns whether two sides are equal in their units."""
  if a.dimensions == b.dimensions:
    tolerances = a.tolerance * a.scale, b.tolerance * b.scale
    return _close(a.value - b.value, *tolerances)
  if a.dimensions and b.dimensions:
    return False
  known, bare = (a, b) if a.dimensions else (b, a)
  dimensions = known.dimensions or ()
  if _close(known.number - bare.value, known.tolerance, bare.tolerance):
    return True
  if len(dimensions) != 1 or dimensions[0][1] != 1:
    return False
  return any(
    _close(
      known.value / scale - bare.value,
      known.tolerance * known.scale / scale,
      bare.tolerance,
    )
    for scale in units.scales(dimensions[0][0])
  )


def _units_are_left_out(sides: Sequence[Side], a: _Read, b: _Read) -> bool:
  """Returns whether sides that agree in numbers only lack what is understood.

  A term of a sum has the unit of the others, if that is one; and what a rate is
  per may be said once: $9 + $10 = $19 per day.
  """
  quantities = [q for x in sides for q in x.quantities.values()]
  if _mixes_units(quantities):
    return False
  if a.dimensions == b.dimensions:
    return any(_has_bare_term(x) for x in sides)
  one, two = ([x for x in of.dimensions or () if x[1] > 0] for of in (a, b))
  return one == two and not any(_has_product(x.node) for x in sides)


def _has_bare_term(side: Side) -> bool:
  """Returns whether a sum has terms with a unit and terms without."""
  return _mixes(side.node, lambda x: bool(_dimensions_of(x, side.quantities)))


def _mixes_shares(node: Node, quantities: Mapping[str, Quantity]) -> bool:
  """Returns whether a sum has percentages and other numbers: 50 + 20%."""

  def is_share(term: Node) -> bool:
    return term.kind == "variable" and not quantities[term.parts[0]].dimensions

  return _mixes(node, is_share)


def _mixes(node: Node, is_one: Callable[[Node], bool]) -> bool:
  """Returns whether a sum in a formula has terms of a kind, and others."""
  parts = [x for x in node.parts if isinstance(x, Node)]
  if node.kind == "sum":
    terms = (x.parts[0] if x.kind == "negative" else x for x in parts)
    if len({is_one(term) for term in terms}) > 1:
      return True
  return any(_mixes(x, is_one) for x in parts)


def _dimensions_of(
  node: Node, quantities: Mapping[str, Quantity]
) -> _Dimensions:
  """Returns the dimensions of a formula; a term without has the others'.

  Raises:
    _UnitsDifferError: Terms of a sum have several.
  """
  if node.kind == "number":
    return ()
  if node.kind == "variable":
    return quantities[node.parts[0]].dimensions
  if node.kind == "power":
    base = _dimensions_of(node.parts[0], quantities)
    power = node.parts[1]
    if not base:
      return ()
    if power.kind != "number" or power.parts[0].denominator != 1:
      raise _UnitsDifferError
    return tuple((k, v * int(power.parts[0])) for k, v in base)
  parts = [_dimensions_of(part, quantities) for part in node.parts]
  if node.kind in ("sum", "negative"):
    known = {x for x in parts if x}
    if len(known) > 1:
      raise _UnitsDifferError
    return next(iter(known), ())
  total: Counter[str] = Counter()
  for i, part in enumerate(parts):
    sign = -1 if node.kind == "quotient" and i else 1
    for name, power in part:
      total[name] += sign * power
  return tuple(sorted((k, v) for k, v in total.items() if v))


def _has_product(node: Node) -> bool:
  """Returns whether a quantity is a factor: a unit may be missing beside it."""
  is_product = node.kind in ("product", "quotient", "power")
  if is_product and any(map(_has_quantity, node.parts)):
    return True
  return any(isinstance(x, Node) and _has_product(x) for x in node.parts)


def _has_quantity(node: Node) -> bool:
  if node.kind == "variable":
    return True
  return any(isinstance(x, Node) and _has_quantity(x) for x in node.parts)


def _mixes_units(quantities: Sequence[Quantity]) -> bool:
  """Returns whether two units of one dimension are there."""
  pairs = {(q.dimensions, q.scale) for q in quantities}
  return len(pairs) > len({dimensions for dimensions, _ in pairs})


def _goes_on(left: Side, right: Side) -> bool:
  """Returns whether a side begins with the value of the one before it."""
  node = right.node
  if right.is_lone:
    return False
  while node.kind in ("sum", "product", "quotient", "power"):
    node = node.parts[0]
  if node.kind == "number":
    first = node.parts[0]
  elif node.kind == "variable":
    first = right.quantities[node.parts[0]].number
  else:
    return False
  return first == _value(left, dict.fromkeys(left.quantities, Fraction(1)))


def _is_floor(left: Side, right: Side) -> bool:
  """Returns whether a quotient is written as the whole number below it."""
  ones = [dict.fromkeys(x.quantities, Fraction(1)) for x in (left, right)]
  number = _value(left, ones[0])
  return left.node.kind == "quotient" and _value(right, ones[1]) == number // 1


def _value_shown(side: Side, read: _Read) -> str:
  """Returns what a side is, in words."""
  number = read.number
  is_long = max(abs(number.numerator), number.denominator) > 10**12
  if side.is_lone or read.value != number or is_long:
    return ""
  if number.denominator == 1:
    return f": {side.text} is {number.numerator:,}"
  about = f"{float(number):.6g}"
  word = "" if Fraction(about) == number else "about "
  return f": {side.text} is {word}{about}"
