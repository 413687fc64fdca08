"""Where a command may write: never over or into what it reads, or a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
import contextlib
import os
import pathlib

from prm_jax import errors
from prm_jax.runtime import files

# As a path: standard output, which is no file, as a user and we write it.
STDOUT = ("-", files.STDOUT)
# The most bytes in a name, on all file systems that we know.
_NAME_BYTES = 255
# A resolved path; or device and inode, which hard links share.
Key = str | tuple[int, int]


def check(
  outputs: Mapping[str, files.PathLike | None],
  inputs: Iterable[files.PathLike | None] = (),
  *,
  are_folders: bool = False,
) -> None:
  """Refuses outputs that can't be written, or are or lie in an input.

  Every command with an output calls this before any work. Links are followed,
  and a hard link to a file is that file. None, standard output and paths in a
  bucket are passed over.

  Args:
    outputs: What is written, by the name of its argument.
    inputs: Files and folders that are read.
    are_folders: Whether the outputs are folders, not files.

  Raises:
    InputError: An output is an input or another output, lies in an input or in
      a checkpoint folder, or can't be written.
  """
  inputs = [*inputs]
  for path in (*outputs.values(), *inputs):
    if path is not None and "\0" in os.fspath(path):
      raise errors.InputError(f"{os.fspath(path)!r}: has a NUL in its name")
  read = {
    key: path
    for path in inputs
    if path is not None and _is_here(path)
    for key in _keys(path)
  }
  written: dict[Key, str] = {}
  for name, path in outputs.items():
    if path is None or not _is_here(path):
      continue
    _check_writable(path, is_folder=are_folders)
    faults = [*_nearness(path, read)]
    if are_folders and not faults:
      _check_outside(path, name, read.values())
    for key in _keys(path):
      other = written.setdefault(key, name)
      if other != name:
        faults.append(f"is written as `{other}` already")
    for fault in faults:
      raise errors.InputError(f"{path}: {fault}; give another `{name}`")


def _nearness(
  path: files.PathLike, read: Mapping[Key, files.PathLike]
) -> Iterator[str]:
  """Yields whether an output is or lies in one of those read, or in a model."""
  real = pathlib.Path(os.path.realpath(path))
  for place in (real, *real.parents):
    given = next((read[key] for key in _keys(place) if key in read), None)
    if given is not None and place == real:
      known_as = "" if str(given) == str(path) else f", as {given}"
      yield f"is read by this command{known_as}"
    if given is not None:
      yield f"lies in {given}, which this command reads"
    if place != real and _is_checkpoint(place):
      yield f"lies in {place}, a checkpoint folder"


def _check_outside(
  folder: files.PathLike, name: str, read: Iterable[files.PathLike]
) -> None:
  """Refuses a folder to write that holds what the command reads."""
  real = pathlib.Path(os.path.realpath(folder))
  for path in read:
    if real in pathlib.Path(os.path.realpath(path)).parents:
      raise errors.InputError(
        f"{path}: lies in {folder}, which this command writes; move it, or give"
        f" another `{name}`"
      )


def _is_here(path: files.PathLike) -> bool:
  text = os.fspath(path)
  return text not in ("", *STDOUT) and not text.startswith("gs:/")


def _keys(path: files.PathLike) -> list[Key]:
  """Returns what all names of a file or folder have in common."""
  keys: list[Key] = [os.path.realpath(path)]
  with contextlib.suppress(OSError):
    found = os.stat(path)
    keys.append((found.st_dev, found.st_ino))
  return keys


def _is_checkpoint(folder: pathlib.Path) -> bool:
  # As checkpoints.manager says.
  names = (folder / "model.json", folder / "checkpoints")
  return os.path.isfile(names[0]) and os.path.isdir(names[1])


def _check_writable(path: files.PathLike, *, is_folder: bool) -> None:
  """Refuses an output that can't be written now, not after hours of work."""
  reason = next(_obstacles(pathlib.Path(path), is_folder), None)
  if reason is not None:
    raise errors.InputError(f"{path}: can't be written: {reason}; give another")


def _obstacles(target: pathlib.Path, is_folder: bool) -> Iterator[str]:
  for part in target.parts:
    if len(os.fsencode(part)) > _NAME_BYTES:
      yield f"a name has more than {_NAME_BYTES} bytes"
  # A link stays a link, to a new file.
  target = pathlib.Path(os.path.realpath(target))
  if target.is_dir() and not is_folder:
    yield "is a folder"
  folder = target if is_folder and target.is_dir() else target.parent
  while not folder.exists():
    folder = folder.parent
  if not folder.is_dir() or not os.access(folder, os.W_OK):
    yield f"{folder} takes no files"
