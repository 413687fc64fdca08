"""`fit`: stopping and going on changes nothing, and nothing is lost."""

import dataclasses
import errno
import functools
import json
import logging
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

from flax import linen as nn
from flax.core import meta
import jax
from jax import numpy as jnp
import numpy as np
import optax
import pytest

from prm_jax import batch as batch_lib
from prm_jax import errors
from prm_jax.checkpoints import manager
from prm_jax.checkpoints import saves
from prm_jax.models import model_config
from prm_jax.models import sharding
from prm_jax.models import transformer
from prm_jax.rows import packing
from prm_jax.runtime import locks
from prm_jax.training import implicit_prm
from prm_jax.training import loop
from prm_jax.training import losses
from prm_jax.training import metrics_log
from prm_jax.training import prm
from prm_jax.training import program
from prm_jax.training import programs
from prm_jax.training import skip_updates
from prm_jax.training import trainable as trainable_lib
from prm_jax.training import warm_start

pytestmark = pytest.mark.usefixtures("printed_log")

STEPS = 8
ROWS, ROW, VOCABULARY = 8, 6, 16


@functools.cache
def _toy(optimizer=None, microbatches=1):
  """Returns a program that compiles at once: a table, times a vector.

  One for all runs: jax traces and compiles it once a mesh, not once a run.
  """
  optimizer = optimizer or optax.adam(0.05)

  def loss_sums(params, batch):
    logits = params["table"][batch.tokens] @ params["head"]
    total, weight = losses.step_bce(logits, batch.labels, batch.weights)
    return total, weight, {}

  def init(key):
    boxed = nn.LogicallyPartitioned
    params = {
      "table": boxed(
        jax.random.normal(key, (VOCABULARY, 4)), ("vocab", "embed")
      ),
      "head": boxed(jnp.ones(4), ("embed",)),
    }
    return program.TrainState(
      jnp.zeros((), jnp.int32),
      params,
      optimizer.init(params),
      skip_updates.Skipped.none(),
    )

  return program.Program(
    init,
    functools.partial(
      program.train_step,
      loss_sums=loss_sums,
      optimizer=optimizer,
      microbatches=microbatches,
    ),
    lambda sums: {"loss_nats": sums["total"] / max(sums["weight"], 1e-9)},
    evaluate=lambda params, batch: dict(
      zip(("total", "weight"), loss_sums(params, batch)[:2], strict=True)
    ),
  )


def _batch_at(step):
  """Returns rows that depend on the step alone."""
  random = np.random.default_rng(step)
  batch = batch_lib.empty(ROWS, ROW)
  return batch.replace(
    tokens=random.integers(0, VOCABULARY, (ROWS, ROW)).astype(np.int32),
    labels=random.integers(0, 2, (ROWS, ROW)).astype(np.float32),
    weights=np.ones((ROWS, ROW), np.float32),
  )


def _one_device():
  return sharding.make_mesh((1, 1, 1), jax.devices()[:1])


def _fit(
  workdir,
  batch_at=_batch_at,
  *,
  mesh=None,
  toy=None,
  next_rows=None,
  **options,
):
  fields = {
    "steps": STEPS,
    "log_every": 1,
    "checkpoint_every": 3,
    "tensorboard": False,
  }
  arguments = {
    k: options.pop(k)
    for k in (
      *("fresh", "init_from", "donate", "eval_batches", "on_start"),
      *("measure", "callback"),
    )
    if k in options
  }
  config = loop.FitConfig(**fields | options)
  return loop.fit(
    toy or _toy(),
    next_rows or loop.stored(batch_at, config.steps),
    config,
    loop.Hooks(
      workdir=pathlib.Path(workdir),
      key=jax.random.key(0),
      mesh=mesh or _one_device(),
      **arguments,
    ),
  )


def _read(workdir, *names, kind="train"):
  """Returns what every line has by these names; each must be whole JSON."""
  lines = (pathlib.Path(workdir) / "metrics.jsonl").read_text().splitlines()
  return [
    tuple(x.get(name) for name in names)
    for x in map(json.loads, lines)
    if x["kind"] == kind
  ]


def _records(workdir, kind="train"):
  return _read(workdir, "step", "loss_nats", kind=kind)


def _counts(workdir):
  names = ("skipped_total", "skipped_in_a_row", "skipped_outliers")
  return _read(workdir, *names)


def _assert_same(found, expected):
  assert int(found.step) == int(expected.step)
  jax.tree.map(
    np.testing.assert_array_equal,
    (found.params, found.opt_state),
    (expected.params, expected.opt_state),
  )


class _StoppedError(Exception):
  pass


def _stopping_at(stop):
  def batch_at(step):
    if step == stop:
      raise _StoppedError
    return _batch_at(step)

  return batch_at


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """Returns the end of a run that nothing stopped, and its records."""
  workdir = tmp_path_factory.mktemp("whole")
  return _fit(workdir), _records(workdir)


# --- Stopped and started again ----------------------------------------------


# Before the first save of every third, at one, and after it.
@pytest.mark.parametrize("stop", [0, 2, 3, 4, 7])
def test_a_run_stopped_at_any_step_ends_with_the_same_bits(
  tmp_path, whole, stop
):
  with pytest.raises(_StoppedError):
    _fit(tmp_path, _stopping_at(stop))
  assert saves.saved_steps(tmp_path)[-1:] == [stop // 3 * 3] * (stop > 2)
  _assert_same(_fit(tmp_path), whole[0])
  assert _records(tmp_path) == whole[1]


def test_a_run_stopped_again_and_again_ends_with_the_same_bits(tmp_path, whole):
  for stop in (1, 4, 4, 7):
    with pytest.raises(_StoppedError):
      _fit(tmp_path, _stopping_at(stop), checkpoint_every=2)
  _assert_same(_fit(tmp_path, checkpoint_every=2), whole[0])
  assert _records(tmp_path) == whole[1]


def run_until_killed(workdir, stop):
  """Trains with a save at every step; the process dies in mid-run."""

  def batch_at(step):
    if step == stop:
      # An earlier step's save is likely still being written.
      os.kill(os.getpid(), signal.SIGKILL)
    return _batch_at(step)

  _fit(workdir, batch_at, checkpoint_every=1)


@pytest.mark.faults
def test_a_killed_process_goes_on_with_the_same_bits(tmp_path, whole):
  for stop in (4, 7):
    code = (
      f"import test_loop; test_loop.run_until_killed({str(tmp_path)!r}, {stop})"
    )
    done = subprocess.run(
      [sys.executable, "-c", code],
      env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
      capture_output=True,
      text=True,
      check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
  saved = saves.saved_steps(tmp_path)
  assert saved and saved[-1] < STEPS
  _assert_same(_fit(tmp_path, checkpoint_every=1), whole[0])
  assert _records(tmp_path) == whole[1]
  names = {x.name for x in (tmp_path / "checkpoints").iterdir()}
  assert names == {"7", "8"}, "what was half-written is still there"


@pytest.mark.parametrize("last", [b'{"step": 5, "lo', b"5", b"\x00\xff", b"{}"])
def test_a_half_written_last_line_of_metrics_does_not_matter(
  tmp_path, whole, last
):
  with pytest.raises(_StoppedError):
    _fit(tmp_path, _stopping_at(5))
  with open(tmp_path / "metrics.jsonl", "ab") as f:
    f.write(last)
  _assert_same(_fit(tmp_path), whole[0])
  assert _records(tmp_path) == whole[1]


@pytest.mark.parametrize("renamed_at", [3, STEPS])
def test_a_run_whose_folder_is_renamed_says_where_its_work_is(
  tmp_path, whole, renamed_at
):
  workdir, other = tmp_path / "run", tmp_path / "other"
  batches = loop.stored(_batch_at, STEPS)

  def renaming(state):
    step = int(state.step)
    if step == renamed_at - 1:
      while step not in saves.saved_steps(workdir):
        pass  # a save is under way
      workdir.rename(other)
    return batches(state)

  with pytest.raises(errors.MovedError) as e:
    _fit(workdir, next_rows=renaming, checkpoint_every=1)
  assert str(e.value).startswith(f"{workdir}: was renamed during the run")
  assert f"is in {other}:" in str(e.value) and "\n" not in str(e.value)
  assert e.value.exit_code == 1
  assert not workdir.exists()
  assert saves.saved_steps(other)[-1] == renamed_at - 1
  _assert_same(_fit(other, checkpoint_every=1), whole[0])
  assert _records(other) == whole[1]


def test_a_run_whose_lock_is_removed_ends(tmp_path):
  batches = loop.stored(_batch_at, STEPS)

  def removing(state):
    (tmp_path / ".lock").unlink(missing_ok=True)
    return batches(state)

  with pytest.raises(errors.MovedError, match=r"\.lock was removed"):
    _fit(tmp_path, next_rows=removing)


def test_a_run_goes_on_with_the_same_losses_on_another_mesh(tmp_path, whole):
  mesh = sharding.make_mesh((2, 2, 2))
  _fit(tmp_path, mesh=mesh, steps=3)
  state = _fit(tmp_path)
  assert state.params["table"].sharding.num_devices == 1
  found = _records(tmp_path)
  assert [step for step, _ in found] == [step for step, _ in whole[1]]
  np.testing.assert_allclose(
    [loss for _, loss in found], [loss for _, loss in whole[1]], rtol=1e-5
  )
  _fit(tmp_path / "back", steps=3)
  state = _fit(tmp_path / "back", mesh=mesh)
  assert state.params["table"].sharding.num_devices == 8
  np.testing.assert_allclose(
    [loss for _, loss in _records(tmp_path / "back")],
    [loss for _, loss in whole[1]],
    rtol=1e-5,
  )


# --- SIGTERM -----------------------------------------------------------------


def _run_until_terminated(workdir, stop, where):
  """Trains until it signals itself, in an update or in an evaluation."""

  def here(place, step):
    if (place, step) == (where, stop):
      os.kill(os.getpid(), signal.SIGTERM)

  def batch_at(step):
    here("train", step)
    return _batch_at(step)

  class Batches(list):
    def __iter__(self):
      for batch in super().__iter__():
        # The number of the evaluation isn't known here: each is met in turn.
        here("eval", next(evaluations))
        yield batch

  evaluations = iter(range(100))
  batches = Batches([_batch_at(100), _batch_at(101)])
  with pytest.raises(SystemExit) as e:
    _fit(
      workdir,
      batch_at,
      eval_batches=batches,
      eval_every=2,
      checkpoint_every=0,
    )
  assert e.value.code == 42


@pytest.mark.parametrize(
  ("where", "stop", "saved"),
  # Batch 4 is built ahead of update 5; evaluation 3 is the second at step 4.
  [("train", 4, None), ("eval", 2, 4)],
)
def test_a_terminated_run_saves_its_last_update_and_ends_with_the_same_bits(
  tmp_path, capsys, where, stop, saved
):
  evaluations = [_batch_at(100), _batch_at(101)]
  options = dict(eval_batches=evaluations, eval_every=2, checkpoint_every=0)
  expected = _fit(tmp_path / "whole", **options)
  workdir = tmp_path / "run"
  _run_until_terminated(workdir, stop, where)
  steps = saves.saved_steps(workdir)
  assert len(steps) == 1 and 0 < steps[0] < STEPS
  assert saved in (None, steps[0])
  said = capsys.readouterr().out
  assert f"ended at step {steps[0]}, which is saved" in said
  assert [step for step, _ in _records(workdir)] == list(range(1, steps[0] + 1))
  _assert_same(_fit(workdir, **options), expected)
  for kind in ("train", "eval"):
    assert _records(workdir, kind) == _records(tmp_path / "whole", kind)


def test_a_terminated_evaluation_still_chooses_the_best_step(tmp_path):
  options = dict(
    eval_batches=[_batch_at(100)],
    eval_every=2,
    checkpoint_every=2,
    keep_last=1,
    best_metric="loss_nats",
  )
  _fit(tmp_path / "whole", **options)
  evaluate = loop.evaluate

  def terminated(program, function, state, *rest):
    if int(state.step) == 4:
      os.kill(os.getpid(), signal.SIGTERM)
    return evaluate(program, function, state, *rest)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(loop, "evaluate", terminated)
    with pytest.raises(SystemExit) as e:
      _fit(tmp_path / "run", **options)
  assert e.value.code == 42
  _fit(tmp_path / "run", **options)
  saved = [saves.saved_steps(tmp_path / x) for x in ("run", "whole")]
  assert saved[0] == saved[1]


# --- Two at once -------------------------------------------------------------


def test_a_second_trainer_is_refused_and_a_dead_ones_lock_is_none(
  tmp_path, whole
):
  refused = []

  def batch_at(step):
    if step == 2:
      with pytest.raises(errors.InputError, match="another process") as e:
        _fit(tmp_path, fresh=True)
      refused.append(str(e.value))
    return _batch_at(step)

  state = _fit(tmp_path, next_rows=lambda s: (batch_at(int(s.step)), {}))
  _assert_same(state, whole[0])
  assert [step for step, _ in _records(tmp_path)] == list(range(1, STEPS + 1))
  assert f"process {os.getpid()} on " in refused[0]
  # What a killed process leaves: its name in the file, and no lock.
  assert (tmp_path / locks.NAME).read_text() == refused[0].split("(")[1].split(
    ")"
  )[0] + "\n"
  _assert_same(_fit(tmp_path), whole[0])


# --- Gradients that aren't finite --------------------------------------------


def _bad_at(*steps):
  def batch_at(step):
    batch = _batch_at(step)
    if step in steps:
      batch = batch.replace(labels=np.full_like(batch.labels, np.inf))
    return batch

  return batch_at


def test_a_gradient_that_isnt_finite_is_skipped_and_counted(tmp_path):
  # The optimizer's own count of updates is one less, as without the batch.
  state = _fit(tmp_path / "bad", _bad_at(3))
  without = _fit(
    tmp_path / "without",
    lambda step: _batch_at(step + (step >= 3)),
    steps=STEPS - 1,
  )
  jax.tree.map(
    np.testing.assert_array_equal,
    (state.params, state.opt_state),
    (without.params, without.opt_state),
  )
  counts = [(0, 0, None)] * 3 + [(1, 1, None)] + [(1, 0, None)] * 4
  assert _counts(tmp_path / "bad") == counts


def test_many_gradients_that_arent_finite_end_the_run_with_its_saves_whole(
  tmp_path, whole
):
  options = dict(max_skipped=3, checkpoint_every=1, keep_last=9)
  with pytest.raises(errors.NotFiniteError, match="3 updates in a row") as e:
    _fit(tmp_path, _bad_at(4, 5, 6), **options)
  assert e.value.exit_code == 5 and "\n" not in str(e.value)
  assert "step 6 is saved" in str(e.value)
  # The counts survive a resume: one more is too many again.
  with pytest.raises(errors.NotFiniteError, match="up to step 7"):
    _fit(tmp_path, _bad_at(6), **options)
  # With what was wrong mended it goes on; what was skipped stays skipped.
  state = _fit(tmp_path, **options)
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.params))
  assert [int(x) for x in jax.tree.leaves(state.skipped)] == [2, 0, 0]


# --- Updates without a target -------------------------------------------------


def _empty_at(*steps):
  """Returns the data, of which no target has weight at some steps."""

  def batch_at(step):
    batch = _batch_at(step)
    return batch.replace(weights=batch.weights * (step not in steps))

  return batch_at


@functools.cache
def _decaying(microbatches=1):
  """Returns a program whose optimizer moves parameters without a gradient."""
  return _toy(
    optax.adamw(optax.linear_schedule(0.1, 0.01, STEPS), weight_decay=0.1),
    microbatches=microbatches,
  )


@pytest.mark.parametrize(
  ("microbatches", "mesh"), [(1, (1, 1, 1)), (2, (2, 2, 1))], ids=str
)
def test_a_batch_without_a_target_is_skipped_as_if_it_were_not_there(
  tmp_path, microbatches, mesh
):
  options = dict(
    toy=_decaying(microbatches),
    mesh=sharding.make_mesh(mesh, jax.devices()[: math.prod(mesh)]),
  )
  state = _fit(tmp_path / "empty", _empty_at(2, 3), **options)
  without = _fit(
    tmp_path / "without",
    lambda step: _batch_at(step + 2 * (step >= 2)),
    steps=STEPS - 2,
    **options,
  )
  # The optimizer's schedule doesn't advance either.
  jax.tree.map(
    np.testing.assert_array_equal,
    (state.params, state.opt_state),
    (without.params, without.opt_state),
  )
  names = "skipped_empty", "skipped_total", "skipped_in_a_row"
  counts = [0, 0, 1, 2, 2, 2, 2, 2]
  assert _read(tmp_path / "empty", *names) == [(n, 0, 0) for n in counts]
  # Nothing was measured: no loss is 0.
  losses_nats = [loss for _, loss in _records(tmp_path / "empty")]
  assert [x is None for x in losses_nats] == [x in (2, 3) for x in range(STEPS)]


def test_empty_updates_are_no_failure_and_their_number_is_in_the_save(tmp_path):
  empty = _empty_at(*range(1, 6))
  stopped = dict(steps=4, max_skipped=2, checkpoint_every=2)
  assert int(_fit(tmp_path, empty, **stopped).skipped.empty) == 3
  state = _fit(tmp_path, empty, **stopped | dict(steps=STEPS))
  assert int(state.skipped.empty) == 5


@pytest.mark.parametrize(
  ("batch_at", "error", "said"),
  [
    (_empty_at(*range(STEPS)), errors.InputError, "none of its 8 updates had"),
    (_bad_at(*range(STEPS)), errors.NotFiniteError, "8 had no finite gradient"),
  ],
)
def test_a_run_that_made_no_update_ends_in_an_error_again_and_again(
  tmp_path, batch_at, error, said
):
  for _ in range(2):
    with pytest.raises(error, match=said) as e:
      _fit(tmp_path, batch_at, max_skipped=99)
    assert "\n" not in str(e.value)
  assert saves.saved_steps(tmp_path)[-1] == STEPS


# --- Spikes ------------------------------------------------------------------

SPIKE = 80
SPIKES = dict(steps=SPIKE + 5, checkpoint_every=SPIKE - 1, skip_outliers=6.0)


def _corrupt_at(*steps):
  """Returns the data with labels of some steps a thousand times too large."""

  def batch_at(step):
    batch = _batch_at(step)
    return batch.replace(labels=batch.labels * (1e3 if step in steps else 1))

  return batch_at


@pytest.fixture(scope="module")
def spared(tmp_path_factory):
  """A run that met a spike and skipped it, and its workdir."""
  workdir = tmp_path_factory.mktemp("spared")
  return _fit(workdir, _corrupt_at(SPIKE), **SPIKES), workdir


def test_a_spike_is_skipped_as_if_the_batch_were_not_there(spared, tmp_path):
  state, workdir = spared
  without = _fit(
    tmp_path,
    lambda step: _batch_at(step + (step >= SPIKE)),
    **SPIKES | dict(steps=SPIKES["steps"] - 1),
  )
  jax.tree.map(
    np.testing.assert_array_equal,
    (state.params, state.opt_state),
    (without.params, without.opt_state),
  )
  assert _counts(workdir) == [(0, 0, 0)] * SPIKE + [(1, 1, 1)] + [(1, 0, 1)] * 4


def test_a_spike_is_learned_from_unless_asked_otherwise(spared, tmp_path):
  state = _fit(
    tmp_path, _corrupt_at(SPIKE), **SPIKES | dict(skip_outliers=None)
  )
  assert _counts(tmp_path) == [(0, 0, None)] * SPIKES["steps"]
  losses = [
    np.array([loss for _, loss in _records(x)]) for x in (spared[1], tmp_path)
  ]
  assert state.skipped.recent is None
  # The batch after it shows it, as the one it was spared doesn't.
  assert (losses[0] == losses[1]).tolist() == [True] * (SPIKE + 1) + [False] * 4


@pytest.mark.parametrize("mesh", [(1, 1, 1), (2, 2, 1)])
def test_a_run_that_goes_on_remembers_what_a_spike_is(spared, mesh, tmp_path):
  # The save is of the step before: what it was compared with is in it.
  _fit(tmp_path, **SPIKES | dict(steps=SPIKE - 1))
  on = sharding.make_mesh(mesh, jax.devices()[: math.prod(mesh)])
  state = _fit(tmp_path, _corrupt_at(SPIKE), mesh=on, **SPIKES)
  assert _counts(tmp_path) == _counts(spared[1])
  if mesh == (1, 1, 1):
    _assert_same(state, spared[0])
    for x, y in zip(
      jax.tree.leaves(state.skipped),
      jax.tree.leaves(spared[0].skipped),
      strict=True,
    ):
      np.testing.assert_array_equal(x, y)


def test_too_many_spikes_in_a_row_end_the_run_and_are_named(tmp_path):
  bad = _corrupt_at(*range(SPIKE, SPIKE + 5))
  with pytest.raises(errors.NotFiniteError) as e:
    _fit(tmp_path, bad, **SPIKES, max_skipped=3)
  assert (
    "3 updates in a row had no finite gradient or were spikes"
    f" (fit.skip_outliers=6), up to step {SPIKE + 3}, and changed nothing; step"
    f" {SPIKE - 1} is saved" in str(e.value)
  )
  assert _fit(tmp_path, bad, **SPIKES, max_skipped=9).skipped.total == 5


@pytest.mark.parametrize("above", [0.0, -1.0, float("nan")])
def test_what_cannot_tell_a_spike_is_refused(above):
  with pytest.raises(errors.InputError, match="skip_outliers="):
    loop.FitConfig(1, skip_outliers=above)


def test_a_full_disk_ends_the_run_in_one_line_with_its_own_code(tmp_path):
  class Full:
    def write(self, text):
      raise OSError(errno.ENOSPC, "No space left on device")

    def close(self):
      pass

  write = metrics_log.Log.write

  def full(self, step, *rest):
    if step == 3:
      self._files = [Full(), Full()]
    write(self, step, *rest)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(metrics_log.Log, "write", full)
    with pytest.raises(
      errors.DiskFullError, match=r"metrics\.jsonl.*make room"
    ):
      _fit(tmp_path)


# --- A workdir that holds something -----------------------------------------


def test_a_finished_run_is_not_trained_again(tmp_path, whole, caplog):
  caplog.set_level(logging.INFO)
  _fit(tmp_path)
  assert "nothing is left to do" not in caplog.text
  _assert_same(_fit(tmp_path, _stopping_at(0)), whole[0])
  assert _records(tmp_path) == whole[1]
  assert (
    "updates before: nothing is left to do; for more updates give another"
    " `workdir` with a larger `config.fit.steps`"
  ) in caplog.text


def test_more_steps_go_on_from_the_end(tmp_path):
  _fit(tmp_path, steps=2)
  seen = []

  def batch_at(step):
    seen.append(step)
    return _batch_at(step)

  assert int(_fit(tmp_path, batch_at, steps=4).step) == 4
  assert seen == [2, 3]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_where_every_checkpoint_is_damaged_nothing_is_trained(tmp_path):
  _fit(tmp_path, steps=6)
  for path in tmp_path.glob("checkpoints/*/params/**/d/*"):
    path.write_bytes(b"")
  before = sorted(tmp_path.rglob("*"))
  with pytest.raises(errors.DamagedError, match="damaged") as e:
    _fit(tmp_path, _stopping_at(0))
  assert "\n" not in str(e.value) and "fresh=True" in str(e.value)
  assert sorted(tmp_path.rglob("*")) == before
  assert [step for step, _ in _records(tmp_path)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_run_whose_last_save_is_damaged_ends_with_the_same_bits(
  tmp_path, whole, capsys
):
  _fit(tmp_path, steps=6)
  for path in tmp_path.glob("checkpoints/6/params/**/d/*"):
    path.write_bytes(b"")
  _assert_same(_fit(tmp_path), whole[0])
  assert _records(tmp_path) == whole[1]
  assert re.search(r"resumes from step [1-5]\n", capsys.readouterr().out)


def test_fresh_replaces_what_was_there(tmp_path, whole):
  other = _toy(optax.adam(0.5))
  _fit(tmp_path, toy=other, steps=5, tensorboard=True)
  assert list(tmp_path.glob("tensorboard/events*"))
  state = _fit(tmp_path, fresh=True)
  _assert_same(state, whole[0])
  assert _records(tmp_path) == whole[1]
  assert saves.saved_steps(tmp_path) == [6, 8]
  assert not list(tmp_path.glob("tensorboard/events*"))


def test_fresh_starts_from_scratch_where_resuming_is_refused(tmp_path, whole):
  (tmp_path / "checkpoints" / "5").mkdir(parents=True)
  with pytest.raises(errors.InputError):
    _fit(tmp_path)
  _assert_same(_fit(tmp_path, fresh=True), whole[0])


def test_a_fresh_run_that_cant_begin_leaves_the_old_one_as_it_is(tmp_path):
  _fit(tmp_path)

  def files():
    return {
      x: x.read_bytes() for x in sorted(tmp_path.rglob("*")) if x.is_file()
    }

  before = files()
  begun = []
  for options in (
    dict(init_from={"table": jnp.ones((3, 3))}),
    dict(init_from={"other": jnp.ones(3)}),
    dict(best_metric="loss_nats", checkpoint_every=0),
  ):
    with pytest.raises(errors.InputError):
      _fit(tmp_path, fresh=True, on_start=lambda: begun.append(1), **options)
  assert files() == before and not begun

  def on_start():
    begun.append(saves.saved_steps(tmp_path))

  _fit(tmp_path, fresh=True, on_start=on_start)
  assert begun == [[]]


def test_records_without_a_checkpoint_arent_replaced_without_a_word(
  tmp_path, capsys
):
  with pytest.raises(_StoppedError):
    _fit(tmp_path, _stopping_at(5), checkpoint_every=0)
  capsys.readouterr()
  _fit(tmp_path, checkpoint_every=0)
  first, *others = capsys.readouterr().out.splitlines()
  assert "holds 5 records but no checkpoint" in first
  assert "starts again at step 0" in first and "checkpoint_every" in first
  assert not any("no checkpoint" in line for line in others)
  _fit(tmp_path / "saved", steps=4)
  with pytest.raises(_StoppedError):
    _fit(tmp_path / "saved", _stopping_at(6), checkpoint_every=0)
  _fit(tmp_path / "saved")
  assert "no checkpoint" not in capsys.readouterr().out


# --- Evaluation and the best step -------------------------------------------


def _flipping(step):
  """Returns right labels before step 4 and wrong ones from there on."""
  batch = _batch_at(0)
  return batch if step < 4 else batch.replace(labels=1 - batch.labels)


def test_the_step_with_the_best_evaluation_is_kept(tmp_path):
  without_memory = _toy(optax.adam(0.1, b1=0))
  _fit(
    tmp_path,
    _flipping,
    toy=without_memory,
    eval_batches=[_flipping(0)],
    eval_every=1,
    checkpoint_every=1,
    keep_last=1,
    best_metric="loss_nats",
  )
  measured = dict(_records(tmp_path, "eval"))
  best = min(measured, key=measured.get)
  assert best == 4
  assert saves.saved_steps(tmp_path) == [best, STEPS]
  # It is the state that was measured.
  again = _fit(tmp_path / "again", _flipping, toy=without_memory, steps=best)
  abstract = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
    again,
  )
  checkpoints = manager.Checkpoints(tmp_path, best_metric="loss_nats")
  assert checkpoints.best() == best
  _assert_same(checkpoints.restore(best, abstract), again)
  checkpoints.close()


def test_the_best_step_is_said_at_the_end(tmp_path, capsys):
  options = dict(
    eval_batches=[_batch_at(0)], eval_every=2, checkpoint_every=2, keep_last=9
  )
  _fit(tmp_path, best_metric="loss_nats", best_mode="max", **options)
  measured = dict(_records(tmp_path, "eval"))
  assert sorted(measured) == [2, 4, 6, 8]
  best = max(measured, key=measured.get)
  last = capsys.readouterr().out.splitlines()[-1]
  assert last == (
    f"train: best loss_nats of the saved steps: step {best};"
    f" `step={best}` uses it"
  )
  _fit(tmp_path / "none", **options)
  assert "best" not in capsys.readouterr().out


@pytest.mark.parametrize(
  ("eval_every", "checkpoint_every", "allowed"),
  [
    (0, 0, True),
    (2, 2, True),
    (2, 4, True),
    (2, 3, False),
    (4, 2, False),
    (2, 0, False),
    (0, 2, False),
  ],
)
def test_a_best_step_needs_that_what_is_saved_is_evaluated(
  eval_every, checkpoint_every, allowed
):
  fields = dict(eval_every=eval_every, checkpoint_every=checkpoint_every)
  loop.FitConfig(steps=8, **fields)
  if allowed:
    loop.FitConfig(steps=8, best_metric="loss_nats", **fields)
    return
  with pytest.raises(errors.InputError, match="could be lost") as e:
    loop.FitConfig(steps=8, best_metric="loss_nats", **fields)
  assert "\n" not in str(e.value)


@pytest.mark.parametrize(
  "changes",
  [
    dict(steps=0),
    dict(keep_last=0),
    dict(log_every=-1),
    dict(eval_every=-1),
    dict(checkpoint_every=-200),
    dict(best_mode="least"),
  ],
  ids=str,
)
def test_counts_that_make_no_sense_are_refused_in_one_line(changes):
  ((name, value),) = changes.items()
  with pytest.raises(errors.InputError, match=rf"^fit\.{name}={value!r}: "):
    loop.FitConfig(**dict(steps=8) | changes)


def test_an_evaluation_is_one_mean_over_all_batches(tmp_path):
  light, heavy = _batch_at(0), _batch_at(1)
  heavy = heavy.replace(weights=10 * heavy.weights)
  state = _fit(tmp_path, eval_batches=[light, heavy], steps=2)
  toy = _toy()
  total = weight = 0.0
  for batch in (light, heavy):
    sums = toy.evaluate(state.params, jax.tree.map(jnp.asarray, batch))
    total, weight = total + sums["total"], weight + sums["weight"]
  (found,) = _records(tmp_path, "eval")
  np.testing.assert_allclose(found, (2, total / weight), rtol=1e-6)


@pytest.mark.parametrize(
  ("batches", "metric"), [([_batch_at(0)], "los_nats"), ([], "loss_nats")]
)
def test_a_best_metric_that_nothing_measures_is_refused_at_once(
  tmp_path, batches, metric
):
  with pytest.raises(errors.InputError, match=metric) as e:
    _fit(
      tmp_path,
      _stopping_at(0),
      eval_batches=batches,
      best_metric=metric,
      checkpoint_every=0,
    )
  assert "\n" not in str(e.value)


# --- The log ----------------------------------------------------------------


def test_the_log_says_what_was_asked_for_and_the_last_step(tmp_path, capsys):
  _fit(tmp_path, log_every=3, eval_batches=[_batch_at(0)], eval_every=5)
  assert [step for step, _ in _records(tmp_path)] == [3, 6, 8]
  assert [step for step, _ in _records(tmp_path, "eval")] == [5, 8]
  said = capsys.readouterr().out.splitlines()
  for line, what in zip(
    said, ("train 3", "eval 5", "train 6", "train 8", "eval 8"), strict=True
  ):
    kind, step = what.split()
    assert f"{kind} step {step}/8 " in line and "loss_nats" in line


def test_what_is_not_finite_is_null_in_the_log(tmp_path):
  def batch_at(step):
    batch = _batch_at(step)
    return batch.replace(labels=batch.labels * (np.nan if step else 1))

  _fit(tmp_path, batch_at, steps=3)
  assert _records(tmp_path)[1:] == [(2, None), (3, None)]


def test_tokens_are_counted_without_padding(tmp_path):
  random = np.random.default_rng(0)

  def segment(n):
    index = np.arange(n, dtype=np.int32)
    ids = random.integers(0, VOCABULARY, n).astype(np.int32)
    zeros = np.zeros(n, np.float32)
    return packing.Segment(
      ids,
      index,
      np.full(n, n, np.int32),
      index - 1,
      zeros,
      zeros,
      zeros > 0,
    )

  rows = packing.fill([[segment(3), segment(2)], [segment(5)], []], 7)
  assert loop.num_tokens(rows) == 10


# --- Starting from other parameters -----------------------------------------

MODEL = model_config.ModelConfig(
  vocab_size=16,
  d_model=8,
  num_layers=2,
  num_heads=2,
  num_kv_heads=2,
  head_dim=4,
  d_ff=8,
)


def _params(heads, seed, **changes):
  config = dataclasses.replace(MODEL, **changes)
  random = np.random.default_rng(seed)
  return jax.tree.map(
    lambda x: jnp.asarray(random.normal(size=x.shape), x.dtype),
    jax.eval_shape(
      lambda: meta.unbox(transformer.init(jax.random.key(0), config, heads))
    ),
  )


def test_training_leaves_the_parameters_it_starts_from_alone(tmp_path):
  given = {"table": jnp.full((VOCABULARY, 4), 2.0), "other": jnp.ones(2)}
  state = _fit(tmp_path, init_from=given, steps=1)
  np.testing.assert_array_equal(given["table"], 2)
  moved = np.abs(np.asarray(state.params["table"]) - 2).max()
  # One update of Adam moves an entry by its rate, from where it was given.
  np.testing.assert_allclose(moved, 0.05, rtol=1e-3)


def test_a_resumed_run_does_not_start_from_there_again(tmp_path, whole):
  with pytest.raises(_StoppedError):
    _fit(tmp_path, _stopping_at(4))
  given = {"table": jnp.full((VOCABULARY, 4), 2.0)}
  _assert_same(_fit(tmp_path, init_from=given), whole[0])


@pytest.mark.parametrize("trainable", ["lora", "head"])
def test_a_partly_trained_run_stopped_anywhere_ends_with_the_same_bits(
  tmp_path, trainable
):
  model = dataclasses.replace(MODEL, lora_rank=2, lora_targets=("up",))
  given = _params(("lm",), 1)
  if trainable == "head":
    model = MODEL
  options = {
    "toy": programs.make(
      prm.PRMConfig(), model, optax.adamw(1e-2), trainable=trainable
    ),
    "init_from": given,
    "checkpoint_every": 2,
    "steps": 4,
  }
  whole = _fit(tmp_path / "whole", **options)
  # Going on needs no parameters to start from: they are in the checkpoint.
  stopped = _without_its_last_save(tmp_path / "whole", tmp_path / "stopped")
  found = _fit(stopped, **options | {"init_from": None})
  _assert_same(found, whole)
  # What is frozen is, to the bit, what it started from.
  taken = warm_start.warm_start(found.params, given)
  jax.tree.map(np.testing.assert_array_equal, found.params, taken)
  assert found.params["step_head"]["kernel"].any()
  if trainable == "lora":
    assert found.params["layers"]["mlp"]["up"]["lora_b"].any()


def _without_its_last_save(workdir, copy):
  """Copies a run, as if it had been killed before its last save."""
  shutil.copytree(workdir, copy)
  shutil.rmtree(copy / "checkpoints" / str(saves.saved_steps(copy)[-1]))
  return copy


def _narrow(tree):
  return jax.tree.map(lambda x: x.astype(jnp.bfloat16), tree)


def test_what_is_frozen_keeps_its_type_and_gives_the_same_bits(tmp_path):
  small = dict(num_layers=1, compute_dtype="bfloat16")
  model = dataclasses.replace(MODEL, lora_rank=2, lora_targets=("up",), **small)
  given = _narrow(_params(("lm",), 1, **small))
  options = {
    "toy": programs.make(
      prm.PRMConfig(), model, optax.adamw(1e-2), trainable="lora"
    ),
    "checkpoint_every": 1,
    "steps": 2,
  }
  wide = jax.tree.map(lambda x: x.astype(jnp.float32), given)
  expected = _fit(tmp_path / "wide", init_from=wide, **options)
  with pytest.raises(_StoppedError):
    _fit(tmp_path / "run", _stopping_at(1), init_from=given, **options)
  # It resumes as it was saved, whatever type it is given now.
  found = _fit(tmp_path / "run", init_from=wide, donate=True, **options)
  _assert_same(found, expected)
  assert _read(tmp_path / "run", "loss_nats") == _read(
    tmp_path / "wide", "loss_nats"
  )
  types = trainable_lib.types_of(found.params)
  assert types == saves.types(tmp_path / "run")
  trains = options["toy"].trains
  assert types == {
    path: jnp.float32 if trains(path) else jnp.bfloat16 for path in types
  }
  assert set(jax.tree.leaves(saves.types(tmp_path / "wide"))) == {
    np.dtype("float32")
  }


def test_the_types_of_a_save_are_read_from_a_relative_folder_too(
  tmp_path, monkeypatch
):
  given = _narrow(_params(("lm",), 1))
  program = programs.make(
    prm.PRMConfig(), MODEL, optax.adamw(1e-2), trainable="head"
  )
  _fit(tmp_path / "run", init_from=given, toy=program, steps=1)
  monkeypatch.chdir(tmp_path)
  types = saves.types(pathlib.Path("run"))
  assert types == saves.types(tmp_path / "run")
  assert np.dtype(jnp.bfloat16) in types.values()


def test_donated_parameters_are_moved_and_never_held_twice():
  base = _narrow(_params(("lm",), 1))
  program_ = programs.make(
    implicit_prm.ImplicitConfig(), MODEL, optax.adamw(1e-2)
  )
  given = implicit_prm.begin_from(base)
  held = program.holding(program_, trainable_lib.types_of(given))
  placed = program.place(held, _one_device(), jax.random.key(0))
  places = {id(x): x.unsafe_buffer_pointer() for x in jax.tree.leaves(base)}
  expected = jax.tree.map(np.asarray, given)
  state = warm_start.first_state(
    held, placed, _one_device(), jax.random.key(0), given, donate=True
  )
  reference = state.params["reference"]
  for new, old in zip(
    jax.tree.leaves(reference), jax.tree.leaves(base), strict=True
  ):
    assert new.unsafe_buffer_pointer() == places[id(old)]
  jax.tree.map(np.testing.assert_array_equal, state.params, expected)
  trained, _ = trainable_lib.split(state.params, held.trains)
  assert {x.dtype for x in jax.tree.leaves(trained)} == {np.dtype("float32")}


@pytest.mark.parametrize("donate", [False, True])
def test_only_parameters_that_are_not_donated_are_left_to_the_caller(donate):
  given = _params(("lm", "outcome"), 1)
  toy = programs.make(prm.PRMConfig(), MODEL, optax.adamw(1e-2))
  placed = program.place(toy, _one_device(), jax.random.key(0))
  state = warm_start.first_state(
    toy, placed, _one_device(), jax.random.key(0), given, donate=donate
  )
  jax.tree.map(lambda x: x.delete(), state)  # as the first update does
  assert {x.is_deleted() for x in jax.tree.leaves(given)} == {donate}


@pytest.mark.parametrize("given", [None, {"num_layers": 1}], ids=repr)
def test_what_is_frozen_must_be_given_whole(tmp_path, given):
  """Frozen as they were drawn, layers would only make noise."""
  if given is not None:
    given = _params(("lm",), 1, **given)
  with pytest.raises(errors.InputError, match="isn't trained") as e:
    _fit(
      tmp_path / "new",
      toy=programs.make(prm.PRMConfig(), MODEL, optax.sgd(1), trainable="head"),
      init_from=given,
    )
  assert "\n" not in str(e.value) and not (tmp_path / "new").exists()


# --- The real thing ---------------------------------------------------------


def test_a_prm_stopped_on_eight_devices_ends_with_the_same_bits(tmp_path):
  options = {
    "toy": programs.make(prm.PRMConfig(), MODEL, optax.adamw(1e-2)),
    "mesh": sharding.make_mesh((2, 2, 2)),
    "checkpoint_every": 2,
    "steps": 4,
  }
  whole = _fit(tmp_path / "whole", **options)
  stopped = _without_its_last_save(tmp_path / "whole", tmp_path / "stopped")
  _assert_same(_fit(stopped, **options), whole)
  assert _records(stopped) == _records(tmp_path / "whole")


# --- Rows that depend on the state -------------------------------------------


def _of_state(state):
  """Rows chosen by the parameters themselves, as a rollout is."""
  size = float(sum(abs(x).sum() for x in jax.tree.leaves(state.params)))
  return _batch_at(round(1e4 * size)), {"size": size}


def test_rows_of_the_state_resume_to_the_same_bits(tmp_path):
  whole = _fit(tmp_path / "whole", next_rows=_of_state)
  calls = []

  def stopping(state):
    calls.append(int(state.step))
    if len(calls) == 6:
      raise KeyboardInterrupt
    return _of_state(state)

  with pytest.raises(KeyboardInterrupt):
    _fit(tmp_path / "cut", next_rows=stopping)
  _assert_same(_fit(tmp_path / "cut", next_rows=_of_state), whole)
  found = _read(tmp_path / "cut", "step", "size")
  assert [step for step, _ in found] == list(range(1, STEPS + 1))
  assert all(size is not None for _, size in found)


def test_a_measure_is_taken_before_the_first_update_and_once_when_due(tmp_path):
  taken = []

  def measure(state):
    taken.append(int(state.step))
    return {"loss_nats": 0.0}

  _fit(tmp_path, measure=measure, eval_every=3, steps=7)
  assert taken == [0, 3, 6, 7]
  _fit(tmp_path, measure=measure, eval_every=3, steps=9)
  assert taken == [0, 3, 6, 7, 9]
  assert [step for step, _ in _records(tmp_path, "eval")] == taken


def test_a_watch_sees_every_update_also_of_the_run_before(tmp_path, capsys):
  def halts_at(number):
    def watch(records):
      assert [r["step"] for r in records] == list(range(1, len(records) + 1))
      return loop.StopDecision("enough") if len(records) == number else None

    return watch

  state = _fit(tmp_path, callback=halts_at(4), log_every=0)
  assert int(state.step) == 4
  assert "halted at step 4: enough" in capsys.readouterr().out
  assert int(_fit(tmp_path, callback=halts_at(6), log_every=0).step) == 6


def test_a_halt_can_go_back_to_a_saved_step(tmp_path, whole):
  def watch(records):
    return loop.StopDecision("turned", back_to=4) if len(records) == 5 else None

  found = _fit(tmp_path, callback=watch, checkpoint_every=3, keep_last=9)
  _assert_same(found, _fit(tmp_path / "three", steps=3))
  assert saves.saved_steps(tmp_path)[-1] == 3
  # And goes on from there as if it hadn't been further.
  _assert_same(_fit(tmp_path), whole[0])


def test_a_halt_with_no_save_to_go_back_to_stays_and_says_so(tmp_path, capsys):
  def watch(records):
    return loop.StopDecision("turned", back_to=2) if len(records) == 5 else None

  state = _fit(tmp_path, callback=watch, checkpoint_every=3)
  assert int(state.step) == 5
  assert "no save is left from step 2 or before" in capsys.readouterr().out


def test_a_bar_shows_the_metrics_that_are_named(tmp_path, monkeypatch):
  monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
  options = dict(first=0, steps=2, tensorboard=False, name="rl")
  names = ("accuracy", "prm_score", "kl_nats", "tokens")
  with metrics_log.Log(tmp_path, shown=names, **options) as log:
    log.write(1, "train", dict(zip(names, (0.5, 0.25, 0.1, 9), strict=True)))
    log.write(1, "eval", dict(accuracy=0.75))
    assert log._bar.postfix == "accuracy 0.5 prm_score 0.25 kl_nats 0.1"
