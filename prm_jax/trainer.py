"""`prm_jax.Train`: trains a policy or a reward model.

It stands above `training/` and `rl/`: it reads a config, and its program says
which of the two trains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import logging
import pathlib
import shutil
from typing import Any, TYPE_CHECKING

from prm_jax import errors
from prm_jax import schema
from prm_jax.runtime import files
from prm_jax.runtime import verbs

if TYPE_CHECKING:
  import ml_collections

  from prm_jax.policy import sampler as sampler_lib
  from prm_jax.rl import rl_run_config
  from prm_jax.scoring import scorer as scorer_lib
  from prm_jax.training import train_run_config

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Train(verbs.Verb):
  """Trains a policy (sft or rl) or a reward model (prm, orm or implicit).

  Args:
    config: The training run.
    workdir: The folder for checkpoints and metrics; gs://BUCKET/FOLDER for a
      bucket (not for rl).
    resume: Resume from the last checkpoint in --workdir; without it, refuse a
      folder that holds one.
    fresh: Delete the run that --workdir holds and start over; the data are
      encoded again, too.

  Example:
    prm-jax train --config=experiments/prm800k_small.py --workdir=runs/prm
  """

  config: verbs.AnyConfig
  workdir: verbs.Workdir
  resume: bool = True
  fresh: bool = False

  @property
  def _config(self) -> verbs.Config:
    return verbs.made(verbs.Config, self.config)

  @staticmethod
  def filled(
    config: verbs.Config, read: ml_collections.ConfigDict | None = None
  ) -> ml_collections.ConfigDict:
    """Completes a config.

    Args:
      config: The config.
      read: What config.read() returned; None reads it now.

    Returns:
      All fields of the run that it describes.

    Raises:
      InputError: It can't be read, or a field or a value doesn't fit.
    """
    from prm_jax.training import train_run_config

    def of(given: Any) -> Any:
      if not train_run_config.names_rl(given):
        return train_run_config
      # No other training waits for its sampler, rewards and servers: they take
      # a tenth of the time of all imports.
      from prm_jax.rl import rl_run_config

      return rl_run_config

    return config.filled(
      lambda given: of(given).form(given),
      lambda given, path: of(given).prepare(given, path),
      read,
    )

  def __call__(
    self,
    solutions: Sequence[schema.Solution],
    evaluation: Sequence[schema.Solution] = (),
  ) -> scorer_lib.Scorer | sampler_lib.Sampler:
    """Trains on solutions, which take the place of the config's `data`.

    The config need not have more than program, model, packing, optimizer and
    fit.

    Args:
      solutions: The solutions to train on.
      evaluation: The solutions to evaluate on; none if it is empty.

    Returns:
      The trained model: a Scorer, or a Sampler if the program is sft.

    Raises:
      InputError: A field of the config is unknown or out of range, the program
        is rl, or the workdir holds a run of another config or of other data.
    """
    from prm_jax.policy import sampler as sampler_lib
    from prm_jax.runtime import forks
    from prm_jax.scoring import saved
    from prm_jax.training import train_run_config

    forks.check()
    workdir = files.local_path(str(self.workdir))
    read = train_run_config.of_records(self._config.read())
    if train_run_config.names_rl(read):
      raise errors.InputError(
        f"{self._config.name}: program='rl' samples its own solutions; run"
        " `prm-jax train`"
      )
    config = self.filled(self._config, read)
    records = train_run_config.records(solutions, evaluation)
    run = train_run_config.run_of(config, self._config.name, records)
    self._train(config, run)
    loaded = sampler_lib if run.config.kind.writes else saved
    return loaded.load(workdir)

  def run(self) -> None:
    """Trains on what the config names; keeps compiled programs on disk.

    Raises:
      InputError: The config or its data can't be used, or the workdir holds
        another run.
    """
    from prm_jax.runtime import compilation_cache
    from prm_jax.runtime import distributed
    from prm_jax.training import train_run_config

    with distributed.joined():
      if distributed.number() == 1:
        # Of several processes jax has the first write alone; while it loads a
        # program the others compile it, and on GPUs wait for its part of that.
        compilation_cache.enable()
      config = distributed.together(lambda: self.filled(self._config))
      if train_run_config.names_rl(config):
        self._reinforce(config)
        return
      run = distributed.together(
        lambda: train_run_config.run_of(config, self._config.name)
      )
      self._train(config, run)
      _logger.info("checkpoint: %s", self.workdir)

  def _reinforce(self, config: ml_collections.ConfigDict) -> None:
    """Trains a policy on what it samples, and writes the report of it."""
    from prm_jax.rl import rl_run_config
    from prm_jax.runtime import distributed
    from prm_jax.view import site
    from prm_jax.view import view_inputs

    if distributed.number() > 1:
      raise errors.InputError(
        f"{self._config.name}: reinforcement learning runs in one process;"
        " start one"
      )
    workdir = files.local_path(str(self.workdir))
    report = workdir / "report"
    # Until the run ends, a report of an earlier end would be of other records.
    self._train(
      config,
      rl_run_config.from_config(config),
      lambda: shutil.rmtree(report, ignore_errors=True),
    )
    site.write(report, site.pages(view_inputs.read([workdir])))
    _logger.info("checkpoint: %s", workdir)
    _logger.info("report: %s", report / "index.html")

  def _train(
    self,
    config: ml_collections.ConfigDict,
    run: train_run_config.Run | rl_run_config.Run,
    before: Callable[[], None] = lambda: None,
  ) -> None:
    """Runs it in the workdir; `before` is called when nothing can be refused."""
    from prm_jax.huggingface import import_model
    from prm_jax.training import run_folder

    def begin(workdir: pathlib.Path) -> None:
      before()
      if run.start is not None:
        import_model.pass_origin_on(run.start, workdir)

    run_folder.train(
      self.workdir,
      config,
      run,
      path=self._config.path,
      on_begin=begin,
      resume=self.resume,
      fresh=self.fresh,
    )
