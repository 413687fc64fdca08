"""A line as pieces of equations: numbers, quantities, signs, brackets, words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
import dataclasses
from fractions import Fraction
import re

from prm_jax.grading import equality
from prm_jax.grading import formula_tokens
from prm_jax.grading.formula_tokens import Token
from prm_jax.verifiers import units

# Nobody writes a longer number by intent.
_MOST_DIGITS = 60
ABOUT = ("≈", "≃", "≅", r"\approx", r"\simeq", r"\doteq")
_DOTS = re.compile(r"(?<=[0-9])(?:\.\.\.|…|\\l?dots(?![A-Za-z]))")
# What stands for the digits that are left out: no other text has it.
_CUT = "\N{SYMBOL FOR CANCEL}"
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
  r"~=|\\sim(?:eq)?(?![A-Za-z])": "≈",
  "\N{MINUS SIGN}": "-",
}
_SIGNS = ("+", "-", "*", "/", "^")
_OPENING, _CLOSING = ("(", "[", "{"), (")", "]", "}")


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
class Piece:
  """A piece.

  Args:
    kind: number, quantity, sign, open, close, tex, word, relation, other or stop.
    token: Its first token.
    text: The piece, as a reason shows it.
    quantity: The quantity.
    is_counted: Whether words after it say what it counts.
  """

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


STOP = Piece("stop", Token("nothing", ""), "")
_BLANK = Token("letters", "", after_blank=True)


def read(line: str) -> list[Piece]:
  """Returns the pieces of a line; none of one without an equation.

  Args:
    line: The line.
  """
  if not any(sign in line for sign in ("=", *ABOUT)):
    return []
  text = equality.rewritten(_TEX.sub(r" \1 ", line), _REWRITES)
  text = _DOTS.sub(_CUT, text).replace("$", equality.MONEY)
  return _with_units(_pieces_of(formula_tokens.tokens_of(text)))


def value(number: Piece) -> Fraction:
  """Returns the number of a piece that is one, without its unit."""
  if number.quantity is not None:
    return number.quantity.number
  return Fraction(number.token.text.replace(",", ""))


def _pieces_of(tokens: Sequence[Token]) -> list[Piece]:
  pieces: list[Piece] = []
  for token, after in zip(tokens, (*tokens[1:], STOP.token)):
    text = token.text
    if token.kind == "number":
      pieces += _number(token)
    elif token.kind == "text":
      words = re.findall(r"[A-Za-z]+", text)
      if not words and text.strip():  # \mathbf{3}
        pieces.append(Piece("other", token, text))
      pieces += [Piece("word", Token("letters", x, True), x) for x in words]
    elif text == _CUT:
      pieces[-1] = dataclasses.replace(pieces[-1], text=f"{pieces[-1].text}...")
    elif text in ("x", "X") and pieces and _is_times(pieces[-1], after):
      pieces.append(Piece("sign", Token("mark", "*", token.after_blank), "*"))
    elif token.kind == "letters":
      pieces.append(Piece("word", token, text))
    else:
      pieces.append(Piece(_KINDS.get(text, "other"), token, text))
  return pieces


_KINDS = {
  **dict.fromkeys(_SIGNS, "sign"),
  **dict.fromkeys(("=", *ABOUT), "relation"),
  **dict.fromkeys(_OPENING, "open"),
  **dict.fromkeys(_CLOSING, "close"),
  **dict.fromkeys(",;:.?!'’", "stop"),
  r"\frac": "tex",
}


def _number(token: Token) -> Iterator[Piece]:
  text = token.text.rstrip(".")
  is_clock = len(text) > 1 and text.isdigit() and text[0] == "0"  # 0930
  is_read = len(text) <= _MOST_DIGITS and not is_clock
  kind = "number" if is_read else "other"
  yield Piece(kind, dataclasses.replace(token, text=text), text)
  if text != token.text:
    yield STOP  # the end of a sentence


def _is_times(before: Piece, after: Token) -> bool:
  """Returns whether an x between the two is a sign."""
  is_factor = before.kind in ("number", "close", "word") or before.text == "%"
  begins = ("(", r"\frac", *equality.COINS)
  return is_factor and (after.kind == "number" or after.text in begins)


def _with_units(pieces: Sequence[Piece]) -> list[Piece]:
  """Returns the pieces, of which numbers with a unit are quantities."""
  out: list[Piece] = []
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
      out.append(Piece("sign", Token("mark", "*", True), "of"))
    elif piece.text == "/" and out and out[-1].ends and _is_word(after):
      words = (dataclasses.replace(x, token=_BLANK) for x in (piece, *after))
      out += (dataclasses.replace(x, kind="word", text="per") for x in words)
      end += 1  # $5/apple
    else:
      out.append(piece)
    i = end
  return out


def _is_word(pieces: Sequence[Piece]) -> bool:
  """Returns whether a word is next, not a letter that is a variable."""
  return (
    pieces[:1] != [] and pieces[0].kind == "word" and len(pieces[0].text) > 1
  )


def _is_share(before: Sequence[Piece]) -> bool:
  """Returns whether what comes before "of" is 20% or 1/2."""
  texts = [x.text for x in before[-2:]]
  is_percent = texts[-1:] and texts[-1].endswith("%")
  return bool(is_percent or texts[:1] == ["/"] or texts[-1:] == ["}"])


def _quantity(
  pieces: Sequence[Piece], start: int, coin: Piece | None
) -> tuple[Piece | None, int]:
  """Returns the quantity at a number, None if it has no unit; and its end."""
  first = coin or pieces[start]
  number, end = value(pieces[start]), start + 1
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
  return Piece("quantity", token, text, made), end


def _fraction(
  pieces: Sequence[Piece], start: int
) -> tuple[Fraction, int] | None:
  """Returns 1/2 or 1 1/2 before a unit, and where it ends."""
  if start and pieces[start - 1].text in ("/", "^"):
    return None
  top, whole = start, Fraction(0)
  if pieces[start + 1 : start + 2] and pieces[start + 1].kind == "number":
    top, whole = start + 1, value(pieces[start])
    if whole.denominator > 1:
      return None
  three = pieces[top : top + 3]
  if [x.kind for x in three] != ["number", "sign", "number"]:
    return None
  is_tight = not any(x.token.after_blank for x in three[1:])
  if three[1].text != "/" or not is_tight or not value(three[2]):
    return None
  unit = _unit(pieces, top + 3)[0]
  if unit is None or units.dimension(unit) is None:
    return None
  return whole + value(three[0]) / value(three[2]), top + 3


def _unit(pieces: Sequence[Piece], i: int) -> tuple[str | None, int, int]:
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
