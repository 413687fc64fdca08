"""Where sentences end in a mathematical text.

A sentence ends with `.`, `!` or `?` if white space and the beginning of another
one follow, and at a line break if the next line begins one. No sentence ends
within a formula, a picture or code, after an abbreviation, a mere number
("Step 2.") or an ellipsis. This looks ahead: whether the dot in "3." ends a
sentence depends on what comes next.
"""

from __future__ import annotations

import re

from prm_jax import schema
from prm_jax.text import step_cuts

_WHITE = step_cuts.WHITE
# Environments that hold a formula.
ENVIRONMENTS = (
  "align|aligned|alignat|array|bmatrix|Bmatrix|cases|eqnarray|equation|flalign"
  "|gather|gathered|matrix|multline|pmatrix|smallmatrix|split|tabular|vmatrix"
  "|Vmatrix"
)
_ENVIRONMENT = rf"\{{(?:{ENVIRONMENTS})\*?\}}"
# What opens or closes a formula; and a paragraph's end, which closes each. A
# backslash with another character is neither.
_DELIMITERS = re.compile(
  rf"\\(?:begin|end){_ENVIRONMENT}|\\[^\n]|\$\$?|```|\[/?asy\]"
  rf"|{step_cuts.PARAGRAPH_BREAK.pattern}"
)
_CLOSING = {r"\(": r"\)", r"\[": r"\]", "[asy]": "[/asy]", "```": "```"}
_BLOCKS = ("[asy]", "```")

# An amount of dollars, not a formula: a word follows. And what could become one.
_AMOUNT = rf"\d[\d,]*+(?:\.\d++)?+[.,;:!?)]*+[{_WHITE}]++"
# GSM8K's calculations, <<3*4=12>>, come before an amount.
_DOLLARS = re.compile(rf"\$(?:<<|{_AMOUNT}(?:[A-Za-z]{{2}}|[Aa][{_WHITE}]))")
_DOLLARS_BEGUN = re.compile(
  rf"\$(?:<|\d[\d,]*+(?:\.\d*+)?+[.,;:!?)]*+[{_WHITE}]*+[A-Za-z]?)?\Z"
)

# What may end a sentence. A dot at the end of a formula is in it.
_ENDS = re.compile(
  rf"\.(?=[{_WHITE}]*+(\$\$?|\\[)\]]|\\end{_ENVIRONMENT}))"
  rf"|[.!?]+|[。！？]+|\n[{_WHITE}]*"
)
_CLOSERS = re.compile(r"[)\]}\"'”’»*_」』）]*")
_OPENERS = re.compile(r"[(\[{\"'“‘«*_>]*")
_WHITES = re.compile(f"[{_WHITE}]*")
_WIDE = "。！？"

_WORD = re.compile(r"[A-Za-z]+(?:\.[A-Za-z]+)*\Z")
_LONGEST_WORD = 16
# Sentences go on after these, and after all others with dots in them.
_ABBREVIATIONS = frozenset(
  {
    "approx",
    "cf",
    "cor",
    "def",
    "dr",
    "eq",
    "eqn",
    "eqns",
    "eqs",
    "fig",
    "figs",
  }
  | {"lem", "mr", "mrs", "ms", "prof", "prop", "resp", "st", "thm", "viz", "vs"}
  | {"wlog"}
)
_TIMES = ("a.m", "p.m")
# Sentences go on after these if a number or a formula follows.
_BEFORE_NUMBERS = frozenset(
  {"art", "ch", "ex", "ft", "hr", "hrs", "in", "lb", "lbs", "mi", "min", "no"}
  | {"nos", "p", "pp", "sec", "vol", "yd"}
)
# No sentence by itself: "2.", "**Step 2.", "(a.".
_LABEL = re.compile(
  rf"[{_WHITE}*_#(]*(?:(?:step|case|part|problem|question|option|rule)"
  rf"[{_WHITE}]+)?(?:\d{{1,3}}|[ivx]{{1,4}}|[a-z])[*_)]*",
  re.IGNORECASE,
)
_LONGEST_LABEL = 40
_BULLETS = "-•–—+"
_DISPLAYS = (r"\[", r"\begin{", "[asy]", "```")


def sentences(text: str) -> step_cuts.Cuts:
  """Returns the points at which sentences end.

  The time is linear in the text.
  """
  formulas, undecided = _formulas(text)
  points: list[int] = []
  k = 0
  for match in _ENDS.finditer(text):
    start = match.start()
    while k < len(formulas) and formulas[k][1] <= start:
      k += 1
    point = match.end()
    if k < len(formulas) and formulas[k][0] <= start:
      if match.end(1) != formulas[k][1]:
        continue
      point = match.end(1)
    previous = points[-1] if points else 0
    point, is_end = _is_end(text, match, previous, point)
    if is_end:
      points.append(point)
    elif is_end is None:
      # A cut where this mark begins is final already.
      undecided = min(undecided, start + 1)
  return step_cuts.at_points(points, undecided)


def _formulas(text: str) -> tuple[list[schema.Span], int]:
  """Returns the places of formulas, pictures and code.

  A formula ends with its paragraph at the latest: there, an opening dollar is
  an amount. \\( without its end is a formula nevertheless.

  Returns:
    The places, and the first character of which later text may make another
    one: a dollar that isn't closed.
  """
  places: list[schema.Span] = []
  opening, start, depth = "", 0, 0
  for match in _DELIMITERS.finditer(text):
    found = match.group()
    if opening == "$":
      if _closes_dollar(text, match):
        places.append((start, match.end()))
        if match.end() == len(text):  # a digit may follow
          return places, start
        opening = ""
        continue
      if found.startswith("\\") and found not in _CLOSING:
        continue
      opening = ""  # an amount; `found` is read anew
    if not opening:
      opening, start, depth = _opened(text, match), match.start(), 1
    elif opening == r"\begin":
      depth += found.startswith(r"\begin{") - found.startswith(r"\end{")
      if not depth or found[0] == "\n":
        places.append((start, match.end() if not depth else match.start()))
        opening = ""
    elif found == _CLOSING.get(opening, opening):
      places.append((start, match.end()))
      opening = ""
    elif found[0] == "\n" and opening not in _BLOCKS:
      if opening != "$$":
        places.append((start, match.start()))
      opening = ""
  if opening in ("$", "$$"):
    return places, start
  return places + [(start, len(text))] * bool(opening), len(text)


def _opened(text: str, match: re.Match[str]) -> str:
  """Returns what a delimiter opens, "" if nothing."""
  found = match.group()
  if found.startswith(r"\begin{"):
    return r"\begin"
  if found == "$":
    is_spaced = _at(text, match.end()) in {*_WHITE}
    is_amount = is_spaced or _is_amount(text, match.start())
    return "" if is_amount else "$"
  return found if found in _CLOSING or found == "$$" else ""


def _closes_dollar(text: str, match: re.Match[str]) -> bool:
  """Returns whether a delimiter closes $; the rule is Pandoc's.

  No white space before it, no digit after it.
  """
  if match.group() != "$":
    return False
  before = text[match.start() - 1]
  return before not in _WHITE and not _at(text, match.end()).isdigit()


def _at(text: str, place: int) -> str:
  """Returns a character, "" after the last."""
  return text[place : place + 1]


def _after(run: re.Pattern[str], text: str, place: int) -> int:
  """Returns where a run of characters that begins at a place ends."""
  match = run.match(text, place)
  assert match is not None, "it may be empty"
  return match.end()


def _is_amount(text: str, place: int) -> bool | None:
  """Returns whether a dollar is an amount's; None if that isn't decided."""
  if _DOLLARS.match(text, place):
    return True
  return None if _DOLLARS_BEGUN.match(text, place) else False


def _is_end(
  text: str, match: re.Match[str], previous: int, point: int
) -> tuple[int, bool | None]:
  """Returns where a sentence ends, and whether it does; None is undecided.

  Args:
    text: The text.
    match: A match of _ENDS.
    previous: Where the sentence before ends.
    point: Where this one may end: after the match, or after its formula.
  """
  found = match.group()
  if found[0] == "\n":
    return match.start(), _begins_line(text, match)
  in_formula = point != match.end()
  if not in_formula and (
    (len(found) > 1 and not found.strip("."))
    or (found == "." and _is_short(text, match, previous))
  ):
    return point, False
  point = _after(_CLOSERS, text, point)
  begin = _after(_WHITES, text, point)
  if begin == len(text):
    return point, None
  display = in_formula and match.group(1) not in ("$", r"\)")
  if begin == point and found[0] not in _WIDE and not display:
    return point, False
  return point, found[0] in _WIDE or _begins(text, begin)


def _is_short(text: str, match: re.Match[str], previous: int) -> bool:
  """Returns whether a dot belongs to an abbreviation or a mere number."""
  dot = match.start()
  if dot - previous < _LONGEST_LABEL and _LABEL.fullmatch(text, previous, dot):
    return True
  word = _WORD.search(text[max(previous, dot - _LONGEST_WORD) : dot])
  if word is None:
    return False
  name = word.group().lower()
  if "." in name:
    return name not in _TIMES and max(map(len, name.split("."))) < 3
  if name in _BEFORE_NUMBERS:
    after = _at(text, _after(_WHITES, text, dot + 1))
    return after.isdigit() or after in ("(", "$", "\\")
  return name in _ABBREVIATIONS


def _begins(text: str, place: int) -> bool | None:
  """Returns whether a sentence can begin here; None is undecided."""
  place = _after(_OPENERS, text, place)
  if place == len(text):
    return None
  first = text[place]
  # Arrows, emoji and others are beyond the punctuation.
  known = first.isalnum() or first in "$\\" or first >= "\u2190"
  return known and not first.islower()


def _begins_line(text: str, match: re.Match[str]) -> bool | None:
  """Returns whether a line begins a sentence; None is undecided.

  A formula on a line of its own doesn't: it goes on. After a blank line all but
  such a formula and a small letter does.
  """
  place, is_paragraph = match.end(), match.group().count("\n") > 1
  if place == len(text):
    return None
  first, rest = text[place], text[place : place + 7]
  for display in _DISPLAYS:
    if rest.startswith(display):
      return False
    if len(rest) < 7 and display.startswith(rest):
      return None
  if first in _BULLETS and not is_paragraph:
    return text[place + 1] in step_cuts.BLANK if len(rest) > 1 else None
  if first == "$":
    if len(rest) == 1 or rest[1] == "$":
      return None if len(rest) == 1 else False
    is_amount = _is_amount(text, place)
    return is_paragraph if is_amount is False else is_amount
  if first in "\\#":
    return is_paragraph or first == "#"
  return not first.islower() if is_paragraph else _begins(text, place)
