"""What stands still ends; what goes on is left alone."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]

HANGS = """
import threading, time
from prm_jax.runtime import watchdog

def waits_for_another():
  threading.Event().wait()

with watchdog.watching(1) as alive:
  for _ in range(30):
    time.sleep(0.05)
    alive()
  print("went on", flush=True)
  waits_for_another()
"""
GOES_ON = """
import time
from prm_jax.runtime import watchdog

with watchdog.watching(1) as alive:
  for _ in range(30):
    time.sleep(0.05)
    alive()
time.sleep(1.5)  # nobody is watched any more
with watchdog.watching(0):
  time.sleep(0.1)
print("done")
"""


def _run(code):
  return subprocess.run(
    [sys.executable, "-c", code],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
    timeout=60,
  )


def test_a_process_that_hangs_says_where_and_ends_to_be_started_again():
  done = _run(HANGS)
  assert done.returncode == 42
  assert done.stdout == "went on\n"
  assert "nothing was done for 1 s" in done.stderr
  assert "waits_for_another" in done.stderr


def test_a_process_that_goes_on_or_has_left_is_not_ended():
  done = _run(GOES_ON)
  assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
