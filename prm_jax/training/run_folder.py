"""A training in a folder of its own: claimed, described, begun or resumed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import pathlib
from typing import Any, ClassVar, Protocol, runtime_checkable

import ml_collections

from prm_jax.runtime import distributed
from prm_jax.runtime import environment
from prm_jax.runtime import files
from prm_jax.runtime import outputs
from prm_jax.runtime import storage


@runtime_checkable
class Run(Protocol):
  """What is trained: a supervised run, or one of reinforcement learning."""

  may_change: ClassVar[Any]
  may_set: ClassVar[Any]

  @property
  def reads(self) -> Sequence[files.PathLike | None]:
    """The files and folders that it reads."""

  def train(
    self,
    workdir: pathlib.Path,
    *,
    fresh: bool,
    on_start: Callable[[], None],
    bucket: storage.Bucket | None,
  ) -> Any:
    """Trains in the folder; on_start is called before anything is written."""


def train(
  folder: files.PathLike,
  config: ml_collections.ConfigDict,
  run: Run,
  *,
  path: files.PathLike | None,
  on_begin: Callable[[pathlib.Path], None],
  resume: bool = True,
  fresh: bool = False,
) -> None:
  """Trains in a folder, if that is free for it or has its beginning.

  Args:
    folder: The folder of the run, or gs://BUCKET/FOLDER.
    config: The config, complete.
    run: The run that it describes.
    path: The file of the config, if there is one.
    on_begin: Is called with the folder when nothing can be refused any more.
    resume: Whether a run that the folder holds is resumed, not refused.
    fresh: Whether it is replaced.

  Raises:
    InputError: The folder holds another run, or lies in what is read.
  """
  distributed.together(
    lambda: outputs.check(
      dict(workdir=folder), [path, *run.reads], are_folders=True
    )
  )
  details = environment.describe(config)
  # The revision asks git, which not every host may have.
  versions = {k: v for k, v in details["versions"].items() if k != "revision"}
  distributed.check_same(dict(details["config"], versions=versions))

  def claim():
    environment.check_resume(
      storage.of_saves(workdir, bucket), resume=resume, fresh=fresh
    )
    environment.check_workdir(
      workdir,
      details["config"],
      fresh=fresh,
      may_change=run.may_change,
      may_set=run.may_set,
    )

  def begin():
    files.write_json(workdir / "config.json", details["config"])
    files.write_json(workdir / "environment.json", details)
    on_begin(workdir)

  with (
    storage.opened(folder) as (workdir, bucket),
    environment.remove_if_refused(workdir),
  ):
    distributed.on_first(claim)
    run.train(workdir, fresh=fresh, on_start=begin, bucket=bucket)
