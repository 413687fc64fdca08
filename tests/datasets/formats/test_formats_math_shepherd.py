"""Laws of Math-Shepherd's tagged text."""

import collections
import json
import re

import pytest

from prm_jax import errors
from prm_jax.datasets.formats import math_shepherd
from prm_jax.runtime import files

ROW = {
  "input": "1+1? Step 1: 1+1=2 ки\nStep 2: So 3. The answer is: 3 ки",
  "label": "1+1? Step 1: 1+1=2 +\nStep 2: So 3. The answer is: 3 -",
  "task": "GSM8K",
}


def _shepherd(text):
  """Returns a row from its label text, where the signs are [+] and [-]."""
  return {
    "input": re.sub(r"\[[+-]\]", "ки", text),
    "label": re.sub(r"\[([+-])\]", r"\1", text),
  }


@pytest.mark.parametrize(
  "text, problem, steps, labels",
  [
    (  # the published form
      "Q Step 1: a [+]\nStep 2: b [-]",
      "Q", ("a", "b"), (1.0, 0.0),
    ),
    (  # the letters of the tag as text, signs as text, a step of two lines
      "ки + Q? Step 1: ки -\n+ [+]\nStep 2: b [-]",
      "ки + Q?", ("ки -\n+", "b"), (1.0, 0.0),
    ),
    (  # a question over two lines carries a tag that judges no step
      "Let x\n= 1. [+]\nFind y: Step 1: a [-]",
      "Let x\n= 1.\nFind y:", ("a",), (0.0,),
    ),
    (  # no first number: the question ends at its question mark
      "Why? a [+]\nStep 2: b [-]",
      "Why?", ("a", "Step 2: b"), (1.0, 0.0),
    ),
    (  # a later step that speaks of the first one doesn't end the question
      "Why? a [+]\nStep 2: by Step 1: b [-]",
      "Why?", ("a", "Step 2: by Step 1: b"), (1.0, 0.0),
    ),
    (  # numbers that don't count up are text
      "Q Step 1: a [+]\nStep 3: b [-]",
      "Q", ("Step 1: a", "Step 3: b"), (1.0, 0.0),
    ),
    (  # nobody judged what follows the last tag
      "Q Step 1: a [+]\nStep 2: b",
      "Q", ("a", "b"), (1.0, None),
    ),
    (  # an empty step is a step
      "Q Step 1: [+]\nStep 2: b [-]",
      "Q", ("", "b"), (1.0, 0.0),
    ),
  ],
)  # fmt: skip
def test_the_tags_alone_end_the_steps(text, problem, steps, labels, read_row):
  solution = read_row("math_shepherd", _shepherd(text))
  assert (solution.problem, solution.steps) == (problem, steps)
  assert solution.labels == labels


def test_signs_in_questions_and_rows_without_a_cut_are_counted(write_rows):
  rows = ["x [+]\ny Step 1: a [-]", "x a [+]", "Q Step 1: a [+]"]
  path = write_rows(*map(_shepherd, rows))
  left_out = collections.Counter()
  found = list(math_shepherd.read(path, left_out=left_out))
  assert [s.labels for s in found] == [(0.0,), (1.0,)]
  assert left_out == {"question_labels": 1, "rows_without_a_cut": 1}
  with pytest.raises(errors.InputError, match=r":2: .*Step 1: "):
    list(math_shepherd.read(path))


def test_the_last_sign_is_the_outcome_of_a_stated_answer(read_row):
  text = "Q Step 1: a [+]\nStep 2: b The answer is: 7 [-]"
  wrong = read_row("math_shepherd", _shepherd(text))
  assert (wrong.answer, wrong.outcome) == ("7", False)
  open_ended = read_row("math_shepherd", _shepherd("Q Step 1: a [+]"))
  assert (open_ended.answer, open_ended.outcome) == (None, None)


def test_numbers_are_kept_and_written_as_asked(folder, read_row):
  kept = read_row("math_shepherd", ROW, keep_numbers=True)
  assert kept.steps[0] == "Step 1: 1+1=2"
  math_shepherd.write(folder / "kept.jsonl", [kept], add_numbers=False)
  assert json.loads((folder / "kept.jsonl").read_text()) == ROW
  plain = read_row("math_shepherd", ROW)
  with pytest.raises(errors.InputError, match="add numbers"):
    math_shepherd.write(folder / "no", [plain], add_numbers=False)


@pytest.mark.real_data
def test_math_shepherd_rows_are_written_back(public_data, tmp_path):
  source = public_data("formats", "samples_math-shepherd.jsonl")
  found = list(math_shepherd.read(source))
  assert len(found) == 7
  assert found[0].labels == (1.0, 1.0, 1.0, 1.0, 0.0)
  assert found[0].problem.endswith("in a year?")
  assert found[0].answer == "13520" and found[0].outcome is False
  math_shepherd.write(tmp_path / "out.jsonl", found)
  before = [row for _, row in files.read_records(source)]
  after = [row for _, row in files.read_records(tmp_path / "out.jsonl")]
  assert before == after
