"""Tensors on disk, in safetensors: one file, or shards with an index.

Pickles (*.bin, *.pt) run code when they are opened; they never are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import contextlib
import dataclasses
import json
import pathlib
from typing import Any

import ml_dtypes
import numpy as np
import safetensors

from prm_jax import schema

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
DTYPES: Mapping[str, Any] = {
  "F32": np.dtype(np.float32),
  "BF16": np.dtype(ml_dtypes.bfloat16),
  "F16": np.dtype(np.float16),
}
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
# Reads, where mmap would keep what was read resident.
_BACKEND = "pread"


@dataclasses.dataclass(frozen=True)
class Entry:
  """Where a tensor is, its shape and its dtype in safetensors' words."""

  file: pathlib.Path
  shape: tuple[int, ...]
  dtype: str


@dataclasses.dataclass(frozen=True)
class Tensors:
  """The tensors of a folder by name; nothing but headers was read yet."""

  folder: pathlib.Path
  entries: Mapping[str, Entry]

  @property
  def names(self) -> list[str]:
    return list(self.entries)

  @property
  def num_bytes(self) -> int:
    return sum(map(self.size, self.entries))

  def size(self, name: str) -> int:
    """Returns a tensor's bytes on disk."""
    entry = self.entries[name]
    items = int(np.prod(entry.shape, dtype=np.int64))
    return items * _dtype(entry, name).itemsize

  def read(
    self, name: str, index: tuple[slice, ...] | None = None
  ) -> np.ndarray:
    """Returns one tensor, or its part, in the dtype that it has on disk.

    Raises:
      InputError: there is none of this name, or it can't be read.
    """
    if name not in self.entries:
      raise schema.InputError(f"{self.folder}: no tensor is named {name}")
    entry = self.entries[name]
    _dtype(entry, name)
    with _opened(entry.file) as f:
      part = f.get_slice(name)
      return part[tuple(index) if index else ...]


def open_tensors(folder: schema.PathLike) -> Tensors:
  """Returns the folder's tensors, by the headers of its files.

  Raises:
    InputError: there is no safetensors file, or one is missing or damaged.
  """
  folder = pathlib.Path(folder)
  if (folder / SINGLE).is_file():
    return Tensors(folder, dict(_entries(folder / SINGLE)))
  if (folder / INDEX).is_file():
    return Tensors(folder, _sharded(folder))
  if not folder.is_dir():
    raise schema.InputError(f"{folder}: not a folder")
  pickles = sorted(p.name for p in folder.iterdir() if p.suffix in _PICKLES)
  if pickles:
    raise schema.InputError(
      f"{folder}: holds {pickles[0]} and no safetensors; a pickle can run any"
      " code and is never opened: convert it where you trust it"
    )
  raise schema.InputError(f"{folder}: holds neither {SINGLE} nor {INDEX}")


def _sharded(folder: pathlib.Path) -> dict[str, Entry]:
  path = folder / INDEX
  try:
    files = json.loads(path.read_bytes())["weight_map"]
    shards = sorted(set(files.values()))
    plain = all(pathlib.Path(x).name == x and x != ".." for x in shards)
  except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
    said = " ".join(str(e).split()) or type(e).__name__
    raise schema.InputError(f"{path}: damaged: {said[:160]}") from None
  if not plain:
    raise schema.InputError(f"{path}: names a file outside of its folder")
  found: dict[str, dict[str, Entry]] = {}
  for shard in shards:
    if pathlib.Path(shard).suffix != ".safetensors":
      raise schema.InputError(f"{path}: {shard}: expected *.safetensors")
    if not (folder / shard).is_file():
      raise schema.InputError(f"{path}: names {shard}, which isn't there")
    found[shard] = dict(_entries(folder / shard))
  for name, shard in files.items():
    if name not in found[shard]:
      raise schema.InputError(f"{path}: {name} isn't in {shard}")
  # What the index forgot is there all the same.
  everything = {name: x for part in found.values() for name, x in part.items()}
  return everything | {
    name: found[shard][name] for name, shard in files.items()
  }


def _entries(path: pathlib.Path) -> Iterator[tuple[str, Entry]]:
  with _opened(path) as f:
    for name in f.keys():  # noqa: SIM118
      part = f.get_slice(name)
      yield name, Entry(path, tuple(part.get_shape()), part.get_dtype())


@contextlib.contextmanager
def _opened(path: pathlib.Path) -> Iterator[Any]:
  try:
    with safetensors.safe_open(path, framework="np", backend=_BACKEND) as f:
      yield f
  except (OSError, ValueError, safetensors.SafetensorError) as e:
    if isinstance(e, schema.InputError):
      raise
    said = " ".join(str(e).split())
    raise schema.InputError(
      f"{path}: damaged or cut off: {said[:160]}; fetch it again"
    ) from None


def _dtype(entry: Entry, name: str) -> np.dtype:
  if entry.dtype not in DTYPES:
    raise schema.InputError(
      f"{entry.file}: {name} is {entry.dtype}; expected one of"
      f" {', '.join(DTYPES)}"
    )
  return DTYPES[entry.dtype]
