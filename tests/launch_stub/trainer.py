"""Stands in for the trainer: a step's state is a digest of the one before.

  trainer.py --workdir=DIR --steps=N [--exit=PROCESS:CODE] [--stint=K]
    [--until=FILE]

Process 0 commits every second step by a rename, the others wait for its end.
On SIGTERM it commits and exits 42, as after K steps; on a second one it exits
at once. With --until it ends when the file exists. It reads the environment of
the launchers: JAX_PROCESS_ID, JAX_NUM_PROCESSES, JAX_COORDINATOR_ADDRESS.
"""

import hashlib
import os
import pathlib
import shutil
import signal
import sys
import time

options = dict(w.removeprefix("--").split("=", 1) for w in sys.argv[1:])
workdir = pathlib.Path(options["workdir"])
steps = int(options["steps"])
process = int(os.environ.get("JAX_PROCESS_ID", 0))
signals = []


def terminate(*_):
  signals.append(1)
  if len(signals) > 1:
    os._exit(99)


def commit(step, state):
  target = workdir / "checkpoints" / str(step)
  if target.exists():
    return
  part = target.with_name(f"{step}.part")
  shutil.rmtree(part, ignore_errors=True)
  part.mkdir(parents=True)
  (part / "state").write_text(state)
  part.rename(target)


def restore():
  names = [p.name for p in (workdir / "checkpoints").glob("*")]
  saved = max((int(n) for n in names if n.isdecimal()), default=0)
  if not saved:
    return 0, "start"
  return saved, (workdir / "checkpoints" / str(saved) / "state").read_text()


def lead():
  step, state = restore()
  stint = step + int(options.get("stint", steps))
  print(f"resumes after step {step}", flush=True)
  while step < steps:
    step += 1
    state = hashlib.sha256(f"{state} {step}".encode()).hexdigest()
    with open(workdir / "metrics", "a") as log:
      log.write(f"{step} {state}\n")
    time.sleep(0.03)
    if signals:
      time.sleep(0.3)  # A save takes time; faults may come during it.
    if step % 2 == 0 or signals or step == stint:
      commit(step, state)
    if signals or (step == stint and step < steps):
      return 42
  while "until" in options and not pathlib.Path(options["until"]).exists():
    time.sleep(0.02)
    if signals:
      return 42
  (workdir / "result").write_text(state)
  return 0


def wait_for_it():
  while not (workdir / "result").exists():
    time.sleep(0.02)
    if signals:
      return 42
  return 0


signal.signal(signal.SIGTERM, terminate)
workdir.mkdir(parents=True, exist_ok=True)
names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
with open(workdir / f"environment-{process}", "a") as log:
  log.write(" ".join(os.environ.get(n, "-") for n in names) + "\n")
with open(workdir / "secret-seen", "a") as log:
  log.write(hashlib.sha256(os.environ.get("HF_TOKEN", "").encode()).hexdigest())
which, _, code = options.get("exit", "-1:0").partition(":")
if int(which) == process:
  sys.exit(int(code))
sys.exit(wait_for_it() if process else lead())
