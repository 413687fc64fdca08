"""Communication and FLOPs of an update per chip, from 1 chip to 512.

  python benchmarks/weak_scaling.py [--chip=v5p] [--output=FILE.json]

Compiles the same run, one row a chip, for larger and larger slices, ahead of
time: counts, no times. Nothing runs; it needs only the `tpu` extra.
With a fixed share of rows, FLOPs and the bytes of sharded parameters' gathers
per chip shouldn't grow; a chip's memory should fall.
"""

from __future__ import annotations

import argparse
import math
import pathlib
from typing import Any

import jax
import results

from prm_jax.plan import compile as plan_compile
from prm_jax.plan import plan_tables as plan_tables
from prm_jax.plan import runs
from prm_jax.plan import topologies
from prm_jax.reports import plot
from prm_jax.runtime import files
from prm_jax.runtime import verbs
from prm_jax.training import train_run_config

CONFIG = "experiments/prm800k_qwen2_5_math_1_5b.py"
# fsdp stays at 16 at most: slices of a kernel keep whole tiles.
SLICES = {
  "v5e": ("1x1", "2x2", "4x4", "8x8", "16x16"),
  "v6e": ("1x1", "2x2", "4x4", "8x8", "16x16"),
  "v5p": ("1x1x1", "2x2x1", "2x2x4", "4x4x4", "4x8x8", "8x8x8"),
}
FSDP = 16


def plan(name: str, overrides: list[str]) -> plan_compile.Plan:
  """Returns the plan of the run with one row a chip."""
  topology = topologies.parse(name)
  fsdp = min(FSDP, topology.size)
  fields = [
    *overrides,
    f"packing.batch_size={topology.size}",
    f"mesh=({topology.size // fsdp}, {fsdp}, 1)",
  ]
  config = train_run_config.supervised(verbs.Config(CONFIG, tuple(fields)))
  return plan_compile.of_update(
    runs.update_of(
      train_run_config.from_config(config), config.tokenizer.vocab_size
    ),
    topology,
    topologies.devices(topology),
  )


def row(planned: plan_compile.Plan) -> dict[str, Any]:
  """Returns a line of the table; bytes and FLOPs are of one chip."""
  record = plan_tables.record(planned)
  if planned.sent is None or planned.peak is None:
    return dict(record, chips=math.prod(planned.mesh))
  return dict(
    chips=math.prod(planned.mesh),
    topology=planned.topology,
    mesh=list(planned.mesh),
    peak_gib=planned.peak / topologies.GIB,
    fits=planned.fits,
    computed_tflop=planned.hardware_flops / 1e12,
    model_tflop=planned.model_flops / 1e12,
    sent_gib={k: v / topologies.GIB for k, v in planned.sent.data.items()},
    wire_gib=planned.sent.wire / topologies.GIB,
    wire_s=planned.seconds["wire"],
    compute_s=planned.seconds["compute"],
    compile_s=planned.compile_s,
  )


def table(rows: list[dict[str, Any]]) -> str:
  """Returns the rows in Markdown."""
  lines = [
    "| chips | mesh | memory, GiB | TFLOP | over the wire, GiB | wire / compute |",
    "|---|---|---|---|---|---|",
  ]
  for r in rows:
    mesh = " x ".join(map(str, r["mesh"]))
    if "wire_gib" not in r:
      lines.append(f"| {r['chips']} | {mesh} | doesn't fit | | | |")
      continue
    over = "" if r["fits"] else " (doesn't fit)"
    lines.append(
      f"| {r['chips']} | {mesh} | {r['peak_gib']:.2f}{over} |"
      f" {r['computed_tflop']:.1f} | {r['wire_gib']:.2f} |"
      f" {r['wire_s'] / r['compute_s']:.2f} |"
    )
  return "\n".join(lines)


def figure(rows: list[dict[str, Any]]) -> bytes:
  """Returns FLOPs and bytes per chip over chips as an SVG file."""
  known = [r for r in rows if "wire_gib" in r]
  series = dict(
    wire_gib=plot.LineStyle("sent, GiB", "k0"),
    computed_tflop=plot.LineStyle("TFLOP", "k2", plot.SQUARE),
  )
  curves = []
  for name, style in series.items():
    points = plot.bins([(math.log2(r["chips"]), r[name]) for r in known])
    texts = [f"{r['chips']} chips: {r[name]:.2f}" for r in known]
    curves.append(plot.Curve(style, points, texts))
  axes = plot.Axes(
    title="An update, per chip: the same at every size",
    x_label="chips, one row of 4,096 tokens each",
    y_label="per chip and update",
    x_ticks=[(math.log2(r["chips"]), str(r["chips"])) for r in known],
  )
  return plot.draw(curves, axes, (760, 360), "right").encode()


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--chip", default="v5p", choices=sorted(SLICES))
  parser.add_argument("--config", action="append", default=[], metavar="F=V")
  parser.add_argument("--output", type=pathlib.Path)
  args = parser.parse_args()
  jax.config.update("jax_platforms", "cpu")
  rows = []
  for shape in SLICES[args.chip]:
    rows.append(row(plan(f"{args.chip}:{shape}", args.config)))
    print(table(rows).splitlines()[-1], flush=True)
  print("\n" + table(rows))
  if args.output is not None:
    result = results.provenance("weak_scaling.py", args) | dict(rows=rows)
    files.write_json(args.output, result)
    args.output.with_suffix(".svg").write_bytes(figure(rows))


if __name__ == "__main__":
  main()
