"""Laws of PRMBench's form."""

import collections
import json

import pytest

from prm_jax import errors as errors_lib
from prm_jax import schema
from prm_jax.datasets.formats import prmbench
from prm_jax.runtime import files

ROW = {
  "original_question": "1+1?",
  "modified_question": "1+1, if 1 > 2?",
  "original_process": ["We add.", "1+1=2"],
  "modified_process": ["We add.", "1>2", "1+1=2"],
  "modified_steps": [2],
  "error_steps": [2],
  "reason": "1 < 2",
  "idx": "prm_test_p1_0",
  "question": "1+1?",
  "classification": "missing_condition",
}


def test_error_steps_count_from_one_and_each_label_is_its_steps_own(read_row):
  for errors, labels in (
    ([1], (0.0, 1.0, 1.0)),
    ([3, 1, 3], (0.0, 1.0, 0.0)),
    ([], (1.0, 1.0, 1.0)),
  ):
    row = ROW | {"error_steps": errors}
    assert read_row("prmbench", row).labels == labels


def test_a_row_is_its_modified_process_and_knows_its_original(read_row):
  solution = read_row("prmbench", ROW)
  assert solution.id == "prmbench/missing_condition/prm_test_p1_0"
  assert solution.problem == "1+1, if 1 > 2?"
  assert solution.steps == ("We add.", "1>2", "1+1=2")
  assert solution.extra["classification"] == "missing_condition"
  control = prmbench.original(solution)
  assert control.id == "prmbench/correct/prm_test_p1_0"
  assert control.problem == "1+1?" and control.steps == ("We add.", "1+1=2")
  assert control.labels == (1.0, 1.0)
  assert control.extra["classification"] == "correct"
  assert control.extra["group"] != solution.extra["group"]


def test_the_classes_are_nine_in_three_categories():
  assert len(prmbench.CATEGORIES) == 3
  assert len(set(prmbench.CLASSES)) == 9


def test_what_the_benchmark_passes_over_is_counted(write_rows):
  left_out = collections.Counter()
  path = write_rows(
    ROW,
    ROW | {"error_steps": [1]},
    ROW | {"classification": "confidence", "error_steps": [2, 4, 0]},
  )
  first, second = prmbench.read(path, left_out=left_out)
  assert first.labels == second.labels == (1.0, 0.0, 1.0)
  assert left_out == {"repeated_rows": 1, "error_steps_beyond_the_end": 2}
  with pytest.raises(errors_lib.InputError, match="was used at"):
    list(prmbench.read(path))


@pytest.mark.real_data
def test_the_published_rows_come_back_field_for_field(public_data, tmp_path):
  source = public_data("formats", "samples_prmbench.jsonl")
  left_out = collections.Counter()
  found = list(prmbench.read(source, left_out=left_out))
  assert len(found) == 27 and not left_out
  by_class = collections.Counter(s.extra["classification"] for s in found)
  assert by_class == dict.fromkeys(prmbench.CLASSES, 3)
  prmbench.write(tmp_path / "out.jsonl", found)
  again = [row for _, row in files.read_records(tmp_path / "out.jsonl")]
  assert again == [row for _, row in files.read_records(source)]


@pytest.mark.real_data
def test_the_published_errors_are_where_the_reasons_say(public_data):
  """Counted from 0 they would be the steps behind these."""
  source = public_data("formats", "samples_prmbench.jsonl")
  found = {s.id: s for s in prmbench.read(source)}
  redundant = found["prmbench/redundency/prm_test_p2_90"]
  (error,) = [i for i, x in enumerate(redundant.labels) if x == 0]
  assert redundant.steps[error].startswith("At this point, let's explore")
  assert redundant.extra["fields"]["reason"].startswith("Step 12 introduces")
  original = prmbench.original(redundant)
  assert json.dumps(redundant.steps[error]) not in json.dumps(original.steps)
  for s in found.values():
    is_right = s.extra["classification"] == "multi_solutions"
    assert (schema.first_error(s.labels) == -1) == is_right
