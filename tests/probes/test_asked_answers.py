"""What a policy says when it is asked is read as a person would."""

import pytest

from prm_jax.probes import asked_answers


@pytest.mark.parametrize(
  ("text", "answer"),
  [
    (" 18.", "18"),
    ("18", "18"),  # a decoder left out the space
    ("\n\n18\nThe answer is 20", "18"),
    (": 18", "18"),
    (" $18 per day.", "$18 per day"),
    (" **18**", "18"),
    (":\n\\[ 3 \\]", r"\[ 3 \]"),
    (" given by:\n\n\\[\n3\n\\]\nSo", "\\[\n3\n\\]"),
    (" a profit of:\n50 dollars.\nSo", "50 dollars"),
    (" a profit of:", None),
    (":\n\n\\[\n3\n\\]\nSo", "\\[\n3\n\\]"),
    (":\n$$\n3\n$$", "$$\n3\n$$"),
    ("\n", None),
    ("", None),
    (":", None),
    (":\n\n\\[", None),
  ],
)
def test_the_first_line_is_read(text, answer):
  assert asked_answers.read("The answer is", text) == answer


@pytest.mark.parametrize(
  ("answer", "number"),
  [
    ("18 eggs", "18"),
    ("48 + 24 = 72 clips", "72"),
    ("that she sold 1,200 of them", "1,200"),
    ("$624 every day", "$624"),
    ("-5 degrees", "-5"),
    ("3/4 of a cup", "3/4"),
    ("50% of it", "50%"),
    ("16 - 3", "16 - 3"),
    ("2 x", "2 x"),
    ("2 pi", "2 pi"),
    ("5 dozen", "5 dozen"),
    ("not 18", "not 18"),
    ("x2", "x2"),
    (r"\sqrt{2}", r"\sqrt{2}"),
    ("9 pm", "9 pm"),
    ("B", "B"),
    ("5:30", "5:30"),
    ("the 18th", "the 18th"),
  ],
)
def test_a_lone_number_is_told_from_words(answer, number):
  assert asked_answers.short(answer) == number


@pytest.mark.parametrize(
  ("a", "b", "equal"),
  [
    ("18 eggs", "18", True),
    ("18 eggs", "18 eggs a day", True),
    ("$18", "18 dollars", True),
    ("48 + 24 = 72", "72", True),
    ("5 cm", "5 m", False),
    ("18 eggs", "180", False),
    ("5 dozen", "5", False),
    (r"\[ 2 \text{ bolts} + 1 = 3 \text{ bolts} \]", "3", True),
    ("\\[\n3\n\\]", "3", True),
    ("$3$", "3", True),
    (None, None, False),
    ("B", "b", False),
  ],
)
def test_answers_are_the_same_by_their_numbers(a, b, equal):
  assert asked_answers.same(a, b) is equal
  assert asked_answers.same(b, a) is equal


def test_an_answer_may_be_asked_for_within_a_box():
  force = r"The answer is \boxed{"
  assert asked_answers.read(force, "48 + 24 = 72}.\nSo") == "48 + 24 = 72"
  assert asked_answers.read(force, "72") is None  # it isn't closed
  assert asked_answers.after(force, "72") == "72"
  assert asked_answers.after("The answer is", "72") == " 72"
