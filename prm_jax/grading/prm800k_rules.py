r"""PRM800K's rules for "is this answer right?": the second opinion.

Lightman et al. 2023 (arXiv 2305.20050) graded MATH by them (openai/prm800k,
`grading`). They are conservative: a wrong answer hardly passes, some right
ones don't. Right is

1. the same text in the normal form of MATH (Hendrycks et al. 2021, arXiv
   2103.03874), or
2. the same text in a second, looser form (no units, LaTeX read as a formula,
   mixed numbers as sums), or
3. element by element of a tuple of the same brackets: fractions of numbers by
   their text (an unreduced one is wrong), an integer only by an integer, and
   anything else if sympy simplifies the difference to 0. What could take
   forever isn't tried: more than two unknown letters, `^(`, chains of powers,
   exponents of two digits.

Three things differ from theirs. A \frac of more than one letter or number on
a side keeps its parentheses. "1 1/2" isn't "11/2". And text that holds more
than a formula's characters never reaches sympy, whose parser runs Python.
sympy can hang all the same: call `same` in a process that may be killed
(grading.pool).
"""

from __future__ import annotations

import fractions
import re

from prm_jax.grading import equality

# --- The normal form of MATH -------------------------------------------------

_WHOLE_TEXT = re.compile(r"\\text\{(.+?)\}", re.S)
_MATH_REWRITES = {
  r"\n|\\!": "",
  r"\\\\": r"\\",
  r"\\[td]frac": r"\\frac",
  r"\\left|\\right": "",
  r"\^\{\\circ\}|\^\\circ": "",
  r"\\\$|\\%": "",
  r"(^|[ {])\.": r"\g<1>0.",
}
_UNIT_AT_THE_END = r"\text{ "
_IDLE_SPACE = re.compile(r"(?<![0-9]) | (?![0-9])")
_SHORT_SQRT = re.compile(r"\\sqrt([^{])")
_SHORT_FRACTION = re.compile(r"\\frac([^{])(?:\{([^{}]*)\}|([^{]))")
_SLASHED = re.compile(r"(-?[0-9]+)/(-?[0-9]+)")


def math_form(answer: str) -> str:
  """Returns an answer's text as MATH compares it."""
  text = answer.strip()
  if match := _WHOLE_TEXT.fullmatch(text):
    text = match[1].strip()
  text = equality.rewritten(text, _MATH_REWRITES)
  if text.count(_UNIT_AT_THE_END) == 1:
    text = text.partition(_UNIT_AT_THE_END)[0]
  name, equals, value = text.partition("=")
  if equals and "=" not in value and len(name.strip()) <= 2:
    text = value
  text = _SHORT_SQRT.sub(r"\\sqrt{\1}", _IDLE_SPACE.sub("", text))
  text = _SHORT_FRACTION.sub(r"\\frac{\1}{\2\3}", text)
  if text == "0.5":
    text = r"\frac{1}{2}"
  if match := _SLASHED.fullmatch(text):
    text = rf"\frac{{{int(match[1])}}}{{{int(match[2])}}}"
  return text


# --- The looser form ----------------------------------------------------------

_UNITS = (
  "degree|cm|centimeter|meter|mile|second|minute|hour|day|week|month|year"
  "|foot|feet|inch|yard"
)
_PLAIN_REWRITES = {
  r"\\%|%|\\\$|\$": "",
  r" (?:or|and) ": " , ",
  r"trillion": "*10^12",
  r"billion": "*10^9",
  r"million": "*10^6",
  rf"(?:{_UNITS})(?:es)?s? *(?:\^[0-9]+)?": "",
  r"\^ *\\circ": "",
  r",\\! *": "",
}
_INNER_FRACTION = re.compile(
  r"\\[td]?frac\s*(?:\{([^{}]*)\}|([0-9a-z]))\s*(?:\{([^{}]*)\}|([0-9a-z]))"
)
_INNER_ROOT = re.compile(
  r"\\sqrt\s*(?:\[([^][{}]*)\]\s*)?(?:\{([^{}]*)\}|([0-9a-z]))"
)
_SYMBOLS = {
  r"\\(?:left|right|text|mbox|mathrm)(?![a-z])|\\[,;:! ]": " ",
  r"\\(?:cdot|times)(?![a-z])|[\u00b7\u00d7]": "*",
  r"\\pi(?![a-z])|\u03c0": "pi",
  r"\\infty(?![a-z])|\u221e": "inf",
  r"\\cup(?![a-z])|\u222a": "U",
  r"\\": "",
}
_THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)")


def plain_form(answer: str) -> str:
  """Returns an answer as a lower-case formula without spaces and units."""
  text = answer
  if match := _WHOLE_TEXT.fullmatch(text):
    text = match[1]
  text = equality.rewritten(text, _PLAIN_REWRITES).strip()
  if text.startswith("{") and text.endswith("}"):
    text = text[1:-1]
  if "\\" in text:
    text = _formula(text)
  text = re.sub(r"- *", "-", text)
  text = re.sub(r"([0-9]) +(?=[0-9])", r"\1+", text)  # 1 1/2 is 1+1/2
  text = re.sub(r"[ {}]", "", text).lower()
  return _integer(text) or text


def _formula(text: str) -> str:
  """Returns LaTeX as a formula of ordinary characters."""
  before = ""
  while before != text:  # from the inside out
    before = text
    text = _INNER_FRACTION.sub(_divided, text)
    text = _INNER_ROOT.sub(_rooted, text)
  return equality.rewritten(text, _SYMBOLS).strip()


def _divided(match: re.Match[str]) -> str:
  top, bottom = match[1] or match[2] or "", match[3] or match[4] or ""
  return f" {_grouped(top)}/{_grouped(bottom)}"


def _rooted(match: re.Match[str]) -> str:
  inside = match[2] if match[3] is None else match[3]
  if match[1]:
    return f"(({inside})**(1/({match[1]})))"
  return f"sqrt({inside})"


def _grouped(text: str) -> str:
  return text if re.fullmatch(r"\w*", text.strip()) else f"({text})"


def _integer(text: str) -> str | None:
  """Returns an integer's own digits ("1,200.0" is 1200), None for others."""
  text = _THOUSANDS.sub("", text)
  if not _NUMBER.fullmatch(text):
    return None
  value = fractions.Fraction(text)
  return str(value.numerator) if value.denominator == 1 else None


# --- Comparing ----------------------------------------------------------------

_BRACKETS = "()[]"
_FRACTION = re.compile(r"-?[0-9]+/0*[1-9][0-9]*")
_COULD_HANG = re.compile(r"\^\(|\^[0-9]+\^|\^[0-9]{2}")
_FORMULA = re.compile(r"[0-9A-Za-z+\-*/^().!]+")
_MOST_UNKNOWN_LETTERS = 2


def elements(text: str) -> list[str]:
  """Returns what a tuple or interval holds, or the text alone."""
  text = _THOUSANDS.sub("", text)
  inside = text[1:-1]
  is_tuple = (
    len(text) > 2
    and text[0] in _BRACKETS
    and text[-1] in _BRACKETS
    and not any(bracket in inside for bracket in _BRACKETS)
  )
  return [part.strip() for part in inside.split(",")] if is_tuple else [text]


def same(given: str, reference: str) -> bool:
  """Returns whether an answer is right by PRM800K's rules; may take forever."""
  if math_form(given) == math_form(reference):
    return True
  a, b = plain_form(given), plain_form(reference)
  if a == b or not a or not b:
    return bool(a) and a == b
  left, right = elements(a), elements(b)
  if len(right) > 1 and (a[0], a[-1]) != (b[0], b[-1]):
    return False
  return len(left) == len(right) and all(map(_same_element, left, right))


def _same_element(given: str, reference: str) -> bool:
  if _FRACTION.fullmatch(given) and _FRACTION.fullmatch(reference):
    return given == reference
  if (_integer(given) is None) != (_integer(reference) is None):
    return False
  return _differ_by_nothing(given, reference)


def _differ_by_nothing(given: str, reference: str) -> bool:
  text = f"({reference})-({given})"
  letters = re.sub("sqrt|frac", "", text)
  unknown = {letter for letter in letters if letter.isalpha()}
  if (
    len(unknown) > _MOST_UNKNOWN_LETTERS
    or _COULD_HANG.search(text)
    or not _FORMULA.fullmatch(text)
  ):
    return False
  # Half a second to load, and only the `verify` extra brings it.
  import sympy
  from sympy.parsing import sympy_parser

  rules = (
    *sympy_parser.standard_transformations,
    sympy_parser.implicit_multiplication_application,
  )
  try:
    formula = sympy_parser.parse_expr(
      text.replace("^", "**"), transformations=rules
    )
    return bool(sympy.simplify(formula) == 0)
  except MemoryError:
    raise
  except Exception:  # not a formula: sympy raises whatever it meets
    return False
