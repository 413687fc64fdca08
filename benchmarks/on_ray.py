"""What a Ray cluster of this machine costs: one process, and two workers.

Scores short solutions of the testbed with `prm-jax score`, in this process's
way and with --engine=ray, in turns, each a whole command from its start: reading,
loading, compiling, scoring, writing. The bytes must be the same. The memory is
that of the process that was started, which with --engine=ray is the driver.
"""

import argparse
import dataclasses
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np
import results

from prm_jax import errors
from prm_jax.records import jsonl
from prm_jax.testbed import arithmetic

SAMPLES = 4  # of each problem


def solutions(path: pathlib.Path, num: int) -> int:
  """Writes solutions of the testbed; returns how many."""
  random = np.random.default_rng(0)
  task = arithmetic.Task(max_turns=6)
  problems = arithmetic.problems(num // SAMPLES, "train", task, random)
  return jsonl.write_solutions(
    path,
    (
      dataclasses.replace(arithmetic.solve(p, random, task), id=f"{p.id}/{n}")
      for p in problems
      for n in range(SAMPLES)
    ),
  )


def scored(
  args: argparse.Namespace,
  given: pathlib.Path,
  output: pathlib.Path,
  *more: str,
) -> dict[str, Any]:
  """Returns the seconds of a command, and its memory each second, in MiB."""
  options = (f"--checkpoint={args.prm}", f"--input={given}")
  command = [sys.executable, "-m", "prm_jax", "score", *options]
  begun, memory = time.perf_counter(), []
  process = subprocess.Popen(
    [*command, f"--output={output}", *more], stdout=subprocess.DEVNULL
  )
  while process.poll() is None:
    memory.append(_resident_mib(process.pid))
    time.sleep(1)
  if process.returncode:
    raise errors.InputError(f"prm-jax score: exit code {process.returncode}")
  return dict(seconds=time.perf_counter() - begun, memory_mib=memory)


def _resident_mib(pid: int) -> int:
  try:
    pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
  except (OSError, IndexError):  # it has ended
    return 0
  return pages * os.sysconf("SC_PAGE_SIZE") >> 20


def measure(args: argparse.Namespace) -> dict[str, Any]:
  found: dict[str, list[dict[str, Any]]] = dict(one_process=[], ray=[])
  with tempfile.TemporaryDirectory() as folder:
    given = pathlib.Path(folder) / "given.jsonl"
    num = solutions(given, args.solutions)
    for i in range(args.rounds):
      one, many = given.with_name(f"one{i}"), given.with_name(f"ray{i}")
      found["one_process"].append(scored(args, given, one))
      workers = f"--workers={args.workers}"
      found["ray"].append(scored(args, given, many, "--engine=ray", workers))
      if one.read_bytes() != many.read_bytes():
        raise errors.InputError("the cluster wrote other bytes")
  ratios = [
    many["seconds"] / one["seconds"]
    for one, many in zip(found["one_process"], found["ray"])
  ]
  return dict(solutions=num, ratio_of_seconds=ratios, **found)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--prm", default="runs/demo/prm")
  parser.add_argument("--solutions", type=int, default=100_000)
  parser.add_argument("--workers", type=int, default=2)
  parser.add_argument("--rounds", type=int, default=3)
  parser.add_argument("--output", type=pathlib.Path)
  args = parser.parse_args()
  found = results.provenance("on_ray.py", args) | measure(args)
  for name in ("one_process", "ray"):
    for x in found[name]:
      most = max(x["memory_mib"])
      print(f"{name}: {x['seconds']:.1f} s, at most {most} MiB")
  print("ratio:", *(f"{x:.2f}" for x in found["ratio_of_seconds"]))
  results.finish(found, args.output)


if __name__ == "__main__":
  results.run(main)
