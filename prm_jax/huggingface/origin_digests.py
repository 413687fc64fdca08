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

  Folders of a version without digests aren't checked.

  Raises:
    InputError: A file was changed, removed or added.
  """
  path = folder / NAME
  if not path.exists():
    return
  record = integrity.unsealed(files.read_json(path))
  saved = {} if record is None else record.get("files")
  names = (
    [NAME] if record is None else sorted(files.differences(saved, _of(folder)))
  )
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
