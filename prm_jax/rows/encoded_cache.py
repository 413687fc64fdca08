"""Encoded data of earlier runs, kept in the user's cache folder.

What a run learns from is a function of the solutions, the tokenizer and the
options of encoding and packing into trees. An entry has the digest of all of
them as its name (kept_arrays.py). The rows of an epoch are made of it anew: they
depend on the seed, too. Data that stay in their files aren't kept here:
lazy_segments.py keeps their index beside them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import json
import logging
import os
import pathlib
import time
from typing import Any

import numpy as np

from prm_jax import errors
from prm_jax.records import kept_arrays
from prm_jax.rows import packing
from prm_jax.runtime import json_text
from prm_jax.runtime import user_cache

_logger = logging.getLogger(__name__)

# Raise it if the same solutions get other arrays than before: a test compares.
FORMAT = 1
# 0 turns the cache off; another number is how many MiB it may hold.
SWITCH = "PRM_JAX_ENCODED_CACHE"
MAX_MIB = 4096
# What a killed process left half written is removed when it is as old.
_ABANDONED_S = 24 * 3600
_NAME = "encoded data"
_FIELDS = tuple(f.name for f in dataclasses.fields(packing.Segment))

# All segments, the source of each, and the counts of what was left out.
Encoded = tuple[list[packing.Segment], np.ndarray, Counter[str]]


@dataclasses.dataclass(frozen=True)
class Cache:
  """Where encoded data are kept.

  Args:
    folder: The folder; only this user can write to it.
    max_bytes: The most bytes of all entries; the oldest make room.
  """

  folder: pathlib.Path
  max_bytes: int = MAX_MIB << 20


def opened(environment: Mapping[str, str] = os.environ) -> Cache | None:
  """Returns the user's cache; None if it is off.

  None, with a warning, if the folder can't be made or another user can write to
  it.

  Args:
    environment: The environment variables.

  Raises:
    InputError: PRM_JAX_ENCODED_CACHE isn't a whole number of MiB.
  """
  most = environment.get(SWITCH, "") or str(MAX_MIB)
  if not (most.isascii() and most.isdigit() and len(most) < 10):
    raise errors.InputError(
      f"{SWITCH}={most}: expected how many MiB the cache of encoded data may"
      f" hold, such as {MAX_MIB}, or 0 for none"
    )
  if not int(most):
    return None
  folder = folder_of(environment)
  try:
    user_cache.make(folder, base=folder.parent.parent)
  except OSError as e:
    _logger.warning(
      f"encoded data isn't kept: {e}; set XDG_CACHE_HOME to a folder that can be"
      f" written, or {SWITCH}=0"
    )
    return None
  return Cache(folder, int(most) << 20)


def folder_of(environment: Mapping[str, str] = os.environ) -> pathlib.Path:
  """Returns the folder of encoded data."""
  return user_cache.folder_of(environment) / "encoded"


def kept(
  cache: Cache,
  fields: Mapping[str, Any],
  compute: Callable[[], Encoded],
  *,
  fresh: bool = False,
) -> Encoded:
  """Returns encoded data, which an earlier run may have kept.

  Args:
    cache: The cache.
    fields: All that the data depend on, as plain values.
    compute: Encodes them.
    fresh: Whether they are encoded again all the same.
  """
  arrays = kept_arrays.kept(
    cache.folder,
    _NAME,
    kept_arrays.description(dict(format=FORMAT, **fields)),
    lambda: _arrays(*compute()),
    fresh=fresh,
    make_room=lambda size: _make_room(cache, size),
  )
  return _encoded(arrays)


def _arrays(
  segments: Sequence[packing.Segment], sources: np.ndarray, counts: Counter[str]
) -> kept_arrays.Arrays:
  """Returns encoded data as few arrays: segment after segment."""
  arrays = dict(
    lengths=np.asarray([len(x) for x in segments], np.int64),
    compared=np.asarray([x.pair_group is not None for x in segments], bool),
    sources=sources,
    counts=np.asarray(json.dumps(counts)),
  )
  for name in _FIELDS:
    parts = [getattr(x, name) for x in segments]
    parts = [x for x in parts if x is not None]
    arrays[f"all_{name}"] = np.concatenate(parts) if parts else np.zeros(0)
  return arrays


def _encoded(arrays: kept_arrays.Arrays) -> Encoded:
  """Returns the inverse of `_arrays`; segments are views."""
  compared = arrays["compared"]
  of: dict[str, list[np.ndarray]] = {}
  for name in _FIELDS:
    lengths = arrays["lengths"]
    if name == "pair_group":
      lengths = lengths[compared]
    # Without a segment one part is left.
    parts = np.split(arrays[f"all_{name}"], np.cumsum(lengths)[:-1])
    of[name] = parts[: len(lengths)]
  groups = iter(of.pop("pair_group"))
  segments = [
    packing.Segment(
      **{name: parts[i] for name, parts in of.items()},
      pair_group=next(groups) if is_compared else None,
    )
    for i, is_compared in enumerate(compared)
  ]
  counts = Counter(json_text.parse(str(arrays["counts"])))
  return segments, arrays["sources"], counts


def _make_room(cache: Cache, size: int) -> None:
  """Removes the entries that weren't used for longest, and half written ones.

  Raises:
    InputError: There is no room for so many bytes.
  """
  if size > cache.max_bytes:
    raise errors.InputError(
      f"its {size >> 20:,} MiB are more than {SWITCH}={cache.max_bytes >> 20}"
    )
  entries = []
  for entry in os.scandir(cache.folder):
    try:
      facts = entry.stat(follow_symlinks=False)
    except FileNotFoundError:  # another process removed it
      continue
    half = entry.name.endswith(".tmp")
    if half and time.time() - facts.st_mtime > _ABANDONED_S:
      pathlib.Path(entry.path).unlink(missing_ok=True)
    elif not half:
      entries.append((facts.st_mtime_ns, facts.st_size, entry.path))
  total = size + sum(x for _, x, _ in entries)
  for _, its_size, path in sorted(entries):
    if total <= cache.max_bytes:
      break
    pathlib.Path(path).unlink(missing_ok=True)
    total -= its_size
