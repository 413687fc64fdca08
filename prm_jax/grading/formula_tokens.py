"""The tokens of a formula, in LaTeX or plain text."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import re

# Each relation by its spellings.
SIGNS = {
  spelling: sign
  for sign, spellings in {
    "=": "=",
    "!=": r"!= ≠ \ne \neq",
    "<": r"< \lt",
    ">": r"> \gt",
    "<=": r"<= ≤ \le \leq \leqslant",
    ">=": r">= ≥ \ge \geq \geqslant",
  }.items()
  for spelling in spellings.split()
}
_SAME_AS = {
  spelling: token
  for token, spellings in {
    "*": r"× · ⋅ ∗ \times \cdot \ast",
    "/": r"÷ \div",
    "^": "**",
    "-": "– —",
    "|": r"\lvert \rvert \vert",
    "[": r"\lbrack",
    "]": r"\rbrack",
    r"\{": r"\lbrace",
    r"\}": r"\rbrace",
    r"\pi": "π pi",
    r"\pm": "±",
    r"\in": "∈",
    r"\cup": "∪",
    r"\sqrt": "√ sqrt",
    r"\frac": r"\dfrac \tfrac \cfrac",
    r"\binom": r"\dbinom \tbinom",
    r"\infty": "∞ inf infty infinity oo",
  }.items()
  for spelling in spellings.split()
}
_IDLE = re.compile(
  r"(?<!\\)\\(?:(?:left|right|[bB]ig+[lr]?|displaystyle)(?![A-Za-z])\.?"
  r"|q?quad(?![A-Za-z])|[,;:! ])|~"
)
_POWERS = str.maketrans("²³", "23")
_TOKEN = re.compile(
  r"(?P<blank>\s++)"
  r"|\\(?:text(?:bf|rm|it|up)?|math(?:rm|bf|it)|mbox|operatorname)\s*+"
  r"\{(?P<text>[^{}]*+)\}"
  r"|\\begin\s*+\{(?P<begin>[a-z]++)\}(?:\{[^{}]*+\})?"
  r"|\\end\s*+\{(?P<end>[a-z]++)\}"
  r"|(?P<number>[1-9][0-9]{0,2}(?:,[0-9]{3})++(?![0-9])(?:\.[0-9]++)?"
  r"|[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)"
  r"(?P<short>[eE][+-]?[0-9]{1,3}(?![0-9A-Za-z]))?"
  r"|(?P<command>\\[A-Za-z]++|\\.)"
  r"|(?P<letters>[A-Za-z]++)"
  r"|(?P<mark>\*\*|<=|>=|!=|[^\s0-9A-Za-z])",
  re.S,
)


@dataclasses.dataclass(frozen=True)
class Token:
  r"""A piece of a formula.

  Args:
    kind: number, letters (a run of them), command (with its backslash), mark,
      text (what is in \text{}), begin or end (of an environment, its name).
    text: The piece.
    after_blank: Whether a blank is before it.
  """

  kind: str
  text: str
  after_blank: bool = False

  @property
  def is_whole(self) -> bool:
    """Whether it is a whole number of digits alone."""
    return self.kind == "number" and self.text.isdigit()

  def is_one_of(self, *texts: str) -> bool:
    return self.kind != "text" and self.text in texts


def tokens_of(text: str) -> list[Token]:
  """Returns a text's tokens; each has one spelling, and blanks aren't tokens."""
  found, blank = [], False
  for match in _TOKEN.finditer(_IDLE.sub(" ", text)):
    kind, value = match.lastgroup or "", match[0]
    if kind == "blank":
      blank = True
      continue
    if kind == "short":
      kind = "number"
    elif kind in ("text", "begin", "end"):
      value = match[kind]
    else:
      value = _SAME_AS.get(value, value)
    if kind == "letters" and value.startswith("\\"):
      kind = "command"
    if value in ("²", "³"):
      found.append(Token("mark", "^"))
      kind, value = "number", value.translate(_POWERS)
    found.append(Token(kind, value, blank))
    blank = False
  return found


def level_change(token: Token) -> int:
  """Returns 1 if a token opens a bracket or an environment, -1 if it closes one."""
  if token.kind == "begin" or token.is_one_of("(", "[", "{", r"\{"):
    return 1
  return -int(token.kind == "end" or token.is_one_of(")", "]", "}", r"\}"))


def closes_at(tokens: Sequence[Token]) -> int:
  """Returns the index of the token that closes the first one, -1 if none does."""
  level = 0
  for i, token in enumerate(tokens):
    level += level_change(token)
    if not level:
      return i
  return -1
