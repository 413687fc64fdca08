"""SIGTERM is heard at once, whatever the main thread is busy with."""

import pathlib
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).parents[2]

# Seconds without a line of Python, as while a program is compiled.
BUSY = """
import hashlib
from prm_jax.runtime import preemption

with preemption.noticed():
  print("busy", flush=True)
  hashlib.pbkdf2_hmac("sha256", b"", b"", {rounds})
  preemption.check()
print("went on")
"""


def _start(rounds):
  process = subprocess.Popen(
    [sys.executable, "-c", BUSY.format(rounds=rounds)],
    cwd=ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  assert process.stdout.readline() == "busy\n"
  time.sleep(0.1)
  return process


def test_one_sigterm_ends_at_the_next_safe_place_and_is_answered_at_once():
  process = _start(3_000_000)
  process.send_signal(signal.SIGTERM)
  said = process.stderr.readline()
  assert process.poll() is None
  assert said.startswith("SIGTERM: ending at the next safe place")
  out, err = process.communicate(timeout=60)
  assert (process.returncode, out, err) == (42, "", "")


def test_a_second_sigterm_waits_for_nothing():
  process = _start(50_000_000)
  for _ in range(2):
    process.send_signal(signal.SIGTERM)
    time.sleep(0.1)
  begin = time.monotonic()
  out, err = process.communicate(timeout=60)
  assert process.returncode == 128 + signal.SIGTERM
  assert time.monotonic() - begin < 8  # all rounds take 13 s
  assert out == "" and err.count("SIGTERM") == 1


def test_other_signals_and_those_outside_are_as_they_were():
  code = (
    "import os, signal\n"
    "from prm_jax.runtime import preemption\n"
    # A job in the background ignores Ctrl-C from its birth.
    "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "for _ in range(2):\n"
    "  with preemption.noticed():\n"
    "    with preemption.noticed():\n"
    "      try:\n"
    "        os.kill(os.getpid(), signal.SIGINT)\n"
    "      except KeyboardInterrupt:\n"
    "        print('interrupted')\n"
    "    preemption.check()\n"
    "assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL\n"
    "assert signal.set_wakeup_fd(-1) == -1\n"
    "os.kill(os.getpid(), signal.SIGTERM)\n"
  )
  done = subprocess.run(
    [sys.executable, "-c", code],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
    timeout=60,
  )
  assert done.returncode == -signal.SIGTERM, done.stderr
  assert done.stdout == "interrupted\ninterrupted\n" and not done.stderr
