r"""Answers as formulas: values with units, tuples, sets, relations, words.

Units stay beside the formula, as `equality` reads them. What has two readings
isn't read at all (formula_parser).
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import re

from prm_jax.grading import equality
from prm_jax.grading import formula_parser
from prm_jax.grading import formula_tokens
from prm_jax.grading.formula_parser import Node
from prm_jax.grading.formula_parser import Unread
from prm_jax.grading.formula_tokens import Token


@dataclasses.dataclass(frozen=True)
class Element:
  """One value.

  Args:
    value: The formula.
    unit: Its unit as `equality` has it, "" for none.
    name: What it is the value of, as the x of x = 5, "" for none.
    letters: What follows a lone number and could be a unit or variables, as the
      m of 5m and the th of 18th; they are in the formula, too.
  """

  value: Node
  unit: str = ""
  name: str = ""
  letters: str = ""


@dataclasses.dataclass(frozen=True)
class Group:
  """Elements between brackets, both of which count: a tuple, an interval."""

  opening: str
  closing: str
  elements: tuple


@dataclasses.dataclass(frozen=True)
class Collection:
  r"""What has no order.

  Args:
    elements: The elements.
    kind: list (1, 2), set (\{1, 2\}, of which equal elements are one) or union.
  """

  elements: tuple
  kind: str = "list"


@dataclasses.dataclass(frozen=True)
class Matrix:
  rows: tuple[tuple, ...]


@dataclasses.dataclass(frozen=True)
class Relation:
  """Two sides and a sign: = < <= !=; > and >= are turned round."""

  sign: str
  left: Node
  right: Node


@dataclasses.dataclass(frozen=True)
class Numeral:
  """Digits in a base, as 52_8."""

  digits: str
  base: str


@dataclasses.dataclass(frozen=True)
class Words:
  text: str


Answer = Element | Group | Collection | Matrix | Relation | Numeral | Words

# Whoever writes more means something else; elements are compared each with each.
_MOST_TOKENS, _MOST_ELEMENTS = 400, 24
_OPENING = ("(", "[", "{", r"\{")
_MATRICES = ("matrix", "pmatrix", "bmatrix", "array")
_UNIT_SIGNS = tuple(f"°%¢{equality.COINS}")
_WHOLE_TEXT = re.compile(r"\\(?:text(?:bf|rm|it)?|mbox)\s*+\{([^{}]*+)\}")
_SHORT_WORDS = ("no", "on", "yes", "odd", "all", "one", "two", "six", "ten")
_WORDS = re.compile(r"[A-Za-z]++(?:[ -][A-Za-z]++)*+")


def read(answer: str, *, unit_letters: bool = False) -> Answer:
  """Returns an answer as a formula, a group of formulas or words.

  Args:
    answer: The answer, in LaTeX or plain text.
    unit_letters: Whether a last m, g, s, h or l is a unit, not a variable.

  Raises:
    Unread: It is neither, or it could be read in two ways.
  """
  if len(answer) > equality.MAX_CHARS:
    raise Unread
  plain = equality.parse(answer)
  if plain.value is not None:
    return Element(Node("number", (plain.value,)), plain.unit, plain.name)
  text = equality.unwrapped(equality.normal_marks(answer).strip())
  text = equality.unwrapped(text.strip(" $").rstrip(".;:, "))
  if whole := _WHOLE_TEXT.fullmatch(text):
    text = whole[1].strip()
  tokens = formula_tokens.tokens_of(text)
  if len(tokens) > _MOST_TOKENS:
    raise Unread
  if words := _words(tokens, is_text=whole is not None):
    return words
  try:
    return _read_list(tokens, unit_letters, depth=0)
  except RecursionError as error:
    raise Unread from error


def _words(tokens: Sequence[Token], is_text: bool) -> Words | None:
  """Returns words that aren't variables: text, long ones, capitals as in ACB."""
  text = " ".join(" ".join(token.text for token in tokens).split())
  are_letters = {token.kind for token in tokens} <= {"text", "letters"}
  if not are_letters or not _WORDS.fullmatch(text):
    return None
  longest = max(map(len, text.split()))
  are_words = longest > (1 if is_text else 3)
  if are_words or text.casefold() in _SHORT_WORDS:
    return Words(text.casefold())
  return Words(text) if text.isupper() and longest > 1 else None


# --- Lists, sets, tuples, intervals, relations --------------------------------


def _read_list(tokens: Sequence[Token], letters: bool, depth: int) -> Answer:
  parts = _split(tokens, _separates)
  if len(parts) > 1:
    _check_separators(tokens, parts)
    read_parts = [_read_one(p, letters, depth) for p in parts if p]
    if not all(isinstance(p, Element | Group) for p in read_parts):
      raise Unread  # inequalities with "and", or with "or"?
    return Collection(_with_one_unit(read_parts))
  return _read_one(tokens, letters, depth)


def _check_separators(tokens: Sequence[Token], parts: Sequence[object]) -> None:
  """Refuses too many parts, and 1; 2, 3."""
  signs = {t.text for t in tokens if t.text in (",", ";")}
  if len(parts) > _MOST_ELEMENTS or len(signs) > 1:
    raise Unread


def _with_one_unit(elements: Sequence[Answer]) -> tuple[Answer, ...]:
  """Returns elements of which the last one's unit is of all: "3, 4 cm"."""
  last = elements[-1]
  if not isinstance(last, Element) or not last.unit:
    return tuple(elements)
  return tuple(
    dataclasses.replace(x, unit=last.unit)
    if isinstance(x, Element) and not x.unit
    else x
    for x in elements
  )


def _separates(token: Token) -> bool:
  return token.text in (",", ";", "or", "and") or (
    token.kind == "text" and token.text.strip(" ,") in ("or", "and")
  )


def _split(tokens, separates, *, keep_empty=False) -> list[list[Token]]:
  """Returns the parts of tokens between separators outside of brackets."""
  parts: list[list[Token]] = [[]]
  level = 0
  for token in tokens:
    level += formula_tokens.level_change(token)
    if not level and separates(token):
      parts.append([])
    else:
      parts[-1].append(token)
  if level:
    raise Unread
  if keep_empty:
    return parts
  # "3, and 4" has two separators in a row.
  return [part for part in parts if part] if len(parts) > 1 else parts


def _read_one(tokens: Sequence[Token], letters: bool, depth: int) -> Answer:
  if depth > 3 or not tokens:
    raise Unread
  parts = _split(tokens, lambda t: t.text == r"\cup")
  if len(parts) == 1:
    parts = _split(
      tokens, lambda t: t.text == "U" and _is_between_sets(tokens, t)
    )
  if len(parts) > 1:
    sets = [_read_one(part, letters, depth + 1) for part in parts]
    if not all(isinstance(s, Group) and len(s.elements) == 2 for s in sets):
      raise Unread
    return Collection(tuple(sets), "union")
  parts = _split(tokens, lambda t: t.text in (r"\in", "in"))
  if len(parts) == 2 and _is_name(parts[0]) and parts[1][0].text in _OPENING:
    return _read_one(parts[1], letters, depth + 1)
  first, last = tokens[0], tokens[-1]
  if first.kind == "begin":
    return _read_matrix(tokens, letters, depth)
  if (
    first.text in _OPENING
    and formula_tokens.closes_at(tokens) == len(tokens) - 1
  ):
    inside = tokens[1:-1]
    parts = _split(_unjoined(inside), lambda t: t.text in (",", ";"))
    if len(parts) > 1 or first.text == r"\{":
      _check_separators(inside, parts)
      elements = tuple(_read_one(p, letters, depth + 1) for p in parts)
      if any(isinstance(x, Collection) for x in elements):
        raise Unread
      if first.text in ("{", r"\{"):
        if last.text != first.text.replace("{", "}"):
          raise Unread
        return Collection(elements, "set")
      return Group(first.text, last.text, elements)
    if len(inside) == 1 and re.fullmatch("[A-E]", inside[0].text):
      return Element(Node("variable", (inside[0].text,)))
  return _read_relation(tokens, letters)


def _is_between_sets(tokens: Sequence[Token], token: Token) -> bool:
  i = next(i for i, other in enumerate(tokens) if other is token)
  around = [x.text for x in tokens[max(i - 1, 0) : i + 2]]
  return (
    len(around) == 3 and around[0] in (")", "]") and around[2] in ("(", "[")
  )


def _is_name(tokens: Sequence[Token]) -> bool:
  return len(tokens) == 1 and tokens[0].kind == "letters"


def _unjoined(tokens: Sequence[Token]) -> list[Token]:
  """Returns tokens of which no comma is a thousands mark: (1,200) is a pair."""
  parts: list[Token] = []
  for token in tokens:
    is_number = token.kind == "number"
    for text in re.split("(,)", token.text) if is_number else [token.text]:
      kind = "mark" if is_number and text == "," else token.kind
      parts.append(dataclasses.replace(token, kind=kind, text=text))
  return parts


def _read_matrix(tokens: Sequence[Token], letters: bool, depth: int) -> Matrix:
  is_whole = (
    tokens[-1].kind == "end"
    and formula_tokens.closes_at(tokens) == len(tokens) - 1
  )
  if not is_whole or tokens[0].text not in _MATRICES:
    raise Unread
  rows = _split(tokens[1:-1], lambda t: t.text == r"\\")
  return Matrix(
    tuple(
      tuple(
        _read_one(cell, letters, depth + 1)
        for cell in _split(row, lambda t: t.text == "&", keep_empty=True)
      )
      for row in rows
      if row
    )
  )


def _read_relation(tokens: Sequence[Token], letters: bool) -> Answer:
  signs = [t for t in tokens if t.text in formula_tokens.SIGNS]
  if not signs:
    return _read_element(tokens, letters)
  if len(signs) > 1:
    raise Unread  # a chain
  sign, i = formula_tokens.SIGNS[signs[0].text], tokens.index(signs[0])
  left, right = tokens[:i], tokens[i + 1 :]
  value = _read_element(right, letters)
  if not isinstance(value, Element):
    raise Unread
  name = _name_of(left)
  if sign == "=" and name:
    return dataclasses.replace(value, name=name)
  other = _read_element(left, letters)
  if not isinstance(other, Element) or value.unit or other.unit:
    raise Unread
  if sign in (">", ">="):
    return Relation(sign.replace(">", "<"), value.value, other.value)
  return Relation(sign, other.value, value.value)


def _name_of(tokens: Sequence[Token]) -> str:
  """Returns x of `x =`, f(x) of `f(x) =`, else ""."""
  texts = [t.text for t in tokens]
  if _is_name(tokens):
    # AB is a line and Area a word, but xy is a product.
    return "" if 1 < len(texts[0]) < 4 and texts[0].islower() else texts[0]
  is_call = len(texts) == 4 and texts[1] == "(" and texts[3] == ")"
  if is_call and tokens[0].kind == tokens[2].kind == "letters":
    return "".join(texts)
  return ""


def _read_element(tokens: Sequence[Token], letters: bool) -> Element | Numeral:
  """Returns a value and its unit, which is before it (money) or after it."""
  if not tokens:
    raise Unread
  if numeral := _numeral(tokens):
    return numeral
  num = _unit_start(tokens, letters)
  unit = _unit(tokens[num:], letters)
  signs = [token for token in tokens[:1] if token.text == "-"]
  body = tokens[len(signs) : num]
  if body and body[0].text in tuple(equality.COINS):
    unit = equality.with_coin(equality.unit_of(body[0].text) or "", unit)
    body = body[1:]
  names = {token.text.removeprefix("\\") for token in body}
  if unit == "deg" and names & formula_parser.FUNCTIONS:
    raise Unread  # of the angle, not of the value
  value = formula_parser.parse([*signs, *body])
  return Element(value, unit, letters=_after_number(body))


def _after_number(tokens: Sequence[Token]) -> str:
  if [token.kind for token in tokens] != ["number", "letters"]:
    return ""
  text = tokens[1].text
  could_be_unit = len(text) > 1 or text in equality.UNIT_LETTERS
  return text if could_be_unit else ""


def _numeral(tokens: Sequence[Token]) -> Numeral | None:
  if len(tokens) < 3 or tokens[0].kind != "number" or tokens[1].text != "_":
    return None
  rest = [t.text for t in tokens[2:] if t.text not in ("{", "}")]
  if len(rest) != 1 or not rest[0].strip().isdigit():
    raise Unread
  return Numeral(tokens[0].text.replace(",", ""), rest[0].strip())


def _unit_start(tokens: Sequence[Token], letters: bool) -> int:
  """Returns from which token on the rest of an element is its unit."""
  for i, token in enumerate(tokens[1:], 1):
    is_word = token.kind in ("text", "letters") or token.text in _UNIT_SIGNS
    if is_word and _unit(tokens[i:], letters):
      return i
  return len(tokens)


def _unit(tokens: Sequence[Token], letters: bool) -> str:
  """Returns the unit that tokens are, "" if they aren't one."""
  text = " ".join(t.text for t in tokens if t.text not in ("{", "}"))
  text = text.replace("^ ", "^").strip()
  # What TeX sets as text is no variable.
  letters = letters or any(token.kind == "text" for token in tokens)
  return equality.unit_of(text, with_letters=letters) or ""
