r"""Final answers: where a solution states one, and when two are the same.

Equality is that of normalised text, or exact rational equality of plain
numbers with at most a known unit: "1,200" = "1200.0" = "$1200", 1/2 = 0.5 =
\frac{1}{2}. Nothing is evaluated: "2 + 2" and "4" differ. All of it takes time
linear in the text, whatever the text.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import fractions
import re

# A longer answer is compared as it stands: reading is quadratic at worst (in
# the digits of a number, say), and nobody writes a longer one by intent.
_MAX_CHARS = 2_000

_SENTENCE_END = re.compile(r"\.\s")
_FINAL_LINE = re.compile(r"#{4,}+(?![ \t]*+(?:final[ \t]++)?+answer\b)", re.I)
_HEADING = re.compile(
  r"^[ \t]*+#++[ \t]*+(?:final[ \t]++)?+answer[ \t]*+:?+[ \t]*+$", re.I | re.M
)
_SENTENCE = re.compile(r"\banswer\s++is\b(?:\s*+:)?+", re.I)
_LAST_LINE = re.compile(
  r"[ \t*#]*+(?:the[ \t]++)?+(?:final[ \t]++)?+answer"
  r"(?:[ \t]*+:(?P<any>.+)|[ \t]++(?P<word>\S++)[ \t]*+)$",
  re.I,
)
_BOX_PARTS = re.compile(
  r"(?P<box>\\(?:boxed|fbox)\s*+)(?P<brace>\{)?+|\\.|[{}]", re.S
)
_BOXED_WORD = re.compile(r"[^\s$\\{}]++")


def extract(solution: str | Sequence[str]) -> str | None:
  r"""Returns the final answer that a solution's text or steps state, or None.

  Reads `#### x`, `\boxed{x}` and a heading `# Answer` with x below it, or,
  where a text has none of these, `The answer is: x` and a last line `answer x`
  or `Answer: x`. Of several the last one counts. The answer is returned as
  written, without a closing full stop.
  """
  text = solution if isinstance(solution, str) else "\n".join(solution)
  text = text.rstrip()
  marked = (_from_final_line(text), _from_heading(text), _from_box(text))
  # Prose goes on talking ("the answer is correct"), so marks come first.
  prose = (_from_sentence(text), _from_last_line(text))
  for places in (marked, prose):
    if any(places):
      return max(place for place in places if place)[1]
  return None


def equal(a: str | None, b: str | None) -> bool:
  """Returns whether two answers are the same; None (no answer) equals nothing.

  Symmetric. A known unit (%, degrees, money, common measures) or a name (x =)
  may be missing on one side, but "5 cm" and "5 m" differ, as do "x = 5" and
  "y = 5". "50%" is "50", and never "0.5": a percentage could be meant as
  either, and one reading must be kept to.
  """
  if a is None or b is None:
    return False
  one, two = _parse(a), _parse(b)
  for x, y in ((one.name, two.name), (one.unit, two.unit)):
    if x and y and x != y:
      return False
  return one.key == two.key


def canonical(answer: str | None) -> str | None:
  """Returns a key under which votes for one answer are pooled.

  Equal answers have equal keys. The reverse fails only for one value with two
  different units or names, which a vote pools: they aren't part of the key.
  """
  return None if answer is None else _parse(answer).key


# --- Finding: each returns (place in the text, answer) or None ---------------


def _from_final_line(text):
  """GSM8K's `#### x`."""
  place = _last_place(_FINAL_LINE, text)
  return place and _found(place[0], _first_line(text[place[1] :]).strip("#"))


def _from_heading(text):
  """PRM800K's heading `# Answer`; all the text below it is the answer."""
  place = _last_place(_HEADING, text)
  return place and _found(place[0], text[place[1] :])


def _from_sentence(text):
  """Math-Shepherd's `The answer is: x`, to the end of line or sentence."""
  place = _last_place(_SENTENCE, text)
  if place is None:
    return None
  line = _first_line(text[place[1] :])
  return _found(place[0], _SENTENCE_END.split(line, maxsplit=1)[0])


def _from_last_line(text):
  """The testbed's `answer x`, and `Answer: x`."""
  start = text.rfind("\n") + 1
  match = _LAST_LINE.match(text, start)
  return match and _found(start, match.group("any") or match.group("word"))


def _from_box(text):
  r"""The last closed \boxed{x} that isn't blank; \boxed x, as MATH has it."""
  stack: list[tuple[int, int] | None] = []
  last = None
  for match in _BOX_PARTS.finditer(text):
    box = None
    if match.group("brace"):
      stack.append(match.span())
    elif match.group("box"):
      word = _BOXED_WORD.match(text, match.end())
      box = word and (match.start(), word.group().rstrip(".,;"))
    elif match.group() == "{":
      stack.append(None)
    elif match.group() == "}" and stack:
      opened = stack.pop()
      # In nested boxes the inner one closes first and started last.
      if opened and (last is None or opened[0] > last[0]):
        box = (opened[0], text[opened[1] : match.start()].strip())
    if box and box[1]:
      last = box
  return last


def _last_place(pattern, text):
  last = None
  for match in pattern.finditer(text):
    last = match.span()
  return last


def _first_line(text):
  return text.lstrip().split("\n", 1)[0]


def _found(start, answer):
  answer = answer.strip().strip("*").strip().removesuffix(".")
  return (start, answer) if answer else None


# --- Comparing --------------------------------------------------------------

_MONEY = "\N{CURRENCY SIGN}"  # stands for a dollar sign that isn't TeX's
_UNITS = {
  name: unit
  for unit, names in {
    "%": "% percent",
    "deg": "° degree degrees",
    "usd": f"{_MONEY} dollar dollars usd",
    "cent": "cent cents",
    "eur": "euro euros",
    "mm": "mm millimeter millimeters millimetre millimetres",
    "cm": "cm centimeter centimeters centimetre centimetres",
    "m": "meter meters metre metres",  # a lone m could be a variable
    "km": "km kilometer kilometers kilometre kilometres",
    "in": "inch inches",
    "ft": "ft foot feet",
    "yd": "yard yards",
    "mi": "mile miles",
    "g": "gram grams",
    "kg": "kg kilogram kilograms",
    "lb": "lb lbs pound pounds",
    "oz": "oz ounce ounces",
    "l": "liter liters litre litres",
    "ml": "ml milliliter milliliters millilitre millilitres",
    "gal": "gallon gallons",
    "s": "second seconds",
    "min": "minute minutes",
    "h": "hour hours",
    "day": "day days",
    "week": "week weeks",
    "month": "month months",
    "year": "year years",
    "mi per h": "mph",
    "unit": "unit units",
    "square": "square sq",
    "cubic": "cubic cu",
    "per": "per /",
  }.items()
  for name in names.split()
}
_SPACES = re.compile(r"(?<!\\)\\(?:[,;: ]|q?quad(?![A-Za-z]))|[~\s]")
_TEXT = re.compile(
  r"\\(?:text(?:bf|rm|it)?|math(?:rm|bf)|mbox)\s*+\{([^{}]*+)\}"
)
_ARGUMENT = r"\s*+(?:\{([^{}]*+)\}|([0-9A-Za-z]))"
_FRACTION = re.compile(r"\\[dtc]?frac" + _ARGUMENT + _ARGUMENT)
_REWRITES = tuple(
  (re.compile(pattern), new)
  for pattern, new in (
    (r"\\(?:left|right)(?![A-Za-z])|\\!", ""),
    (r"\^\s*+(?:\\circ|\{\s*+\\circ\s*+\})", "°"),
    (r"\\%", "%"),
    (r"\{,\}", ","),
    (r"(?<=[0-9])\\,(?=[0-9]{3})", ""),
    (r"\\sqrt\s*+([0-9A-Za-z])", r"\\sqrt{\1}"),
    (r"([_^])\{([0-9A-Za-z])\}", r"\1\2"),
  )
)
# A space means something between words, and between two numbers.
_SPACE_AFTER_COMMAND = re.compile(r"(\\[A-Za-z]++) (?![A-Za-z])")
_IDLE_SPACE = re.compile(
  r"(?<![0-9A-Za-z]) | (?![0-9A-Za-z])|(?<=[0-9]) (?=[A-Za-z])"
)
_NAMED = re.compile(r"(?P<name>[A-Za-z])=(?P<rest>[^=]+)")
_CHOICE = re.compile(r"\(([A-Z])\)")
_WORDS = re.compile(r"[A-Za-z]{3,}+(?: [A-Za-z]++)*+")
_DECIMAL = (
  r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})++(?![0-9])|[0-9]++)(?:\.[0-9]*+)?+"
  r"|\.[0-9]++"
)
_QUANTITY = re.compile(
  rf"(?P<sign>-?+)\+?+(?P<money>{_MONEY}?+)(?P<inner>-?+)"
  rf"(?:(?P<whole>[0-9]++) (?=[0-9]++/))?+(?P<top>{_DECIMAL})"
  rf"(?:/(?P<bottom>{_DECIMAL}))?+(?P<unit>[^0-9].*+)?+"
)
_UNIT_PARTS = re.compile(r"[a-z]++|\^[23]|[^ ]")
_POWERS = {"^2": "square", "²": "square", "^3": "cubic", "³": "cubic"}


@dataclasses.dataclass(frozen=True)
class _Answer:
  """key: the value where the answer is a quantity, else its normal text."""

  key: str
  unit: str = ""
  name: str = ""


def _parse(answer: str) -> _Answer:
  if len(answer) > _MAX_CHARS:
    return _Answer(answer.strip())
  text, name = _normal_text(answer), ""
  if match := _NAMED.fullmatch(text):
    name, text = match["name"], match["rest"]
  # Only in a lone number: "2^\frac12" isn't "2^1/2", "1\frac12" is 3/2.
  plain = _FRACTION.sub(_slashed, text).strip()
  match = _QUANTITY.fullmatch(plain.replace("- ", "-").replace("+ ", "+"))
  if match:
    unit, value = _unit(match["money"], match["unit"] or ""), _value(match)
    if unit is not None and value is not None:
      return _Answer(str(value), unit, name)
  return _Answer(text, name=name)


def _normal_text(text: str) -> str:
  """Returns a text without the differences that carry no meaning."""
  text = text.replace("\N{MINUS SIGN}", "-").replace(r"\$", _MONEY)
  text = text.replace("$", _MONEY if text.count("$") % 2 else "")
  for pattern, new in _REWRITES:
    text = pattern.sub(new, text)
  text = _SPACES.sub(" ", _TEXT.sub(r"\1", text))
  text = _FRACTION.sub(_braced, text)
  text = _unwrapped(" ".join(text.split())).rstrip(".,;: ")
  text = _IDLE_SPACE.sub("", _SPACE_AFTER_COMMAND.sub(r"\1", text))
  if match := _CHOICE.fullmatch(text):
    text = match[1]
  return text.casefold() if _WORDS.fullmatch(text) else text


def _braced(fraction: re.Match[str]) -> str:
  top, bottom = _arguments(fraction)
  return rf"\frac{{{top}}}{{{bottom}}}"


def _slashed(fraction: re.Match[str]) -> str:
  top, bottom = _arguments(fraction)
  return f" {top}/{bottom}"


def _arguments(fraction: re.Match[str]) -> tuple[str, str]:
  r"""Returns the two arguments of a \frac, with braces or without."""
  return (fraction[1] or fraction[2] or "", fraction[3] or fraction[4] or "")


def _unwrapped(text: str) -> str:
  r"""Returns the inside of \(x\), \[x\] and \boxed{x}, which may nest."""
  math = ((r"\(", r"\)"), (r"\[", r"\]"))
  for opening, closing in (*math, (r"\boxed{", "}"), *math):
    inside = text.removeprefix(opening).removesuffix(closing)
    is_whole = len(text) - len(inside) == len(opening) + len(closing)
    if is_whole and opening not in inside:
      text = inside.strip()
  return text


def _value(match: re.Match[str]) -> fractions.Fraction | None:
  """Returns a matched quantity's value; None where it divides by zero."""
  top, bottom, whole = (
    fractions.Fraction((match[name] or default).replace(",", "").rstrip("."))
    for name, default in (("top", "0"), ("bottom", "1"), ("whole", "0"))
  )
  if bottom == 0:
    return None
  value = whole + top / bottom
  return -value if (match["sign"] + match["inner"]) == "-" else value


def _unit(money: str, text: str) -> str | None:
  """Returns the normal form of a unit, "" for none, None for unknown words."""
  parts = [_UNITS["dollar"]] if money else []
  for part in _UNIT_PARTS.findall(text.lower()):
    if part in _POWERS and parts:
      parts.insert(-1, _POWERS[part])  # ft^2 is "square ft"
    elif part in _UNITS:
      parts.append(_UNITS[part])
    else:
      return None
  if money and len(parts) > 1 and parts[1] == _UNITS["dollar"]:
    del parts[0]
  return " ".join(parts)
