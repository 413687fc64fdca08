"""`prm-jax demo`, and its config."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib

import ml_collections

from prm_jax import errors
from prm_jax.demo import config as demo_config
from prm_jax.demo import default_config
from prm_jax.demo import quick_config
from prm_jax.demo import run as demo_run
from prm_jax.evaluation import tables
from prm_jax.runtime import config_files
from prm_jax.runtime import environment
from prm_jax.runtime import files
from prm_jax.runtime import outputs
from prm_jax.testbed import arithmetic
from prm_jax.training import run_config


def form() -> config_files.Form:
  """Returns the form of the demo's config."""
  groups = dict(
    task=config_files.form(arithmetic.Task),
    runs=config_files.Form(
      dict.fromkeys(demo_run.RUNS, run_config.run_form),
      frozenset(demo_run.RUNS),
    ),
  )
  return config_files.form(demo_config.DemoConfig, nested=groups)


def from_config(
  c: ml_collections.ConfigDict, seed: int = 0
) -> demo_config.DemoConfig:
  """Returns the demo of a config; seed is added to that of every run."""
  names = [f.name for f in dataclasses.fields(demo_config.DemoConfig)]
  fields = {k: c[k] for k in names if k not in ("task", "runs")}
  return demo_config.DemoConfig(
    task=arithmetic.Task(**config_files.plain(c.task)),
    runs={
      name: dataclasses.replace(
        run_config.from_config(run), seed=run.seed + seed
      )
      for name, run in c.runs.items()
    },
    **fields | dict(train_temperatures=tuple(c.train_temperatures)),
  )


def run_demo(args: argparse.Namespace) -> None:
  if args.quick and args.config:
    raise errors.InputError("--quick has its own config: leave out --config")
  given = quick_config if args.quick else default_config
  path = args.config or str(given.__file__)
  config = config_files.load(path, args.overrides, form())
  workdir = args.workdir or pathlib.Path(
    "runs/demo_quick" if args.quick else "runs/demo"
  )
  outputs.check(dict(workdir=workdir), [path], are_folders=True)
  demo = from_config(config, args.seed)
  details = environment.describe(config)
  claim = details["config"] | dict(seed=args.seed)
  with environment.remove_if_refused(workdir):
    environment.check_workdir(workdir, claim, fresh=args.fresh)
    if args.fresh:
      demo_run.check(demo, args.seed)
      demo_run.clear(workdir)
      files.write_json(workdir / "config.json", claim)
    results = demo_run.run(demo, workdir, args.seed, details)
  print("\n" + tables.best_of_n_table(results))
  if args.quick:
    print("\n--quick: every stage ran; its models are too small to compare")
  print(f"\nreport: {workdir / 'report.html'}")
