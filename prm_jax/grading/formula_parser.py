r"""Tokens to a formula, or nothing.

What has two readings isn't read at all: `1/2x`, `\log 2` without a base,
`12 3`, `2 \frac{3}{2}`. Reading takes time linear in the tokens, and 40 levels
at most.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from fractions import Fraction

from prm_jax.grading.formula_tokens import closes_at
from prm_jax.grading.formula_tokens import Token


class Unread(Exception):
  """An answer isn't a formula, or could be two."""


@dataclasses.dataclass(frozen=True)
class Node:
  """A formula: `kind` and its parts.

  number (Fraction), variable (str), constant (str), infinity (); sum, product,
  quotient, power, negative, plus_minus (Nodes); call (str, Node...).
  """

  kind: str
  parts: tuple = ()


_MAX_DEPTH = 40
FUNCTIONS = {
  *("sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan"),
  *("sinh", "cosh", "tanh", "ln", "exp"),
}
_GREEK = {
  *("alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta"),
  *("theta", "iota", "kappa", "lambda", "mu", "nu", "xi", "rho", "sigma"),
  *("tau", "phi", "varphi", "chi", "psi", "omega"),
}
_NAMES = {*FUNCTIONS, *_GREEK, "binom", "log", "infty"}
_END = Token("nothing", "")
_ALIASES = dict(asin="arcsin", acos="arccos", atan="arctan")


def parse(tokens: Sequence[Token]) -> Node:
  """Returns the formula that all of the tokens are.

  Raises:
    Unread: They aren't one, or could be two.
  """
  if sum(token.text == r"\pm" for token in tokens) > 1:
    raise Unread  # two values, or four?
  parser = _Parser(tokens)
  node = parser.sum()
  if parser.next() is not _END:
    raise Unread
  return node


class _Parser:
  """Reads tokens from the left to the right, once."""

  def __init__(self, tokens: Sequence[Token]):
    self._tokens, self._at = [*tokens, _END], 0
    self._depth, self._in_bars = 0, 0

  def next(self) -> Token:
    return self._tokens[self._at]

  def _is(self, *texts: str) -> bool:
    return self.next().is_one_of(*texts)

  def _take(self, *texts: str) -> str | None:
    if not self._is(*texts):
      return None
    self._at += 1
    return self._tokens[self._at - 1].text

  def _want(self, text: str) -> None:
    if self._take(text) is None:
      raise Unread

  def sum(self) -> Node:
    sign = self._take("-", "+", r"\pm")
    terms = [self._signed(sign, self._product())]
    while sign := self._take("+", "-", r"\pm"):
      terms.append(self._signed(sign, self._product()))
    return terms[0] if len(terms) == 1 else Node("sum", tuple(terms))

  def _signed(self, sign: str | None, node: Node) -> Node:
    if sign == r"\pm":
      return Node("plus_minus", (node,))
    return Node("negative", (node,)) if sign == "-" else node

  def _product(self) -> Node:
    node = _product(self._run())
    for _ in range(_MAX_DEPTH):
      sign = self._take("*", "/")
      if not sign:
        return node
      minus, start = self._take("-"), self._at
      factors = self._run()
      if sign == "/" and (len(factors) > 1 or self._is_product(start)):
        raise Unread  # 1/2x, 1/xy: of what is x a factor?
      other = self._signed(minus, _product(factors))
      node = Node("product" if sign == "*" else "quotient", (node, other))
    raise Unread

  def _run(self) -> list[Node]:
    """Returns factors that follow each other without a sign."""
    first, start = self.next(), self._at
    factors = [self._power()]
    # A digit of a number may have been taken from it.
    whole = self._at == start + 1 and first.is_whole
    while self._begins(token := self.next()):
      if whole and (token.text == r"\frac" or self._is_fraction_next()):
        factors = [self._mixed(factors[0])]
      elif token.kind == "number" and self._tokens[self._at - 1].text != "}":
        raise Unread  # 12 3
      else:
        factors.append(self._power())
      whole = False
    return factors

  def _is_product(self, start: int) -> bool:
    """Returns whether a token is variables that follow each other."""
    token = self._tokens[start]
    several = token.kind == "letters" and len(token.text) > 1
    return several and _ALIASES.get(token.text, token.text) not in FUNCTIONS

  def _is_fraction_next(self) -> bool:
    three = self._tokens[self._at : self._at + 3]
    top, slash, bottom = (*(token.text for token in three), "", "")[:3]
    is_one = top.isdigit() and slash == "/" and bottom.isdigit()
    return is_one and three[0].after_blank

  def _mixed(self, whole: Node) -> Node:
    r"""Returns 1 1/2 or 1\frac{1}{2}; refuses 2\frac{3}{2}."""
    if self._is(r"\frac"):
      fraction = self._power()
      if fraction.kind != "quotient" or not _is_number(*fraction.parts):
        return Node("product", (whole, fraction))
    else:
      top = self._power()
      self._want("/")
      fraction = Node("quotient", (top, self._power()))
    top, bottom = fraction.parts
    if not (_is_number(bottom) and 0 < top.parts[0] < bottom.parts[0]):
      raise Unread
    return Node("sum", (whole, fraction))

  def _begins(self, token: Token) -> bool:
    """Returns whether a token begins a factor."""
    if token.text == "|":
      return not self._in_bars
    is_name = token.kind == "command" and token.text[1:] in _NAMES
    is_one = is_name or token.kind in ("number", "letters")
    return is_one or token.text in ("(", "[", "{", r"\frac", r"\sqrt", r"\pi")

  def _power(self) -> Node:
    base = self._factor()
    if self._take("!"):
      base = Node("call", ("factorial", base))
    if self._take("^"):
      base = Node("power", (base, self._exponent()))
    if self._is("!", "^"):
      raise Unread  # 2^3^2, 5!!
    return base

  def _exponent(self) -> Node:
    minus = self._take("-")
    if self._is_product(self._at):
      raise Unread  # e^xy: of the power, or beside it?
    node = self._bracketed() if self._is("{", "(") else self._factor()
    return self._signed(minus, node)

  def _bracketed(self) -> Node:
    opening = self._tokens[self._at].text
    self._at += 1
    bars, self._in_bars = self._in_bars, 0
    node = self.sum()
    self._in_bars = bars
    self._want({"(": ")", "[": "]", "{": "}"}[opening])
    return node

  def _argument(self) -> Node:
    """Returns what TeX takes as an argument: a group, a digit, a letter."""
    token = self.next()
    if token.kind == "letters" and len(token.text) > 1:
      raise Unread
    if token.kind != "number":
      return self._factor()
    if not token.text.isdigit():
      raise Unread
    if len(token.text) == 1:
      self._at += 1
    else:
      self._tokens[self._at] = Token("number", token.text[1:])
    return _number(token.text[0])

  def _factor(self) -> Node:
    self._depth += 1
    if self._depth > _MAX_DEPTH:
      raise Unread
    node = self._one_factor()
    self._depth -= 1
    return node

  def _one_factor(self) -> Node:
    token = self.next()
    if token.kind == "text":
      raise Unread
    if token.text in ("(", "[", "{"):
      return self._bracketed()
    if token.text == "|":
      self._at += 1
      self._in_bars += 1
      node = self.sum()
      self._in_bars -= 1
      self._want("|")
      return Node("call", ("abs", node))
    self._at += 1
    if token.kind == "number":
      return _number(token.text)
    if token.kind == "letters":
      return self._letters(token)
    name = token.text[1:]
    if token.text in (r"\frac", r"\binom"):
      two = self._argument(), self._argument()
      is_fraction = name == "frac"
      return (
        Node("quotient", two) if is_fraction else Node("call", (name, *two))
      )
    if token.text == r"\sqrt":
      return self._root()
    if token.text == r"\pi":
      return Node("constant", ("pi",))
    if token.text == r"\infty":
      return Node("infinity")
    if token.text == r"\log":
      self._want("_")
      base = self._argument()
      return Node("call", ("log", self._operand(), base))
    if name in FUNCTIONS:
      return self._call(name)
    if name in _GREEK:
      return self._variable(name)
    raise Unread

  def _root(self) -> Node:
    degree = _number("2")
    if self._take("["):
      degree = self.sum()
      self._want("]")
    of = self._bracketed() if self._is("(") else self._argument()
    return Node("call", ("root", of, degree))

  def _call(self, name: str) -> Node:
    exponent = None
    if self._take("^"):
      exponent = self._exponent()
      if exponent.kind == "negative":
        raise Unread  # an inverse function, or one over it?
    node = Node("call", (name, self._operand()))
    return Node("power", (node, exponent)) if exponent else node

  def _operand(self) -> Node:
    """Returns what a function is of: a group, or factors without brackets."""
    if self._is("(", "{", "["):
      return self._bracketed()
    factors = [self._power()]
    while self.next().kind == "letters" or self._is(
      r"\pi", r"\frac", r"\theta"
    ):
      factors.append(self._power())
    token = self.next()
    if self._begins(token) and token.text[1:] not in FUNCTIONS:
      raise Unread  # sin x (x + 1)
    return _product(factors)

  def _letters(self, token: Token) -> Node:
    """Returns variables that follow each other, or a function of something."""
    name = _ALIASES.get(token.text, token.text)
    if name in FUNCTIONS:
      return self._call(name)
    if len(token.text) > 3 or token.text == "pm":
      raise Unread  # a word, or plus or minus
    nodes = [self._constant(letter) for letter in token.text[:-1]]
    node = self._variable(token.text[-1])
    if nodes and self._is("^"):
      # The power is of the last letter alone.
      self._at += 1
      node = Node("power", (node, self._exponent()))
      if self._is("^"):
        raise Unread
    return _product([*nodes, node])

  def _constant(self, letter: str) -> Node:
    if letter in ("e", "i"):
      return Node("constant", (letter,))
    return Node("variable", (letter,))

  def _variable(self, name: str) -> Node:
    if not self._is("_"):
      return self._constant(name)
    self._at += 1
    if self._is("{"):
      length = closes_at(self._tokens[self._at :])
      if length < 0:
        raise Unread
      end = self._at + length
      index = "".join(t.text for t in self._tokens[self._at + 1 : end])
      self._at = end + 1
    else:
      token = self.next()
      if token.kind not in ("number", "letters") or self._is_product(self._at):
        raise Unread  # k_BT
      index = token.text
      self._at += 1
    return Node("variable", (f"{name}_{index}",))


def _product(factors: Sequence[Node]) -> Node:
  return factors[0] if len(factors) == 1 else Node("product", tuple(factors))


def _number(text: str) -> Node:
  return Node("number", (Fraction(text.replace(",", "").rstrip(".")),))


def _is_number(*nodes: Node) -> bool:
  return all(node.kind == "number" for node in nodes)
