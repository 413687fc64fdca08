"""Draws and rollouts of this code against those of an older checkout, on a CPU.

  python benchmarks/decode_against.py --against=FOLDER [--output=FILE]

Each checkout runs in a process of its own, which compiles first; then the two
take turns. FOLDER is a checkout of the code to compare with, as `git worktree
add FOLDER REVISION` makes it. The script stops if the two draw other tokens.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
import functools
import hashlib
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

from flax.core import meta
import jax
import numpy as np
import results

from prm_jax.device_check import model_checks
from prm_jax.device_check import timing
from prm_jax.models import model_config as model_config
from prm_jax.models import transformer
from prm_jax.policy import drawing
from prm_jax.policy import rollout_engine as engine_lib

HERE = pathlib.Path(__file__)
# The name of a comparison: the case of the older checkout, and that of ours.
COMPARED = {
  "draws, top_k=20": ("top_k", "top_k"),
  "draws, published sampling": ("published", "published"),
  "draws, top_p=0.95": ("top_p", "top_p"),
  "rollouts of a stack of 30M": ("stack", "stack"),
  "RL's rollouts, budget 52": ("reserved_52", "grown_52"),
  "RL's rollouts, budget 160": ("reserved_160", "grown_160"),
  "RL's rollouts, budget 512": ("reserved_512", "grown_512"),
}
SAMPLINGS = dict(
  top_k=drawing.Sampling(1, top_k=20),
  published=drawing.Sampling(1, 0.7, 0.8, top_k=20),
  top_p=drawing.Sampling(1, top_p=0.95),
)
SMALL = model_config.ModelConfig(512, 256, 4, 4, 2, 64, 704)
LARGE = model_config.ModelConfig(4096, 512, 8, 8, 2, 64, 1536)


def case(name: str) -> Callable[[], list[np.ndarray]]:
  """Returns a function of the tokens that a case draws."""
  if name in SAMPLINGS:
    rng = np.random.default_rng(0)
    logits = 3 * rng.standard_normal((16, 4, 151_936), np.float32)
    keys = jax.random.split(jax.random.key(0), (16, 4))
    draw = jax.jit(functools.partial(drawing.draw, sampling=SAMPLINGS[name]))
    put = jax.device_put(logits)
    return lambda: [np.asarray(draw(put, keys)[0])]
  if name == "stack":
    return rollouts(LARGE, slots=16, budget=32, mean=24, reserve=False)
  kind, budget = name.split("_")
  return rollouts(
    SMALL,
    slots=64,
    budget=int(budget),
    mean=int(budget) // 3,
    reserve=kind == "reserved",
  )


def rollouts(
  model: model_config.ModelConfig,
  *,
  slots: int,
  budget: int,
  mean: int,
  reserve: bool,
) -> Callable[[], list[np.ndarray]]:
  """Returns a function of the completions of a stack of float32 layers."""
  init = functools.partial(transformer.init, jax.random.key(0), model, ("lm",))
  params = meta.unbox(init())
  rng = np.random.default_rng(0)
  lengths = rng.lognormal(np.log(mean) - 0.11, 0.47, 2 * slots)
  requests = [
    engine_lib.Request(str(i), rng.integers(0, model.vocab_size, 48), 1, int(n))
    for i, n in enumerate(lengths.clip(1, budget))
  ]
  sampling = drawing.Sampling(budget)

  def run() -> list[np.ndarray]:
    # One for each call, as RL has it: its parameters are others each time.
    engine = engine_lib.Engine(
      *(model, params, model_checks.Endless(model.vocab_size)),
      slots=slots,
      reserve=reserve,
    )
    rows, _ = engine.complete(requests, sampling, jax.random.key(0))
    return [completion.tokens for row in rows for completion in row]

  return run


def answer() -> None:
  """Runs the cases that the standard input names, and prints what they cost."""
  runs: dict[str, Callable[[], list[np.ndarray]]] = {}
  for line in sys.stdin:
    name = line.strip()
    if name not in runs:
      runs[name] = case(name)
      runs[name]()  # compiles
    drawn: list[np.ndarray] = []

    def run(name: str = name, drawn: list[np.ndarray] = drawn) -> None:
      drawn[:] = runs[name]()

    (cost,) = timing.alternate({name: run}, 1)[name]
    digest = hashlib.sha256(b"".join(x.tobytes() for x in drawn)).hexdigest()
    print(json.dumps([*cost, digest]), flush=True)


class Checkout:
  """A process that runs the cases with the code of one folder."""

  def __init__(self, folder: pathlib.Path):
    self.process = subprocess.Popen(
      [sys.executable, HERE, "--answer"],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      env={**os.environ, "PYTHONPATH": str(folder), "JAX_PLATFORMS": "cpu"},
    )

  def run(self, name: str) -> tuple[timing.Cost, str]:
    """Returns what a case costs, and the digest of its tokens."""
    assert self.process.stdin is not None
    assert self.process.stdout is not None
    print(name, file=self.process.stdin, flush=True)
    wall, cpu, digest = json.loads(self.process.stdout.readline())
    return timing.Cost(wall, cpu), digest


def measure(args: argparse.Namespace) -> dict[str, Any]:
  """Returns the older code's time over ours in each case."""
  older, ours = Checkout(args.against), Checkout(HERE.resolve().parents[1])
  ratios = {}
  for name, (before, now) in COMPARED.items():
    older.run(before), ours.run(now)  # warm
    pairs = [(older.run(before), ours.run(now)) for _ in range(args.rounds)]
    if len({digest for pair in pairs for _, digest in pair}) > 1:
      sys.exit(f"{name}: the two draw other tokens")
    slow, fast = ([pair[i][0] for pair in pairs] for i in (0, 1))
    ratios[name] = timing.ratio(slow, fast)
    print(f"{name:30} {ratios[name]}", flush=True)
  return dict(older_over_ours=ratios)


def arguments() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--against", type=pathlib.Path, help="a checkout")
  parser.add_argument("--output", type=pathlib.Path, help="results as JSON")
  parser.add_argument("--rounds", type=int, default=7)
  parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
  return parser


def main() -> None:
  args = arguments().parse_args()
  if args.answer:
    answer()
    return
  if not args.against:
    sys.exit("decode_against.py: give --against, the checkout to compare with")
  result = results.provenance("decode_against.py", args)
  result |= measure(args)
  results.finish(result, args.output)


if __name__ == "__main__":
  results.run(main)
