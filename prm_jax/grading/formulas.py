r"""Whether two answers are the same formula, decided by exact values.

Both sides are read (formula_reader) and their numbers compared: as fractions
where they are rational, else with 150 digits, of which the first 75 after the
point decide. Formulas with variables are compared at points. So what differs in
a digit, a sign, a unit or a term is different, however little it is, and
`2**(1/4)` is `\sqrt{\sqrt{2}}`. None is no verdict: a side isn't read, or a
value is too large, too small or not defined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import dataclasses
from fractions import Fraction
import functools
import itertools
import random
from typing import Any

from prm_jax.grading import formula_reader as reader
from prm_jax.grading import formula_values as values
from prm_jax.grading.formula_parser import Node
from prm_jax.grading.formula_parser import Unread

Verdict = bool | None

# Points with positive coordinates, then as many with any.
_NUM_POINTS = 3


def same(a: str, b: str) -> Verdict:
  """Returns whether two answers are the same; None if that can't be told.

  Args:
    a: An answer, in LaTeX or plain text.
    b: The other one. A unit, a base or a name (x =) may be missing on one side.
  """
  try:
    one, two = reader.read(a), reader.read(b)
    if _has_unit(one) or _has_unit(two):
      # Beside a unit, a lone m isn't a variable.
      one, two = (reader.read(x, unit_letters=True) for x in (a, b))
    return _same(one, two)
  except Unread:
    return None


def _has_unit(answer: reader.Answer) -> bool:
  if isinstance(answer, reader.Collection):
    return any(map(_has_unit, answer.elements))
  return isinstance(answer, reader.Element) and bool(answer.unit)


def _same(a: reader.Answer, b: reader.Answer) -> Verdict:
  if isinstance(a, reader.Element) and isinstance(b, reader.Element):
    pair = _expanded(a), _expanded(b)
    if len(pair[0]) == len(pair[1]) == 1:
      return _same_element(a, b)
    return _same_unordered(*pair, as_set=True)
  for kind, rule in _RULES.items():
    if isinstance(a, kind) or isinstance(b, kind):
      return rule(a, b)
  return _same_group(a, b)


def _all(verdicts: Iterator[Verdict]) -> Verdict:
  found = list(verdicts)
  return False if False in found else None if None in found else True


# --- Groups -------------------------------------------------------------------


def _same_words(a: reader.Answer, b: reader.Answer) -> Verdict:
  return a == b if type(a) is type(b) else None


def _same_group(a: reader.Answer, b: reader.Answer) -> Verdict:
  if not (isinstance(a, reader.Group) and isinstance(b, reader.Group)):
    return False  # a value and a tuple or an interval
  if len(a.elements) != len(b.elements):
    return False
  inside = _all(map(_same, a.elements, b.elements))
  if (a.opening, a.closing) == (b.opening, b.closing):
    return inside
  return False if inside is False or len(a.elements) == 2 else None


def _same_collection(a: reader.Answer, b: reader.Answer) -> Verdict:
  if isinstance(a, reader.Group) or isinstance(b, reader.Group):
    return None
  kinds = [getattr(x, "kind", "") for x in (a, b)]
  one, two = _members(a), _members(b)
  if "union" in kinds and (kinds != ["union"] * 2 or len(one) != len(two)):
    return None  # a union has no single value, and its parts may meet
  if "" in kinds:  # a list may be one value, twice
    return _same_unordered(one, two, as_set=True)
  if _num_names(one) > 1 and not _num_names(two):
    one, two = two, one
  if _num_names(two) > 1 and not _num_names(one):
    # x = 1, y = 2 has an order: that of the names.
    in_order = len(one) == len(two) and _all(map(_same, one, two))
    return in_order or None
  return _same_unordered(one, two, as_set="set" in kinds)


def _members(answer: reader.Answer) -> list[reader.Answer]:
  if not isinstance(answer, reader.Collection):
    return _expanded(answer)
  return [x for element in answer.elements for x in _expanded(element)]


def _num_names(elements: Sequence[reader.Answer]) -> int:
  """Returns how many names elements have."""
  names = {x.name for x in elements if isinstance(x, reader.Element)}
  return len(names - {""})


def _same_unordered(
  a: Sequence[reader.Answer], b: Sequence[reader.Answer], *, as_set: bool
) -> Verdict:
  """Returns whether each of a is one of b and each of b one of a.

  Args:
    a: Elements.
    b: The others.
    as_set: Whether it doesn't count how often an element is there.
  """
  verdicts = [[_same(x, y) for y in b] for x in a]
  columns = list(zip(*verdicts))
  rows = [*verdicts, *columns]
  if any(True not in row and None not in row for row in rows):
    return False
  if len(a) != len(b) or not all(True in row for row in rows):
    return None
  # Equal elements have equal rows: they are to be as often here as there.
  counts = [sum(x == row for x in verdicts) for row in verdicts]
  alike = all(count == row.count(True) for count, row in zip(counts, verdicts))
  return True if as_set or alike else None


def _expanded(answer: reader.Answer) -> list[reader.Answer]:
  r"""Returns the two values of one with \pm, else the answer alone."""
  if not isinstance(answer, reader.Element):
    return [answer]
  if all(node.kind != "plus_minus" for node in _nodes(answer.value)):
    return [answer]
  return [
    dataclasses.replace(answer, value=_with_sign(answer.value, sign))
    for sign in "+-"
  ]


def _with_sign(node: Any, sign: str) -> Any:
  if not isinstance(node, Node):
    return node
  parts = tuple(_with_sign(part, sign) for part in node.parts)
  if node.kind == "plus_minus":
    return parts[0] if sign == "+" else Node("negative", parts)
  return Node(node.kind, parts)


def _same_matrix(a: reader.Answer, b: reader.Answer) -> Verdict:
  if not (isinstance(a, reader.Matrix) and isinstance(b, reader.Matrix)):
    return None
  if list(map(len, a.rows)) != list(map(len, b.rows)):
    return False
  cells = itertools.chain(*a.rows), itertools.chain(*b.rows)
  return _all(map(_same, *cells))


def _same_numeral(a: reader.Answer, b: reader.Answer) -> Verdict:
  """Returns whether digits are the same; a base may be missing on one side."""
  if isinstance(a, reader.Numeral) and isinstance(b, reader.Numeral):
    return a == b
  if isinstance(b, reader.Numeral):
    a, b = b, a
  if not isinstance(a, reader.Numeral) or not isinstance(b, reader.Element):
    return None
  if b.value.kind != "number":
    return None
  return b.value.parts[0] == Fraction(a.digits)


# --- Values -------------------------------------------------------------------


def _same_element(a: reader.Element, b: reader.Element) -> Verdict:
  verdict = _same_value(a.value, b.value)
  if verdict is False and bool(a.letters) != bool(b.letters):
    plain = b.value if a.letters else a.value
    return False if _variables(plain) else None
  differ = a.name and b.name and (verdict is False or a.name != b.name)
  if differ and _variables(a.value, b.value):
    return _same_relation(a, b)  # x = 2y is y = x/2
  if not verdict:
    return verdict
  if a.unit and b.unit and a.unit != b.unit:
    vague = "unit" in f"{a.unit} {b.unit}".split()
    rate = a.unit.startswith(f"{b.unit} per") or b.unit.startswith(
      f"{a.unit} per"
    )
    return None if vague or rate else False
  if a.name and b.name and a.name != b.name:
    return False if len(a.name) == len(b.name) == 1 else None
  return True


def _same_value(a: Node, b: Node) -> Verdict:
  infinities = [_infinity(node) for node in (a, b)]
  if any(infinities):
    return infinities[0] == infinities[1]
  pairs = list(zip(_values_of(a), _values_of(b)))
  verdicts = [
    None if x is None or y is None else values.same_number(x, y)
    for x, y in pairs
  ]
  positive = _all(iter(verdicts[:_NUM_POINTS]))
  if not positive:
    return None if _are_of_integers(a, b) else positive
  # sqrt(x^2) is x for positive x alone: whether that counts isn't told here. But
  # where neither has a value, as p^m for a negative p, they don't differ.
  told = (v or x is y is None for v, (x, y) in zip(verdicts, pairs))
  return all(told) or None


@functools.lru_cache(maxsize=512)
def _values_of(node: Node) -> tuple[Any, ...]:
  """Returns a formula's value at each point, None where it isn't told."""
  names = sorted(_variables(node))
  found = []
  for i in range(2 * _NUM_POINTS if names else 1):
    try:
      found.append(values.value_of(node, _point(names, i)))
    except values.Undefined:
      found.append(None)
  return tuple(found if names else found * (2 * _NUM_POINTS))


def _are_of_integers(*nodes: Node) -> bool:
  """Returns whether formulas may hold for integers alone, as cos(2 pi n) = 1."""
  parts = [part for node in nodes for part in _nodes(node)]
  imaginary = Node("constant", ("i",))
  is_periodic = any(x.kind == "call" or x == imaginary for x in parts)
  return is_periodic and not _variables(*nodes).isdisjoint("kmn")


def _infinity(node: Node) -> int:
  """Returns 1 or -1 for an infinity, else 0."""
  if node.kind == "negative":
    return -_infinity(node.parts[0])
  return int(node.kind == "infinity")


def _nodes(node: Any) -> Iterator[Node]:
  """Yields a formula and all formulas in it."""
  if isinstance(node, Node):
    yield node
    for part in node.parts:
      yield from _nodes(part)


def _variables(*nodes: Node) -> set[str]:
  parts = (part for node in nodes for part in _nodes(node))
  return {part.parts[0] for part in parts if part.kind == "variable"}


def _point(names: Sequence[str], number: int) -> dict[str, Fraction]:
  """Returns values of variables; positive ones for the first numbers."""
  return {name: _coordinate(name, number) for name in names}


@functools.lru_cache(maxsize=4096)
def _coordinate(name: str, number: int) -> Fraction:
  random_number = random.Random(f"{name} {number}")
  value = Fraction(random_number.randrange(1_000, 9_000), 2_003)
  negative = number >= _NUM_POINTS and random_number.random() < 0.7
  return -value if negative else value


# --- Relations ----------------------------------------------------------------


def _same_relation(a: reader.Answer, b: reader.Answer) -> Verdict:
  """Returns whether two relations are the same but for a factor.

  Others may have the same solutions, unless both are linear.
  """
  one, two = _relation(a), _relation(b)
  if one is None or two is None:
    return None
  names = sorted(_variables(one.left, one.right))
  if names != sorted(_variables(two.left, two.right)):
    return None
  points = [_point(names, i) for i in range(2 * _NUM_POINTS)]
  try:
    ratios = [values.quotient(_gap(two, p), _gap(one, p)) for p in points]
    linear = _is_linear(one, names) and _is_linear(two, names)
  except values.Undefined:
    return None
  constant = _all(values.same_number(ratio, ratios[0]) for ratio in ratios)
  if constant is None or (constant is False and not linear):
    return None
  if not constant or one.sign != two.sign:
    return False
  if one.sign in ("=", "!="):
    return True
  return ratios[0] > 0 if isinstance(ratios[0], Fraction) else None


def _relation(answer: reader.Answer) -> reader.Relation | None:
  if isinstance(answer, reader.Relation):
    return answer
  if isinstance(answer, reader.Element) and len(answer.name) == 1:
    return reader.Relation("=", Node("variable", (answer.name,)), answer.value)
  return None


def _gap(relation: reader.Relation, point: dict[str, Fraction]) -> Any:
  left = values.value_of(relation.left, point)
  return values.difference(left, values.value_of(relation.right, point))


def _is_linear(relation: reader.Relation, names: Sequence[str]) -> bool:
  """Returns whether the sides' difference is linear in all variables."""
  zero = dict.fromkeys(names, Fraction(0))
  x, y = _point(names, 0), _point(names, 1)
  both = {name: x[name] + y[name] for name in names}
  negative = {name: -x[name] for name in names}
  gaps = [_gap(relation, point) for point in (zero, x, y, both, negative)]
  if not all(isinstance(gap, Fraction) for gap in gaps):
    return False
  at_zero, at_x, at_y, at_both, at_negative = gaps
  return at_both + at_zero == at_x + at_y and at_x + at_negative == 2 * at_zero


# The first of which an answer is one decides how both are compared.
_RULES = {
  reader.Words: _same_words,
  reader.Relation: _same_relation,
  reader.Matrix: _same_matrix,
  reader.Numeral: _same_numeral,
  reader.Collection: _same_collection,
}
