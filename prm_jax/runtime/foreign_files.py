"""The files of a folder that may come from anyone, such as a downloaded model.

A link in such a folder could lead anywhere on this machine, and what is read
there would end in a checkpoint or an export. So every file of the folder goes
through `find`: it must be a regular file inside the folder, of a limited size.
"""

from __future__ import annotations

import pathlib
import stat
from typing import Any

from prm_jax import errors
from prm_jax.runtime import files
from prm_jax.runtime import limits

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt")
_WEIGHTS = ".safetensors"


def find(folder: files.PathLike, name: str) -> pathlib.Path | None:
  """Returns the path of a folder's file; None if there is none of that name.

  A link must stay in the folder. In the cache of the Hugging Face Hub, where a
  snapshot's files are links to the blobs beside it, it may lead to these.

  Args:
    folder: The folder.
    name: The name of a file directly in it.

  Raises:
    InputError: It isn't a regular file of the folder, or is too large.
  """
  folder = pathlib.Path(folder)
  path = folder / name
  if pathlib.Path(name).name != name:
    raise errors.InputError(f"{path}: names a file outside of its folder")
  try:
    path.lstat()
  except (FileNotFoundError, NotADirectoryError):
    return None
  except (OSError, ValueError) as e:
    raise _unreadable(path, e) from None
  try:
    target = path.resolve(strict=True)
    status = target.stat()
    inside = any(target.is_relative_to(root) for root in _roots(folder))
  except FileNotFoundError:
    raise errors.InputError(
      f"{path}: a link to a file that isn't there; fetch it again"
    ) from None
  except (OSError, RuntimeError) as e:
    raise _unreadable(path, e) from None
  if not inside:
    raise errors.InputError(
      f"{path}: a link out of its folder, to {target}, which isn't followed;"
      " put the file itself there"
    )
  if not stat.S_ISREG(status.st_mode):
    raise errors.InputError(f"{path}: not a regular file; fetch it again")
  most = _limit(name)
  if most is not None and status.st_size > most:
    raise errors.InputError(
      f"{path}: {status.st_size:,} bytes; expected {most:,} at most; fetch it"
      " again"
    )
  return path


def read_json(folder: files.PathLike, name: str) -> dict[str, Any]:
  """Returns the object in a folder's file; an empty one if there is no file.

  Raises:
    InputError: See `find`; or the file is damaged.
  """
  path = find(folder, name)
  return {} if path is None else files.read_json(path)


def _limit(name: str) -> int | None:
  """Returns the most bytes that a file may have; None if there is no limit.

  Weights aren't limited: only their headers are read at once.
  """
  if name.endswith(_WEIGHTS):
    return None
  return limits.FILE_BYTES if name in _TOKENIZERS else limits.JSON_BYTES


def _roots(folder: pathlib.Path) -> list[pathlib.Path]:
  """Returns the folders in which a file may be.

  The Hub's cache has MODEL/snapshots/REVISION/FILE, which links to a file in
  MODEL/blobs.
  """
  folder = folder.resolve()
  roots = [folder]
  model = folder.parent.parent
  if folder.parent.name == "snapshots" and model.name.startswith("models--"):
    roots.append(model / "blobs")
  return roots


def _unreadable(path: pathlib.Path, error: Exception) -> errors.InputError:
  reason = getattr(error, "strerror", None) or str(error)
  return errors.InputError(f"{path}: can't be read: {reason}; fetch it again")
