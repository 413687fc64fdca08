"""Attention by blocks against the reference: values, gradients, what it skips."""

import functools

import attention_rows
import jax
from jax import numpy as jnp
import numpy as np
import pytest

from prm_jax import errors
from prm_jax.models import attention
from prm_jax.models import blockwise_attention
from prm_jax.models import sharding

BLOCK = 8


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
  monkeypatch.setattr(blockwise_attention, "BLOCK", BLOCK)


@pytest.mark.parametrize(
  ("T", "H", "K"), [(1, 6, 2), (7, 2, 2), (8, 3, 1), (37, 6, 2)]
)
def test_blocks_are_the_reference_and_so_are_the_gradients(T, H, K):
  until = attention_rows.rows(T)
  heads = attention_rows.heads(len(until), T, H, K)
  attention_rows.agree(blockwise_attention.attend, heads, until)


@pytest.mark.parametrize("size", [1, BLOCK, 3 * BLOCK + 1])
def test_windows_and_caps_are_the_references_and_so_are_the_gradients(size):
  T = 5 * BLOCK - 3
  until = attention_rows.rows(T)
  window = attention_rows.window(until, size)
  heads, how = (
    attention_rows.heads(len(until), T, 4, 2),
    dict(scale=0.8, softcap=1.2),
  )
  expected = attention_rows.agree(
    blockwise_attention.attend, heads, until, window, **how
  )
  without = attention_rows.value_and_gradients(
    attention.reference, heads, until, **how
  )
  assert all(
    np.abs(np.asarray(a) - np.asarray(b)).max() > 1e-2
    for a, b in zip(without, expected, strict=True)
  )


def test_blocks_that_no_window_reaches_are_not_touched():
  T = 4 * BLOCK
  q, k, v = attention_rows.heads(1, T, 2, 2)
  until = jnp.full((1, T), T)
  window = attention.Window(jnp.arange(T)[None], jnp.asarray(BLOCK))
  k, v = (x.at[:, :BLOCK].set(jnp.nan) for x in (k, v))
  out, whole = (
    np.asarray(jax.jit(function)(q, k, v, until, window))[:, 2 * BLOCK :]
    for function in (blockwise_attention.attend, attention.reference)
  )
  assert np.isfinite(out).all()
  assert np.isnan(whole).all()


@pytest.mark.parametrize("cap", [None, 2.0])
def test_sums_are_float32_under_bfloat16(cap):
  """Over 128 blocks: any of the sums in bfloat16 loses 0.0077 or more."""
  T = 128 * BLOCK
  random = np.random.default_rng(2)
  q, k = random.normal(size=(2, 1, T, 1, 4))
  v = 0.5 + random.normal(size=(1, T, 1, 4))
  heads = [jnp.asarray(x, jnp.bfloat16) for x in (q, k, v)]
  until = jnp.full((1, T), T)
  found = attention_rows.value_and_gradients(
    blockwise_attention.attend, heads, until, softcap=cap
  )
  wide = [np.asarray(x, np.float32) for x in heads]
  wanted = attention_rows.value_and_gradients(
    attention.reference, wide, until, softcap=cap
  )
  for x, y in zip(found, wanted, strict=True):
    assert x.dtype == jnp.bfloat16
    x, y = np.asarray(x, np.float32), np.asarray(y)
    assert np.square(x - y).mean() < 0.006**2 * np.square(y).mean()


def test_grouped_heads_in_trees_are_the_references_under_bfloat16():
  T = 5 * BLOCK
  heads = attention_rows.heads(1, T, 4, 2, dtype=jnp.bfloat16)
  until = jnp.asarray(attention_rows.trees(np.random.default_rng(2), T))[None]
  found = attention_rows.value_and_gradients(
    blockwise_attention.attend, heads, until
  )
  wide = [np.asarray(x, np.float32) for x in heads]
  wanted = attention_rows.value_and_gradients(attention.reference, wide, until)
  for x, y in zip(found, wanted, strict=True):
    x, y = np.asarray(x, np.float32), np.asarray(y)
    np.testing.assert_allclose(x, y, atol=2e-2 * np.abs(y).max())


def test_blocks_that_no_query_sees_are_not_touched():
  # Two solutions of two blocks each. The dense square multiplies what is
  # hidden by 0, which makes no number of NaN; what is skipped can be anything.
  T = 4 * BLOCK
  q, k, v = attention_rows.heads(1, T, 2, 2)
  until = jnp.where(jnp.arange(T) < T // 2, T // 2, T)[None]
  k, v = (x.at[:, : T // 2].set(jnp.nan) for x in (k, v))
  second = slice(T // 2, None)

  def total(function, q, k, v):
    return function(q, k, v, until)[:, second].sum()

  for function, clean in (
    (attention.reference, False),
    (blockwise_attention.attend, True),
  ):
    both = jax.jit(jax.value_and_grad(functools.partial(total, function)))
    value, gradient = map(np.asarray, both(q, k, v))
    assert bool(np.isfinite(value)) == clean
    assert bool(np.isfinite(gradient[:, second]).all()) == clean


def test_no_square_of_the_row_is_ever_held():
  T = 5 * BLOCK
  heads, until = attention_rows.heads(1, T, 2, 2), jnp.full((1, T), T)

  def squares(function):
    def total(*heads):
      return function(*heads, until).sum()

    jaxpr = jax.make_jaxpr(jax.grad(total, argnums=(0, 1, 2)))(*heads)
    return f"{T},{T}]" in str(jaxpr)

  assert squares(attention.reference)
  assert not squares(blockwise_attention.attend)


def test_auto_takes_blocks_for_long_rows_on_a_cpu():
  def loops(T, kind):
    heads, until = attention_rows.heads(1, T, 2, 2), jnp.full((1, T), T)
    attend = functools.partial(attention.attend, kind=kind)
    return "scan" in str(jax.make_jaxpr(attend)(*heads, until))

  assert not loops(4 * BLOCK, "auto")
  assert loops(4 * BLOCK + 1, "auto")
  assert loops(1, "blocks")
  assert not loops(8 * BLOCK, "reference")


# --- On a mesh --------------------------------------------------------------


def _on_mesh(shape, heads, until, *window):
  mesh = sharding.make_mesh(shape)
  spec = jax.sharding.PartitionSpec(("data", "fsdp"), None, "tensor", None)
  place = jax.sharding.NamedSharding(mesh, spec)
  rows, everywhere = sharding.of_batch(mesh), sharding.replicated(mesh)
  near = tuple(attention.Window(rows, everywhere) for _ in window)

  def attend(q, k, v, until, *window):
    return attention.attend(q, k, v, until, "auto", *window)

  call = sharding.jit(
    functools.partial(attention_rows.value_and_gradients, attend),
    mesh,
    in_shardings=(place, rows, *near),
    out_shardings=place,
  )
  return call(jax.device_put(heads, place), until, *window)


@pytest.mark.parametrize(
  ("shape", "size"),
  [((8, 1, 1), None), ((2, 2, 2), 9)],
  ids=str,
)
def test_on_a_mesh_every_device_attends_to_its_own_part(shape, size):
  B, T = 8, 5 * BLOCK + 1
  random = np.random.default_rng(0)
  until = np.stack([attention_rows.trees(random, T) for _ in range(B)])
  window = ()
  if size is not None:
    depths = jnp.asarray(np.stack([attention_rows.depths(x) for x in until]))
    window = (attention.Window(depths, jnp.asarray(size)),)
  heads, until = attention_rows.heads(B, T, 4, 2), jnp.asarray(until)
  for found, expected in zip(
    _on_mesh(shape, heads, until, *window),
    attention_rows.value_and_gradients(
      attention.reference, heads, until, *window
    ),
    strict=True,
  ):
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert found.sharding.shard_shape(found.shape)[0] < B


def test_heads_that_a_mesh_cannot_split_take_the_reference():
  B, T = 2, 5 * BLOCK
  heads, until = attention_rows.heads(B, T, 4, 1), jnp.full((B, T), T)
  mesh = sharding.make_mesh((2, 1, 4))
  with pytest.raises(errors.InputError, match="'reference'"):
    _attend_under(mesh, heads, until, "blocks")
  found = _attend_under(mesh, heads, until, "auto")
  expected = jax.jit(attention.reference)(*heads, until)
  np.testing.assert_allclose(found, expected, atol=1e-5)


def _attend_under(mesh, heads, until, kind):
  everywhere = sharding.replicated(mesh)
  return sharding.jit(
    lambda heads, until: attention.attend(*heads, until, kind),
    mesh,
    in_shardings=everywhere,
    out_shardings=everywhere,
  )(heads, until)
