"""Laws of GSM8K's form and of the pools."""

import re

import pytest

from prm_jax import errors
from prm_jax.datasets.formats import gsm8k
from prm_jax.runtime import files

ROW = {
  "question": "Half of 8?",
  "answer": "It is 8/2 = <<8/2=4>>4 clips.\n#### 4",
}
POOL = {
  "idx": 3,
  "question": "Half of 8?",
  "gold": "4",
  "candidates": [
    {"source": "m", "text": " 8/2 = 4\n\nA: 4", "pred": "4", "correct": True},
    {"source": "n", "text": "No idea.", "pred": None, "correct": False},
  ],
}


def test_the_marks_go_and_the_gold_line_becomes_a_step(read_row):
  solution = read_row("gsm8k", ROW)
  assert solution.steps == ("It is 8/2 = 4 clips.", "The answer is 4")
  assert solution.labels == (1.0, 1.0)
  assert (solution.answer, solution.outcome) == ("4", True)
  kept = read_row("gsm8k", ROW, keep_marks=True)
  assert kept.steps[0] == "It is 8/2 = <<8/2=4>>4 clips."


def test_a_pool_gives_every_candidate_with_its_own_source(read_row, write_rows):
  path = write_rows(POOL)
  a, b = list(gsm8k.read_pool(path))
  assert a.steps == ("8/2 = 4", "A: 4") and b.steps == ("No idea.",)
  assert (a.source, a.answer, a.outcome, a.labels) == ("m", "4", True, None)
  assert (b.source, b.answer, b.outcome) == ("n", None, False)
  assert a.id != b.id and a.extra == b.extra
  assert a.extra["problem_id"] == "3" and a.extra["reference_answer"] == "4"
  reference = read_row("gsm8k", ROW)
  assert a.extra["group"] == reference.extra["group"]


@pytest.mark.parametrize(
  "candidate, message",
  [
    ({"text": "a", "pred": "1", "source": "m"}, '"correct" is missing'),
    ({"text": 1, "pred": "1", "source": "m"}, '"text" must be str'),
    (None, "must be an object, found null"),
  ],
)
def test_a_bad_candidate_is_one_line(candidate, message, write_rows):
  row = POOL | {"idx": 4, "candidates": [candidate]}
  path = write_rows(POOL, row)
  with pytest.raises(errors.InputError) as caught:
    list(gsm8k.read_pool(path))
  assert str(caught.value).startswith(f'{path}:2: "candidates"[0]')
  assert message in str(caught.value)


@pytest.mark.real_data
@pytest.mark.parametrize(
  "split, num_rows, num_with_blank_lines",
  [("train", 7473, 4), ("test", 1319, 2)],
)
def test_gsm8k_is_written_back_but_for_blank_lines(
  split, num_rows, num_with_blank_lines, public_data, tmp_path
):
  source = public_data("gsm8k", f"{split}.jsonl.gz")
  gsm8k.write(tmp_path / "out.jsonl", gsm8k.read(source, keep_marks=True))
  before = [row for _, row in files.read_records(source)]
  after = [row for _, row in files.read_records(tmp_path / "out.jsonl")]
  assert len(before) == len(after) == num_rows
  changed = [(a, b) for a, b in zip(before, after) if a != b]
  assert len(changed) == num_with_blank_lines
  for a, b in changed:
    assert re.sub(r"\n\s*\n", "\n", a["answer"]) == b["answer"]
  assert not any("<<" in t for s in gsm8k.read(source) for t in s.steps)


@pytest.mark.real_data
def test_the_pools_questions_and_answers_are_those_of_gsm8k_test(public_data):
  pool = list(
    gsm8k.read_pool(public_data("best_of_n", "gsm8k_pool_0000_0999.jsonl.gz"))
  )
  assert len(pool) == 15_984 == len({s.id for s in pool})
  assert sum(s.outcome for s in pool) == 10_021
  assert len({s.source for s in pool}) == 16
  assert sum(s.answer is None for s in pool) == 15
  test = gsm8k.read(public_data("gsm8k", "test.jsonl.gz"))
  gold = {s.extra["group"]: s.answer for s in test}
  assert len({s.extra["group"] for s in pool}) == 1_000
  for s in pool:
    assert gold[s.extra["group"]].replace(",", "") == (
      s.extra["reference_answer"].replace(",", "")
    )
