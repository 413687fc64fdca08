"""Saved arrays, read from where orbax put them to where they are used.

orbax reads an array into one place and copies it to another, and a stack of
layers that is taken apart is copied once more. Memory that was never used is
what costs most of such a copy's time. Here each layer's part of an array is read
to its own place, which is freed with it, from files that are mapped into memory.
"""

from __future__ import annotations

from collections.abc import Mapping
import json
import math
import mmap
import pathlib
from typing import Any

import jax
from jax import numpy as jnp
import numpy as np


class Leaves:
  """The arrays of one item of a save, such as its parameters."""

  def __init__(self, folder: pathlib.Path):
    """Opens an item's folder.

    Args:
      folder: The folder, an absolute path.
    """
    import tensorstore

    self._ts = tensorstore
    said = json.loads((folder / "_METADATA").read_text())
    self._base: dict[str, Any] = dict(
      driver="zarr3" if said.get("use_zarr3") else "zarr",
      # Else what is missing is a number of zeros.
      fill_missing_data_reads=not said.get(
        "store_array_data_equal_to_fill_value", False
      ),
      recheck_cached_data=False,
      recheck_cached_metadata=False,
    )
    self._is_one_store = (folder / "manifest.ocdbt").exists()
    self._folder = folder
    # Nothing stays mapped: the file of a save may be replaced.
    self._context = tensorstore.Context(
      {
        "cache_pool": {"total_bytes_limit": 0},
        "file_io_mode": {"mode": "memmap"},
      }
    )
    self._device = jax.local_devices()[0]

  def read(self, name: str) -> jax.Array:
    """Returns an array, whose memory a program that it is donated to may use.

    Args:
      name: Its path in the tree, as "embedding/table".
    """
    store = self._open(name)
    place = empty(tuple(store.shape), store.dtype.numpy_dtype)
    self._ts.array(place).write(store).result()
    # XLA's CPU backend never writes to memory that isn't its own.
    held = jax.device_put(place, self._device)
    return jax.block_until_ready(jnp.array(held, copy=True))

  def read_parts(self, name: str) -> list[jax.Array]:
    """Returns the parts of an array along its first axis, each for itself."""
    store = self._open(name)
    num, *shape = store.shape
    dtype = store.dtype.numpy_dtype
    places = [empty(tuple(shape), dtype) for _ in range(num)]
    self._ts.stack([self._ts.array(x) for x in places]).write(store).result()
    return jax.block_until_ready(jax.device_put(places, self._device))

  def _open(self, name: str) -> Any:
    return self._ts.open(
      self._base | dict(kvstore=self._place(name)),
      context=self._context,
      open=True,
      read=True,
    ).result()

  def _place(self, name: str) -> Mapping[str, Any]:
    name = name.replace("/", ".")
    if not self._is_one_store:
      return dict(driver="file", path=f"{self._folder / name}/")
    base = dict(driver="file", path=f"{self._folder}/")
    return dict(driver="ocdbt", base=base, path=f"{name}/")


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
  """Returns an array of unset numbers, in pages of its own.

  numpy would ask the system for large pages, for which it may first move what
  others have in memory: that took longer than all the rest of reading.

  Args:
    shape: Its shape.
    dtype: Its type.
  """
  size = math.prod(shape) * np.dtype(dtype).itemsize
  flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
  memory = np.frombuffer(mmap.mmap(-1, max(size, 1), flags), np.uint8)
  return memory[:size].view(dtype).reshape(shape)
