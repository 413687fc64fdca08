"""`prm-jax train` with a config of reinforcement learning."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import pathlib
from typing import Any

import ml_collections
import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.data import sources
from prm_jax.huggingface import import_model
from prm_jax.inference import score_sources
from prm_jax.models import config as model_config
from prm_jax.reports import html
from prm_jax.reports import rl_records
from prm_jax.reports import rl_run
from prm_jax.rl import config as rl_config
from prm_jax.rl import credit
from prm_jax.rl import hacking_monitor
from prm_jax.rl import losses
from prm_jax.rl import problems as problems_lib
from prm_jax.rl import rewards
from prm_jax.rl import rollout
from prm_jax.rl import run
from prm_jax.runtime import config_files
from prm_jax.runtime import environment
from prm_jax.runtime import files
from prm_jax.runtime import outputs
from prm_jax.testbed import arithmetic
from prm_jax.training import batches
from prm_jax.training import loop
from prm_jax.training import optimizer as optimizer_lib
from prm_jax.training import program as program_lib

# The testbed, as a source of problems and as their grader.
ARITHMETIC = "arithmetic"
_RENAMED_SOURCE = "dial"


GROUPS = dict(
  problems=problems_lib.ProblemsConfig,
  rollout=rollout.RolloutConfig,
  rewards=rewards.RewardConfig,
  credit=credit.CreditConfig,
  loss=losses.LossConfig,
  optimizer=optimizer_lib.OptimizerConfig,
  critic_optimizer=optimizer_lib.OptimizerConfig,
  implicit_optimizer=optimizer_lib.OptimizerConfig,
  packing=batches.PackingConfig,
  fit=loop.FitConfig,
  monitor=hacking_monitor.MonitorConfig,
)
# The fields that name checkpoint folders, and those that may name another
# thing.
_FOLDERS = ("init_from", "reference", "critic")
_REWARDS = ("prm", "orm", "held_out_prm", "outcome")
_LIKE_THE_POLICYS = ("critic_optimizer", "implicit_optimizer")


def form() -> config_files.Form:
  """Returns the form of a config of reinforcement learning."""
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
  """Sets optimizers that the config leaves out to the policy's."""
  del path
  for name in _LIKE_THE_POLICYS:
    if name not in config:
      config[name] = config.optimizer.copy_and_resolve_references()
  if "model" not in config:
    config.model = ml_collections.ConfigDict()


def from_config(
  c: ml_collections.ConfigDict,
) -> tuple[rl_config.RLConfig, problems_lib.ProblemsConfig]:
  """Returns the run that a config's fields describe, and its problems."""

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
  return config, problems


def read_problems(source: str) -> tuple[list[schema.Solution], dict[str, int]]:
  """Returns the problems of a source, and counts.

  Args:
    source: arithmetic:SPLIT:COUNT makes problems of the testbed; other sources
      are those of problems.read_problems.

  Raises:
    InputError: The source can't be read, or holds no problem.
  """
  kind, _, rest = source.partition(":")
  if kind == _RENAMED_SOURCE:
    new = f"{ARITHMETIC}:{rest}"
    raise errors.InputError(f"{source}: is {new} now; write {new}")
  if kind != ARITHMETIC:
    return problems_lib.read_problems(source)
  split, _, count = rest.partition(":")
  if not count.isdecimal():
    raise errors.InputError(
      f"{source}: expected {ARITHMETIC}:SPLIT:COUNT, such as"
      f" {ARITHMETIC}:train:2000"
    )
  random = np.random.default_rng(0)
  drawn = arithmetic.problems(int(count), split, arithmetic.Task(), random)
  return problems_lib.distinct(drawn, source)


@contextlib.contextmanager
def open_verifier(grader: str) -> Iterator[rewards.Verifier]:
  """Yields what checks answers: the testbed's verifier, or a grader."""
  if grader == ARITHMETIC:
    yield rewards.Verifier(
      verify=arithmetic.verify,
      find_answer=arithmetic.final_answer,
      exact=arithmetic.verifier,
    )
    return
  with problems_lib.open_verifier(grader) as verifier:
    yield verifier


def train_on(
  config: rl_config.RLConfig,
  problems: problems_lib.ProblemsConfig,
  workdir: pathlib.Path,
  *,
  fresh: bool = False,
  on_start: Callable[[], None] = lambda: None,
) -> program_lib.TrainState:
  """Reads problems, and trains a policy on them; see run.train."""
  train_problems, train_counts = read_problems(problems.train)
  held_out, counts = read_problems(problems.evaluation)
  held_out = held_out[: problems.num_evaluation]
  for what, solutions, more in (
    ("problems", train_problems, train_counts),
    ("held out", held_out, counts),
  ):
    counted = "".join(f", {n:,} {kind}" for kind, n in more.items())
    print(f"{workdir.name}: {len(solutions):,} {what}{counted}", flush=True)
  with open_verifier(problems.grader) as verifier:
    return run.train(
      config,
      workdir,
      problems=train_problems,
      held_out=held_out,
      verifier=verifier,
      fresh=fresh,
      on_start=on_start,
    )


def train(args: argparse.Namespace, read: ml_collections.ConfigDict) -> None:
  """Trains a policy.

  Args:
    args: The parsed arguments.
    read: The content of args.config, without overrides.
  """
  config = config_files.filled(
    read, args.config, args.overrides, form(), prepare
  )
  checked, problems = from_config(config)
  roles = [
    *(config[name] for name in _FOLDERS),
    *(score_sources.path_of(config[name]) for name in _REWARDS),
  ]
  if score_sources.is_function(problems.grader):
    roles.append(score_sources.path_of(problems.grader))
  read_from = sources.paths_of([problems.train, problems.evaluation])
  outputs.check(
    dict(workdir=args.workdir),
    [args.config, *roles, *read_from],
    are_folders=True,
  )
  details = environment.describe(config)
  environment.check_resume(args.workdir, resume=args.resume, fresh=args.fresh)
  with environment.remove_if_refused(args.workdir):
    environment.check_workdir(
      args.workdir,
      details["config"],
      fresh=args.fresh,
      may_change=loop.MAY_CHANGE,
    )

    page = args.workdir / "report.html"

    def on_start():
      # Until the run ends, one of an earlier end would be of other records.
      page.unlink(missing_ok=True)
      files.write_json(args.workdir / "config.json", details["config"])
      files.write_json(args.workdir / "environment.json", details)
      start = files.local_path(config.init_from)
      import_model.pass_origin_on(start, args.workdir)

    train_on(
      checked, problems, args.workdir, fresh=args.fresh, on_start=on_start
    )
  html.write(page, rl_run.render(*rl_records.read(args.workdir), details))
  print(f"checkpoint: {args.workdir}\nreport: {page}")
