"""What importing a checkpoint takes: host memory, seconds, GB/s.

  python benchmarks/load_checkpoint.py [--checkpoint=DIR] [--output=FILE]

Without --checkpoint it makes one up in a temporary folder: a Llama of about
1.2 billion random bfloat16 weights, in shards. Every round imports it
(prm_jax.huggingface) in a process of its own. Nothing here asserts a number.
benchmarks/README.md says what each one means. Linux only.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
import json
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any

import jax
import ml_dtypes
import numpy as np
import results

from prm_jax import huggingface
from prm_jax.device_check import timing
from prm_jax.models import model_config as model_config

# The shape of Llama 3.2 1B.
MODEL = model_config.ModelConfig(
  vocab_size=128_256,
  d_model=2048,
  num_layers=16,
  num_heads=32,
  num_kv_heads=8,
  head_dim=64,
  d_ff=8192,
  rope_theta=500_000.0,
  norm_epsilon=1e-5,
  rope_scaling="llama3",
  rope_factor=32.0,
)


def make_checkpoint(folder: pathlib.Path, seed: int) -> None:
  """Writes a checkpoint of random weights, without holding them all."""
  random = np.random.default_rng(seed)

  def tensors() -> Iterator[tuple[str, np.ndarray]]:
    for name, shape in huggingface.tensor_shapes("llama", MODEL).items():
      x = random.standard_normal(shape, np.float32)
      yield name, (0.02 * x).astype(ml_dtypes.bfloat16)

  huggingface.save(folder, "llama", MODEL, tensors(), max_shard_bytes=10**9)


def status(field: str) -> int:
  """Returns a size of this process in bytes, as Linux counts it (VmHWM, ...)."""
  for line in pathlib.Path("/proc/self/status").read_text().splitlines():
    if line.startswith(f"{field}:"):
      return int(line.split()[1]) * 1024
  raise KeyError(field)


def _parameters() -> int:
  """Returns the bytes of all float32 arrays: parameters, whole or half full."""
  arrays = [x for x in jax.live_arrays() if x.dtype == np.float32]
  return sum(x.nbytes for x in arrays)


class Meter:
  """The most host memory beyond the parameters, from one read to the next.

  On a CPU the parameters lie in host memory, too. They are subtracted as they
  come, not at the end: else what they take last would hide what was held
  before. before: the process's memory before the import.
  """

  def __init__(self):
    self.before, self.beyond = status("VmRSS"), 0

  def lap(self) -> None:
    """Takes the highest since the last lap; starts a new one."""
    on_host = _parameters() if jax.default_backend() == "cpu" else 0
    highest = status("VmHWM") - self.before - on_host
    self.beyond = max(self.beyond, highest)
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def import_once(folder: pathlib.Path) -> dict[str, Any]:
  """Returns what one import in this process took."""
  jax.block_until_ready(jax.numpy.zeros(8) + 1)  # the backend is up
  read = huggingface.Tensors.read
  meter = Meter()

  def metered(self, name, index=None):
    meter.lap()
    return read(self, name, index)

  huggingface.Tensors.read = metered
  wall, cpu = time.perf_counter(), time.process_time()
  source = huggingface.read_config(folder)
  tensors = huggingface.open_tensors(folder)
  params, left = huggingface.load_params(tensors, source.family, source.model)
  took = [time.perf_counter() - wall, time.process_time() - cpu]
  meter.lap()
  assert not left, f"tensors that are not the model's: {left}"
  return dict(
    took=took,
    checkpoint=tensors.num_bytes,
    largest=max(map(tensors.size, tensors.names)),
    tensors=len(tensors.names),
    parameters=sum(x.nbytes for x in jax.tree.leaves(params)),
    before=meter.before,
    beyond=meter.beyond,
    peak=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    backend=jax.default_backend(),
  )


def measure(folder: pathlib.Path, rounds: int) -> dict[str, Any]:
  """Returns counts and costs; each round is a process of its own."""
  command = [sys.executable, __file__, f"--child={folder}"]
  records = [
    json.loads(subprocess.check_output(command).splitlines()[-1])
    for _ in range(rounds)
  ]
  first, costs = records[0], [timing.Cost(*x["took"]) for x in records]

  def most(name: str) -> int:
    return max(x[name] for x in records)

  return dict(
    backend=first["backend"],
    counts={
      "checkpoint": {
        "bytes": first["checkpoint"],
        "bytes of the largest tensor": first["largest"],
        "tensors": first["tensors"],
        "bytes as float32 parameters": first["parameters"],
      },
      "host memory, the most of all rounds": {
        "bytes beyond the parameters": most("beyond"),
        "over checkpoint + largest tensor": most("beyond")
        / (first["checkpoint"] + first["largest"]),
        "over the largest tensor": most("beyond") / first["largest"],
        "bytes of the process at its peak": most("peak"),
        "bytes of it before the import": most("before"),
      },
    },
    measured={
      "s": timing.seconds(costs),
      "GB/s of the checkpoint": timing.rate(first["checkpoint"] / 1e9, costs),
    },
  )


def arguments() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--checkpoint", type=pathlib.Path, help="a folder")
  parser.add_argument("--output", type=pathlib.Path, help="results as JSON")
  parser.add_argument("--rounds", type=int, default=3)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--child", type=pathlib.Path, help=argparse.SUPPRESS)
  return parser


def main() -> None:
  parser = arguments()
  args = parser.parse_args()
  if args.child:
    print(json.dumps(import_once(args.child)))
    return
  if args.rounds < 1:
    parser.error("--rounds: give 1 or more")
  result, made = results.provenance("load_checkpoint.py", args), None
  if args.checkpoint is None:
    made = pathlib.Path(tempfile.mkdtemp(prefix="prm_jax_checkpoint_"))
  try:
    if made:
      make_checkpoint(made, args.seed)
    result |= measure(args.checkpoint or made, args.rounds)
  finally:
    if made:
      shutil.rmtree(made)
  print(results.show(result))
  results.finish(result, args.output)


if __name__ == "__main__":
  results.run(main)
