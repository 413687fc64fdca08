"""Data that stays in its files: memory, time to the first batch, records/s.

  python benchmarks/stream.py [--solutions=1000000] [--output=FILE.json]

Writes that many short solutions to ArrayRecord, then does everything but the
training: reads the digests, indexes, packs an epoch and takes batches. A second
start finds what the first one kept. Each phase is a process of its own, so that
its peak of memory is its own; `imports` is one that does nothing. `lists` is
the same from a JSON Lines file, all in memory, of fewer solutions.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
import contextlib
import io
import multiprocessing
import pathlib
import resource
import sys
import tempfile
import time
from typing import Any

import results

from prm_jax import schema
from prm_jax.datasets import tfds_records
from prm_jax.device_check import timing
from prm_jax.records import jsonl
from prm_jax.records import sources
from prm_jax.text import encoding
from prm_jax.text import tokenizer as tokenizer_lib
from prm_jax.training import batches as batches_lib
from prm_jax.training import loop
from prm_jax.training import optimizer
from prm_jax.training import prm
from prm_jax.training import train_config

PHASES = ("imports", "write", "first start", "second start", "lists")


def solutions(num: int) -> Iterator[schema.Solution]:
  """Yields distinct solutions of three steps, some 80 tokens as bytes."""
  for i in range(num):
    a, b = i % 997, i // 997
    wrong = i % 3
    total = 17 * a + (wrong == 1)
    answer = total + b + (wrong == 2)
    labels = (1.0, float(wrong != 1), float(wrong == 0))
    yield schema.Solution(
      id=str(i),
      problem=f"Compute 17 * {a} + {b}.",
      steps=(
        f"First 17 * {a}.",
        f"17 * {a} = {total}",
        f"{total} + {b} = {answer}",
      ),
      labels=labels,
      answer=str(answer),
      outcome=wrong == 0,
      source="arithmetic",
    )


def config(args: argparse.Namespace) -> train_config.TrainConfig:
  model = dict(
    d_model=8, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=8, d_ff=8
  )
  return train_config.TrainConfig(
    objective=prm.PRMConfig(),
    seed=args.seed,
    model=model,
    encoding=encoding.EncodingConfig(max_tokens=args.sequence_length),
    packing=batches_lib.PackingConfig(
      args.rows, args.sequence_length, args.share_prefixes
    ),
    optimizer=optimizer.OptimizerConfig(peak_lr=1e-3),
    fit=loop.FitConfig(steps=1),
  )


class _Stages:
  """Seconds of each stage, on the clock and of this process's cores."""

  def __init__(self):
    self.seconds: dict[str, Any] = {}
    self._last = self._now()

  def _now(self) -> timing.Cost:
    return timing.Cost(time.perf_counter(), time.process_time())

  def note(self, stage: str) -> None:
    now = self._now()
    self.seconds[f"{stage}_s"] = now.wall - self._last.wall
    self.seconds[f"{stage}_cpu_s"] = now.cpu - self._last.cpu
    self._last = now


# --- Phases -----------------------------------------------------------------


def imports(args: argparse.Namespace, folder: pathlib.Path) -> dict[str, Any]:
  del args, folder
  return {}


def write(args: argparse.Namespace, folder: pathlib.Path) -> dict[str, Any]:
  tfds_records.quiet(bars=False)
  took = _Stages()
  made = tfds_records.write(
    folder, "made", dict(train=solutions(args.solutions))
  )
  took.note("write")
  size = sum(path.stat().st_size for path in made.glob("*.array_record*"))
  few = solutions(args.solutions // args.lists_part)
  jsonl.write_solutions(folder / "few.jsonl", few)
  return took.seconds | dict(data_mib=size / 2**20)


def start(source: str, args: argparse.Namespace) -> dict[str, Any]:
  """Returns times, sizes and the costs of rounds of batches."""
  took = _Stages()
  data = sources.load(sources.CorpusConfig((source,)))
  took.note("read")
  run = config(args)
  rows, counts = batches_lib.encode_rows(
    *(run.objective, run.packing, run.encoding),
    *(data.train, tokenizer_lib.Bytes(), args.seed),
  )
  took.note("index")
  rows.batch_at(0)
  took.note("pack")
  step, targets = 0, 0.0

  def batches() -> None:
    nonlocal step, targets
    for _ in range(args.batches):
      step += 1
      # Steps from all over the epoch: any is as near as the next.
      batch = rows.batch_at(step * 7919 % (rows.rows_per_epoch // args.rows))
      targets += float(batch.weights.sum())

  costs = timing.alternate(dict(batches=batches), args.rounds)["batches"]
  pieces_a_row = len(rows.segments) / rows.rows_per_epoch
  return took.seconds | dict(
    costs=costs,
    counts={
      "solutions": counts["solutions"],
      "pieces": len(rows.segments),
      "tokens": int(rows.lengths.sum()),
      "rows an epoch": rows.rows_per_epoch,
      "fill": rows.fill,
      "solutions a batch": pieces_a_row * args.rows,
      "targets a batch": targets / step,
    },
  )


def stored(args: argparse.Namespace, folder: pathlib.Path) -> dict[str, Any]:
  made = folder / "solutions" / "made" / str(tfds_records.VERSION)
  return start(f"{sources.STORED}:{made}", args)


def lists(args: argparse.Namespace, folder: pathlib.Path) -> dict[str, Any]:
  return start(f"jsonl:{folder / 'few.jsonl'}", args)


def _alone(
  run: Callable[..., dict[str, Any]], *arguments: Any
) -> dict[str, Any]:
  """Returns what a phase gives, and the peak of its own process's memory."""
  with contextlib.redirect_stdout(io.StringIO()):
    result = run(*arguments)
  # Kilobytes on Linux, bytes on macOS.
  unit = 1 if sys.platform == "darwin" else 1024
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
  return result | dict(peak_mib=peak / 2**20)


def measure(args: argparse.Namespace) -> dict[str, Any]:
  runs = dict(zip(PHASES, (imports, write, stored, stored, lists), strict=True))
  context = multiprocessing.get_context("spawn")
  by_phase: dict[str, dict[str, Any]] = {}
  with tempfile.TemporaryDirectory(dir=args.folder) as folder:
    for phase, run in runs.items():
      with context.Pool(1) as pool:
        by_phase[phase] = pool.apply(_alone, (run, args, pathlib.Path(folder)))
      seconds = {
        k: round(v, 1)
        for k, v in by_phase[phase].items()
        if k[-1] == "s" and isinstance(v, float)
      }
      peak = by_phase[phase]["peak_mib"]
      print(f"{phase}: {seconds} peak {peak:.0f} MiB", flush=True)
  counts, measured = {}, {}
  for phase in PHASES[2:]:
    of = counts[phase] = by_phase[phase].pop("counts")
    costs = by_phase[phase].pop("costs")
    amount = args.batches * of["solutions a batch"]
    measured[f"{phase}: batches/s"] = timing.rate(args.batches, costs)
    measured[f"{phase}: solutions/s"] = timing.rate(amount, costs)
  return dict(
    phases={
      phase: {k: float(f"{v:.4g}") for k, v in values.items()}
      for phase, values in by_phase.items()
    },
    counts=counts,
    measured=measured,
  )


def main() -> None:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--solutions", type=int, default=1_000_000)
  parser.add_argument(
    "--lists_part", type=int, default=10, help="lists take one in so many"
  )
  parser.add_argument("--batches", type=int, default=50, help="of a round")
  parser.add_argument("--rounds", type=int, default=5)
  parser.add_argument("--rows", type=int, default=16)
  parser.add_argument("--sequence_length", type=int, default=1024)
  parser.add_argument("--share_prefixes", action="store_true")
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument(
    "--folder", type=pathlib.Path, help="for the data; a temporary one"
  )
  parser.add_argument("--output", type=pathlib.Path, help="results as JSON")
  args = parser.parse_args()
  for name in ("solutions", "lists_part", "batches", "rounds", "rows"):
    if getattr(args, name) < 1:
      parser.error(f"--{name}: give 1 or more")
  result = results.provenance("stream.py", args) | measure(args)
  print(results.show(result))
  results.finish(result, args.output)


if __name__ == "__main__":
  results.run(main)
