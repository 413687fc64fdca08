"""Updates that must change nothing, in runs of the real command."""

import dataclasses

import fault_runs
import jax
import numpy as np
import pytest

from prm_jax.checkpoints import model_json
from prm_jax.records import jsonl
from prm_jax.training import programs

# The first update throws the weights so far that nothing finite comes back.
DIVERGING = ("optimizer.peak_lr=1e38", "optimizer.warmup_steps=0")
SHORT = ("fit.steps=9", "fit.checkpoint_every=1", "fit.eval_every=0")


def _skipped(folder):
  return [x["skipped_in_a_row"] for x in fault_runs.records(folder)]


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
  params = programs.load_params(folder, model_json.read_description(folder))
  for leaf in jax.tree.leaves(params):
    assert np.isfinite(leaf).all()

  # As it was, it ends again where it did; then as told, later.
  assert run(3) == refusal
  assert "up to step 6, and changed nothing; step 5 is saved" in run(5)
  assert _skipped(folder) == [0, 1, 2, 3, 4, 5]


# So many solutions that each is met once; the labels of one step are wrong.
MANY, BAD_STEP, STEPS = 2000, 90, 110
LONG = (
  'data.train=("jsonl:many.jsonl",)',
  # So that labels decide no length, and the rows stay the same.
  "objective.labels.after_first_error=keep",
  # Where the rate has fallen little is left to harm.
  "optimizer.final_fraction=1",
  *(f"fit.steps={STEPS}", "fit.checkpoint_every=30", "fit.eval_every=0"),
)


def _easy(solution):
  """Has each step say whether it is right: a loss near 0 is soon learned."""
  steps = tuple(
    f"{'right' if label else 'wrong'} {step}"
    for step, label in zip(solution.steps, solution.labels, strict=True)
  )
  return dataclasses.replace(solution, steps=steps)


def _corrupt(stage, workdir):
  """Turns all labels of the solutions of one of a run's steps around."""
  solutions = list(jsonl.read_solutions(stage.folder / "many.jsonl"))
  rows = fault_runs.rows_of(workdir, solutions)
  assert (
    len(rows.segments) == MANY and STEPS * rows.batch_size < rows.rows_per_epoch
  )
  first = (BAD_STEP - 1) * rows.batch_size
  for row in range(first, first + rows.batch_size):
    for k in rows._row(row).tolist():
      labels = tuple(1 - x for x in solutions[k].labels)
      solutions[k] = dataclasses.replace(solutions[k], labels=labels)
  jsonl.write_solutions(stage.folder / "many.jsonl", solutions)


def _losses(folder):
  return np.array([x["loss_nats"] for x in fault_runs.records(folder)])


@pytest.mark.faults
def test_a_batch_with_corrupt_labels_is_skipped_where_asked_and_counted(stage):
  """F14."""

  def run(name, *more):
    ended = stage.run(stage.train(name, *LONG, *more))
    assert ended.code == 0, ended.err
    return stage.folder / name

  data = map(_easy, fault_runs.solutions(MANY))
  jsonl.write_solutions(stage.folder / "many.jsonl", data)
  clean = run("clean", "fit.skip_outliers=6")
  assert {x["skipped_outliers"] for x in fault_runs.records(clean)} == {0}
  _corrupt(stage, clean)
  hit = run("hit")
  spared = run("spared", "fit.skip_outliers=6")

  before, after = slice(BAD_STEP - 1), slice(BAD_STEP, None)
  np.testing.assert_array_equal(_losses(spared)[before], _losses(clean)[before])
  for folder in (hit, spared):
    assert _losses(folder)[BAD_STEP - 1] > 100 * _losses(clean)[BAD_STEP - 1]
  # Counted, and without a trace: the curve is that of the clean run.
  counts = [x["skipped_outliers"] for x in fault_runs.records(spared)]
  assert counts == [0] * (BAD_STEP - 1) + [1] * (STEPS - BAD_STEP + 1)
  far = [
    np.abs(_losses(x)[after] - _losses(clean)[after]).max()
    for x in (spared, hit)
  ]
  print(
    f"at most from the clean run's loss: skipped {far[0]:.4f}, not {far[1]:.4f}"
  )
  assert far[0] < far[1] / 5
  # Off by default, and a part of the run's config.
  assert "skipped_outliers" not in fault_runs.records(hit)[0]
  refused = stage.run(stage.train("hit", *LONG, "fit.skip_outliers=6"))
  assert refused.code == 1
  assert "other values of fit.skip_outliers" in refused.refusal
