"""The arguments of all commands that have no file of their own."""

from __future__ import annotations

import argparse
import pathlib

from prm_jax.cli import arguments

FIELDS = (
  "Any field of the config can be changed with --config.FIELD=VALUE, and an"
  " optional one unset with --config.FIELD=null;"
  " --config=FILE --help lists the fields and their values."
)
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
  demo.epilog = FIELDS

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
  train.epilog = FIELDS


def add_plan(commands: arguments.Parser) -> None:
  plan = commands.add_command(
    "plan",
    "compile the update of a training run for TPUs or GPUs that you don't have"
    " at hand, and report its memory, FLOPs and communication",
    "plan.plan",
    is_printed=True,
  )
  plan.add_option("--config", f"{CONFIG}, as for `prm-jax train`")
  plan.add_option(
    "--topology",
    "the chips to compile for: v5e or v6e and two sizes, as in v5e:16x16; v4 or"
    " v5p and three, as in v5p:4x4x4; or h200 and a number of GPUs, as in"
    " h200:8. --config and --topology are needed unless --check is given",
  )
  plan.add_option(
    "--mesh",
    "the number of chips on each axis of the mesh, as DATA,FSDP,TENSOR; their"
    " product is the number of chips, and one may be -1: it takes the"
    " remaining chips (default: the config's)",
  )
  plan.add_natural(
    "--vocab_size",
    "the number of token ids (default: that of the model in init_from, or"
    " tokenizer.vocab_size)",
  )
  plan.add_argument(
    "--suggest",
    action=argparse.BooleanOptionalAction,
    default=True,
    help="--suggest (the default): if the run doesn't fit into memory, search"
    " for settings that do; the exit code is 1 also if it finds some",
  )
  plan.add_output("--output", "the JSON file to write the plan to")
  plan.add_path(
    "--check",
    "a JSON Lines file of runs and their limits (docs/plan.md), in place of"
    " --config and --topology; compile each run; the exit code is 1 if one"
    " exceeds a limit",
  )
  plan.epilog = FIELDS


def add_check_device(commands: arguments.Parser) -> None:
  check = commands.add_command(
    "check-device",
    "check that this machine computes the right numbers, and measure its speed"
    " in training, scoring and sampling",
    "check_device.check_device",
  )
  check.add_output(
    "--output",
    "the JSON file of results; checks whose result it already holds aren't run"
    " again; delete the file to run all",
    default=pathlib.Path("check.json"),
  )
  check.add_option(
    "--only",
    "the checks or groups of checks to run, separated by commas, such as"
    " attention,model (default: all; give an unknown name to see the groups)",
  )
  check.add_option(
    "--minutes",
    "start no further check after this many minutes; a check that is"
    " running then may take 45 s longer",
    type=arguments.positive,
    default=8.0,
  )
  how = check.add_mutually_exclusive_group()
  how.add_argument(
    "--quick",
    action="store_true",
    help="run few cases with small shapes; without --quick"
    " and --full, a medium set of cases runs",
  )
  how.add_argument(
    "--full",
    action="store_true",
    help="run every combination of options of attention",
  )
  check.add_path(
    "--against",
    "an older file of results; differences are printed and don't change the"
    " exit code",
  )
