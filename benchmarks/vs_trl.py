"""Updates of a PRM by TRL's PRMTrainer and by ours, alternating, as ratios.

  pip install -e '.[bench]'
  python benchmarks/vs_trl.py [--suite=NAME] [--output=FILE.json]

  solutions     whole solutions of PRM800K's phase-2 sample
  alternatives  phase 1 with all its rated alternatives

Both sides train one model in Qwen2's shape, from the same weights, on the same
ids and labels of the same file. Before anything is timed the script compares
losses and gradients of two updates, and stops if they differ. Nothing here
asserts a time. benchmarks/README.md says what each number means.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
import dataclasses
import functools
import os
import pathlib
import time
from typing import Any, NamedTuple

import numpy as np
import peer
import results
import train_step

from prm_jax import schema
from prm_jax.device_check import timing
from prm_jax.device_check import update_checks
from prm_jax.rows import packing
from prm_jax.text import encoding
from prm_jax.training import optimizer

DATA = dict(solutions=train_step.PHASE2, alternatives=train_step.PHASE1)
# What is changed in TRL's defaults: bfloat16 where torch is told to compute so
# (autocast), and gradient checkpointing.
TRL: dict[str, dict[str, bool]] = dict(
  trl_defaults={},
  trl_bfloat16=dict(gradient_checkpointing=False),
  trl_float32_checkpointed=dict(bf16=False),
  trl_float32=dict(bf16=False, gradient_checkpointing=False),
)
OURS = tuple(
  f"{layout}_{dtype}"
  for dtype in ("float32", "bfloat16")
  for layout in ("padded", "packed", "tree")
)
# TRL's own: AdamW of torch without weight decay, 1e-5 from the first update on.
OPTIMIZER = optimizer.OptimizerConfig(
  peak_lr=1e-5, warmup_steps=0, weight_decay=0, beta2=0.999, clip_norm=1.0
)
LABEL_LESS = -100  # torch's sign for a token without a label
TOLERANCE = 1e-4
CHECKED_ROWS = 8


# --- Rows -------------------------------------------------------------------


class Row(NamedTuple):
  """One sequence: our example, and the row of TRL's dataset."""

  example: encoding.Example
  row: dict[str, Any]


def make_rows(
  solutions: Sequence[schema.Solution], model: peer.Model
) -> tuple[list[Row], Counter[str]]:
  """Returns the sequences with a target, and the counts of all.

  TRL's end where ours do, at the last target: it isn't given the steps after
  it, which would only cost it time. A step without a target has torch's -100.
  """
  rows: list[Row] = []
  counts: Counter[str] = Counter()
  for solution in solutions:
    examples, counted = encoding.prm_examples(
      [solution], model.tokenizer, model.encoding, encoding.LabelPolicy()
    )
    counts += counted
    for example in examples:
      at = np.flatnonzero(example.step_end)
      labels = np.where(example.weights[at] > 0, example.labels[at], LABEL_LESS)
      row = dict(
        prompt=solution.problem,
        completions=list(solution.steps[: len(at)]),
        labels=labels.astype(int).tolist(),
      )
      rows.append(Row(example, row))
  return rows, counts


class Sampled(NamedTuple):
  """Some of an epoch's batches as TRL draws them, by the numbers of their rows.

  share: of the epoch's slots (tokens and padding) that they hold.
  """

  batches: list[np.ndarray]
  share: float
  counts: dict[str, float]


def trl_batches(
  examples: Sequence[encoding.Example], args: argparse.Namespace
) -> Sampled:
  """Returns every k-th batch by width of an epoch in random order.

  Each is padded to its own longest sequence.
  """
  order = np.random.default_rng(args.seed).permutation(len(examples))
  groups = [
    order[start : start + args.batch]
    for start in range(0, len(order), args.batch)
  ]
  lengths = np.asarray([len(x) for x in examples])
  widths = np.asarray([lengths[group].max() for group in groups])
  slots = int(sum(w * len(group) for w, group in zip(widths, groups)))
  # The last one may lack rows, and the trainer would fill it with the next's.
  whole = len(order) // args.batch
  k = max(1, whole // args.timed_updates)
  chosen = np.argsort(widths[:whole], kind="stable")[k // 2 :: k]
  counts = dict(
    tokens=int(lengths.sum()),
    slots=slots,
    fill=lengths.sum() / slots,
    labels=round(sum(float(x.weights.sum()) for x in examples)),
    updates=len(groups),
  )
  share = float(args.batch * widths[chosen].sum() / slots)
  return Sampled([groups[i] for i in chosen], share, counts)


# --- The two sides ----------------------------------------------------------


class TrlRun(NamedTuple):
  """run: an epoch over its rows; returns what the updates cost. losses,
  norms: of every update so far, the latter before clipping."""

  run: Callable[[], timing.Cost]
  losses: list[float]
  norms: list[float]
  settings: dict[str, Any]


def trl_side(
  model: peer.Model, rows: Sequence[Row], args: argparse.Namespace, **changes
) -> TrlRun:
  """Returns TRL's trainer on rows in this order, `args.batch` to an update.

  Its own loop runs; the cost is from the begin of each update to its end, so
  that collating isn't counted, as making rows isn't on our side. Given rows
  are compared with what it makes of them.

  Raises:
    RuntimeError: it makes other ids or labels than we do.
  """
  torch = peer.torch()
  # It says that PRMTrainer may go, and it has gone: that's why it is pinned.
  os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
  import datasets
  import transformers
  from trl.experimental import prm

  datasets.disable_progress_bars()
  spent: list[timing.Cost] = []

  class Clock(transformers.TrainerCallback):
    def on_step_begin(self, *_, **__):
      peer.wait(args.device)
      self.start = time.perf_counter(), time.process_time()

    def on_step_end(self, *_, **__):
      peer.wait(args.device)
      wall, cpu = self.start
      spent.append(
        timing.Cost(time.perf_counter() - wall, time.process_time() - cpu)
      )

  config = prm.PRMConfig(
    output_dir=str(model.folder / "trl"),
    per_device_train_batch_size=args.batch,
    num_train_epochs=1,
    max_length=model.encoding.max_tokens,
    train_sampling_strategy="sequential",
    use_cpu=args.device == "cpu",
    save_strategy="no",
    logging_strategy="no",
    report_to="none",
    disable_tqdm=True,
    **changes,
  )
  trainer = prm.PRMTrainer(
    model=transformers.AutoModelForTokenClassification.from_pretrained(
      model.folder
    ),
    args=config,
    train_dataset=datasets.Dataset.from_list([x.row for x in rows]),
    processing_class=peer.torch_tokenizer(model.folder),
    callbacks=[Clock()],
  )
  trainer.remove_callback(transformers.PrinterCallback)
  _check_rows(trainer.train_dataset, rows)
  losses, norms = [], []
  step, clip = trainer.training_step, trainer._clip_grad_norm

  def watched_step(*inputs, **more):
    loss = step(*inputs, **more)
    losses.append(loss)
    return loss

  def watched_clip(*inputs):
    norm = clip(*inputs)
    norms.append(norm)
    return norm

  trainer.training_step = watched_step
  trainer._clip_grad_norm = watched_clip

  def run() -> timing.Cost:
    spent.clear()
    trainer.train()
    if not torch.isfinite(losses[-1]):
      raise RuntimeError("the loss is no number: this timed nonsense")
    return timing.Cost(*(sum(x) for x in zip(*spent, strict=True)))

  used = dict(
    bf16=config.bf16,
    gradient_checkpointing=config.gradient_checkpointing,
    optimizer=str(config.optim.value),
    attention=trainer.model.config._attn_implementation,
    parameters=str(next(trainer.model.parameters()).dtype),
  )
  return TrlRun(run, losses, norms, used)


def _check_rows(trl_rows: Any, rows: Sequence[Row]) -> None:
  for trl_row, (example, _) in zip(trl_rows, rows, strict=True):
    labels = np.where(example.weights > 0, example.labels, LABEL_LESS)
    same = np.array_equal(trl_row["input_ids"], example.tokens)
    if not same or not np.array_equal(trl_row["labels"], labels):
      raise RuntimeError(
        "TRL makes other ids or labels of a row than we do: nothing was timed"
      )


def our_layouts(
  rows: Sequence[Row],
  names: Sequence[str],
  sampled: Sampled,
  model: peer.Model,
  args: argparse.Namespace,
) -> dict[str, train_step.Layout]:
  """Returns rows padded as by TRL, packed, and with shared prefixes."""
  examples = [x.example for x in rows]
  layouts = {}
  if "padded" in names:
    batches = [_padded([examples[i] for i in x]) for x in sampled.batches]
    layouts["padded"] = train_step.Layout(
      batches, sampled.share, sampled.counts
    )
  for name in names:
    if name == "packed":
      segments = examples
    elif name == "tree":
      segments = packing.trees(examples, args.sequence_length)
    else:
      continue
    layouts[name] = train_step.packed(
      segments, args.sequence_length, model.config, args
    )
  return layouts


def _padded(examples: Sequence[encoding.Example]) -> Any:
  longest = max(map(len, examples))
  return packing.fill([[packing.chain(x)] for x in examples], longest)


# --- Both compute the same --------------------------------------------------


def check_same(
  rows: Sequence[Row], model: peer.Model, args: argparse.Namespace
) -> dict[str, dict[str, float]]:
  """Returns the largest differences between TRL's and our first two updates.

  Of the loss, in nats, and of the gradient's norm, relative; on a few rows of
  one problem in float32, ours as padded and packed rows and as a tree. The
  second loss is that of the parameters after the first update.

  Raises:
    RuntimeError: a difference is larger than TOLERANCE.
  """
  chosen = checked_rows(rows)
  quick = argparse.Namespace(**vars(args) | dict(batch=len(chosen)))
  trl_run = trl_side(model, chosen, quick, **TRL["trl_float32"])
  for _ in range(2):
    trl_run.run()
  examples = [x.example for x in chosen]
  length = max(args.sequence_length, max(map(len, examples)))
  trees = packing.trees(examples, length)
  layouts = dict(
    padded=_padded(examples),
    packed=_in_rows([packing.chain(x) for x in examples], length),
    tree=_in_rows(trees, length),
  )
  differences = {}
  for name, batch in layouts.items():
    run = update_checks.Updates(model.config, args.seed, optimizer=OPTIMIZER)
    run.start(model.params)
    metrics = run([batch]) + run([batch])
    differences[name] = differ = dict(
      loss_nats=_largest(trl_run.losses, [x["loss_nats"] for x in metrics]),
      grad_norm=_largest(
        trl_run.norms, [x["grad_norm"] for x in metrics], True
      ),
    )
    if not all(value <= TOLERANCE for value in differ.values()):
      raise RuntimeError(
        f"{name}: TRL's updates and ours differ by {differ}, more than"
        f" {TOLERANCE}: nothing was timed"
      )
  first, second = trl_run.losses
  differences["trl"] = dict(
    loss_nats=float(first), second_loss_nats=float(second)
  )
  return differences


def checked_rows(rows: Sequence[Row]) -> list[Row]:
  """Returns the first few rows of the problem that has the most."""
  groups = Counter(x.example.group for x in rows)
  (group, _), *_ = groups.most_common(1)
  return [x for x in rows if x.example.group == group][:CHECKED_ROWS]


def _in_rows(segments: Sequence[packing.Segment], length: int) -> Any:
  rows = packing.assign_rows([len(x) for x in segments], length)
  return packing.fill([[segments[i] for i in row] for row in rows], length)


def _largest(expected, values, relative: bool = False) -> float:
  a, b = (np.asarray([float(x) for x in side]) for side in (expected, values))
  return float(np.max(np.abs(a - b) / (np.abs(a) if relative else 1.0)))


# --- Suites -----------------------------------------------------------------


def measure(
  suite: str, args: argparse.Namespace, folder: pathlib.Path
) -> dict[str, Any]:
  """Returns counts, rates and ratios of one kind of rows."""
  solutions = peer.read(DATA[suite])
  model = peer.make(args, solutions, folder, args.max_tokens)
  rows, data = make_rows(solutions, model)
  same = check_same(rows, model, args)
  print(f"  same updates on both sides: {same}", flush=True)
  examples = [x.example for x in rows]
  sampled = trl_batches(examples, args)
  layouts = our_layouts(
    rows, [x.partition("_")[0] for x in args.ours], sampled, model, args
  )
  runs: dict[str, Callable[[], Any]] = {}
  settings = {}
  timed = [rows[i] for batch in sampled.batches for i in batch]
  for name in args.trl:
    side = trl_side(model, timed, args, **TRL[name])
    runs[name], settings[name] = side.run, side.settings
  for name in args.ours:
    layout, _, dtype = name.partition("_")
    config = dataclasses.replace(model.config, compute_dtype=dtype)
    update = update_checks.Updates(config, args.seed, optimizer=OPTIMIZER)
    update.start(model.params)
    runs[name] = functools.partial(update, layouts[layout].batches)
  for run in runs.values():
    run()  # compiles
  costs = timing.alternate(runs, args.rounds)
  shares: dict[str, Any] = dict.fromkeys(args.trl, sampled)
  shares |= {name: layouts[name.partition("_")[0]] for name in args.ours}
  amounts = {
    "useful tokens": sum(map(len, examples)),
    "solutions": len(examples),
    "useful labels": sampled.counts["labels"],
  }
  measured = {}
  for name, of in shares.items():
    parts = {"processed tokens": of.counts["slots"]} | amounts
    for what, amount in parts.items():
      measured[f"{name}: {what}/s"] = timing.rate(
        amount * of.share, costs[name]
      )
  for our_name in args.ours:
    for trl_name in args.trl:
      a, b = shares[our_name], shares[trl_name]
      ratio = functools.partial(timing.ratio, costs[trl_name], costs[our_name])
      useful = a.share / b.share
      slots = a.counts["slots"] / b.counts["slots"]
      pair = f"{our_name} / {trl_name}"
      measured[f"{pair}, per processed token"] = ratio(useful * slots)
      measured[f"{pair}, per useful label"] = ratio(useful)
  counts = {"data": {k: int(v) for k, v in data.items() if v}, "trl": sampled}
  counts |= layouts
  return dict(
    model=vars(model.config),
    trl=settings,
    differences=same,
    counts={
      name: dict(of.counts, timed_share=of.share) if name != "data" else of
      for name, of in counts.items()
    },
    measured=measured,
  )


def _names(known: Sequence[str]) -> Callable[[str], list[str]]:
  def read(text: str) -> list[str]:
    wrong = [x for x in text.split(",") if x not in known]
    if wrong:
      raise argparse.ArgumentTypeError(
        f"{wrong[0]!r}: expected some of {', '.join(known)}"
      )
    return text.split(",")

  return read


def arguments() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add = parser.add_argument
  add("--suite", choices=DATA, help="one; both by default")
  add("--output", type=pathlib.Path, help="results as JSON")
  add("--rounds", type=int, default=5)
  peer.add_arguments(parser)
  add("--max_tokens", type=int, default=1024, help="longest sequence; TRL's")
  add("--batch", type=int, default=8, help="rows of TRL's update; its default")
  add("--sequence_length", type=int, default=2048, help="of our packed rows")
  add("--batch_tokens", type=int, default=4096, help="of our packed update")
  add("--timed_updates", type=int, default=4, help="of each side in a turn")
  add("--trl", type=_names(tuple(TRL)), default=list(TRL), help=", ".join(TRL))
  add("--ours", type=_names(OURS), default=list(OURS), help=", ".join(OURS))
  return parser


def main() -> None:
  peer.run_suites("vs_trl.py", arguments().parse_args(), DATA, measure)


if __name__ == "__main__":
  results.run(main)
