"""What `prm-jax train` does with the config of a program="rl"."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

import ml_collections

from prm_jax.cli import config_files
from prm_jax.cli import environment
from prm_jax.models import config as model_config
from prm_jax.reports import html
from prm_jax.reports import rl_run
from prm_jax.rl import config as rl_config
from prm_jax.rl import hacking_monitor
from prm_jax.rl import run
from prm_jax.runtime import files
from prm_jax.training import loop
from prm_jax.training import optimizer as optimizer_lib


def form() -> config_files.Form:
  """Returns the form of a config of reinforcement learning."""
  # Any field of the policy's model may be given, and none must.
  model = config_files.form(model_config.ModelConfig, without=["vocab_size"])
  optimizer = config_files.form(optimizer_lib.OptimizerConfig)
  groups = dict(
    problems=config_files.form(rl_config.ProblemsConfig),
    rollout=config_files.form(rl_config.RolloutConfig),
    rewards=config_files.form(rl_config.RewardConfig),
    credit=config_files.form(rl_config.CreditConfig),
    loss=config_files.form(rl_config.LossConfig),
    optimizer=optimizer,
    critic_optimizer=optimizer,
    implicit_optimizer=optimizer,
    fit=config_files.form(loop.FitConfig),
    monitor=config_files.form(hacking_monitor.MonitorConfig),
    model=dataclasses.replace(model, required=frozenset(), defaults={}),
  )
  found = config_files.form(rl_config.RLConfig, nested=groups)
  return dataclasses.replace(
    found, required=found.required - {*_LIKE_THE_POLICYS}
  )


_LIKE_THE_POLICYS = ("critic_optimizer", "implicit_optimizer")


def prepare(config: Any, path: files.PathLike) -> None:
  """Gives the optimizers that are left out the policy's."""
  del path
  for name in _LIKE_THE_POLICYS:
    if name not in config:
      config[name] = config.optimizer.copy_and_resolve_references()
  if "model" not in config:
    config.model = ml_collections.ConfigDict()


def train(args: argparse.Namespace, read: ml_collections.ConfigDict) -> None:
  """Trains a policy; read: what args.config holds, without its overrides."""
  config = config_files.filled(
    read, args.config, args.overrides, form(), prepare
  )
  checked = rl_config.from_config(config)
  details = environment.describe(config)
  environment.check_resume(args.workdir, resume=args.resume, fresh=args.fresh)
  with environment.unless_refused(args.workdir):
    environment.check_workdir(
      args.workdir,
      details["config"],
      fresh=args.fresh,
      may_change=loop.MAY_CHANGE,
    )

    page = args.workdir / "report.html"

    def begin():
      # Until the run ends, one of an earlier end would be of other records.
      page.unlink(missing_ok=True)
      files.write_json(args.workdir / "config.json", details["config"])
      files.write_json(args.workdir / "environment.json", details)

    run.train(checked, args.workdir, fresh=args.fresh, begin=begin)
  html.write(page, rl_run.render(*rl_run.read(args.workdir), details))
  print(f"checkpoint: {args.workdir}\nreport: {page}")
