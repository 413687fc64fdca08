"""CPU seconds of one `prm-jax score` of 20 solutions, first call and later ones.

  python benchmarks/small_job.py [--calls=N] [--checkpoint=DIR] [--output=FILE.json]

The PRM has the demo's shape; without --checkpoint it is one update old. The
first call starts with an empty cache of compiled programs and the later ones
find what it left there. Each is a process of its own, and all must write the
same bytes. `without_cache` are calls with PRM_JAX_COMPILATION_CACHE=0.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np
import results

from prm_jax import errors
from prm_jax.demo import default_config
from prm_jax.demo import demo_run_config as demo_run_config
from prm_jax.records import jsonl
from prm_jax.records import sources
from prm_jax.runtime import compilation_cache
from prm_jax.runtime import config_files
from prm_jax.testbed import arithmetic
from prm_jax.training import train_run

SOLUTIONS = 20


def arguments() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--calls", type=int, default=7)
  parser.add_argument("--checkpoint", type=pathlib.Path)
  parser.add_argument("--output", type=pathlib.Path)
  return parser


def make_checkpoint(folder: pathlib.Path) -> None:
  """Makes a PRM of the demo's shape."""
  config = demo_run_config.from_config(
    config_files.load(default_config.__file__)
  )
  run = config.runs["prm"]
  fit = dataclasses.replace(run.fit, steps=1, checkpoint_every=0)
  solutions = solved(200)
  words = sources.TokenizerConfig(
    vocab_size=config.vocabulary, model_type="word"
  )
  train_run.train(
    dataclasses.replace(run, fit=fit),
    solutions,
    sources.make_tokenizer(words, solutions),
    folder,
  )


def solved(count: int) -> list[Any]:
  """Returns labelled solutions of the demo's problems."""
  random, task = np.random.default_rng(0), arithmetic.Task()
  return [
    arithmetic.judge(arithmetic.solve(problem, random, task))
    for problem in arithmetic.problems(count, "train", task, random)
  ]


def call(command: list[str], environment: dict[str, str]) -> dict[str, float]:
  """Returns the CPU and wall seconds of a command."""
  before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
  done = subprocess.run(
    command, env=environment, capture_output=True, text=True, check=False
  )
  wall = time.time() - start
  after = resource.getrusage(resource.RUSAGE_CHILDREN)
  if done.returncode:
    raise errors.InputError(f"{' '.join(command)}: {done.stderr}")
  cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
  return dict(cpu_s=cpu, wall_s=wall)


def measure(folder: pathlib.Path, args: argparse.Namespace) -> dict[str, Any]:
  """Returns the seconds of the calls, least, median and largest."""
  checkpoint = args.checkpoint or folder / "prm"
  if args.checkpoint is None:
    make_checkpoint(checkpoint)
  jsonl.write_solutions(folder / "solutions.jsonl", solved(SOLUTIONS))
  scores = folder / "scores.jsonl"
  command = [
    *(sys.executable, "-m", "prm_jax", "score", f"--checkpoint={checkpoint}"),
    *(f"--input={folder / 'solutions.jsonl'}", f"--output={scores}"),
  ]
  plain = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
  plain |= dict(XDG_CACHE_HOME=str(folder / "cache"))
  off = plain | {compilation_cache.SWITCH: "0"}
  first = {k: round(v, 2) for k, v in call(command, plain).items()}
  written = scores.read_bytes()
  calls: dict[str, list[dict[str, float]]] = dict(later=[], without_cache=[])
  for _ in range(args.calls):
    for name, environment in (("later", plain), ("without_cache", off)):
      calls[name].append(call(command, environment))
      if scores.read_bytes() != written:
        raise errors.InputError(f"{name}: other bytes than the first call's")
  found: dict[str, Any] = dict(first=first)
  for name, times in calls.items():
    found[name] = {
      clock: [
        round(float(f([x[clock] for x in times])), 2)
        for f in (min, np.median, max)
      ]
      for clock in ("cpu_s", "wall_s")
    }
  return found


def main() -> None:
  args = arguments().parse_args()
  result = results.provenance("small_job.py", args)
  with tempfile.TemporaryDirectory() as folder:
    result["seconds"] = measure(pathlib.Path(folder), args)
  for name, times in result["seconds"].items():
    print(name, *(f"{clock} {value}" for clock, value in times.items()))
  results.finish(result, args.output)


if __name__ == "__main__":
  results.run(main)
