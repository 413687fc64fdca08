"""Matrix products with sums in float32, as fast as the devices allow.

GPUs and TPUs sum bfloat16 products in float32 and round once. XLA's CPU backend
converts both sides to float32 first, except in one form: the result is float32,
the last axis of the left side is summed, and no transpose before it could be
folded in. It then uses the CPU's own instructions for bfloat16, which are up to
five times as fast (AMX).

The backend stores the right side of each product anew, in the order that its
instructions want. So a matrix of parameters is the left side when few rows are
multiplied by it. Its last axis must then be the one that is summed: inference
holds kernels `transposed` for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax import numpy as jnp
from jaxtyping import Array, Float, Int
import numpy as np

Params = Any

# The name of a kernel [in, out] that is held as [out, in].
TRANSPOSED = "transposed"
# Of 12 rows a product takes 0.8 times as long with the parameters on the left,
# of 32 0.7 times (AVX-512). Of 64 it was shorter by itself, but a whole step of
# decoding took longer; why wasn't found out.
_FEW = range(8, 49)


def platform() -> str:
  """Returns cpu, gpu or tpu: the platform of the mesh in force, if any.

  A program may be compiled for devices that this machine doesn't have.
  """
  device = jax.sharding.get_abstract_mesh().abstract_device
  return jax.default_backend() if device is None else device.platform


def matmul(
  a: Float[Array, "X Y"], b: Float[Array, "Y Z"], dtype: Any
) -> Float[Array, "X Z"]:
  """Returns a @ b, summed in float32 and rounded to dtype once.

  So are its gradients, to the types of a and b.
  """
  narrow = a.dtype == b.dtype == jnp.bfloat16
  if narrow and platform() == "cpu":
    if len(a) == 1:
      return matmul(_padded(a), b, dtype)[:1]
    if jnp.dtype(dtype) == jnp.bfloat16:
      return _on_cpu(a, b)
  return jnp.matmul(a, b, preferred_element_type=dtype)


def _padded(a: Float[Array, "1 Y"]) -> Float[Array, "2 Y"]:
  """Returns a row with one of zeros.

  XLA's CPU backend has no product of one row with a matrix of bfloat16: it
  would convert the matrix, and before a loop all matrices that the loop reads.
  """
  return jnp.pad(a, ((0, 1), (0, 0)))


@jax.custom_vjp
def _on_cpu(a: Float[Array, "X Y"], b: Float[Array, "Y Z"]) -> Array:
  out, _ = _forward(a, b)
  return out


def _forward(a, b):
  return wide(a, b).astype(a.dtype), (a, b)


def _backward(rest, d):
  a, b = rest
  # As a reshape of a barrier, a's transpose is stored: it can't be folded in.
  turned = jax.lax.optimization_barrier(a.T[None])[0]
  return wide(d, b, 1).astype(a.dtype), wide(turned, d).astype(b.dtype)


_on_cpu.defvjp(_forward, _backward)


def wide(
  a: Float[Array, "X Y"], b: Float[Array, "_ _"], axis: int = 0
) -> Float[Array, "X Z"]:
  """Returns in float32 the sums over the last axis of a and this one of b."""
  narrow = a.dtype == b.dtype == jnp.bfloat16
  if narrow and platform() == "cpu" and len(a) == 1:
    return wide(_padded(a), b, axis)[:1]
  return jax.lax.dot_general(
    a, b, (((1,), (axis,)), ((), ())), preferred_element_type=jnp.float32
  )


def by_transposed(
  a: Float[Array, "X Y"], b: Float[Array, "Z Y"], dtype: Any
) -> Float[Array, "X Z"]:
  """Returns a @ b.T, summed in float32 and rounded to dtype once.

  b has parameters, of which no other operation makes a transpose that could be
  folded in: the backend has no product of the sides swapped then.
  """
  narrow = a.dtype == b.dtype == jnp.bfloat16
  if narrow and platform() == "cpu" and len(a) in _FEW:
    # Without the barrier the compiler swaps the sides back.
    return jax.lax.optimization_barrier(wide(b, a, 1)).T.astype(dtype)
  return wide(a, b, 1).astype(dtype)


def as_saved(tree: Params) -> Params:
  """Returns parameters under their own names, transposed kernels as views."""
  if isinstance(tree, tuple):
    return tuple(map(as_saved, tree))
  if not isinstance(tree, Mapping):
    return tree
  return {
    "kernel" if name == TRANSPOSED else name: (
      np.asarray(leaf).T if name == TRANSPOSED else as_saved(leaf)
    )
    for name, leaf in tree.items()
  }


def rows_of(
  table: Float[Array, "V D"], index: Int[Array, "*shape"]
) -> Float[Array, "*shape D"]:
  """Returns rows of a table in float32.

  XLA's CPU backend would convert a whole table of bfloat16 before a loop that
  reads a few rows. The barrier makes the table the loop's own.
  """
  if table.dtype != jnp.float32 and platform() == "cpu":
    table, index = jax.lax.optimization_barrier((table, index))
  return table[index].astype(jnp.float32)


def gated(
  activation: Callable[[Array], Array],
  gate: Float[Array, "*shape"],
  up: Float[Array, "*shape"],
) -> Float[Array, "*shape"]:
  """Returns activation(gate) * up, element by element.

  A CPU has no such operations in bfloat16. There both are converted to float32
  once, not at every operation, and the backward pass computes the result again.
  """
  narrow = gate.dtype == up.dtype == jnp.bfloat16
  if not (narrow and platform() == "cpu"):
    return activation(gate) * up

  def once(gate, up):
    gated = activation(gate.astype(jnp.float32)) * up.astype(jnp.float32)
    return gated.astype(jnp.bfloat16)

  return jax.checkpoint(once)(gate, up)
