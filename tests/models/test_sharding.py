"""Eight simulated devices compute what one does, and really share the work."""

import dataclasses
import functools
import math

from flax.core import meta
import jax
from jax import numpy as jnp
from jax.extend import core
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest

from prm_jax import batch as batch_lib
from prm_jax import errors
from prm_jax.models import blockwise_attention
from prm_jax.models import model_config
from prm_jax.models import sharding
from prm_jax.training import prm
from prm_jax.training import programs

MODEL = model_config.ModelConfig(
  vocab_size=48,
  d_model=16,
  num_layers=2,
  num_heads=4,
  num_kv_heads=2,
  head_dim=8,
  d_ff=24,
  tie_embedding=False,
)
PROGRAMS = {k: programs.TRAINED[k] for k in ("sft", "prm", "orm")}
MESHES = [(8, 1, 1), (2, 4, 1), (2, 2, 2)]
ROWS, ROW = 8, 16


@functools.cache
def _make(name, microbatches=1):
  return programs.make(
    PROGRAMS[name].objective(),
    MODEL,
    optax.adamw(1e-3),
    microbatches=microbatches,
  )


def _one_device():
  return sharding.make_mesh((1, 1, 1), jax.devices()[:1])


def _abstract(name):
  return jax.eval_shape(_make(name).init, jax.random.key(0))


def _host_state(name):
  """Returns a state of random numpy parameters, none of them 0."""
  random = np.random.default_rng(0)

  def fill(path, x):
    where = jax.tree_util.keystr(path)
    if "params" not in where:
      return np.zeros(x.shape, x.dtype)
    return 0.3 * random.normal(size=x.shape).astype(x.dtype)

  return jax.tree_util.tree_map_with_path(fill, meta.unbox(_abstract(name)))


def _batches(num):
  """Returns rows of two solutions each; their weights differ by row."""
  random = np.random.default_rng(0)
  batches = []
  for _ in range(num):
    batch = batch_lib.empty(ROWS, ROW)
    index = np.arange(ROW)
    half = ROW // 2
    batches.append(
      batch.replace(
        tokens=random.integers(0, 48, (ROWS, ROW)).astype(np.int32),
        positions=batch.positions + (index % half).astype(np.int32),
        visible_until=batch.positions
        + np.where(index < half, half, ROW).astype(np.int32),
        parent=batch.positions
        + np.where(index % half, index - 1, -1).astype(np.int32),
        labels=random.integers(0, 2, (ROWS, ROW)).astype(np.float32),
        weights=random.integers(0, 3, (ROWS, ROW)).astype(np.float32)
        * np.arange(ROWS, dtype=np.float32)[:, None],
      )
    )
  return batches


def _compile(name, mesh, function):
  """Returns the sharded step and the shardings of its state."""
  shardings = sharding.of_state(_abstract(name), mesh)
  step = sharding.jit(
    function,
    mesh,
    in_shardings=(shardings, sharding.of_batch(mesh)),
    out_shardings=(shardings, sharding.replicated(mesh)),
    donate_argnums=(0,),
  )
  return step, shardings


def _run(name, mesh, microbatches):
  """Returns the state after two updates, and both losses."""
  step, shardings = _compile(name, mesh, _make(name, microbatches).step)
  state, losses = jax.device_put(_host_state(name), shardings), []
  for batch in _batches(2):
    state, metrics = step(state, sharding.put_batch(batch, mesh))
    losses.append(float(metrics["loss_nats"]))
  return state, losses


@functools.cache
def _run_alone(name):
  state, losses = _run(name, _one_device(), microbatches=1)
  return jax.tree.map(np.asarray, state), losses


@pytest.mark.parametrize(
  ("name", "microbatches", "shape"),
  [("sft", 1, MESHES[0]), ("prm", 1, MESHES[1]), ("orm", 2, MESHES[2])],
  ids=str,
)
def test_eight_devices_learn_what_one_does(name, microbatches, shape):
  expected, expected_losses = _run_alone(name)
  mesh = sharding.make_mesh(shape)
  state, losses = _run(name, mesh, microbatches)
  np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
  before = jax.tree.leaves(_host_state(name).params)
  moved = 0.0
  for a, b, old in zip(
    jax.tree.leaves(state.params),
    jax.tree.leaves(expected.params),
    before,
    strict=True,
  ):
    np.testing.assert_allclose(a, b, atol=1e-5)
    moved = max(moved, np.abs(b - old).max())
  assert moved > 1e-3
  # The update leaves everything where it was.
  shardings = sharding.of_state(_abstract(name), mesh)
  jax.tree.map(
    lambda x, s: x.sharding.is_equivalent_to(s, x.ndim) or pytest.fail(str(s)),
    state,
    shardings,
  )


def test_attention_by_blocks_learns_the_same_on_a_mesh(monkeypatch):
  shape = MESHES[-1]
  monkeypatch.setattr(blockwise_attention, "BLOCK", 4)
  model = dataclasses.replace(MODEL, attention="blocks", remat="full")
  step = programs.make(prm.PRMConfig(), model, optax.adamw(1e-3)).step
  expected, expected_losses = _run_alone("prm")
  compiled, shardings = _compile("prm", sharding.make_mesh(shape), step)
  state, losses = jax.device_put(_host_state("prm"), shardings), []
  for batch in _batches(2):
    rows = sharding.put_batch(batch, sharding.make_mesh(shape))
    state, metrics = compiled(state, rows)
    losses.append(float(metrics["loss_nats"]))
  np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
  for a, b in zip(
    jax.tree.leaves(state.params),
    jax.tree.leaves(expected.params),
    strict=True,
  ):
    np.testing.assert_allclose(a, b, atol=1e-5)


# --- Who holds what ---------------------------------------------------------


def _specs(shape, name="sft"):
  mesh = sharding.make_mesh(shape)
  return sharding.of_state(_abstract(name), mesh)


def test_parameters_and_moments_are_split_over_fsdp_and_tensor():
  state = _specs((2, 2, 2))
  moments = state.opt_state[0]
  for tree in (state.params, moments.mu, moments.nu):
    layers = tree["layers"]
    for found, expected in (
      (tree["embedding"]["table"], P("tensor", "fsdp")),
      (tree["lm_head"]["kernel"], P("fsdp", "tensor")),
      (layers["attention"]["query"]["kernel"], P(None, "fsdp", "tensor")),
      (layers["attention"]["key"]["kernel"], P(None, "fsdp", "tensor")),
      (layers["attention"]["output"]["kernel"], P(None, "tensor", "fsdp")),
      (layers["mlp"]["up"]["kernel"], P(None, "fsdp", "tensor")),
      (layers["mlp"]["down"]["kernel"], P(None, "tensor", "fsdp")),
      (layers["mlp_norm"]["scale"], P(None, None)),
    ):
      assert found.spec == expected
  assert state.step.spec == P()


def test_a_device_holds_its_share_of_the_bytes():
  shapes = jax.tree.leaves(meta.unbox(_abstract("sft")))
  whole = sum(x.size for x in shapes)
  for shape in MESHES:
    held = sum(
      np.prod(s.shard_shape(x.shape))
      for x, s in zip(shapes, jax.tree.leaves(_specs(shape)), strict=True)
    )
    # The norms are on every device.
    assert whole / (shape[1] * shape[2]) <= held
    assert held < 1.05 * whole / (shape[1] * shape[2])


def test_an_axis_that_does_not_divide_evenly_is_replicated():
  mesh = sharding.make_mesh((1, 1, 8))
  layers = sharding.of_state(_abstract("prm"), mesh).params["layers"]
  # 16 key channels over 8 devices, but 24 hidden units over 16.
  assert layers["attention"]["key"]["kernel"].spec == P(None, "fsdp", "tensor")
  mesh = sharding.make_mesh((1, 5, 1), jax.devices()[:5])
  layers = sharding.of_state(_abstract("prm"), mesh).params["layers"]
  assert layers["mlp"]["up"]["kernel"].spec == P(None, None, "tensor")


def test_rows_are_split_over_data_and_fsdp():
  mesh = sharding.make_mesh((2, 2, 2))
  batch = _batches(1)[0]
  placed = sharding.put_batch(batch, mesh)
  for x, given in zip(
    jax.tree.leaves(placed), jax.tree.leaves(batch), strict=True
  ):
    assert {s.data.shape for s in x.addressable_shards} == {(2, ROW)}
    np.testing.assert_array_equal(x, given)


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 2, 2), (1, 2, 4)], ids=str)
def test_a_part_is_placed_as_the_batch_that_it_is_of(shape):
  mesh = sharding.make_mesh(shape, jax.devices()[: math.prod(shape)])
  batch = _batches(1)[0]
  # In any order, and with a row twice.
  numbers = np.array([3, 0, 7, 1, 2, 4, 6, 5, 3])
  rows = jax.tree.map(lambda x: x[numbers], batch)
  found = sharding.put_batch(batch_lib.Part(rows, numbers, ROWS, 0), mesh)
  expected = sharding.put_batch(batch, mesh)
  for a, b in zip(
    jax.tree.leaves(found), jax.tree.leaves(expected), strict=True
  ):
    assert a.sharding == b.sharding
    np.testing.assert_array_equal(a, b)


def test_a_part_that_lacks_a_row_of_this_process_is_refused():
  batch = _batches(1)[0]
  part = batch_lib.Part(
    jax.tree.map(lambda x: x[1:], batch), np.arange(1, 8), 8, 0
  )
  with pytest.raises(ValueError, match=r"lacks its rows \[0\]"):
    sharding.put_batch(part, sharding.make_mesh((2, 2, 2)))


def test_sharded_init_draws_the_same_parameters():
  mesh = sharding.make_mesh((2, 2, 2))
  init = _make("prm").init
  found = sharding.jit(
    lambda key: meta.unbox(init(key)),
    mesh,
    in_shardings=(sharding.replicated(mesh),),
    out_shardings=sharding.of_state(_abstract("prm"), mesh),
  )(jax.random.key(3))
  expected = jax.jit(lambda key: meta.unbox(init(key)))(jax.random.key(3))
  jax.tree.map(np.testing.assert_array_equal, found, expected)


# --- Axis names are in force ------------------------------------------------


def _constraints(jaxpr):
  """Yields the spec of every sharding constraint, also of inner jaxprs."""
  for equation in jaxpr.eqns:
    if equation.primitive.name == "sharding_constraint":
      yield equation.params["sharding"].spec
    for value in jax.tree.leaves(
      list(equation.params.values()),
      is_leaf=lambda x: isinstance(x, core.Jaxpr | core.ClosedJaxpr),
    ):
      if isinstance(value, core.ClosedJaxpr):
        yield from _constraints(value.jaxpr)
      elif isinstance(value, core.Jaxpr):
        yield from _constraints(value)


class _SeenError(Exception):
  pass


def test_axis_names_become_constraints_under_jit_and_only_there():
  program = _make("prm")
  traced = []

  def spy(state, batch):
    traced.append(jax.make_jaxpr(program.step)(state, batch))
    raise _SeenError  # it needn't be compiled

  mesh = sharding.make_mesh((2, 2, 2))
  step, shardings = _compile("prm", mesh, spy)
  state = jax.device_put(_host_state("prm"), shardings)
  with pytest.raises(_SeenError):
    step(state, sharding.put_batch(_batches(1)[0], mesh))
  found = set(_constraints(traced[0].jaxpr))
  rows = ("data", "fsdp")
  assert P(rows, None, None) in found  # activations
  assert P(rows, None, "tensor", None) in found  # heads
  assert P("tensor", None) in found  # the table, gathered from fsdp
  outside = jax.make_jaxpr(program.step)(
    jax.tree.map(jnp.asarray, _host_state("prm")),
    jax.tree.map(jnp.asarray, _batches(1)[0]),
  )
  assert not set(_constraints(outside.jaxpr))


# --- Simulated devices ------------------------------------------------------


def test_a_call_on_several_simulated_devices_is_finished_when_it_returns():
  """Two in flight can wait for each other's threads for ever."""
  mesh = sharding.make_mesh()

  def slow(x):
    return jax.lax.fori_loop(0, 200, lambda _, y: jnp.tanh(y @ y.T @ y), x)

  rows = sharding.of_batch(mesh)
  call = sharding.jit(slow, mesh, in_shardings=(rows,), out_shardings=rows)
  x = sharding.put_batch(np.ones((128, 64), np.float32), mesh)
  call(x)
  for _ in range(3):
    x = call(x)
    assert x.is_ready()


# --- Meshes -----------------------------------------------------------------


def test_minus_1_is_all_the_devices_that_are_left():
  assert sharding.make_mesh().devices.shape == (8, 1, 1)
  assert sharding.make_mesh((2, -1, 2)).devices.shape == (2, 2, 2)
  assert sharding.make_mesh((2, 2, 2)).axis_names == sharding.AXES


@pytest.mark.parametrize(
  "shape", [(3, 1, 1), (-1, 3, 1), (8, 1), (2, 2, 1), (0, 1, 1), (-1, -1, 1)]
)
def test_a_mesh_that_does_not_fit_the_devices_is_refused(shape):
  with pytest.raises(errors.InputError, match="8 devices") as e:
    sharding.make_mesh(shape)
  assert "\n" not in str(e.value)


def test_rows_that_cannot_be_split_are_refused():
  mesh = sharding.make_mesh((2, 2, 2))
  with pytest.raises(errors.InputError, match="multiple of 4") as e:
    sharding.put_batch(np.zeros((6, 4)), mesh)
  assert "\n" not in str(e.value)
