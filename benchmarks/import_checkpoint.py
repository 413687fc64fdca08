"""What `prm-jax import` and `prm-jax score` take of host memory, as commands.

  python benchmarks/import_checkpoint.py [--output=FILE]

It makes up a PRM in the shape of Llama 3.2 1B with random bfloat16 weights, in
a temporary folder (5 GB of disk), imports it and scores two solutions. Each
command runs in a process of its own, whose peak is VmHWM of Linux; `base` is a
process that imports the same modules and starts jax. Nothing here asserts a
number. benchmarks/README.md says what each one means. Linux only.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any

import jax
import load_checkpoint
import ml_dtypes
import numpy as np
import results
import tokenizers

from prm_jax import huggingface
from prm_jax.device_check import timing
from prm_jax.huggingface import exchange
from prm_jax.jobs import score
from prm_jax.runtime import compilation_cache

PARTS = ("base", "import", "score")
_LARGEST = "bytes of the largest stacked parameter"


def make_checkpoint(folder: pathlib.Path, seed: int) -> dict[str, int]:
  """Writes a PRM of random weights; returns its sizes in bytes."""
  model = load_checkpoint.MODEL
  random = np.random.default_rng(seed)
  shapes = huggingface.tensor_shapes("llama", model, lm_head=False)
  shapes |= {"score.weight": (2, model.d_model), "score.bias": (2,)}

  def tensors() -> Iterator[tuple[str, np.ndarray]]:
    for name, shape in shapes.items():
      x = random.standard_normal(shape, np.float32)
      yield name, (0.02 * x).astype(ml_dtypes.bfloat16)

  num_bytes = huggingface.save(
    folder,
    "llama",
    model,
    tensors(),
    max_shard_bytes=10**9,
    architecture="LlamaForTokenClassification",
  )
  alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
  vocabulary = {character: i for i, character in enumerate(alphabet)}
  tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(False)
  tokenizer.decoder = tokenizers.decoders.ByteLevel()
  tokenizer.save(str(folder / "tokenizer.json"))
  params = jax.tree.leaves(huggingface.abstract_params(model, lm_head=False))
  return {
    "bytes": num_bytes,
    "tensors": len(shapes),
    _LARGEST: 2 * max(x.size for x in params),
  }


def _solutions(path: pathlib.Path) -> None:
  steps = ["She starts with 3 eggs and buys 12.", "3 + 12 = 15."]
  rows = [
    dict(id=str(i), problem="How many eggs has she now?", steps=steps[: i + 1])
    for i in range(2)
  ]
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def run_part(name: str, folder: pathlib.Path) -> None:
  """Does what a command of ours does; prints what this process has taken."""
  wall, cpu = time.perf_counter(), time.process_time()
  compilation_cache.enable()
  if name == "base":
    jax.block_until_ready(jax.numpy.zeros(8) + 1)
  elif name == "import":
    exchange.Import(str(folder / "theirs"), folder / "ours").run()
  else:
    job = score.ScoreJob(folder / "solutions.jsonl", folder / "scores.jsonl")
    score.Score(folder / "ours").run(job)
  took = [time.perf_counter() - wall, time.process_time() - cpu]
  print(json.dumps(dict(took=took, peak=load_checkpoint.status("VmHWM"))))


def _in_a_process(name: str, folder: pathlib.Path) -> dict[str, Any]:
  command = [sys.executable, __file__, "--child", name, str(folder)]
  return json.loads(subprocess.check_output(command).splitlines()[-1])


def measure(folder: pathlib.Path, seed: int, rounds: int) -> dict[str, Any]:
  """Returns sizes and costs; the most memory of all rounds."""
  sizes = make_checkpoint(folder / "theirs", seed)
  _solutions(folder / "solutions.jsonl")
  records: dict[str, list[dict[str, Any]]] = {name: [] for name in PARTS}
  for _ in range(rounds):
    shutil.rmtree(folder / "ours", ignore_errors=True)
    for name in PARTS:
      records[name].append(_in_a_process(name, folder))
  peak = {name: max(x["peak"] for x in rows) for name, rows in records.items()}
  goal = sizes["bytes"] + 2 * sizes[_LARGEST]
  saved = sum(
    path.stat().st_size
    for path in (folder / "ours").rglob("*")
    if path.is_file()
  )

  def memory(name: str) -> dict[str, Any]:
    beyond = peak[name] - peak["base"]
    return {
      "bytes at the peak": peak[name],
      "bytes beyond base": beyond,
      "over checkpoint": beyond / sizes["bytes"],
      "over checkpoint + 2 largest parameters": beyond / goal,
    }

  return dict(
    backend=jax.default_backend(),
    counts={
      "checkpoint": sizes | {"bytes of the checkpoint folder": saved},
      "base, the most of all rounds": {"bytes at the peak": peak["base"]},
      "import": memory("import"),
      "score": memory("score"),
    },
    measured={
      f"{name}, s": timing.seconds([timing.Cost(*x["took"]) for x in rows])
      for name, rows in records.items()
      if name != "base"
    },
  )


def main() -> None:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--output", type=pathlib.Path, help="results as JSON")
  parser.add_argument("--rounds", type=int, default=3)
  parser.add_argument("--seed", type=int, default=0)
  if sys.argv[1:2] == ["--child"]:
    run_part(sys.argv[2], pathlib.Path(sys.argv[3]))
    return
  args = parser.parse_args()
  if args.rounds < 1:
    parser.error("--rounds: give 1 or more")
  result = results.provenance("import_checkpoint.py", args)
  with tempfile.TemporaryDirectory(prefix="prm_jax_import_") as folder:
    result |= measure(pathlib.Path(folder), args.seed, args.rounds)
  print(results.show(result))
  results.finish(result, args.output)


if __name__ == "__main__":
  results.run(main)
