"""The shapes of PRM800K's solutions, which `prm-jax check-device` fills.

  python benchmarks/workload_shapes.py

Writes prm_jax/device_check/solutions.jsonl (whole solutions of the phase-2
sample) and alternatives.jsonl (phase 1: each rated alternative with the path
before it). A line is a problem, and in it each solution is

  [tokens shared with the solution before it, tokens, [[position, label], ..]]

in lexicographic order, so the prefixes that solutions share are those of the
data. No text and no id of the data is written: a machine without the data can
time the real lengths and trees. Tokens are those of a SentencePiece vocabulary
of 4,096 that was learnt from the solutions.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
import json
import pathlib

import train_step

import prm_jax
from prm_jax.device_check import workloads
from prm_jax.text import encoding

# Packed tokens: enough for three updates of 16 rows of 4,096, also as trees.
TOKENS = dict(solutions=250_000, alternatives=1_400_000)
LONGEST = 2048


def shape(group: list[encoding.Example]) -> list[list]:
  """Returns what is written of one problem's solutions."""
  ordered = sorted(group, key=lambda x: x.tokens.astype(">i4").tobytes())
  shapes = []
  before = ordered[0].tokens[:0]
  for x in ordered:
    n = min(len(before), len(x.tokens))
    differs = before[:n] != x.tokens[:n]
    shared = int(differs.argmax()) if differs.any() else n
    targets = [[int(i), float(x.labels[i])] for i in x.weights.nonzero()[0]]
    shapes.append([shared, len(x.tokens), targets])
    before = x.tokens
  return shapes


def main() -> None:
  args = argparse.Namespace(vocabulary=4096)
  folder = pathlib.Path(prm_jax.__file__).parent / "device_check"
  files = dict(solutions=train_step.PHASE2, alternatives=train_step.PHASE1)
  for name, path in files.items():
    examples, _, _ = train_step.read_examples(path, args, LONGEST)
    groups: dict[str, list[encoding.Example]] = defaultdict(list)
    for example in examples:
      groups[example.group].append(example)
    lines, tokens = [], 0
    for group in groups.values():
      if tokens >= TOKENS[name]:
        break
      tokens += sum(map(len, group))
      lines.append(json.dumps(shape(group), separators=(",", ":")) + "\n")
    (folder / workloads.FILES[name]).write_text("".join(lines))
    print(f"{name}: {len(lines)} problems, {tokens:,} tokens packed")


if __name__ == "__main__":
  main()
