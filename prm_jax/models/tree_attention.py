"""Attention over trees as one kernel, for TPUs and GPUs.

Like block_attention it computes no block of keys that none of a block of
queries sees, holds no square of a row, and computes its weights again in the
backward pass from the logarithm of their sum (Dao et al. 2022, algorithms 1,
2 and 4). Unlike it, rows, heads and blocks of queries run side by side: each
is a program of a Pallas kernel, which walks down its own list of blocks.

The lists are made from `visible_until` outside of the kernel, once for a row
and all its heads: for each block of queries the keys that it sees, and for
each block of keys the queries that see it. The same source is compiled by
Mosaic for a TPU and by Triton for a GPU. On a CPU it is interpreted, for tests.

It is compared with the reference in the interpreter
(tests/models/test_tree_attention.py) and was on an H100 and an H200
(docs/accelerators.md). For a TPU it is compiled ahead of time
(tests/models/test_tree_attention_aot.py), not run.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float, Int

from prm_jax import errors
from prm_jax.models import tree_attention_kernels
from prm_jax.models.visibility import lengthened
from prm_jax.models.visibility import Window

# What a kernel needs of a TPU's VMEM besides two whole rows of a head, each
# twice: the next is fetched meanwhile. A token's channels fill whole lanes.
_VMEM = 16 << 20
_LANES = 128


# Small blocks skip more of a row, large ones make more of each load. A TPU's
# matrix unit is 128 or 256 wide and its VMEM large. A GPU keeps a block's sums
# in registers: with 64 of 128 channels ptxas spills none on an H200, with more
# it does. Not tuned by time.
BLOCKS = dict(
  tpu=tree_attention_kernels.Blocks(256, 256),
  gpu=tree_attention_kernels.Blocks(64, 64),
  cpu=tree_attention_kernels.Blocks(128, 128),
)
# In float32 blocks of 64 with 256 channels need 256 KiB of an H200's shared
# memory, 288 with the highest precision of matmuls, and it has 227; with 128
# channels and that precision they keep 8 to 15 KB a thread on the stack. With 32
# and eight warps, of six kernels one spills 20 bytes. In bfloat16 with 256
# channels blocks of 64 need 137 KiB of an L4, which has 99, and 257 of a B200.
_SMALL_ON_GPU = tree_attention_kernels.Blocks(32, 32)


def attend(
  q: Float[Array, "B T H C"],
  k: Float[Array, "B T K C"],
  v: Float[Array, "B T K C"],
  visible_until: Int[Array, "B T"],
  window: Window | None = None,
  *,
  scale: float | None = None,
  softcap: float | None = None,
  platform: str = "cpu",
  interpret: Any = None,
) -> Float[Array, "B T H C"]:
  """Returns the result of attention.reference, up to rounding.

  Args:
    platform: tpu, gpu or cpu.
    interpret: How the platform's kernels are interpreted, as for pallas_call;
      by default only a CPU's, which has no others.
  """
  _, T, _, C = q.shape
  # Triton knows only powers of two.
  channels = max(16, 1 << (C - 1).bit_length()) if platform == "gpu" else C
  blocks = _blocks(platform, q.dtype, channels)
  length = -(-T // max(blocks)) * max(blocks)

  def heads(x):
    after = ((0, 0), (0, length - T), (0, 0), (0, channels - C))
    return jnp.pad(x, after).transpose(0, 2, 1, 3)

  until, near = lengthened(visible_until, window, length)
  if near is not None:
    near = near._replace(size=jnp.asarray(near.size, jnp.int32).reshape(1, 1))
  q = q * (C**-0.5 if scale is None else scale)
  if interpret is None:
    interpret = platform == "cpu"
  how = tree_attention_kernels.How(platform, blocks, softcap, interpret)
  out = _attend(how, heads(q), heads(k), heads(v), until, near)
  return out.transpose(0, 2, 1, 3)[:, :T, :, :C]


def _blocks(
  platform: str, dtype: Any, channels: int
) -> tree_attention_kernels.Blocks:
  if platform == "gpu" and (dtype == jnp.float32 or channels > 128):
    return _SMALL_ON_GPU
  return BLOCKS[platform]


class Lists(NamedTuple):
  """The blocks on one side that each block on the other side needs.

  The first `num[b, i]` entries of todo[b, i] are their numbers, ascending.
  """

  todo: Int[Array, "B n m"]
  num: Int[Array, "B n"]


def schedule(
  until: Int[Array, "B T"],
  near: Window | None,
  blocks: tree_attention_kernels.Blocks,
) -> tuple[Lists, Lists]:
  """Returns the blocks of keys for those of queries, and the other way round.

  T is a multiple of both sizes. A block is needed if some query of the one
  may see some key of the other.
  """
  B, T = until.shape

  def of(x, size):
    return x.reshape(B, T // size, size)

  first_query = jnp.arange(0, T, blocks.queries)[:, None]
  first_key = jnp.arange(0, T, blocks.keys)
  # A key is seen by all queries from its own to `until`: so a block is seen
  # if any of its keys reaches the first query.
  reach = of(until, blocks.keys).max(-1)[:, None]
  needed = (first_key < first_query + blocks.queries) & (reach > first_query)
  if near is not None:
    # Their last key may be near enough to their first query.
    lowest = of(near.positions, blocks.queries).min(-1)[:, :, None]
    highest = of(near.positions, blocks.keys).max(-1)[:, None]
    needed &= lowest - highest < near.size

  def lists(needed):
    todo = jnp.argsort(~needed, axis=-1, stable=True)
    return Lists(todo.astype(jnp.int32), needed.sum(-1, dtype=jnp.int32))

  return lists(needed), lists(needed.swapaxes(1, 2))


_Shaped = Array | jax.ShapeDtypeStruct


class _Refs(NamedTuple):
  """Which part of an array the program (b, h, i) of a kernel is given.

  own: how many tokens its block has. heads: of queries.
  """

  how: tree_attention_kernels.How
  own: int
  heads: int

  def _spec(self, shape: tuple[int | None, ...], at: Callable, **where: Any):
    def index(*ids):
      return at(*(ids[::-1] if self.how.axis == 0 else ids))

    return pl.BlockSpec(shape, index, **where)

  def _head(self, x: _Shaped, h: Any) -> Any:
    return jax.lax.div(h, self.heads // x.shape[1])

  def block(self, x: _Shaped) -> pl.BlockSpec:
    """Of [B, H, T, C] or [B, K, T, C]."""
    shape = (None, None, self.own, x.shape[-1])
    return self._spec(shape, lambda b, h, i: (b, self._head(x, h), i, 0))

  def numbers(self, x: _Shaped) -> pl.BlockSpec:
    """Of [B, H, 1, T]: those of a block."""
    return self._spec((None, None, 1, self.own), lambda b, h, i: (b, h, 0, i))

  def whole(self, x: _Shaped) -> pl.BlockSpec:
    """Of all of these: a whole head."""
    shape = (None, None, *x.shape[2:])
    return self._spec(shape, lambda b, h, i: (b, self._head(x, h), 0, 0))

  def row(self, x: tree_attention_kernels.Row) -> tree_attention_kernels.Row:
    whole = self._spec((None, *x.until.shape[1:]), lambda b, h, i: (b, 0, 0))
    if x.size is None:
      return tree_attention_kernels.Row(whole, None, None)
    size = self._spec((1, 1), lambda b, h, i: (0, 0), **self._scalars())
    return tree_attention_kernels.Row(whole, whole, size)

  def lists(self, x: _Shaped) -> pl.BlockSpec:
    """Of [B, n, m]: a whole row, where scalars are read."""
    shape = (None, *x.shape[1:])
    return self._spec(shape, lambda b, h, i: (b, 0, 0), **self._scalars())

  def of_row(self, lists: Lists, until: Array, near: Window | None) -> Any:
    """Returns a kernel's first three arguments, each with its part."""
    row = tree_attention_kernels.Row(until[:, None], None, None)
    if near is not None:
      row = row._replace(positions=near.positions[:, None], size=near.size)
    todo, num = lists.todo, lists.num[:, None]
    return (todo, self.lists), (num, self.lists), (row, self.row)

  def _scalars(self) -> dict[str, Any]:
    if self.how.platform != "tpu":
      return {}
    from jax.experimental.pallas import tpu

    return dict(memory_space=tpu.SMEM)


def _call(kernel: Callable, refs: _Refs, given: Any, made: Any) -> Any:
  """Returns what a kernel writes: over rows, heads and blocks.

  given, made: pairs of an array and which part of it a program has.
  """
  how = refs.how
  arguments = [x for x, _ in given]
  B, H, T, C = made[0][0].shape
  grid = (B, H, T // refs.own)
  return pl.pallas_call(
    functools.partial(kernel, how),
    grid=grid[::-1] if how.axis == 0 else grid,
    in_specs=[spec(x) for x, spec in given],
    out_specs=[spec(x) for x, spec in made],
    out_shape=[x for x, _ in made],
    compiler_params=_compiler_params(how, T, C, arguments[-1].dtype.itemsize),
    interpret=how.interpret,
    # What XLA plans with: a causal row. How much of it is seen isn't known.
    cost_estimate=pl.CostEstimate(
      flops=_PRODUCTS[kernel] * B * H * T * T * C,
      transcendentals=B * H * T * T // 2,
      bytes_accessed=sum(x.nbytes for x in jax.tree.leaves(arguments)),
    ),
    name=f"tree_attention_{kernel.__name__}",
  )(*arguments)


def _compiler_params(
  how: tree_attention_kernels.How, T: int, C: int, itemsize: int
) -> Any:
  """Returns what the platform's compiler of kernels is told; None on a CPU.

  A backend of Pallas is imported only for its own platform: JAX 0.11 deprecates
  the one for GPUs, and other platforms work without it.

  Raises:
    InputError: This version of JAX has no backend for GPUs.
  """
  if how.platform == "tpu":
    from jax.experimental.pallas import tpu

    channels = -(-C // _LANES) * _LANES
    return tpu.CompilerParams(
      dimension_semantics=("parallel", "parallel", "arbitrary"),
      vmem_limit_bytes=_VMEM + 4 * T * channels * itemsize,
    )
  if how.platform != "gpu":
    return None
  try:
    from jax.experimental.pallas import triton
  except ImportError:
    raise errors.InputError(
      f"model.attention='tree': jax {jax.__version__} has no"
      " jax.experimental.pallas.triton, which compiles this kernel for GPUs;"
      " use 'blocks', or an earlier jax"
    ) from None
  warps = 8 if how.blocks == _SMALL_ON_GPU else 4
  return triton.CompilerParams(num_warps=warps, num_stages=2)


# Of [Q, C] by [C, S] or like it, in the turn of a kernel's loop.
_PRODUCTS = {
  tree_attention_kernels.forward: 2,
  tree_attention_kernels.of_queries: 3,
  tree_attention_kernels.of_keys: 4,
}


def _like(x: _Shaped, dtype: Any = None) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(x.shape, dtype or x.dtype)


def _forward(how, q, k, v, until, near):
  """Returns the output and the log of each query's sum of exp(logits)."""
  B, H, T, _ = q.shape
  lists, _ = schedule(until, near, how.blocks)
  refs = _Refs(how, how.blocks.queries, H)
  given = (
    *refs.of_row(lists, until, near),
    *((q, refs.block), (k, refs.whole), (v, refs.whole)),
  )
  log_mass = jax.ShapeDtypeStruct((B, H, 1, T), jnp.float32)
  made = (_like(q), refs.block), (log_mass, refs.numbers)
  return _call(tree_attention_kernels.forward, refs, given, made)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
  how: tree_attention_kernels.How,
  q: Float[Array, "B H T C"],
  k: Float[Array, "B K T C"],
  v: Float[Array, "B K T C"],
  until: Int[Array, "B T"],
  near: Window | None,
) -> Float[Array, "B H T C"]:
  return _forward(how, q, k, v, until, near)[0]


def _forward_and_rest(how, *inputs):
  out, log_mass = _forward(how, *inputs)
  return out, (*inputs, out, log_mass)


def _backward(how, rest, d_out):
  """Returns the gradients of q, k and v; until and near have none."""
  q, k, v, until, near, out, log_mass = rest
  B, H, T, C = q.shape
  of_queries, of_keys = schedule(until, near, how.blocks)
  # What softmax takes from every weight's gradient.
  mean = (out.astype(jnp.float32) * d_out.astype(jnp.float32)).sum(-1)
  mean = mean[:, :, None]

  refs = _Refs(how, how.blocks.queries, H)
  given = (
    *refs.of_row(of_queries, until, near),
    *((q, refs.block), (k, refs.whole), (v, refs.whole)),
    *((log_mass, refs.numbers), (mean, refs.numbers), (d_out, refs.block)),
  )
  (dq,) = _call(
    tree_attention_kernels.of_queries, refs, given, ((_like(q), refs.block),)
  )

  refs = _Refs(how, how.blocks.keys, H)
  given = (
    *refs.of_row(of_keys, until, near),
    *((q, refs.whole), (k, refs.block), (v, refs.block)),
    *((log_mass, refs.whole), (mean, refs.whole), (d_out, refs.whole)),
  )
  # The heads of a group run side by side, so each has sums of its own.
  part = (_like(q, jnp.float32), refs.block)
  parts = _call(tree_attention_kernels.of_keys, refs, given, (part, part))

  def of_group(x, like):
    x = x.reshape(B, -1, H // like.shape[1], T, C)
    return x.sum(2).astype(like.dtype)

  dk, dv = map(of_group, parts, (k, v))
  return dq, dk, dv, None, None


_attend.defvjp(_forward_and_rest, _backward)
