"""Update steps: the gain of each row layout, and the speed against a matmul's.

  python benchmarks/train_step.py [--suite=NAME] [--output=FILE.json]

  padded_packed_tree  whole solutions of PRM800K's phase-2 sample
  labels              phase 1 with all its rated alternatives
  peak                FLOP/s of an update over those of a matmul

Variants take turns (A B C A B C ...), ratios are formed within a turn, and CPU
seconds of the process are printed next to wall seconds: machines are shared.
Nothing here asserts a time. benchmarks/README.md says what each number means.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
import functools
import itertools
import os
import pathlib
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp
import numpy as np
import results

from prm_jax import batch as batch_lib
from prm_jax import errors
from prm_jax.device_check import timing
from prm_jax.device_check import update_checks
from prm_jax.models import blockwise_attention
from prm_jax.models import model_config as model_config
from prm_jax.records import sources
from prm_jax.rows import packing
from prm_jax.text import encoding
from prm_jax.text import tokenizer as tokenizer_lib

SUITES = ("padded_packed_tree", "labels", "peak")
PHASE1 = "prm800k/phase1_train.jsonl.gz"
PHASE2 = "prm800k/phase2_sample.jsonl.gz"
PADDED_ROWS = 8  # the usual collator's batch
PAD_TO = 16  # padded lengths are multiples of this: fewer shapes to compile
MATMUL = 4096


# --- Model -------------------------------------------------------


def make_model(
  vocab_size: int, d_model: int, num_layers: int
) -> model_config.ModelConfig:
  """Returns a model with heads of 64 channels, two queries to a key."""
  heads = max(1, d_model // 64)
  return model_config.ModelConfig(
    vocab_size=vocab_size,
    d_model=d_model,
    num_layers=num_layers,
    num_heads=heads,
    num_kv_heads=max(1, heads // 2),
    head_dim=64,
    d_ff=d_model * 11 // 4,
  )


# --- Rows -------------------------------------------------------------------


class _Remembered:
  """A tokenizer that encodes each text once: alternatives share most steps."""

  def __init__(self, inner: tokenizer_lib.Tokenizer):
    self.bos, self.eos, self.separator = inner.bos, inner.eos, inner.separator
    self.vocab_size = inner.vocab_size
    self.encode = functools.cache(inner.encode)


def read_examples(
  path: str, args: argparse.Namespace, max_tokens: int
) -> tuple[list[encoding.Example], int, dict[str, int]]:
  """Returns a PRM800K file's examples, the vocabulary's size and the counts."""
  if not os.environ.get("PRM_JAX_DATA") and not pathlib.Path(path).exists():
    raise errors.InputError(
      f"{path}: set PRM_JAX_DATA to the folder that holds it"
    )
  solutions, _ = sources.read("prm800k", path)
  config = sources.TokenizerConfig(vocab_size=args.vocabulary)
  tokenizer = _Remembered(sources.make_tokenizer(config, solutions))
  examples, counts = encoding.prm_examples(
    solutions,
    tokenizer,
    encoding.EncodingConfig(max_tokens=max_tokens),
    encoding.LabelPolicy(),
  )
  return (
    examples,
    tokenizer.vocab_size,
    {k: int(v) for k, v in counts.items() if v},
  )


class Layout(NamedTuple):
  """A data set in rows, and some updates of it to time.

  share: how much of an epoch's slots (tokens and padding) the batches hold.
  counts: of an epoch; what attention needs is counted in the batches.
  """

  batches: list[batch_lib.Batch]
  share: float
  counts: dict[str, float]


def padded(
  examples: Sequence[encoding.Example],
  model: model_config.ModelConfig,
  args: argparse.Namespace,
) -> Layout:
  """Returns one solution a row, in any order, padded to a batch's longest.

  Timed are every k-th batch by width: narrow and wide ones as they come.
  """
  order = np.random.default_rng(args.seed).permutation(len(examples))
  groups = [
    [[packing.chain(examples[i])] for i in order[start : start + PADDED_ROWS]]
    for start in range(0, len(order), PADDED_ROWS)
  ]
  longest = [max(len(segment) for [segment] in group) for group in groups]
  widths = -(-np.asarray(longest) // PAD_TO) * PAD_TO
  k = max(1, len(groups) // args.timed_updates)
  batches = [
    packing.fill(groups[n] + [[]] * (PADDED_ROWS - len(groups[n])), widths[n])
    for n in np.argsort(widths, kind="stable")[k // 2 :: k]
  ]
  slots = PADDED_ROWS * int(widths.sum())
  return _layout(examples, batches, slots, len(groups), model)


def packed(
  segments: Sequence[encoding.Example | packing.Segment],
  sequence_length: int,
  model: model_config.ModelConfig,
  args: argparse.Namespace,
) -> Layout:
  """Returns full rows of examples, or of trees. Timed are random rows."""
  rows = packing.assign_rows([len(p) for p in segments], sequence_length)
  num_rows = max(1, args.batch_tokens // sequence_length)
  random = np.random.default_rng(args.seed).permutation(len(rows))
  order = np.resize(random, num_rows * args.timed_updates)
  filled = [[_piece(segments[i]) for i in rows[r]] for r in order]
  batches = [
    packing.fill(filled[start : start + num_rows], sequence_length)
    for start in range(0, len(filled), num_rows)
  ]
  slots = len(rows) * sequence_length
  return _layout(segments, batches, slots, len(rows) / num_rows, model)


def _piece(one: encoding.Example | packing.Segment) -> packing.Segment:
  return packing.chain(one) if isinstance(one, encoding.Example) else one


def _layout(
  segments: Sequence[encoding.Example | packing.Segment],
  batches: list[batch_lib.Batch],
  slots: int,
  num_updates: float,
  model: model_config.ModelConfig,
) -> Layout:
  tokens = sum(map(len, segments))
  counts = dict(
    tokens=tokens,
    slots=slots,
    fill=tokens / slots,
    labels=round(sum(float(segment.weights.sum()) for segment in segments)),
    updates=num_updates,
  )
  share = sum(batch.tokens.size for batch in batches) / slots
  return Layout(batches, share, counts | _work(batches, model))


def _work(
  batches: Sequence[batch_lib.Batch], model: model_config.ModelConfig
) -> dict[str, float]:
  """Returns what attention costs, and how little of it is needed.

  attended: the share of the dense [T, T] squares that hold a key which some
  query sees, by single pairs and by blocks as block_attention has them.
  """
  area = pairs = squares = blocks = 0
  flops = others = 0.0
  for batch in batches:
    B, T = batch.tokens.shape
    index = np.arange(T)
    used = (batch.parent >= 0) | (batch.visible_until > index + 1)
    area += B * T * T
    pairs += int(((batch.visible_until - index) * used).sum())
    num = -(-T // blockwise_attention.BLOCK)
    until = np.pad(
      batch.visible_until * used,
      ((0, 0), (0, num * blockwise_attention.BLOCK - T)),
    )
    last = -(
      -until.reshape(B, num, blockwise_attention.BLOCK).max(-1)
      // blockwise_attention.BLOCK
    )
    squares += B * num * num
    blocks += int(np.maximum(last - np.arange(num), 0).sum())
    flops += update_checks.matmul_flops(model, B * T, T)
    others += update_checks.matmul_flops(model, B * T, 0)
  return dict(
    attention_flops=1 - others / flops,
    attended_pairs=pairs / area,
    attended_blocks=blocks / squares,
  )


def packed_and_tree(
  examples: Sequence[encoding.Example],
  lengths: Sequence[int],
  model: model_config.ModelConfig,
  args: argparse.Namespace,
) -> dict[str, Layout]:
  """Returns both layouts at every length of a row.

  Raises:
    RuntimeError: they don't hold the same labels.
  """
  layouts = {}
  for T in lengths:
    layouts[f"packed_{T}"] = packed(examples, T, model, args)
    trees = packing.trees(examples, T)
    layouts[f"tree_{T}"] = packed(trees, T, model, args)
  num_labels = {layout.counts["labels"] for layout in layouts.values()}
  if len(num_labels) > 1:
    raise RuntimeError(f"every layout must hold each label once: {num_labels}")
  return layouts


# --- Suites -----------------------------------------------------------------


def compare(
  layouts: Mapping[str, Layout],
  amounts: Mapping[str, float],
  pairs: Iterable[tuple[str, str]],
  model: model_config.ModelConfig,
  args: argparse.Namespace,
) -> dict[str, dict[str, Any]]:
  """Returns amounts per second, and how many times the first of a pair's is.

  amounts: what an epoch holds, whatever its layout.
  """
  run = update_checks.Updates(model, args.seed)
  timed = [batch for layout in layouts.values() for batch in layout.batches]
  run(list({batch.tokens.shape: batch for batch in timed}.values()))
  runs = {
    name: functools.partial(run, layout.batches)
    for name, layout in layouts.items()
  }
  costs = timing.alternate(runs, args.rounds)
  measured = {}
  for name, layout in layouts.items():
    for what, amount in amounts.items():
      measured[f"{name}: {what}/s"] = timing.rate(
        amount * layout.share, costs[name]
      )
  for fast, slow in pairs:
    work = layouts[fast].share / layouts[slow].share
    measured[f"{fast} / {slow}"] = timing.ratio(costs[slow], costs[fast], work)
  return measured


def padded_packed_tree(args: argparse.Namespace) -> dict[str, Any]:
  """Times whole solutions padded, packed and with shared prefixes."""
  lengths = args.sequence_length or [1024, 2048, 4096]
  examples, vocab_size, data = read_examples(PHASE2, args, min(lengths))
  model = make_model(vocab_size, args.d_model, args.num_layers)
  layouts = dict(padded=padded(examples, model, args))
  layouts |= packed_and_tree(examples, lengths, model, args)
  pairs = [(f"packed_{T}", "padded") for T in lengths]
  pairs += _tree_over_packed(lengths)
  # Tokens of the solutions one by one: a shared prefix counts for each.
  amounts = {
    "useful tokens": sum(map(len, examples)),
    "solutions": len(examples),
  }
  counts = {name: layout.counts for name, layout in layouts.items()}
  return dict(
    model=vars(model),
    counts=dict(data=data) | counts,
    measured=compare(layouts, amounts, pairs, model, args),
  )


def labels(args: argparse.Namespace) -> dict[str, Any]:
  """Times one sequence per rated alternative, packed, and trees of them."""
  lengths = args.sequence_length or [2048]
  examples, vocab_size, data = read_examples(PHASE1, args, min(lengths))
  model = make_model(vocab_size, args.d_model, args.num_layers)
  layouts = packed_and_tree(examples, lengths, model, args)
  counts = {name: layout.counts for name, layout in layouts.items()}
  for T in lengths:
    a, b = counts[f"packed_{T}"], counts[f"tree_{T}"]
    counts[f"packed_{T} / tree_{T}"] = {
      name: a[name] / b[name] for name in ("tokens", "slots")
    }
  amounts = dict(labels=data["targets"])
  pairs = _tree_over_packed(lengths)
  return dict(
    model=vars(model),
    counts=dict(data=data) | counts,
    measured=compare(layouts, amounts, pairs, model, args),
  )


def _tree_over_packed(lengths: Sequence[int]) -> list[tuple[str, str]]:
  # The best length of the one needn't be the best of the other.
  both = itertools.product(lengths, lengths)
  return [(f"tree_{a}", f"packed_{b}") for a, b in both]


def peak(args: argparse.Namespace) -> dict[str, Any]:
  """Times an update of a 23M decoder next to a square matmul."""
  model = model_config.ModelConfig(
    vocab_size=args.vocabulary,
    d_model=512,
    num_layers=8,
    num_heads=8,
    num_kv_heads=2,
    head_dim=64,
    d_ff=1408,
  )
  B, T = 8, 512
  random = np.random.default_rng(args.seed)
  index = np.broadcast_to(np.arange(T, dtype=np.int32), (B, T))
  step_end = random.random((B, T)) < 1 / 40
  rows = batch_lib.empty(B, T).replace(
    tokens=random.integers(0, args.vocabulary, (B, T), dtype=np.int32),
    positions=index,
    visible_until=np.full((B, T), T, np.int32),
    parent=index - 1,
    labels=random.integers(0, 2, (B, T)).astype(np.float32),
    weights=step_end.astype(np.float32),
    step_end=step_end,
  )
  square = jnp.asarray(random.random((MATMUL, MATMUL), np.float32))
  product = jax.jit(jnp.matmul)
  run = update_checks.Updates(model, args.seed)
  turns = dict(
    matmul=lambda: product(square, square).block_until_ready(),
    update=lambda: run([rows]),
  )
  timing.alternate(turns, 1)
  costs = timing.alternate(turns, args.rounds)
  flops = dict(
    matmul=2.0 * MATMUL**3,
    causal=update_checks.matmul_flops(model, B * T, T / 2),
    dense=update_checks.matmul_flops(model, B * T, T),
  )
  update, matmul = costs["update"], costs["matmul"]
  measured = {
    "matmul GFLOP/s": timing.rate(flops["matmul"] / 1e9, matmul),
    "update GFLOP/s (causal)": timing.rate(flops["causal"] / 1e9, update),
    "update tokens/s": timing.rate(B * T, update),
    "update s": timing.seconds(update),
    "share of the matmul's FLOP/s (causal)": timing.ratio(
      matmul, update, flops["causal"] / flops["matmul"]
    ),
    "share of the matmul's FLOP/s (dense)": timing.ratio(
      matmul, update, flops["dense"] / flops["matmul"]
    ),
  }
  counts = {
    "body": dict(parameters=model.body_parameters, tokens=B * T),
    "GFLOP": {name: x / 1e9 for name, x in flops.items()},
  }
  return dict(model=vars(model), counts=counts, measured=measured)


def _lengths(text: str) -> list[int]:
  try:
    return [int(x) for x in text.split(",")]
  except ValueError:
    raise argparse.ArgumentTypeError(
      f"{text!r}: expected whole numbers, as in 1024,2048"
    ) from None


def main() -> None:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--suite", choices=SUITES, help="one; all by default")
  parser.add_argument("--output", type=pathlib.Path, help="results as JSON")
  parser.add_argument("--rounds", type=int, default=5)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--vocabulary", type=int, default=4096)
  parser.add_argument("--d_model", type=int, default=128, help="not of peak")
  parser.add_argument("--num_layers", type=int, default=2, help="not of peak")
  parser.add_argument(
    "--sequence_length",
    type=_lengths,
    help="lengths of packed rows, as in 1024,2048; each suite has its own",
  )
  parser.add_argument(
    "--batch_tokens", type=int, default=4096, help="of a packed batch"
  )
  parser.add_argument(
    "--timed_updates", type=int, default=4, help="of each layout in a turn"
  )
  args = parser.parse_args()
  if args.rounds < 1:
    parser.error("--rounds: give 1 or more")
  result = results.provenance("train_step.py", args) | dict(suites={})
  for suite in [args.suite] if args.suite else SUITES:
    print(f"{suite}", flush=True)
    result["suites"][suite] = globals()[suite](args)
    print(results.show(result["suites"][suite]), flush=True)
  results.finish(result, args.output)


if __name__ == "__main__":
  results.run(main)
