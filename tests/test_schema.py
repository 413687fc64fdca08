"""Problems and solutions refuse what would contradict itself."""

import math

from hypothesis import given
from hypothesis import strategies as st
import pytest

from prm_jax import errors
from prm_jax import schema


def test_a_field_of_our_own_can_not_hide_in_extra():
  with pytest.raises(errors.InputError, match="'a': extra holds labels, steps"):
    schema.Solution("a", "p", (), extra={"steps": [], "labels": []})
  with pytest.raises(errors.InputError, match="'a': extra holds answer"):
    schema.Problem("a", "p", extra={"answer": "4"})


@pytest.mark.parametrize("name", ["labels", "ratings"])
def test_a_solution_has_one_judgement_per_step(name):
  with pytest.raises(errors.InputError, match=f"1 {name} for 2 steps"):
    schema.Solution("a", "p", ("x", "y"), **{name: (1,)})


@pytest.mark.parametrize(
  "labels, threshold, expected",
  [
    ((), 0.5, -1),
    ((1.0, None, 0.5), 0.5, -1),
    ((1.0, None, 0.49, 0.0), 0.5, 2),
    ((None, 0.0), 0.5, 1),
    ((0.9, 0.8), 0.85, 1),
  ],
)
def test_the_first_error_is_the_first_label_below_the_threshold(
  labels, threshold, expected
):
  assert schema.first_error(labels, threshold) == expected


@pytest.mark.parametrize(
  "fields, message",
  [
    (dict(steps="so 3 + 4 = 7"), "steps is one str"),
    (dict(steps=("a", 7)), r"steps\[1\] must be a str"),
    (dict(problem=None), "problem must be a str"),
    (dict(id=3), "id must be a str"),
    (dict(answer=14), "answer must be a str"),
    (dict(outcome=1), "outcome must be True, False or None"),
    (dict(labels=(7.0, "x")), r"labels\[0\] is 7.0"),
    (dict(labels=(0.5, "x")), r"labels\[1\] is 'x'"),
    (dict(labels=(True, None)), r"labels\[0\] is True"),
    (dict(labels=(math.nan, None)), r"labels\[0\] is nan"),
    (dict(ratings=(2, None)), r"ratings\[0\] is 2"),
    (dict(labels=(1.0,)), "1 labels for 2 steps"),
    (dict(spans=((0, 1), (1, 2))), "spans without raw_text"),
    (dict(raw_text="a b", spans=((0, 1),)), "1 spans for 2 steps"),
    (dict(raw_text="a b", spans=((0, 1), (1, 2))), r"spans\[1\] is \(1, 2\)"),
    (dict(raw_text="b a", spans=((2, 3), (0, 1))), r"spans\[1\] is \(0, 1\)"),
  ],
)
def test_a_bad_value_is_refused_where_a_solution_is_made(fields, message):
  with pytest.raises(errors.InputError, match=message):
    schema.Solution(**(dict(id="1", problem="p", steps=("a", "b")) | fields))


def test_a_list_of_steps_becomes_a_tuple():
  assert schema.Solution("1", "p", ["a", "b"]).steps == ("a", "b")


@given(st.lists(st.text()), st.text())
def test_spans_are_where_the_steps_are_in_the_raw_text(steps, between):
  text, spans = "", []
  for step in steps:
    text += between
    spans.append((len(text), len(text) + len(step)))
    text += step
  solution = schema.Solution(
    "1", "p", tuple(steps), raw_text=text, spans=tuple(spans)
  )
  assert [solution.raw_text[a:b] for a, b in solution.spans] == steps


def test_step_scores_have_one_of_each_for_every_step():
  scores = schema.StepScores((0.5, 0.9))
  assert scores.judged == (True, True) and len(scores) == 2
  with pytest.raises(errors.InputError, match="1 logits for 2 scores"):
    schema.StepScores((0.5, 0.9), logits=(0.0,))
