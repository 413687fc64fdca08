r"""Where paragraphs end in a text: at a blank line that no block holds.

A blank line is a line break, blanks alone, and another line break. It ends a
paragraph, unless an open block holds it:

- A fence: a line of three or more backticks or tildes, with an info string or
  without. A line of as many or more of the same closes it. Both may be
  indented. A fence that isn't closed holds the rest of the text, as in Markdown.
- A display: \[...\], $$...$$ or an environment that holds a formula, such as
  \begin{align}. And a picture: [asy]...[/asy]. If a paragraph in one of these
  begins as prose does (a word with a capital, "I see", a heading, bold text, or
  a formula in dollars), the end of the block was forgotten: the block ends
  there, and the next blank line is a cut again.

A table of Markdown ends at its first blank line, so it is whole.

All of this is one automaton over bytes that reads from left to right and never
looks ahead. So no later text moves a cut, and a device can follow it
(step_automaton.py). It counts the characters of a fence up to LONGEST_FENCE and
nested environments up to DEEPEST; what is beyond counts as much.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from jaxtyping import Bool, Int
import numpy as np

from prm_jax import schema
from prm_jax.text import step_cuts

LONGEST_FENCE = 6
DEEPEST = 3
# With these the name of an environment that holds a formula begins, and of the
# others none: "multl" is multline and not multicols. The shorter they are, the
# fewer states there are.
ENVIRONMENTS = (
  *("ali", "arr", "Bm", "bm", "cas", "eq", "fla", "gat", "mat", "multl"),
  *("pm", "sma", "spl", "tabu", "Vm", "vm"),
)

# What could open a block; a text without it has none.
_MAY_OPEN = re.compile(r"```|~~~|\$\$|\\\[|\\begin\{|\[asy\]")
_OF_SEVERAL_BYTES = re.compile(r"[^\x00-\x7f]")
# What opens a block outside of one, and what changes a block: the next one.
_OUTSIDE = ""
_OPENING = {
  r"\[": r"\[",
  "[asy]": "[asy]",
  **{rf"\begin{{{name}": "1" for name in ENVIRONMENTS},
}
_CHANGING = {
  r"\[": {r"\]": _OUTSIDE},
  "$$": {"$$": _OUTSIDE},
  "[asy]": {"[/asy]": _OUTSIDE},
  **{
    str(depth): {
      r"\begin{": str(min(depth + 1, DEEPEST)),
      r"\end{": str(depth - 1) if depth > 1 else _OUTSIDE,
    }
    for depth in range(1, DEEPEST + 1)
  },
}
_FIRST = frozenset("$[\\")  # of what changes a block
# After a blank line in a display: what could be the beginning of prose, and the
# characters that then show that it is. "I" needs a blank and a small letter.
_SHOWS_PROSE = {
  "new": "#",
  "*": "*",
  "I": "'",
  "I ": "",
  "Word": "",
  "word": f"{step_cuts.WHITE},.:;!?'",
}
# The characters that some state tells from their like.
_WORDS = [*_OPENING, *(word for words in _CHANGING.values() for word in words)]
_READ = frozenset("".join(_WORDS) + "".join(_SHOWS_PROSE.values()) + "`~$I")


class State(NamedTuple):
  """What of a text decides how it goes on.

  Args:
    block: The block that is open: "" none, a fence's opening, or a key of
      _CHANGING.
    at: The place in it. Outside: "empty" before a paragraph, "text", "\\n" a
      line break after text, "$" a dollar that may open a formula, "math" in it,
      "math " after a blank in it, or the beginning of an opening. In a fence:
      "open" in its opening, "info" after that, "\\n" at a line's beginning,
      "text", the beginning of its closing, "closing", and "closing " after
      blanks. In others: "text", "\\n", "new" after a blank line, a key of
      _SHOWS_PROSE after that, or the beginning of what changes the block.
  """

  block: str
  at: str


class Machine(NamedTuple):
  """The automaton; its first state is 0.

  Args:
    next: The state after each byte.
    is_cut: Whether a byte completes the blank line that ends a paragraph.
  """

  next: Int[np.ndarray, "states 256"]
  is_cut: Bool[np.ndarray, "states 256"]


_EMPTY, _BROKEN = State(_OUTSIDE, "empty"), State(_OUTSIDE, "\n")
_TEXT = State(_OUTSIDE, "text")


@functools.cache
def machine() -> Machine:
  """Returns the automaton of paragraphs."""
  states, number, rows = [_EMPTY], {_EMPTY: 0}, []
  alike = [_alike(chr(byte)) for byte in range(256)]
  for state in states:
    after = {char: _after(state, char) for char in sorted({*alike})}
    for new in after.values():
      if new not in number:
        number[new] = len(states)
        states.append(new)
    rows.append([number[after[char]] for char in alike])
  is_cut = np.zeros((len(states), 256), bool)
  is_cut[number[_BROKEN], ord("\n")] = True
  return Machine(np.asarray(rows, np.int32), is_cut)


def paragraphs(text: str) -> step_cuts.Cuts:
  """Returns the blank lines that end paragraphs; all of them are settled.

  The time is linear in the text.
  """
  places: list[schema.Span] = []
  if not _MAY_OPEN.search(text):
    start = 0
    for match in step_cuts.PARAGRAPH_BREAK.finditer(text):
      if text[start : match.start()].strip(step_cuts.WHITE):
        places.append(match.span())
      start = match.end()
    return step_cuts.Cuts(places, len(places))
  rows, broken = _rows()
  state = 0
  # A character is one byte here; those of several bytes are text.
  one_each = _OF_SEVERAL_BYTES.sub("\x80", text).encode("latin-1")
  for place, byte in enumerate(one_each):
    if byte == 10 and state == broken:
      places.append((text.rindex("\n", 0, place), place + 1))
    state = rows[state][byte]
  return step_cuts.Cuts(places, len(places))


@functools.cache
def _rows() -> tuple[list[list[int]], int]:
  """Returns the automaton as lists, and the state after a line break."""
  own = machine()
  return own.next.tolist(), int(np.flatnonzero(own.is_cut.any(axis=1))[0])


def _alike(char: str) -> str:
  """Returns a character that every state treats as this one."""
  if char in _READ:
    return char
  return "Z" if "A" <= char <= "Z" else "z" if "a" <= char <= "z" else "0"


# --- A state and a character ------------------------------------------------


def _after(state: State, char: str) -> State:
  """Returns the state after a character."""
  if state.block == _OUTSIDE:
    return _outside(state.at, char)
  if state.block[0] in "`~":
    return _in_fence(state.block, state.at, char)
  return _in_display(state.block, state.at, char)


def _outside(at: str, char: str) -> State:
  if char == "\n":
    return _EMPTY if at in ("empty", "\n") else _BROKEN
  if at in ("empty", "\n"):
    if char in step_cuts.BLANK:
      return State(_OUTSIDE, at)
    return State(_OUTSIDE, char) if char in "`~" else _outside("text", char)
  if at[0] in "`~":
    if char != at[0]:
      return _outside("text", char)
    return State(at + char, "open") if len(at) == 2 else State("", at + char)
  if at == "$":
    if char == "$":
      return State("$$", "text")
    return _TEXT if char in step_cuts.BLANK else _outside("math", char)
  if at.startswith("math"):
    return _in_math(at, char)
  if at == "text" and char == "$":
    return State(_OUTSIDE, "$")
  begun = char if at == "text" else at + char
  if begun in _OPENING:
    return State(_OPENING[begun], "text")
  if any(word.startswith(begun) for word in _OPENING):
    return State(_OUTSIDE, begun)
  # A backslash and a character are a pair; else the character is read anew.
  return _TEXT if at in ("text", "\\") else _outside("text", char)


def _in_math(at: str, char: str) -> State:
  """Returns the state after a character of a formula in a line, $...$.

  No blank comes before its end: after one, a dollar may open another one.
  """
  is_pair = at == "math\\"
  if is_pair and char == "[":
    return State(r"\[", "text")
  if char == "$" and not is_pair:
    return State(_OUTSIDE, "$") if at == "math " else _TEXT
  if char in step_cuts.BLANK:
    return State(_OUTSIDE, "math ")
  is_pair = char == "\\" and not is_pair
  return State(_OUTSIDE, "math\\" if is_pair else "math")


def _in_fence(block: str, at: str, char: str) -> State:
  mark = block[0]
  if char == "\n":
    return _BROKEN if at.startswith("closing") else State(block, "\n")
  if at == "open" and char == mark:
    return State((block + mark)[:LONGEST_FENCE], at)
  if at in ("open", "info"):
    # Three backticks and more of them later are code within a line.
    return _TEXT if char == mark == "`" else State(block, "info")
  if char in step_cuts.BLANK and (at == "\n" or at.startswith("closing")):
    return State(block, "closing " if at != "\n" else at)
  if char == mark and (at in ("\n", "closing") or at[0] == mark):
    run = at.strip() + mark
    is_closing = at == "closing" or len(run) == len(block)
    return State(block, "closing" if is_closing else run)
  return State(block, "text")


def _in_display(block: str, at: str, char: str) -> State:
  if at in _SHOWS_PROSE:
    after = _in_prose(block, at, char)
    if after is not None:
      return after
  if char == "\n":
    return State(block, "new" if at in ("\n", "new") else "\n")
  if char in step_cuts.BLANK and at in ("\n", "new"):
    return State(block, at)
  words = _CHANGING[block]
  is_begun = at[0] in _FIRST
  begun = at + char if is_begun else char
  if begun in words:
    return State(words[begun], "text")
  if begun == "\\" or any(word.startswith(begun) for word in words):
    return State(block, begun)
  if is_begun and at != "\\":
    return _in_display(block, "text", char)
  return State(block, "text")


def _in_prose(block: str, at: str, char: str) -> State | None:
  """Returns the state after what may be prose; None if it isn't."""
  if at == "new":
    if char == "$" and block != "$$":
      return State(_OUTSIDE, "$")
    if char in "I*":
      return State(block, char)
    if "A" <= char <= "Z":
      return State(block, "Word")
  is_small = "a" <= char <= "z"
  if is_small and at in ("I", "Word", "word"):
    return State(block, "word")
  if at in ("I", "I ") and char in step_cuts.BLANK:
    return State(block, "I ")
  if (at == "I " and is_small) or char in _SHOWS_PROSE.get(at, ""):
    return _outside("text", char)
  return None
