"""Attention over packed rows and trees.

`attend` calls one of several kernels. All of them take the same arguments and
must agree with `reference`, which works for any `visible_until`. Attention over
a sampler's caches is in models/kv_cache.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import functools
from typing import Any

from flax import linen as nn
import jax
from jax import numpy as jnp
from jaxtyping import Array, Float, Int

from prm_jax import errors
from prm_jax.models import blockwise_attention
from prm_jax.models import kv_cache
from prm_jax.models import layers
from prm_jax.models import matmul
from prm_jax.models import model_config
from prm_jax.models import sharding
from prm_jax.models.visibility import visibility
from prm_jax.models.visibility import Window


def attend(
  q: Float[Array, "B T H C"],
  k: Float[Array, "B T K C"],
  v: Float[Array, "B T K C"],
  visible_until: Int[Array, "B T"],
  kind: str = "auto",
  window: Window | None = None,
  *,
  scale: float | None = None,
  softcap: float | None = None,
) -> Float[Array, "B T H C"]:
  """Returns softmax(scale q k) v over the keys that each query sees.

  Args:
    q: The queries.
    k: The keys.
    v: The values.
    visible_until: See batch.Batch.
    kind: One of config.ATTENTION. auto is the reference for short rows; for
      long rows it is blocks on a CPU and tree on a GPU or TPU. The tree kernel
      was right on an H100 and an H200 and hasn't run on a TPU; choose
      `reference` to avoid it. splash is for packed rows only, without a window;
      it returns NaN for a row that holds a tree. tokamax is for Hopper and
      Blackwell, and hasn't run on one yet.
    window: Hides the keys that are farther back on a query's path.
    scale: The factor of the logits, by default 1 / sqrt(C).
    softcap: See layers.softcap.

  Raises:
    InputError: The kind isn't for these devices, or the mesh can't split rows
      or heads.
  """
  platform = matmul.platform()
  if kind == "auto":
    suited_kind = suited(platform, q.shape[1], q.dtype)
    kind = suited_kind if _splits(q, k) else "reference"
  how: dict[str, Any] = dict(scale=scale, softcap=softcap)
  if kind == "reference":
    return reference(q, k, v, visible_until, window, **how)
  errors.raise_first(_faults(kind, platform, q, k))
  kernel = functools.partial(_kernel(kind), **how)
  if kind != "blocks":
    kernel = functools.partial(kernel, platform=platform)
  near = () if window is None else (window,)
  return _on_each_device(kernel, *near)(q, k, v, visible_until, *near)


def _faults(kind: str, platform: str, q: Array, k: Array) -> Iterator[str]:
  """Yields why a kernel can't be used here."""
  if not _splits(q, k):
    yield (
      f"model.attention={kind!r}: the mesh can't split {k.shape[0]} rows and"
      f" {k.shape[2]} key/value heads evenly; use 'reference'"
    )
  if not _has_kernel(kind, platform, q.dtype):
    yield (
      f"model.attention={kind!r}: it has no kernel for {q.dtype} on a"
      f" {platform}; use 'auto'"
    )


# From this length of a row on, the square is what costs on an accelerator.
_LONG = 1024


def suited(platform: str, tokens: int, dtype: Any) -> str:
  """Returns the kind that auto uses if the mesh can split rows and heads.

  Args:
    platform: cpu, gpu or tpu.
    tokens: The number of tokens of a row.
    dtype: The type of queries, keys and values.
  """
  if platform == "cpu":
    return "blocks" if tokens > 4 * blockwise_attention.BLOCK else "reference"
  has_kernel = _has_kernel("tree", platform, dtype)
  return "tree" if has_kernel and tokens >= _LONG else "reference"


def _kernel(kind: str) -> Callable[..., Any]:
  """Returns the function of a kind that isn't the reference."""
  if kind == "blocks":
    return blockwise_attention.attend
  # Not above: Pallas takes 0.2 s to import, and few CPUs run its kernels.
  if kind == "splash":
    from prm_jax.models import splash_attention

    return splash_attention.attend
  if kind == "tokamax":
    from prm_jax.models import tokamax_attention

    return tokamax_attention.attend
  from prm_jax.models import tree_attention

  return tree_attention.attend


def _has_kernel(kind: str, platform: str, dtype: Any) -> bool:
  """Returns whether a kind runs here; on a CPU all kernels are interpreted."""
  if kind == "blocks" or platform == "cpu":
    return kind != "tokamax" or dtype != jnp.float16
  if kind == "tokamax":  # On a CPU it is Tokamax's plain form.
    return platform == "gpu" and dtype != jnp.float32
  # A TPU's compiler of kernels doesn't have float16.
  return kind != "splash" if platform == "gpu" else dtype != jnp.float16


def _specs() -> tuple[Any, Any]:
  """Returns how heads [B, T, H, C] and rows [B, T] are split over the mesh."""
  heads = nn.logical_to_mesh_axes(("batch", "length", "heads_act", None))
  rows = nn.logical_to_mesh_axes(("batch", "length"))
  assert heads is not None
  assert rows is not None
  return heads, rows


def _mesh() -> jax.sharding.AbstractMesh | None:
  """Returns the mesh in force if it has several devices."""
  mesh = jax.sharding.get_abstract_mesh()
  return None if mesh.empty or mesh.size == 1 else mesh


def _splits(*arrays: Array) -> bool:
  """Returns whether the mesh in force divides rows and heads of all arrays."""
  mesh = _mesh()
  heads, _ = _specs()
  return mesh is None or all(
    size % sharding.num_parts(mesh, axes) == 0
    for x in arrays
    for size, axes in zip(x.shape, heads, strict=True)
  )


def _on_each_device(function: Callable, *near: Window) -> Callable:
  """Returns attend's function for a device's own part of the arrays.

  Attention never combines rows or heads. Loops over them must not run over an
  axis that is split, because every device would wait for every other each time.
  """
  if _mesh() is None:
    return function
  heads, rows = _specs()
  everywhere: Any = jax.sharding.PartitionSpec()
  window = Window(rows, everywhere)
  return jax.shard_map(
    function,
    in_specs=(heads, heads, heads, rows, *(window for _ in near)),
    out_specs=heads,
    check_vma=False,
  )


def reference(
  q: Float[Array, "B T H C"],
  k: Float[Array, "B T K C"],
  v: Float[Array, "B T K C"],
  visible_until: Int[Array, "B T"],
  window: Window | None = None,
  *,
  scale: float | None = None,
  softcap: float | None = None,
) -> Float[Array, "B T H C"]:
  """Returns the result of `attend` from the whole square, in float32."""
  B, T, H, C = q.shape
  K = k.shape[2]
  mask = visibility(visible_until, window)
  q = q.reshape(B, T, K, H // K, C) * (C**-0.5 if scale is None else scale)
  logits = jnp.einsum(
    "BTKGC,BSKC->BKGTS", q, k, preferred_element_type=jnp.float32
  )
  logits = layers.softcap(logits, softcap)
  logits = jnp.where(mask[:, None, None], logits, -1e30)
  weights = jax.nn.softmax(logits, axis=-1).astype(v.dtype)
  return jnp.einsum("BKGTS,BSKC->BTKGC", weights, v).reshape(B, T, H, C)


class Attention(nn.Module):
  """Grouped-query attention with RoPE.

  It also returns keys and values: those of x, or, given a past, the past's own
  ones with those of x appended.
  """

  config: model_config.ModelConfig

  @nn.compact
  def __call__(
    self,
    x: Float[Array, "B T D"],
    rope: tuple[Array, Array],
    visible_until: Int[Array, "B T"] | None,
    past: kv_cache.Past | kv_cache.Branches | None,
    window: Window | None,
  ) -> tuple[Float[Array, "B T D"], tuple[Array, Array]]:
    c = self.config

    def project(name: str, heads: int) -> Float[Array, "B T heads C"]:
      features = heads * c.head_dim
      axis = "heads" if name == "query" else "kv_heads"
      y = layers.Dense(
        features,
        ("embed", axis),
        c.compute_dtype,
        c.qkv_bias,
        lora=c.lora(name),
        name=name,
      )(x)
      return y.reshape(*x.shape[:-1], heads, c.head_dim)

    q = project("query", c.num_heads)
    k = project("key", c.num_kv_heads)
    v = project("value", c.num_kv_heads)
    if c.qk_norm:
      norm = functools.partial(layers.RMSNorm, c.norm_epsilon, c.norm_offset)
      q, k = norm(name="query_norm")(q), norm(name="key_norm")(k)
    q, k = layers.rotate(q, *rope), layers.rotate(k, *rope)
    how: dict[str, Any] = dict(scale=c.query_scale, softcap=c.attention_softcap)
    if past is None:
      assert visible_until is not None
      out = attend(q, k, v, visible_until, c.attention, window, **how)
      out = nn.with_logical_constraint(
        out, ("batch", "length", "heads_act", None)
      )
    else:
      past = past.append(k, v)
      out = past.attend(q, window, **how)
      k, v = past.own
    merged = out.reshape(*x.shape[:-1], -1)
    output = layers.Dense(
      c.d_model,
      ("heads", "embed"),
      c.compute_dtype,
      lora=c.lora("output"),
      name="output",
    )
    return output(merged), (k, v)
