"""`prm-jax`: parses the command line and runs a command of this folder.

docs/faults.md lists the exit codes. 0 means that the work is done.
"""

from __future__ import annotations

import argparse
import atexit
from collections.abc import Sequence
import functools
import gc
import sys
import traceback
from typing import Any

from prm_jax import errors
from prm_jax import trainer
from prm_jax.cli import commands
from prm_jax.cli import flags as flags_lib
from prm_jax.cli import output
from prm_jax.cli import parser as parser_lib
from prm_jax.demo import demo
from prm_jax.runtime import exhausted
from prm_jax.runtime import outputs
from prm_jax.runtime import preemption
from prm_jax.runtime import terminal
from prm_jax.runtime import verbs


def command() -> int:
  """Runs the command line as all that its process does.

  Python looks for cycles after 50,000 new containers instead of 700: among what
  libraries and a tokenizer bring along there are none, and looking for them
  while a model is loaded took 1 s. At the end it would look once more, for what
  the end of the process frees anyway.

  Returns:
    The exit code.
  """
  gc.set_threshold(50_000, 20, 20)
  atexit.register(gc.freeze)
  sys.unraisablehook = _unraisable
  return main()


def _unraisable(args: Any) -> None:
  """Writes what nobody can catch, except what a failed read leaves behind.

  If one array of a save is damaged, the reads of others end after orbax's event
  loop has; the error has been said by then.
  """
  is_late = isinstance(args.exc_value, RuntimeError)
  if not (is_late and str(args.exc_value) == "Event loop is closed"):
    sys.__unraisablehook__(args)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line; returns the exit code."""
  argv = list(sys.argv[1:] if argv is None else argv)
  parser = _parser()
  flags = parser.flags()
  with terminal.opened() as printed:
    try:
      _run(argv, parser, flags, printed)
    except SystemExit as e:  # --help; wrong flags; SIGTERM
      code = 0 if e.code else _failed_at_end(printed, flags)
      if not code:
        raise
      return code
    except terminal.ReaderGoneError as e:
      return e.exit_code
    except BrokenPipeError:
      # Records are written to the descriptor itself.
      if not printed.carries_result:
        raise
      return terminal.ReaderGoneError.exit_code
    except KeyboardInterrupt:
      output.print_error("interrupted")
      return 130
    except Exception as e:
      refused = e if isinstance(e, errors.InputError) else exhausted.refusal(e)
      if refused is None or "--debug" in argv:
        raise
      output.print_error(str(refused), flags)
      return refused.exit_code
    return _failed_at_end(printed, flags)


def _failed_at_end(printed: terminal.Output, flags: frozenset[str]) -> int:
  """Returns the exit code of work that is done, unless it wasn't printed."""
  try:
    printed.finish()
  except terminal.ReaderGoneError as e:
    return e.exit_code
  except errors.InputError as e:
    output.print_error(str(e), flags)
    return e.exit_code
  return 0


def _run(
  argv: list[str],
  parser: parser_lib.Parser,
  flags: frozenset[str],
  printed: terminal.Output,
) -> None:
  """Parses the command line and runs its command."""
  argv, overrides = _split_overrides(argv)
  if _asks_for_config_help(argv):
    _print_config(argv, overrides)
    return
  parsed = parser.parse(argv)
  if overrides:
    if "overrides" not in parsed:
      raise errors.InputError(
        f"--config.{overrides[0]}: {parsed.command} takes no config"
      )
    parsed.overrides = tuple(overrides)
  printed.carries_result = _prints_result(parsed)
  with output.printing_log(flags), output.records_alone(vars(parsed)):
    try:
      parsed.run(parsed)
    except preemption.PreemptedError:
      raise
    except SystemExit as e:
      raise _unfinished(e) from e


def _unfinished(error: SystemExit) -> errors.InputError:
  """Returns the error of a command in which something called sys.exit.

  Its code may be 0, or one that has another meaning here.
  """
  frame = traceback.extract_tb(error.__traceback__)[-1]
  code = "" if error.code is None else repr(error.code)
  return errors.InputError(
    f"{frame.filename}:{frame.lineno}: sys.exit({code}) was called before the"
    " command's work was done; `debug=True` shows by what"
  )


def _prints_result(args: argparse.Namespace) -> bool:
  """Returns whether the command's result is what it prints."""
  written = vars(args).get("output")
  if str(written) in outputs.STDOUT or vars(args).get("plan") is True:
    return True
  return args.is_printed and written is None


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


@functools.cache  # a process has one; under the tests' type checks it takes 0.2 s
def _parser() -> parser_lib.Parser:
  parser = parser_lib.Parser(
    prog="prm-jax",
    allow_abbrev=False,
    description="Process supervision in JAX: train, use and evaluate process"
    " and outcome reward models.",
  )
  parser.add_argument(
    "--version", action="store_true", help="print the version and exit"
  )
  parser.set_defaults(run=lambda args: _version(args, parser))
  parser.set_defaults(command="prm-jax", is_printed=True, refuse=parser.refuse)
  parser.add_commands("COMMAND", required=False)
  for name, verb in commands.VERBS.items():
    flags_lib.add(parser, name, verb)
  for name, (does, kinds) in commands.KINDS.items():
    kind_of = parser.add_command(name, does)
    kind_of.add_commands("KIND")
    for kind, verb in kinds.items():
      flags_lib.add(kind_of, kind, verb)
  return parser


def _version(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
  from prm_jax import _version

  if args.version:
    print(f"prm_jax {_version.__version__}")
  else:
    parser.print_help()


# --- Configs ----------------------------------------------------------------


def _asks_for_config_help(argv: Sequence[str]) -> bool:
  asks = "--help" in argv or "-h" in argv
  return asks and any(
    a == "--config" or a.startswith("--config=") for a in argv
  )


# How the commands with a config complete it; others show it as it is.
_FILLED = dict(
  demo=demo.Demo.filled, train=trainer.Train.filled, plan=trainer.Train.filled
)


def _print_config(argv: list[str], overrides: list[str]) -> None:
  """Prints a config's fields and values, as its command would read them."""
  finder = parser_lib.Parser(prog="prm-jax", add_help=False, allow_abbrev=False)
  finder.add_argument("--config")
  path = finder.parse_known_args(argv)[0].config
  from prm_jax.runtime import config_files

  fill = _FILLED.get(argv[0], verbs.Config.filled)
  config = fill(verbs.Config(path, tuple(overrides)))
  print(f"Fields of {path}; override one with --config.FIELD=VALUE:\n")
  for name, value in config_files.fields(config).items():
    print(f"  --config.{name}={value}")
