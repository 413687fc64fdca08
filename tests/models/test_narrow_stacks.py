"""Scans slice bfloat16 stacks as integers: the same numbers, less memory."""

import jax
from jax import numpy as jnp
import numpy as np

from prm_jax.models import matmul
from prm_jax.models import narrow_stacks

LAYERS, WIDTH = 6, 32


def _gradient(params, x):
  def loss(params):
    def layer(x, kernel):
      y = matmul.matmul(x, kernel.astype(jnp.bfloat16), jnp.bfloat16)
      return jnp.tanh(y), y.astype(jnp.float32).sum()

    x_, sums = jax.lax.scan(layer, x, params)
    return x_.astype(jnp.float32).sum() + sums.sum(), sums

  return jax.grad(loss, has_aux=True)(params)


def _case(dtype):
  random = np.random.default_rng(0)
  params = jnp.asarray(random.normal(size=(LAYERS, WIDTH, WIDTH)) / 6, dtype)
  x = jnp.asarray(random.normal(size=(WIDTH * 8, WIDTH)), jnp.bfloat16)
  return params, x


def test_gradients_are_the_same_bits():
  for dtype in (jnp.float32, jnp.bfloat16):
    case = _case(dtype)
    expected = jax.jit(_gradient)(*case)
    found = jax.jit(narrow_stacks.kept(_gradient))(*case)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert found[0].dtype == dtype


def test_no_stack_is_converted_to_float32():
  case = _case(jnp.bfloat16)

  def stacks(function):
    compiled = jax.jit(function).lower(*case).compile()
    return compiled.as_text().count(f"f32[{LAYERS},{WIDTH},{WIDTH}]")

  assert bool(stacks(_gradient)) == narrow_stacks.IS_NEEDED
  assert not stacks(narrow_stacks.kept(_gradient))
