"""A step of decoding: its bytes on paper, and in a GPU's compiled program.

  JAX_PLATFORMS=cpu python benchmarks/decode_step.py [--output=FILE]

Compiles `engine_programs.decode_chunk` in Qwen2.5's shapes for a GPU that isn't
here (the extra cuda12), and counts the kernels of a step and the bytes that
they move. Nothing runs on a GPU, and no time is measured: without the chip XLA
can't try which of its matrix products is fastest, so a program compiled there
has others. benchmarks/README.md says what each number means.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import pathlib
import re
import time
from typing import Any

import engine_shapes
import jax
import kernels
import results

from prm_jax.device_check import shapes
from prm_jax.models import model_config
from prm_jax.models import sharding
from prm_jax.plan import topologies
from prm_jax.policy import drawing
from prm_jax.policy import engine_programs
from prm_jax.policy import rollout_engine

SHAPES = {
  "0.5B": model_config.ModelConfig(
    *(151_936, 896, 24, 14, 2, 64, 4864),
    qkv_bias=True,
    compute_dtype="bfloat16",
  ),
  "1.5B": shapes.SHAPES["1_5b"],
}
SLOTS = (16, 64, 256)
# Of a prompt and of its completions, of which there are twice as many as slots.
PROMPT, NEW, SAMPLES = 128, 128, 8
CHUNK, PAGE = 8, 16
SAMPLINGS = {
  "greedy": drawing.Sampling(NEW, temperature=0.0),
  "plain": drawing.Sampling(NEW),
  "top_p": drawing.Sampling(NEW, top_p=0.95),
  "top_k": drawing.Sampling(NEW, top_k=20),
  # As Qwen2.5's generation_config.json says.
  "published": drawing.Sampling(NEW, 0.7, 0.8, top_k=20),
}
# The first pattern in an operation's name says which part it belongs to.
PARTS = {
  "token rows": r"Transformer\.embed",
  "layers' weights": r"Block/(mlp|\w+_norm|add)"
  r"|attention/(query|key|value|output)/",
  "output head": r"Transformer\.finish",
  "prompts": r"BNKGC|BKRP|BNKGP",
  "tails": r"RGC,|RGS,",
  "pages": r"MKG|attention/gather",
  "rest of attention": r"Block",
  "sampler": r"",
}


def layout(slots: int, pages: int = NEW // PAGE) -> engine_shapes.Layout:
  """Returns the engine's layout for this workload.

  Args:
    slots: The number of slots.
    pages: The number of pages for each slot; by default those of its budget.
  """
  prompts = 2 * slots // SAMPLES
  N, Q = rollout_engine.grouping([SAMPLES] * prompts, slots)
  return engine_shapes.Layout(slots // N, N, Q, slots * pages)


def on_paper(model: model_config.ModelConfig, slots: int) -> dict[str, int]:
  """Returns the bytes that a step of decoding needs to move, by part.

  Weights are read once. A group reads one prompt, a slot half of its completion
  on average. Logits are written and read once.
  """
  where = layout(slots)
  token = 2 * 2 * model.num_layers * model.num_kv_heads * model.head_dim
  logits = 4 * slots * model.vocab_size
  head = 2 * model.vocab_size * model.d_model
  everything = jax.tree.leaves(engine_shapes.weights(model, "bfloat16"))
  layers = sum(x.size * x.dtype.itemsize for x in everything) - head
  return {
    "token rows": 2 * slots * model.d_model,
    "layers' weights": layers,
    "output head": head + logits,
    "prompts": where.groups * PROMPT * token,
    "tails": slots * (PAGE // 2 + 1) * token,
    "pages": slots * (NEW - PAGE) // 2 * token,
    "rest of attention": 0,
    "sampler": logits,
  }


def _state(
  model: model_config.ModelConfig, where: engine_shapes.Layout
) -> engine_shapes.State:
  sizes = dict(prompt_tokens=PROMPT, page_tokens=PAGE)
  return engine_shapes.state(model, where, **sizes)


def compile_chunk(
  mesh: jax.sharding.Mesh,
  model: model_config.ModelConfig,
  params: Any,
  where: engine_shapes.Layout,
  sampling: drawing.Sampling,
) -> jax.stages.Compiled:
  """Returns the compiled program of a chunk of decoding."""
  everywhere = sharding.replicated(mesh)
  given = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere),
    (params, *_state(model, where)),
  )
  with jax.set_mesh(mesh):
    return engine_programs.decode_chunk.lower(
      *given,
      None,
      config=model,
      sampling=sampling,
      ends=(0,),
      width=PROMPT,
      chunk=CHUNK,
    ).compile()


def part(source: str) -> str:
  """Returns which part of a step an operation belongs to."""
  return next(name for name, x in PARTS.items() if re.search(x, source))


def count(compiled: jax.stages.Compiled) -> dict[str, Any]:
  """Returns what a step's kernels move, by part, and what comes once a chunk."""
  program = kernels.read(compiled.as_text())
  moved: dict[str, int] = collections.Counter()
  number: dict[str, int] = collections.Counter()
  for kernel in program.body():
    moved[part(kernel.source)] += kernel.times * kernel.bytes
    number[part(kernel.source)] += kernel.times
  memory = compiled.memory_analysis()
  return {
    "bytes": {name: moved[name] for name in PARTS},
    "bytes in all": sum(moved.values()),
    "XLA's bytes, loops once": kernels.xla_bytes(compiled),
    "kernels": {name: number[name] for name in PARTS},
    "kernels in all": sum(number.values()),
    "sorts": sum(x.opcode == "sort" for x in program.body()),
    "bytes once a chunk": sum(x.bytes for x in program.once()),
    "temporary bytes": memory.temp_size_in_bytes,
  }


def host_bytes(model: model_config.ModelConfig, slots: int) -> dict[str, int]:
  """Returns what a chunk moves between host and device."""
  _, made, pages, _ = _state(model, layout(slots))
  sizes = [x.size * x.dtype.itemsize for x in jax.tree.leaves(made)]
  tables = [x.size * x.dtype.itemsize for x in pages]
  drawn = slots * CHUNK * (4 + 4)
  return {
    "to the device": sum(sizes) + sum(tables) + 8,
    "to the host": sum(sizes) + drawn + 4,
  }


def measure(args: argparse.Namespace) -> dict[str, Any]:
  topology = topologies.parse(args.topology)
  mesh = sharding.make_mesh((1, 1, 1), topologies.devices(topology))
  paper, programs = {}, {}
  for name, model in SHAPES.items():
    for slots in args.slots:
      needed = on_paper(model, slots)
      total = sum(needed.values())
      bound = slots * topology.chip.memory_bandwidth / total
      paper[f"{name}, {slots} slots"] = {
        "bytes": needed,
        "bytes in all": total,
        "tokens/s at most": round(bound),
        "host bytes a chunk": host_bytes(model, slots),
      }
      print(f"{name}, {slots} slots: {total / 1e6:,.0f} MB on paper")
      whole, half = layout(slots), layout(slots, NEW // PAGE // 2)
      variants = {x: ("bfloat16", x, whole) for x in args.samplings}
      variants["held in float32"] = ("float32", "plain", whole)
      variants["half the pages"] = ("bfloat16", "plain", half)
      for variant, (held, sampling, where) in variants.items():
        began = time.monotonic()
        compiled = compile_chunk(
          *(
            mesh,
            model,
            engine_shapes.weights(model, held),
            where,
            SAMPLINGS[sampling],
          )
        )
        found = count(compiled)
        programs[f"{name}, {slots} slots, {variant}"] = found
        print(
          f"  {variant:15} {found['bytes in all'] / 1e6:8,.0f} MB a"
          f" step, {found['kernels in all']} kernels, {found['sorts']} sorts,"
          f" {found['bytes once a chunk'] / 1e6:,.0f} MB once a chunk"
          f" ({time.monotonic() - began:.0f} s)"
        )
  return dict(
    samplings={k: dataclasses.asdict(x) for k, x in SAMPLINGS.items()},
    paper=paper,
    programs=programs,
  )


def arguments() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add = parser.add_argument
  add("--output", type=pathlib.Path, help="results as JSON")
  add("--topology", default="h100:1", help="see prm-jax plan --help")
  add("--slots", type=int, nargs="+", default=list(SLOTS))
  add("--samplings", nargs="+", choices=SAMPLINGS, default=list(SAMPLINGS))
  return parser


def main() -> None:
  args = arguments().parse_args()
  result = results.provenance("decode_step.py", args)
  result |= measure(args)
  results.finish(result, args.output)


if __name__ == "__main__":
  results.run(main)
