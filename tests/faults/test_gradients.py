"""Updates without a finite gradient, in a run of the real command."""

import json

import jax
import numpy as np
import pytest

from prm_jax import checkpoint

# The first update throws the weights so far that nothing finite comes back.
DIVERGING = ("optimizer.peak_lr=1e38", "optimizer.warmup_steps=0")
SHORT = ("fit.steps=9", "fit.checkpoint_every=1", "fit.eval_every=0")


def _skipped(folder):
  lines = (folder / "metrics.jsonl").read_text().splitlines()
  return [json.loads(line)["skipped_in_a_row"] for line in lines]


@pytest.mark.faults
def test_too_many_in_a_row_end_with_5_and_more_may_be_allowed(stage):
  """F13."""

  def run(max_skipped):
    how = (*DIVERGING, *SHORT, f"fit.max_skipped={max_skipped}")
    ended = stage.run(stage.train("diverging", *how))
    assert ended.code == 5, ended.err
    return ended.refusal

  folder = stage.folder / "diverging"
  refusal = run(3)
  assert "3 updates in a row had no finite gradient, up to step 4" in refusal
  assert "step 3 is saved" in refusal
  assert "fit.max_skipped allows more" in refusal
  assert _skipped(folder) == [0, 1, 2, 3]
  params = checkpoint.load_params(folder, checkpoint.read_description(folder))
  for leaf in jax.tree.leaves(params):
    assert np.isfinite(leaf).all()

  # As it was, it ends again where it did; then as told, later.
  assert run(3) == refusal
  assert "up to step 6, and changed nothing; step 5 is saved" in run(5)
  assert _skipped(folder) == [0, 1, 2, 3, 4, 5]
