"""`prm-jax`: parses the command line and runs a command of this folder.

Exit codes: 0 done; 1 the user's input can't be used (one line says why);
130 interrupted.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import os
import sys

from prm_jax import errors
from prm_jax.cli import arguments
from prm_jax.cli import command_arguments
from prm_jax.cli import data_arguments
from prm_jax.cli import label_arguments
from prm_jax.cli import output


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line; returns the exit code."""
  argv = list(sys.argv[1:] if argv is None else argv)
  parser = _parser()
  flags = parser.flags()
  argv, overrides = _split_overrides(argv)
  try:
    if _asks_for_config_help(argv):
      _print_config(argv, overrides)
      return 0
    parsed = parser.parse_args(argv)
    if overrides and not hasattr(parsed, "config"):
      raise errors.InputError(
        f"--config.{overrides[0]}: {parsed.command} takes no config"
      )
    parsed.overrides = overrides
    with output.printing_log(flags):
      parsed.run(parsed)
  except errors.InputError as e:
    if "--debug" in argv:
      raise
    print(f"prm-jax: {output.with_flags(str(e), flags)}", file=sys.stderr)
    return e.exit_code
  except KeyboardInterrupt:
    print("prm-jax: interrupted", file=sys.stderr)
    return 130
  except BrokenPipeError:
    # The reader of our output (head, less) has seen enough.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
  return 0


def _split_overrides(argv: list[str]) -> tuple[list[str], list[str]]:
  """Returns the argv without `--config.field=value`, and those fields."""
  rest, overrides = [], []
  queue = list(argv)
  while queue:
    word = queue.pop(0)
    if not word.startswith("--config."):
      rest.append(word)
      continue
    field = word.removeprefix("--config.")
    if "=" not in field and queue and not queue[0].startswith("--"):
      field += "=" + queue.pop(0)
    overrides.append(field)
  return rest, overrides


def _parser() -> arguments.Parser:
  parser = arguments.Parser(
    prog="prm-jax",
    description="Process supervision in JAX: train, use and evaluate process"
    " and outcome reward models.",
  )
  parser.add_switch("--version", "print the version and exit")
  parser.set_defaults(run=lambda args: _version(args, parser))
  parser.set_defaults(command="prm-jax")
  parser.add_commands("COMMAND", required=False)
  for add in (
    command_arguments.add_training,
    command_arguments.add_exchange,
    command_arguments.add_sample,
    command_arguments.add_score,
    label_arguments.add,
    command_arguments.add_evaluate,
    data_arguments.add,
    command_arguments.add_plan,
    command_arguments.add_check_device,
  ):
    add(parser)
  parser.add_command(
    "doctor",
    "print the versions, the devices, and which optional packages are missing",
    "doctor.doctor",
  )
  return parser


def _version(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
  import prm_jax

  if args.version:
    print(f"prm_jax {prm_jax.__version__}")
  else:
    parser.print_help()


# --- Configs ----------------------------------------------------------------


def _asks_for_config_help(argv: Sequence[str]) -> bool:
  asks = "--help" in argv or "-h" in argv
  return asks and any(
    a == "--config" or a.startswith("--config=") for a in argv
  )


def _print_config(argv: list[str], overrides: list[str]) -> None:
  from prm_jax.cli import config_help

  finder = arguments.Parser(prog="prm-jax", add_help=False, allow_abbrev=False)
  finder.add_argument("--config")
  path = finder.parse_known_args(argv)[0].config
  config_help.print_config(argv[0], path, overrides)
