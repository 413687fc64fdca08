"""Cuts of a text give places of its own characters, and lose no word."""

import dataclasses
import json
import time

from hypothesis import example
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from prm_jax import errors
from prm_jax.text import segmenters
from prm_jax.text import step_cuts
from prm_jax.text import step_spans
from prm_jax.text import tokenizer as tokenizer_lib

WHITE = step_cuts.WHITE
NAMES = ("paragraph", "line", "sentence", "numbered", "markers", "tokens:3")
BYTES = tokenizer_lib.Bytes()
# What some segmenter looks at, and what may be taken for it.
PIECES = (
  *("\n", "\n\n", "\r\n", " ", "\t", ".", "...", "!", "?", ":", "3.14", "e.g."),
  *(
    "1.",
    "2)",
    "Step 2:",
    "**Step 1.**",
    "Wait, ",
    "So ",
    "so",
    "let me ",
    "$",
  ),
  *("$x$", "$5 for", "\\(", "\\)", "\\[", "\\]", "$$", "```", "\\begin{align}"),
  *("\\end{align}", "Eq. 2", "A", "b ", "é", "e\u0301", "🙂\u200d🙂", "\u3000"),
  *("\u2028", "\x00", "\ud800", "。", "- ", '"', ")"),
)
TEXTS = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)


def _made(name):
  segmenter = segmenters.parse(name)
  if name == "markers":
    return dataclasses.replace(segmenter, min_chars=4, max_chars=12)
  return segmenter


def _steps(text, name):
  spans = step_spans.spans(text, _made(name), BYTES)
  return [text[start:end] for start, end in spans]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60)
@given(TEXTS)
def test_between_steps_is_white_space_alone(name, text):
  last = 0
  for start, end in step_spans.spans(text, _made(name), BYTES):
    assert last <= start < end
    assert not text[last:start].strip(WHITE)
    assert text[start:end] == text[start:end].strip(WHITE)
    last = end
  assert not text[last:].strip(WHITE)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150)
@given(TEXTS, TEXTS)
@example("So x is 3", ".14 now. So")
@example("It costs $5", "0$ more. A")
@example("Step 1: a\nStep", " 2: b")
@example("a.\n", "b. A")
@example("14Wait, Case \n\r\u3002...", "!!")
def test_later_text_moves_no_settled_step(name, text, more):
  segmenter = _made(name)
  num = step_spans.settled(text, segmenter, BYTES)
  before = step_spans.spans(text, segmenter, BYTES)
  assert num <= len(before)
  after = step_spans.spans(text + more, segmenter, BYTES)
  assert after[:num] == before[:num]
  assert step_spans.settled(text + more, segmenter, BYTES) >= num


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60)
@given(TEXTS)
@example("1. a\n2. b\n3. c\n4. d")
@example("Step 1: a\n1. b\nStep 2: c\n1. d\n2. e")
@example("A$$5 fore.g.\t\\begin{align}let me   \u3002\u00e9")
@example("abcdef  gh")
def test_a_continuation_of_whole_steps_is_cut_as_within_the_whole(name, text):
  segmenter = _made(name)
  whole = step_spans.spans(text, segmenter, BYTES)
  num = step_spans.settled(text, segmenter, BYTES)
  for k in range(1, len(whole)):
    start = whole[k][0]
    begun, new = text[:start], text[start:]
    found = step_spans.spans(new, segmenter, BYTES, begun)
    assert tuple((start + a, start + b) for a, b in found) == whole[k:]
    settled = step_spans.settled(new, segmenter, BYTES, begun)
    assert settled == max(num - k, 0)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40)
@given(TEXTS, TEXTS, TEXTS)
def test_whatever_was_begun_later_text_moves_no_settled_step(
  name, begun, text, more
):
  segmenter = _made(name)
  num = step_spans.settled(text, segmenter, BYTES, begun)
  before = step_spans.spans(text, segmenter, BYTES, begun)
  after = step_spans.spans(text + more, segmenter, BYTES, begun)
  assert num <= len(before)
  assert after[:num] == before[:num]
  assert step_spans.settled(text + more, segmenter, BYTES, begun) >= num
  # No word is lost, whatever place of it the text begins at.
  left = text
  for start, end in reversed(before):
    left = left[:start] + left[end:]
  assert not left.strip(WHITE)


@pytest.mark.parametrize("kind", segmenters.WITHOUT_LOOK_AHEAD)
@given(TEXTS)
def test_a_step_is_settled_with_the_break_after_it(kind, text):
  segmenter = segmenters.Segmenter(kind)
  broken = "\n" if kind == "line" else "\n \t\n"
  # In an open block the letter belongs to the step before the break.
  num = len(step_spans.spans(f"{text}{broken}x", segmenter)) - 1
  assert step_spans.settled(text + broken, segmenter) == num


@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_text_takes_linear_time(name):
  for piece in (*PIECES, "\n ", ". ", "$1", "(", "a.b.", "1.\n", "So. ", "\\"):
    length = 5_000 if name.startswith("tokens") else 20_000
    text = piece * (length // len(piece))
    for left in (2, 1, 0):  # a busy machine may be slow at a time
      start = time.process_time()
      step_spans.settled(text, _made(name), BYTES)
      if time.process_time() - start < 0.5:
        break
      assert left, piece


@pytest.mark.parametrize("name", NAMES)
def test_a_blank_text_has_no_step(name):
  for text in ("", " \n\n\t", "\r\n\r\n"):
    assert step_spans.spans(text, _made(name), BYTES) == ()


SOLUTION = """\
**Step 1:** The area is \\(3 \\cdot 1.5 = 4.5\\) sq. m., i.e. 4.5.

So it costs $5 a tile. We need
\\[
  n = 10. \\quad x = 2.
\\]
tiles. Is that all? No.
Step 2: Add 2. See Eq. 2.
"""


@pytest.mark.parametrize(
  "name, expected",
  [
    (
      "paragraph",
      [SOLUTION.partition("\n\n")[0], SOLUTION.partition("\n\n")[2].strip()],
    ),
    ("line", [line.strip() for line in SOLUTION.splitlines() if line]),
    (
      "sentence",
      [
        "**Step 1:** The area is \\(3 \\cdot 1.5 = 4.5\\) sq. m., i.e. 4.5.",
        "So it costs $5 a tile.",
        "We need\n\\[\n  n = 10. \\quad x = 2.\n\\]\ntiles.",
        "Is that all?",
        "No.",
        "Step 2: Add 2.",
        "See Eq. 2.",
      ],
    ),
    (
      "numbered",
      [
        SOLUTION.partition("Step 2")[0].strip(),
        "Step 2: Add 2. See Eq. 2.",
      ],
    ),
  ],
)
def test_cuts_of_a_solution(name, expected):
  assert _steps(SOLUTION, name) == expected


def test_a_new_thought_begins_a_step():
  text = "The sum is 12, as 5 + 7 is. Wait, that is 13. Sorry. So I add again."
  segmenter = segmenters.Segmenter("markers", ("wait", "so"), 10, 40)
  steps = [text[a:b] for a, b in step_spans.spans(text, segmenter)]
  assert steps == [
    "The sum is 12, as 5 + 7 is.",
    "Wait, that is 13. Sorry.",  # "Sorry" isn't "so"
    "So I add again.",
  ]
  # None is shorter than min_chars; one ends before it is longer than max_chars.
  longer = dataclasses.replace(segmenter, min_chars=40, max_chars=50)
  steps = [text[a:b] for a, b in step_spans.spans(text, longer)]
  assert steps[0] == "The sum is 12, as 5 + 7 is. Wait, that is 13."


def test_tokens_are_counted_by_the_models_tokenizer():
  assert _steps("abcdef  gh", "tokens:3") == ["abc", "def", "g", "h"]
  with pytest.raises(errors.InputError, match="give the model's tokenizer"):
    step_spans.spans("a", segmenters.parse("tokens:3"))


@pytest.mark.parametrize("name", NAMES)
def test_a_segmenter_comes_back_from_json(name):
  segmenter = segmenters.parse(name)
  record = json.loads(json.dumps(segmenters.record_of(segmenter)))
  assert segmenters.from_record(record) == segmenter
  assert segmenters.parse(segmenters.name_of(segmenter)) == segmenter


@pytest.mark.parametrize(
  "make, message",
  [
    (lambda: segmenters.Segmenter("words"), "paragraph, line"),
    (lambda: segmenters.parse("tokens"), "as in tokens:64"),
    (lambda: segmenters.parse("tokens:0"), "num_tokens=0: give 1 or more"),
    (lambda: segmenters.Segmenter("line", ("so",)), "'line' has no words"),
    (lambda: segmenters.Segmenter("markers", ("so",), 9, 9), "min_chars=9"),
    (lambda: segmenters.Segmenter("markers", ("",), 0, 9), "aren't empty"),
  ],
)
def test_a_segmenter_that_is_none_is_refused(make, message):
  with pytest.raises(errors.InputError, match=message):
    make()
