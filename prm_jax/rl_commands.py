"""What `prm-jax train` does with the config of a program="rl"."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

import ml_collections

from prm_jax import configs
from prm_jax import environment
from prm_jax import optimizers
from prm_jax import rl_report
from prm_jax import schema
from prm_jax.models import config as model_lib
from prm_jax.rl import config as config_lib
from prm_jax.rl import hacking
from prm_jax.rl import run
from prm_jax.train import loop


def form() -> configs.Form:
  """Returns the form of a config of reinforcement learning."""
  # Any field of the policy's model may be given, and none must.
  model = configs.form(model_lib.ModelConfig, without=["vocab_size"])
  optimizer = configs.form(optimizers.OptimizerConfig)
  groups = dict(
    problems=configs.form(config_lib.ProblemsConfig),
    rollout=configs.form(config_lib.RolloutConfig),
    rewards=configs.form(config_lib.RewardConfig),
    credit=configs.form(config_lib.CreditConfig),
    loss=configs.form(config_lib.LossConfig),
    optimizer=optimizer,
    critic_optimizer=optimizer,
    implicit_optimizer=optimizer,
    fit=configs.form(loop.FitConfig),
    monitor=configs.form(hacking.MonitorConfig),
    model=dataclasses.replace(model, required=frozenset(), defaults={}),
  )
  found = configs.form(config_lib.RLConfig, nested=groups)
  return dataclasses.replace(
    found, required=found.required - {*_LIKE_THE_POLICYS}
  )


_LIKE_THE_POLICYS = ("critic_optimizer", "implicit_optimizer")


def prepare(config: Any, path: schema.PathLike) -> None:
  """Gives the optimizers that are left out the policy's."""
  del path
  for name in _LIKE_THE_POLICYS:
    if name not in config:
      config[name] = config.optimizer.copy_and_resolve_references()
  if "model" not in config:
    config.model = ml_collections.ConfigDict()


def train(args: argparse.Namespace, read: ml_collections.ConfigDict) -> None:
  """Trains a policy; read: what args.config holds, without its overrides."""
  config = configs.filled(read, args.config, args.overrides, form(), prepare)
  checked = config_lib.from_config(config)
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
      schema.write_json(args.workdir / "config.json", details["config"])
      schema.write_json(args.workdir / "environment.json", details)

    run.train(checked, args.workdir, fresh=args.fresh, begin=begin)
  rl_report.write(page, *rl_report.read(args.workdir), details)
  print(f"checkpoint: {args.workdir}\nreport: {page}")
