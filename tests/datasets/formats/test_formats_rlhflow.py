"""Laws of RLHFlow's chats."""

import collections

import pytest

from prm_jax import errors
from prm_jax.datasets.formats import rlhflow


def _chat(*turns):
  roles = ("user", "assistant")
  return {
    "conversations": [
      {"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)
    ]
  }


def test_the_question_ends_where_step_1_begins(read_row):
  solution = read_row(
    "rlhflow",
    _chat("Why? Add 1. Step 1: Is it 2?", "+", "Step 2: No.", "-"),
  )
  assert solution.problem == "Why? Add 1."
  assert solution.steps == ("Is it 2?", "No.")
  assert solution.labels == (1.0, 0.0)
  kept = read_row(
    "rlhflow", _chat("Q Step 1: a", "+", "Step 2: b", "-"), keep_numbers=True
  )
  assert kept.problem == "Q" and kept.steps == ("Step 1: a", "Step 2: b")


def test_without_numbers_the_only_question_mark_ends_the_question(read_row):
  """As in the sample of the set's own page."""
  row = _chat("What is 1+1? We add.\nIt is\n\\[2\\]", "+", "So $2$.", "-")
  solution = read_row("rlhflow", row)
  assert solution.problem == "What is 1+1?"
  assert solution.steps == ("We add.\nIt is\n\\[2\\]", "So $2$.")


def test_a_known_problem_is_cut_off_where_nothing_else_tells(write_rows):
  row = _chat("Convert $(0,3)$. To convert, use $r$.", "+", "So $r=3$.", "-")
  path = write_rows(row, _chat("Convert $(0,3)$. Then", "+"))
  problems = ["Convert", "Convert $(0,3)$.", "Convert $(0,3)$. T"]
  first, second = rlhflow.read(path, problems=problems)
  assert first.problem == second.problem == "Convert $(0,3)$."
  assert first.steps == ("To convert, use $r$.", "So $r=3$.")
  left_out = collections.Counter()
  assert list(rlhflow.read(path, left_out=left_out)) == []
  assert left_out == {"rows_without_a_cut": 2}
  with pytest.raises(errors.InputError, match=r"rows\.jsonl:1: can't tell"):
    list(rlhflow.read(path))


def test_the_sign_of_a_stated_answer_is_the_outcome(read_row):
  def read(last, *sign):
    return read_row("rlhflow", _chat("Q? Step 1: a", "+", last, *sign))

  stated = read("Step 2: The answer is: 7", "-")
  assert stated.answer == "7" and stated.outcome is False
  assert read("Step 2: so $\\boxed{7}$", "+").outcome is True
  assert read("Step 2: so 7", "+").outcome is None
  open_end = read("Step 2: The answer is: 7")
  assert open_end.labels == (1.0, None) and open_end.outcome is None


@pytest.mark.real_data
def test_math_shepherds_rows_pass_through_this_form(public_data, tmp_path):
  """No file of the set is at hand; its texts are Math-Shepherd's as a chat."""
  from prm_jax.datasets.formats import math_shepherd

  source = public_data("formats", "samples_math-shepherd.jsonl")
  found = list(math_shepherd.read(source))
  path = tmp_path / "chat.jsonl"
  assert rlhflow.write(path, found) == len(found) > 3
  for a, b in zip(found, rlhflow.read(path), strict=True):
    assert (a.problem, a.steps, a.labels) == (b.problem, b.steps, b.labels)
    assert (a.answer, a.outcome) == (b.answer, b.outcome)
