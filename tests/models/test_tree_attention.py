"""The kernels of accelerators against the reference, in the interpreter."""

import dataclasses
import functools
import os
import pathlib
import subprocess
import sys

import abstract_meshes
import attention_rows
from flax.core import meta
import hypothesis
from hypothesis import strategies as st
import jax
from jax import numpy as jnp
import numpy as np
import pytest

from prm_jax import batch as batch_lib
from prm_jax import errors
from prm_jax.models import attention
from prm_jax.models import model_config as model_config
from prm_jax.models import sharding
from prm_jax.models import splash_attention
from prm_jax.models import transformer
from prm_jax.models import tree_attention
from prm_jax.models import tree_attention_kernels

BLOCK = 8


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
  _set_blocks(monkeypatch, BLOCK, BLOCK)


def _set_blocks(monkeypatch, queries, keys):
  small = tree_attention_kernels.Blocks(queries, keys)
  monkeypatch.setitem(tree_attention.BLOCKS, "cpu", small)


# --- Pallas' backends -------------------------------------------------------


def test_without_pallas_triton_only_the_kernel_of_gpus_is_missing():
  # In a process of its own, which imports everything anew.
  script = pathlib.Path(__file__).with_name("without_triton.py")
  done = subprocess.run(
    [sys.executable, script],
    capture_output=True,
    text=True,
    check=True,
    timeout=120,
    env=os.environ | dict(JAX_PLATFORMS="cpu"),
  )
  *lowered, refusal = done.stdout.splitlines()
  assert lowered == [
    "cpu tree 16: interpreted",
    "tpu auto 1024: kernel",
    "gpu auto 16: no kernel",
    "gpu blocks 1024: no kernel",
  ]
  assert "has no jax.experimental.pallas.triton" in refusal
  assert refusal.startswith("gpu auto 1024: model.attention='tree'")
  assert "use 'blocks'" in refusal


# --- The tree kernel --------------------------------------------------------


@pytest.mark.parametrize(
  ("T", "H", "K", "blocks", "platform"),
  [(1, 2, 2, (16, 8), "tpu"), (37, 7, 1, (8, 16), "gpu")],
  ids=str,
)
def test_the_kernel_is_the_reference_and_so_are_its_gradients(
  monkeypatch, T, H, K, blocks, platform
):
  # As they are for the platform: its order of the grid, its padding.
  small = tree_attention_kernels.Blocks(*blocks)
  monkeypatch.setitem(tree_attention.BLOCKS, platform, small)
  attend = functools.partial(
    tree_attention.attend, platform=platform, interpret=True
  )
  until = attention_rows.rows(T)
  attention_rows.agree(attend, attention_rows.heads(len(until), T, H, K), until)


def test_windows_and_caps_are_the_references_and_so_are_the_gradients():
  T, size = 5 * BLOCK - 3, 6
  until = attention_rows.rows(T)
  heads, how = (
    attention_rows.heads(len(until), T, 4, 2),
    dict(scale=0.8, softcap=1.2),
  )
  window = attention_rows.window(until, size)
  expected = attention_rows.agree(
    tree_attention.attend, heads, until, window, **how
  )
  bare = attention_rows.value_and_gradients(
    attention.reference, heads, until, **how
  )
  assert all(np.abs(a - b).max() > 1e-2 for a, b in zip(bare, expected))


def test_logits_and_sums_are_float32_under_bfloat16():
  T = 2 * BLOCK + 3
  until = attention_rows.rows(T)
  heads = attention_rows.heads(len(until), T, 2, 2, dtype=jnp.bfloat16)
  # A unit in bfloat16's last place of values up to 8.
  attention_rows.agree(tree_attention.attend, heads, until, atol=2**-5)

  # Logits of 70.71 and 71.06: bfloat16 would make them 70.5 and 71.
  def row(*values):
    return jnp.asarray(values, jnp.bfloat16)[None, :, None]

  q = row([0, 0], [1, 0.0625])
  k, v = row([100, 0], [100, 8]), row([0, 0], [1, 1])
  found = jax.jit(tree_attention.attend)(q, k, v, jnp.full((1, 2), 2))
  assert found.dtype == jnp.bfloat16
  expected = 1 / (1 + np.exp(-0.5 / np.sqrt(2)))
  np.testing.assert_allclose(found[0, 1, 0], expected, rtol=2**-7)


@hypothesis.given(
  seed=st.integers(0, 2**32 - 1),
  blocks=st.sampled_from([(8, 8), (16, 8), (8, 16)]),
)
@hypothesis.settings(max_examples=40)
def test_a_block_is_listed_if_some_query_sees_some_key(seed, blocks):
  T = 64
  random = np.random.default_rng(seed)
  until = np.stack(
    [attention_rows.trees(random, T), attention_rows.packed(random, T)]
  ).astype(np.int32)
  Q, S = blocks
  seen = attention_rows.sees(until).reshape(2, T // Q, Q, T // S, S).any((2, 4))
  found = _SCHEDULE(until, None, tree_attention_kernels.Blocks(Q, S))
  for lists, expected in zip(found, (seen, seen.swapaxes(1, 2)), strict=True):
    for todo, num, wanted in zip(
      np.asarray(lists.todo).reshape(-1, lists.todo.shape[-1]),
      np.asarray(lists.num).ravel(),
      expected.reshape(-1, expected.shape[-1]),
    ):
      np.testing.assert_array_equal(todo[:num], np.flatnonzero(wanted))


_SCHEDULE = jax.jit(tree_attention.schedule, static_argnums=2)


def test_a_window_lists_all_that_is_seen_and_not_what_is_far():
  T = 64
  until = attention_rows.rows(T)
  window = attention_rows.window(until, 5)
  sees = np.asarray(jax.jit(attention.visibility)(until, window))
  seen = sees.reshape(len(until), T // 8, 8, T // 8, 8).any((2, 4))
  blocks = tree_attention_kernels.Blocks(8, 8)
  (todo, num), _ = jax.tree.map(np.asarray, _SCHEDULE(until, window, blocks))
  for b, i in np.ndindex(num.shape):
    listed = set(todo[b, i, : num[b, i]].tolist())
    assert listed >= set(np.flatnonzero(seen[b, i]).tolist())
  # In a whole row a window of 5 reaches one block back.
  np.testing.assert_array_equal(num[0], [1, *[2] * 7])


def test_blocks_that_no_query_sees_are_not_touched():
  # Two solutions of two blocks each. The dense square multiplies what is
  # hidden by 0, which makes no number of NaN; what is skipped can be anything.
  T = 4 * BLOCK
  heads = attention_rows.heads(1, T, 2, 2)
  until = jnp.where(jnp.arange(T) < T // 2, T // 2, T)[None]
  second = slice(T // 2, None)
  q, k, v = heads
  k, v = (x.at[:, : T // 2].set(jnp.nan) for x in (k, v))

  def total(function, q, k, v):
    return function(q, k, v, until)[:, second].sum()

  for function, clean in (
    (attention.reference, False),
    (tree_attention.attend, True),
  ):
    of = jax.jit(jax.grad(functools.partial(total, function), (0, 1, 2)))
    for gradient in of(q, k, v):
      assert bool(np.isfinite(gradient[:, second]).all()) == clean


def test_on_a_mesh_every_device_attends_to_its_own_part():
  B, T = 4, 3 * BLOCK + 1
  until = jnp.asarray(attention_rows.rows(T)[1:])
  heads = attention_rows.heads(B, T, 4, 2)
  mesh = sharding.make_mesh((2, 1, 2), jax.devices()[:4])
  spec = jax.sharding.PartitionSpec(("data", "fsdp"), None, "tensor", None)
  place = jax.sharding.NamedSharding(mesh, spec)
  attend = functools.partial(attention.attend, kind="tree")

  def total(q, k, v, until):
    out = attend(q, k, v, until)
    return jnp.square(out).sum(), out

  call = sharding.jit(
    jax.grad(total, (0, 1, 2), has_aux=True),
    mesh,
    in_shardings=(place, place, place, sharding.of_batch(mesh)),
    out_shardings=place,
  )
  placed = (*jax.device_put(heads, place), until)
  # A kernel that isn't in it would be given all rows and heads.
  assert "shard_map" in str(call.trace(*placed).jaxpr)
  gradients, out = call(*placed)

  def expected(q, k, v):
    out = attention.reference(q, k, v, until)
    return jnp.square(out).sum(), out

  wanted = jax.jit(jax.grad(expected, (0, 1, 2), has_aux=True))(*heads)
  for a, b in zip((*gradients, out), (*wanted[0], wanted[1]), strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5)


def _model(kind):
  return model_config.ModelConfig(
    **dict(vocab_size=11, d_model=8, num_layers=2, num_heads=4, d_ff=8),
    **dict(num_kv_heads=2, head_dim=4, attention=kind, remat="full"),
  )


def test_a_model_with_remat_and_scan_has_the_references_gradients():
  T = 19
  random = np.random.default_rng(0)
  until = attention_rows.rows(T)[2:4]
  rows = dataclasses.replace(
    batch_lib.empty(2, T),
    tokens=random.integers(0, 11, (2, T)).astype(np.int32),
    positions=until * 0 + np.arange(T),
    visible_until=until.astype(np.int32),
  )
  batch = jax.tree.map(jnp.asarray, rows)
  model = _model("reference")
  init = functools.partial(transformer.init, config=model, heads=("step",))
  params = jax.tree.map(
    lambda x: jnp.asarray(random.normal(size=x.shape), x.dtype) / 2,
    meta.unbox(jax.eval_shape(init, jax.random.key(0))),
  )

  @functools.partial(jax.jit, static_argnums=1)
  def gradients(params, model):
    def loss(params):
      out = transformer.apply(model, params, batch, method="step_logits")
      return jnp.square(out).mean()

    return jax.grad(loss)(params)

  expected = gradients(params, model)
  found = gradients(params, dataclasses.replace(model, attention="tree"))
  for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
    np.testing.assert_allclose(a, b, atol=1e-4, rtol=1e-3)
  assert np.abs(found["layers"]["attention"]["query"]["kernel"]).max() > 1e-2


# --- Splash -----------------------------------------------------------------


def test_splash_is_the_reference_for_packed_rows_and_so_are_its_gradients():
  T = 150
  random = np.random.default_rng(0)
  until = np.stack([np.arange(T) + 1, attention_rows.packed(random, T)]).astype(
    np.int32
  )
  heads = attention_rows.heads(2, T, 4, 2, C=8)
  attention_rows.agree(
    splash_attention.attend, heads, until, scale=0.7, softcap=1.5
  )


def test_splash_says_nan_of_a_tree_and_never_a_wrong_number():
  T = 20
  random = np.random.default_rng(3)
  until = np.stack(
    [attention_rows.packed(random, T), attention_rows.trees(random, T)]
  ).astype(np.int32)
  attend = jax.jit(splash_attention.attend)
  out = attend(*attention_rows.heads(2, T, 2, 2), jnp.asarray(until))
  assert np.isfinite(out[0]).all()
  assert np.isnan(out[1]).all()


@hypothesis.given(seed=st.integers(0, 2**32 - 1))
@hypothesis.settings(max_examples=60)
def test_a_row_is_packed_if_tokens_of_one_end_see_each_other_and_no_more(seed):
  T = 10
  random = np.random.default_rng(seed)
  until = np.stack(
    [attention_rows.trees(random, T), attention_rows.packed(random, T)]
  ).astype(np.int32)
  same_end = until[:, :, None] == until[:, None, :]
  segments = same_end & np.tri(T, dtype=bool)
  expected = (attention_rows.sees(until) == segments).all((1, 2))
  assert expected[1]
  np.testing.assert_array_equal(_IS_PACKED(until), expected)


_IS_PACKED = jax.jit(splash_attention.is_packed)


# --- Which kernel, for which devices ----------------------------------------


def _jaxpr(kind, T, mesh=None, dtype="float32"):
  heads, until = (
    attention_rows.heads(1, T, 2, 2, dtype=dtype),
    jnp.full((1, T), T),
  )
  attend = functools.partial(attention.attend, kind=kind)
  if mesh is None:
    return str(jax.make_jaxpr(attend)(*heads, until))
  with jax.sharding.use_abstract_mesh(mesh):
    return str(jax.make_jaxpr(attend)(*heads, until))


def test_a_kernel_is_interpreted_on_a_cpu_and_holds_no_square():
  T = 3 * BLOCK
  text = _jaxpr("tree", T)
  assert "pallas_call" in text
  assert f"{T},{T}]" not in text
  assert "pallas_call" not in _jaxpr("auto", T)


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_auto_takes_the_kernel_for_long_rows_of_the_devices_of_the_mesh(
  platform,
):
  # They aren't here: the program is traced for them all the same.
  mesh = abstract_meshes.of(platform)
  assert "pallas_call" in _jaxpr("auto", 1024, mesh)
  assert "pallas_call" not in _jaxpr("auto", 1023, mesh)
  assert "pallas_call" not in _jaxpr("reference", 1024, mesh)
  assert "pallas_call" not in _jaxpr("auto", 1024, abstract_meshes.of("cpu"))


def test_a_kind_is_refused_for_devices_that_it_has_no_kernel_for():
  for kind, platform, dtype in (
    ("splash", "gpu", "float32"),
    ("tree", "tpu", "float16"),
    ("splash", "tpu", "float16"),
  ):
    said = f"'{kind}': it has no kernel for {dtype} on a {platform}"
    with pytest.raises(errors.InputError, match=said):
      _jaxpr(kind, 8, abstract_meshes.of(platform), dtype)
  assert "pallas_call" not in _jaxpr(
    "auto", 1024, abstract_meshes.of("tpu"), "float16"
  )
  assert "pallas_call" in _jaxpr(
    "auto", 1024, abstract_meshes.of("gpu"), "float16"
  )


def test_splash_is_refused_with_a_window():
  sizes = dict.fromkeys(
    ("vocab_size", "d_model", "num_layers", "num_heads", "num_kv_heads"), 2
  )
  with pytest.raises(errors.InputError, match=r"no window.*model.window=5"):
    model_config.ModelConfig(
      **sizes, head_dim=2, d_ff=2, attention="splash", window=5
    )
