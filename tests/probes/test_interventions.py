"""What is done to steps: exact, seeded, and nothing else changes."""

import dataclasses
import re

from hypothesis import given
from hypothesis import strategies as st
import pytest

from prm_jax import schema
from prm_jax.probes import interventions


@pytest.mark.parametrize(
  ("text", "pattern"),
  [
    ("3 + 4 = 7 eggs", r"3 \+ 4 = (\d+) eggs"),
    ("so 1,200 cost", r"so (1,[12]\d\d) cost"),
    ("a = $3.50 each", r"a = \$(3\.[45]\d) each"),
    ("it is 0.05", r"it is (0\.\d\d)"),
    ("x2 and 9 birds", r"x2 and (\d+) birds"),
    ("= then 5, 6", r"= then (\d+), 6"),
    ("#### 10", r"#### (\d+)"),
  ],
)
def test_one_number_is_changed_and_written_as_it_was(text, pattern):
  for seed in "abcdefghij":
    new = interventions.changed_number(text, seed)
    assert re.fullmatch(pattern, new) and new != text
    assert new == interventions.changed_number(text, seed)


@pytest.mark.parametrize(
  ("text", "pattern"),
  [
    ("48/2 = <<48/2=24>>24 clips", r"48/2 = <<48/2=(\d+)>>\1 clips"),
    ("so 5 + 0 = 5, that is 5", r"so 5 \+ 0 = (\d+), that is \1"),
    ("there are 12, and 3 of 12", r"there are (\d+), and 3 of \1"),
  ],
)
def test_a_number_that_is_repeated_is_changed_everywhere(text, pattern):
  new = interventions.changed_number(text, "s")
  assert re.fullmatch(pattern, new) and new != text


def test_the_number_of_a_step_is_none():
  for text in (
    "Step 2: add them",
    "**Step 3:** go",
    "2. Add them",
    "(2) add",
    "1. a\n2. b\n - 3) c",
  ):
    assert interventions.changed_number(text, "s") is None
  assert interventions.changed_number("Step 2: add 3", "s")[:12] == (
    "Step 2: add "
  )
  for text in ("3.5 eggs", "16 - 3", "7"):
    assert interventions.changed_number(text, "s") != text


def test_a_text_without_a_number_of_its_own_is_not_changed():
  for text in ("none here", "x2", "version 1.2.3", ""):
    assert interventions.changed_number(text, "s") is None


@given(st.integers(0, 10**9), st.integers(0, 3), st.text("ab", max_size=3))
def test_a_number_moves_by_1_to_9_of_its_last_digit(value, decimals, seed):
  digits = str(value).zfill(decimals + 1)
  at = len(digits) - decimals
  text = digits[:at] + (f".{digits[at:]}" if decimals else "")
  new = interventions.changed_number(f"is {text}", seed).removeprefix("is ")
  assert len(new.partition(".")[2]) == decimals
  moved = int(new.replace(".", "")) - value
  assert 1 <= abs(moved) <= 9


def test_the_step_that_states_the_answer_is_no_reasoning():
  s = schema.Solution("s", "?", ("1 + 2 = 3", "The answer is 3."))
  assert interventions.reasoning(s) == s.steps[:1]
  more = dataclasses.replace(
    s, steps=("1 + 2 = 3", "So the answer is 3.", "#### 3", "Bye!")
  )
  assert interventions.reasoning(more) == s.steps[:1]
  unstated = dataclasses.replace(s, steps=("1 + 2 = 3", "That is all."))
  assert interventions.reasoning(unstated) == unstated.steps
  alone = schema.Solution("s", "?", ("1 + 2 = 3, so the answer is 3.",))
  assert interventions.reasoning(alone) == alone.steps


def test_dots_have_as_many_tokens():
  assert interventions.dots("a b c", lambda x: len(x.split())) == ". . ."
  assert interventions.dots("abcd", len) == ". . ."  # 5, the first with more


def test_the_text_between_steps_stays():
  raw = "Well: one\n\ntwo\nthree."
  spans = ((6, 9), (11, 14), (15, 20))
  s = schema.Solution(
    "s", "?", ("one", "two", "three"), raw_text=raw, spans=spans
  )
  text = interventions.Text(s)
  steps = [*enumerate(s.steps)]
  assert text.prefix("a", steps).raw_text == raw[:20]
  assert text.prefix("a", steps[:1], is_open=True).raw_text == raw[:11]
  asked = text.prefix("a", steps[:1], last="so")
  assert asked.raw_text == raw[:11] + "so" and asked.steps == ("one", "so")
  left_out = text.prefix("a", [steps[0], steps[2]])
  assert left_out.raw_text == "Well: one\nthree"
  assert left_out.id == "s/a" and not left_out.extra
  assert text.prefix("a", [], last="so").raw_text == "so"


@pytest.mark.parametrize(
  ("step", "mentioned"),
  [
    ("As you say, it is 4", True),
    ("The hint is wrong", True),
    ("The suggested answer", True),
    ("Young hints add 4", False),
    ("4 + 4 = 8", False),
  ],
)
def test_a_cue_is_mentioned_by_words(step, mentioned):
  assert interventions.mentions_cue(["2 + 2", step]) is mentioned
