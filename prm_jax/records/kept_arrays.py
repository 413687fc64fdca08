"""Computed arrays that are kept in a file, so that the next start reads them.

A file has the digest of its content and of all that the content depends on. One
that is damaged, or of another key, is made again. It is written beside its
place and renamed, so that no other process reads a half of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import contextlib
import hashlib
import json
import logging
import os
import pathlib

import numpy as np

from prm_jax import errors
from prm_jax.runtime import files
from prm_jax.runtime import inputs

_logger = logging.getLogger(__name__)

Arrays = dict[str, np.ndarray]
_DIGEST = "sha256"


def kept(
  folder: pathlib.Path,
  name: str,
  key: str,
  compute: Callable[[], Arrays],
  *,
  fresh: bool = False,
  make_room: Callable[[int], None] | None = None,
) -> Arrays:
  """Returns computed arrays, or those that an earlier call kept in the folder.

  If the folder can't be written to, nothing is kept and a line says so.

  Args:
    folder: The folder, which is made if need be.
    name: The name of what is computed.
    key: A text that differs whenever the arrays would differ.
    compute: Returns the arrays.
    fresh: Whether they are computed again if they were kept.
    make_room: Is called with the number of bytes before they are written. It
      raises InputError or OSError if they can't be kept. With it, a file that
      is used becomes the newest one.
  """
  path = _path_of(folder, name, key)
  arrays = None if fresh else _read(path, key)
  if arrays is not None:
    if make_room is not None:
      with contextlib.suppress(OSError):
        os.utime(path)
    _logger.info(f"{name} was made before: read from {path}")
    return arrays
  arrays = compute()
  try:
    if make_room is not None:
      make_room(sum(x.nbytes for x in arrays.values()))
    _write(path, key, arrays)
  except (errors.InputError, OSError) as e:
    # What was computed is worth more than that it is kept.
    _logger.warning(f"{name} isn't kept: {e}")
  return arrays


def _path_of(folder: pathlib.Path, name: str, key: str) -> pathlib.Path:
  """Returns the file of a key in a folder.

  Args:
    folder: The folder.
    name: What its name begins with.
    key: A text that differs whenever the arrays would differ.
  """
  digest = hashlib.sha256(key.encode()).hexdigest()
  return folder / f"{name.replace(' ', '_')}-{digest[:32]}.npz"


def _read(path: pathlib.Path, key: str) -> Arrays | None:
  """Returns the arrays in a file; None if there is none, or it is damaged."""
  try:
    inputs.check_regular(path)
    with np.load(path) as file:
      arrays = dict(file)
    if str(arrays.pop(_DIGEST)) == _digest(arrays, key):
      return arrays
  except FileNotFoundError:
    return None
  except Exception:  # numpy and zipfile raise many errors for damaged files
    pass
  _logger.warning(f"{path}: damaged; it is made again")
  return None


def _write(path: pathlib.Path, key: str, arrays: Arrays) -> None:
  """Writes a file whole."""
  checked = {_DIGEST: np.asarray(_digest(arrays, key))} | arrays
  with files.replacing(path, "wb") as f:
    np.savez(f, allow_pickle=False, **checked)


def _digest(arrays: Arrays, key: str) -> str:
  """Returns the digest of arrays with their names, types and shapes, and key."""
  whole = hashlib.sha256(key.encode())
  for name, x in sorted(arrays.items()):
    whole.update(f"\n{name} {x.dtype.str} {x.shape}\n".encode())
    whole.update(np.ascontiguousarray(x).tobytes())
  return whole.hexdigest()


def description(fields: Mapping[str, object]) -> str:
  """Returns one text for the fields that determine what is computed."""
  return json.dumps(fields, sort_keys=True, default=str)
