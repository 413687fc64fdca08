"""Attention to caches: against the naive oracle, and pages against tails."""

import functools

import jax
from jax import numpy as jnp
import numpy as np
import pytest
import test_attention

from prm_jax.models import attention
from prm_jax.models import kv_cache


@functools.partial(jax.jit, static_argnames=("scale", "softcap"))
def _attend(past, k, v, q, window, **how):
  """Appends a key and a value, then attends to all."""
  return past.append(k, v).attend(q, window, **how)


# --- Prefix and tail --------------------------------------------------------


@pytest.mark.parametrize("size", [None, 1, 2, 5])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_attend_past_is_attention_to_the_prefix_and_the_own_tail(
  kv_heads, size
):
  B, N, H, C, P, S, index = 2, 3, 4, 4, 5, 6, 2
  lengths = np.asarray([5, 3])
  q = test_attention._normal(0, B, N, H, C)
  k, v = (test_attention._normal(i, B, N, kv_heads, C) for i in (1, 2))
  at = np.arange(P)
  prefix_distance = np.broadcast_to(
    np.where(
      at < lengths[:, None, None], lengths[:, None, None] + index - at, -1
    ),
    (B, N, P),
  )
  own_distance = np.broadcast_to(index - np.arange(S), (B, N, S))
  past = kv_cache.Past(
    prefix_k=jnp.asarray(test_attention._normal(3, B, kv_heads, P, C)),
    prefix_v=jnp.asarray(test_attention._normal(4, B, kv_heads, P, C)),
    own_k=jnp.asarray(test_attention._normal(5, B * N * kv_heads, S, C)),
    own_v=jnp.asarray(test_attention._normal(6, B * N * kv_heads, S, C)),
    prefix_distance=jnp.asarray(prefix_distance),
    own_distance=jnp.asarray(own_distance),
    column=jnp.asarray(index),
  )
  # A window comes with a soft cap and a scale of its own.
  how, window = {}, None
  if size is not None:
    how = dict(scale=0.7, softcap=1.5)
    positions = np.broadcast_to(lengths[:, None] + index, (B, N))
    window = attention.Window(jnp.asarray(positions), jnp.asarray(size))
  found = np.asarray(_attend(past, k, v, q, window, **how))
  tails = [
    np.asarray(x).reshape(B, N, kv_heads, S, C)
    for x in (past.own_k, past.own_v)
  ]
  prefixes = [np.asarray(x) for x in (past.prefix_k, past.prefix_v)]
  for b in range(B):
    for n in range(N):
      keys, values = (
        np.concatenate(
          [prefix[b, :, : lengths[b]], own[b, n, :, :index], x], axis=1
        ).swapaxes(0, 1)[None]
        for prefix, own, x in (
          (prefixes[0], tails[0], k[b, n][:, None]),
          (prefixes[1], tails[1], v[b, n][:, None]),
        )
      )
      T = keys.shape[1]
      queries = np.zeros((1, T, H, C), np.float32)
      queries[0, -1] = q[b, n]
      # The lengths differ, so positions are what counts, not the caches.
      expected = test_attention._oracle(
        queries,
        keys,
        values,
        np.full((1, T), T),
        None if size is None else lambda b, query, key: query - key < size,
        **how,
      )[0, -1]
      np.testing.assert_allclose(found[b, n], expected, atol=1e-5)


def test_append_writes_the_index_alone():
  past = kv_cache.Past(
    *(jnp.zeros((1, 1, 1, 2)),) * 2,
    *(jnp.zeros((2, 4, 2)),) * 2,
    jnp.zeros((1, 2, 1), int),
    jnp.zeros((1, 2, 4), int),
    jnp.asarray(1),
  )
  new = past.append(jnp.ones((1, 2, 1, 2)), jnp.full((1, 2, 1, 2), 2.0))
  expected = np.zeros((2, 4, 2))
  expected[:, 1] = 1
  np.testing.assert_array_equal(new.own_k, expected)
  np.testing.assert_array_equal(new.own_v, 2 * expected)


# --- Pages ------------------------------------------------------------------


@pytest.mark.parametrize("windowed", [False, True], ids=["all", "window"])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_pages_and_a_short_tail_are_one_long_tail(kv_heads, windowed):
  """Samples of five ages: with no page, one, several; one of another."""
  B, N, H, C, P, T = 3, 2, 4, 4, 5, 4
  drawn = np.asarray([0, 2, 3, 5, 9, 12]).reshape(B, N)
  S, column = drawn.max() + 1, 2
  random = np.random.default_rng(kv_heads)

  def normal(*shape):
    return random.normal(size=shape).astype(np.float32)

  prefix = normal(2, B, kv_heads, P, C)
  seen = random.integers(0, P + 1, (B, N, 1))
  at = np.arange(P)
  behind = np.where(at < seen, seen + drawn[..., None] - at, -1)
  q, new_k, new_v = normal(B, N, H, C), *normal(2, B, N, kv_heads, C)
  # Index i of a long tail is token i; the last one is still to be appended.
  tails = normal(2, B * N, kv_heads, S, C)
  # Columns that hold no token of the sample hold something all the same.
  own = normal(2, B * N, kv_heads, T, C)
  pages, owner, first = [normal(2, kv_heads, T, C)], [-1], [7]
  for sample, num in enumerate(drawn.reshape(-1)):
    near = min(num, column)
    own[:, sample, :, column - near : column] = tails[
      :, sample, :, num - near : num
    ]
    for start in range(num - column - T, -T, -T):
      page, there = normal(2, kv_heads, T, C), max(start, 0)
      page[:, :, there - start :] = tails[:, sample, :, there : start + T]
      pages.append(page)
      owner.append(sample)
      first.append(start)
  order = random.permutation(len(pages))
  pages, owner, first = (
    np.stack(pages, 1)[:, order],
    np.asarray(owner)[order],
    np.asarray(first)[order],
  )
  number = first[:, None] + np.arange(T)
  in_page = np.where(
    (owner[:, None] >= 0) & (number >= 0),
    drawn.reshape(-1)[owner][:, None] - number,
    -1,
  )
  age = column - np.arange(T)
  ages = np.where(age <= drawn[..., None], age, -1)
  paged = kv_cache.Past(
    *map(jnp.asarray, prefix),
    *(jnp.asarray(x.reshape(-1, T, C)) for x in own),
    jnp.asarray(behind),
    jnp.asarray(ages),
    jnp.asarray(column),
    kv_cache.Pages(*map(jnp.asarray, (*pages, owner, in_page))),
  )
  how, window = {}, None
  if windowed:
    how = dict(scale=0.7, softcap=1.5)
    window = attention.Window(jnp.asarray(drawn), jnp.asarray(6))
  found = np.asarray(_attend(paged, new_k, new_v, q, window, **how))
  for b, n in np.ndindex(B, N):
    num, sample = drawn[b, n], b * N + n
    keys, values = (
      np.concatenate(
        [p[b, :, : seen[b, n, 0]], t[sample, :, :num], x], 1
      ).swapaxes(0, 1)[None]
      for p, t, x in zip(
        prefix,
        tails,
        (new_k[b, n][:, None], new_v[b, n][:, None]),
        strict=True,
      )
    )
    length = keys.shape[1]
    queries = np.zeros((1, length, H, C), np.float32)
    queries[0, -1] = q[b, n]
    expected = test_attention._oracle(
      queries,
      keys,
      values,
      np.full((1, length), length),
      (lambda b, query, key: query - key < 6) if windowed else None,
      **how,
    )[0, -1]
    np.testing.assert_allclose(found[b, n], expected, atol=1e-5)
