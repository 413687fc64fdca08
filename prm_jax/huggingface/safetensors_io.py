"""Tensors on disk, in safetensors: one file, or shards with an index.

Pickles (*.bin, *.pt) run code when they are opened; they never are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import os
import pathlib
from typing import Any

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from prm_jax import errors
from prm_jax.runtime import files as files_lib
from prm_jax.runtime import foreign_files
from prm_jax.runtime import inputs

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
DTYPES: Mapping[str, Any] = {
  "F32": np.dtype(np.float32),
  "BF16": np.dtype(ml_dtypes.bfloat16),
  "F16": np.dtype(np.float16),
}
_BY_NAME = {dtype.name: dtype for dtype in DTYPES.values()}
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
# Reads, where mmap would keep what was read resident.
_BACKEND = "pread"
# The numbers that are checked at once, so that a check takes little memory.
_BLOCK = 1 << 18


@dataclasses.dataclass(frozen=True)
class Entry:
  """Where a tensor is, its shape and its dtype in safetensors' words.

  Args:
    file: The file.
    shape: The shape.
    dtype: The dtype.
    name: Its name in the file; None is the one that it is known by.
  """

  file: pathlib.Path
  shape: tuple[int, ...]
  dtype: str
  name: str | None = None


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

  def dtype(self, name: str) -> str:
    """Returns a tensor's dtype on disk, in numpy's words."""
    return _dtype(self.entries[name], name).name

  def common_dtype(self, names: Iterable[str]) -> str:
    """Returns the dtype of tensors on disk; float32 if they have several.

    float32 holds each of the others exactly.
    """
    dtypes = {self.dtype(name) for name in names}
    return dtypes.pop() if len(dtypes) == 1 else "float32"

  def read(
    self, name: str, index: tuple[slice, ...] | None = None
  ) -> np.ndarray:
    """Returns one tensor, or its part, in the dtype that it has on disk.

    Raises:
      InputError: There is none of this name, it can't be read, or it holds a
        number that isn't finite.
    """
    if name not in self.entries:
      raise errors.InputError(f"{self.folder}: no tensor is named {name}")
    entry = self.entries[name]
    _dtype(entry, name)
    with _opened(entry.file) as f:
      stored = entry.name or name
      part = f.get_slice(stored)[tuple(index) if index else ...]
    check_finite(part, f"{entry.file}: {name}", "fetch the file again")
    return part


def open_tensors(folder: files_lib.PathLike) -> Tensors:
  """Returns the folder's tensors, by the headers of its files.

  Raises:
    InputError: there is no safetensors file, or one is missing or damaged.
  """
  folder = pathlib.Path(folder)
  single = foreign_files.find(folder, SINGLE)
  if single is not None:
    return Tensors(folder, dict(_entries(single)))
  index = foreign_files.find(folder, INDEX)
  if index is not None:
    return Tensors(folder, _sharded(index))
  if not folder.is_dir():
    raise errors.InputError(f"{folder}: not a folder")
  pickles = sorted(p.name for p in folder.iterdir() if p.suffix in _PICKLES)
  if pickles:
    raise errors.InputError(
      f"{folder}: holds {pickles[0]} and no safetensors; a pickle can run any"
      " code and is never opened: convert it where you trust it"
    )
  raise errors.InputError(f"{folder}: holds neither {SINGLE} nor {INDEX}")


def open_file(path: pathlib.Path) -> Tensors:
  """Returns the tensors of one file, by its header.

  Raises:
    InputError: It is damaged.
  """
  return Tensors(path.parent, dict(_entries(path)))


def _sharded(path: pathlib.Path) -> dict[str, Entry]:
  try:
    files = files_lib.read_json(path)["weight_map"]
    shards = sorted(set(files.values()))
    plain = all(pathlib.Path(x).name == x and x != ".." for x in shards)
  except errors.InputError:
    raise
  except (KeyError, TypeError, AttributeError) as e:
    reason = " ".join(str(e).split()) or type(e).__name__
    raise errors.InputError(f"{path}: damaged: {reason[:160]}") from None
  if not plain:
    raise errors.InputError(f"{path}: names a file outside of its folder")
  entries: dict[str, dict[str, Entry]] = {}
  for shard in shards:
    if pathlib.Path(shard).suffix != ".safetensors":
      raise errors.InputError(f"{path}: {shard}: expected *.safetensors")
    file = foreign_files.find(path.parent, shard)
    if file is None:
      raise errors.InputError(f"{path}: names {shard}, which isn't there")
    entries[shard] = dict(_entries(file))
  for name, shard in files.items():
    if name not in entries[shard]:
      raise errors.InputError(f"{path}: {name} isn't in {shard}")
  # Tensors that the index doesn't name count, too.
  everything = {k: x for part in entries.values() for k, x in part.items()}
  return everything | {k: entries[shard][k] for k, shard in files.items()}


def _entries(path: pathlib.Path) -> Iterator[tuple[str, Entry]]:
  with _opened(path) as f:
    for name in f.keys():  # noqa: SIM118
      part = f.get_slice(name)
      yield name, Entry(path, tuple(part.get_shape()), part.get_dtype())


@contextlib.contextmanager
def _opened(path: pathlib.Path) -> Iterator[Any]:
  inputs.check_regular(path)
  try:
    with safetensors.safe_open(path, framework="np", backend=_BACKEND) as f:
      yield f
  except (OSError, ValueError, safetensors.SafetensorError) as e:
    if isinstance(e, errors.InputError):
      raise
    reason = " ".join(str(e).split())
    raise errors.InputError(
      f"{path}: damaged or cut off: {reason[:160]}; fetch it again"
    ) from None


def check_finite(x: np.ndarray, what: str, remedy: str) -> None:
  """Raises InputError if a tensor holds NaN or an infinite number."""
  flat = x.reshape(-1)
  for start in range(0, flat.size, _BLOCK):
    finite = np.isfinite(flat[start : start + _BLOCK])
    if not finite.all():
      place = np.unravel_index(start + int(finite.argmin()), x.shape)
      at = ", ".join(map(str, place))
      raise errors.InputError(f"{what}[{at}] is {x[place]}; {remedy}")


def _dtype(entry: Entry, name: str) -> np.dtype:
  if entry.dtype not in DTYPES:
    raise errors.InputError(
      f"{entry.file}: {name} is {entry.dtype}; expected one of"
      f" {', '.join(DTYPES)}"
    )
  return DTYPES[entry.dtype]


# --- Writing ----------------------------------------------------------------


def check_empty(folder: pathlib.Path) -> None:
  """Raises InputError if a folder holds a model already."""
  held = [*folder.glob("*.safetensors*"), *folder.glob("config.json")]
  if held:
    raise errors.InputError(
      f"{folder}: holds {held[0].name} already; give a new folder"
    )


def write_tensors(
  folder: pathlib.Path,
  tensors: Iterable[tuple[str, np.ndarray]],
  *,
  dtype: str,
  max_shard_bytes: int,
  single: str = SINGLE,
) -> int:
  """Writes one file, or shards and their index; returns the tensors' bytes.

  The host holds one shard. Files get their names when all of them are whole.

  Raises:
    InputError: a tensor's numbers don't fit the dtype, or the disk is full.
  """
  written: list[pathlib.Path] = []
  names: list[list[str]] = []
  num_bytes = 0
  try:
    folder.mkdir(parents=True, exist_ok=True)
    for shard in _shards(tensors, dtype, max_shard_bytes):
      written.append(folder / f".{len(written)}.{os.getpid()}.tmp")
      written[-1].touch()
      mode = written[-1].stat().st_mode  # safetensors gives its own file 0600
      safetensors.numpy.save_file(shard, written[-1], {"format": "pt"})
      written[-1].chmod(mode)
      with open(written[-1], "rb") as f:
        os.fsync(f.fileno())
      names.append(list(shard))
      num_bytes += sum(x.nbytes for x in shard.values())
    _name_shards(folder, written, names, num_bytes, single)
  except (OSError, safetensors.SafetensorError) as e:
    reason = " ".join(str(e).split())
    raise errors.InputError(f"{folder}: can't be written: {reason}") from None
  finally:
    for path in written:
      path.unlink(missing_ok=True)
  return num_bytes


def _shards(
  tensors: Iterable[tuple[str, np.ndarray]], dtype: str, max_shard_bytes: int
) -> Iterator[dict[str, np.ndarray]]:
  shard: dict[str, np.ndarray] = {}
  for name, x in tensors:
    check_finite(x, name, "give finite numbers")
    with np.errstate(over="ignore"):
      cast = np.ascontiguousarray(x.astype(_BY_NAME[dtype], copy=False))
    if not np.isfinite(cast).all():
      raise errors.InputError(
        f"{name}: {np.abs(x).max():.3g} doesn't fit {dtype}; use bfloat16"
      )
    held = sum(y.nbytes for y in shard.values())
    if shard and held + cast.nbytes > max_shard_bytes:
      yield shard
      shard = {}
    shard[name] = cast
  yield shard


def _name_shards(
  folder: pathlib.Path,
  written: Sequence[pathlib.Path],
  names: Sequence[Sequence[str]],
  num_bytes: int,
  single: str,
) -> None:
  n = len(written)
  if n == 1:
    written[0].replace(folder / single)
    return
  files = [f"model-{i:05}-of-{n:05}.safetensors" for i in range(1, n + 1)]
  for path, file in zip(written, files, strict=True):
    path.replace(folder / file)
  weight_map = {
    name: file for file, held in zip(files, names, strict=True) for name in held
  }
  index = dict(metadata=dict(total_size=num_bytes), weight_map=weight_map)
  files_lib.write_json(folder / INDEX, index)
