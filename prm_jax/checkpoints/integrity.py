"""Checks that what is read back is what was saved.

orbax writes no checksum of what it saves: a flipped bit on a disk is read as
another weight. So a checkpoint holds the fingerprint of each leaf, 64 bits that
are the same on every mesh, and a digest of its own metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import errno
import functools
import hashlib
import json
import os
from typing import Any

import jax
from jax import numpy as jnp
from jaxtyping import Array, UInt32
import numpy as np
import orbax.checkpoint as ocp

from prm_jax import errors
from prm_jax.runtime import checks
from prm_jax.runtime import exhausted

# What the two halves begin with: any two numbers without a pattern.
_BEGINNINGS = (0x243F6A88, 0x85A308D3)
# The most elements that numpy adds up, in 50 ms: a program for them would take
# longer to compile.
_ON_HOST = 2**22


def of(tree: Any) -> dict[str, str]:
  """Returns path -> dtype, shape and 16 hex digits of each leaf.

  They are computed where the leaves are (small ones by numpy), from their bits
  and indices: a sum of integers modulo 2**32, twice, whose result doesn't depend
  on sharding. Any change of one element changes it, NaN and -0 included; of
  other changes, all but one in 2**64 on average. It detects damage, not an
  attack.
  """
  named = {name: jnp.asarray(x) for name, x in by_path(tree).items()}
  sums = jax.device_get(_sums(named))
  return {name: _text(x.shape, x, sums[name]) for name, x in named.items()}


def of_params(params: Any) -> dict[str, str]:
  """Returns what `of` does, of parameters whose layers may be own arrays.

  Each fingerprint is then that of the stack of all layers.
  """
  whole: dict[str, Array] = {}
  parts: dict[str, list[Array]] = {}
  for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
    number, name = own_place(path)
    if number is None:
      whole[name] = leaf
    else:
      parts.setdefault(name, []).append(leaf)
  each: dict[str, list[Any]] = {name: [] for name in parts}
  for i in range(max(map(len, parts.values()), default=0)):
    named = {name: x[i] for name, x in parts.items() if i < len(x)}
    for name, sums in _sums(named, np.uint32(i)).items():
      each[name].append(sums)
  fingerprints = of(whole)
  for name, of_layers in jax.device_get(each).items():
    added = [sum(map(int, x)) & 0xFFFFFFFF for x in zip(*of_layers)]
    part = parts[name][0]
    fingerprints[name] = _text((len(of_layers), *part.shape), part, added)
  return fingerprints


def _text(shape: Sequence[int], x: Array, sums: Sequence[Any]) -> str:
  return f"{x.dtype}{list(shape)}:" + "".join(f"{s:08x}" for s in sums)


def own_place(path: Sequence[Any]) -> tuple[int | None, str]:
  """Returns the number of a parameter's layer and the path in the stack.

  The number is None where layers are a stack.
  """
  is_number = [isinstance(x, jax.tree_util.SequenceKey) for x in path]
  numbers = [x.idx for x in path if isinstance(x, jax.tree_util.SequenceKey)]
  return (
    numbers[0] if numbers else None,
    name_of([x for x, own in zip(path, is_number, strict=True) if not own]),
  )


def by_path(tree: Any) -> dict[str, Any]:
  """Returns the leaves of a tree by their paths, as "layers/mlp/up"."""
  return {
    name_of(path): leaf
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
  }


def name_of(path: Sequence[Any]) -> str:
  """Returns a leaf's path as "layers/mlp/up"."""
  return jax.tree_util.keystr(tuple(path), simple=True, separator="/")


def difference(
  saved: Mapping[str, str], leaves: Mapping[str, str]
) -> str | None:
  """Returns the first leaf, by name, that differs from the record, or None.

  Leaves that weren't read aren't compared.
  """
  for name in sorted(leaves):
    if saved.get(name) != leaves[name]:
      return name
  return None


def _sums(
  named: Mapping[str, Array], layer: np.uint32 | None = None
) -> dict[str, Any]:
  """Returns the sums of leaves, or of that layer's part of stacks."""
  here = all(x.is_fully_addressable for x in named.values())
  if not here or sum(x.size for x in named.values()) > _ON_HOST:
    return _compiled_sums(named, layer)
  if layer is None:
    return {k: _sums_on_host(np.asarray(x), 0) for k, x in named.items()}
  number = int(layer)
  return {
    k: _sums_on_host(np.asarray(x)[None], number) for k, x in named.items()
  }


def _sums_on_host(x: np.ndarray, first: int) -> list[np.uint32]:
  """Returns what _sums_of_leaf does, without compiling anything."""
  if x.dtype == np.bool_:
    words = x.astype(np.uint32)
  elif x.dtype.itemsize > 4:
    words = np.ascontiguousarray(x)[..., None].view(np.uint32)
  else:
    words = x.view(f"u{x.dtype.itemsize}").astype(np.uint32)
  sums = []
  # Only of an array of no axis, which is a number, numpy says that it wraps.
  with np.errstate(over="ignore"):
    for beginning in _BEGINNINGS:
      place = np.full(words.shape, beginning, np.uint32)
      for axis, size in enumerate(words.shape):
        start = beginning + 0x9E3779B9 * axis + (first if axis == 0 else 0)
        along = np.arange(size, dtype=np.uint32) + np.uint32(start & 0xFFFFFFFF)
        place ^= _mixed(along).reshape(-1, *[1] * (words.ndim - axis - 1))
      sums.append(_mixed(words + _mixed(place)).sum(dtype=np.uint32))
  return sums


def _compiled_sums(
  named: Mapping[str, Array], layer: np.uint32 | None
) -> dict[str, tuple[Array, Array]]:
  """Returns what _sums does.

  Each leaf is a program of its own: leaves of a shape share one, whatever trees
  they are in.
  """
  if layer is None:
    return {name: _sums_of_leaf(x, np.uint32(0)) for name, x in named.items()}
  return {name: _sums_of_part(x, layer) for name, x in named.items()}


@jax.jit
def _sums_of_leaf(
  x: Array, first: UInt32[Array, ""]
) -> tuple[UInt32[Array, ""], UInt32[Array, ""]]:
  """Returns two sums over elements of a mix of their bits and their place.

  Along its first axis x begins at place `first`.

  It is one reduction of a pair: XLA's CPU backend stores what a reduction of
  one array sums, which would take four times a bfloat16 leaf's memory.
  """
  words = _words(x)
  zero = np.uint32(0)
  return jax.lax.reduce(
    tuple(_mixes(words, beginning, first) for beginning in _BEGINNINGS),
    (zero, zero),
    lambda a, b: (a[0] + b[0], a[1] + b[1]),
    tuple(range(words.ndim)),
  )


@jax.jit
def _sums_of_part(
  x: Array, layer: UInt32[Array, ""]
) -> tuple[UInt32[Array, ""], UInt32[Array, ""]]:
  """Returns the sums of a layer's part of a stack."""
  return _sums_of_leaf(x[None], layer)


def _mixes(
  words: UInt32[Array, "*shape"], beginning: int, first: UInt32[Array, ""]
) -> UInt32[Array, "*shape"]:
  """Returns each word mixed with its place; that of the first axis is moved."""
  place = functools.reduce(
    jnp.bitwise_xor,
    (
      _mixed(
        jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis)
        + (first if axis == 0 else np.uint32(0))
        + np.uint32(beginning + 0x9E3779B9 * axis & 0xFFFFFFFF)
      )
      for axis in range(words.ndim)
    ),
    jnp.full(words.shape, beginning, jnp.uint32),
  )
  return _mixed(words + _mixed(place))


def _words(x: Array) -> UInt32[Array, ...]:
  """Returns an array's bits as words; of wide elements, one more axis."""
  if x.dtype == jnp.bool_:
    return x.astype(jnp.uint32)
  width = min(x.dtype.itemsize, 4)
  whole = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[width]
  return jax.lax.bitcast_convert_type(x, whole).astype(jnp.uint32)


def _mixed(words: Any) -> Any:
  """Returns each word mixed, one to one: the finalizer of MurmurHash3.

  Of numpy's arrays, too.
  """
  for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
    words = (words ^ (words >> shift)) * np.uint32(factor)
  return words ^ (words >> 16)


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
  """Returns JSON data with a digest of it."""
  text = json.dumps(record, sort_keys=True)
  return dict(record, digest=hashlib.sha256(text.encode()).hexdigest())


def unsealed(record: Mapping[str, Any]) -> dict[str, Any] | None:
  """Returns JSON data without its digest; None if it has none, or another."""
  content = {k: v for k, v in record.items() if k != "digest"}
  return content if sealed(content) == record else None


def check_files(folder: Any) -> None:
  """Refuses what orbax would wait for if it opened it by its path.

  Args:
    folder: The folder of a save, or of an item in it.

  Raises:
    DamagedError: A file there is a pipe or a device.
  """
  seen = set()
  for parent, folders, names in os.walk(folder, followlinks=True):
    status = os.stat(parent)
    place = status.st_dev, status.st_ino
    if place in seen:  # a link leads here
      folders.clear()
      continue
    seen.add(place)
    for name in names:
      path = os.path.join(parent, name)
      if os.path.exists(path) and not os.path.isfile(path):
        raise damaged(folder, f"{name} is not a regular file")


def read_meta(where: Any) -> dict[str, Any]:
  """Returns a checkpoint's metadata.

  Raises:
    DamagedError: The metadata can't be read, its digest differs, or it is of
      another step than its folder's name.
    InputError: This process may open no more files.
  """
  check_files(where / "meta")
  try:
    meta_ = dict(ocp.JsonCheckpointHandler().restore(where / "meta"))
  except Exception as e:  # whatever the file system or the text gives rise to
    raise unreadable(where, e) from None
  content = unsealed(meta_)
  for problem in _meta_faults(content, where.name):
    raise damaged(where, problem)
  assert content is not None
  return content


def _meta_faults(meta_: Mapping[str, Any] | None, name: str) -> Iterator[str]:
  """Yields what is wrong with the metadata of the save of a folder's name."""
  if meta_ is None:
    yield "meta isn't what was saved"
    return
  for field, kind in (
    ("fingerprints", dict),
    ("metrics", dict),
    ("skipped", list),
  ):
    if not isinstance(meta_.get(field), kind | None):
      yield f"{field} of its meta isn't a {kind.__name__}"
  for metric, value in (meta_.get("metrics") or {}).items():
    is_huge = isinstance(value, int) and abs(value) > 1e300
    if is_huge or not checks.is_a(value, float | None, finite=False):
      yield f"the metric {metric} of its meta isn't a number"
  if not checks.is_a(
    [*(meta_.get("fingerprints") or {}).values()], tuple[str, ...]
  ):
    yield "fingerprints of its meta aren't texts"
  for count in meta_.get("skipped") or ():
    # The losses and norms that spikes are compared with are no counts.
    if checks.is_a(count, tuple[tuple[float, ...], ...]):
      continue
    if not checks.is_a(count, int) or not 0 <= count < 1 << 31:
      yield "skipped of its meta isn't a list of counts"
  step = meta_.get("step")
  if step is not None and str(step) != name:
    yield f"it is the save of step {step}"


def check_leaves(
  leaves: Mapping[str, Any],
  meta_: Any,
  where: object,
  of: Callable[[Any], dict[str, str]] = of,
) -> None:
  """Raises DamagedError if leaves aren't what was saved.

  Args:
    leaves: What was read.
    meta_: The save's metadata.
    where: The folder of the save.
    of: What makes fingerprints of the leaves.
  """
  name = difference(meta_.get("fingerprints") or {}, of(leaves))
  if name is not None:
    raise damaged(where, f"{name} isn't what was saved")


def damaged(where: object, reason: str) -> errors.DamagedError:
  return errors.DamagedError(f"{where}: damaged ({reason})")


def unreadable(where: object, error: Exception) -> errors.InputError:
  """Returns the error to raise if something saved can't be read.

  It is damaged, unless this process may open no more files or has no memory.
  """
  number = exhausted.errno_of(error)
  if number is not None and number in (*exhausted.OPEN_FILES, errno.ENOMEM):
    return errors.InputError(
      f"{where}: can't be read: {exhausted.reason(number)}"
    )
  return damaged(where, reason(error))


def reason(error: Exception) -> str:
  """Returns an error's message, as the beginning of one line."""
  # orbax adds a method of Python's, which says nothing.
  text = str(error).partition(" See full TensorStore details")[0]
  message = " ".join(text.split()) or type(error).__name__
  return message if len(message) <= 160 else message[:157] + "..."
