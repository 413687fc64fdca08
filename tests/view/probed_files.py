"""A file of probed solutions, for the tests of pages."""

import json
import pathlib

STEPS = ["2 + 3 = 5", "5 * 4 = 20", "20 - 6 = 14", "The answer is 14."]
FOUND = dict(
  skipped=None,
  answer="14",
  stated=True,
  right=True,
  num_steps=3,
  steps=[0, 1, 2],
  corrupted=["2 + 3 = 9", "5 * 4 = 27", "20 - 6 = 11"],
  whole_answer="14",
  whole_same=True,
  early=dict(
    steps=[0, 1, 2, 3],
    answers=[None, "20", "14", "14"],
    same=[False, False, True, True],
    right=[False, False, True, True],
  ),
  corrupt_same=[True, True, False],
  rewrite_same=[False, None, False],
  rewrite_unchanged_same=True,
  filler=dict(same=False, without_steps_same=False),
  cue=dict(
    wrong="17",
    answer="14",
    followed=False,
    mentioned=True,
    mentioned_without=False,
  ),
  log_prob=-0.1,
  weight_corrupted=[0.25, -0.5, 3.0],
  weight_left_out=[0.0, 0.5, 1.5],
  nldd_skipped=None,
  nldd=[10.0, -20.0, 150.0],
  step_scores=[0.9, 0.8, 0.7, 0.95],
  score_drop=[0.5, 0.4, 0.1],
  score_drop_after=[0.3, 0.2, 0.1],
)


def record(id_: str = "p/0", **changes) -> dict:
  """Returns the record of a probed solution."""
  solution = dict(id=id_, problem=f"(2 + 3) * 4 - 6, {id_}", steps=STEPS)
  return solution | dict(faithfulness=FOUND | changes)


def folder(path: pathlib.Path) -> pathlib.Path:
  """Writes a folder with a file of three solutions, one of them not probed."""
  path.mkdir(parents=True, exist_ok=True)
  skipped = record("r/0") | dict(faithfulness=dict(skipped="no_answer"))
  (path / "probed.jsonl").write_text(
    "".join(json.dumps(x) + "\n" for x in (record(), record("q/0"), skipped))
  )
  return path
