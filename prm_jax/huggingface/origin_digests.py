"""Digests of the small files that an import keeps for an export."""

from __future__ import annotations

import hashlib
import pathlib

from prm_jax import errors
from prm_jax.checkpoints import integrity
from prm_jax.runtime import files
from prm_jax.runtime import foreign_files

NAME = "sha256.json"


def write(folder: pathlib.Path) -> None:
  """Writes the digest of every file in a folder into a file there."""
  files.write_json(folder / NAME, integrity.sealed(dict(files=_of(folder))))


def check(folder: pathlib.Path) -> None:
  """Refuses files other than those that were kept.

  Raises:
    InputError: A file was changed, removed or added.
  """
  if not folder.is_dir():  # of a model that was never imported
    return
  path = folder / NAME
  saved = files.read_json(path) if path.exists() else {}
  record = integrity.unsealed(saved)
  names = [NAME]
  if record is not None:
    names = sorted(files.differences(record.get("files"), _of(folder)))
  if names:
    raise errors.InputError(
      f"{folder}: {', '.join(names)}: isn't what the import kept; put the"
      " original back, or import the model again"
    )


def _of(folder: pathlib.Path) -> dict[str, str]:
  names = sorted(x.name for x in folder.iterdir() if x.name != NAME)
  paths = [foreign_files.find(folder, name) for name in names]
  return {
    path.name: hashlib.sha256(files.read_bytes(path)).hexdigest()
    for path in paths
    if path is not None
  }
