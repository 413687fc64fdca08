"""Update steps: what a layout of the rows buys, and how near a matmul's speed.

  python benchmarks/train_step.py [--suite=NAME] [--output=FILE.json]

  padded_packed_forest  whole solutions of PRM800K's phase-2 sample
  labels                phase 1 with all its rated alternatives
  peak                  FLOP/s of an update over those of a matmul

Variants take turns (A B C A B C ...), ratios are formed within a turn, and CPU
seconds of the process stand beside wall seconds: machines are shared. Nothing
here asserts a time. benchmarks/README.md says what each number means.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
import functools
import itertools
import os
import pathlib
import platform
import statistics
import sys
import time
from typing import Any, NamedTuple

from flax.core import meta
import jax
from jax import numpy as jnp
import numpy as np

from prm_jax import batch as batch_lib
from prm_jax import environment
from prm_jax import optimizers
from prm_jax import schema
from prm_jax import sharding
from prm_jax import tokenizer as tokenizer_lib
from prm_jax.data import corpus
from prm_jax.data import encode
from prm_jax.data import packing
from prm_jax.models import config as config_lib
from prm_jax.train import prm

SUITES = ("padded_packed_forest", "labels", "peak")
PHASE1 = "prm800k/phase1_train.jsonl.gz"
PHASE2 = "prm800k/phase2_sample.jsonl.gz"
PADDED_ROWS = 8  # the usual collator's batch
PAD_TO = 16  # padded lengths are multiples of this: fewer shapes to compile
MATMUL = 4096
BLOCK = 128  # what an attention kernel could skip

Run = Callable[[Sequence[batch_lib.Batch]], None]


# --- Measuring --------------------------------------------------------------


class Cost(NamedTuple):
  """Seconds on the clock, and of this process on all its cores."""

  wall: float
  cpu: float


def alternate(
  variants: Mapping[str, Callable[[], None]], rounds: int
) -> dict[str, list[Cost]]:
  """Returns each variant's cost in every round; a first one isn't counted."""
  costs: dict[str, list[Cost]] = {name: [] for name in variants}
  for number in range(rounds + 1):
    for name, run in variants.items():
      wall, cpu = time.perf_counter(), time.process_time()
      run()
      cost = Cost(time.perf_counter() - wall, time.process_time() - cpu)
      if number:  # the first round compiles
        costs[name].append(cost)
  return costs


def spread(values: Iterable[float]) -> dict[str, float]:
  values = [float(f"{x:.4g}") for x in values]
  return dict(
    min=min(values), median=statistics.median(values), max=max(values)
  )


def rate(amount: float, costs: Sequence[Cost]) -> dict[str, dict[str, float]]:
  """Returns the spread over rounds of amount per second."""
  return {
    clock: spread(amount / getattr(cost, clock) for cost in costs)
    for clock in Cost._fields
  }


def seconds(costs: Sequence[Cost]) -> dict[str, dict[str, float]]:
  return {c: spread(getattr(x, c) for x in costs) for c in Cost._fields}


def ratio(
  slow: Sequence[Cost], fast: Sequence[Cost], work: float = 1.0
) -> dict[str, dict[str, float]]:
  """Returns how many times faster, round by round.

  work: what the fast one gets done in its time, over what the slow one does.
  """
  pairs = list(zip(slow, fast, strict=True))
  return {
    clock: spread(
      work * getattr(a, clock) / getattr(b, clock) for a, b in pairs
    )
    for clock in Cost._fields
  }


def provenance(script: str) -> dict[str, Any]:
  """Returns command, versions and machine; --output is left out."""
  words = [w for w in sys.argv[1:] if not w.startswith("--output")]
  return dict(
    command=" ".join(["python", f"benchmarks/{script}", *words]),
    versions=environment.versions() | dict(revision=environment.revision()),
    machine=environment.machine() | dict(processor=_processor()),
    load_average_before=[round(x, 2) for x in os.getloadavg()],
  )


def _processor() -> str:
  try:
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
  except OSError:
    return platform.processor() or "unknown"
  known = dict(line.split(":", 1) for line in lines if ":" in line)
  fields = {name.strip(): value.strip() for name, value in known.items()}
  name = fields.get("model name", platform.machine())
  return (
    f"{name}, family {fields.get('cpu family')} model {fields.get('model')}"
  )


def show(result: Mapping[str, Any]) -> str:
  """Returns a suite's counts, then its measured numbers, as plain text."""
  lines = []
  for name, counts in result["counts"].items():
    said = ", ".join(
      f"{v:,} {k}" if isinstance(v, int) else f"{k} {v:.4g}"
      for k, v in counts.items()
    )
    lines.append(f"  {name}: {said}")
  lines.append(f"  {'':42}{'wall min':>10}{'median':>10}{'max':>10}")
  for name, x in result["measured"].items():
    said = "".join(f"{v:10.4g}" for v in x["wall"].values())
    cpu = x["cpu"]["median"]
    lines.append(f"  {name:42}{said}   by CPU time {cpu:.4g}")
  return "\n".join(lines)


# --- Model and update -------------------------------------------------------


def make_model(
  vocab_size: int, d_model: int, num_layers: int
) -> config_lib.ModelConfig:
  """Returns a model with heads of 64 channels, two queries to a key."""
  heads = max(1, d_model // 64)
  return config_lib.ModelConfig(
    vocab_size=vocab_size,
    d_model=d_model,
    num_layers=num_layers,
    num_heads=heads,
    num_kv_heads=max(1, heads // 2),
    head_dim=64,
    d_ff=d_model * 11 // 4,
  )


def updates(model: config_lib.ModelConfig, seed: int) -> Run:
  """Returns a function that makes an update per batch and waits for the last.

  It is the step that train.loop runs (AdamW, clipping, donated state) on one
  device, with the copying of the rows to it.
  """
  optimizer = optimizers.make(optimizers.OptimizerConfig(peak_lr=1e-3), 10_000)
  program = prm.make(model, optimizer)
  mesh = sharding.make_mesh((1, 1, 1), jax.devices()[:1])
  key = jax.random.key(seed)
  places = sharding.of_state(jax.eval_shape(program.init, key), mesh)
  everywhere = sharding.replicated(mesh)
  init = sharding.jit(
    lambda key: meta.unbox(program.init(key)),
    mesh,
    in_shardings=(everywhere,),
    out_shardings=places,
  )
  step = sharding.jit(
    program.step,
    mesh,
    in_shardings=(places, sharding.of_batch(mesh)),
    out_shardings=(places, everywhere),
    donate_argnums=(0,),
  )
  state = init(key)

  def run(batches: Sequence[batch_lib.Batch]) -> None:
    nonlocal state
    for rows in batches:
      state, metrics = step(state, sharding.put_batch(rows, mesh))
    if not np.isfinite(metrics["loss_nats"]):
      raise RuntimeError("the loss is no number: this timed nonsense")
    jax.block_until_ready(state)

  return run


def matmul_flops(
  model: config_lib.ModelConfig, tokens: int, keys_per_token: float
) -> float:
  """Returns the FLOPs of the matmuls of an update, forward and backward.

  A multiplication and its addition are two. keys_per_token: how many keys a
  query is counted with: T as the dense mask computes it, T / 2 by the causal
  convention. Recomputation, softmax, norms and AdamW don't count.
  """
  attention = 2 * model.num_layers * model.num_heads * model.head_dim
  per_token = model.body_parameters + attention * keys_per_token + model.d_model
  return 6.0 * tokens * per_token


# --- Rows -------------------------------------------------------------------


class _Remembered:
  """A tokenizer that encodes each text once: alternatives share most steps."""

  def __init__(self, inner: tokenizer_lib.Tokenizer):
    self.bos, self.eos, self.separator = inner.bos, inner.eos, inner.separator
    self.vocab_size = inner.vocab_size
    self.encode = functools.cache(inner.encode)


def read_examples(
  path: str, args: argparse.Namespace, max_tokens: int
) -> tuple[list[encode.Example], _Remembered, dict[str, int]]:
  """Returns PRM examples of a PRM800K file, and what was left out."""
  if not os.environ.get("PRM_JAX_DATA") and not pathlib.Path(path).exists():
    raise schema.InputError(
      f"{path}: set PRM_JAX_DATA to the folder that holds it"
    )
  solutions, _ = corpus.read("prm800k", path)
  config = corpus.TokenizerConfig(vocab_size=args.vocabulary)
  tokenizer = _Remembered(corpus.make_tokenizer(config, solutions))
  examples, counts = encode.prm_examples(
    solutions,
    tokenizer,
    encode.Reading(max_tokens=max_tokens),
    encode.LabelPolicy(),
  )
  return examples, tokenizer, {k: int(v) for k, v in counts.items() if v}


class Layout(NamedTuple):
  """A data set laid out in rows, and updates of it to time.

  share: how much of an epoch the batches stand for. counts: exact, of an
  epoch; `attended` and `attention_flops` are of the batches.
  """

  batches: list[batch_lib.Batch]
  share: float
  counts: dict[str, float]


def padded(
  examples: Sequence[encode.Example],
  model: config_lib.ModelConfig,
  args: argparse.Namespace,
) -> Layout:
  """Returns one solution a row, in any order, padded to a batch's longest.

  The batches to time are every k-th by width.
  """
  order = np.random.default_rng(args.seed).permutation(len(examples))
  groups = [
    [examples[i] for i in order[start : start + PADDED_ROWS]]
    for start in range(0, len(order), PADDED_ROWS)
  ]
  by_width = sorted((_width(group), n) for n, group in enumerate(groups))
  slots = PADDED_ROWS * sum(width for width, _ in by_width)
  k = max(1, len(groups) // args.timed_updates)
  batches = [
    packing.fill(
      [[packing.chain(x)] for x in groups[n]]
      + [[]] * (PADDED_ROWS - len(groups[n])),
      width,
    )
    for width, n in by_width[k // 2 :: k]
  ]
  counts = _counts(examples, slots, PADDED_ROWS, slots / len(groups))
  share = len(batches) / len(groups)
  return Layout(batches, share, counts | _work(batches, model))


def _width(examples: Sequence[encode.Example]) -> int:
  return -(-max(map(len, examples)) // PAD_TO) * PAD_TO


def packed(
  pieces: Sequence[encode.Example | packing.Piece],
  row_tokens: int,
  model: config_lib.ModelConfig,
  args: argparse.Namespace,
) -> Layout:
  """Returns full rows of examples, or of trees; random rows to time."""
  rows = packing.assign_rows([len(p) for p in pieces], row_tokens)
  num_rows = max(1, args.batch_tokens // row_tokens)
  wanted = num_rows * args.timed_updates
  # Every row about as often, where there are too few.
  random = np.random.default_rng(args.seed)
  order = np.resize(random.permutation(len(rows)), wanted)
  filled = [[_piece(pieces[i]) for i in rows[r]] for r in order]
  batches = [
    packing.fill(filled[start : start + num_rows], row_tokens)
    for start in range(0, wanted, num_rows)
  ]
  slots = len(rows) * row_tokens
  counts = _counts(pieces, slots, num_rows, num_rows * row_tokens)
  return Layout(batches, wanted / len(rows), counts | _work(batches, model))


def _piece(one: encode.Example | packing.Piece) -> packing.Piece:
  return packing.chain(one) if isinstance(one, encode.Example) else one


def _counts(
  pieces: Sequence[encode.Example | packing.Piece],
  slots: int,
  rows_per_update: int,
  slots_per_update: float,
) -> dict[str, float]:
  tokens = sum(map(len, pieces))
  return dict(
    tokens=tokens,
    slots=slots,
    fill=tokens / slots,
    labels=round(sum(float(piece.weights.sum()) for piece in pieces)),
    rows_per_update=rows_per_update,
    updates=slots / slots_per_update,
  )


def _work(
  batches: Sequence[batch_lib.Batch], model: config_lib.ModelConfig
) -> dict[str, float]:
  """Returns what attention costs, and how little of it is needed.

  attended: the share of the dense [T, T] squares that hold a key which some
  query sees, by single pairs and by blocks of 128 x 128.
  """
  area = pairs = squares = blocks = 0
  flops = others = 0.0
  for batch in batches:
    B, T = batch.tokens.shape
    index = np.arange(T)
    used = (batch.parent >= 0) | (batch.visible_until > index + 1)
    area += B * T * T
    pairs += int(((batch.visible_until - index) * used).sum())
    num = -(-T // BLOCK)
    until = np.pad(batch.visible_until * used, ((0, 0), (0, num * BLOCK - T)))
    last = -(-until.reshape(B, num, BLOCK).max(-1) // BLOCK)
    squares += B * num * num
    blocks += int(np.maximum(last - np.arange(num), 0).sum())
    flops += matmul_flops(model, B * T, T)
    others += matmul_flops(model, B * T, 0)
  return dict(
    attention_flops=1 - others / flops,
    attended_pairs=pairs / area,
    attended_blocks=blocks / squares,
  )


def measure(
  layouts: Mapping[str, Layout], run: Run, rounds: int
) -> dict[str, list[Cost]]:
  return alternate(
    {
      name: functools.partial(run, layout.batches)
      for name, layout in layouts.items()
    },
    rounds,
  )


# --- Suites -----------------------------------------------------------------


def padded_packed_forest(args: argparse.Namespace) -> dict[str, Any]:
  """Times whole solutions padded, packed and as forests."""
  lengths = args.row_tokens or [1024, 2048]
  examples, tokenizer, data = read_examples(PHASE2, args, min(lengths))
  model = make_model(tokenizer.vocab_size, args.d_model, args.num_layers)
  layouts = {"padded": padded(examples, model, args)}
  for T in lengths:
    layouts[f"packed_{T}"] = packed(examples, T, model, args)
    trees = packing.trees(examples, T)
    layouts[f"forest_{T}"] = packed(trees, T, model, args)
  costs = measure(layouts, updates(model, args.seed), args.rounds)
  # Tokens of the solutions one by one: a shared prefix counts for each.
  useful = sum(map(len, examples))
  measured: dict[str, Any] = {}
  for name, layout in layouts.items():
    measured[f"{name}: useful tokens/s"] = rate(
      useful * layout.share, costs[name]
    )
    measured[f"{name}: solutions/s"] = rate(
      len(examples) * layout.share, costs[name]
    )

  def times(fast: str, slow: str) -> None:
    work = layouts[fast].share / layouts[slow].share
    measured[f"{fast} / {slow}"] = ratio(costs[slow], costs[fast], work)

  for T in lengths:
    times(f"packed_{T}", "padded")
  for a, b in itertools.product(lengths, lengths):
    times(f"forest_{b}", f"packed_{a}")
  counts = {name: layout.counts for name, layout in layouts.items()}
  return dict(
    model=vars(model), counts=dict(data=data, **counts), measured=measured
  )


def labels(args: argparse.Namespace) -> dict[str, Any]:
  """Times one sequence per rated alternative, packed, and trees of them."""
  lengths = args.row_tokens or [2048]
  examples, tokenizer, data = read_examples(PHASE1, args, min(lengths))
  model = make_model(tokenizer.vocab_size, args.d_model, args.num_layers)
  layouts = {}
  for T in lengths:
    layouts[f"packed_{T}"] = packed(examples, T, model, args)
    trees = packing.trees(examples, T)
    layouts[f"forest_{T}"] = packed(trees, T, model, args)
  found = {layout.counts["labels"] for layout in layouts.values()}
  if len(found) > 1:
    raise RuntimeError(f"a tree must hold all labels, once each: {found}")
  costs = measure(layouts, updates(model, args.seed), args.rounds)
  measured: dict[str, Any] = {
    f"{name}: labels/s": rate(
      layout.counts["labels"] * layout.share, costs[name]
    )
    for name, layout in layouts.items()
  }
  for a, b in itertools.product(lengths, lengths):
    slow, fast = f"packed_{a}", f"forest_{b}"
    work = layouts[fast].share / layouts[slow].share
    measured[f"{fast} / {slow}"] = ratio(costs[slow], costs[fast], work)
  counts = {name: layout.counts for name, layout in layouts.items()}
  for T in lengths:
    both = [counts[f"{kind}_{T}"] for kind in ("packed", "forest")]
    counts[f"packed_{T} / forest_{T}"] = {
      name: both[0][name] / both[1][name] for name in ("tokens", "slots")
    }
  return dict(
    model=vars(model), counts=dict(data=data, **counts), measured=measured
  )


def peak(args: argparse.Namespace) -> dict[str, Any]:
  """Times an update of a 23M decoder beside a square matmul."""
  model = config_lib.ModelConfig(
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
  run = updates(model, args.seed)
  costs = alternate(
    dict(
      matmul=lambda: product(square, square).block_until_ready(),
      update=lambda: run([rows]),
    ),
    args.rounds,
  )
  flops = dict(
    matmul=2.0 * MATMUL**3,
    causal=matmul_flops(model, B * T, T / 2),
    dense=matmul_flops(model, B * T, T),
  )
  update, matmul = costs["update"], costs["matmul"]
  measured = {
    "matmul GFLOP/s": rate(flops["matmul"] / 1e9, matmul),
    "update GFLOP/s (causal)": rate(flops["causal"] / 1e9, update),
    "update tokens/s": rate(B * T, update),
    "update s": seconds(update),
    "share of the matmul's FLOP/s (causal)": ratio(
      matmul, update, flops["causal"] / flops["matmul"]
    ),
    "share of the matmul's FLOP/s (dense)": ratio(
      matmul, update, flops["dense"] / flops["matmul"]
    ),
  }
  counts = {
    "body": dict(parameters=model.body_parameters, tokens=B * T),
    "GFLOP": {name: x / 1e9 for name, x in flops.items()},
  }
  return dict(model=vars(model), counts=counts, measured=measured)


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
    "--row_tokens",
    type=lambda text: [int(x) for x in text.split(",")],
    help="lengths of packed rows, as in 1024,2048; each suite has its own",
  )
  parser.add_argument(
    "--batch_tokens", type=int, default=4096, help="of a packed batch"
  )
  parser.add_argument(
    "--timed_updates", type=int, default=8, help="of each layout in a turn"
  )
  args = parser.parse_args()
  if args.rounds < 1:
    parser.error("--rounds: give 1 or more")
  result = provenance("train_step.py") | dict(rounds=args.rounds, suites={})
  for suite in [args.suite] if args.suite else SUITES:
    print(f"{suite}", flush=True)
    result["suites"][suite] = globals()[suite](args)
    print(show(result["suites"][suite]), flush=True)
  result["load_average_after"] = [round(x, 2) for x in os.getloadavg()]
  if args.output:
    schema.write_json(args.output, result)
    print(f"results: {args.output}")


if __name__ == "__main__":
  try:
    main()
  except schema.InputError as e:
    sys.exit(f"train_step.py: {e}")
