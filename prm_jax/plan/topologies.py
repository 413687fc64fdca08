"""Chips by name, and the devices of a topology that isn't here."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import importlib.util
import math
import os
import pathlib
from typing import Any

from jax.experimental import topologies

from prm_jax import errors

GIB = 1 << 30


@dataclasses.dataclass(frozen=True)
class Chip:
  """What one device can hold and do.

  memory: bytes that a program can have. flops: of bfloat16 matmuls, per
  second, dense. memory_bandwidth: bytes per second. wire_bandwidth: bytes per
  second that a chip can send to its neighbours, over all axes that a ring of
  all chips uses at once. extra: what to install so that it can be compiled for.
  """

  name: str
  memory: int
  flops: float
  memory_bandwidth: float
  wire_bandwidth: float
  extra: str = "tpu"


# TPUs: "How to Scale Your Model" (Austin et al. 2025), its table of chips:
# FLOP/s, HBM and ICI links per axis in one direction; a ring uses both
# directions of a link, and the two (v5e, v6e) or three axes of a torus. The
# memory is what their compiler grants a program, as it says where one needs
# more. H200: NVIDIA's datasheet; 450 GB/s is NVLink 4 in one direction.
CHIPS = {
  "v4": Chip("v4", int(30.75 * GIB), 275e12, 1.2e12, 2 * 3 * 45e9),
  "v5e": Chip("v5e", int(15.75 * GIB), 197e12, 0.81e12, 2 * 2 * 45e9),
  "v5p": Chip("v5p", int(95.74 * GIB), 459e12, 2.8e12, 2 * 3 * 90e9),
  "v6e": Chip("v6e", int(31.25 * GIB), 920e12, 1.6e12, 2 * 2 * 90e9),
  "h200": Chip("h200", 139 * GIB, 989e12, 4.8e12, 450e9, "cuda12"),
}

_H200 = pathlib.Path(__file__).with_name("h200.txtpb")


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

  Raises:
    InputError: no such chip or shape.
  """
  chip, _, shape = text.partition(":")
  known = CHIPS.get(chip)
  try:
    sizes = tuple(int(x) for x in shape.split("x"))
  except ValueError:
    sizes = ()
  wanted = 1 if chip == "h200" else 3 if chip in ("v4", "v5p") else 2
  if known is None or len(sizes) != wanted or min(sizes, default=0) < 1:
    raise errors.InputError(
      f"`topology={text}`: expected v5e:16x16, v6e:4x4 (two sizes),"
      " v5p:4x4x4, v4:4x4x4 (three) or h200:8"
    )
  return Topology(text, known, sizes)


def devices(topology: Topology) -> Sequence[Any]:
  """Returns the topology's devices, which can be compiled for and not run.

  Raises:
    InputError: the compiler isn't installed, or knows no such topology.
  """
  extra = topology.chip.extra
  package = "libtpu" if extra == "tpu" else "jax_cuda12_plugin"
  if importlib.util.find_spec(package) is None:
    raise errors.InputError(
      f"`topology={topology.name}`: its compiler isn't installed; pip install"
      f" 'prm_jax[{extra}]'"
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
  if topology.chip.name == "h200":
    return dict(
      platform="cuda",
      target_config=_H200.read_text(),
      topology=f"1x{topology.size}x1" if topology.size > 1 else "1x1x1",
    )
  more: dict[str, Any] = {}
  if topology.chip.name in ("v4", "v5p"):
    # Its two cores are one device, as programs see them.
    more["chip_config_name"] = "megacore"
  if topology.size == 1:
    more["chips_per_host_bounds"] = topology.shape + (1,) * (
      3 - len(topology.shape)
    )
  return dict(platform="tpu", topology_name=topology.name, **more)
