"""What the machine is, and the peaks that everything else is compared with."""

from __future__ import annotations

from collections.abc import Callable
import functools
import platform
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np

from prm_jax.device_check import check_results
from prm_jax.device_check import timing
from prm_jax.models import matmul as matmul_lib
from prm_jax.models import sharding
from prm_jax.runtime import environment

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
_ROUNDS = 5


def facts() -> dict[str, Any]:
  """Returns versions, devices and memory, as jax finds them."""
  device = jax.devices()[0]
  return dict(
    platform=device.platform,
    device_kind=device.device_kind,
    num_devices=jax.device_count(),
    memory=memory(device),
    backend=" ".join(device.client.platform_version.split()),
    system=f"{platform.system()} {platform.machine()}",
    python=platform.python_version(),
    packages={name: environment.version_of(name) for name in PACKAGES},
  )


def memory(device: Any) -> int | None:
  """Returns the bytes that a program can have on a device, None if unknown."""
  stats = device.memory_stats() or {}
  return stats.get("bytes_limit")


def peak_bytes() -> int | None:
  """Returns the most bytes that were in use so far on the first device."""
  stats = jax.devices()[0].memory_stats() or {}
  return stats.get("peak_bytes_in_use")


def checks(setting: check_results.Setting) -> list[check_results.Check]:
  """Returns the checks of the machine itself."""
  collectives = COLLECTIVES if setting.num_devices > 1 else ()
  return [
    check_results.Check("machine.devices", _devices),
    check_results.Check("machine.matmul", matmul, required=False),
    check_results.Check("machine.float32_bits", _float32_bits, required=False),
    check_results.Check("machine.memory_bandwidth", bandwidth, required=False),
    *(
      check_results.Check(
        f"machine.{name}", functools.partial(_collective, name)
      )
      for name in collectives
    ),
  ]


def known(
  name: str, measure: Callable, setting: check_results.Setting
) -> float:
  """Returns the number of an earlier check, or measures it now."""
  if name in setting.known:
    return setting.known[name]
  return measure(setting).number


def wrong_devices() -> list[str]:
  """Returns the devices that don't add up a sum rightly."""
  return [
    str(device)
    for device in jax.devices()
    if int(jax.device_put(np.arange(1000), device).sum()) != 499_500
  ]


def _devices(setting: check_results.Setting) -> check_results.Measured:
  """Returns how many devices add up a sum rightly."""
  wrong = wrong_devices()
  right = setting.num_devices - len(wrong)
  gib = "unknown"
  if setting.memory is not None:
    gib = f"{setting.memory / 2**30:.1f} GiB"
  return check_results.Measured(
    right,
    "devices",
    setting.num_devices,
    at_least=True,
    note=f"{setting.device_kind}, memory {gib}; wrong: {wrong or 'none'}",
  )


# --- Peaks ------------------------------------------------------------------


def matmul(setting: check_results.Setting) -> check_results.Measured:
  """Returns the FLOP/s of the fastest square product in bfloat16.

  2 n^3 FLOPs of normally distributed numbers: zeros may run faster.
  """
  sizes: tuple[int, ...] = (4096, 8192, 16_384)
  if setting.small:
    sizes = (1024, 2048) if setting.platform == "cpu" else (2048, 4096)
  rates = {n: _rate(_product, 2.0 * n**3, *_factors(n)) for n in sizes}
  size = max(rates, key=lambda n: rates[n]["median"])
  return check_results.Measured(
    rates[size]["median"] / 1e12,
    "TFLOP/s",
    note=f"bfloat16, {size} x {size}",
    details=dict(flops_per_s={str(n): rate for n, rate in rates.items()}),
  )


@jax.jit
def _product(a: jax.Array, b: jax.Array) -> jax.Array:
  return matmul_lib.matmul(a, b, jnp.bfloat16)


def _factors(n: int) -> list[jax.Array]:
  keys = jax.random.split(jax.random.key(0), 2)
  return [jax.random.normal(key, (n, n), jnp.bfloat16) for key in keys]


def _rate(function: Callable, amount: float, *args: Any) -> dict[str, float]:
  """Returns the spread of amount per second, calls one after another."""
  calls = 1

  def run() -> None:
    for _ in range(calls):
      out = function(*args)
    jax.block_until_ready(out)

  run()
  # As many as fill a tenth of a second: what starts a call is hidden by others.
  cost = timing.alternate(dict(run=run), 3)["run"]
  calls = max(1, int(0.1 / min(c.wall for c in cost)))
  costs = timing.alternate(dict(run=run), _ROUNDS)["run"]
  return timing.rate(amount * calls, costs)["wall"]


def _float32_bits(setting: check_results.Setting) -> check_results.Measured:
  """Returns how many bits of float32 a matmul keeps by default.

  GPUs and TPUs may round float32 operands: to 11 bits (TF32) or 8 (bfloat16).
  """
  del setting
  rng = np.random.default_rng(0)
  a, b = (rng.standard_normal((256, 256)).astype(np.float32) for _ in range(2))
  exact = a.astype(np.float64) @ b.astype(np.float64)
  error = np.abs(np.asarray(jnp.asarray(a) @ jnp.asarray(b)) - exact)
  # The products of 256 terms: see limits.
  scale = np.sqrt(a.astype(np.float64) ** 2 @ b.astype(np.float64) ** 2)
  bits = -np.log2(np.sqrt((error**2 / scale**2).mean() * 3 / 2))
  note = "float32 matmuls round their operands"
  if bits > 20:
    note = "float32 matmuls are float32"
  return check_results.Measured(float(bits), "bits", note=note)


def bandwidth(setting: check_results.Setting) -> check_results.Measured:
  """Returns bytes read and written per second, of x + 1 over a large array."""
  n = (64 if setting.platform == "cpu" else 1024) << 20
  if setting.mode == "quick":
    n = min(n, 256 << 20)
  ones = jnp.ones(n // 4, jnp.float32)
  rate = _rate(jax.jit(lambda x: x + 1), 2.0 * n, ones)
  return check_results.Measured(
    rate["median"] / 1e9,
    "GB/s",
    note=f"of {n >> 20} MiB",
    details=dict(bytes_per_s=rate),
  )


# --- Between devices --------------------------------------------------------


def _collective(
  name: str, setting: check_results.Setting
) -> check_results.Measured:
  """Returns bytes per second that each device sends, as a ring sends them.

  Of n devices with s bytes each: all_gather s (n - 1), reduce_scatter and
  all_to_all s (n - 1) / n, all_reduce twice that, permute s. The result is
  compared with numpy's first.
  """
  n = setting.num_devices
  mesh = jax.sharding.Mesh(
    np.asarray(jax.devices()), ("x",), axis_types=(jax.sharding.AxisType.Auto,)
  )
  length = ((1 << 18) if setting.small else (16 << 20)) // n * n
  collective = COLLECTIVES[name]
  spread = jax.sharding.NamedSharding(mesh, P("x"))
  call = sharding.Sharded(
    jax.jit(
      jax.shard_map(
        lambda x: collective.function(x[0], n)[None],
        mesh=mesh,
        in_specs=P("x"),
        out_specs=P("x"),
        check_vma=False,
      )
    ),
    mesh,
  )
  small = np.arange(n * n * 4, dtype=np.float32).reshape(n, n * 4)
  result = np.asarray(call(jax.device_put(small, spread)))
  if not np.array_equal(result, collective.expected(small, n)):
    raise AssertionError(f"{name} over {n} devices gives wrong numbers")
  ones = jax.device_put(np.ones((n, length), np.float32), spread)
  rate = _rate(call, collective.sent(4.0 * length, n), ones)
  return check_results.Measured(
    rate["median"] / 1e9,
    "GB/s",
    note=f"that each of {n} devices sends, of {length >> 18} MiB each",
    details=dict(bytes_per_s=rate),
  )


def _permute(x: jax.Array, n: int) -> jax.Array:
  return jax.lax.ppermute(x, "x", [(i, (i + 1) % n) for i in range(n)])


class Collective(NamedTuple):
  """One exchange between n devices with s bytes each.

  Attributes:
    function: what a device does with its part, and n.
    sent: how many bytes it sends, of s and n.
    expected: the result in numpy, of all parts [n, n k] and n.
  """

  function: Callable[[jax.Array, int], jax.Array]
  sent: Callable[[float, int], float]
  expected: Callable[[np.ndarray, int], np.ndarray]


COLLECTIVES = dict(
  all_gather=Collective(
    lambda x, n: jax.lax.all_gather(x, "x", tiled=True),
    lambda s, n: s * (n - 1),
    lambda x, n: np.tile(x.reshape(-1), (n, 1)),
  ),
  all_reduce=Collective(
    lambda x, n: jax.lax.psum(x, "x"),
    lambda s, n: 2 * s * (n - 1) / n,
    lambda x, n: np.tile(x.sum(0), (n, 1)),
  ),
  reduce_scatter=Collective(
    lambda x, n: jax.lax.psum_scatter(x, "x", tiled=True),
    lambda s, n: s * (n - 1) / n,
    lambda x, n: x.sum(0).reshape(n, -1),
  ),
  all_to_all=Collective(
    lambda x, n: jax.lax.all_to_all(x, "x", 0, 0, tiled=True),
    lambda s, n: s * (n - 1) / n,
    lambda x, n: x.reshape(n, n, -1).swapaxes(0, 1).reshape(n, -1),
  ),
  permute=Collective(
    _permute, lambda s, n: s, lambda x, n: np.roll(x, 1, axis=0)
  ),
)
