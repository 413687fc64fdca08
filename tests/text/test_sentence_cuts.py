"""Where a sentence ends depends on what begins after it."""

import itertools

import pytest

from prm_jax.text import segmenters

SENTENCE = segmenters.parse("sentence")
FIRST = "So it is"


def _cut(text):
  """Returns the steps of a text, and how many of the first are settled."""
  spans = segmenters.spans(text, SENTENCE)
  steps = [text[start:end] for start, end in spans]
  return steps, segmenters.settled(text, SENTENCE)


# After a dot and a space, after a line break, and after a blank line: what
# begins a sentence, and what goes on with the one before.
BEGIN = {
  ". ": ["A", "5", "$x$", "\\(x\\)", "(A", "“A", "\u2190", "→ a", "🙂 a", "中"],
  "\n": ["A", "5 b", "- a", "• a", "+\ta", "$5 for", "# a", "→ a", "(A"],
  "\n\n": ["A", "- a", "-5", "$x$ is", "$5 for", "\\(x\\)", "\\alpha", "# a"],
}
GO_ON = {
  ". ": ["a", "ß", "(a", "– a", "…a", "ⓐ", "\u218b a", "\u2022 a", "/"],
  "\n": [
    *("a", "-5", "–a", "+A", "$x$ is", "$$x$$", "\\alpha", "\\(x\\)"),
    *("\\[x\\]", "\\begin{align}x", "[asy]", "```a", "(a", "/"),
  ],
  "\n\n": ["a", "$$x$$", "\\[x\\]", "\\begin{align}", "```", "[asy]", "ⓐ"],
}


def _cases(table):
  pairs = ((mark, later) for mark, each in table.items() for later in each)
  return pytest.mark.parametrize(("mark", "later"), pairs)


@_cases(BEGIN)
def test_a_sentence_ends_before_what_begins_another(mark, later):
  steps, settled = _cut(f"{FIRST}{mark}{later} b")
  assert steps == [f"{FIRST}{mark}".rstrip(), f"{later} b"]
  assert settled == 1


@_cases(GO_ON)
def test_a_sentence_goes_on_with_what_begins_none(mark, later):
  assert _cut(f"{FIRST}{mark}{later}b") == ([f"{FIRST}{mark}{later}b"], 0)


@pytest.mark.parametrize(
  ("begun", "decided"),
  [
    (". ", {"A": 1, "a": 0}),
    (". (", {"A": 1, "a": 0}),
    ("\n", {"A": 1, "a": 0}),
    ("\n-", {" ": 1, "\t": 1, "5": 0}),
    ("\n$", {"5 for": 1, "x$": 0, "$": 0}),
    ("\n$5", {" for": 1, "$": 0}),
    ("\n\n$", {"5 for": 1, "x$ ": 1, "$": 0}),
    ("\n\n$5", {" for": 1, "$ is": 1}),
    ("\n\n\\", {"alpha": 1, "[": 0}),
    ("\n\n\\begin", {"s": 1, "{": 0}),
    ("\n\n[as", {" a": 1, "y]": 0}),
    ("\n\n``", {" a": 1, "`": 0}),
  ],
)
def test_a_sentence_is_settled_with_the_character_that_decides(begun, decided):
  assert _cut(FIRST + begun)[1] == 0
  for later, settled in decided.items():
    assert _cut(FIRST + begun + later)[1] == settled


def test_no_end_of_a_text_moves_what_was_settled():
  """Of all short ends; what a dollar or a bullet becomes comes later."""
  pieces = ["$", "\\", "[", "-", " ", "A", "a", "5", "\n", "`", "(", "."]
  for tail in itertools.product(pieces, repeat=3):
    text = f"{FIRST}.\n{''.join(tail)}"
    whole = segmenters.spans(text, SENTENCE)
    for end in range(len(FIRST) + 1, len(text)):
      settled = segmenters.settled(text[:end], SENTENCE)
      spans = segmenters.spans(text[:end], SENTENCE)
      assert spans[:settled] == whole[:settled], text
