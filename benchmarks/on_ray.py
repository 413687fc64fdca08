"""What a Ray cluster of this machine costs: one process, and two workers.

Scores short solutions of the testbed with `prm-jax score` in three ways, in
turns: in one process, with --engine=ray on a cluster that runs already, and on
one that the command starts and ends. Each is a whole command from its start:
reading, loading, compiling, scoring, writing. The bytes must be the same. The
memory is that of the process that was started, which with --engine=ray is the
driver.
"""

import argparse
from collections.abc import Iterator
import contextlib
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
NAMES = "one_process", "ray", "ray_own"


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
  address: str = "",
) -> dict[str, Any]:
  """Returns the seconds of a command, and its memory each second, in MiB."""
  options = (f"--checkpoint={args.prm}", f"--input={given}")
  command = [sys.executable, "-m", "prm_jax", "score", *options]
  begun, memory = time.perf_counter(), []
  process = subprocess.Popen(
    [*command, f"--output={output}", *more],
    stdout=subprocess.DEVNULL,
    env=os.environ | (dict(RAY_ADDRESS=address) if address else {}),
  )
  while True:
    memory.append(_resident_mib(process.pid))
    with contextlib.suppress(subprocess.TimeoutExpired):
      process.wait(1)
      break
  if process.returncode:
    raise errors.InputError(f"prm-jax score: exit code {process.returncode}")
  return dict(seconds=time.perf_counter() - begun, memory_mib=memory)


def _resident_mib(pid: int) -> int:
  try:
    pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
  except (OSError, IndexError):  # it has ended
    return 0
  return pages * os.sysconf("SC_PAGE_SIZE") >> 20


@contextlib.contextmanager
def cluster(cpus: int) -> Iterator[str]:
  """Yields the address of a cluster of this machine."""
  from ray import cluster_utils

  node = dict(num_cpus=cpus, include_dashboard=False)
  made = cluster_utils.Cluster(initialize_head=True, head_node_args=node)
  try:
    yield made.address
  finally:
    made.shutdown()


def measure(args: argparse.Namespace) -> dict[str, Any]:
  found: dict[str, list[dict[str, Any]]] = {}
  with tempfile.TemporaryDirectory() as folder:
    given = pathlib.Path(folder) / "given.jsonl"
    num = solutions(given, args.solutions)
    on_ray = "--engine=ray", f"--workers={args.workers}"
    for i in range(args.rounds):
      outputs = [given.with_name(f"{i}.{name}") for name in NAMES]
      ran = [scored(args, given, outputs[0])]
      with cluster(args.workers) as address:
        ran.append(scored(args, given, outputs[1], *on_ray, address=address))
      ran.append(scored(args, given, outputs[2], *on_ray))
      for name, one in zip(NAMES, ran, strict=True):
        found.setdefault(name, []).append(one)
      if len({x.read_bytes() for x in outputs}) > 1:
        raise errors.InputError("the cluster wrote other bytes")
  ratios = {
    name: [
      many["seconds"] / one["seconds"]
      for one, many in zip(found[NAMES[0]], found[name], strict=True)
    ]
    for name in NAMES[1:]
  }
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
  for name in NAMES:
    for x in found[name]:
      most = max(x["memory_mib"])
      print(f"{name}: {x['seconds']:.1f} s, at most {most} MiB")
  for name, ratios in found["ratio_of_seconds"].items():
    print(f"{name} / {NAMES[0]}:", *(f"{x:.2f}" for x in ratios))
  results.finish(found, args.output)


if __name__ == "__main__":
  results.run(main)
