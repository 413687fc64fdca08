"""Chips by name, and the devices of a topology that isn't here."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import importlib.util
import math
import os
import re
from typing import Any

from jax.experimental import topologies

from prm_jax import errors

GIB = 1 << 30


@dataclasses.dataclass(frozen=True)
class Gpu:
  """What XLA's compiler is told of a GPU that isn't there.

  Args:
    title: The name that its driver gives.
    capability: Its compute capability.
    cores: The number of its multiprocessors.
    fpus: The number of float32 units of one.
    clock_ghz: Its highest clock.
    memory: Its memory in bytes, as the driver gives it.
    cache: Its second cache in bytes.
    shared: The bytes of shared memory of one multiprocessor, of which a block
      has all but 1 KiB.
    threads: The number of threads that one multiprocessor holds.
  """

  title: str
  capability: tuple[int, int]
  cores: int
  fpus: int
  clock_ghz: float
  memory: int
  cache: int
  shared: int
  threads: int = 2048


@dataclasses.dataclass(frozen=True)
class Chip:
  """What one device can hold and do.

  Args:
    name: Its name.
    memory: The bytes that a program can have.
    flops: Dense bfloat16 matmul FLOPs per second.
    memory_bandwidth: Bytes per second.
    wire_bandwidth: The bytes per second that a chip can send to its neighbours,
      over all axes that a ring of all chips uses at once.
    axes: The number of sizes of a slice.
    gpu: How its compiler knows it; None is a TPU.
    note: What a reader of its plans should know.
  """

  name: str
  memory: int
  flops: float
  memory_bandwidth: float
  wire_bandwidth: float
  axes: int = 1
  gpu: Gpu | None = None
  note: str = ""

  @property
  def extra(self) -> str:
    """What to install to compile for it."""
    return "tpu" if self.gpu is None else "cuda12"


_H100 = Gpu(
  *("NVIDIA H100 80GB HBM3", (9, 0), 132, 128, 1.98),
  *(84_942_979_072, 50 << 20, 228 << 10),
)
_A100 = Gpu(
  *("NVIDIA A100-SXM4-40GB", (8, 0), 108, 64, 1.41),
  *(42_331_013_120, 40 << 20, 164 << 10),
)
_A100_80 = dataclasses.replace(
  _A100, title="NVIDIA A100-SXM4-80GB", memory=85_100_068_864
)
_H200 = dataclasses.replace(
  _H100, title="NVIDIA H200 141GB HBM3e", memory=151_397_597_184
)
_B200 = Gpu(
  *("NVIDIA B200", (10, 0), 148, 128, 1.965),
  *(191_514_411_008, 132_644_864, 228 << 10),
)
_L4 = Gpu(
  *("NVIDIA L4", (8, 9), 58, 128, 2.04),
  *(24_152_899_584, 48 << 20, 100 << 10, 1536),
)

# TPUs: "How to Scale Your Model" (Austin et al. 2025), its table of chips:
# FLOP/s, HBM and ICI links per axis in one direction; a ring uses both
# directions of a link, and the two (v5e, v6e) or three axes of a torus. The
# memory is what their compiler grants a program, as it says where one needs
# more. GPUs: NVIDIA's data sheets, dense; NVLink (L4: PCIe) in one direction;
# what the compiler is told is as OpenXLA lists it in
# xla/backends/gpu/target_config/specs, except L4, which isn't there. The memory
# of an H100 and an H200 is what programs were given there; of the others it is
# a GiB less than the driver's.
CHIPS = {
  chip.name: chip
  for chip in (
    Chip("v4", int(30.75 * GIB), 275e12, 1.2e12, 2 * 3 * 45e9, 3),
    Chip("v5e", int(15.75 * GIB), 197e12, 0.81e12, 2 * 2 * 45e9, 2),
    Chip("v5p", int(95.74 * GIB), 459e12, 2.8e12, 2 * 3 * 90e9, 3),
    Chip("v6e", int(31.25 * GIB), 920e12, 1.6e12, 2 * 2 * 90e9, 2),
    Chip("a100-40", 38 * GIB, 312e12, 1.555e12, 300e9, gpu=_A100),
    Chip("a100-80", 78 * GIB, 312e12, 2.039e12, 300e9, gpu=_A100_80),
    Chip("h100", 78 * GIB, 989e12, 3.352e12, 450e9, gpu=_H100),
    Chip("h200", 139 * GIB, 989e12, 4.8e12, 450e9, gpu=_H200),
    Chip("b200", 177 * GIB, 2250e12, 7.672e12, 900e9, gpu=_B200),
    Chip(
      *("l4", 21 * GIB, 121e12, 0.3e12, 32e9),
      gpu=_L4,
      note="XLA lists no L4; its description is from NVIDIA's data sheet",
    ),
  )
}


@dataclasses.dataclass(frozen=True)
class Topology:
  """So many chips of a kind, as `v5e:16x16` or `h200:8` name them."""

  name: str
  chip: Chip
  shape: tuple[int, ...]

  @property
  def size(self) -> int:
    return math.prod(self.shape)


def parse(text: str) -> Topology:
  """Returns the topology of a name.

  Args:
    text: A chip and the sizes of a slice, as in v5e:4x4, v5p:2x2x4 or h100:8; or
      a type of Cloud TPU, as in v5e-16, which is v5litepod-16, or v5p-32.

  Raises:
    InputError: no such chip or shape.
  """
  chip, _, shape = text.partition(":")
  sizes: tuple[int, ...] = ()
  if re.fullmatch(r"\d+(x\d+)*", shape):
    sizes = tuple(map(int, shape.split("x")))
  elif found := re.fullmatch(r"(v\d\w*)-(\d+)", text):
    chip = found[1].replace("v5litepod", "v5e")
    sizes = _slice(chip, int(found[2]))
  known = CHIPS.get(chip)
  if known is None or len(sizes) != known.axes or min(sizes, default=0) < 1:
    gpus = ", ".join(x.name for x in CHIPS.values() if x.gpu is not None)
    raise errors.InputError(
      f"`topology={text}`: expected v5e:16x16, v6e:4x4 (two sizes),"
      " v5p:4x4x4, v4:4x4x4 (three), a type such as v5e-16 or v5p-32, or a GPU"
      f" and how many, as h200:8 ({gpus})"
    )
  return Topology(text, known, sizes)


def _slice(chip: str, number: int) -> tuple[int, ...]:
  """Returns the shape of a Cloud TPU slice by its type's number.

  It is as even as it can be, as 2x2x1, 2x2x4 (cloud.google.com/tpu/docs). The
  numbers of v4 and v5p count cores, two to a chip, and their slices have four
  chips at least.
  """
  axes = CHIPS[chip].axes if chip in CHIPS else 0
  chips = number // 2 if axes == 3 else number
  if axes < 2 or chips < 1 or chips & (chips - 1) or (axes == 3 and chips < 4):
    return ()
  doublings = chips.bit_length() - 1
  sizes = sorted(1 << (doublings + i) // axes for i in range(axes))
  # Four chips of three axes are 2x2x1.
  return tuple(sizes if axes == 2 or sizes[0] > 1 else (*sizes[1:], 1))


def devices(topology: Topology) -> Sequence[Any]:
  """Returns the topology's devices, which can be compiled for and not run.

  Raises:
    InputError: the compiler isn't installed, or knows no such topology.
  """
  extra = topology.chip.extra
  package = "libtpu" if extra == "tpu" else "jax_cuda12_plugin"
  if importlib.util.find_spec(package) is None:
    raise errors.InputError(
      f"`topology={topology.name}`: its compiler isn't installed;"
      f" {errors.to_install(extra)}"
    )
  # libtpu asks a metadata server where it is, for minutes, unless told.
  os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
  os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
  os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-8")
  # It opens no chip, so it needn't be the only one to use its library.
  os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
  try:
    chips = topologies.get_topology_desc(**_description(topology)).devices
  except Exception as e:  # what the compilers raise isn't documented
    message = " ".join(str(e).split())
    raise errors.InputError(
      f"`topology={topology.name}`: its compiler knows no such shape: {message}"
    ) from e
  if len(chips) != topology.size:
    raise errors.InputError(
      f"`topology={topology.name}`: has {len(chips)} devices, not"
      f" {topology.size}; give another shape"
    )
  return chips


def _description(topology: Topology) -> dict[str, Any]:
  if topology.chip.gpu is not None:
    return dict(
      platform="cuda",
      target_config=_target(topology.chip, topology.chip.gpu),
      topology=f"1x{topology.size}x1" if topology.size > 1 else "1x1x1",
    )
  more: dict[str, Any] = {}
  if topology.chip.axes == 3:
    # Its two cores are one device, as programs see them.
    more["chip_config_name"] = "megacore"
  if topology.size == 1:
    more["chips_per_host_bounds"] = topology.shape + (1,) * (
      3 - len(topology.shape)
    )
  shape = "x".join(map(str, topology.shape))
  name = f"{topology.chip.name}:{shape}"
  return dict(platform="tpu", topology_name=name, **more)


def _target(chip: Chip, gpu: Gpu) -> str:
  """Returns a GPU as a stream_executor.GpuTargetConfigProto in text."""
  major, minor = gpu.capability
  # From Hopper on there are instructions of one architecture alone.
  own = "feature_extension: ACCELERATED_FEATURES" if major >= 9 else ""
  return f"""
platform_name: "CUDA"
device_description_str: "{gpu.title}"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
gpu_device_info {{
  name: "{gpu.title}"
  device_vendor: "NVIDIA Corporation"
  cuda_compute_capability {{ major: {major} minor: {minor} {own} }}
  core_count: {gpu.cores}
  fpus_per_core: {gpu.fpus}
  clock_rate_ghz: {gpu.clock_ghz}
  memory_bandwidth: {chip.memory_bandwidth:.0f}
  device_memory_size: {gpu.memory}
  l2_cache_size: {gpu.cache}
  shared_memory_per_core: {gpu.shared}
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: {gpu.shared - 1024}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  threads_per_core_limit: {gpu.threads}
  threads_per_block_limit: 1024
  threads_per_warp: 32
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  driver_version: "13.0.0"
  runtime_version: "12.8.0"
  compile_time_toolkit_version: "12.8.0"
  dnn_version: "9.10.0"
}}
"""
