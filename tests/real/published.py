"""Published weights, commands on them, and what a command took."""

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

ROOT = pathlib.Path(__file__).parents[2]
HERE = pathlib.Path(__file__).parent
SMOL, QWEN, GEMMA = "smollm2-135m", "qwen2.5-coder-0.5b", "gemma3-270m"
# As a user has it: none of the flags that other tests compile with.
ENVIRONMENT = {
  name: value
  for name, value in os.environ.items()
  if name not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")
} | dict(PYTHONPATH=str(ROOT), JAX_PLATFORMS="cpu", OMP_WAIT_POLICY="PASSIVE")

# Starts a command and writes what it took: a process's ru_maxrss is at least
# what its parent held at the start, and the parent of the tests holds torch.
_MEASURED = """
import json, os, subprocess, sys
process = subprocess.Popen(sys.argv[2:])
_, status, took = os.wait4(process.pid, 0)
with open(sys.argv[1], "w") as f:
  json.dump([took.ru_utime + took.ru_stime, took.ru_maxrss * 1024 / 1e9], f)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def folder_of(weights: pathlib.Path, name: str) -> pathlib.Path:
  """Returns a model's folder, and prints which weights the test runs on."""
  folder = weights / name
  if not (folder / "config.json").is_file():
    pytest.skip(f"PRM_JAX_WEIGHTS={weights} holds no {name}")
  for path in sorted(folder.glob("*.safetensors")):
    print(f"{name}: {path.name} sha256:{digest(path)}")
  return folder


@functools.cache
def digest(path: pathlib.Path) -> str:
  with path.open("rb") as f:
    return hashlib.file_digest(f, "sha256").hexdigest()


@dataclasses.dataclass(frozen=True)
class Run:
  """What a command printed, and took.

  Args:
    code: Its exit code.
    out: Its standard output.
    err: Its standard error.
    cpu_s: Its CPU seconds, user and system.
    peak_gb: The largest resident set, in 10^9 bytes.
  """

  code: int
  out: str
  err: str
  cpu_s: float
  peak_gb: float


def run(*words, code: int = 0) -> Run:
  """Runs Python with arguments; prints what it took, and checks its code."""
  with tempfile.NamedTemporaryFile("r") as took:
    process = subprocess.run(
      [
        *(sys.executable, "-c", _MEASURED, took.name),
        *(sys.executable, *map(str, words)),
      ],
      capture_output=True,
      text=True,
      env=ENVIRONMENT,
      cwd=ROOT,
      check=False,
    )
    done = Run(
      process.returncode, process.stdout, process.stderr, *json.load(took)
    )
  shown = " ".join(map(str, words[1:4]))
  print(f"{shown}: {done.cpu_s:.1f} CPU s, peak {done.peak_gb:.2f} GB")
  assert done.code == code, (words, done.out, done.err)
  return done


def command(*words, code: int = 0) -> Run:
  """Runs a command of prm-jax in a process of its own."""
  return run("-m", "prm_jax", *words, code=code)


def asked(script: str, *words) -> dict:
  """Returns the JSON that a script beside this file prints last."""
  done = run(HERE / script, *words)
  return json.loads(done.out.splitlines()[-1])
