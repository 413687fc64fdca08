"""What stands still ends; what goes on is left alone."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]

HANGS = """
import threading, time
from prm_jax.runtime import watchdog

def waits_for_another():
  threading.Event().wait()

with watchdog.watching(1) as alive:
  for _ in range(24):
    time.sleep(0.05)
    alive()
  print("went on", flush=True)
  waits_for_another()
"""
GOES_ON = """
import time
from prm_jax.runtime import watchdog

with watchdog.watching(1) as alive:
  for _ in range(24):
    time.sleep(0.05)
    alive()
time.sleep(1.2)  # nobody is watched any more
with watchdog.watching(0):
  time.sleep(0.1)
print("done")
"""


@pytest.fixture(scope="module")
def started():
  """The processes, which wait most of their time, side by side."""
  made = {
    code: subprocess.Popen(
      [sys.executable, "-c", code],
      cwd=ROOT,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    for code in (HANGS, GOES_ON)
  }
  yield made
  for process in made.values():
    process.kill()


def test_a_process_that_hangs_says_where_and_ends_to_be_started_again(started):
  out, err = started[HANGS].communicate(timeout=60)
  assert started[HANGS].returncode == 42
  assert out == "went on\n"
  assert "nothing was done for 1 s" in err
  assert "waits_for_another" in err


def test_a_process_that_goes_on_or_has_left_is_not_ended(started):
  out, err = started[GOES_ON].communicate(timeout=60)
  assert (started[GOES_ON].returncode, out) == (0, "done\n"), err
