"""Scores of many solutions a problem: ours in three layouts, and transformers.

  pip install -e '.[bench]'
  python benchmarks/score.py [--suite=NAME] [--problems=N] [--output=FILE.json]

  solutions     whole solutions of PRM800K's phase-2 sample
  alternatives  steps that phase 1 rated, each with the path before it
  grow          solutions that grow step by step; see growing.py

64 of each of 100 problems unless told otherwise: `--problems=5` is a twentieth.
All ways score with one model, from the same weights and ids, alternating; the
script stops if two scores of a step differ. Nothing here asserts a time.
benchmarks/README.md says what each number means.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Sequence
import dataclasses
import pathlib
from typing import Any

import growing
import numpy as np
import peer
import results
import train_step

from prm_jax import errors
from prm_jax import schema
from prm_jax.device_check import timing
from prm_jax.rows import packing
from prm_jax.scoring import scorer
from prm_jax.text import encoding

SUITES = dict(
  solutions=train_step.PHASE2,
  alternatives=train_step.PHASE1,
  grow=train_step.PHASE2,
)
PEERS = ("transformers", "transformers_sorted")
TOLERANCE = 1e-4
WHOLE = 6400

Scores = list[list[float]]


# --- What is scored ---------------------------------------------------------


def candidates(
  solutions: Sequence[schema.Solution],
  problems: int,
  each: int,
  seed: int,
  *,
  copies: bool,
) -> tuple[list[schema.Solution], dict[str, int]]:
  """Returns so many solutions of so many problems, and how many are real.

  No two of a problem have the same steps. Where a problem has too few, copies
  of its own are numbered in front of their first step: "(3) ..."; so a copy
  shares no more than the problem with any other. Without `copies` only
  problems that have enough are taken.

  Raises:
    InputError: there aren't so many problems.
  """
  distinct: dict[str, dict[tuple[str, ...], schema.Solution]] = {}
  for s in solutions:
    if s.steps:
      distinct.setdefault(s.problem, {}).setdefault(s.steps, s)
  able = [x for x, of in distinct.items() if copies or len(of) >= each]
  if len(able) < problems:
    raise errors.InputError(
      f"--problems={problems}: the data has {len(able)} with"
      f" {1 if copies else each} solutions or more"
    )
  random = np.random.default_rng(seed)
  chosen, real = [], 0
  for number in random.permutation(len(able))[:problems]:
    own = list(distinct[able[number]].values())
    own = [own[i] for i in random.permutation(len(own))][:each]
    real += len(own)
    for k in range(len(own), each):
      copied = own[k % len(own)]
      steps = (f"({k}) {copied.steps[0]}", *copied.steps[1:])
      own.append(schema.Solution(f"{copied.id}/{k}", copied.problem, steps))
    chosen += own
  return chosen, dict(problems=problems, solutions=len(chosen), real=real)


# --- Ways to score ----------------------------------------------------------


def by_scorer(
  layout: str,
  solutions: Sequence[schema.Solution],
  model: peer.Model,
  args: argparse.Namespace,
) -> Callable[[], Scores]:
  made = scorer.Scorer(
    "prm",
    model.config,
    model.params,
    model.tokenizer,
    model.encoding,
    batch_tokens=args.batch_tokens,
    sequence_length=0 if layout == "padded" else args.sequence_length,
    layout=layout,
  )
  return lambda: [list(x.scores) for x in made.score(solutions)]


def by_transformers(
  encoded: Sequence[encoding.EncodedSolution],
  model: peer.Model,
  args: argparse.Namespace,
  *,
  by_length: bool,
) -> Callable[[], Scores]:
  """Returns what scores batches, each padded to its longest.

  by_length: solutions of like length go together; else as they come, a
  problem's one after another.
  """
  torch = peer.torch()
  import transformers

  device = "cuda" if args.device == "gpu" else "cpu"
  made = transformers.AutoModelForTokenClassification.from_pretrained(
    model.folder
  )
  made = made.to(device).eval()
  order = np.arange(len(encoded))
  if by_length:
    order = np.argsort([len(x.tokens) for x in encoded], kind="stable")

  def run() -> Scores:
    out: Scores = [[] for _ in encoded]
    for start in range(0, len(order), args.batch):
      chosen = order[start : start + args.batch]
      longest = max(len(encoded[i].tokens) for i in chosen)
      ids = np.zeros((len(chosen), longest), np.int64)
      mask = np.zeros_like(ids)
      for row, i in enumerate(chosen):
        n = len(encoded[i].tokens)
        ids[row, :n], mask[row, :n] = encoded[i].tokens, 1
      with torch.inference_mode():
        logits = made(
          torch.as_tensor(ids, device=device),
          attention_mask=torch.as_tensor(mask, device=device),
        ).logits
        scores = logits.softmax(-1)[..., 1].cpu().numpy()
      for row, i in enumerate(chosen):
        out[i] = scores[row, encoded[i].step_end].tolist()
    return out

  return run


def check_same(scores: dict[str, Scores]) -> dict[str, float]:
  """Returns each way's largest difference to the first, of any step.

  Raises:
    RuntimeError: one is larger than TOLERANCE, or a step lacks a score.
  """
  first, *_ = scores.values()
  steps = [len(x) for x in first]
  expected = np.concatenate(first)
  differences = {}
  for name, of in scores.items():
    if [len(x) for x in of] != steps:
      raise RuntimeError(f"{name}: not one score for each step")
    differences[name] = float(np.abs(np.concatenate(of) - expected).max())
    if not differences[name] <= TOLERANCE:
      raise RuntimeError(
        f"{name}: a score differs by {differences[name]}, more than {TOLERANCE}:"
        " nothing was timed"
      )
  return differences


def count(
  encoded: Sequence[encoding.EncodedSolution],
  problems: Sequence[str],
  args: argparse.Namespace,
) -> dict[str, Any]:
  """Returns how many tokens each way computes, padding included or not."""
  lengths = np.asarray([len(x.tokens) for x in encoded])
  by_problem: dict[str, list[int]] = defaultdict(list)
  for i, problem in enumerate(problems):
    by_problem[problem].append(i)
  trees = 0
  for members in by_problem.values():
    examples = [_example(encoded[i], problems[i]) for i in members]
    trees += sum(map(len, packing.trees(examples, args.sequence_length)))
  starts = np.arange(0, len(lengths), args.batch)

  def slots(ordered: np.ndarray) -> int:
    rows = np.minimum(args.batch, len(ordered) - starts)
    return int((np.maximum.reduceat(ordered, starts) * rows).sum())

  return dict(
    tokens=dict(
      packed=int(lengths.sum()),
      tree=trees,
      transformers=slots(lengths),
      transformers_sorted=slots(np.sort(lengths)),
    ),
    length=dict(
      mean=float(lengths.mean()),
      median=float(np.median(lengths)),
      longest=int(lengths.max()),
    ),
  )


def _example(
  encoded: encoding.EncodedSolution, problem: str
) -> encoding.Example:
  zeros = np.zeros(len(encoded.tokens), np.float32)
  return encoding.Example(encoded.tokens, zeros, zeros, zeros > 0, problem)


# --- Suites -----------------------------------------------------------------


def measure(
  suite: str, args: argparse.Namespace, folder: pathlib.Path
) -> dict[str, Any]:
  """Returns counts, differences, solutions/s and ratios of one kind."""
  read = peer.read(SUITES[suite])
  model = peer.make(args, read, folder, 1 << 30)
  if suite == "grow":
    return grow(args, read, model)
  chosen, data = candidates(
    read, args.problems, args.solutions, args.seed, copies=suite == "solutions"
  )
  encoded = [
    encoding.encode(s.problem, s.steps, model.tokenizer, model.encoding)
    for s in chosen
  ]
  longest = max(len(x.tokens) for x in encoded)
  args = argparse.Namespace(**vars(args))
  args.sequence_length = max(
    args.sequence_length, packing.padded_length(longest)
  )
  runs = {x: by_scorer(x, chosen, model, args) for x in scorer.LAYOUTS}
  for name in PEERS:
    runs[name] = by_transformers(
      encoded, model, args, by_length=name == "transformers_sorted"
    )
  differences = check_same({name: run() for name, run in runs.items()})
  print(f"  largest differences to padded: {differences}", flush=True)
  costs = timing.alternate(runs, args.rounds)
  counts = dict(data=data) | count(encoded, [s.problem for s in chosen], args)
  counts["data"]["share of the whole workload"] = len(chosen) / WHOLE
  measured = {
    f"{name}: solutions/s": timing.rate(len(chosen), costs[name])
    for name in runs
  }
  for layout in scorer.LAYOUTS:
    for name in PEERS:
      measured[f"{layout} / {name}"] = timing.ratio(costs[name], costs[layout])
  return dict(
    model=dataclasses.asdict(model.config),
    sequence_length=args.sequence_length,
    differences=differences,
    counts=counts,
    measured=measured,
  )


def grow(
  args: argparse.Namespace,
  read: Sequence[schema.Solution],
  model: peer.Model,
) -> dict[str, Any]:
  """Returns what growing solutions cost with a cache of prefixes and without."""

  def by_peer(solutions: Sequence[schema.Solution]) -> Callable[[], Scores]:
    encoded = [
      encoding.encode(s.problem, s.steps, model.tokenizer, model.encoding)
      for s in solutions
    ]
    return by_transformers(encoded, model, args, by_length=True)

  return growing.measure(args, read, model, by_peer, check_same)


def arguments() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add = parser.add_argument
  add("--suite", choices=SUITES, help="one; all by default")
  add("--output", type=pathlib.Path, help="results as JSON")
  add("--rounds", type=int, default=5)
  add("--problems", type=int, default=100)
  add("--solutions", type=int, default=64, help="of each problem")
  peer.add_arguments(parser)
  add("--batch", type=int, default=16, help="rows of a batch of transformers")
  add("--batch_tokens", type=int, default=8192, help="of a batch of ours")
  add("--depth", type=int, default=12, help="steps of grow")
  add("--cache_tokens", type=int, default=65_536, help="of grow")
  add("--sequence_length", type=int, default=4096, help="of packed rows, trees")
  return parser


def main() -> None:
  peer.run_suites("score.py", arguments().parse_args(), SUITES, measure)


if __name__ == "__main__":
  results.run(main)
