"""The files of a split of a data set of Hugging Face `datasets`, in a folder.

A folder is one of these, with the splits by which a path goes on (FOLDER/train):

  what save_to_disk wrote   dataset_dict.json with a folder for each split, or
                            state.json, which names the Arrow files of one
  one of the Hub            Parquet files, here or in data/: train-00000-of-00002
                            and so on, or a folder of them for each split
"""

from __future__ import annotations

from collections.abc import Mapping
import pathlib
import re

from prm_jax import errors
from prm_jax.runtime import files

_DICT, _STATE = "dataset_dict.json", "state.json"
_SHARD = re.compile(r"(.+?)-(\d{5})-of-(\d{5})(-[0-9a-f]+)?")


def files_of(path: files.PathLike) -> list[pathlib.Path] | None:
  """Returns the files of a split in their order; None if a path is of no split.

  Args:
    path: A folder that holds one split, or FOLDER/SPLIT.

  Raises:
    InputError: The folder holds several splits, or a file of one is missing.
  """
  path = pathlib.Path(path)
  try:
    if str(path) == files.STDIN or path.is_file():
      return None
  except (OSError, ValueError):
    return None  # Whoever opens it says why it can't.
  if not path.is_dir():
    # A split's files are beside each other, and its name is theirs.
    found = _parquet(path.parent) if path.parent.is_dir() else {}
    return _whole(found[path.name], path) if path.name in found else None
  if (path / _STATE).is_file():
    return _saved(path)
  splits = _splits(path)
  if len(splits) > 1:
    raise errors.InputError(
      f"{path}: has the splits {', '.join(splits)}; give one, as"
      f" {path / splits[0]}"
    )
  if not splits:
    return None
  found = _parquet(path)
  if splits[0] in found:
    return _whole(found[splits[0]], path)
  return files_of(path / splits[0])


def _splits(folder: pathlib.Path) -> list[str]:
  """Returns the names of a folder's splits; "" is one without a name."""
  if (folder / _DICT).is_file():
    names = files.read_json(folder / _DICT).get("splits")
    if not isinstance(names, list) or not all(map(_is_plain, names)):
      raise errors.InputError(
        f'{folder / _DICT}: damaged: expected "splits", a list of names; save'
        " the data set again"
      )
    return names
  found = _parquet(folder)
  if found:
    return sorted(found)
  return sorted(x.parent.name for x in folder.glob("*/0000.parquet"))


def _parquet(folder: pathlib.Path) -> Mapping[str, list[pathlib.Path]]:
  """Returns the Parquet files of each split of a folder, by its name."""
  paths = sorted(folder.glob("*.parquet"))
  paths = paths or sorted((folder / "data").glob("*.parquet"))
  found: dict[str, list[pathlib.Path]] = {}
  for path in paths:
    shard = _SHARD.fullmatch(path.stem)
    name = shard[1] if shard else path.stem
    found.setdefault("" if name.isdigit() else name, []).append(path)
  return found


def _whole(
  paths: list[pathlib.Path], where: pathlib.Path
) -> list[pathlib.Path]:
  """Returns a split's files; refuses it if one of them is missing."""
  for path in paths:
    shard = _SHARD.fullmatch(path.stem)
    if shard and int(shard[3]) != len(paths):
      raise errors.InputError(
        f"{where}: {len(paths)} of {int(shard[3])} files are there, as"
        f" {path.name} says; fetch the others"
      )
  return paths


def _saved(folder: pathlib.Path) -> list[pathlib.Path]:
  """Returns the Arrow files that state.json names."""
  where = folder / _STATE
  state = files.read_json(where)
  if state.get("_indices_data_files"):
    raise errors.InputError(
      f"{where}: its rows are chosen by an index beside them, which only old"
      " versions of `datasets` write; save the data set again with a new one"
    )
  try:
    names = [entry["filename"] for entry in state["_data_files"]]
  except (KeyError, TypeError):
    names = [None]
  if not all(map(_is_plain, names)):
    raise errors.InputError(
      f"{where}: damaged: expected the names of files in _data_files; save the"
      " data set again"
    )
  return [folder / name for name in names]


def _is_plain(name: object) -> bool:
  """Returns whether a name is one of a file in its folder."""
  return (
    isinstance(name, str)
    and name not in ("", ".", "..")
    and "\0" not in name
    and len(name.encode("utf-8", "replace")) < 256
    and pathlib.PurePath(name).name == name
  )
