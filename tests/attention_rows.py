"""Rows of every sort, and attention over them against the reference."""

import jax
from jax import numpy as jnp
import numpy as np

from prm_jax.models import attention


def heads(B, T, H, K, C=4, dtype=np.float32):
  random = np.random.default_rng(T)
  return tuple(
    jnp.asarray(random.normal(size=(B, T, n, C)), dtype) for n in (H, K, K)
  )


def packed(random, T):
  """Returns solutions one after another, then padding."""
  ends = [0, *np.unique(random.integers(1, T, 3)), T]
  until = np.repeat(ends[1:], np.diff(ends)).astype(np.int32)
  padding = np.arange(T) >= ends[-2]
  return np.where(padding, np.arange(T) + 1, until)


def trees(random, T):
  """Returns who is visible until when in trees drawn at random."""
  until = np.zeros(T, np.int32)

  def fill(start, end):
    """Fills [start, end) with trees: a path, then branches below it."""
    while start < end:
      tree = int(random.integers(start + 1, end + 1))
      path = int(random.integers(start + 1, tree + 1))
      until[start:path] = tree
      fill(path, tree)
      start = tree

  fill(0, T)
  return until


def rows(T, seed=0):
  """Returns rows of every sort: whole, padding, packed, and trees."""
  random = np.random.default_rng(seed)
  rows = [np.full(T, T), np.arange(T) + 1]
  if T > 1:
    rows += [packed(random, T), trees(random, T), trees(random, T)]
  return np.stack(rows).astype(np.int32)


def depths(until):
  """Returns every token's position on its own path, from 0."""
  return np.array([(until[:q] > q).sum() for q in range(len(until))])


def sees(until):
  """Returns who sees whom, [B, T, T], from the definition."""
  index = np.arange(until.shape[1])
  sees = index[None, :] <= index[:, None]
  return sees & (index[:, None] < until[:, None, :])


def window(until, size):
  positions = jnp.asarray(np.stack([depths(x) for x in until]))
  return attention.Window(positions, jnp.asarray(size))


def value_and_gradients(function, heads, until, *more, **how):
  mark = jnp.asarray(np.random.default_rng(1).normal(size=heads[0].shape))

  @jax.jit
  def gradients(*heads):
    def total(*heads):
      out = function(*heads, jnp.asarray(until), *more, **how)
      return (out.astype(jnp.float32) * mark).sum(), out

    return jax.grad(total, argnums=(0, 1, 2), has_aux=True)(*heads)

  gradients, out = gradients(*heads)
  return out, *gradients


def agree(function, heads, until, *more, atol=1e-5, **how):
  found = value_and_gradients(function, heads, until, *more, **how)
  wide = tuple(x.astype(jnp.float32) for x in heads)
  expected = value_and_gradients(attention.reference, wide, until, *more, **how)
  for a, b in zip(found, expected, strict=True):
    a, b = (np.asarray(x, np.float32) for x in (a, b))
    np.testing.assert_allclose(a, b, atol=atol)
  return expected
