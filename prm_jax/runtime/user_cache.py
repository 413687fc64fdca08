"""The user's cache folder, for what can be made again."""

from __future__ import annotations

from collections.abc import Mapping
import os
import pathlib
import stat


def folder_of(environment: Mapping[str, str] = os.environ) -> pathlib.Path:
  """Returns our folder in $XDG_CACHE_HOME, or else in ~/.cache."""
  base = pathlib.Path(environment.get("XDG_CACHE_HOME", ""))
  if not base.is_absolute():  # the standard says to ignore it
    base = pathlib.Path(os.path.expanduser("~")) / ".cache"
  return base / "prm_jax"


def make(folder: pathlib.Path, base: pathlib.Path) -> None:
  """Makes a folder below base that only this user can write to.

  Raises:
    OSError: It can't be made, or another user can change what is in it.
  """
  if not base.is_absolute():  # ~ of a user without a home
    raise FileNotFoundError(f"{base}: no home folder")
  base.mkdir(parents=True, exist_ok=True)
  steps = folder.relative_to(base).parts
  for k in range(len(steps) + 1):
    part = base.joinpath(*steps[:k])
    if k:
      part.mkdir(mode=0o700, exist_ok=True)
    # A user's own ~/.cache may be a link; what is ours is a folder.
    facts = part.lstat() if k else part.stat()
    open_to_others = facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if not k:  # in a folder like /tmp nobody can rename what is another's
      sticky = facts.st_mode & stat.S_ISVTX
      open_to_others = facts.st_mode & stat.S_IWOTH and not sticky
    if (
      not stat.S_ISDIR(facts.st_mode)
      or facts.st_uid != os.geteuid()
      or open_to_others
    ):
      raise PermissionError(f"{part}: another user can change what is in it")
  if not os.access(folder, os.W_OK):
    raise PermissionError(f"{folder}: not writable")
