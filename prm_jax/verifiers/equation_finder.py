"""The equations in a step of prose: chains of sides, each read as a formula.

What isn't certainly an equation of numbers isn't read: a side with a word for a
number (`price * 3`), with a root, with two readings (`1/2x`). Words after a
number that name what is counted (`5 red apples * 2`) are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import itertools
import re

from prm_jax.grading import equality
from prm_jax.grading import formula_parser
from prm_jax.grading.formula_parser import Node
from prm_jax.grading.formula_tokens import Token
from prm_jax.verifiers import equation_pieces
from prm_jax.verifiers.equation_pieces import Piece
from prm_jax.verifiers.equation_pieces import Quantity

# A longer step isn't read, nor is a longer side: nobody writes one by intent,
# and the time for a step stays below a second.
MAX_CHARS = 5_000
_MOST_TOKENS = 150
# How many words may say what a number counts.
_MOST_WORDS = 4
_ANNOTATION = re.compile(r"<<([^<>]*)>>")
# After these a lone number isn't a name such as the 3 of "day 3 = 5 + 2".
_CONNECTIVES = (
  *("so", "thus", "then", "hence", "therefore", "now", "that", "is", "which"),
  *("get", "gets", "got", "have", "has", "gives", "since", "because", "means"),
  *("finally", "where", "or", "also", "know", "see", "find"),
)
# Words that make another number of the one before them,
_POWERS = ("squared", "cubed", "factorial", "percent", "mod", "modulo")
_PARTS = ("half", "halves", "thirds", "fourths", "quarters", "fifths", "tenths")
# of the one after them,
_FUNCTIONS = (
  *("sin", "cos", "tan", "log", "ln", "twice", "double", "triple", "root"),
  *("square of", "cube of", "root of", "log of", "half of"),
)
# and of two.
_BETWEEN = (
  *("plus", "minus", "times", "less", "choose", "divided by", "multiplied by"),
  *("more than", "less than"),
)
_LETTERS = "ABCDFGHJKLMNPQRSTUVWXYZ"  # e and i are numbers, O looks like one


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


def find(step: str) -> list[Chain]:
  """Returns the chains of a step.

  Args:
    step: The text, at most MAX_CHARS long.
  """
  # GSM8K's <<48/2=24>> repeat an equation of the text, in which the words
  # between the numbers may keep it from being read.
  annotations = _ANNOTATION.findall(step)
  lines = (*_ANNOTATION.sub("", step).splitlines(), *annotations)
  return [
    chain for text in lines for chain in _chains(equation_pieces.read(text))
  ]


def _chains(pieces: Sequence[Piece]) -> Iterator[Chain]:
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
  pieces: Sequence[Piece], start: int, end: int, is_open: bool
) -> tuple[list[Piece] | None, Piece | None]:
  """Returns the side that ends before a sign, and what stands before it.

  Args:
    pieces: The pieces of the line.
    start: Where it begins at the earliest.
    end: Where it ends.
    is_open: Whether what is before `start` couldn't be read, and may be of it.
  """
  out: list[Piece] = []  # from the right to the left
  i, depth = end - 1, 0
  while i >= start:
    piece, after = pieces[i], out[-1] if out else equation_pieces.STOP
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
  pieces: Sequence[Piece], start: int, last: int, out: Sequence[Piece]
) -> tuple[Piece | None, int] | None:
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
  number = pieces[first - 1] if first > start else equation_pieces.STOP
  is_after = not out or out[-1].kind in ("sign", "close")
  ends = {x.lower() for x in (texts[-1], " ".join(texts[-2:]))}
  if texts[0].lower() in (*_POWERS, *_PARTS) and number.ends and is_after:
    return None  # 3 squared + 4
  if not is_after and ends & {*_FUNCTIONS, *_BETWEEN}:
    return None  # 6 times 2 + 3
  is_short = out or len(words) < 3 or "per" in texts
  if is_after and is_short and _are_counted(number, words):
    return number, first - 2
  after = out[-1] if out else equation_pieces.STOP
  is_attached = after.kind == "number" and not after.token.after_blank
  if is_attached and len(texts[-1]) == 1:
    return None  # A1 + 2
  is_call = after.kind == "open" and not after.token.after_blank
  # x = 5, price * 3, f(3); but "so -3".
  if (is_after or is_call) and not _is_minus(after, out[-2:-1]):
    return None
  # + her first $5, 3 sets x every 2, 1 and 1/2
  is_odd = "x" in texts or (texts == ["and"] and number.ends)
  return None if number.kind == "sign" or is_odd else (None, last)


def _rightwards(
  pieces: Sequence[Piece], start: int, end: int
) -> tuple[list[Piece] | None, int]:
  """Returns the side that begins after a sign, and where it ends."""
  out: list[Piece] = []
  i, depth = start, 0
  while i < end:
    piece, before = pieces[i], out[-1] if out else equation_pieces.STOP
    after = pieces[i + 1] if i + 1 < len(pieces) else equation_pieces.STOP
    if piece.kind == "stop" or (piece.kind == "close" and not depth):
      break
    if piece.kind == "other":
      if piece.text in _MODULO:
        return None, i
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
      is_aside = is_aside and after.text.lower() not in _POWERS
      if not is_aside and piece.text[0] not in f"${equality.COINS}":
        return None, i
      break  # 7 (since 3 + 4 is 7), 6 $10 bills
    depth += (piece.kind == "open") - (piece.kind == "close")
    out.append(piece)
    i += 1
  if depth or not out or not out[-1].ends:
    return None, i
  return out, i


_MODULO = (r"\pmod", r"\bmod", r"\mod", r"\pod")
_NO_OPERANDS = ("word", "other", "stop", "close", "relation")


def _words_right(
  pieces: Sequence[Piece], first: int, before: Piece
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
  follows = pieces[last + 1] if last + 1 < len(pieces) else equation_pieces.STOP
  texts = " ".join(x.text.lower() for x in pieces[first : last + 1])
  is_between = follows.begins and texts in _BETWEEN
  if pieces[first].text.lower() in _POWERS or is_between:
    return None
  if pieces[first].text == "and" and last == first and follows.begins:
    is_other = any(x.kind == "relation" for x in pieces[last + 1 :])
    return first if is_other else None  # 1 and 1/3
  is_before = follows.kind in ("sign", "relation", "close")
  is_part = pieces[first].text.lower() in _PARTS
  if is_before and is_part:
    return None
  if is_before and _are_counted(before, pieces[first : last + 1]):
    return last + 1
  is_minus = _is_minus(follows, pieces[last + 2 : last + 3])
  return None if follows.kind == "sign" and not is_minus else first


def _are_counted(number: Piece, words: Sequence[Piece]) -> bool:
  """Returns whether words say what a number counts; a letter is a variable."""
  return (
    number.ends
    and len(words) <= _MOST_WORDS
    and words[0].token.after_blank
    and all(len(x.text) > 1 for x in words)
    and not any(x.text.lower() in _CONNECTIVES for x in words)
  )


def _is_minus(sign: Piece, after: Sequence[Piece]) -> bool:
  """Returns whether a sign is of the number after it, as in "so -3"."""
  is_tight = bool(after) and not after[0].token.after_blank
  return sign.text == "-" and is_tight and after[0].kind != "word"


def _joins(piece: Piece, after: Sequence[Piece]) -> bool:
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
  pieces: Sequence[Piece] | None, before: Piece | None, after: Side | None
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


def _side(pieces: Sequence[Piece] | None) -> Side | None:
  """Returns pieces as a side, None if they can't be read in one way."""
  if not pieces or len(pieces) > _MOST_TOKENS or _is_range(pieces):
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


def _is_range(pieces: Sequence[Piece]) -> bool:
  """Returns whether pieces may be from a number to a greater one: 5-10."""
  if len(pieces) != 3 or pieces[1].text != "-":
    return False
  first, last = pieces[0], pieces[2]
  if any(x.token.after_blank for x in pieces[1:]) or last.kind == "close":
    return False
  return equation_pieces.value(first) < equation_pieces.value(last)


def _is_rational(node: Node) -> bool:
  """Returns whether a formula has only numbers, quantities and + - * / ^."""
  if node.kind in ("number", "variable"):
    return node.kind == "number" or node.parts[0] in tuple(_LETTERS)
  kinds = ("sum", "product", "quotient", "negative", "power")
  return node.kind in kinds and all(map(_is_rational, node.parts))


def _text(pieces: Sequence[Piece]) -> str:
  text = " ".join(x.text for x in pieces)
  return re.sub(r"(?<=[({\[]) | (?=[)}\]^])|(?<=\^) ", "", text)
