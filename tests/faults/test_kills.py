"""kill -9 at random times: the run that goes on is the run that wasn't hit."""

import collections
import time

import fault_runs
import numpy as np
import pytest

from prm_jax.records import jsonl

pytestmark = pytest.mark.faults

STEPS = 240
KILLS = 25
# Saves follow each other, so that many a kill falls into one.
OVERRIDES = (f"fit.steps={STEPS}", "fit.checkpoint_every=4", "fit.eval_every=0")


def _kill_at_random(process, workdir, random):
  """Kills a process in its start, its updates or its saves; returns where.

  None where it came to its end before that.
  """
  before = fault_runs.num_records(workdir)
  place = str(random.choice(["start", "update", "save"], p=[0.1, 0.45, 0.45]))
  began = time.monotonic()
  waits = dict(start=random.uniform(0, 3), update=random.uniform(0, 0.3))
  wait = waits.get(place, random.uniform(0, 0.05))

  def come():
    if place == "start":
      return time.monotonic() - began > wait
    if place == "save":
      return list(workdir.glob("checkpoints/*tmp*"))
    return fault_runs.num_records(workdir) not in (0, before)

  while not come():
    if process.poll() is not None:
      return None
    time.sleep(0.002)
  if place != "start":
    time.sleep(wait)
  process.kill()
  return place if process.wait() < 0 else None


@pytest.fixture(scope="module")
def uninterrupted(stage):
  assert stage.run(stage.train("uninterrupted", *OVERRIDES)).code == 0
  return stage.folder / "uninterrupted"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_run_killed_25_times_ends_with_the_same_bits(
  stage, uninterrupted, seed, tmp_path
):
  """F1: twice 25 kills, of the real command."""
  workdir = tmp_path / "run"
  random = np.random.default_rng(seed)
  places: collections.Counter[str] = collections.Counter()
  begun_saves = 0
  while places.total() < KILLS:
    process = stage.start(stage.train(workdir, *OVERRIDES))
    place = _kill_at_random(process, workdir, random)
    ended = fault_runs.ended(process)
    if place is None:
      # It came to its end; another run has the rest of the kills.
      assert ended.code == 0, ended
      fault_runs.assert_same_run(workdir, uninterrupted)
      workdir = tmp_path / f"run_after_{places.total()}"
      continue
    assert ended.code == -9, ended
    places[place] += 1
    begun_saves += bool(list(workdir.glob("checkpoints/*tmp*")))
  last = stage.run(stage.train(workdir, *OVERRIDES))
  assert last.code == 0, last
  fault_runs.assert_same_run(workdir, uninterrupted)
  names = [x.name for x in (workdir / "checkpoints").iterdir()]
  assert sorted(names) == [str(STEPS - 4), str(STEPS)]
  print(f"seed {seed}: {dict(places)}, {begun_saves} left a save half-written")
  assert places["update"] > 3 and begun_saves > 3


def test_each_solution_is_seen_once_in_an_epoch(stage, uninterrupted):
  """F1: which solutions a step sees is a function of its number alone.

  The steps of a killed run are 1, 2, ... once each, with the losses of the
  uninterrupted one (above); here, whose solutions they are.
  """
  solutions = jsonl.read_solutions(stage.folder / "train.jsonl")
  rows = fault_runs.rows_of(uninterrupted, solutions)
  assert len(rows.segments) == len(solutions) == 40
  epochs = STEPS * rows.batch_size // rows.rows_per_epoch
  assert epochs > 20
  seen = [
    k
    for row in range(epochs * rows.rows_per_epoch)
    for k in rows._row(row).tolist()
  ]
  by_epoch = np.sort(np.reshape(seen, (epochs, len(solutions))), axis=1)
  np.testing.assert_array_equal(by_epoch, [range(40)] * epochs)
  # And these are the rows of the batches, to the token.
  weights = [x["weight"] for x in fault_runs.records(uninterrupted)]
  for step in range(0, STEPS, 10):
    assert rows.batch_at(step).weights.sum() == weights[step]
