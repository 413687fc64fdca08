"""Runs of two processes against the same run of one."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
import real_runs
import test_loop
import xla_flags

from prm_jax import errors
from prm_jax.checkpoints import manager
from prm_jax.checkpoints import saves
from prm_jax.cli import output
from prm_jax.models import sharding
from prm_jax.rows import loader
from prm_jax.rows import packing
from prm_jax.runtime import distributed
from prm_jax.text import encoding
from prm_jax.training import batches
from prm_jax.training import metrics_log

SHAPE = (2, 2, 1)
# With spikes skipped a state has more to save, which all processes hold.
OPTIONS = dict(checkpoint_every=3, eval_every=4, skip_outliers=6.0)
# Of two processes with two devices each, which rows of 8 the first needs.
FIRST_ROWS = {
  (4, 1, 1): range(4),
  (2, 2, 1): range(4),
  (2, 1, 2): range(4),
  (1, 2, 2): range(4),
  (1, 1, 4): range(8),
}


class Counted(list):
  """Pieces that say which of them were read."""

  def __init__(self, segments):
    super().__init__(segments)
    self.read: list[int] = []

  def __getitem__(self, number):
    self.read.append(int(number))
    return super().__getitem__(number)


def _rows():
  """Returns rows whose epoch ends in the midst of a batch, and of the run."""
  random = np.random.default_rng(0)
  segments = [
    packing.chain(
      encoding.Example(
        tokens=random.integers(0, test_loop.VOCABULARY, n).astype(np.int32),
        labels=random.integers(0, 2, n).astype(np.float32),
        weights=np.ones(n, np.float32),
        step_end=np.ones(n, bool),
      )
    )
    for n in random.integers(1, 5, 70)
  ]
  rows = loader.PackedDataset(
    Counted(segments), test_loop.ROWS, test_loop.ROW, seed=1
  )
  assert rows.rows_per_epoch < 50 and rows.rows_per_epoch % test_loop.ROWS
  return rows


def _start_from():
  random = np.random.default_rng(7)
  shape = (test_loop.VOCABULARY, 4)
  return dict(table=random.normal(size=shape).astype(np.float32))


def _train(workdir, mesh, slow=0.0, rows=None, **options):
  batch_at = batches.by_step(rows or _rows(), mesh)

  def slowly(step):
    time.sleep(slow)
    return batch_at(step)

  return test_loop._fit(
    workdir,
    slowly,
    mesh=mesh,
    eval_batches=batches.each_once(_rows(), 13, mesh),
    **OPTIONS | options,
  )


def run_as_one_of_several(folder):
  """Trains in this process of several, in all the ways that tests ask for."""
  distributed.start()
  with output.printing_log():
    _train_in_all_ways(folder)


def _train_in_all_ways(folder):
  rows, mesh, start = _rows(), sharding.make_mesh(SHAPE), _start_from()
  state = _train(folder / "plain", mesh, rows=rows)
  print("what only the first one says")
  first = distributed.is_first()
  told = dict(
    of_first=[
      distributed.of_first(x if first else y)
      for x, y in (([4, 2], [7]), ([], [1]), ([5], []))
    ],
    refusals=_refusals(),
    read=rows.segments.read,
    own={
      str(shape): sharding.own_rows(8, sharding.make_mesh(shape)).tolist()
      for shape in FIRST_ROWS
    },
    sums=[
      f"{np.abs(distributed.whole(x)).sum():.6f}"
      for x in jax.tree.leaves(state.params)
    ],
  )
  # The tensor axis and the rows both cross the processes.
  a, b, c, d = jax.devices()
  crossing = sharding.make_mesh((2, 1, 2), [a, c, b, d])
  _train(folder / "crossing", crossing, steps=4)
  _train(folder / "start", mesh, init_from=start, steps=4)
  distributed.on_first(lambda: _damage(folder / "start/checkpoints/4/params"))
  _train(folder / "start", mesh, init_from=start)
  distributed.on_first(
    lambda: shutil.copytree(folder / "crossing", folder / "fresh")
  )
  _train(folder / "fresh", crossing, init_from=start, fresh=True, steps=3)
  sys.stderr.write("\n" + json.dumps(told) + "\n")


def _refusals():
  """What comes of what isn't the same in both processes."""
  own = int(not distributed.is_first())

  def full(here):
    if own == here:
      raise errors.DiskFullError("full")
    return own

  said = []
  for ask in (
    lambda: distributed.together(lambda: own),
    lambda: distributed.together(lambda: full(1)),
    lambda: distributed.on_first(lambda: full(0)),
    lambda: distributed.check_same(dict(a=[1], b=dict(c="é", d=None))),
    lambda: distributed.check_same(dict(a=[own], b=dict(c="é" * own, d=None))),
    lambda: distributed.check_same({f"{own}" * (own + 1): 1}),
  ):
    try:
      said.append(ask())
    except errors.InputError as e:
      said.append([str(e), e.exit_code])
  return said


def _damage(folder):
  for path in folder.rglob("*"):
    if path.is_file():
      os.truncate(path, path.stat().st_size // 2)


def run_slowly(workdir):
  """Trains in this process of several; each batch takes a second."""
  distributed.start()
  with output.printing_log():
    _train(workdir, sharding.make_mesh(SHAPE), slow=1.0)


def fail_alone(workdir):
  """Trains in this process of several, of which one ends in the midst of it."""

  def batch_at(step):
    if step == 3 and not distributed.is_first():
      full = workdir.name == "full"
      raise errors.DiskFullError("full") if full else OSError("gone")
    return test_loop._batch_at(step)

  try:
    with distributed.joined():
      test_loop._fit(workdir, batch_at, mesh=sharding.make_mesh((4, 1, 1)))
  except errors.InputError as e:
    sys.exit(e.exit_code)


def _start(function, folder, number=2, **environment):
  """Starts processes that call a function of this file with a folder."""
  with socket.socket() as s:
    s.bind(("localhost", 0))
    port = s.getsockname()[1]
  code = (
    "import pathlib, test_distributed;"
    f"test_distributed.{function}(pathlib.Path({str(folder)!r}))"
  )
  return [
    subprocess.Popen(
      [sys.executable, "-c", code],
      env=os.environ
      | dict(
        PYTHONPATH=os.pathsep.join(sys.path),
        XLA_FLAGS=xla_flags.devices(2),
        JAX_PLATFORMS="cpu",
        JAX_COORDINATOR_ADDRESS=f"localhost:{port}",
        JAX_NUM_PROCESSES=str(number),
        JAX_PROCESS_ID=str(own),
      )
      | environment,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    for own in range(number)
  ]


def _ends(started):
  try:
    said = [p.communicate(timeout=240) for p in started]
  finally:
    for p in started:
      p.kill()
  return [p.returncode for p in started], said


def _assert_close(found, expected):
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7),
    jax.device_get(found),
    jax.device_get(expected),
  )


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
  """The run in one process, on one device and on four; and their folders."""
  folder = tmp_path_factory.mktemp("alone")
  meshes = dict(
    one=test_loop._one_device(),
    four=sharding.make_mesh(SHAPE, jax.devices()[:4]),
  )
  return {
    name: (_train(folder / name, mesh), folder / name)
    for name, mesh in meshes.items()
  }


def _assert_same_losses(workdir, expected):
  for kind in ("train", "eval"):
    found, wanted = (
      np.array(test_loop._records(x, kind)) for x in (workdir, expected)
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def _newest(workdir, state):
  """Returns what several processes saved, on the mesh of a state."""
  checkpoints = manager.Checkpoints(workdir)
  target = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
    state,
  )
  try:
    return checkpoints.newest(target)
  finally:
    checkpoints.close()


@pytest.fixture(scope="module")
def both(tmp_path_factory):
  """What two processes have done and said: see run_as_one_of_several."""
  folder = tmp_path_factory.mktemp("both")
  codes, said = _ends(_start("run_as_one_of_several", folder))
  assert codes == [0, 0], said
  return folder, said


@pytest.mark.faults
def test_two_processes_learn_what_one_does(alone, both):
  folder, said = both
  told = [json.loads(x[1].splitlines()[-1]) for x in said]
  # Both have the same parameters at the end; only the first one speaks.
  assert told[0]["sums"] == told[1]["sums"]
  for x in told:
    assert x["of_first"] == [[4, 2], [], [5]]
  for words in ("what only the first one says", "train step 8/8"):
    assert words in said[0][0] and words not in said[1][0]
  for state, expected in alone.values():
    _assert_same_losses(folder / "plain", expected)
    _assert_close(_newest(folder / "plain", state), state)


@pytest.mark.faults
def test_what_is_not_the_same_in_both_is_refused_in_both(both):
  told = [json.loads(x[1].splitlines()[-1])["refusals"] for x in both[1]]
  elsewhere = "process {} was refused, and says why"
  data, name = (
    f"process 1 has other values of {x} than process 0; give all of them the"
    " same"
    for x in ("a, b.c", "0, 11")
  )
  same = [None, [data, 1], [name, 1]]
  assert told[0] == [0, [elsewhere.format(1), 4], ["full", 4], *same]
  assert told[1] == [1, ["full", 4], [elsewhere.format(0), 4], *same]


@pytest.mark.faults
def test_a_process_reads_the_rows_of_its_devices_and_no_others(both):
  told = [json.loads(x[1].splitlines()[-1]) for x in both[1]]
  for shape, own in FIRST_ROWS.items():
    first, second = (x["own"][str(shape)] for x in told)
    assert first == list(own)
    assert second == list(own if len(own) == 8 else range(4, 8))
  rows = _rows()
  plans = [rows._plan(step) for step in range(test_loop.STEPS)]
  for own, x in zip((range(4), range(4, 8)), told, strict=True):
    assert x["read"] == [int(k) for plan in plans for i in own for k in plan[i]]


@pytest.mark.faults
def test_two_processes_start_go_on_and_begin_anew_as_one_does(
  both, alone, tmp_path
):
  folder, said = both
  # Rows and the tensor axis across both.
  expected = test_loop._records(alone["one"][1])[:4]
  found = test_loop._records(folder / "crossing")
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  state = _train(tmp_path, test_loop._one_device(), init_from=_start_from())
  _assert_same_losses(folder / "start", tmp_path)
  _assert_close(_newest(folder / "start", state), state)
  assert "resumes from step 3" in said[0][0]
  assert (folder / "start/damaged/4").is_dir()
  # What was there before is gone.
  assert saves.saved_steps(folder / "fresh") == [3]
  expected = test_loop._records(tmp_path)[:3]
  found = test_loop._records(folder / "fresh")
  np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.faults
@pytest.mark.parametrize("why, code", [("full", 4), ("gone", 42)])
def test_one_that_fails_alone_ends_with_its_own_code_before_the_others_abort(
  why, code, tmp_path
):
  begin = time.monotonic()
  started = _start("fail_alone", tmp_path / why, PRM_JAX_HEARTBEAT_S="10")
  assert started[1].wait(timeout=60) == code
  assert started[0].poll() is None
  codes, said = _ends(started)
  assert codes == [-signal.SIGABRT, code], said
  # jax alone takes five minutes, and then both abort.
  assert time.monotonic() - begin < 90


@pytest.mark.faults
def test_sigterm_of_one_process_ends_both_at_one_step_and_one_goes_on(
  alone, tmp_path
):
  started = _start("run_slowly", tmp_path)
  records = tmp_path / "metrics.jsonl"
  until = time.monotonic() + 200
  while not (records.exists() and records.read_text().count("\n") > 1):
    assert time.monotonic() < until and started[0].poll() is None
    time.sleep(0.1)
  started[1].send_signal(signal.SIGTERM)
  codes, said = _ends(started)
  assert codes == [42, 42], said
  steps = saves.saved_steps(tmp_path)
  assert steps and steps[-1] < test_loop.STEPS
  assert f"ended at step {steps[-1]}, which is saved" in said[0][0]
  assert [s for s, _ in test_loop._records(tmp_path)][-1] == steps[-1]
  state, folder = alone["one"]
  _assert_close(_train(tmp_path, test_loop._one_device()).params, state.params)
  found, expected = (
    np.array(test_loop._records(x)) for x in (tmp_path, folder)
  )
  np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_the_trainer_starts_goes_on_and_begins_anew_under_local_sh(tmp_path):
  log, policy = tmp_path / "log", tmp_path / "policy"
  sft = real_runs.words(tmp_path, "sft", "sft", 2)
  assert real_runs.life([*sft, f"--workdir={policy}"], log) == 0
  start = f"--config.init_from={policy}"
  words = [*real_runs.words(tmp_path), start]
  alone = [*words, f"--workdir={tmp_path}/alone"]
  assert real_runs.life(alone, log) == 0
  both = [*real_runs.TWO, *words, f"--workdir={tmp_path}/both"]
  code = real_runs.life(both, log, signal.SIGTERM, 12)
  assert code == 42, log.read_text()
  assert real_runs.life(both, log) == 0, log.read_text()
  found, expected = (
    real_runs.records((tmp_path / x / "metrics.jsonl").read_text())
    for x in ("both", "alone")
  )
  real_runs.assert_close(found, expected)
  changed = [*both, "--config.fit.steps=3"]
  assert real_runs.life(changed, log) == 1
  assert "[0] prm-jax: " in log.read_text()
  assert "other values of fit.steps" in log.read_text()
  assert real_runs.life([*changed, "--fresh"], log) == 0, log.read_text()
  found = real_runs.records((tmp_path / "both" / "metrics.jsonl").read_text())
  # The rate of the later ones depends on how many there are.
  real_runs.assert_close(found[:1], expected[:1])
  assert [x["step"] for x in found if x["kind"] == "train"] == [1, 2, 3]
  assert saves.saved_steps(tmp_path / "both") == [3]


@pytest.mark.parametrize(
  ("given", "said"),
  [
    (
      dict(JAX_NUM_PROCESSES="2"),
      "set JAX_COORDINATOR_ADDRESS, JAX_PROCESS_ID",
    ),
    (
      dict(
        JAX_COORDINATOR_ADDRESS="localhost:1",
        JAX_NUM_PROCESSES="2",
        JAX_PROCESS_ID="2",
      ),
      "JAX_PROCESS_ID=2: expected",
    ),
    (
      dict(
        JAX_COORDINATOR_ADDRESS="localhost:1",
        JAX_NUM_PROCESSES="2",
        JAX_PROCESS_ID="0",
        PRM_JAX_HEARTBEAT_S="0",
      ),
      "PRM_JAX_HEARTBEAT_S=0: expected",
    ),
  ],
)
def test_half_of_what_is_needed_is_refused_in_one_line(given, said):
  with pytest.raises(errors.InputError, match=said):
    distributed.start(given)


def test_one_process_is_the_first_and_asks_nobody(tmp_path):
  distributed.start({})
  distributed.start(dict(SLURM_STEP_NUM_TASKS="1", TPU_WORKER_HOSTNAMES="host"))
  assert distributed.number() == 1 and distributed.is_first()
  assert distributed.any_of(True) and not distributed.any_of(False)
  assert distributed.of_first((4, 2)) == [4, 2]

  def refuse():
    raise errors.InputError("no")

  with pytest.raises(errors.InputError, match=r"^no$"):
    distributed.on_first(refuse)
  kept, dropped = metrics_log.keep_records(tmp_path / "none.jsonl", bool)
  assert (kept, dropped) == ([], 0)
  (tmp_path / "a.jsonl").write_text(json.dumps(dict(step=1)) + "\n")
  kept, dropped = metrics_log.keep_records(
    tmp_path / "a.jsonl", lambda r: r["step"]
  )
  assert (kept, dropped) == ([dict(step=1)], 0)


def test_a_port_that_another_listens_on_is_refused_before_jax_tries():
  with socket.socket() as taken:
    taken.bind(("", 0))
    taken.listen()
    address = f"localhost:{taken.getsockname()[1]}"
    given = dict(
      JAX_COORDINATOR_ADDRESS=address,
      JAX_NUM_PROCESSES="2",
      JAX_PROCESS_ID="0",
    )
    with pytest.raises(errors.InputError, match="Address already in use"):
      distributed.start(given)
  # It is free again, also while its old connections die down.
  distributed._check_port(address)
