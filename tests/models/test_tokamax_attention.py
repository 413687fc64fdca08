"""Tokamax's kernels: their masks on a CPU, and what is lowered for a GPU.

The kernels themselves run on a GPU alone: `prm-jax check-device` compares them.
"""

import contextlib
import functools
import importlib.util
import sys
from typing import NamedTuple
from unittest import mock
import warnings

import abstract_meshes
import attention_rows
import hypothesis
from hypothesis import strategies as st
import jax
from jax import numpy as jnp
import numpy as np
import pytest

from prm_jax import errors
from prm_jax.models import attention
from prm_jax.models import tokamax_attention
from prm_jax.plan import flops

needs_tokamax = pytest.mark.skipif(
  importlib.util.find_spec("tokamax") is None,
  reason="tokamax isn't installed: it needs Python 3.12 (make newest)",
)
_VISIBILITY = jax.jit(attention.visibility)
_FIRST_KEY = jax.jit(tokamax_attention.first_key)


@hypothesis.given(
  seed=st.integers(0, 2**32 - 1), size=st.sampled_from([None, 1, 5])
)
@hypothesis.settings(max_examples=40)
def test_no_key_before_the_first_is_seen(seed, size):
  until = attention_rows.rows(37, seed)
  sees, window = attention_rows.sees(until), ()
  if size is not None:
    window = (attention_rows.window(until, size),)
    depths = np.asarray(window[0].positions)
    sees &= depths[:, :, None] - depths[:, None] < size
  first = np.asarray(_FIRST_KEY(_VISIBILITY(jnp.asarray(until), *window)))
  expected = [[np.flatnonzero(x).min() for x in row] for row in sees]
  np.testing.assert_array_equal(first, expected)


@hypothesis.given(seed=st.integers(0, 2**32 - 1))
@hypothesis.settings(max_examples=40)
def test_from_its_first_key_to_itself_is_all_that_a_packed_rows_query_sees(
  seed,
):
  T = 37
  until = attention_rows.packed(np.random.default_rng(seed), T)[None]
  first = np.asarray(_FIRST_KEY(_VISIBILITY(jnp.asarray(until))))
  index = np.arange(T)
  interval = (first[..., None] <= index) & (index <= index[:, None])
  np.testing.assert_array_equal(interval, attention_rows.sees(until))


def test_without_tokamax_its_kind_says_what_to_install(monkeypatch):
  for name in [x for x in sys.modules if x.startswith("tokamax")]:
    monkeypatch.delitem(sys.modules, name)
  monkeypatch.setitem(sys.modules, "tokamax", None)
  heads = attention_rows.heads(1, 8, 2, 2)
  with pytest.raises(errors.InputError, match=r"pip install -e '.\[toka"):
    attention.attend(*heads, jnp.full((1, 8), 8), "tokamax")


def test_float32_and_tpus_are_refused():
  for platform, dtype in (("gpu", "float32"), ("tpu", "bfloat16")):
    heads = attention_rows.heads(1, 8, 2, 2, dtype=dtype)
    with (
      jax.sharding.use_abstract_mesh(abstract_meshes.of(platform)),
      pytest.raises(errors.InputError, match=f"no kernel for {dtype} on a"),
    ):
      attention.attend(*heads, jnp.full((1, 8), 8), "tokamax")


@needs_tokamax
@pytest.mark.parametrize(("T", "H", "K"), [(1, 2, 2), (37, 6, 2), (40, 3, 1)])
def test_the_mask_is_the_references(T, H, K):
  until = attention_rows.rows(T)
  heads = attention_rows.heads(len(until), T, H, K)
  attention_rows.agree(tokamax_attention.attend, heads, until)


@needs_tokamax
def test_windows_and_caps_are_the_references_and_so_are_the_gradients():
  until = attention_rows.rows(37)
  heads = attention_rows.heads(len(until), 37, 4, 2)
  attention_rows.agree(
    *(tokamax_attention.attend, heads, until, attention_rows.window(until, 6)),
    scale=0.8,
    softcap=1.2,
  )


# --- Lowered for GPUs that aren't here ---------------------------------------


class _Gpu(NamedTuple):
  """What Tokamax asks a device for."""

  device_kind: str
  compute_capability: str
  core_count: int
  platform: str = "gpu"


@contextlib.contextmanager
def _here(gpu):
  """Makes Tokamax and our code take a GPU for this machine's."""
  device = jax.sharding.AbstractDevice(
    device_kind=gpu.device_kind, num_cores=gpu.core_count, platform="gpu"
  )
  mesh = jax.sharding.AbstractMesh(
    (1,), ("data",), (jax.sharding.AxisType.Auto,), abstract_device=device
  )
  with (
    mock.patch("jax.extend.backend.get_default_device", lambda: gpu),
    jax.sharding.use_abstract_mesh(mesh),
  ):
    yield


_H100 = _Gpu("NVIDIA H100 80GB HBM3", "9.0", 132)
_B200 = _Gpu("NVIDIA B200", "10.0", 148)


def _shapes(T=512, C=128, dtype=jnp.bfloat16):
  def of(*shape, dtype=dtype):
    return jax.ShapeDtypeStruct(shape, dtype)

  heads = (of(2, T, n, C) for n in (4, 2, 2))
  rows = (of(2, T, dtype=jnp.int32) for _ in range(2))
  return (*heads, *rows, of(dtype=jnp.int32))


def _gradients(kind, windowed, q, k, v, until, positions, size):
  window = attention.Window(positions, size) if windowed else None

  def total(q, k, v):
    out = attention.attend(q, k, v, until, kind, window)
    return jnp.square(out.astype(jnp.float32)).sum()

  return jax.grad(total, argnums=(0, 1, 2))(q, k, v)


def _lowered(kind, platform, windowed=False, **shape):
  traced = jax.jit(functools.partial(_gradients, kind, windowed)).trace(
    *_shapes(**shape)
  )
  return traced.lower(lowering_platforms=(platform,)).as_text()


@needs_tokamax
@pytest.mark.parametrize("gpu", [_H100, _B200], ids=lambda x: x.device_kind)
@pytest.mark.parametrize(
  ("C", "T", "windowed"), [(64, 512, False), (128, 500, True)]
)
def test_both_directions_are_lowered_for_a_gpu_without_a_warning(
  gpu, C, T, windowed
):
  with _here(gpu), warnings.catch_warnings():
    warnings.simplefilter("error", DeprecationWarning)
    text = _lowered("tokamax", "cuda", windowed, C=C, T=T)
  assert "mosaic_gpu" in text
  assert "triton" not in text
  # Queries' gradients are one kernel, keys' and values' another.
  assert text.count("custom_call @mosaic_gpu") == 3


@needs_tokamax
def test_no_mask_is_kept_for_the_backward_pass():
  q, k, v, until, *_ = _shapes(T=1024)

  def left_by_the_forward_pass(q, k, v, until):
    attend = lambda *heads: attention.attend(*heads, until, "tokamax")  # noqa: E731
    return jax.tree.leaves(jax.vjp(attend, q, k, v)[1])

  with _here(_H100):
    left = jax.eval_shape(left_by_the_forward_pass, q, k, v, until)
  # Its inputs and results: so no kernel of the forward pass runs again.
  sums = (q.shape[0], q.shape[2], q.shape[1])
  large = sorted(x.shape for x in left if x.size >= np.prod(sums))
  assert large == sorted([q.shape, k.shape, v.shape, q.shape, sums, sums])


@needs_tokamax
def test_plan_counts_its_matmuls_as_those_of_the_tree_kernel():
  q, k, v, until, *_ = _shapes()

  def total(kind, q, k, v, until):
    """Three layers that are computed again, as a model's are."""
    layer = jax.checkpoint(lambda q, _: (attend(q, k, v, until), None))
    attend = functools.partial(attention.attend, kind=kind)
    return jax.lax.scan(layer, q, length=3)[0].astype(jnp.float32).sum()

  with _here(_H100):
    tokamax, tree = (
      jax.make_jaxpr(jax.grad(functools.partial(total, kind)))(q, k, v, until)
      for kind in ("tokamax", "tree")
    )
  assert flops.count(tokamax) == flops.count(tree)
  assert flops.count(tree).kernel_matmuls == 3 * (2 + 2 + 7)


@needs_tokamax
def test_an_older_gpu_is_refused():
  with (
    _here(_Gpu("NVIDIA A100-SXM4-80GB", "8.0", 108)),
    pytest.raises(errors.InputError, match=r"capability 9 and 10.*'auto'"),
  ):
    _lowered("tokamax", "cuda")


# --- What jax means to remove -------------------------------------------------


@pytest.mark.skipif(
  jax.__version_info__ < (0, 11), reason="jax 0.10 deprecates nothing of these"
)
@pytest.mark.parametrize(
  ("kind", "platform", "told"),
  [
    ("tree", "tpu", None),
    ("splash", "tpu", None),
    ("blocks", "cuda", None),
    ("tree", "cuda", "Pallas Triton"),
  ],
)
def test_only_the_tree_kernel_of_gpus_stands_on_what_jax_deprecates(
  kind, platform, told
):
  mesh = abstract_meshes.of("gpu" if platform == "cuda" else platform)
  expected = contextlib.nullcontext()
  if told:
    expected = pytest.raises(DeprecationWarning, match=told)
  with (
    jax.sharding.use_abstract_mesh(mesh),
    warnings.catch_warnings(),
    expected,
  ):
    warnings.simplefilter("error", DeprecationWarning)
    _lowered(kind, platform)
