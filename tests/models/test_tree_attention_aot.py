"""The kernels compiled for TPUs and GPUs that aren't here; `make plan-check`.

That they are right is tested in the interpreter (test_tree_attention.py), and
that Tokamax's masks are on a CPU (test_tokamax_attention.py). That Mosaic and
Triton take them, with the shapes of real models and forward and backward, is
tested here.
"""

import functools
import importlib.util
import os

import jax
from jax import numpy as jnp
from jax.experimental.pallas import tpu as pltpu
import numpy as np
import pytest

from prm_jax.models import attention
from prm_jax.models import sharding
from prm_jax.models import tree_attention
from prm_jax.models import tree_attention_kernels
from prm_jax.plan import topologies

pytestmark = [pytest.mark.plan, pytest.mark.timeout(900)]


def _needs(package):
  missing = importlib.util.find_spec(package) is None
  return pytest.mark.skipif(missing, reason=f"{package} isn't installed")


TPU = pytest.param("v5e:2x2", marks=_needs("libtpu"))
GPU = pytest.param("h200:1", marks=_needs("jax_cuda12_plugin"))
# From the least shared memory to the most, and each architecture.
GPUS = [
  pytest.param(name, marks=_needs("jax_cuda12_plugin"))
  for name in ("l4:1", "a100-80:1", "h100:1", "h200:1", "b200:1")
]


@functools.cache
def _mesh(name):
  # One process after another may compile with it, or several at once.
  os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
  topology = topologies.parse(name)
  return sharding.make_mesh((-1, 1, 1), topologies.devices(topology))


def _compile(
  name, *, kind="tree", T=1024, H=4, K=2, C=128, dtype=jnp.bfloat16, **how
):
  """Returns the program of values and gradients, a row for every device."""
  mesh = _mesh(name)
  windowed, scalar = how.pop("windowed", False), sharding.replicated(mesh)
  precision = how.pop("precision", None)
  heads = jax.sharding.NamedSharding(
    mesh, jax.sharding.PartitionSpec(("data", "fsdp"))
  )
  rows = sharding.of_batch(mesh)

  def total(q, k, v, until, positions, size):
    window = attention.Window(positions, size) if windowed else None
    out = attention.attend(q, k, v, until, kind, window, **how)
    return jnp.square(out.astype(jnp.float32)).sum(), out

  def like(shape, dtype, where):
    return jax.ShapeDtypeStruct((mesh.size, *shape), dtype, sharding=where)

  call = sharding.jit(
    jax.grad(total, (0, 1, 2), has_aux=True),
    mesh,
    in_shardings=(heads, heads, heads, rows, rows, scalar),
    out_shardings=heads,
  )
  with jax.default_matmul_precision(precision):
    traced = call.trace(
      *(like((T, n, C), dtype, heads) for n in (H, K, K)),
      *(like((T,), jnp.int32, rows) for _ in range(2)),
      jax.ShapeDtypeStruct((), jnp.int32, sharding=scalar),
    )
  return traced.lower().compile()


def _kernels(compiled):
  text = compiled.as_text()
  names = "tpu_custom_call", "__gpu$xla.gpu.triton", "mosaic_gpu_v2"
  return sum(text.count(f'custom_call_target="{name}"') for name in names)


@pytest.mark.parametrize("topology", [TPU, *GPUS])
@pytest.mark.parametrize(
  "how",
  [
    dict(T=4096, H=28, K=4),  # Qwen2.5 7B
    dict(H=14, K=2, C=64),  # Qwen2.5 0.5B
    dict(H=8, K=4, C=256, softcap=50.0, windowed=True, scale=1 / 16),  # Gemma 2
    dict(H=4, K=4, C=96),  # no power of two
    dict(T=1000, H=2, K=1),  # no multiple of a block
    dict(dtype=jnp.float32, windowed=True),
  ],
  ids=str,
)
def test_both_compilers_take_the_kernels_of_both_directions(topology, how):
  compiled = _compile(topology, **how)
  # The forward pass, and those of queries and of keys.
  assert _kernels(compiled) == 3


@pytest.mark.parametrize("topology", GPUS)
@pytest.mark.parametrize("precision", [None, "highest"])
@pytest.mark.parametrize("C", [64, 128, 256])
def test_a_gpu_has_room_for_float32(topology, precision, C):
  if topology == "l4:1" and C == 256:
    pytest.skip("an L4 lacks 1 KiB of shared memory for it")
  wide = dict(C=C, dtype=jnp.float32, softcap=50.0, precision=precision)
  assert _kernels(_compile(topology, **wide)) == 3


@pytest.mark.parametrize("topology", [GPU])
def test_a_gpu_has_kernels_for_float16(topology):
  assert _kernels(_compile(topology, dtype=jnp.float16)) == 3


@pytest.mark.parametrize("topology", [TPU, GPU])
def test_no_memory_grows_with_the_square_of_a_row(topology):
  def extra(T, kind):
    memory = _compile(topology, kind=kind, T=T).memory_analysis()
    return memory.temp_size_in_bytes

  # The square in float32, of four heads, and nothing near it.
  square = 4 * 4 * 4096**2
  assert extra(4096, "reference") > square
  short = extra(4096, "tree")
  assert short < square / 8
  assert extra(8192, "tree") < 2.2 * short + (1 << 20)


@pytest.mark.parametrize("topology", [TPU, GPU])
def test_auto_is_compiled_for_the_devices_that_are_meant(topology):
  assert jax.default_backend() == "cpu"
  assert _kernels(_compile(topology, kind="auto", T=1024)) == 3
  assert _kernels(_compile(topology, kind="auto", T=512)) == 0


@pytest.mark.parametrize("topology", [TPU])
@pytest.mark.parametrize("how", [{}, dict(C=64, dtype=jnp.float32)], ids=str)
def test_a_tpu_has_room_for_the_keys_of_16_thousand_tokens(topology, how):
  assert _kernels(_compile(topology, T=16_384, **how)) == 3


@pytest.mark.parametrize("topology", [TPU])
@pytest.mark.parametrize("C", [64, 128])
def test_splash_compiles_in_both_directions(topology, C):
  assert _kernels(_compile(topology, kind="splash", C=C)) == 3


@pytest.mark.parametrize("topology", [*GPUS[2:4], "h100:8"])
@pytest.mark.parametrize(
  "how",
  [
    dict(T=4096, H=28, K=4),
    dict(H=14, K=2, C=64),
    dict(H=8, K=4, C=256, softcap=50.0, windowed=True, scale=1 / 16),
    dict(T=1000, H=2, K=1, dtype=jnp.float16),
  ],
  ids=str,
)
def test_tokamaxs_kernels_compile_for_hopper(topology, how):
  pytest.importorskip("tokamax")
  assert _kernels(_compile(topology, kind="tokamax", **how)) == 3


# --- A TPU's memory, simulated ------------------------------------------------


def test_nothing_is_read_that_was_not_written_or_lies_outside(monkeypatch):
  """Blocks as on a TPU; unwritten memory is NaN, reads outside raise."""
  small = tree_attention_kernels.Blocks(128, 128)
  monkeypatch.setitem(tree_attention.BLOCKS, "tpu", small)
  simulated = pltpu.InterpretParams(
    out_of_bounds_reads="raise", uninitialized_memory="nan"
  )
  T, random = 300, np.random.default_rng(0)
  # A path of 100 tokens with two branches; solutions of 140 and 130, padding.
  tree = np.array([*[T] * 100, *[210] * 110, *[T] * 90])
  solutions = np.array([*[140] * 140, *[270] * 130, *range(271, 301)])
  until = jnp.asarray(np.stack([tree, solutions]))
  depth = np.arange(T)
  depths = [depth - 110 * (depth >= 210), depth - 140 * (depth >= 140)]
  window = attention.Window(jnp.asarray(np.stack(depths)), jnp.asarray(70))
  heads = [jnp.asarray(random.normal(size=(2, T, n, 64))) for n in (4, 2, 2)]
  mark = random.normal(size=(2, T, 4, 64))

  def gradients(function):
    def total(*heads):
      return (function(*heads, until, window, softcap=5.0) * mark).sum()

    return jax.jit(jax.grad(total, argnums=(0, 1, 2)))(*heads)

  kernel = functools.partial(
    tree_attention.attend, platform="tpu", interpret=simulated
  )
  for found, expected in zip(
    gradients(kernel), gradients(attention.reference), strict=True
  ):
    np.testing.assert_allclose(found, expected, atol=1e-4)
