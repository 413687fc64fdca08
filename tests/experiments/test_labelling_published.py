"""The way of a published policy, whole, at sizes at which nothing is learned."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = pytest.mark.parity
ROOT = pathlib.Path(__file__).parents[2]


def test_a_policy_is_imported_tuned_sampled_labelled_and_its_prm_exported(
  tmp_path,
):
  done = subprocess.run(
    [
      *(sys.executable, "experiments/labelling_published.py", "--small"),
      *(f"--workdir={tmp_path / 'way'}", f"--output={tmp_path / 'out.json'}"),
    ],
    cwd=ROOT,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr[-2_000:]
  found = json.loads((tmp_path / "out.json").read_text())
  assert found["recounted"]["labels"] > 0 == found["recounted"]["differ"]
  assert all(found["small_files_unchanged"].values())
  verified = [
    line
    for report in found["reports"]
    for line in report["said"]
    if "differ from transformers'" in line
  ]
  assert len(verified) == 2
  for line in verified:
    assert float(re.search(r"by (\S+) at most", line)[1]) < 1e-4, line
