"""Attention against a naive oracle, for any `visible_until`, and RoPE."""

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from prm_jax.models import attention
from prm_jax.models import layers
from prm_jax.models import model_config as model_config


def _normal(seed, *shape):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _oracle(q, k, v, visible_until, window=None, scale=None, softcap=None):
  """One query at a time, in float64, over the keys that it sees.

  window: a function of b, query and key, or None.
  """
  B, T, H, C = q.shape
  group = H // k.shape[2]
  out = np.zeros((B, T, H, C))
  for b in range(B):
    for t in range(T):
      seen = [
        s
        for s in range(t + 1)
        if t < visible_until[b, s] and (window is None or window(b, t, s))
      ]
      for h in range(H):
        keys = k[b, seen, h // group].astype(np.float64)
        logits = keys @ q[b, t, h] * (scale or 1 / np.sqrt(C))
        if softcap:
          logits = softcap * np.tanh(logits / softcap)
        p = np.exp(logits - logits.max())
        out[b, t, h] = (p / p.sum()) @ v[b, seen, h // group]
  return out


_reference = jax.jit(attention.reference, static_argnames=("scale", "softcap"))


# --- Rows and trees ---------------------------------------------------------


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_the_reference_is_the_naive_attention_for_any_visible_until(kv_heads):
  B, T, H, C = 3, 11, 6, 4
  until = np.random.default_rng(kv_heads).integers(
    np.arange(T) + 1, T + 1, (B, T)
  )
  until[0] = T  # a causal row
  until[1] = np.arange(T) + 1  # nothing but padding
  q, k, v = (
    _normal(i, B, T, n, C) for i, n in enumerate((H, kv_heads, kv_heads))
  )
  found = _reference(*map(jnp.asarray, (q, k, v, until)))
  np.testing.assert_allclose(found, _oracle(q, k, v, until), atol=1e-5)


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_window_hides_what_is_farther_back_in_positions(size):
  B, T, H, K, C = 2, 11, 4, 2, 4
  random = np.random.default_rng(size)
  until = random.integers(np.arange(T) + 1, T + 1, (B, T))
  positions = random.integers(0, 8, (B, T))
  q, k, v = (_normal(i, B, T, n, C) for i, n in enumerate((H, K, K)))
  found = _reference(
    *map(jnp.asarray, (q, k, v, until)),
    attention.Window(jnp.asarray(positions), jnp.asarray(size)),
    scale=0.7,
    softcap=1.5,
  )

  def near(b, query, key):
    return positions[b, query] - positions[b, key] < size

  expected = _oracle(q, k, v, until, near, scale=0.7, softcap=1.5)
  np.testing.assert_allclose(found, expected, atol=1e-5)


def test_padding_sees_itself_only():
  T = 5
  q, k, v = (_normal(i, 1, T, 2, 4) for i in range(3))
  until = jnp.arange(1, T + 1)[None]
  found = _reference(*map(jnp.asarray, (q, k, v)), until)
  np.testing.assert_allclose(found, v, atol=1e-6)


def test_attention_of_a_hidden_key_has_no_gradient():
  q, k, v = (jnp.asarray(_normal(i, 1, 4, 2, 4)) for i in range(3))
  # Key 1 is a leaf: queries 2 and 3 don't see it.
  until = jnp.asarray([[4, 2, 4, 4]])

  def later(k, v):
    return (attention.reference(q, k, v, until)[:, 2:] ** 2).sum()

  for gradient in map(np.asarray, jax.jit(jax.grad(later, (0, 1)))(k, v)):
    assert not gradient[:, 1].any()
    assert gradient[:, 0].any()


def test_softmax_is_float32_under_bfloat16():
  # Logits of 70.71 and 71.06: bfloat16 would make them 70.5 and 71.
  def row(*values):
    return jnp.asarray(values, jnp.bfloat16)[None, :, None]

  q = row([0, 0], [1, 0.0625])
  k, v = row([100, 0], [100, 8]), row([0, 0], [1, 1])
  found = attention.reference(q, k, v, jnp.full((1, 2), 2))
  assert found.dtype == jnp.bfloat16
  expected = 1 / (1 + np.exp(-0.5 / np.sqrt(2)))
  np.testing.assert_allclose(found[0, 1, 0], expected, rtol=2**-7)


# --- RoPE -------------------------------------------------------------------


def _tables(positions, head_dim, theta):
  frequencies = layers.base_frequencies(head_dim, theta)
  return layers.rope_tables(jnp.asarray(positions), frequencies)


def _dot(q, k, at_q, at_k):
  """Returns the products of rotated queries and keys, one per head."""

  def turn(x, position):
    tables = _tables([position], x.shape[-1], 10_000.0)
    return layers.rotate(jnp.asarray(x), *tables)

  return jnp.einsum("tHC,tHC->tH", turn(q, at_q), turn(k, at_k))


@pytest.mark.parametrize("shift", [1, 17, 400])
def test_rope_depends_on_relative_positions_alone(shift):
  q, k = _normal(0, 1, 3, 8), _normal(1, 1, 3, 8)
  here, there = _dot(q, k, 9, 4), _dot(q, k, 9 + shift, 4 + shift)
  np.testing.assert_allclose(there, here, atol=2e-4)
  assert np.abs(_dot(q, k, 9, 5) - here).max() > 0.1


def test_rope_turns_each_pair_by_its_angle():
  # Channel i and i + C/2 are the real and imaginary part of a number that
  # position p multiplies by exp(j p theta^(-2i/C)).
  C, theta, p = 6, 100.0, 7
  x = _normal(0, 1, 1, C)
  tables = _tables([p], C, theta)
  found = np.asarray(layers.rotate(jnp.asarray(x), *tables))[0, 0]
  number = x[0, 0, :3] + 1j * x[0, 0, 3:]
  turned = number * np.exp(1j * p * theta ** (-2 * np.arange(3) / C))
  np.testing.assert_allclose(found[:3] + 1j * found[3:], turned, atol=1e-5)


def test_rope_leaves_position_0_and_every_length_alone():
  x = _normal(0, 2, 3, 8)
  tables = _tables([0, 123], 8, 10_000.0)
  found = np.asarray(layers.rotate(jnp.asarray(x), *tables))
  np.testing.assert_array_equal(found[0], x[0])
  np.testing.assert_allclose(
    np.linalg.norm(found, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-5
  )


def test_llama3_slows_the_long_waves_and_keeps_the_short_ones():
  # Meta's rule for Llama 3.1, by wavelength, pair by pair.
  c = model_config.ModelConfig(
    **dict(vocab_size=1, d_model=1, num_layers=1, num_heads=1, d_ff=1),
    **dict(num_kv_heads=1, head_dim=64, rope_theta=500_000.0),
    **dict(rope_scaling="llama3", rope_factor=8.0),
  )
  found = np.asarray(layers.rope_frequencies(c))
  kinds = set()
  for i in range(32):
    base = 500_000.0 ** (-2 * i / 64)
    wavelength = 2 * np.pi / base
    if wavelength > 8192 / 1.0:
      kind, expected = "long", base / 8
    elif wavelength < 8192 / 4.0:
      kind, expected = "short", base
    else:
      smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
      kind, expected = "between", (1 - smooth) * base / 8 + smooth * base
    kinds.add(kind)
    np.testing.assert_allclose(found[i], expected, rtol=1e-5)
  assert kinds == {"long", "between", "short"}


def test_linear_scaling_is_a_slower_walk_and_never_local():
  c = model_config.ModelConfig(
    **dict(vocab_size=1, d_model=1, num_layers=1, num_heads=1, d_ff=1),
    **dict(num_kv_heads=1, head_dim=8, window=4, rope_local_theta=100.0),
    **dict(rope_scaling="linear", rope_factor=8.0),
  )
  far, near = layers.rope_frequencies(c), layers.rope_frequencies(c, True)
  slow = layers.rope_tables(jnp.asarray([16]), far)
  walk = layers.rope_tables(
    jnp.asarray([2]), layers.base_frequencies(8, 10_000.0)
  )
  np.testing.assert_allclose(slow, walk, atol=1e-6)
  np.testing.assert_array_equal(near, layers.base_frequencies(8, 100.0))
