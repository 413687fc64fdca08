"""The whole of `prm-jax check-device --quick`, killed on its way."""

import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time

import pytest
import real_runs

from prm_jax.device_check import check_results
from prm_jax.device_check import machine
from prm_jax.device_check import verdict

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

# Not the tests' own flags: what a person's machine does.
ENVIRONMENT = {
  k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))
} | dict(PYTHONPATH=str(real_runs.ROOT), JAX_PLATFORMS="cpu")

# A machine that has jax and its family alone: python runs this at its start.
BARE = """
import importlib.abc, sys
ABSENT = {"tensorboardX", "ml_collections", "tensorflow_datasets", "array_record",
  "sentencepiece", "tokenizers", "safetensors", "jinja2", "tqdm", "urllib3",
  "torch", "transformers"}
class Absent(importlib.abc.MetaPathFinder):
  def find_spec(self, name, path=None, target=None):
    if name.partition(".")[0] in ABSENT:
      raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
"""


def _command(output, *words):
  call = [sys.executable, "-P", "-m", "prm_jax", "check-device"]
  return [*call, f"--output={output}", *words]


def _cpu_s():
  used = resource.getrusage(resource.RUSAGE_CHILDREN)
  return used.ru_utime + used.ru_stime


def _children(pid):
  """Returns the numbers of a process's children."""
  tasks = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
  return [int(x) for x in tasks.split()]


def _is_there(pid):
  try:
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
  except OSError:
    return False
  return "State:\tZ" not in status


def test_quick_killed_in_the_middle_resumes_and_takes_three_minutes_at_most(
  tmp_path,
):
  """Also that nothing is imported which a bare machine lacks."""
  output, before_s = tmp_path / "check.json", _cpu_s()
  (tmp_path / "sitecustomize.py").write_text(BARE)
  paths = f"{tmp_path}{os.pathsep}{real_runs.ROOT}"
  environment = ENVIRONMENT | dict(PYTHONPATH=paths)
  process = subprocess.Popen(
    _command(output, "--quick"), env=environment, cwd=tmp_path
  )
  until = time.monotonic() + 300
  while not output.exists() or len(check_results.read(output).results) < 8:
    assert process.poll() is None and time.monotonic() < until
    time.sleep(0.05)
  [worker] = _children(process.pid)
  process.send_signal(signal.SIGKILL)
  process.wait()
  kept = check_results.read(output).results
  assert len(kept) >= 8 and check_results.read(output).verdict is None
  until = time.monotonic() + 30
  while _is_there(worker):  # it ends when its standard input does
    assert time.monotonic() < until
    time.sleep(0.05)

  done = subprocess.run(
    _command(output, "--quick"),
    env=environment,
    cwd=tmp_path,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  lines = done.stdout.splitlines()
  assert lines[0] == f"resumes {output}: {len(kept)} results done"
  assert f"quick: {verdict.RIGHT}" in done.stdout
  record = check_results.read(output)
  assert record.results[: len(kept)] == kept
  required = {x.name for x in record.planned if x.required}
  assert required <= record.done
  # Of two cores; a busy machine takes longer by the clock. What the killed
  # worker took isn't known here: by its own clock.
  taken_s = _cpu_s() - before_s + sum(r.seconds for r in kept)
  assert taken_s < 2 * 180


def test_eight_simulated_devices_send_shard_and_resume_rightly(tmp_path):
  output = tmp_path / "check.json"
  flags = "--xla_force_host_platform_device_count=8"
  environment = ENVIRONMENT | dict(XLA_FLAGS=flags)
  # More meshes: tests/device_check/test_device_models.py
  sharded = "training.sharded_is_one_device.fsdp"
  checks = ["machine.devices", sharded]
  checks += [f"machine.{name}" for name in machine.COLLECTIVES]
  only = f"--only={','.join(checks)}"
  done = subprocess.run(
    _command(output, "--quick", only),
    env=environment,
    cwd=tmp_path,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  record = json.loads(output.read_text())
  assert record["machine"]["num_devices"] == 8
  statuses = {r["name"]: r["status"] for r in record["results"]}
  assert statuses == dict.fromkeys(checks, "pass")
  assert record["verdict"]["verdict"] == verdict.UNKNOWN
  done = subprocess.run(
    _command(output, "--quick", only),
    env=environment | dict(XLA_FLAGS=""),
    cwd=tmp_path,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 1
  assert done.stderr.count("\n") == 1
  assert "of another machine (other num_devices)" in done.stderr
