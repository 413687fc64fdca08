"""Attention over packed rows and trees by Tokamax's kernels for GPUs.

They are written in Pallas' Mosaic backend, for Hopper and Blackwell: JAX means to
remove the Triton backend, which compiles tree_attention for GPUs. Tokamax needs
Python 3.12.

All kernels skip the blocks of keys after a query; the forward one also skips
those before the first key that it sees, which the backward ones (of Tokamax
0.0.17) compute and hide. In a packed row that is all there is to hide. In a tree
other branches are hidden, too: a mask of booleans, [T, T] for a row, says so.

Compiled ahead of time, not executed: no GPU has run it yet. Its masks are
compared with the reference on a CPU, by Tokamax's plain form of the same function
(tests/models/test_tokamax_attention.py).
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from prm_jax import errors
from prm_jax.models.visibility import lengthened
from prm_jax.models.visibility import visibility
from prm_jax.models.visibility import Window

# A row is whole blocks of the kernels: what they pad themselves has no mask.
_BLOCK = 128


class _How(NamedTuple):
  platform: str
  scale: float
  softcap: float | None


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
) -> Float[Array, "B T H C"]:
  """Returns the result of attention.reference, up to rounding.

  Args:
    platform: gpu, or cpu for the plain form, which holds the whole square.

  Raises:
    InputError: Tokamax isn't installed, or has no such kernel any more; or the
      GPU is neither a Hopper nor a Blackwell.
  """
  T, C = q.shape[1], q.shape[-1]
  length = -(-T // _BLOCK) * _BLOCK

  def whole(x):
    return jnp.pad(x, ((0, 0), (0, length - T), (0, 0), (0, 0)))

  until, window = lengthened(visible_until, window, length)
  how = _How(platform, C**-0.5 if scale is None else scale, softcap)
  return _attend(how, whole(q), whole(k), whole(v), until, window)[:, :T]


def first_key(sees: Bool[Array, "B T T"]) -> Int[Array, "B T"]:
  """Returns the first key that each query sees; all see themselves."""
  return jnp.argmax(sees, axis=-1).astype(jnp.int32)


def _tokamax(platform: str) -> tuple[Any, Any]:
  """Returns a kernel with its gradient, and what makes its mask.

  Tokamax's public function takes no first keys; what it calls does, and without
  them no block before the diagonal is skipped.

  Raises:
    InputError: See attend.
  """
  try:
    from tokamax._src import gpu_utils
    from tokamax._src.ops.attention import api
    from tokamax._src.ops.attention import base

    if platform == "cpu":
      plain = base.DotProductAttention(vjp=base.DotProductAttentionVjp())
      return plain, base.Mask
    kernel = api.IMPLEMENTATIONS["mosaic_gpu"]
    has_gradient = gpu_utils.is_sm90() or gpu_utils.is_sm100()
  except (ImportError, AttributeError, KeyError) as e:
    raise errors.InputError(
      "model.attention='tokamax': needs tokamax 0.0.17, and so Python 3.12;"
      f" {errors.to_install('tokamax')}, or use 'auto'"
    ) from e
  if not has_gradient:
    raise errors.InputError(
      "model.attention='tokamax': its kernels are for GPUs of compute capability"
      " 9 and 10 (H100, H200, B200); use 'auto'"
    )
  return kernel, base.Mask


class _Visible(NamedTuple):
  """Whether a query sees a key, and the first that it sees, for all heads."""

  sees: Bool[Array, "B 1 T T"]
  first: Int[Array, "B 1 T"]


def _visible(until: Int[Array, "B T"], window: Window | None) -> _Visible:
  sees = visibility(until, window)
  return _Visible(sees[:, None], first_key(sees)[:, None])


def _bound(how: _How, q: Any, k: Any, v: Any, visible: _Visible) -> Any:
  """Returns Tokamax's kernel with its arguments."""
  kernel, make_mask = _tokamax(how.platform)
  mask = make_mask(visible.sees, k_start=visible.first, is_causal=True)
  return kernel.bind(
    *(q, k, v),
    mask=mask,
    logits_scale=how.scale,
    logits_soft_cap=how.softcap,
    return_residuals=True,
  )


# Each is a program of its own, whose name plan/flops.py knows.
@functools.partial(jax.jit, static_argnums=0)
def tokamax_forward(how, q, k, v, visible):
  """Returns the output, and of each query the largest logit and the sum."""
  bound = _bound(how, q, k, v, visible)
  return bound.op(*bound.args, **bound.kwargs)


@functools.partial(jax.jit, static_argnums=0)
def tokamax_backward(how, q, k, v, visible, out, sums, d_out):
  """Returns the gradients of q, k and v."""
  bound = _bound(how, q, k, v, visible)
  arguments = {**bound.kwargs}
  del arguments["return_residuals"]
  of = bound.op.vjp(sums, out, d_out, *bound.args, **arguments)
  return of["q"], of["k"], of["v"]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
  how: _How,
  q: Float[Array, "B T H C"],
  k: Float[Array, "B T K C"],
  v: Float[Array, "B T K C"],
  until: Int[Array, "B T"],
  window: Window | None,
) -> Float[Array, "B T H C"]:
  return tokamax_forward(how, q, k, v, _visible(until, window))[0]


def _forward_and_rest(how, q, k, v, *rows):
  """Returns the output, and what the backward pass needs.

  Tokamax's own rule would keep the mask, T^2 bytes a row and layer.
  """
  out, sums = tokamax_forward(how, q, k, v, _visible(*rows))
  return out, ((q, k, v), rows, out, sums)


def _backward(how, rest, d_out):
  """Returns the gradients of q, k and v; until and window have none."""
  heads, rows, out, sums = rest
  of = tokamax_backward(how, *heads, _visible(*rows), out, sums, d_out)
  return *of, None, None


_attend.defvjp(_forward_and_rest, _backward)
