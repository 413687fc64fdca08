"""The whole of `prm-jax check-device --quick`, killed on its way."""

import json
import os
import resource
import signal
import subprocess
import sys
import time

import pytest
import real_runs

from prm_jax.device_check import results
from prm_jax.device_check import verdict

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

# Not the tests' own flags: what a person's machine does.
ENVIRONMENT = {
  k: v
  for k, v in os.environ.items()
  if not k.startswith(("JAX_", "XLA_")) or k == "XLA_PYTHON_CLIENT_MEM_FRACTION"
} | dict(PYTHONPATH=str(real_runs.ROOT), JAX_PLATFORMS="cpu")


def _command(output, *words):
  call = [sys.executable, "-P", "-m", "prm_jax", "check-device"]
  return [*call, f"--output={output}", *words]


def _cpu_s():
  used = resource.getrusage(resource.RUSAGE_CHILDREN)
  return used.ru_utime + used.ru_stime


def _workers(output):
  """Returns the worker processes that are there."""
  listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True)
  return [x for x in listed.stdout.splitlines() if "device_check.worker" in x]


def test_quick_killed_in_the_middle_resumes_and_takes_three_minutes_at_most(
  tmp_path,
):
  output, before_s = tmp_path / "check.json", _cpu_s()
  process = subprocess.Popen(
    _command(output, "--quick"), env=ENVIRONMENT, cwd=tmp_path
  )
  until = time.monotonic() + 300
  while not output.exists() or len(results.read(output).results) < 8:
    assert process.poll() is None and time.monotonic() < until
    time.sleep(0.05)
  process.send_signal(signal.SIGKILL)
  process.wait()
  kept = results.read(output).results
  assert len(kept) >= 8 and results.read(output).verdict is None
  until = time.monotonic() + 30
  while _workers(output):  # it ends when its standard input does
    assert time.monotonic() < until
    time.sleep(0.05)

  done = subprocess.run(
    _command(output, "--quick"),
    env=ENVIRONMENT,
    cwd=tmp_path,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  lines = done.stdout.splitlines()
  assert lines[0] == f"resumes {output}: {len(kept)} checks done"
  assert f"quick: {verdict.RIGHT}" in done.stdout
  record = results.read(output)
  assert record.results[: len(kept)] == kept
  required = {name for name, needed in record.planned if needed}
  assert required <= record.done
  # On two idle cores less than that many seconds pass.
  assert _cpu_s() - before_s + sum(r.seconds for r in kept) < 2 * 180
  assert sum(r.seconds for r in record.results) < 180 or os.getloadavg()[0] > 2


def test_eight_simulated_devices_send_shard_and_resume_rightly(tmp_path):
  output = tmp_path / "check.json"
  flags = "--xla_force_host_platform_device_count=8"
  environment = ENVIRONMENT | dict(XLA_FLAGS=flags)
  # More meshes: tests/device_check/test_device_models.py
  sharded = "training.sharded_is_one_device.fsdp"
  only = f"--only=machine,{sharded}"
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
  for name in ("all_reduce", "permute"):
    assert statuses[f"machine.{name}"] == "pass"
  assert statuses[sharded] == "pass"
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
