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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
  return dict(min=min(values), median=statistics.median(values), max=max(values))


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
    clock: spread(work * getattr(a, clock) / getattr(b, clock) for a, b in pairs)
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
  return f"{name}, family {fields.get('cpu family')} model {fields.get('model')}"


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


def _batched(some: Sequence[Any], n: int) -> Iterator[Sequence[Any]]:
  for start in range(0, len(some), n):
    yield some[start : start + n]


def padded(
  examples: Sequence[encode.Example], random: np.random.Generator
) -> list[batch_lib.Batch]:
  """Returns batches of one solution a row, padded to their longest."""
  order = [examples[i] for i in random.permutation(len(examples))]
  batches = []
  for some in _batched(order, PADDED_ROWS):
    rows = [[packing.chain(example)] for example in some]
    rows += [[]] * (PADDED_ROWS - len(rows))
    width = -(-max(map(len, some)) // PAD_TO) * PAD_TO
    batches.append(packing.fill(rows, width))
  return batches


def packed(
  pieces: Sequence[packing.Piece], row_tokens: int, batch_tokens: int
) -> list[batch_lib.Batch]:
  """Returns batches of packed rows; the last may end in empty ones."""
  num_rows = max(1, batch_tokens // row_tokens)
  rows = [
    [pieces[i] for i in row]
    for row in packing.assign_rows([len(p) for p in pieces], row_tokens)
  ]
  rows += [[]] * (-len(rows) % num_rows)
  return [
    packing.fill(some, row_tokens) for some in _batched(rows, num_rows)
  ]


def count(
  model: config_lib.ModelConfig, batches: Sequence[batch_lib.Batch]
) -> dict[str, float]:
  """Returns the deterministic work of some batches.

  attended: the share of the dense [T, T] of attention that any query needs,
  by single pairs and by blocks of 128 x 128.
  """
  area = needed = blocks = all_blocks = flops = tokens = 0
  for batch in batches:
    B, T = batch.tokens.shape
    until = batch.visible_until
    used = (batch.parent >= 0) | (until > np.arange(T) + 1)
    tokens += int(used.sum())
    area += B * T * T
    needed += int(((until - np.arange(T)) * used).sum())
    num = -(-T // 128)
    last = np.pad(until * used, ((0, 0), (0, num * 128 - T)))
    last = -(-last.reshape(B, num, 128).max(-1) // 128)
    blocks += int(np.maximum(last - np.arange(num), 0).sum())
    all_blocks += B * num * num
    flops += matmul_flops(model, B * T, T)
  slots = sum(b.tokens.size for b in batches)
  return dict(
    updates=len(batches),
    slots=slots,
    tokens=tokens,
    labels=int(sum(b.weights.sum() for b in batches)),
    fill=tokens / slots,
    attended_pairs=needed / area,
    attended_blocks=blocks / all_blocks,
    matmul_gflop=flops / 1e9,
    attention_flop_share=1 - sum(
      matmul_flops(model, b.tokens.size, 0) for b in batches
    ) / flops,
  )


def every_kth_problem(
  examples: Sequence[encode.Example], wanted_tokens: int
) -> list[encode.Example]:
  """Returns all examples of some problems, small and large ones alike."""
  groups: dict[str, list[encode.Example]] = {}
  for example in examples:
    groups.setdefault(example.group, []).append(example)
  by_size = sorted(groups.values(), key=lambda g: sum(map(len, g)))
  k = max(1, round(sum(map(len, examples)) / wanted_tokens))
  return [x for group in by_size[k // 2 :: k] for x in group]


# --- Suites -----------------------------------------------------------------


def padded_packed_forest(args: argparse.Namespace) -> dict[str, Any]:
  """Times passes over the same whole solutions in three layouts."""
  shortest = min(args.row_tokens)
  examples, tokenizer, said = read_examples(PHASE2, args, shortest)
  model = make_model(tokenizer.vocab_size, args.d_model, args.num_layers)
  timed = every_kth_problem(examples, args.timed_tokens)

  def layouts(some: Sequence[encode.Example]):
    out = {"padded": padded(some, np.random.default_rng(args.seed))}
    chains = [packing.chain(example) for example in some]
    for T in args.row_tokens:
      trees = packing.trees(some, T)
      out[f"packed_{T}"] = packed(chains, T, args.batch_tokens)
      out[f"forest_{T}"] = packed(trees, T, args.batch_tokens)
    return out

  everything = layouts(examples)
  counts: dict[str, Any] = {"data": said}
  for name, batches in everything.items():
    counts[f"all, {name}"] = count(model, batches)
  del everything
  batches = layouts(timed)
  tokens = sum(map(len, timed))
  counts["timed"] = dict(solutions=len(timed), solution_tokens=tokens)
  for name, some in batches.items():
    counts[f"timed, {name}"] = count(model, some)
  labels = {counts[f"timed, {name}"]["labels"] for name in batches}
  assert len(labels) == 1, f"layouts must hold the same labels: {labels}"
  run = updates(model, args.seed)
  costs = alternate(
    {name: functools.partial(run, some) for name, some in batches.items()},
    args.rounds,
  )
  measured: dict[str, Any] = {}
  for name, cost in costs.items():
    # Tokens of the solutions one by one: a shared prefix counts for each.
    measured[f"{name} useful tokens/s"] = rate(tokens, cost)
    measured[f"{name} solutions/s"] = rate(len(timed), cost)
  for T in args.row_tokens:
    a, b = f"packed_{T}", f"forest_{T}"
    measured[f"{a} / padded"] = ratio(costs["padded"], costs[a])
    measured[f"{b} / {a}"] = ratio(costs[a], costs[b])
  measured["best forest / best packed"] = ratio(
    *(_best(costs, kind) for kind in ("packed", "forest"))
  )
  return dict(model=vars(model), counts=counts, measured=measured)


def _best(costs: Mapping[str, list[Cost]], kind: str) -> list[Cost]:
  """Returns the costs of the cheapest variant of a kind, by CPU time."""
  of_kind = [x for name, x in costs.items() if name.startswith(kind)]
  return min(of_kind, key=lambda x: statistics.median(c.cpu for c in x))


def labels(args: argparse.Namespace) -> dict[str, Any]:
  """Times updates on per-alternative sequences and on trees of them.

  Both are shapes of their own, so that an update takes as long on any of its
  rows: labels/s is the exact number of labels of an average update over the
  measured time of a few.
  """
  counts: dict[str, Any] = {}
  variants: dict[str, Callable[[], None]] = {}
  per_update: dict[str, float] = {}
  examples, tokenizer, _ = read_examples(PHASE1, args, max(args.row_tokens))
  model = make_model(tokenizer.vocab_size, args.d_model, args.num_layers)
  run = updates(model, args.seed)
  random = np.random.default_rng(args.seed)
  for T in args.row_tokens:
    some = [x for x in examples if len(x) <= T]
    num_rows = max(1, args.batch_tokens // T)
    layouts: dict[str, Sequence[Any]] = dict(
      packed=some, forest=packing.trees(some, T)
    )
    for kind, pieces in layouts.items():
      name = f"{kind}_{T}"
      lengths = [len(piece) for piece in pieces]
      rows = packing.assign_rows(lengths, T)
      found = sum(float(p.weights.sum()) for p in pieces)
      counts[name] = dict(
        sequences=len(some),
        too_long=len(examples) - len(some),
        tokens=sum(lengths),
        rows=len(rows),
        labels=int(found),
        fill=sum(lengths) / (len(rows) * T),
        labels_per_row=found / len(rows),
      )
      per_update[name] = found / len(rows) * num_rows * args.timed_updates
      chosen = random.choice(len(rows), args.timed_updates * num_rows)
      filled = [
        [_piece(pieces[i]) for i in rows[r]] for r in chosen
      ]
      batches = [
        packing.fill(b, T) for b in _batched(filled, num_rows)
      ]
      work = count(model, batches)
      for field in ("attended_blocks", "attention_flop_share"):
        counts[name][field] = work[field]
      variants[name] = functools.partial(run, batches)
    a, b = counts[f"packed_{T}"], counts[f"forest_{T}"]
    assert a["labels"] == b["labels"], "a tree must hold all its labels"
    counts[f"packed_{T} / forest_{T}"] = dict(
      tokens_ratio=a["tokens"] / b["tokens"], rows_ratio=a["rows"] / b["rows"]
    )
    del layouts, some
  costs = alternate(variants, args.rounds)
  measured: dict[str, Any] = {}
  for name, cost in costs.items():
    measured[f"{name} labels/s"] = rate(per_update[name], cost)
  # Every forest against every packing: the best of each may differ in T.
  for a, b in itertools.product(args.row_tokens, args.row_tokens):
    slow, fast = f"packed_{a}", f"forest_{b}"
    work = per_update[fast] / per_update[slow]
    measured[f"{fast} / {slow}"] = ratio(costs[slow], costs[fast], work)
  return dict(model=vars(model), counts=counts, measured=measured)


def _piece(one: encode.Example | packing.Piece) -> packing.Piece:
  return packing.chain(one) if isinstance(one, encode.Example) else one


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
    default=[1024, 2048],
    help="lengths of packed rows, as in 1024,2048",
  )
  parser.add_argument(
    "--batch_tokens", type=int, default=4096, help="of a packed batch"
  )
  parser.add_argument(
    "--timed_tokens",
    type=int,
    default=40_000,
    help="padded_packed_forest: tokens of the solutions that are timed",
  )
  parser.add_argument(
    "--timed_updates", type=int, default=4, help="labels: updates in a turn"
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
