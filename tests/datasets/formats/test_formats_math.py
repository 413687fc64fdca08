"""Laws of MATH's form."""

import json

import pytest

from prm_jax import errors
from prm_jax.datasets.formats import math
from prm_jax.grading import equality
from prm_jax.runtime import files
from prm_jax.text import answers

ROW = {
  "problem": "What is $1+1$?",
  "level": "Level 1",
  "type": "Prealgebra",
  "solution": "We add:\n$1+1=2$.\n\nThe answer is $\\boxed{2}$.",
}


def test_a_paragraph_is_a_step_and_the_box_the_answer(read_row):
  solution = read_row("math", ROW)
  assert solution.steps == ("We add:\n$1+1=2$.", "The answer is $\\boxed{2}$.")
  assert solution.answer == "2" and solution.outcome is True
  assert solution.labels == (1.0, 1.0)
  assert solution.extra["level"] == "Level 1"
  assert solution.extra["type"] == "Prealgebra"
  named = read_row("math", ROW | {"answer": "two", "unique_id": "a"})
  assert named.answer == "two" and named.id == "a"
  unboxed = read_row("math", ROW | {"solution": "No idea."})
  assert unboxed.answer is None


def test_a_folder_is_read_in_the_order_of_names(tmp_path):
  for name in ("b/10.json", "c/3.json", "a/2.json", "d/4.json", "b/1.json"):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(json.dumps(ROW | {"problem": name}, indent=1))
  (tmp_path / "a" / "notes.txt").write_text("no row")
  found = list(math.read(tmp_path))
  names = ["a/2.json", "b/1.json", "b/10.json", "c/3.json", "d/4.json"]
  assert [s.id for s in found] == names
  assert [s.problem for s in found] == [s.id for s in found]


@pytest.mark.parametrize(
  "content, message",
  [("{", "not JSON"), ("[1]", "expected a JSON object"), ("{}", '"problem"')],
)
def test_a_bad_file_of_a_folder_is_named(content, message, tmp_path):
  (tmp_path / "1.json").write_text(json.dumps(ROW))
  (tmp_path / "2.json").write_text(content)
  with pytest.raises(errors.InputError) as caught:
    list(math.read(tmp_path))
  line = str(caught.value)
  assert line.startswith(f"{tmp_path / '2.json'}:") and message in line
  assert "\n" not in line


def test_a_folder_without_problems_is_refused(tmp_path):
  with pytest.raises(errors.InputError, match=r"no \.json file"):
    list(math.read(tmp_path))


@pytest.mark.real_data
def test_math_500_is_written_back_field_for_field(public_data, tmp_path):
  source = public_data("math500", "math500.jsonl.gz")
  found = list(math.read(source))
  assert len(found) == 500
  assert found[0].id == "test/precalculus/807.json"
  assert max(len(s.steps) for s in found) == 41
  math.write(tmp_path / "out.jsonl", found)
  again = [row for _, row in files.read_records(tmp_path / "out.jsonl")]
  rows = [row for _, row in files.read_records(source)]
  assert again == rows
  # What a file without answers gets in their place.
  for s in found:
    assert equality.equal(answers.extract(s.steps), s.answer), s.id
