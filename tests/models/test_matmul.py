"""Products in bfloat16: summed in float32, rounded once, in any direction."""

import functools

import abstract_meshes
import jax
from jax import numpy as jnp
import numpy as np
import pytest

from prm_jax.models import layers
from prm_jax.models import matmul

X, Y, Z = 24, 300, 17


def _sides(dtype):
  random = np.random.default_rng(0)
  shapes = (X, Y), (Y, Z), (X, Z)
  return [jnp.asarray(random.normal(size=s), dtype) for s in shapes]


def _rounded(*sides):
  """Returns the product of two matrices in float64, rounded to bfloat16."""
  a, b = (np.asarray(x, np.float64) for x in sides)
  return jnp.asarray(a @ b).astype(jnp.bfloat16)


def _close(found, wanted):
  assert found.dtype == wanted.dtype == jnp.bfloat16
  found, wanted = (np.asarray(x, np.float64) for x in (found, wanted))
  # Half a unit in bfloat16's last place, and where sums lie between two.
  np.testing.assert_allclose(found, wanted, rtol=2**-7, atol=1e-4)
  assert (found == wanted).mean() > 0.99


def test_bfloat16_is_summed_in_float32_and_rounded_once_forward_and_back():
  a, b, d = _sides(jnp.bfloat16)
  out, back = jax.vjp(lambda a, b: matmul.matmul(a, b, "bfloat16"), a, b)
  d_a, d_b = back(d)
  _close(out, _rounded(a, b))
  _close(d_a, _rounded(d, b.T))
  _close(d_b, _rounded(a.T, d))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16])
def test_other_types_are_jaxs_own_product_bit_for_bit(dtype):
  a, b, d = _sides(dtype)
  ours = functools.partial(matmul.matmul, dtype=dtype)
  theirs = functools.partial(jnp.matmul, preferred_element_type=dtype)
  (x, back_x), (y, back_y) = (jax.vjp(f, a, b) for f in (ours, theirs))
  for found, wanted in zip((x, *back_x(d)), (y, *back_y(d)), strict=True):
    np.testing.assert_array_equal(found, wanted)


def test_every_product_of_a_dense_layer_suits_the_cpus_own_instructions():
  """They want float32 out and the left side's last axis summed."""
  dense = layers.Dense(Z, ("embed", "mlp"), "bfloat16")
  x = jnp.ones((2, X, Y), jnp.bfloat16)
  params = dict(params=dict(kernel=jnp.ones((Y, Z))))

  def total(params, x):
    return dense.apply(params, x).astype(jnp.float32).sum()

  both = jax.value_and_grad(total, argnums=(0, 1))
  jaxpr = jax.make_jaxpr(both)(params, x)
  dots = [e for e in jaxpr.eqns if e.primitive.name == "dot_general"]
  assert len(dots) == 3
  for dot in dots:
    (left, _), _ = dot.params["dimension_numbers"]
    assert left == (1,)
    assert [v.aval.dtype for v in dot.invars] == [jnp.bfloat16] * 2
    assert dot.params["preferred_element_type"] == jnp.float32


@pytest.mark.parametrize(("rows", "on_left"), [(2, False), (24, True)])
def test_transposed_parameters_are_the_left_side_of_few_rows_once_compiled(
  rows, on_left
):
  a, b, _ = _sides(jnp.bfloat16)
  b_t, a = jnp.asarray(b.T), a[:rows]
  product = jax.jit(lambda a, b: matmul.by_transposed(a, b, jnp.bfloat16))
  _close(product(a, b_t), _rounded(a, b))
  compiled = product.lower(a, b_t).compile().as_text()
  assert (f"f32[{Z},{rows}]{{1,0}} dot(" in compiled) == on_left


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_other_devices_are_given_the_plain_product(platform):
  a, b, _ = _sides(jnp.bfloat16)
  with jax.sharding.use_abstract_mesh(abstract_meshes.of(platform)):
    assert matmul.platform() == platform
    jaxpr = jax.make_jaxpr(lambda: matmul.matmul(a, b, jnp.bfloat16))()
  (dot,) = jaxpr.eqns
  assert dot.primitive.name == "dot_general"
  assert dot.params["preferred_element_type"] == jnp.bfloat16


# --- Activations --------------------------------------------------------------


def _gates(dtype):
  random = np.random.default_rng(1)
  return [jnp.asarray(3 * random.normal(size=4000), dtype) for _ in range(3)]


def _plain(name, gate, up):
  return layers.ACTIVATIONS[name](gate) * up


@pytest.mark.parametrize("name", layers.ACTIVATIONS)
def test_a_gate_in_bfloat16_is_rounded_once_forward_and_back(name):
  gate, up, d = _gates(jnp.bfloat16)
  found, back = jax.vjp(
    functools.partial(matmul.gated, layers.ACTIVATIONS[name]), gate, up
  )
  widened = [x.astype(jnp.float32) for x in (gate, up, d)]
  wanted, plain_back = jax.vjp(functools.partial(_plain, name), *widened[:2])
  for x, y in zip(
    (found, *back(d)), (wanted, *plain_back(widened[2])), strict=True
  ):
    assert x.dtype == jnp.bfloat16
    np.testing.assert_array_equal(x, y.astype(jnp.bfloat16))


def test_a_gate_keeps_nothing_for_its_backward_pass_but_the_two():
  gate, up, _ = _gates(jnp.bfloat16)
  silu = functools.partial(matmul.gated, layers.ACTIVATIONS["silu"])
  _, back = jax.vjp(silu, gate, up)
  kept = [x for x in jax.tree.leaves(back) if x.size == gate.size]
  assert [x.dtype for x in kept] == [jnp.bfloat16] * 2


@pytest.mark.parametrize("name", layers.ACTIVATIONS)
def test_a_gate_of_another_type_or_device_is_the_plain_one(name):
  gated = functools.partial(matmul.gated, layers.ACTIVATIONS[name])
  plain = functools.partial(_plain, name)
  narrow = _gates(jnp.bfloat16)[:2]

  def steps(function, sides):
    return str(jax.make_jaxpr(function)(*sides))

  for dtype in (jnp.float32, jnp.float16):
    sides = _gates(dtype)[:2]
    assert steps(gated, sides) == steps(plain, sides)
  for platform in ("gpu", "tpu"):
    with jax.sharding.use_abstract_mesh(abstract_meshes.of(platform)):
      assert steps(gated, narrow) == steps(plain, narrow)
  assert steps(gated, narrow) != steps(plain, narrow)
