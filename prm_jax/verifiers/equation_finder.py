"""The equations in a step of prose: chains of sides, each read as a formula.

What isn't certainly an equation of numbers isn't read: a side with a word for a
number (`price * 3`), with a root, with two readings (`1/2x`). Words after a
number that name what is counted (`5 red apples * 2`) are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
import dataclasses
from fractions import Fraction
import itertools
import re

from prm_jax.grading import equality
from prm_jax.grading import formula_parser
from prm_jax.grading import formula_tokens
from prm_jax.grading.formula_parser import Node
from prm_jax.grading.formula_tokens import Token
from prm_jax.verifiers import units

# A longer step isn't read, nor is a longer side: nobody writes one by intent,
# and the time for a step stays below a second.
MAX_CHARS = 5_000
_MOST_TOKENS, _MOST_DIGITS = 150, 60
# How many words may say what a number counts.
_MOST_WORDS = 4
_ABOUT = ("≈", "≃", "≅", r"\approx", r"\simeq", r"\doteq")
_DOTS = re.compile(r"(?<=[0-9])(?:\.\.\.|…|\\l?dots(?![A-Za-z]))")
# What stands for the digits that are left out: no other text has it.
_CUT = "\N{SYMBOL FOR CANCEL}"
_ANNOTATION = re.compile(r"<<([^<>]*)>>")
# TeX's marks of a formula, not money: the second is after no blank and before
# no digit.
_TEX = re.compile(r"\$\$|\$(?=\S)([^$]*)(?<=[^\s$])\$(?![0-9])")
_REWRITES = {
  r"=>|->|⇒|→|\\(?:Rightarrow|rightarrow|implies|to)(?![A-Za-z])": " ; ",
  r"\\boxed(?![A-Za-z])|\*\*(?=[^\s0-9(])|(?<=[^\s0-9)])\*\*": " ",
  r"\\[()\[\]]|\\\\|[&`\"“”]": " ; ",
  r"\bmph\b": " miles/hour",
  # In words: a hyphen, an apostrophe; posts/member are words for one thing.
  r"(?<=[A-Za-z])[-'’](?=[A-Za-z])": "",
  r"(?<=[A-Za-z])/(?=[A-Za-z])": " per ",
  r"(?<=[0-9])-(?=[A-Za-z])": " ",
  # A time, a comma for a point: they have no reading here.
  r"(?<=[0-9])[:,](?=[0-9])(?!(?<=,)[0-9]{3}(?![0-9]))": "@",
  r"\\%": "%",
  r"==": "=",
}
_SIGNS = ("+", "-", "*", "/", "^")
_OPENING, _CLOSING = ("(", "[", "{"), (")", "]", "}")
# After these a lone number isn't a name such as the 3 of "day 3 = 5 + 2".
_CONNECTIVES = (
  *("so", "thus", "then", "hence", "therefore", "now", "that", "is", "which"),
  *("get", "gets", "got", "have", "has", "gives", "since", "because", "means"),
  *("finally", "where", "or", "also", "know", "see", "find"),
)
_LETTERS = "ABCDFGHJKLMNPQRSTUVWXYZ"  # e and i are numbers, O looks like one


@dataclasses.dataclass(frozen=True)
class Quantity:
  """A number with a unit.

  Args:
    number: The number, as it is written.
    scale: How many of the first units of their dimensions its unit is.
    dimensions: The power of each dimension, those that aren't 0, sorted.
    has_letter: Whether its unit is a letter without a blank before it, which
      could be a variable.
  """

  number: Fraction
  scale: Fraction = Fraction(1)
  dimensions: tuple[tuple[str, int], ...] = ()
  has_letter: bool = False


@dataclasses.dataclass(frozen=True)
class Side:
  """A side of an equation.

  Args:
    text: The side, as the reason shows it.
    node: The formula; its variables are quantities.
    quantities: The quantity of each variable.
    places: The digits after the point of a lone number, None for another side.
    is_cut: Whether dots follow these digits.
  """

  text: str
  node: Node
  quantities: Mapping[str, Quantity]
  places: int | None = None
  is_cut: bool = False

  @property
  def is_lone(self) -> bool:
    return self.places is not None


@dataclasses.dataclass(frozen=True)
class Chain:
  """Sides with a sign between each two: a = b ≈ c.

  Args:
    sides: The sides; None for one that isn't read.
    are_about: Of each sign whether it is one for about.
  """

  sides: tuple[Side | None, ...]
  are_about: tuple[bool, ...]


@dataclasses.dataclass(frozen=True)
class _Piece:
  """kind: number, quantity, sign, open, close, tex, word, relation, other, stop."""

  kind: str
  token: Token
  text: str
  quantity: Quantity | None = None
  is_counted: bool = False

  @property
  def begins(self) -> bool:
    return self.kind in ("number", "quantity", "open", "tex")

  @property
  def ends(self) -> bool:
    return self.kind in ("number", "quantity", "close")


_STOP = _Piece("stop", Token("nothing", ""), "")
_BLANK = Token("letters", "", after_blank=True)


def find(step: str) -> list[Chain]:
  """Returns the chains of a step.

  Args:
    step: The text, at most MAX_CHARS long.
  """
  # GSM8K's <<48/2=24>> repeat an equation of the text, in which the words
  # between the numbers may keep it from being read.
  annotations = _ANNOTATION.findall(step)
  lines = (*_ANNOTATION.sub("", step).splitlines(), *annotations)
  return [chain for text in lines for chain in _chains(_pieces(text))]


# --- Pieces -------------------------------------------------------------------


def _pieces(line: str) -> list[_Piece]:
  if not any(sign in line for sign in ("=", *_ABOUT)):
    return []
  text = equality.rewritten(_TEX.sub(r" \1 ", line), _REWRITES)
  text = _DOTS.sub(_CUT, text).replace("$", equality.MONEY)
  return _with_units(_read(formula_tokens.tokens_of(text)))


def _read(tokens: Sequence[Token]) -> list[_Piece]:
  pieces: list[_Piece] = []
  for token, after in zip(tokens, (*tokens[1:], _STOP.token)):
    text = token.text
    if token.kind == "number":
      pieces += _number(token)
    elif token.kind == "text":
      words = re.findall(r"[A-Za-z]+", text)
      pieces += [_Piece("word", Token("letters", x, True), x) for x in words]
    elif text == _CUT:
      pieces[-1] = dataclasses.replace(pieces[-1], text=f"{pieces[-1].text}...")
    elif text in ("x", "X") and pieces and _is_times(pieces[-1], after):
      pieces.append(_Piece("sign", Token("mark", "*", token.after_blank), "*"))
    elif token.kind == "letters":
      pieces.append(_Piece("word", token, text))
    else:
      pieces.append(_Piece(_KINDS.get(text, "other"), token, text))
  return pieces


_KINDS = {
  **dict.fromkeys(_SIGNS, "sign"),
  **dict.fromkeys(("=", *_ABOUT), "relation"),
  **dict.fromkeys(_OPENING, "open"),
  **dict.fromkeys(_CLOSING, "close"),
  **dict.fromkeys(",;:.?!'’", "stop"),
  r"\frac": "tex",
}


def _number(token: Token) -> Iterator[_Piece]:
  text = token.text.rstrip(".")
  is_clock = len(text) > 1 and text.isdigit() and text[0] == "0"  # 0930
  is_read = len(text) <= _MOST_DIGITS and not is_clock
  kind = "number" if is_read else "other"
  yield _Piece(kind, dataclasses.replace(token, text=text), text)
  if text != token.text:
    yield _STOP  # the end of a sentence


def _is_times(before: _Piece, after: Token) -> bool:
  """Returns whether an x between the two is a sign."""
  is_factor = before.kind in ("number", "close", "word") or before.text == "%"
  begins = ("(", r"\frac", *equality.COINS)
  return is_factor and (after.kind == "number" or after.text in begins)


def _with_units(pieces: Sequence[_Piece]) -> list[_Piece]:
  """Returns the pieces, of which numbers with a unit are quantities."""
  out: list[_Piece] = []
  i = 0
  while i < len(pieces):
    piece, after = pieces[i], pieces[i + 1 : i + 2]
    quantity, end = None, i + 1
    if piece.text in tuple(equality.COINS):
      if after and after[0].kind == "number":
        quantity, end = _quantity(pieces, i + 1, piece)
    elif piece.kind == "number":
      quantity, end = _quantity(pieces, i, None)
    if quantity is not None:
      out.append(quantity)
    elif piece.text == "of" and _is_share(out):
      out.append(_Piece("sign", Token("mark", "*", True), "of"))
    elif piece.text == "/" and out and out[-1].ends and _is_word(after):
      words = (dataclasses.replace(x, token=_BLANK) for x in (piece, *after))
      out += (dataclasses.replace(x, kind="word", text="per") for x in words)
      end += 1  # $5/apple
    else:
      out.append(piece)
    i = end
  return out


def _is_word(pieces: Sequence[_Piece]) -> bool:
  """Returns whether a word is next, not a letter that is a variable."""
  return (
    pieces[:1] != [] and pieces[0].kind == "word" and len(pieces[0].text) > 1
  )


def _is_share(before: Sequence[_Piece]) -> bool:
  """Returns whether what comes before "of" is 20% or 1/2."""
  texts = [x.text for x in before[-2:]]
  is_percent = texts[-1:] and texts[-1].endswith("%")
  return bool(is_percent or texts[:1] == ["/"] or texts[-1:] == ["}"])


def _quantity(
  pieces: Sequence[_Piece], start: int, coin: _Piece | None
) -> tuple[_Piece | None, int]:
  """Returns the quantity at a number, None if it has no unit; and its end."""
  first = coin or pieces[start]
  number, end = _value(pieces[start]), start + 1
  powers: Counter[str] = Counter()
  factor = Fraction(1)
  if coin is not None:
    powers[equality.unit_of(coin.text) or ""] = 1
  elif (of_fraction := _fraction(pieces, start)) is not None:
    number, end = of_fraction
  unit, power, after = _unit(pieces, end)
  while unit and units.dimension(unit) is None:  # 5 million dollars
    factor, end = factor * units.scale(unit), after
    unit, power, after = _unit(pieces, end)
  if unit:
    powers[unit] = power  # once of "$5 dollars"
    end = after
  if powers and end < len(pieces) and pieces[end].text in ("/", "per"):
    unit, power, after = _unit(pieces, end + 1)
    if unit and units.dimension(unit):
      powers[unit] -= power
      end = after
  if not powers and factor == 1:
    return None, start + 1
  dimensions: Counter[str] = Counter()
  for unit, power in powers.items():
    factor *= units.scale(unit) ** power
    dimensions[units.dimension(unit) or ""] += power
  known = tuple(sorted((k, v) for k, v in dimensions.items() if v))
  last = pieces[end - 1]
  has_letter = last.kind == "word" and len(last.text) == 1
  has_letter = has_letter and not last.token.after_blank
  made = Quantity(number, factor, known, has_letter)
  text = " ".join(x.text for x in pieces[start:end]).replace(" %", "%")
  if coin is not None:
    text = f"{coin.text.replace(equality.MONEY, '$')}{text}"
  token = dataclasses.replace(
    pieces[start].token, after_blank=first.token.after_blank
  )
  return _Piece("quantity", token, text, made), end


def _fraction(
  pieces: Sequence[_Piece], start: int
) -> tuple[Fraction, int] | None:
  """Returns 1/2 or 1 1/2 before a unit, and where it ends."""
  if start and pieces[start - 1].text in ("/", "^"):
    return None
  top, whole = start, Fraction(0)
  if pieces[start + 1 : start + 2] and pieces[start + 1].kind == "number":
    top, whole = start + 1, _value(pieces[start])
    if whole.denominator > 1:
      return None
  three = pieces[top : top + 3]
  if [x.kind for x in three] != ["number", "sign", "number"]:
    return None
  is_tight = not any(x.token.after_blank for x in three[1:])
  if three[1].text != "/" or not is_tight or not _value(three[2]):
    return None
  unit = _unit(pieces, top + 3)[0]
  if unit is None or units.dimension(unit) is None:
    return None
  return whole + _value(three[0]) / _value(three[2]), top + 3


def _unit(pieces: Sequence[_Piece], i: int) -> tuple[str | None, int, int]:
  """Returns the unit at a place, its power, and where it ends."""
  if i >= len(pieces):
    return None, 1, i
  power, start = _AREAS.get(pieces[i].text.lower(), 1), i
  i += power > 1
  if i >= len(pieces) or not (
    pieces[i].kind == "word" or pieces[i].text in ("%", "°", "¢")
  ):
    return None, 1, start
  unit = units.find(pieces[i].text, is_attached=not pieces[i].token.after_blank)
  if unit is None:
    return None, 1, start
  three = [x.text for x in pieces[i + 1 : i + 3]]
  if power == 1 and three in (["^", "2"], ["^", "3"]):
    return unit, int(three[1]), i + 3
  return unit, power, i + 1


_AREAS = dict(square=2, sq=2, cubic=3, cu=3)


def _value(number: _Piece) -> Fraction:
  return Fraction(number.token.text.replace(",", ""))


# --- Sides --------------------------------------------------------------------


def _chains(pieces: Sequence[_Piece]) -> Iterator[Chain]:
  signs = [i for i, x in enumerate(pieces) if x.kind == "relation"]
  start, k, is_open = 0, 0, False
  while k < len(signs):
    first, before = _leftwards(pieces, start, signs[k], is_open)
    sides: list[Side | None] = []
    are_about: list[bool] = []
    while True:
      i = signs[k]
      k += 1
      end = signs[k] if k < len(signs) else len(pieces)
      right, start = _rightwards(pieces, i + 1, end)
      are_about.append(pieces[i].text != "=")
      sides.append(_side(right))
      is_open = right is None
      if start != end or k == len(signs):
        break
    left = _side(first)
    if left is not None and left.is_lone and _is_name(first, before, sides[0]):
      left = None
    yield Chain((left, *sides), tuple(are_about))


def _leftwards(
  pieces: Sequence[_Piece], start: int, end: int, is_open: bool
) -> tuple[list[_Piece] | None, _Piece | None]:
  """Returns the side that ends before a sign, and what stands before it.

  Args:
    pieces: The pieces of the line.
    start: Where it begins at the earliest.
    end: Where it ends.
    is_open: Whether what is before `start` couldn't be read, and may be of it.
  """
  out: list[_Piece] = []  # from the right to the left
  i, depth = end - 1, 0
  while i >= start:
    piece, after = pieces[i], out[-1] if out else _STOP
    if piece.kind in ("stop", "relation"):
      break
    if piece.kind == "other":
      return None, None
    if piece.kind == "word":
      passed = _words_left(pieces, start, i, out)
      if passed is None:
        return None, None
      number, i = passed
      if number is None:
        break
      out.append(dataclasses.replace(number, is_counted=True))
      depth += number.kind == "close"
      continue
    if piece.kind == "open":
      if not depth:
        if i > start and pieces[i - 1].kind == "sign":
          return None, None
        break
      depth -= 1
    elif piece.ends:
      if after.begins and not _joins(piece, out[::-1]):
        return None, None
      depth += piece.kind == "close"
    elif piece.kind == "sign" and not out:
      return None, None
    out.append(piece)
    i -= 1
  if depth or not out or (is_open and i < start):
    return None, None
  out.reverse()
  if out[0].kind == "sign" and len(out) > 1 and not _is_minus(out[0], out[1:2]):
    if i >= 0:
      return None, None
    del out[0]  # the mark of a list
  return out, pieces[i] if i >= start else None


def _words_left(
  pieces: Sequence[_Piece], start: int, last: int, out: Sequence[_Piece]
) -> tuple[_Piece | None, int] | None:
  """Returns the number that words count, and the place before it.

  Args:
    pieces: See _leftwards.
    start: See _leftwards.
    last: The place of the last word.
    out: The side so far, from the right to the left.

  Returns:
    None instead of the number if the side begins after the words; None if they
    stand for a number, or may.
  """
  first = last
  while first > start and pieces[first - 1].kind == "word":
    first -= 1
  words = pieces[first : last + 1]
  texts = [x.text for x in words]
  number = pieces[first - 1] if first > start else _STOP
  is_after = not out or out[-1].kind in ("sign", "close")
  is_short = out or len(words) < 3 or "per" in texts
  if is_after and is_short and _are_counted(number, words):
    return number, first - 2
  after = out[-1] if out else _STOP
  is_call = after.kind == "open" and not after.token.after_blank
  # x = 5, price * 3, f(3); but "so -3".
  if (is_after or is_call) and not _is_minus(after, out[-2:-1]):
    return None
  # + her first $5, 3 sets x every 2, 1 and 1/2
  is_odd = "x" in texts or (texts == ["and"] and number.ends)
  return None if number.kind == "sign" or is_odd else (None, last)


def _rightwards(
  pieces: Sequence[_Piece], start: int, end: int
) -> tuple[list[_Piece] | None, int]:
  """Returns the side that begins after a sign, and where it ends."""
  out: list[_Piece] = []
  i, depth = start, 0
  while i < end:
    piece, before = pieces[i], out[-1] if out else _STOP
    after = pieces[i + 1] if i + 1 < len(pieces) else _STOP
    if piece.kind == "stop" or (piece.kind == "close" and not depth):
      break
    if piece.kind == "other":
      is_number = piece.token.kind == "number"  # 18 000
      if not before.ends or is_number or not piece.token.after_blank:
        return None, i
      break
    if piece.kind == "word":
      passed = _words_right(pieces, i, before)
      if passed is None:
        return None, i
      if passed == i:
        break
      out[-1] = dataclasses.replace(before, is_counted=True)
      i = passed
      continue
    if piece.kind == "sign":
      if piece.text == "of" or after.kind in _NO_OPERANDS:
        return None, i
    elif piece.begins and before.ends and not _joins(before, pieces[i:end]):
      is_aside = piece.kind == "open" and after.kind == "word"
      if not is_aside and piece.text[0] not in f"${equality.COINS}":
        return None, i
      break  # 7 (since 3 + 4 is 7), 6 $10 bills
    depth += (piece.kind == "open") - (piece.kind == "close")
    out.append(piece)
    i += 1
  if depth or not out or not out[-1].ends:
    return None, i
  return out, i


_NO_OPERANDS = ("word", "other", "stop", "close", "relation")


def _words_right(
  pieces: Sequence[_Piece], first: int, before: _Piece
) -> int | None:
  """Returns the place after words that say what a number counts.

  Args:
    pieces: See _rightwards.
    first: The place of the first word.
    before: The piece before it.

  Returns:
    The place of the first word if the side ends there; None if the words stand
    for a number, or may.
  """
  last = first
  while last + 1 < len(pieces) and pieces[last + 1].kind == "word":
    last += 1
  if not before.ends or not pieces[first].token.after_blank:
    return None  # = price, = 5x
  follows = pieces[last + 1] if last + 1 < len(pieces) else _STOP
  if pieces[first].text == "and" and last == first and follows.begins:
    is_other = any(x.kind == "relation" for x in pieces[last + 1 :])
    return first if is_other else None  # 1 and 1/3
  is_before = follows.kind in ("sign", "relation", "close")
  if is_before and _are_counted(before, pieces[first : last + 1]):
    return last + 1
  is_minus = _is_minus(follows, pieces[last + 2 : last + 3])
  return None if follows.kind == "sign" and not is_minus else first


def _are_counted(number: _Piece, words: Sequence[_Piece]) -> bool:
  """Returns whether words say what a number counts; a letter is a variable."""
  return (
    number.ends
    and len(words) <= _MOST_WORDS
    and words[0].token.after_blank
    and all(len(x.text) > 1 for x in words)
    and not any(x.text.lower() in _CONNECTIVES for x in words)
  )


def _is_minus(sign: _Piece, after: Sequence[_Piece]) -> bool:
  """Returns whether a sign is of the number after it, as in "so -3"."""
  is_tight = bool(after) and not after[0].token.after_blank
  return sign.text == "-" and is_tight and after[0].kind != "word"


def _joins(piece: _Piece, after: Sequence[_Piece]) -> bool:
  """Returns whether what begins directly after a piece is of the same side."""
  first = after[0]
  if piece.kind == first.kind == "quantity":  # 3 hours 20 minutes
    one, two = piece.quantity, first.quantity
    assert one is not None and two is not None
    return one.dimensions == two.dimensions and one.scale > two.scale
  if first.kind == "open":
    return not first.token.after_blank or first.text == "{"
  if piece.text == "}":
    return True
  if piece.kind != "number" or not piece.text.isdigit():
    return False
  if first.kind == "tex":
    return not first.token.after_blank
  texts = [x.text for x in after[1:3]]  # 1 1/2
  return first.text.isdigit() and texts[:1] == ["/"] and texts[-1].isdigit()


def _is_name(
  pieces: Sequence[_Piece] | None, before: _Piece | None, after: Side | None
) -> bool:
  """Returns whether a lone number names what follows: day 3 = 5 + 2."""
  assert pieces is not None
  last = pieces[-1]
  if last.is_counted or after is None:
    return True
  scales = {x.scale for x in after.quantities.values()} if after.is_lone else {}
  if last.quantity is not None and scales and last.quantity.scale not in scales:
    return False  # 2 hours = 120 minutes, but not "at $2 = $40"
  is_first = before is None or before.text.lower() in _CONNECTIVES
  return not is_first


def _side(pieces: Sequence[_Piece] | None) -> Side | None:
  """Returns pieces as a side, None if they can't be read in one way."""
  if not pieces or len(pieces) > _MOST_TOKENS:
    return None
  slashes = [i for i, x in enumerate(pieces) if x.text == "/"]
  if any(j - i == 2 for i, j in itertools.pairwise(slashes)):
    return None  # 14 / 1/4, 14 / 1 / 4
  tokens: list[Token] = []
  quantities: dict[str, Quantity] = {}
  kinds = [None, *(x.kind for x in pieces), None]
  for piece, before, after in zip(pieces, kinds, kinds[2:]):
    if piece.quantity is None:
      tokens.append(piece.token)
      continue
    if len(quantities) == len(_LETTERS):
      return None
    letter = _LETTERS[len(quantities)]
    quantities[letter] = piece.quantity
    # 3 hours 20 minutes are (3 hours + 20 minutes).
    joins = before == "quantity", after == "quantity"
    if any(joins):
      tokens.append(Token("mark", "+" if joins[0] else "("))
    tokens.append(Token("letters", letter, piece.token.after_blank))
    if joins == (True, False):
      tokens.append(Token("mark", ")"))
  try:
    node = formula_parser.parse(tokens)
  except (formula_parser.Unread, ZeroDivisionError):
    return None
  text = _text(pieces)
  if not _is_rational(node):
    return None
  operands = [x for x in pieces if x.kind != "sign" or x.text != "-"]
  if len(operands) > 1 or len(pieces) > 2:
    return Side(text, node, quantities)
  number = operands[0].token.text
  places = len(number.partition(".")[2]) if "e" not in number.lower() else 0
  return Side(text, node, quantities, places, "..." in operands[0].text)


def _is_rational(node: Node) -> bool:
  """Returns whether a formula has only numbers, quantities and + - * / ^."""
  if node.kind in ("number", "variable"):
    return node.kind == "number" or node.parts[0] in tuple(_LETTERS)
  kinds = ("sum", "product", "quotient", "negative", "power")
  return node.kind in kinds and all(map(_is_rational, node.parts))


def _text(pieces: Sequence[_Piece]) -> str:
  text = " ".join(x.text for x in pieces)
  return re.sub(r"(?<=[({\[]) | (?=[)}\]^])|(?<=\^) ", "", text)
