"""Attention by blocks, without those that no query sees.

The reference computes the whole [T, T] square of a row. In a packed row or in
trees most of it is hidden: other solutions, other branches, the future. Here a
block of keys isn't computed for a block of queries that sees none of it, and no
square is held: the softmax is accumulated from block to block (Milakov &
Gimelshein 2018), and the backward pass computes its weights again from the
logarithm of their sum (Dao et al. 2022, algorithms 1 and 4).

Loops of unequal length can't run in parallel, so rows and heads are computed
one after another. That suits CPU cores, which a single block fills, and not a
GPU or TPU.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from prm_jax.models import layers
from prm_jax.models import matmul
from prm_jax.models.visibility import lengthened
from prm_jax.models.visibility import Window

BLOCK = 64
_HIDDEN = -1e30


def attend(
  q: Float[Array, "B T H C"],
  k: Float[Array, "B T K C"],
  v: Float[Array, "B T K C"],
  visible_until: Int[Array, "B T"],
  window: Window | None = None,
  *,
  scale: float | None = None,
  softcap: float | None = None,
) -> Float[Array, "B T H C"]:
  """Returns the result of attention.reference, up to rounding."""
  B, T, H, C = q.shape
  K = k.shape[2]
  G, n = H // K, -(-T // BLOCK)

  def blocks(x):
    padded = jnp.pad(x, ((0, 0), (0, n * BLOCK - T), (0, 0), (0, 0)))
    return padded.reshape(B, n, BLOCK, *x.shape[2:])

  # The G query heads of a key head are stacked.
  q = blocks(q * (C**-0.5 if scale is None else scale))
  q = q.reshape(B, n, BLOCK, K, G, C)
  q = q.transpose(0, 3, 1, 4, 2, 5).reshape(B * K, n, G * BLOCK, C)
  k, v = (
    blocks(x).transpose(0, 3, 1, 2, 4).reshape(B * K, n, BLOCK, C)
    for x in (k, v)
  )

  def rows(x):
    return jnp.repeat(x.reshape(B, n, BLOCK), K, axis=0)

  until, window = lengthened(visible_until, window, n * BLOCK)
  near = None
  if window is not None:
    near = (rows(window.positions), jnp.broadcast_to(window.size, (B * K,)))
  out = _attend_heads(softcap, q, k, v, rows(until), near)
  out = out.reshape(B, K, n, G, BLOCK, C).transpose(0, 2, 4, 1, 3, 5)
  return out.reshape(B, n * BLOCK, H, C)[:, :T]


class _Head(NamedTuple):
  """One key head of one row in n blocks of S keys and R = G S queries.

  near: positions [n, S] and the window's size, where there is one. todo: the
  first seen[i] entries of todo[i] are the blocks of keys that the i-th block
  of queries sees.
  """

  q: Float[Array, "n R C"]
  k: Float[Array, "n S C"]
  v: Float[Array, "n S C"]
  until: Int[Array, "n S"]
  near: tuple[Array, Array] | None
  todo: Int[Array, "n n"]
  seen: Int[Array, " n"]

  def sees(self, i: Array, j: Array) -> Bool[Array, "R S"]:
    R, S = self.q.shape[1], self.k.shape[1]
    queries, keys = i * S + jnp.arange(R) % S, j * S + jnp.arange(S)
    sees = (keys <= queries[:, None]) & (queries[:, None] < self.until[j])
    if self.near is None:
      return sees
    positions, size = self.near
    own = positions[i][jnp.arange(R) % S]
    return sees & (own[:, None] - positions[j] < size)


def _head(q, k, v, until, near) -> _Head:
  n, S = until.shape
  start = S * jnp.arange(n)
  # A key is seen by all queries from its own to `until`: so a block is seen
  # if any of its keys reaches the first query.
  needed = (start <= start[:, None]) & (until.max(-1) > start[:, None])
  if near is not None:
    # Their last key may be near enough to their first query.
    positions, size = near
    distance = positions.min(-1)[:, None] - positions.max(-1)
    needed &= distance < size
  todo = jnp.argsort(~needed, axis=-1, stable=True)
  return _Head(q, k, v, until, near, todo, needed.sum(-1))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend_heads(
  softcap: float | None,
  q: Float[Array, "BK n R C"],
  k: Float[Array, "BK n S C"],
  v: Float[Array, "BK n S C"],
  until: Int[Array, "BK n S"],
  near: tuple[Int[Array, "BK n S"], Int[Array, " BK"]] | None,
) -> Float[Array, "BK n R C"]:
  out, _ = _forward_and_rest(softcap, q, k, v, until, near)
  return out


def _forward(
  softcap: float | None, x: tuple[Any, ...]
) -> tuple[Float[Array, "n R C"], Float[Array, "n R"]]:
  """Returns the output and the log of each query's sum of exp(logits)."""
  head = _head(*x)
  R, C = head.q.shape[1:]

  def queries(i):
    def add(t, carry):
      """Adds a block of keys; the sums are relative to exp(highest)."""
      highest, mass, total = carry
      j = head.todo[i, t]
      logits = matmul.wide(head.q[i], head.k[j], 1)
      logits = layers.softcap(logits, softcap)
      logits = jnp.where(head.sees(i, j), logits, _HIDDEN)
      new = jnp.maximum(highest, logits.max(-1))
      weights, shrink = jnp.exp(logits - new[:, None]), jnp.exp(highest - new)
      return (
        new,
        mass * shrink + weights.sum(-1),
        total * shrink[:, None]
        + matmul.wide(weights.astype(x[2].dtype), head.v[j]),
      )

    # Above _HIDDEN: what a query doesn't see of a block has no weight, even
    # where it has seen nothing yet.
    carry = (
      jnp.full(R, 0.1 * _HIDDEN, jnp.float32),
      jnp.zeros(R, jnp.float32),
      jnp.zeros((R, C), jnp.float32),
    )
    highest, mass, total = jax.lax.fori_loop(0, head.seen[i], add, carry)
    return total / mass[:, None], highest + jnp.log(mass)

  return jax.lax.map(queries, jnp.arange(len(head.q)))


def _forward_and_rest(softcap, *inputs):
  forward = functools.partial(_forward, softcap)
  out, log_mass = jax.lax.map(forward, inputs)
  out = out.astype(inputs[0].dtype)
  return out, (*inputs, out, log_mass)


def _backward(softcap, rest, gradient):
  """Returns the gradients of q, k and v; until and near have none."""

  def one_head(x):
    *inputs, out, log_mass, d_out = x
    head, dtype = _head(*inputs), d_out.dtype
    # As a sum over the last axis: see products.
    turned = jax.lax.optimization_barrier(head.k.swapaxes(1, 2))
    # What softmax takes from every weight's gradient.
    mean = (out.astype(jnp.float32) * d_out.astype(jnp.float32)).sum(-1)

    def queries(carry, i):
      q, d = head.q[i], d_out[i]

      def add(t, carry):
        """Adds a block of keys; keys go down, queries across."""
        dq, dk, dv = carry
        j = head.todo[i, t]
        logits = layers.softcap(matmul.wide(head.k[j], q, 1), softcap)
        seen = jnp.where(head.sees(i, j).T, logits, _HIDDEN)
        weights = jnp.exp(seen - log_mass[i])
        d_logits = weights * (matmul.wide(head.v[j], d, 1) - mean[i])
        if softcap is not None:  # the slope of cap tanh(x / cap)
          d_logits *= 1 - jnp.square(logits / softcap)
        d_logits = d_logits.astype(dtype)
        return (
          dq + matmul.wide(turned[j], d_logits),
          dk.at[j].add(matmul.wide(d_logits, q)),
          dv.at[j].add(matmul.wide(weights.astype(dtype), d)),
        )

      dq = jnp.zeros(q.shape[::-1], jnp.float32)
      dq, dk, dv = jax.lax.fori_loop(0, head.seen[i], add, (dq, *carry))
      return (dk, dv), dq

    zeros = tuple(jnp.zeros(y.shape, jnp.float32) for y in (head.k, head.v))
    (dk, dv), dq = jax.lax.scan(queries, zeros, jnp.arange(len(head.q)))
    return dq.swapaxes(1, 2), dk, dv

  gradients = jax.lax.map(one_head, (*rest, gradient))
  q, k, v, *_ = rest
  return (
    *(g.astype(y.dtype) for g, y in zip(gradients, (q, k, v), strict=True)),
    None,
    None,
  )


_attend_heads.defvjp(_forward_and_rest, _backward)
