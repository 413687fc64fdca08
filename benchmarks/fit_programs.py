"""The programs of each task of fits.py, and what else is in memory with them.

Nothing is run or held here: parameters are shapes, and programs are those that
the commands compile, traced for a mesh of one device that isn't here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import dataclasses
import functools
import inspect
from typing import Any, NamedTuple

import engine_shapes
from flax.core import meta
import jax
from jax import numpy as jnp
import numpy as np

from prm_jax.device_check import shapes
from prm_jax.jobs import policies
from prm_jax.models import kinds
from prm_jax.models import model_config
from prm_jax.models import sharding
from prm_jax.models import transformer
from prm_jax.plan import compile as plan_compile
from prm_jax.plan import planned_memory as memory_lib
from prm_jax.plan import topologies
from prm_jax.policy import drawing
from prm_jax.policy import engine_programs
from prm_jax.policy import page_table
from prm_jax.policy import rollout_engine
from prm_jax.rows import packing
from prm_jax.scoring import cached_scorer
from prm_jax.scoring import prefix_programs
from prm_jax.scoring import prefix_shapes
from prm_jax.scoring import row_shapes
from prm_jax.scoring import scorer as scorer_lib

# Qwen2.5's shapes.
MODELS = {
  "0.5B": dataclasses.replace(
    shapes.SHAPES["1_5b"],
    d_model=896,
    num_layers=24,
    num_heads=14,
    head_dim=64,
    d_ff=4864,
  ),
  "1.5B": shapes.SHAPES["1_5b"],
  "7B": shapes.SHAPES["7b"],
}
# The longest prompt, completion and row of a task, in tokens.
PROMPT, COMPLETION, ROW = 512, 1024, 4096
# In a search the longest step.
STEP = 256
_ENGINE = {f.name: f.default for f in dataclasses.fields(rollout_engine.Engine)}


class Needs(NamedTuple):
  """What one program needs, in bytes.

  Args:
    peak: The most bytes in use, its arguments included; None if the compiler
      refused it.
    arguments: The bytes of its arguments; None if it was refused.
    refused: What the compiler said then.
  """

  peak: int | None
  arguments: int | None
  refused: str = ""


@dataclasses.dataclass(frozen=True)
class Part:
  """A program of a task.

  Args:
    name: Its name.
    held: The bytes in memory that aren't its arguments.
    compile: Compiles it.
    rows: The number of rows of an update; 0 isn't an update's choice.
    remat: What an update's backward pass computes again; "" is no update.
  """

  name: str
  held: int
  compile: Callable[[], Needs]
  rows: int = 0
  remat: str = ""


@dataclasses.dataclass(frozen=True)
class Target:
  """One chip to compile for.

  Args:
    topology: The chip.
    devices: Its device, which can't run anything.
  """

  topology: topologies.Topology
  devices: tuple[Any, ...]

  @functools.cached_property
  def mesh(self) -> jax.sharding.Mesh:
    return sharding.make_mesh((1, 1, 1), self.devices)

  def like(self, tree: Any) -> Any:
    """Returns the shapes and types of a tree's arrays, on the device."""
    where = sharding.replicated(self.mesh)
    return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), tree
    )

  def part(
    self, name: str, held: int, function: Any, *args: Any, **static: Any
  ) -> Part:
    """Returns a jitted function as a part.

    Args:
      name: Its name.
      held: See Part.
      function: The function.
      *args: Its arguments, arrays or their shapes.
      **static: Its static arguments.
    """

    def compile_it() -> Needs:
      with jax.set_mesh(self.mesh):
        return needs(function.trace(*self.like(args), **static))

    return Part(name, held, compile_it)


def needs(traced: Any) -> Needs:
  """Returns what a traced program needs."""
  try:
    compiled = traced.lower().compile()
  except jax.errors.JaxRuntimeError as e:
    if "RESOURCE_EXHAUSTED" not in str(e):
      raise
    return Needs(None, None, plan_compile.refusal(str(e)))
  memory = compiled.memory_analysis()
  return Needs(memory_lib.peak(memory), memory.argument_size_in_bytes)


def num_bytes(tree: Any) -> int:
  """Returns the bytes of a tree of arrays or shapes."""
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def imported(model: model_config.ModelConfig, program: str) -> Any:
  """Returns a published model's parameters, bfloat16 stacks, as shapes.

  Args:
    model: The model.
    program: What it is, as programs.KINDS names it.
  """

  def made(key):
    params = meta.unbox(
      transformer.init(key, model, kinds.KINDS[program].heads)
    )
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)

  return jax.eval_shape(made, jax.random.key(0))


# --- score -------------------------------------------------------


def score(target: Target, model: model_config.ModelConfig) -> Iterator[Part]:
  """Yields the programs of `score`: a full batch of short and of long rows."""
  params = imported(model, "prm")
  for length in (COMPLETION, ROW):
    rows = row_shapes.Shapes(scorer_lib.BATCH_TOKENS).most_rows(length)
    yield forward(target, model, params, rows, length)


def forward(target, model, params, rows, length, held=0) -> Part:
  return target.part(
    f"score {rows} x {length}",
    held,
    scorer_lib._forward,
    params,
    packing.fill([[]] * rows, length),
    config=model,
    program="prm",
    scoring=(),
  )


# --- sample and label --------------------------------------------


def sample(target: Target, model: model_config.ModelConfig) -> Iterator[Part]:
  """Yields the programs of `sample` and of labels by rollouts."""
  params = engine_shapes.weights(model, "bfloat16")
  yield from rollouts(target, model, params, PROMPT, COMPLETION)


def rollouts(
  target: Target,
  model: model_config.ModelConfig,
  params: Any,
  prompt: int,
  completion: int,
  *,
  held: int = 0,
  tempered: bool = False,
) -> Iterator[Part]:
  """Yields the engine's programs with every slot at its longest completion.

  Args:
    target: The chip.
    model: The policy.
    params: Its parameters.
    prompt: The longest prompt.
    completion: The longest completion.
    held: The bytes of everything else.
    tempered: Whether it samples as reinforcement learning does, else with the
      top_k and top_p that Qwen2.5's own files ask for.
  """
  slots, page = policies.SLOTS, rollout_engine._Run.PAGE_TOKENS
  # Each slot has a prompt of its own: no call has more buffers.
  N, buffers = rollout_engine.grouping([1] * slots, slots)
  G, width = slots // N, packing.padded_length(prompt)
  num_pages = most_pages(slots, completion, page)
  state = engine_shapes.state(
    model,
    engine_shapes.Layout(G, N, buffers, num_pages),
    prompt_tokens=width,
    page_tokens=page,
  )
  # A stack that is trained is copied for decoding, and stays: see
  # held.for_decoding. The copy is there until the last completion ends.
  apart = jax.eval_shape(lambda p: transformer.for_decoding(model, p), params)
  is_copy = apart != params
  tokens = np.zeros(max(width, 256), np.int32)
  yield target.part(
    "prefill",
    held + is_copy * num_bytes(apart),
    engine_programs.prefill,
    *(params, state.caches, tokens, tokens, tokens),
    np.zeros((engine_programs.PACKED, 3), np.int32),
    config=model,
    width=width,
  )
  how = drawing.Sampling(completion, temperature=0.7, top_p=0.8, top_k=20)
  if tempered:
    how = drawing.Sampling(completion, tempered=True)
  yield target.part(
    "decode",
    held + is_copy * num_bytes(params),
    engine_programs.decode_chunk,
    *(apart, *state),
    config=model,
    sampling=how,
    ends=(0, 1),
    width=width,
    chunk=_ENGINE["chunk"],
  )


def most_pages(slots: int, completion: int, page_tokens: int) -> int:
  """Returns how many pages a call has when its longest completions end.

  All slots begin at the same time. The number is rounded up to whole slots.
  """
  table = page_table.empty(slots)
  for drawn in range(page_tokens, completion + 1, page_tokens):
    table, _ = page_table.allocate(
      table, np.ones(slots, bool), np.full(slots, drawn), page_tokens
    )
  return -(-len(table.owner) // slots) * slots


# --- search ------------------------------------------------------


def search(target: Target, model: model_config.ModelConfig) -> Iterator[Part]:
  """Yields the programs of a search: a policy and a PRM of one shape."""
  policy = engine_shapes.weights(model, "bfloat16")
  prm = imported(model, "prm")
  pages = jax.eval_shape(
    lambda: prefix_programs.Pages(
      *[
        jnp.zeros(
          (model.num_layers, *_pages(), model.num_kv_heads, model.head_dim),
          model.compute_dtype,
        )
      ]
      * 2
    )
  )
  yield from rollouts(
    *(target, model, policy, PROMPT + COMPLETION, STEP),
    held=num_bytes((prm, pages)),
  )
  for shape in CACHED:
    rows = _rows(shape)
    yield target.part(
      f"score {shape.size} x {shape.tokens} behind {shape.pages} pages",
      num_bytes(policy),
      prefix_programs.extend,
      *(prm, pages, rows),
      config=model,
      program="prm",
    )
    new = (shape.size, shape.tokens, model.num_kv_heads, model.head_dim)
    keys = jax.ShapeDtypeStruct(
      (model.num_layers, *new), jnp.dtype(model.compute_dtype)
    )
    yield target.part(
      f"put {shape.size} x {shape.tokens}",
      num_bytes((policy, prm)),
      prefix_programs.put,
      *(pages, (keys, keys), rows.places),
    )


# Of the shapes that batches of at most PROMPT + COMPLETION tokens can have, the
# one with most new tokens and the one with most pages.
CACHED = (prefix_shapes.Shape(64, 32, 64), prefix_shapes.Shape(4, 256, 128))
_CACHED_SCORER = inspect.signature(cached_scorer.CachedScorer).parameters


def _pages() -> tuple[int, int]:
  """Returns the cached scorer's most pages, and the tokens of one."""
  size = _CACHED_SCORER["page_tokens"].default
  return -(-_CACHED_SCORER["cache_tokens"].default // size), size


def _rows(shape: prefix_shapes.Shape) -> prefix_programs.Rows:
  tokens = np.zeros((shape.size, shape.tokens), np.int32)
  pages = np.zeros((shape.size, shape.pages), np.int32)
  seen = np.zeros((*tokens.shape, shape.pages), np.int32)
  return prefix_programs.Rows(
    tokens, tokens, tokens, pages, pages, seen, tokens
  )
