"""Saved arrays, read from where orbax put them to where they are used.

orbax reads an array into one place and copies it to another, and a stack of
layers that is taken apart is copied once more. Memory that was never used is
what costs most of such a copy's time. Here each array, or each layer's part of
one, is read to its own place, from files that are mapped into memory.
"""

from __future__ import annotations

from collections.abc import Mapping
import json
import math
import mmap
import pathlib
from typing import Any

import jax
import numpy as np

# What XLA's CPU backend uses in place, it wants to begin at such a multiple.
_ALIGNMENT = 64


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
    self._is_one_store = said.get("use_ocdbt", True)
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
    """Returns an array.

    Args:
      name: Its path in the tree, as "embedding/table".
    """
    (whole,) = self._read(name, apart=False)
    return whole

  def read_parts(self, name: str) -> list[jax.Array]:
    """Returns the parts of an array along its first axis, each for itself."""
    return self._read(name, apart=True)

  def _read(self, name: str, *, apart: bool) -> list[jax.Array]:
    store = self._ts.open(
      self._base | dict(kvstore=self._place(name)),
      context=self._context,
      open=True,
      read=True,
    ).result()
    shape, dtype = tuple(store.shape), store.dtype.numpy_dtype
    if apart:
      places = _empty(shape[0], shape[1:], dtype)
      target = self._ts.stack([self._ts.array(x) for x in places])
    else:
      places = _empty(1, shape, dtype)
      target = self._ts.array(places[0])
    target.write(store).result()
    return jax.block_until_ready(jax.device_put(places, self._device))

  def _place(self, name: str) -> Mapping[str, Any]:
    name = name.replace("/", ".")
    if not self._is_one_store:
      return dict(driver="file", path=f"{self._folder / name}/")
    base = dict(driver="file", path=f"{self._folder}/")
    return dict(driver="ocdbt", base=base, path=f"{name}/")


def _empty(num: int, shape: tuple[int, ...], dtype: Any) -> list[np.ndarray]:
  """Returns arrays of unset numbers, each at a multiple of _ALIGNMENT.

  numpy would ask the system for large pages, for which it may first move what
  others have in memory: that took longer than all the rest of reading.
  """
  size = math.prod(shape) * np.dtype(dtype).itemsize
  step = -(-size // _ALIGNMENT) * _ALIGNMENT
  memory = np.frombuffer(mmap.mmap(-1, max(num * step, 1)), np.uint8)
  return [
    memory[i * step : i * step + size].view(dtype).reshape(shape)
    for i in range(num)
  ]
