"""The mesh, and the only place that maps logical axes to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import math
from typing import Any

from flax import linen as nn
from flax.core import meta
import jax
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np

from prm_jax import batch as batch_lib
from prm_jax import errors

AXES = ("data", "fsdp", "tensor")

# Logical axis -> mesh axis. Rows are split over data and fsdp; parameters over
# fsdp (and gathered when used) and over tensor.
RULES = (
  ("batch", ("data", "fsdp")),
  ("vocab", "tensor"),
  ("embed", "fsdp"),
  ("mlp", "tensor"),
  ("heads", "tensor"),
  ("kv_heads", "tensor"),
  ("heads_act", "tensor"),
  ("embed_act", None),
  ("length", None),
  ("norm", None),
  ("layers", None),
)

# Else XLA turns the matmul of a gathered kernel into a loop that passes shards
# from chip to chip: more, smaller sends, which a large batch doesn't pay for.
_COMPILER_OPTIONS = {
  "tpu": {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"}
}


def mesh_sizes(shape: Sequence[int], devices: int) -> tuple[int, int, int]:
  """Returns (data, fsdp, tensor) for a number of devices; -1 is what is left.

  Raises:
    InputError: The shape doesn't multiply to the number of devices.
  """
  sizes = tuple(shape)
  known = math.prod(n for n in sizes if n > 0)
  if -1 in sizes and known and devices % known == 0:
    sizes = tuple(devices // known if n == -1 else n for n in sizes)
  if len(sizes) != 3 or math.prod(sizes) != devices:
    raise errors.InputError(
      f"mesh={sizes}: its three sizes must multiply to the {devices} devices"
    )
  return sizes


def make_mesh(
  shape: Sequence[int] = (-1, 1, 1), devices: Sequence[Any] | None = None
) -> Mesh:
  """Returns the mesh (data, fsdp, tensor); see mesh_sizes."""
  devices = list(jax.devices() if devices is None else devices)
  shape = mesh_sizes(shape, len(devices))
  # A TPU's axes are laid along those of its torus where they can be, and else
  # along parts of them: (16, 16) on 4 x 8 x 8 chips.
  placed = mesh_utils.create_device_mesh(
    shape, devices, allow_split_physical_axes=True
  )
  return Mesh(placed, AXES, axis_types=(AxisType.Auto,) * 3)


def of_state(abstract: Any, mesh: Mesh) -> Any:
  """Returns a NamedSharding for every leaf of a boxed abstract state.

  A leaf whose axis the mesh can't divide evenly is replicated on that axis.
  """
  specs = nn.get_partition_spec(abstract)
  shapes = meta.unbox(abstract)

  def place(spec: P, leaf: Any) -> NamedSharding:
    # Optimizer state repeats the parameters' boxes; counters have no axes.
    logical = tuple(spec) + (None,) * (len(leaf.shape) - len(spec))
    mesh_axes = nn.logical_to_mesh_axes(logical, RULES) or P()
    kept = [
      axis if axis and size % num_parts(mesh, axis) == 0 else None
      for axis, size in zip(mesh_axes, leaf.shape, strict=True)
    ]
    return NamedSharding(mesh, P(*kept))

  return jax.tree.map(place, specs, shapes, is_leaf=lambda x: isinstance(x, P))


def num_parts(
  mesh: Mesh | AbstractMesh, axes: str | tuple[str, ...] | None
) -> int:
  """Returns into how many parts an array is split along mesh axes."""
  names = (axes,) if isinstance(axes, str) else axes or ()
  return math.prod(mesh.shape[name] for name in names)


def of_batch(mesh: Mesh) -> NamedSharding:
  """Returns the sharding of [B, T] arrays: rows over data and fsdp."""
  return NamedSharding(mesh, P(("data", "fsdp"), None))


def replicated(mesh: Mesh) -> NamedSharding:
  return NamedSharding(mesh, P())


def mesh_for(shape: Sequence[int], rows: int) -> Mesh:
  """Returns the mesh that batches of `rows` rows are split over.

  Args:
    shape: The devices on the axes data, fsdp and tensor; see mesh_sizes.
    rows: The number of rows of a batch.

  Raises:
    InputError: The mesh doesn't fit the devices or the rows.
  """
  mesh = make_mesh(shape)
  check_rows(rows, mesh)
  return mesh


def check_rows(rows: int, mesh: Mesh) -> None:
  """Raises InputError if a batch of `rows` rows can't be split evenly."""
  parts = num_parts(mesh, ("data", "fsdp"))
  if rows % parts:
    raise errors.InputError(
      f"rows={rows} can't be split over data x fsdp = {parts} devices;"
      f" make it a multiple of {parts}"
    )


def own_rows(rows: int, mesh: Mesh) -> np.ndarray:
  """Returns which rows of a batch are on devices of this process, in order.

  Processes with different parts of the tensor axis need the same rows.
  """
  check_rows(rows, mesh)
  places = of_batch(mesh).addressable_devices_indices_map((rows, 1))
  spans = {index[0].indices(rows) for index in places.values() if index}
  return np.unique([i for span in spans for i in range(*span)])


def put_batch(batch: Any, mesh: Mesh) -> Any:
  """Returns host rows as sharded device arrays.

  Args:
    batch: A batch.Batch, or a value with rows like it, the same in all
      processes; or, in each process, the batch.Part that has at least its
      own_rows.
    mesh: The mesh.

  Raises:
    InputError: The rows can't be split evenly.
    ValueError: A part lacks rows.
  """
  if isinstance(batch, batch_lib.Part):
    return _put_part(batch, mesh)
  check_rows(jax.tree.leaves(batch)[0].shape[0], mesh)
  return put(batch, of_batch(mesh))


def put(tree: Any, shardings: Any) -> Any:
  """Returns arrays that every process has whole, placed by their shardings.

  Args:
    tree: The arrays.
    shardings: One sharding for all leaves, or a tree with one for each.
  """
  if jax.process_count() == 1:
    return jax.device_put(tree, shardings)

  def place(x, sharding):
    x = np.asarray(x)
    return jax.make_array_from_callback(x.shape, sharding, x.__getitem__)

  if isinstance(shardings, jax.sharding.Sharding):
    return jax.tree.map(lambda x: place(x, shardings), tree)
  return jax.tree.map(place, tree, shardings)


@dataclasses.dataclass(frozen=True)
class Sharded:
  """A compiled function on a mesh, axis names in force.

  Several simulated devices (CPU) finish a call before it returns.
  """

  compiled: Any
  mesh: Mesh

  def __call__(self, *args: Any) -> Any:
    with jax.set_mesh(self.mesh), nn.logical_axis_rules(RULES):
      out = self.compiled(*args)
    # They share one pool of as many threads. A collective holds its thread
    # until all devices have come, so two calls in flight can wait for each
    # other.
    simulated = self.mesh.size > 1 and platform(self.mesh) == "cpu"
    return jax.block_until_ready(out) if simulated else out

  def trace(self, *args: Any) -> Any:
    """Returns it traced on arrays or their shapes, to be read or compiled."""
    # The mesh's devices may not be here; a kernel may ask which they are.
    device = jax.default_device(self.mesh.devices.flat[0])
    with device, jax.set_mesh(self.mesh), nn.logical_axis_rules(RULES):
      return self.compiled.trace(*args)


def platform(mesh: Mesh) -> str:
  """Returns what the mesh's devices are: cpu, gpu or tpu."""
  return mesh.devices.flat[0].platform


def _put_part(part: batch_lib.Part, mesh: Mesh) -> batch_lib.Batch:
  """Returns the whole batch, of which each process gives its rows."""
  lacking = np.setdiff1d(own_rows(part.num_rows, mesh), part.numbers)
  if len(lacking):
    raise ValueError(f"a part of a batch lacks its rows {lacking.tolist()}")
  place = np.full(part.num_rows, -1)
  place[part.numbers] = np.arange(len(part.numbers))

  def put(x):
    def rows(index):
      return x[place[index[0]]]

    shape = (part.num_rows, *x.shape[1:])
    return jax.make_array_from_callback(shape, of_batch(mesh), rows)

  return jax.tree.map(put, part.rows)


def jit(
  function: Callable,
  mesh: Mesh,
  *,
  in_shardings: Any,
  out_shardings: Any,
  donate_argnums: Sequence[int] = (),
) -> Sharded:
  """Returns the function compiled for the mesh."""
  compiled = jax.jit(
    function,
    in_shardings=in_shardings,
    out_shardings=out_shardings,
    donate_argnums=tuple(donate_argnums),
    compiler_options=_COMPILER_OPTIONS.get(platform(mesh)),
  )
  return Sharded(compiled, mesh)
