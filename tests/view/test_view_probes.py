"""Probed solutions as pages: beside the steps, and of all."""

import json

import probed_files
import pytest
import view_files

from prm_jax import errors
from prm_jax.view import site
from prm_jax.view import view_inputs


def _shown(folder):
  return view_files.window(site.pages(view_inputs.read([folder])))


def test_a_probed_file_has_a_page_and_stands_beside_its_steps(tmp_path):
  index, items = _shown(probed_files.folder(tmp_path))
  assert index["models"] == ["probed: PRM"]
  assert index["evaluations"]["key"] == ["probed"]
  (page,) = items["evaluations"]
  assert page["lead"] == "2 of 3 solutions were probed."
  titles = [x["title"] for x in page["sections"]]
  assert titles == ["By place", "All measures", "What was left out"]
  rows = {row[0]: row[1:] for row in page["sections"][1]["table"]}
  name = "a number changed, the rest kept: another answer"
  assert rows[name][1] == "6" and rows[name][0].startswith("0.333")
  left_out = {x["name"]: x["text"] for x in page["sections"][2]["facts"]}
  assert left_out == {"no answer": "1", "no end of a rewritten solution": "2"}

  sample, _, skipped = items["samples"]
  assert sample["models"][0]["scores"] == probed_files.FOUND["step_scores"]
  assert sample["notes"] == [
    ["weight +0.25 nats", "NLDD +10 %"],
    ["weight -0.50 nats", "NLDD -20 %"],
    ["weight +3.00 nats", "NLDD +150 %"],
    [],
  ]
  own, changed = sample["sections"]
  same, right = own["panels"][0]["lines"]
  assert same["y"] == [0, 0, 1, 1] and right["x"][-1] == 100
  assert own["table"][1] == [
    *("step 1", "0.25", "0.00", "10", "0.900", "0.500", "0.300")
  ]
  assert "What they can't show" in own["note"]
  assert changed["facts"][0]["text"].split("\n") == [
    *("2 + 3 = 9", "rest kept: the same answer"),
    "rest rewritten: another answer",
  ]
  assert not any("faithfulness" in name for name, _ in sample["facts"])
  assert skipped["notes"] == [[]] * 4
  assert skipped["sections"][0]["facts"][0]["text"] == "no answer"


def test_a_solution_that_was_not_probed_has_no_such_part(tmp_path):
  _, items = _shown(view_files.folder(tmp_path))
  assert all(x["sections"] == [] for x in items["samples"])
  assert all(note == [] for x in items["samples"] for note in x["notes"])


@pytest.mark.parametrize(
  ("changes", "why"),
  [
    (dict(steps=[0, 1, 3]), "steps must be ascending indices below 3"),
    (dict(steps=[1, 0, 2]), "steps must be ascending"),
    (dict(num_steps=9), "num_steps must be 1 to 4"),
    (dict(corrupted=["a"]), "corrupted must be 3 texts"),
    (dict(nldd=[1, "2", 3]), "nldd must be 3 numbers"),
    (dict(weight_corrupted=[1.0]), "weight_corrupted must be 3 numbers"),
    (dict(corrupt_same=[1, 0, 1]), "corrupt_same must be 3 true or false"),
    (dict(step_scores=[0.5] * 3), "step_scores must be one for each of the 4"),
    (dict(step_scores=[0.5, 2, 1, 1]), "step_scores must be one for each"),
    (dict(early=dict(steps=[0])), "early must have steps from 0"),
    (dict(cue=dict(wrong="1")), "cue must have wrong, answer"),
    (dict(skipped=3), "skipped must be a text"),
  ],
)
def test_a_damaged_record_is_named(tmp_path, changes, why):
  path = tmp_path / "probed.jsonl"
  path.write_text(json.dumps(probed_files.record(**changes)) + "\n")
  with pytest.raises(errors.InputError, match=r"probed\.jsonl:1") as e:
    view_inputs.read([path])
  assert why in str(e.value) and "probe the solution again" in str(e.value)


def test_of_few_probes_only_their_parts_are_shown(tmp_path):
  known = ("skipped", "answer", "right", "num_steps", "steps", "corrupted")
  found = {
    k: probed_files.FOUND[k] for k in (*known, "whole_answer", "whole_same")
  }
  record = probed_files.record() | dict(faithfulness=found)
  path = tmp_path / "probed.jsonl"
  path.write_text(json.dumps(record) + "\n")
  index, items = _shown(path)
  assert index["models"] == []
  assert items["samples"][0]["notes"] == [[]] * 4
  assert [x["title"] for x in items["evaluations"][0]["sections"]] == [
    "All measures"
  ]
