"""`prm_jax.Demo`: everything at small sizes, on arithmetic problems."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
from typing import Any, TYPE_CHECKING

from prm_jax import errors
from prm_jax.runtime import files
from prm_jax.runtime import outputs
from prm_jax.runtime import verbs

if TYPE_CHECKING:
  import ml_collections

_logger = logging.getLogger(__name__)

_HERE = pathlib.Path(__file__).parent
_OWN = verbs.Config(_HERE / "default_config.py")


@dataclasses.dataclass(frozen=True)
class Demo(verbs.Verb):
  """Runs everything on small arithmetic problems, and compares reward models.

  It trains a policy and three reward models, and compares the reward models by
  best of N.

  Args:
    workdir: The folder for models, results and report (default: runs/demo, or
      runs/demo_quick with --quick).
    seed: A number that is added to the seed of every run.
    config: The sizes and the training runs, in place of the demo's own; not
      with --quick.
    quick: Use small sizes, to see in about a minute whether everything runs;
      the models are too small to compare.
    fresh: Delete the run that --workdir holds and start over.

  Example:
    prm-jax demo --quick
  """

  workdir: verbs.Output | None = None
  seed: verbs.Seed = 0
  config: verbs.AnyConfig = _OWN
  quick: bool = False
  fresh: bool = False

  compiles = True

  def __post_init__(self):
    super().__post_init__()
    if self.quick and self._config.file != _OWN.file:
      raise errors.InputError(
        "`quick=True` has its own config: leave out `config`"
      )

  @property
  def _config(self) -> verbs.Config:
    return verbs.made(verbs.Config, self.config)

  @staticmethod
  def filled(config: verbs.Config) -> ml_collections.ConfigDict:
    """Completes a config.

    Args:
      config: The config.

    Returns:
      All fields of the demo that it describes.

    Raises:
      InputError: It can't be read, or a field or a value doesn't fit.
    """
    from prm_jax.demo import demo_run_config

    return config.filled(demo_run_config.form())

  def __call__(self) -> dict[str, Any]:
    """Runs the demo, or finishes it.

    Returns:
      The content of results.json.

    Raises:
      InputError: The config can't be used, or the workdir holds another run.
    """
    from prm_jax.demo import demo_run
    from prm_jax.demo import demo_run_config
    from prm_jax.runtime import environment

    given, workdir = self._config, self._workdir
    if self.quick:
      given = dataclasses.replace(given, file=_HERE / "quick_config.py")
    config = self.filled(given)
    outputs.check(dict(workdir=workdir), [given.path], are_folders=True)
    demo = demo_run_config.from_config(config, self.seed)
    details = environment.describe(config)
    claim = details["config"] | dict(seed=self.seed)
    with environment.remove_if_refused(workdir):
      environment.check_workdir(workdir, claim, fresh=self.fresh)
      if self.fresh:
        demo_run.check(demo, self.seed)
        demo_run.clear(workdir)
        files.write_json(workdir / "config.json", claim)
      return demo_run.run(demo, workdir, self.seed, details)

  def run(self) -> None:
    """Runs the demo, or finishes it, and says how its models compare."""
    from prm_jax.demo import demo_run
    from prm_jax.evaluation import result_tables

    results = self()
    verbs.log_text(_logger, f"\n{result_tables.best_of_n_table(results)}\n")
    if self.quick:
      _logger.info(
        "`quick=True`: every stage ran; its models are too small to compare"
      )
      _logger.info("")
    report = self._workdir / demo_run.REPORT / "index.html"
    _logger.info("report: %s", report)
    _logger.info("all samples: prm-jax view %s", self._workdir)

  @property
  def _workdir(self) -> pathlib.Path:
    if self.workdir is not None:
      return pathlib.Path(self.workdir)
    return pathlib.Path("runs/demo_quick" if self.quick else "runs/demo")
