"""FLOPs from the jaxpr: loops, branches, devices, and a whole update."""

import dataclasses

import jax
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P
import pytest

from prm_jax import batch as batch_lib
from prm_jax.models import model_config as model_config
from prm_jax.models import sharding
from prm_jax.plan import flops
from prm_jax.training import optimizer
from prm_jax.training import prm
from prm_jax.training import programs

SQUARE = jnp.ones((8, 8))
MATMUL = 2 * 8**3


def _count(function, *args):
  return flops.count(jax.make_jaxpr(function)(*args))


def _scanned(x):
  return jax.lax.scan(lambda x, _: (x @ x, None), x, None, length=5)[0]


def test_a_matmul_is_two_flops_per_multiplication():
  x, y = jnp.ones((3, 5, 7)), jnp.ones((3, 7, 11))
  found = _count(lambda x, y: jnp.einsum("bij,bjk->bik", x, y), x, y)
  assert found.flops == 2 * 3 * 5 * 7 * 11


def test_a_scans_body_counts_as_often_as_it_runs():
  assert _count(_scanned, SQUARE).flops == 5 * MATMUL

  def nested(x):
    return jax.lax.fori_loop(0, 3, lambda _, x: _scanned(x), x)

  assert _count(nested, SQUARE).flops == 15 * MATMUL


def test_the_compilers_own_count_takes_a_scan_once():
  """Why there is a count of our own."""
  analysis = jax.jit(_scanned).lower(SQUARE).compile().cost_analysis()
  assert analysis["flops"] < 2 * MATMUL


def test_the_longest_branch_counts_once():
  def branch(x):
    return jax.lax.cond(x[0, 0] > 0, lambda x: x @ x @ x, lambda x: x @ x, x)

  assert _count(branch, SQUARE).flops == 2 * MATMUL


def test_what_shard_map_gives_a_device_counts_once_per_device():
  mesh = sharding.make_mesh((2, 2, 2))

  def rows(x):
    f = jax.shard_map(
      lambda x: x @ SQUARE, mesh=mesh, in_specs=P("data"), out_specs=P("data")
    )
    return f(x)

  # Four devices of each half do what one could.
  assert _count(rows, SQUARE).flops == 8 * MATMUL // 2


def test_a_loop_of_unknown_length_is_refused_if_it_multiplies():
  def until(x, multiply):
    body = (lambda x: x @ x) if multiply else (lambda x: x + 1)
    return jax.lax.while_loop(lambda x: x[0, 0] < 9, body, x)

  assert _count(lambda x: until(x, False), SQUARE).flops == 0
  with pytest.raises(ValueError, match="how often it runs"):
    _count(lambda x: until(x, True), SQUARE)


@pytest.mark.parametrize("remat", ["none", "full"])
def test_an_update_costs_what_the_formula_says(remat):
  """Six FLOPs per parameter and token, and attention's six matmuls.

  Rematerialisation computes the forward pass again but for the last matmul of
  a layer, whose result nothing needs: down-projections.
  """
  B, T, L = 2, 16, 3
  model = model_config.ModelConfig(
    vocab_size=32,
    d_model=8,
    num_layers=L,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    d_ff=24,
    remat=remat,
    attention="reference",
  )
  program = programs.make(
    prm.PRMConfig(), model, optimizer.make(optimizer.OptimizerConfig(1e-3), 10)
  )
  state = jax.eval_shape(program.init, jax.random.key(0))
  found = _count(program.step, state, batch_lib.empty(B, T))
  attention = 2 * B * L * model.num_heads * model.head_dim * T**2
  forward = 2 * B * T * model.body_parameters + 2 * attention
  expected = 3 * forward + 3 * 2 * B * T * model.d_model  # and the step head
  if remat == "full":
    expected += forward - 2 * B * T * L * model.d_model * model.d_ff
  assert found.flops == expected
  assert found.kernel_matmuls == 0


def test_a_kernels_matmuls_are_counted_apart():
  from jax.experimental import pallas as pl

  def kernel(x_ref, o_ref):
    def body(_, x):
      return x @ x_ref[...]

    o_ref[...] = jax.lax.fori_loop(0, x_ref.shape[0], body, x_ref[...])

  def scanned(x):
    call = pl.pallas_call(
      kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True
    )
    return jax.lax.scan(lambda x, _: (call(x), None), x, None, length=4)[0]

  assert dataclasses.astuple(_count(scanned, SQUARE)) == (0, 4)
