r"""Paragraphs end at the blank lines that no fence, display or picture holds.

The oracle searches a whole text for blocks with regular expressions; the module
is an automaton that reads characters one after another.
"""

import re
import time

from hypothesis import example
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from prm_jax.text import paragraph_cuts
from prm_jax.text import segmenters
from prm_jax.text import sentence_cuts
from prm_jax.text import step_cuts

B = "[ \t\r\f\v]*"
FENCE = re.compile(rf"{B}(`{{3,}}(?=[^`\n]*(?:\n|\Z))|~{{3,}})[^\n]*(?:\n|\Z)")
# Code within a line, which its first line shows.
CODE = re.compile(rf"{B}`{{3,}}[^`\n]+`")
NAMES = "|".join(paragraph_cuts.ENVIRONMENTS)
OPENING = re.compile(
  rf"(\\\[)|(\$\$)|(\[asy\])|(\\begin\{{(?:{NAMES}))|\\[^\n]"
  # A formula in a line: its end is a dollar after no blank, and a display's
  # opening or a dollar after a blank shows that it is none.
  r"|\$(?![\s$])(?:\\[^\[\n]|[^\\$\n])*?(?:(?<![ \t\r\f\v])\$|(?=[ \t\r\f\v]\$)"
  r"|(?=\\\[)|(?=\\?(?:\n|\Z)))"
)
PROSE = (
  rf"\n{B}\n\s*(?:[A-Z][a-z]+(?=[{step_cuts.WHITE},.:;!?'])"
  r"|I(?:'|[ \t\r\f\v]+(?=[a-z]))|#|\*\*)"
)
DOLLAR = rf"\n{B}\n\s*(?=\$)"
# What changes a block, or shows that its end was forgotten.
WITHIN = {
  r"\[": rf"\\\]|\\[^\n]|{PROSE}|{DOLLAR}",
  "$$": rf"\$\$|\\[^\n]|{PROSE}",
  "[asy]": rf"\[/asy\]|\\[^\n]|{PROSE}|{DOLLAR}",
  "begin": rf"\\begin\{{|\\end\{{|\\[^\n]|{PROSE}|{DOLLAR}",
}

CLOSING = {r"\[": r"\]", "$$": "$$", "[asy]": "[/asy]"}


def _after_display(text, start, kind):
  """Returns where a display ends, or the text's end."""
  depth = 1
  while True:
    match = re.compile(WITHIN[kind]).search(text, start)
    if match is None:
      return len(text)
    found, start = match.group(), match.end()
    if found.startswith("\n") or found == CLOSING.get(kind):
      return start
    if kind == "begin":
      depth += (found == r"\begin{") - (found == r"\end{")
      depth = min(depth, paragraph_cuts.DEEPEST)
      if not depth:
        return start


def _after_fence(text, match):
  """Returns where the last line of a fence ends, or the text's end."""
  mark, least = match[1][0], min(len(match[1]), paragraph_cuts.LONGEST_FENCE)
  closing = re.compile(rf"^{B}{mark}{{{least},}}{B}(?:$|\Z)", re.MULTILINE)
  end = closing.search(text, match.end())
  return len(text) if end is None else end.end()


def _expected(text):
  """Returns the steps of a text."""
  steps, start, place, is_line_start = [], 0, 0, True
  while place < len(text):
    if is_line_start and (match := FENCE.match(text, place)):
      place, is_line_start = _after_fence(text, match), False
      continue
    if is_line_start and (match := CODE.match(text, place)):
      place, is_line_start = match.end(), False
      continue
    is_line_start = False
    if match := re.compile(rf"\n{B}\n").match(text, place):
      if text[start:place].strip(step_cuts.WHITE):
        steps.append((start, place))
        start = match.end()
      # The last line break may begin another blank line.
      place, is_line_start = match.end() - 1, True
      if start == match.end():
        place += 1
      continue
    if text[place] == "\n":
      place, is_line_start = place + 1, True
      continue
    match = OPENING.match(text, place)
    if match is None:
      place += 1
    elif match.lastindex is None:
      place = match.end()
    else:
      kind = (r"\[", "$$", "[asy]", "begin")[match.lastindex - 1]
      place = _after_display(text, match.end(), kind)
  steps.append((start, len(text)))
  stripped = [text[a:b].strip(step_cuts.WHITE) for a, b in steps]
  return [step for step in stripped if step]


def _steps(text):
  return [text[a:b] for a, b in segmenters.spans(text, segmenters.PARAGRAPH)]


PIECES = (
  *(
    "\n",
    "\n\n",
    "\n\n",
    "\r\n",
    "\r\n\r\n",
    " ",
    "\t",
    "a",
    "é",
    "So we ",
    "9",
  ),
  *("```", "```\n", "\n```\n", "````", "```python\n", "`", "~~~", "~~~~\n"),
  *("``````", "\n  ```", "$", "$$", "$$\n", "\n$$", "$x$", "\\$", "\\", "\\\\"),
  *("\\[", "\\]", "\\[\n", "\n\\]\n", "\\(", "[asy]", "[/asy]", "[", "]", "{"),
  *("\\begin{align*}", "\\end{align*}", "\\begin{cases}", "\\end{cases}"),
  *("\\begin{proof}", "\\end{proof}", "\\beg", "in{eq", "It's", "A = b", "|"),
  *("\n\nI ", "\n\n**", "\n\n#", "\n\n", "I", "*", "Where?", "a\n\n$"),
)
TEXTS = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)


@settings(max_examples=1_000)
@given(TEXTS)
@example("\\[\n\nProé\n\nb\n\nc")
@example("$$\n\nPr🙂 a\n\nb\n\nc")
def test_steps_are_what_a_search_for_blocks_finds(text):
  assert _steps(text) == _expected(text)


@settings(max_examples=300)
@given(TEXTS, TEXTS)
@example("```\na\n\n", "```\n\nb")
def test_the_cuts_of_a_beginning_are_the_first_cuts_of_the_whole(text, more):
  cuts = paragraph_cuts.paragraphs(text)
  assert cuts.num_settled == len(cuts.places)
  whole = paragraph_cuts.paragraphs(text + more).places
  assert [*whole[: len(cuts.places)]] == [*cuts.places]


BLOCKS = (
  "```python\nx = 1\n\nprint(x)\n```",
  "~~~\na\n\n```\n\nb\n~~~",
  "````md\n```\na\n\nb\n```\n\nc\n````",
  "  ```\n  a\n\n  b\n  ```",
  "```\r\na\r\n\r\nb\r\n```",
  "``````\n`````\n\na\n``````",
  "\\[\n\nx = 1\n\n\\]",
  "\\[ a \\\\[2pt]\n\n b \\]",
  "so $$\na\n\nb = \\$ 5\n\n$$ here",
  "\\begin{align}\na &= b\n\n&= c\n\\end{align}",
  "\\begin{equation}\n\\begin{cases}\na\n\n\\end{cases}\n\nb\n\\end{equation}",
  "[asy]\ndraw((0,0));\n\ndot(A);\n[/asy]",
  "| a | b |\n|---|---|\n| ``` | $$x$$ |",
  "$a$$b$ and $c$",
  "He has $5, then $\\$6$ and $x$$y$",
  "`code` and ```more``` of it",
  "A list:\n- \\$\n- ``",
)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("n", ["\n\n", "\r\n\r\n", "\n \t\n"])
def test_a_block_is_whole_and_what_follows_is_cut(block, n):
  step = block.strip()
  assert _steps(f"{block}{n}b{n}c") == [step, "b", "c"]
  assert _steps(f"Then:{n}{block}{n}c") == ["Then:", step, "c"]


@pytest.mark.parametrize(
  "text",
  [
    "```py`\na\n\nb",  # code within a line
    "``\na\n\nb",
    "x ```\na\n\nb",
    "\\\\[2pt]\na\n\nb",
    "\\begin{proof}\na\n\nb",
    "\\begin{algorithm}\na\n\nb",
    "costs $5.\na\n\nb",
    "[a]\n\nb",
  ],
)
def test_what_looks_like_a_block_and_is_none_is_cut(text):
  first, _, second = text.partition("\n\n")
  assert _steps(text) == [first, second]


def test_a_fence_that_is_not_closed_holds_the_rest():
  text = "a\n\n```\nSo we\n\nSo we\n\n~~~\n\n`` `\n\n```x\n\nb"
  assert _steps(text) == ["a", text[3:]]


@pytest.mark.parametrize("opening", ["\\[", "$$", "[asy]", "\\begin{align}"])
def test_a_display_that_is_not_closed_ends_with_prose(opening):
  text = f"{opening}\nx\n\ny\n\nSo we get 1.\n\nTherefore, 2.\n\n3"
  held, *rest = text.split("\n\n")[2:]
  assert _steps(text) == [f"{opening}\nx\n\ny\n\n{held}", *rest]


def test_a_step_that_was_given_leaves_its_block_open():
  begun = "```python\nx = 1\n\n"
  new = "y = 2\n\nprint(x)\n```\n\nSo 3."
  found = segmenters.spans(new, segmenters.PARAGRAPH, begun=begun)
  assert [new[a:b] for a, b in found] == [new[:-7], "So 3."]


def test_the_environments_are_those_of_sentences_and_no_others():
  def opens(name):
    return len(_steps(f"\\begin{{{name}}}\na\n\nb")) == 1

  for name in sentence_cuts.ENVIRONMENTS.split("|"):
    assert opens(name) and opens(f"{name}*")
  for name in (
    *("abstract", "algorithm", "center", "claim", "definition", "document"),
    *("enumerate", "example", "figure", "flushleft", "frame", "itemize"),
    *("lemma", "minipage", "multicols", "proof", "proposition", "quote"),
    *("remark", "solution", "spacing", "table", "theorem", "verbatim"),
  ):
    assert not opens(name)


def test_hostile_texts_take_linear_time():
  for piece in PIECES:
    text = piece * (100_000 // len(piece)) + "```"
    start = time.process_time()
    paragraph_cuts.paragraphs(text)
    assert time.process_time() - start < 0.5, piece
