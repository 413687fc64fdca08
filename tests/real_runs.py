"""Runs of `prm-jax train` as processes of their own, with signals."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import test_cli
import xla_flags

from prm_jax.records import jsonl

ROOT = pathlib.Path(__file__).parent.parent
ENVIRONMENT = os.environ | dict(
  PYTHONPATH=str(ROOT),
  JAX_PLATFORMS="cpu",
  XLA_FLAGS=xla_flags.FAST_COMPILING,
)
FOUR_DEVICES = ENVIRONMENT | dict(XLA_FLAGS=xla_flags.devices(4))
TWO = (f"{ROOT}/launch/local.sh", "--processes=2", "--devices=2", "--")


def words(folder, name="c", program="prm", steps=40, *options):
  """Writes config and data into a folder; returns what trains with them."""
  data = folder / "mine.jsonl"
  jsonl.write_solutions(data, test_cli._labelled(40))
  config = test_cli._write_config(folder / f"{name}.py", data, program, steps)
  often = config.read_text().replace(
    "log_every=2", "log_every=1, checkpoint_every=10"
  )
  config.write_text(often)
  call = "import sys; from prm_jax.cli import main; sys.exit(main.command())"
  train = [sys.executable, "-c", call, "train", f"--config={config}"]
  return [*train, *options]


def life(command, log, number=0, step=0, environment=ENVIRONMENT):
  """Runs a command, sends it a signal at a step; returns its exit code."""
  with open(log, "w") as f:
    process = subprocess.Popen(
      command, env=environment, stdout=f, stderr=subprocess.STDOUT
    )
    until = time.monotonic() + 250
    try:
      while number and process.poll() is None:
        assert time.monotonic() < until, log.read_text()
        if f" step {step}/" in log.read_text():
          process.send_signal(number)
          break
        time.sleep(0.05)
      return process.wait(timeout=280)
    finally:
      # local.sh tells its processes; it knows no SIGKILL.
      process.send_signal(signal.SIGTERM)


def records(text):
  """Returns the records of a metrics.jsonl, without what a clock said."""
  times = ("time_s", "tokens_per_s", "crc32")  # which is of the times, too
  return [
    {k: v for k, v in json.loads(line).items() if k not in times}
    for line in text.splitlines()
  ]


def assert_close(actual, expected):
  for a, b in zip(actual, expected, strict=True):
    assert a.keys() == b.keys() and a["kind"] == b["kind"]
    numbers = [[x[k] for k in a if k != "kind"] for x in (a, b)]
    np.testing.assert_allclose(*numbers, rtol=1e-4, atol=1e-6)
