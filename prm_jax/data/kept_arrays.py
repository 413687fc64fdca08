"""Computed arrays that are kept in a file, so that the next start reads them.

A file has the digest of its content and of all that the content depends on. One
that is damaged, or of another key, is made again. It is written beside its
place and renamed, so that no other process reads a half of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import hashlib
import json
import logging
import pathlib

import numpy as np

from prm_jax import errors
from prm_jax.runtime import files
from prm_jax.runtime import inputs

_logger = logging.getLogger(__name__)

Arrays = dict[str, np.ndarray]
_DIGEST = "sha256"


def path_of(folder: pathlib.Path, name: str, key: str) -> pathlib.Path:
  """Returns the file of a key in a folder.

  Args:
    folder: The folder.
    name: What its name begins with.
    key: A text that differs whenever the arrays would differ.
  """
  digest = hashlib.sha256(key.encode()).hexdigest()
  return folder / f"{name}-{digest[:32]}.npz"


def kept(
  folder: pathlib.Path,
  name: str,
  key: str,
  compute: Callable[[], Arrays],
  *,
  fresh: bool = False,
) -> Arrays:
  """Returns computed arrays, or those that an earlier call kept in the folder.

  If the folder can't be written to, nothing is kept and a line says so.

  Args:
    folder: The folder, which is made if need be.
    name: The name of what is computed.
    key: A text that differs whenever the arrays would differ.
    compute: Returns the arrays.
    fresh: Whether they are computed again if they were kept.
  """
  path = path_of(folder, name, key)
  arrays = None if fresh else read(path, key)
  if arrays is None:
    arrays = compute()
    write(path, key, arrays, name)
  return arrays


def read(path: pathlib.Path, key: str) -> Arrays | None:
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


def write(path: pathlib.Path, key: str, arrays: Arrays, name: str) -> None:
  """Writes a file whole; a line says so if it can't be written.

  Args:
    path: The file.
    key: See kept.
    arrays: The arrays.
    name: The name of what they are.
  """
  checked = {_DIGEST: np.asarray(_digest(arrays, key))} | arrays
  try:
    with files.replacing(path, "wb") as f:
      np.savez(f, allow_pickle=False, **checked)
  except (errors.InputError, OSError) as e:
    _logger.warning(f"{name} isn't kept: {e}")


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
