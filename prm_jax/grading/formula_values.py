r"""The value of a formula at a point, as exactly as it can be told.

A rational one is a Fraction; others have 150 digits, so that the first 75 after
the point can be trusted if no value on the way is beyond 1e60 or, not being
zero, less than 1e-60. Time and memory are bounded whatever the formula: no number
has more than some 20,000 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
import functools
import math
import operator
from typing import Any

from prm_jax.grading import formula_parser
from prm_jax.grading.formula_parser import Node

_DIGITS = 150
_SAME, _DIFFERENT = -75, -70  # powers of ten
_LARGEST, _NOISE = 60, -130
_MOST_BITS = 20_000


class Undefined(Exception):
  """A formula has no value here, or none that could be told exactly."""


def value_of(node: Node, point: Mapping[str, Fraction]) -> Any:
  """Returns a formula's value: a Fraction, or a number of 150 digits.

  Args:
    node: The formula.
    point: The value of each variable.

  Raises:
    Undefined: It has none, or none that could be told exactly.
  """
  if node.kind == "number":
    return node.parts[0]
  if node.kind == "variable":
    return point[node.parts[0]]
  if node.kind == "constant":
    context = _context()
    constants = dict(pi=context.pi, e=context.e, i=context.mpc(0, 1))
    return +constants[node.parts[0]]  # as a number
  name = node.parts[0] if node.kind == "call" else node.kind
  if name not in _OPERATIONS:
    raise Undefined
  parts = node.parts[1:] if node.kind == "call" else node.parts
  return _checked(_OPERATIONS[name](*(value_of(part, point) for part in parts)))


def same_number(a: Any, b: Any) -> bool | None:
  """Returns whether two values are one; None if their digits don't tell."""
  if isinstance(a, Fraction) and isinstance(b, Fraction):
    return a == b
  context = _context()
  distance = abs(_real(a) - _real(b))
  if distance < context.mpf(10) ** _SAME:
    return True
  return False if distance > context.mpf(10) ** _DIFFERENT else None


def difference(a: Any, b: Any) -> Any:
  """Returns a - b."""
  return _apply(operator.sub, a, b)


def quotient(a: Any, b: Any) -> Any:
  """Returns a / b.

  Raises:
    Undefined: b is 0.
  """
  if not b:
    raise Undefined
  return _apply(operator.truediv, a, b)


@functools.cache
def _context() -> Any:
  import mpmath  # only the `verify` extra brings it

  context = mpmath.MPContext()
  context.dps = _DIGITS
  return context


def _real(value: Any) -> Any:
  """Returns a fraction as a number of 150 digits; others as they are."""
  if not isinstance(value, Fraction):
    return value
  if value and not -_LARGEST < _magnitude(value) < _LARGEST:
    raise Undefined
  return _context().mpf(value.numerator) / value.denominator


def _magnitude(value: Fraction) -> float:
  """Returns log10 of a fraction, roughly."""
  bits = value.numerator.bit_length() - value.denominator.bit_length()
  return bits * math.log10(2)


def _checked(value: Any) -> Any:
  """Returns a value; refuses one whose digits could be lost or are too many."""
  if isinstance(value, Fraction):
    is_known = _num_bits(value) <= _MOST_BITS
  else:
    context, size = _context(), abs(value)
    is_known = context.isfinite(size) and (
      not size or -_LARGEST < context.log10(size) < _LARGEST
    )
  if not is_known:
    raise Undefined
  return value


def _num_bits(value: Fraction) -> int:
  return value.numerator.bit_length() + value.denominator.bit_length()


def _apply(operation: Callable[..., Any], a: Any, b: Any) -> Any:
  if isinstance(a, Fraction) and isinstance(b, Fraction):
    return operation(a, b)
  return operation(_real(a), _real(b))


def _sum(*values: Any) -> Any:
  total = values[0]
  for value in values[1:]:
    if isinstance(total, Fraction) and isinstance(value, Fraction):
      total = _checked(total + value)
      continue
    largest = max(abs(_real(total)), abs(_real(value)))
    total = _checked(_without_noise(difference(total, -value), largest))
  return total


def _without_noise(value: Any, largest: Any) -> Any:
  """Returns 0 for what only rounding leaves of numbers that cancel."""
  if not largest:
    return value
  mpf = _context().mpf
  return mpf(0) if abs(value) < largest * mpf(10) ** _NOISE else value


def _product(*values: Any) -> Any:
  return functools.reduce(
    lambda x, y: _checked(_apply(operator.mul, x, y)), values
  )


def _power(base: Any, exponent: Any) -> Any:
  if isinstance(base, Fraction) and isinstance(exponent, Fraction):
    if not base and exponent <= 0:
      raise Undefined
    if exponent.denominator == 1:
      if _num_bits(base) * abs(exponent) > _MOST_BITS:
        raise Undefined
      return base**exponent.numerator
    if base < 0 and exponent.denominator != 2:
      raise Undefined  # which root?
  if not base:
    if isinstance(exponent, Fraction) and exponent > 0:
      return base
    raise Undefined
  x, y = _real(base), _real(exponent)
  is_root = isinstance(exponent, Fraction) and exponent.denominator > 2
  if is_root and not _context().im(x) and x < 0:
    raise Undefined  # which one?
  if abs(y) > 10_000:
    raise Undefined
  return x**y


def _root(of: Any, degree: Any) -> Any:
  if not _is_whole(degree) or not 2 <= degree <= 100:
    raise Undefined
  if not of:
    return of
  number = _real(of)
  power = _context().mpf(1) / degree.numerator
  if not _context().im(number):  # a complex number has no order, even -1 + 0i
    number = _context().re(number)
    if number < 0 and degree != 2:
      if degree % 2 == 0:
        raise Undefined
      return -((-number) ** power)
  return number**power


def _is_whole(value: Any) -> bool:
  return isinstance(value, Fraction) and value.denominator == 1


def _of_integers(function: Callable, most: int) -> Callable:
  def apply(*values: Any) -> Fraction:
    for x in values:
      if not _is_whole(x) or not 0 <= x <= most:
        raise Undefined
    return Fraction(function(*(x.numerator for x in values)))

  return apply


def _function(name: str) -> Callable:
  def apply(value: Any) -> Any:
    x = _real(value)
    if abs(x) > 10**6 or (name == "ln" and not x):
      raise Undefined
    try:
      value = getattr(_context(), _NAMES.get(name, name))(x)
    except (ValueError, ZeroDivisionError, OverflowError) as error:
      raise Undefined from error
    # sin pi is 0; what is close to 0 is that by its argument alone.
    return value if name == "exp" else _without_noise(value, _context().mpf(1))

  return apply


def _logarithm(of: Any, base: Any) -> Any:
  ln = _OPERATIONS["ln"]
  return quotient(ln(of), _checked(ln(base)))


_NAMES = dict(arcsin="asin", arccos="acos", arctan="atan", ln="log")
_OPERATIONS: dict[str, Callable] = {
  **{name: _function(name) for name in formula_parser.FUNCTIONS},
  "sum": _sum,
  "product": _product,
  "negative": operator.neg,
  "quotient": quotient,
  "power": _power,
  "root": _root,
  "abs": abs,
  "log": _logarithm,
  "factorial": _of_integers(math.factorial, 200),
  "binom": _of_integers(math.comb, 1_000),
}
