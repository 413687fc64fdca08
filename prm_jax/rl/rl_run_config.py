"""A run of reinforcement learning, as the fields of a config describe it."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import logging
import pathlib
from typing import Any, ClassVar

import ml_collections

from prm_jax.models import model_config
from prm_jax.records import sources
from prm_jax.rl import credit
from prm_jax.rl import hacking_monitor
from prm_jax.rl import policy_losses
from prm_jax.rl import rewards
from prm_jax.rl import rl_config
from prm_jax.rl import rl_run
from prm_jax.rl import roles
from prm_jax.rl import rollout
from prm_jax.rl import tasks
from prm_jax.runtime import config_files
from prm_jax.runtime import files
from prm_jax.runtime import storage
from prm_jax.runtime import verbs
from prm_jax.scoring import score_sources
from prm_jax.training import batches
from prm_jax.training import loop
from prm_jax.training import optimizer as optimizer_lib
from prm_jax.training import program as program_lib

_logger = logging.getLogger(__name__)

GROUPS = dict(
  problems=tasks.ProblemsConfig,
  rollout=rollout.RolloutConfig,
  rewards=rewards.RewardConfig,
  credit=credit.CreditConfig,
  loss=policy_losses.LossConfig,
  optimizer=optimizer_lib.OptimizerConfig,
  critic_optimizer=optimizer_lib.OptimizerConfig,
  implicit_optimizer=optimizer_lib.OptimizerConfig,
  packing=batches.PackingConfig,
  fit=loop.FitConfig,
  monitor=hacking_monitor.MonitorConfig,
)
_LIKE_THE_POLICYS = ("critic_optimizer", "implicit_optimizer")


@dataclasses.dataclass(frozen=True)
class Run:
  """A run of reinforcement learning.

  Args:
    config: What is trained, and how.
    problems: Its problems.
  """

  config: rl_config.RLConfig
  problems: tasks.ProblemsConfig

  may_change: ClassVar = loop.MAY_CHANGE
  may_set: ClassVar = ()

  @property
  def start(self) -> pathlib.Path:
    """The folder of the policy that it starts from."""
    return files.local_path(self.config.init_from)

  @property
  def reads(self) -> list[files.PathLike | None]:
    """The files and folders that it reads."""
    c, problems = self.config, self.problems
    named = [c.prm, c.orm, c.held_out_prm, c.outcome]
    if score_sources.is_function(problems.grader):
      named.append(problems.grader)
    return [
      *(c.init_from, c.reference, c.critic),
      *map(score_sources.path_of, named),
      *sources.paths_of([problems.train, problems.evaluation]),
    ]

  def train(
    self,
    workdir: pathlib.Path,
    *,
    fresh: bool = False,
    on_start: Callable[[], None] = lambda: None,
    bucket: storage.Bucket | None = None,
  ) -> program_lib.TrainState:
    """Reads the problems and trains the policy on them; see rl.rl_run.train."""
    assert bucket is None, "its records would stay here"
    problems, counts = tasks.read_problems(self.problems.train)
    held_out, more = tasks.read_problems(self.problems.evaluation)
    held_out = held_out[: self.problems.num_evaluation]
    for what, found, of_found in (
      ("problems", problems, counts),
      ("held out", held_out, more),
    ):
      counted = "".join(f", {n:,} {kind}" for kind, n in of_found.items())
      _logger.info(f"{workdir.name}: {len(found):,} {what}{counted}")
    with tasks.open_verifier(self.problems.grader) as verifier:
      rl_run.check(self.config, problems, held_out, verifier)
      return rl_run.train(
        self.config,
        roles.read_roles(self.config.roles),
        workdir,
        problems=problems,
        held_out=held_out,
        verifier=verifier,
        fresh=fresh,
        on_start=on_start,
      )


def form(given: ml_collections.ConfigDict) -> config_files.Form:
  """Returns the form of a config of reinforcement learning."""
  del given  # it depends on nothing
  # Any field of the policy's model may be given, and none must.
  model = config_files.form(model_config.ModelConfig, without=["vocab_size"])
  groups = {name: config_files.form(kind) for name, kind in GROUPS.items()}
  groups["model"] = dataclasses.replace(
    model, required=frozenset(), defaults={}
  )
  whole = config_files.form(rl_config.RLConfig, nested=groups)
  return dataclasses.replace(
    whole, required=whole.required - {*_LIKE_THE_POLICYS}
  )


def prepare(config: Any, path: files.PathLike) -> None:
  """Sets optimizers that the config leaves out to the policy's.

  A config without a monitor has the default one.
  """
  del path
  if "monitor" not in config:
    config.monitor = dataclasses.asdict(hacking_monitor.MonitorConfig())
  for name in _LIKE_THE_POLICYS:
    if name not in config:
      config[name] = config.optimizer.copy_and_resolve_references()
  if "model" not in config:
    config.model = ml_collections.ConfigDict()


def filled(config: verbs.Config) -> ml_collections.ConfigDict:
  """Returns a config of reinforcement learning, complete and overridden."""
  return config.filled(form, prepare)


def from_config(c: ml_collections.ConfigDict) -> Run:
  """Returns the run that a config's fields describe.

  Args:
    c: The config, complete.
  """
  groups: dict[str, Any] = {
    name: kind(**config_files.plain(c[name])) for name, kind in GROUPS.items()
  }
  problems = groups.pop("problems")
  rest = {
    f.name: c[f.name]
    for f in dataclasses.fields(rl_config.RLConfig)
    if f.name not in {*groups, "model", "mesh"}
  }
  config = rl_config.RLConfig(
    **groups, **rest, model=config_files.plain(c.model), mesh=tuple(c.mesh)
  )
  return Run(config, problems)
