"""The kernels of tree_attention: what a program does with its blocks.

A program has a block of queries and a list of the blocks of keys that they
see, or a block of keys and a list of those of queries. Its arguments are
references to parts of arrays: q, k, v and what is like them are [T, C] of one
head, or a block of that; log_mass and mean are [1, T], or a block of that;
todo and num are a row's lists (tree_attention.Lists). The source is good for
Mosaic and for Triton: two axes, whole blocks, powers of two.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from jax import numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Bool, Float

from prm_jax.models import layers

_HIDDEN = -1e30


class Blocks(NamedTuple):
  """How many queries and keys a block has; each divides the other."""

  queries: int
  keys: int


class How(NamedTuple):
  """How the kernels are compiled.

  Args:
    platform: tpu, gpu or cpu.
    blocks: The sizes of blocks.
    softcap: See layers.softcap.
    interpret: As for pallas_call.
  """

  platform: str
  blocks: Blocks
  softcap: float | None
  interpret: Any

  @property
  def axis(self) -> int:
    """The axis of the grid whose programs are next to each other in time.

    These share a head's keys: in a TPU's VMEM, in a GPU's cache.
    """
    return 0 if self.platform == "gpu" else 2


class _Queries(NamedTuple):
  """Of a block, all along one axis: [S, 1] or [1, S]."""

  index: Any
  positions: Any


class _Keys(NamedTuple):
  index: Any
  positions: Any
  until: Any


class Row(NamedTuple):
  """What says who sees whom in a row, as references to arrays [1, T].

  Products have queries along one axis and keys along the other: start, size
  and axis say which block is meant, and along which.
  """

  until: Any
  positions: Any
  size: Any

  def queries(self, *where: Any) -> _Queries:
    return _Queries(_index(*where), _read(self.positions, *where))

  def keys(self, *where: Any) -> _Keys:
    return _Keys(*self.queries(*where), _read(self.until, *where))

  def sees(self, queries: _Queries, keys: _Keys) -> Bool[Array, "X Y"]:
    sees = (keys.index <= queries.index) & (queries.index < keys.until)
    if self.size is None:
      return sees
    return sees & (queries.positions - keys.positions < self.size[0, 0])


def forward(how, todo, num, row, q, k, v, out, log_mass):
  """Writes a block's output and its log of the sum of exp(logits)."""
  i = pl.program_id(how.axis)
  Q, S = how.blocks
  own, queries = q[...], row.queries(_start(i, Q), Q, 0)

  def add(t, carry):
    """Adds a block of keys; the sums are relative to exp(highest)."""
    highest, mass, total = carry
    start = _start(todo[i, t], S)
    at = pl.ds(start, S)
    logits = layers.softcap(_products(own, k[at, :]), how.softcap)
    sees = row.sees(queries, row.keys(start, S, 1))
    logits = jnp.where(sees, logits, _HIDDEN)
    new = jnp.maximum(highest, logits.max(-1, keepdims=True))
    weights, shrink = jnp.exp(logits - new), jnp.exp(highest - new)
    return (
      new,
      mass * shrink + weights.sum(-1, keepdims=True),
      total * shrink + _dot(weights.astype(v.dtype), v[at, :]),
    )

  # Above _HIDDEN: what a query doesn't see of a block has no weight, even
  # where it has seen nothing yet.
  carry = (
    jnp.full((Q, 1), 0.1 * _HIDDEN, jnp.float32),
    jnp.zeros((Q, 1), jnp.float32),
    jnp.zeros(own.shape, jnp.float32),
  )
  highest, mass, total = jax.lax.fori_loop(0, num[0, i], add, carry)
  out[...] = (total / mass).astype(out.dtype)
  log_mass[...] = (highest + jnp.log(mass)).T


def of_queries(how, todo, num, row, q, k, v, log_mass, mean, d_out, dq):
  """Writes the gradient of a block of queries."""
  i = pl.program_id(how.axis)
  Q, S = how.blocks
  own, queries = q[...], row.queries(_start(i, Q), Q, 0)
  own_d_out, own_log_mass, own_mean = d_out[...], log_mass[...].T, mean[...].T

  def add(t, total):
    start = _start(todo[i, t], S)
    at = pl.ds(start, S)
    capped = layers.softcap(_products(own, k[at, :]), how.softcap)
    sees = row.sees(queries, row.keys(start, S, 1))
    weights = jnp.exp(jnp.where(sees, capped, _HIDDEN) - own_log_mass)
    d_weights = _products(own_d_out, v[at, :])
    d_logits = _d_logits(how, weights, d_weights, own_mean, capped)
    return total + _dot(d_logits.astype(k.dtype), k[at, :])

  zeros = jnp.zeros(own.shape, jnp.float32)
  total = jax.lax.fori_loop(0, num[0, i], add, zeros)
  dq[...] = total.astype(dq.dtype)


def of_keys(how, todo, num, row, q, k, v, log_mass, mean, d_out, dk, dv):
  """Writes what one head of queries adds to the gradients of a block of keys.

  Keys are along the first axis of its products, queries along the second.
  """
  j = pl.program_id(how.axis)
  Q, S = how.blocks
  own_k, own_v, keys = k[...], v[...], row.keys(_start(j, S), S, 0)

  def add(t, carry):
    total_k, total_v = carry
    start = _start(todo[j, t], Q)
    at = pl.ds(start, Q)
    capped = layers.softcap(_products(own_k, q[at, :]), how.softcap)
    sees = row.sees(row.queries(start, Q, 1), keys)
    weights = jnp.exp(jnp.where(sees, capped, _HIDDEN) - log_mass[:, at])
    d_weights = _products(own_v, d_out[at, :])
    d_logits = _d_logits(how, weights, d_weights, mean[:, at], capped)
    return (
      total_k + _dot(d_logits.astype(q.dtype), q[at, :]),
      total_v + _dot(weights.astype(d_out.dtype), d_out[at, :]),
    )

  zeros = jnp.zeros(own_k.shape, jnp.float32)
  total_k, total_v = jax.lax.fori_loop(0, num[0, j], add, (zeros, zeros))
  dk[...] = total_k
  dv[...] = total_v


def _dot(a: Float[Array, "X Y"], b: Float[Array, "Y Z"]) -> Array:
  return jnp.dot(a, b, preferred_element_type=jnp.float32)


def _products(a: Float[Array, "X C"], b: Float[Array, "Z C"]) -> Array:
  """Returns a's rows times b's rows, [X, Z]."""
  return jax.lax.dot_general(
    a, b, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
  )


def _index(start: Any, size: int, axis: int) -> Any:
  shape = (size, 1) if axis == 0 else (1, size)
  return start + jax.lax.broadcasted_iota(jnp.int32, shape, axis)


def _read(ref: Any, start: Any, size: int, axis: int) -> Any:
  """Returns a block of a row [1, T]; None of None."""
  if ref is None:
    return None
  row = ref[:, pl.ds(start, size)]
  return row.T if axis == 0 else row


def _start(number: Any, size: int) -> Any:
  """Returns where a block begins."""
  return pl.multiple_of(number * size, size)


def _d_logits(how, weights, d_weights, mean, capped):
  """Returns the gradient of the logits before their soft cap."""
  gradient = weights * (d_weights - mean)
  if how.softcap is not None:  # the slope of cap tanh(x / cap)
    gradient *= 1 - jnp.square(capped / how.softcap)
  return gradient
