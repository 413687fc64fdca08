"""Attention by blocks, without those that no query sees.

The reference computes the whole [T, T] square of a row. In a packed row or a
forest most of it is hidden: another solution, another branch, the future.
Here a block of keys costs nothing for a block of queries that sees none of
it, and no square is ever held: softmax is accumulated from block to block
(Milakov & Gimelshein 2018; Dao et al. 2022, algorithm 1) and computed anew in
the backward pass.

A skipped block is a branch not taken, so rows and heads go one after another:
right for CPU cores, which a single block fills, and wrong for a GPU or TPU.
"""

from __future__ import annotations

import jax
from jax import numpy as jnp
from jaxtyping import Array, Float, Int

BLOCK = 128
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

  index = jnp.arange(n * BLOCK).reshape(n, BLOCK)
  # What fills the last block sees itself: a softmax over nothing is NaN.
  until = jnp.maximum(blocks(visible_until), index + 1)
  # The G query heads of a key head stand one under another.
  q = blocks(q * C**-0.5).reshape(B, n, BLOCK, K, G, C)
  q = q.transpose(0, 3, 1, 4, 2, 5).reshape(B * K, n, G * BLOCK, C)
  k, v = (
    blocks(x).transpose(0, 3, 1, 2, 4).reshape(B * K, n, BLOCK, C)
    for x in (k, v)
  )
  until = jnp.repeat(until, K, axis=0)

  def one_head(x):
    q, k, v, until = x
    return jax.lax.map(
      lambda y: _query_block(*y, k, v, until, index), (q, index)
    )

  out = jax.lax.map(one_head, (q, k, v, until))
  out = out.reshape(B, K, n, G, BLOCK, C).transpose(0, 2, 4, 1, 3, 5)
  return out.reshape(B, n * BLOCK, H, C)[:, :T]


@jax.checkpoint
def _query_block(
  q: Float[Array, "GQ C"],
  queries: Int[Array, Q],
  k: Float[Array, "n S C"],
  v: Float[Array, "n S C"],
  until: Int[Array, "n S"],
  index: Int[Array, "n S"],
) -> Float[Array, "GQ C"]:
  """Returns the attention of one block of queries to all blocks of keys."""
  G = q.shape[0] // len(queries)

  @jax.checkpoint
  def add(carry, k, v, until, keys):
    """Adds a block of keys; the sums are relative to exp(highest)."""
    highest, mass, total = carry
    f32 = dict(preferred_element_type=jnp.float32)
    logits = jnp.matmul(q, k.T, **f32)
    sees = (keys <= queries[:, None]) & (queries[:, None] < until)
    logits = jnp.where(jnp.tile(sees, (G, 1)), logits, _HIDDEN)
    new = jnp.maximum(highest, logits.max(-1))
    weights, shrink = jnp.exp(logits - new[:, None]), jnp.exp(highest - new)
    return (
      new,
      mass * shrink + weights.sum(-1),
      total * shrink[:, None] + jnp.matmul(weights.astype(v.dtype), v, **f32),
    )

  def maybe_add(carry, block):
    k, v, until, keys = block
    # until >= index + 1: a block of the past is seen if any of its keys
    # reaches the first query.
    needed = (keys[0] <= queries[0]) & (until.max() > queries[0])
    skip = lambda carry, *_: carry  # noqa: E731
    return jax.lax.cond(needed, add, skip, carry, k, v, until, keys), None

  # Above _HIDDEN: a query that sees nothing of a block gets no weight from it.
  carry = (
    jnp.full(q.shape[0], 0.1 * _HIDDEN, jnp.float32),
    jnp.zeros(q.shape[0], jnp.float32),
    jnp.zeros(q.shape, jnp.float32),
  )
  (_, mass, total), _ = jax.lax.scan(maybe_add, carry, (k, v, until, index))
  return (total / mass[:, None]).astype(q.dtype)
