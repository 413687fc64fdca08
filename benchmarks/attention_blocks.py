"""The share of a row's square that a kernel computes, by block size.

  python benchmarks/attention_blocks.py [--sequence_length=4096]
  [--output=FILE.json]

Exact counts over all rows of PRM800K's phase-2 sample, packed and with shared
prefixes; nothing is timed. A block counts if some query of it sees some key, as
models/tree_attention.schedule lists it; `pairs` is what blocks of one token
would come to. A causal kernel without a list computes half of the square.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
import pathlib

from jax import numpy as jnp
import numpy as np
import results
import train_step

from prm_jax.models import tree_attention
from prm_jax.models import tree_attention_kernels
from prm_jax.rows import packing

SIZES = (64, 128, 256, 512, 1024)


def shares(
  rows: Sequence[Sequence[packing.Segment]], tokens: int, sizes: Iterable[int]
) -> dict[str, float]:
  """Returns the share of the rows' squares that is computed, by block size."""
  batch = packing.fill(rows, tokens)
  until = np.asarray(batch.visible_until)
  area = until.size * tokens
  computed = dict(pairs=int((until - np.arange(tokens)).sum()) / area)
  for size in sizes:
    blocks = tree_attention_kernels.Blocks(size, size)
    lists, _ = tree_attention.schedule(jnp.asarray(until), None, blocks)
    computed[f"blocks_{size}"] = int(lists.num.sum()) * size**2 / area
  return computed


def main() -> None:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--output", type=pathlib.Path, help="results as JSON")
  parser.add_argument("--sequence_length", type=int, default=4096)
  parser.add_argument("--vocabulary", type=int, default=4096)
  args = parser.parse_args()
  T = args.sequence_length
  if T % max(SIZES):
    parser.error(f"--sequence_length: give a multiple of {max(SIZES)}")
  result = results.provenance("attention_blocks.py", args)
  examples, _, data = train_step.read_examples(train_step.PHASE2, args, T)
  segments = dict(
    packed=[packing.chain(example) for example in examples],
    tree=packing.trees(examples, T),
  )
  by_layout = {}
  for name, some in segments.items():
    rows = packing.assign_rows([len(segment) for segment in some], T)
    filled = [[some[i] for i in row] for row in rows]
    by_layout[name] = dict(rows=len(rows), **shares(filled, T, SIZES))
  result["counts"] = dict(data=data) | by_layout
  for name, counts in by_layout.items():
    text = ", ".join(f"{k} {v:.4g}" for k, v in counts.items())
    print(f"{name}: {text}")
  results.finish(result, args.output)


if __name__ == "__main__":
  results.run(main)
