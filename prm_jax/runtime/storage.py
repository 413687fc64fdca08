"""A run whose workdir is a folder of a bucket: gs://BUCKET/FOLDER.

The checkpoints are written there by orbax, each process its shards. An object
is written whole or not at all and can't be appended to, so the small files
(config, description, tokenizer, metrics) are a folder of this machine while the
run lasts: brought from the bucket at the start, and sent before every save.
So the bucket has all records up to its last save. Records after that save are
dropped when the run resumes, as they are on a disk.

No lock of a bucket ends with its holder. A run that begins writes down that it
is the owner; a run that finds another owner before a save, or at the end, stops.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import dataclasses
import hashlib
import importlib.util
import json
import os
import pathlib
import reprlib
import socket
import tempfile
from typing import Any
import uuid

from etils import epath

from prm_jax import errors
from prm_jax.runtime import distributed
from prm_jax.runtime import json_text
from prm_jax.runtime import preemption

SCHEME = "gs://"
# In a folder that is never listed: what was listed may be remembered.
OWNER_FOLDER, OWNER = "owner", "owner.json"
# The files of a new run that a resumed run needs.
_CONFIG, _DESCRIPTION = "config.json", "model.json"


def is_there(path: object) -> bool:
  """Returns whether a path is in a bucket."""
  return str(path).startswith(SCHEME)


def of_saves(
  workdir: pathlib.Path, bucket: Bucket | None
) -> pathlib.Path | epath.Path:
  """Returns the folder of a run's checkpoints: the bucket's, if it has one."""
  return workdir if bucket is None else bucket.there


def move(source: epath.Path | pathlib.Path, target: Any) -> None:
  """Gives a folder another name; in a bucket, object by object.

  A kill on the way leaves objects under both names.
  """
  if not is_there(source):
    source.rename(target)
    return
  there = epath.Path(source)
  with _refusals(there, "written to"):
    for path in list(_files(there)):
      inside = target / path.relative_to(there)
      inside.parent.mkdir(parents=True, exist_ok=True)
      path.copy(inside, overwrite=True)
    there.rmtree()


def _files(folder: epath.Path) -> Iterator[epath.Path]:
  """Yields what is below a folder; epath's own ways don't in a bucket."""
  for path in folder.iterdir():
    if path.is_dir():
      yield from _files(path)
    else:
      yield path


@dataclasses.dataclass(eq=False)
class Bucket:
  """A run's folder in a bucket, and the folder here of its small files."""

  there: epath.Path
  here: pathlib.Path

  def __post_init__(self):
    self._mark = uuid.uuid4().hex
    self._is_owner = False
    # What each file was when it was last sent.
    self._sent: dict[str, bytes] = {}

  def bring(self) -> None:
    """Copies what an earlier part of the run has left there.

    Raises:
      InputError: it can't be read, or there is something else.
    """
    with _refusals(self.there, "read"):
      paths = list(self.there.iterdir()) if self.there.exists() else []
      names = {p.name for p in paths} - {OWNER_FOLDER}
      if names and _CONFIG not in names and "checkpoints" not in names:
        raise errors.InputError(
          f"{self.there}: isn't empty and holds no run of ours; give another"
          " `workdir`"
        )
      for path in paths:
        if path.is_file():
          (self.here / path.name).write_bytes(path.read_bytes())

  def claim(self) -> None:
    """Makes this run the owner in place of any other."""
    record = dict(
      mark=self._mark, process=os.getpid(), host=socket.gethostname()
    )
    with _refusals(self.there, "written to"):
      folder = self.there / OWNER_FOLDER
      folder.mkdir(parents=True, exist_ok=True)
      (folder / OWNER).write_text(json.dumps(record))
    self._is_owner = True

  def clear(self) -> None:
    """Removes the run that is there, but its owner."""
    with _refusals(self.there, "written to"):
      # First, so that what a kill leaves is no checkpoint folder.
      (self.there / _DESCRIPTION).unlink(missing_ok=True)
      for path in list(self.there.iterdir()):
        if path.name == OWNER_FOLDER:
          continue
        if path.is_dir():
          path.rmtree()
        else:
          path.unlink(missing_ok=True)
    self._sent.clear()

  def send(self) -> None:
    """Copies what has changed here, before a save and at the end.

    Raises:
      BusyError: another run has become the owner.
      InputError: the bucket can't be read or written to.
    """
    with _refusals(self.there, "written to"):
      self._check_owner()
      # The digests of lines first: a line without one is damaged.
      found = self.here.rglob("*")
      for path in sorted(found, key=lambda x: (x.suffix != ".crc", x)):
        name = path.relative_to(self.here).as_posix()
        if not path.is_file() or path.name.startswith("."):
          continue
        content = path.read_bytes()
        digest = hashlib.sha256(content).digest()
        if self._sent.get(name) == digest:
          continue
        (self.there / name).parent.mkdir(parents=True, exist_ok=True)
        (self.there / name).write_bytes(content)
        self._sent[name] = digest

  def _check_owner(self) -> None:
    path = self.there / OWNER_FOLDER / OWNER
    try:
      record = json_text.parse(path.read_text())
    except json_text.JSONTextError:
      record = None
    if not isinstance(record, dict):
      raise errors.InputError(
        f"{path}: isn't what a run writes; remove it if no other run trains"
        " into that folder"
      )
    if record.get("mark") != self._mark:
      process, host = (
        reprlib.repr(record.get(name)) for name in ("process", "host")
      )
      raise errors.BusyError(
        f"{self.there}: process {process} on {host} has"
        " begun to train into it, and resumes from the last save; this one"
        " ends. Give another folder, or end that one first"
      )

  def send_last(self) -> None:
    """Sends what was written since the last save, if this run was begun."""
    if self._is_owner:
      self.send()


@contextlib.contextmanager
def _refusals(there: epath.Path, what: str) -> Iterator[None]:
  """Makes one line of what a bucket says no with."""
  try:
    yield
  except errors.InputError:
    raise
  except Exception as e:  # gcsfs raises its own, aiohttp's and google.auth's
    reason = " ".join(str(e).split())[:200] or type(e).__name__
    raise errors.InputError(
      f"{there}: can't be {what}: {reason}; look at the bucket's name and at your"
      " rights (gcloud auth application-default login)"
    ) from None


@contextlib.contextmanager
def opened(
  workdir: str | os.PathLike[str],
) -> Iterator[tuple[pathlib.Path, Bucket | None]]:
  """Yields the folder of a workdir's small files, and the bucket it is in.

  On this machine that is the workdir itself, and no bucket. All processes must
  ask; each has a folder of its own, and the first one's is sent. Errors name
  the workdir as it was given.

  Raises:
    InputError: it can't be read, or gcsfs isn't installed.
  """
  if not is_there(workdir):
    yield pathlib.Path(workdir), None
    return
  if importlib.util.find_spec("gcsfs") is None:
    raise errors.InputError(
      f"{workdir}: needs gcsfs: {errors.to_install('gcs')}"
    )
  there = epath.Path(workdir)
  with tempfile.TemporaryDirectory(prefix="prm_jax_") as folder:
    bucket = Bucket(there, pathlib.Path(folder) / there.name)
    try:
      bucket.here.mkdir()
      bucket.bring()
      with _sending(bucket):
        yield bucket.here, bucket
    except errors.InputError as e:
      message = str(e).replace(str(bucket.here), str(bucket.there))
      raise type(e)(message) from None


@contextlib.contextmanager
def _sending(bucket: Bucket) -> Iterator[None]:
  """Sends the rest at the end, but nothing of a run that was refused."""
  refused = (errors.InputError, errors.BusyError)
  try:
    yield
  except (errors.InputError, preemption.PreemptedError) as e:
    if type(e) not in refused and distributed.is_first():
      bucket.send_last()
    raise
  if distributed.is_first():
    bucket.send_last()
