"""The arguments of all commands that have no file of their own."""

from __future__ import annotations

import argparse

from prm_jax.cli import arguments

CONFIG = "the config file, a Python file with get_config()"


def add_training(commands: arguments.Parser) -> None:
  """Adds demo and train."""
  demo = commands.add_command(
    "demo",
    "run everything on small arithmetic problems: train a policy and reward models,"
    " and compare the reward models by best of N",
    "demo.run_demo",
    compiles=True,
  )
  demo.add_output(
    "--workdir",
    "the folder for models, results and report (default: runs/demo, or"
    " runs/demo_quick with --quick)",
  )
  demo.add_option(
    "--seed",
    "a number that is added to the seed of every run",
    default=0,
    type=arguments.seed,
  )
  demo.add_option(
    "--config", f"{CONFIG}; not with --quick (default: the demo's own config)"
  )
  demo.add_switch(
    "--quick",
    "use small sizes, to see in about a minute whether everything runs; the"
    " models are too small to compare",
  )
  demo.add_switch(
    "--fresh", "delete the run that --workdir holds and start over"
  )
  demo.epilog = arguments.FIELDS

  train = commands.add_command(
    "train",
    "train a policy (sft or rl) or a reward model (prm, orm or implicit)",
    "train.train",
  )
  train.add_option("--config", CONFIG, required=True)
  train.add_option(
    "--workdir",
    "the folder for checkpoints and metrics; gs://BUCKET/FOLDER for a bucket"
    " (not for rl)",
    required=True,
    type=arguments.workdir,
  )
  train.add_argument(
    "--resume",
    action=argparse.BooleanOptionalAction,
    default=True,
    help="--resume (the default) resumes from the last checkpoint in --workdir;"
    " --no-resume refuses a folder that holds one",
  )
  train.add_switch(
    "--fresh",
    "delete the run that --workdir holds and start over; the data are encoded"
    " again, too",
  )
  train.epilog = arguments.FIELDS
