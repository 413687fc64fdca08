"""Runs of two processes against the same run of one."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
import test_loop

from prm_jax import checkpoint
from prm_jax import processes
from prm_jax import schema
from prm_jax import sharding
from prm_jax.train import records

HERE = pathlib.Path(__file__).parent
SHAPE = (2, 2, 1)
OPTIONS = dict(checkpoint_every=3, eval_every=4)


def _train(workdir, mesh, batch_at=test_loop._batch_at):
  return test_loop._fit(
    workdir,
    batch_at,
    mesh=mesh,
    eval_batches=[test_loop._batch_at(100)],
    **OPTIONS,
  )


def run_as_one_of_several(workdir, slow):
  """Trains in this process of several; slow: seconds that each batch takes."""
  processes.start()

  def batch_at(step):
    time.sleep(slow)
    return test_loop._batch_at(step)

  state = _train(workdir, sharding.make_mesh(SHAPE), batch_at)
  print("what only the first one says")
  for x in jax.tree.leaves(state.params):
    sys.stderr.write(f"{np.abs(processes.whole(x)).sum():.6f}\n")


def _start(workdir, number=2, slow=0.0):
  with socket.socket() as s:
    s.bind(("localhost", 0))
    port = s.getsockname()[1]
  flags = "--xla_force_host_platform_device_count=2"
  code = (
    "import test_processes;"
    f"test_processes.run_as_one_of_several({str(workdir)!r}, {slow})"
  )
  return [
    subprocess.Popen(
      [sys.executable, "-c", code],
      env=os.environ
      | dict(
        PYTHONPATH=f"{HERE}{os.pathsep}{HERE.parent}",
        XLA_FLAGS=f"{flags} --xla_backend_optimization_level=0",
        JAX_PLATFORMS="cpu",
        JAX_COORDINATOR_ADDRESS=f"localhost:{port}",
        JAX_NUM_PROCESSES=str(number),
        JAX_PROCESS_ID=str(own),
      ),
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


def test_two_processes_learn_what_one_does(alone, tmp_path):
  codes, said = _ends(_start(tmp_path))
  assert codes == [0, 0], said
  # Both have the same parameters at the end; only the first one speaks.
  assert said[0][1].splitlines()[-2:] == said[1][1].splitlines()[-2:]
  for words in ("what only the first one says", "train step 8/8"):
    assert words in said[0][0] and words not in said[1][0]
  for state, folder in alone.values():
    for kind in ("train", "eval"):
      found, expected = (
        np.array(test_loop._records(x, kind)) for x in (tmp_path, folder)
      )
      np.testing.assert_allclose(found, expected, rtol=1e-5)
    checkpoints = checkpoint.Checkpoints(tmp_path)
    target = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
      state,
    )
    # What two processes saved, one restores on its own mesh, fingerprints too.
    _assert_close(checkpoints.newest(target), state)
    checkpoints.close()


@pytest.mark.faults
def test_sigterm_of_one_process_ends_both_at_one_step_and_one_goes_on(
  alone, tmp_path
):
  started = _start(tmp_path, slow=1.0)
  records = tmp_path / "metrics.jsonl"
  until = time.monotonic() + 200
  while not (records.exists() and records.read_text().count("\n") > 1):
    assert time.monotonic() < until and started[0].poll() is None
    time.sleep(0.1)
  started[1].send_signal(signal.SIGTERM)
  codes, said = _ends(started)
  assert codes == [42, 42], said
  steps = checkpoint.saved_steps(tmp_path)
  assert steps and steps[-1] < test_loop.STEPS
  assert f"ended at step {steps[-1]}, which is saved" in said[0][0]
  assert [s for s, _ in test_loop._records(tmp_path)][-1] == steps[-1]
  state, folder = alone["one"]
  _assert_close(_train(tmp_path, test_loop._one_device()).params, state.params)
  found, expected = (
    np.array(test_loop._records(x)) for x in (tmp_path, folder)
  )
  np.testing.assert_allclose(found, expected, rtol=1e-5)


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
  ],
)
def test_half_of_what_is_needed_is_refused_in_one_line(given, said):
  with pytest.raises(schema.InputError, match=said):
    processes.start(given)


def test_one_process_is_the_first_and_asks_nobody(tmp_path):
  processes.start({})
  processes.start(dict(SLURM_STEP_NUM_TASKS="1", TPU_WORKER_HOSTNAMES="host"))
  assert processes.number() == 1 and processes.is_first()
  assert processes.any_of(True) and not processes.any_of(False)

  def refuse():
    raise schema.InputError("no")

  with pytest.raises(schema.InputError, match=r"^no$"):
    processes.on_first(refuse)
  kept, dropped = records.keep_records(tmp_path / "none.jsonl", bool)
  assert (kept, dropped) == ([], 0)
  (tmp_path / "a.jsonl").write_text(json.dumps(dict(step=1)) + "\n")
  kept, dropped = records.keep_records(
    tmp_path / "a.jsonl", lambda r: r["step"]
  )
  assert (kept, dropped) == ([dict(step=1)], 0)
