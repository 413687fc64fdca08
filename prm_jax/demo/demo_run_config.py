"""The demo, as the fields of a config describe it."""

from __future__ import annotations

import dataclasses

import ml_collections

from prm_jax.demo import demo_config as demo_config
from prm_jax.demo import demo_run as demo_run
from prm_jax.runtime import config_files
from prm_jax.testbed import arithmetic
from prm_jax.training import train_run_config


def form() -> config_files.Form:
  """Returns the form of the demo's config."""
  groups = dict(
    task=config_files.form(arithmetic.Task),
    runs=config_files.Form(
      dict.fromkeys(demo_run.RUNS, train_run_config.run_form),
      frozenset(demo_run.RUNS),
    ),
  )
  return config_files.form(demo_config.DemoConfig, nested=groups)


def from_config(
  c: ml_collections.ConfigDict, seed: int = 0
) -> demo_config.DemoConfig:
  """Returns the demo of a config.

  Args:
    c: The config, complete.
    seed: What is added to the seed of every run.
  """
  names = [f.name for f in dataclasses.fields(demo_config.DemoConfig)]
  fields = {k: c[k] for k in names if k not in ("task", "runs")}
  return demo_config.DemoConfig(
    task=arithmetic.Task(**config_files.plain(c.task)),
    runs={
      name: dataclasses.replace(
        train_run_config.from_config(run), seed=run.seed + seed
      )
      for name, run in c.runs.items()
    },
    **fields | dict(train_temperatures=tuple(c.train_temperatures)),
  )
