"""Formulas of logic with whole numbers, as people write them.

  p -> q, not (p and q), p or q <-> r       statements
  x + 2 <= y, 0 < x < 3, 2x = 3y - 1        linear whole numbers

From the loosest to the tightest: <->, -> (to the right), or, and, not,
comparisons (which chain), + and -, *. Other spellings of a sign are in _SIGNS. A
name is of a statement or of a number, whichever its place asks for; = is of
numbers alone. Reading takes time linear in the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import itertools
import re

MAX_CHARS = 2_000
_MAX_DEPTH, _MAX_TOKENS, _MAX_DIGITS = 20, 400, 30
_SIGNS = {
  spelling: sign
  for sign, spellings in {
    "<->": "<-> <=> ↔ ⇔ iff",
    "->": "-> => → ⇒ implies",
    "or": "or | || ∨",
    "and": "and & && ∧",
    "not": "not ~ ¬ !",
    "<=": "<= ≤",
    ">=": ">= ≥",
    "!=": "!= ≠",
    "<": "<",
    ">": ">",
    "=": "= ==",
    "+": "+",
    "-": "- −",
    "*": "* · ×",
    "(": "( [",
    ")": ") ]",
    "true": "true",
    "false": "false",
  }.items()
  for spelling in spellings.split()
}
_TOKEN = re.compile(
  r"\s*+(?:(?P<number>[0-9]++)|(?P<name>[A-Za-z_][A-Za-z0-9_]*+)"
  r"|(?P<sign><->|<=>|->|=>|<=|>=|!=|==|&&|\|\||.))",
  re.S,
)
_COMPARISONS = ("<=", ">=", "!=", "<", ">", "=")
# Words that lead to a formula, a mark such as "3.", and what says why.
_LEAD = re.compile(
  r"\s*+(?:(?:(?:step|line|claim|lemma)\s*+)?[0-9]++[.:)]\s++)?+"
  r"(?:(?:so|thus|hence|therefore|then|we (?:have|get|know|conclude)|it follows"
  r"|that)\b[,:]?+\s*+|(?:premise|conclusion|claim|result|answer|given):\s*+)*+",
  re.I,
)
_WHY = re.compile(r"[,(]?\s*\b(?:by|from|because|since|using)\b.*", re.S | re.I)


class UnreadError(Exception):
  """A text isn't a formula; the message says why."""


@dataclasses.dataclass(frozen=True)
class Formula:
  """A formula.

  Args:
    kind: A sign; or number, name.
    parts: Formulas; or the number, the name.
  """

  kind: str
  parts: tuple


@dataclasses.dataclass(frozen=True)
class Read:
  """A formula and the names in it.

  Args:
    formula: The formula.
    are_numbers: Of each name whether it is a number's.
  """

  formula: Formula
  are_numbers: Mapping[str, bool]


def read_step(step: str) -> Read:
  """Returns the formula of a step, without the words before and after it.

  Args:
    step: Such as "3. So q -> r, by 1 and 2."

  Raises:
    UnreadError: It is none.
  """
  if len(step) > MAX_CHARS:
    raise UnreadError(f"longer than {MAX_CHARS:,} characters")
  text = step[_LEAD.match(step).end() :]  # type: ignore[union-attr]
  return read(_WHY.sub("", text).strip().rstrip("."))


def read(text: str) -> Read:
  """Returns the formula that a text is.

  Args:
    text: The text.

  Raises:
    UnreadError: It is none.
  """
  if len(text) > MAX_CHARS:
    raise UnreadError(f"longer than {MAX_CHARS:,} characters")
  tokens = [*_tokens(text)]
  if not tokens or len(tokens) > _MAX_TOKENS:
    raise UnreadError("no formula" if not tokens else "too long a formula")
  parser = _Parser(tokens)
  names: dict[str, bool] = {}
  try:
    formula = parser.equivalence()
    if parser.next():
      raise UnreadError(f"{parser.next()!r} isn't expected there")
    _check(formula, False, names)
  except RecursionError:
    raise UnreadError("too deep a formula") from None
  return Read(formula, names)


def _tokens(text: str) -> Iterator[str]:
  for match in _TOKEN.finditer(text.strip()):
    token = match["number"] or match["name"] or match["sign"]
    if match["number"] and len(token) > _MAX_DIGITS:
      raise UnreadError("too long a number")
    if match["sign"] and token not in _SIGNS:
      raise UnreadError(f"{token!r} is no sign of logic")
    is_word = match["name"] and len(token) > 1  # Not, AND
    yield _SIGNS.get(token.lower() if is_word else token, token)


class _Parser:
  """Reads tokens from the left to the right, once."""

  def __init__(self, tokens: Sequence[str]):
    self._tokens, self._at, self._depth = [*tokens, ""], 0, 0

  def next(self) -> str:
    return self._tokens[self._at]

  def _take(self, *tokens: str) -> str:
    token = self.next()
    if token not in tokens:
      return ""
    self._at += 1
    return token

  def equivalence(self) -> Formula:
    self._depth += 1
    if self._depth > _MAX_DEPTH:
      raise UnreadError("too many brackets in each other")
    left = self._implication()
    while self._take("<->"):
      left = Formula("<->", (left, self._implication()))
    self._depth -= 1
    return left

  def _implication(self) -> Formula:
    parts = [self._several("or")]
    while self._take("->"):
      parts.append(self._several("or"))
    formula = parts.pop()
    while parts:
      formula = Formula("->", (parts.pop(), formula))
    return formula

  def _several(self, sign: str) -> Formula:
    def part() -> Formula:
      return self._several("and") if sign == "or" else self._not()

    parts = [part()]
    while self._take(sign):
      parts.append(part())
    return parts[0] if len(parts) == 1 else Formula(sign, tuple(parts))

  def _not(self) -> Formula:
    count = 0
    while self._take("not"):
      count += 1
    formula = self._comparison()
    return Formula("not", (formula,)) if count % 2 else formula

  def _comparison(self) -> Formula:
    sides, signs = [self._sum()], []
    while sign := self._take(*_COMPARISONS):
      signs.append(sign)
      sides.append(self._sum())
    pairs = itertools.pairwise(sides)
    parts = [Formula(sign, pair) for sign, pair in zip(signs, pairs)]
    if not parts:
      return sides[0]
    return parts[0] if len(parts) == 1 else Formula("and", tuple(parts))

  def _sum(self) -> Formula:
    terms = [self._signed(self._take("-"))]
    while sign := self._take("+", "-"):
      terms.append(self._signed(sign))
    return terms[0] if len(terms) == 1 else Formula("+", tuple(terms))

  def _signed(self, sign: str) -> Formula:
    factors = [self._atom()]
    while self._take("*") or self._is_beside(factors[-1]):
      factors.append(self._atom())
    if sign == "-":
      factors.insert(0, Formula("number", (-1,)))
    return factors[0] if len(factors) == 1 else Formula("*", tuple(factors))

  def _is_beside(self, factor: Formula) -> bool:
    """Returns whether a factor follows without a sign: 2x, 2 (x + y)."""
    token = self.next()
    is_name = token.isidentifier() and token not in _SIGNS
    return factor.kind == "number" and (is_name or token == "(")

  def _atom(self) -> Formula:
    if self._take("-"):
      if self.next() == "-":
        raise UnreadError("two signs in a row")
      return Formula("*", (Formula("number", (-1,)), self._atom()))
    token = self.next()
    if self._take("("):
      formula = self.equivalence()
      if not self._take(")"):
        raise UnreadError("a bracket isn't closed")
      return formula
    if not token:
      raise UnreadError("it ends too early")
    self._at += 1
    if token.isdigit():
      return Formula("number", (int(token),))
    if token in ("true", "false"):
      return Formula(token, ())
    if token in _SIGNS:
      raise UnreadError(f"{token!r} isn't expected there")
    return Formula("name", (token,))


def _check(formula: Formula, is_number: bool, names: dict[str, bool]) -> None:
  """Refuses a statement for a number, a number for one, x * y.

  Args:
    formula: The formula.
    is_number: Whether a number is asked for.
    names: Of each name whether it is a number's; those of the formula are added.
  """
  kind, parts = formula.kind, formula.parts
  if kind == "name":
    if names.setdefault(parts[0], is_number) != is_number:
      raise UnreadError(f"{parts[0]} is a number and a statement")
    return
  if (kind in ("number", "+", "*")) != is_number:
    raise UnreadError(
      "a statement stands for a number"
      if is_number
      else "a number stands for a statement"
    )
  if kind == "number":
    return
  if kind == "*" and sum(not _is_constant(x) for x in parts) > 1:
    raise UnreadError("a product of two names isn't linear")
  for part in parts:
    _check(part, kind in ("+", "*", *_COMPARISONS), names)


def _is_constant(formula: Formula) -> bool:
  if formula.kind == "number":
    return True
  return formula.kind in ("+", "*") and all(map(_is_constant, formula.parts))
