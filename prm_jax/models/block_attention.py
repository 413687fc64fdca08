"""Attention by blocks, without those that no query sees.

The reference computes the whole [T, T] square of a row. In a packed row or a
forest most of it is hidden: another solution, another branch, the future.
Here a block of keys costs nothing for a block of queries that sees none of
it, and no square is ever held: the softmax is accumulated from block to block
(Milakov & Gimelshein 2018), and the backward pass computes its weights anew
from the logarithm of their sum (Dao et al. 2022, algorithms 1 and 4).

Loops of unequal length can't run side by side, so rows and heads go one after
another: right for CPU cores, which a single block fills, and wrong for a GPU
or TPU.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
from jax import numpy as jnp
from jaxtyping import Array, Float, Int

BLOCK = 64
_HIDDEN = -1e30


def attend(
  q: Float[Array, "B T H C"],
  k: Float[Array, "B T K C"],
  v: Float[Array, "B T K C"],
  visible_until: Int[Array, "B T"],
) -> Float[Array, "B T H C"]:
  """Returns what attention.reference returns, to rounding."""
  B, T, H, C = q.shape
  K = k.shape[2]
  G, n = H // K, -(-T // BLOCK)

  def blocks(x):
    padded = ((0, 0), (0, n * BLOCK - T)) + ((0, 0),) * (x.ndim - 2)
    return jnp.pad(x, padded).reshape(B, n, BLOCK, *x.shape[2:])

  # The G query heads of a key head stand one under another.
  q = blocks(q * C**-0.5).reshape(B, n, BLOCK, K, G, C)
  q = q.transpose(0, 3, 1, 4, 2, 5).reshape(B * K, n, G * BLOCK, C)
  k, v = (
    blocks(x).transpose(0, 3, 1, 2, 4).reshape(B * K, n, BLOCK, C)
    for x in (k, v)
  )
  # What fills the last block sees itself: a softmax over nothing is NaN.
  index = jnp.arange(n * BLOCK).reshape(n, BLOCK)
  until = jnp.maximum(blocks(visible_until), index + 1)
  out = _attend_heads(q, k, v, jnp.repeat(until, K, axis=0))
  out = out.reshape(B, K, n, G, BLOCK, C).transpose(0, 2, 4, 1, 3, 5)
  return out.reshape(B, n * BLOCK, H, C)[:, :T]


class _Head(NamedTuple):
  """One key head of one row in n blocks of S keys and R = G S queries.

  todo: the first seen[i] entries of todo[i] are the blocks of keys that the
  i-th block of queries sees.
  """

  q: Float[Array, "n R C"]
  k: Float[Array, "n S C"]
  v: Float[Array, "n S C"]
  until: Int[Array, "n S"]
  todo: Int[Array, "n n"]
  seen: Int[Array, " n"]

  def logits(self, i: Array, j: Array) -> Float[Array, "R S"]:
    R, S = self.q.shape[1], self.k.shape[1]
    queries, keys = i * S + jnp.arange(R) % S, j * S + jnp.arange(S)
    sees = (keys <= queries[:, None]) & (queries[:, None] < self.until[j])
    return jnp.where(sees, _dot(self.q[i], self.k[j].T), _HIDDEN)


def _dot(a: Float[Array, "X Y"], b: Float[Array, "Y Z"]) -> Array:
  return jnp.matmul(a, b, preferred_element_type=jnp.float32)


def _head(q, k, v, until) -> _Head:
  n, S = until.shape
  start = S * jnp.arange(n)
  # A key is seen by all queries from its own to `until`: so a block is seen
  # if any of its keys reaches the first query.
  needed = (start <= start[:, None]) & (until.max(-1) > start[:, None])
  todo = jnp.argsort(~needed, axis=-1, stable=True)
  return _Head(q, k, v, until, todo, needed.sum(-1))


@jax.custom_vjp
def _attend_heads(
  q: Float[Array, "BK n R C"],
  k: Float[Array, "BK n S C"],
  v: Float[Array, "BK n S C"],
  until: Int[Array, "BK n S"],
) -> Float[Array, "BK n R C"]:
  return jax.lax.map(_forward, (q, k, v, until))[0]


def _forward(
  x: tuple[Array, ...],
) -> tuple[Float[Array, "n R C"], Float[Array, "n R"]]:
  """Returns the output and the log of each query's sum of exp(logits)."""
  head = _head(*x)
  R, C = head.q.shape[1:]

  def queries(i):
    def add(t, carry):
      """Adds a block of keys; the sums are relative to exp(highest)."""
      highest, mass, total = carry
      j = head.todo[i, t]
      logits = head.logits(i, j)
      new = jnp.maximum(highest, logits.max(-1))
      weights, shrink = jnp.exp(logits - new[:, None]), jnp.exp(highest - new)
      return (
        new,
        mass * shrink + weights.sum(-1),
        total * shrink[:, None] + _dot(weights.astype(x[2].dtype), head.v[j]),
      )

    # Above _HIDDEN: what a query doesn't see of a block has no weight, even
    # where it has seen nothing yet.
    carry = (
      jnp.full(R, 0.1 * _HIDDEN, jnp.float32),
      jnp.zeros(R, jnp.float32),
      jnp.zeros((R, C), jnp.float32),
    )
    highest, mass, total = jax.lax.fori_loop(0, head.seen[i], add, carry)
    out = (total / mass[:, None]).astype(head.q.dtype)
    return out, highest + jnp.log(mass)

  return jax.lax.map(queries, jnp.arange(len(head.q)))


def _forward_and_rest(q, k, v, until):
  out, log_mass = jax.lax.map(_forward, (q, k, v, until))
  return out, (q, k, v, until, out, log_mass)


def _backward(rest, gradient):
  """Returns the gradients of q, k and v; until has none."""

  def one_head(x):
    *inputs, out, log_mass, d_out = x
    head, dtype = _head(*inputs), d_out.dtype
    # What softmax takes from every weight's gradient.
    mean = (out.astype(jnp.float32) * d_out.astype(jnp.float32)).sum(-1)

    def queries(i, carry):
      def add(t, carry):
        dq, dk, dv = carry
        j = head.todo[i, t]
        weights = jnp.exp(head.logits(i, j) - log_mass[i][:, None])
        d_weights = _dot(d_out[i], head.v[j].T)
        d_logits = (weights * (d_weights - mean[i][:, None])).astype(dtype)
        return (
          dq.at[i].add(_dot(d_logits, head.k[j])),
          dk.at[j].add(_dot(d_logits.T, head.q[i])),
          dv.at[j].add(_dot(weights.astype(dtype).T, d_out[i])),
        )

      return jax.lax.fori_loop(0, head.seen[i], add, carry)

    zeros = tuple(jnp.zeros(y.shape, jnp.float32) for y in head[:3])
    return jax.lax.fori_loop(0, len(head.q), queries, zeros)

  gradients = jax.lax.map(one_head, (*rest, gradient))
  q, k, v, *_ = rest
  return *(
    g.astype(y.dtype) for g, y in zip(gradients, (q, k, v), strict=True)
  ), None


_attend_heads.defvjp(_forward_and_rest, _backward)
