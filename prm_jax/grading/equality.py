r"""When two final answers are the same by their text or their exact value.

Equality is that of normalised text, or exact rational equality of plain
numbers with at most a known unit: "1,200" = "1200.0" = "$1200", 1/2 = 0.5 =
\frac{1}{2}, 6.6\times10^{-3} = 0.0066. Nothing is evaluated: "2 + 2" and "4"
differ (grading.formulas evaluates). All of it takes time linear in the text,
whatever the text.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import fractions
import re

# A longer answer is compared as it stands: reading is quadratic at worst (in
# the digits of a number, say), and nobody writes a longer one by intent.
MAX_CHARS = 2_000


def equal(a: str | None, b: str | None) -> bool:
  """Returns whether two answers are the same; None (no answer) equals nothing.

  Symmetric. A known unit (%, degrees, money, common measures) or a name (x =)
  may be missing on one side, but "5 cm" and "5 m" differ, as do "x = 5" and
  "y = 5". Units aren't converted. "50%" is "50", and never "0.5": a percentage
  could be meant as either, and one reading must be kept to. A rounded number
  isn't the number that it was rounded from: "0.333333" isn't "1/3".
  """
  if a is None or b is None:
    return False
  one, two = parse(a), parse(b)
  for x, y in ((one.name, two.name), (one.unit, two.unit)):
    if x and y and x != y:
      return False
  return one.key == two.key


def canonical(answer: str | None) -> str | None:
  """Returns a key under which votes for one answer are pooled.

  Equal answers have equal keys. The reverse fails only for one value with two
  different units or names, which a vote pools: they aren't part of the key.
  """
  return None if answer is None else parse(answer).key


# Stands for a dollar sign that isn't TeX's.
MONEY = "\N{CURRENCY SIGN}"
_UNITS = {
  name: unit
  for unit, names in {
    "%": "% percent",
    "deg": "° degree degrees",
    "usd": f"{MONEY} dollar dollars usd",
    "cent": "cent cents ¢",
    "eur": "€ euro euros eur",
    "gbp": "£ gbp",  # "pounds" weigh
    "jpy": "¥ yen",
    "inr": "₹ rupee rupees",
    "mm": "mm millimeter millimeters millimetre millimetres",
    "cm": "cm centimeter centimeters centimetre centimetres",
    "m": "meter meters metre metres",
    "km": "km kilometer kilometers kilometre kilometres",
    "in": "inch inches",
    "ft": "ft foot feet",
    "yd": "yard yards",
    "mi": "mile miles",
    "mg": "mg milligram milligrams",
    "g": "gram grams",
    "kg": "kg kgs kilogram kilograms",
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
# What is written before a number.
COINS = f"{MONEY}€£¥₹"
# Alone, these could be variables: they are units beside another unit.
UNIT_LETTERS = {"m": "m", "g": "g", "s": "s", "h": "h", "l": "l"}
_SPACES = re.compile(r"(?<!\\)\\(?:[,;: ]|q?quad(?![A-Za-z]))|[~\s]")
_TEXT = re.compile(
  r"\\(?:text(?:bf|rm|it)?|math(?:rm|bf)|mbox)\s*+\{([^{}]*+)\}"
)
_ARGUMENT = r"\s*+(?:\{([^{}]*+)\}|([0-9A-Za-z]))"
_FRACTION = re.compile(r"\\[dtc]?frac" + _ARGUMENT + _ARGUMENT)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_REWRITES = {
  # TeX's thousands marks, some with a blank after them.
  r"(?<=[0-9])(?:\{,\}|,?\\!|,?\\,)\s*+(?=[0-9]{3}(?![0-9]))": "",
  r"\\(?:left|right)(?![A-Za-z])|\\!": "",
  r"\^\s*+(?:\\circ|\{\s*+\\circ\s*+\})|\\degree(?![A-Za-z])": "°",
  r"\\%": "%",
  r"\{,\}": ",",
}
_BRACES = {
  r"\\sqrt\s*+([0-9A-Za-z])": r"\\sqrt{\1}",
  r"([_^])\{([0-9A-Za-z])\}": r"\1\2",
}
# A space means something between words, between two numbers, and after a comma
# that would be a thousands mark without it: "40, 200" is two numbers.
_SPACE_AFTER_COMMAND = re.compile(r"(\\[A-Za-z]++) (?![A-Za-z])")
_IDLE_SPACE = re.compile(
  r"(?<![0-9A-Za-z]) | (?![0-9A-Za-z])|(?<=[0-9]) (?=[A-Za-z])"
)
_LISTED = re.compile(r"(?<=[0-9]), (?=[0-9]{3}(?![0-9]))")
_BRACKETS = re.compile(r"(?<!\\)[(\[]|\\\{")
_NAMED = re.compile(r"(?P<name>[A-Za-z])=(?P<rest>[^=]+)")
_CHOICE = re.compile(r"\(([A-Z])\)")
_WORDS = re.compile(r"[A-Za-z]{3,}+(?: [A-Za-z]++)*+")
_DECIMAL = (
  r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})++(?![0-9])|[0-9]++)(?:\.[0-9]*+)?+"
  r"|\.[0-9]++"
)
_POWER_OF_TEN = (
  r"(?:\\times|\\cdot|[*×·x]) ?10\^(?:\{(?P<braced>[+-]?[0-9]{1,3})\}"
  r"|(?P<bare>[+-]?[0-9]{1,3}))|[eE](?P<short>[+-]?[0-9]{1,3})(?![0-9.])"
)
_LARGE = dict(thousand=3, million=6, billion=9, trillion=12)
_QUANTITY = re.compile(
  rf"(?P<sign>-?+)\+?+(?P<money>[{COINS}]?+)(?P<inner>-?+)"
  rf"(?:(?P<whole>[0-9]++) (?=[0-9]++/))?+(?P<top>{_DECIMAL})"
  rf"(?:/(?P<bottom>{_DECIMAL})|{_POWER_OF_TEN}|(?P<large>{'|'.join(_LARGE)}))?+"
  r" ?(?P<unit>[^0-9].*+)?+"
)
_UNIT_PARTS = re.compile(r"[a-z]++|\^[23]|[^ ]")
_POWERS = {"^2": "square", "²": "square", "^3": "cubic", "³": "cubic"}


@dataclasses.dataclass(frozen=True)
class Answer:
  """What an answer is: 5 cm, whose name is x, of x = 5 cm.

  Args:
    key: Its value if it is a number with at most a unit, else its normal text.
    name: Its name, "" for none.
    value: The number.
    unit: Its unit, "" for none.
  """

  key: str
  name: str = ""
  value: fractions.Fraction | None = None
  unit: str = ""


def parse(answer: str) -> Answer:
  """Returns what an answer is."""
  if len(answer) > MAX_CHARS:
    return Answer(answer.strip())
  text, name = _normal_text(answer), ""
  if match := _NAMED.fullmatch(text):
    name, text = match["name"], match["rest"]
  # Only in a lone number: "2^\frac12" isn't "2^1/2", "1\frac12" is 3/2.
  plain = _FRACTION.sub(r" \1\2/\3\4", text).strip()
  match = _QUANTITY.fullmatch(plain.replace("- ", "-").replace("+ ", "+"))
  if match:
    unit, value = _unit_of(match), _value(match)
    if unit is not None and value is not None:
      return Answer(str(value), name, value, unit)
  return Answer(text, name)


def normal_marks(text: str) -> str:
  r"""Returns a text with one sign for each mark that has several.

  Minus signs are "-", degrees "°"; a dollar sign that isn't TeX's is MONEY.
  TeX's own are left out, as are its thousands marks, \left and \right.
  """
  text = text.replace("\N{MINUS SIGN}", "-").replace(r"\$", MONEY)
  text = text.replace("$", MONEY if text.count("$") % 2 else "")
  text = re.sub("10[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺]+", _superscript, text)
  return rewritten(text, _REWRITES)


def rewritten(text: str, rewrites: Mapping[str, str]) -> str:
  """Returns a text with each pattern replaced, one after the other."""
  for pattern, new in rewrites.items():
    text = re.sub(pattern, new, text)
  return text


def _superscript(match: re.Match[str]) -> str:
  return f"10^{{{match[0][2:].translate(_SUPERSCRIPTS)}}}"


def _normal_text(text: str) -> str:
  """Returns a text without the differences that carry no meaning."""
  text = rewritten(normal_marks(text), _BRACES)
  text = _SPACES.sub(" ", _TEXT.sub(r"\1", text))
  text = _FRACTION.sub(r"\\frac{\1\2}{\3\4}", text)
  text = unwrapped(" ".join(text.split())).rstrip(".,;: ")
  if not _BRACKETS.search(text):
    text = _LISTED.sub(";", text)
  text = _IDLE_SPACE.sub("", _SPACE_AFTER_COMMAND.sub(r"\1", text))
  if match := _CHOICE.fullmatch(text):
    text = match[1]
  return text.casefold() if _WORDS.fullmatch(text) else text


def unwrapped(text: str) -> str:
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
  power = match["braced"] or match["bare"] or match["short"] or 0
  power = int(power) + _LARGE.get(match["large"], 0)
  value = (whole + top / bottom) * fractions.Fraction(10) ** power
  return -value if (match["sign"] + match["inner"]) == "-" else value


def _unit_of(match: re.Match[str]) -> str | None:
  """Returns the unit of a matched quantity, "" for none, None if unknown."""
  unit = unit_of(match["unit"] or "")
  if not match["money"] or unit is None:
    return unit
  return with_coin(_UNITS[match["money"]], unit)


def with_coin(coin: str, unit: str) -> str:
  """Returns the unit of a number with money before it and a unit after it."""
  return unit if unit.startswith(coin) else f"{coin} {unit}".strip()


def unit_of(text: str, *, with_letters: bool = False) -> str | None:
  """Returns the normal form of a unit, "" for none, None for unknown words.

  Args:
    text: What stands after a number.
    with_letters: Whether a lone m, g, s, h or l is a unit, too; beside a known
      unit, as in km/h, it always is.
  """
  found = _UNIT_PARTS.findall(text.lower())
  with_letters |= any(part in _UNITS and part != "/" for part in found)
  parts: list[str] = []
  for part in found:
    if part in _POWERS and parts:
      parts.insert(-1, _POWERS[part])  # ft^2 is "square ft"
    elif part in _UNITS:
      parts.append(_UNITS[part])
    elif part in UNIT_LETTERS and with_letters:
      parts.append(UNIT_LETTERS[part])
    else:
      return None
  if parts and parts[-1] in ("per", "square", "cubic"):
    return None
  return " ".join(parts)
