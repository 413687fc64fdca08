"""What the arguments of the commands are made of."""

from __future__ import annotations

import argparse
from collections.abc import Callable
import importlib
import logging
import math
import pathlib
from typing import Any

from prm_jax import errors
from prm_jax.labelling import judge_prompts
from prm_jax.runtime import files

# Names of voting.AGGREGATES and judge.TEMPLATES: these modules load numpy, and
# every start would wait for it.
AGGREGATES = ("product", "min", "last", "mean")
TEMPLATES = tuple(sorted((*judge_prompts.TEMPLATES, "dial")))


class Parser(argparse.ArgumentParser):
  """argparse, but a wrong word is the user's error: exit code 1.

  Its methods add options of the types that many commands have.
  """

  def error(self, message: str) -> Any:
    raise errors.InputError(f"{message}; see {self.prog} --help")

  def add_commands(self, metavar: str, *, required: bool = True) -> None:
    """Makes this the parser of several commands; see add_command."""
    self._commands = self.add_subparsers(metavar=metavar, required=required)

  def add_command(self, name: str, text: str, run: str | None = None) -> Parser:
    """Returns the parser of a new command.

    Args:
      name: of the command.
      text: what it does, in a line.
      run: "MODULE.FUNCTION" of this folder; None if it has commands itself.
    """
    command = self._commands.add_parser(name, help=text, description=text)
    command.set_defaults(run=run and _lazily(run), command=name)
    command.add_switch("--debug", "show a traceback on errors")
    return command

  def flags(self) -> frozenset[str]:
    """Returns the names of the options, those of its commands included."""
    names = {
      text.removeprefix("--")
      for action in self._actions
      for text in action.option_strings
    }
    for action in self._actions:
      if isinstance(action, argparse._SubParsersAction):
        names.update(*(parser.flags() for parser in action.choices.values()))
    return frozenset(names)

  def add_option(
    self, name: str, text: str | None = None, default: Any = None, **more: Any
  ) -> None:
    """Adds an option; its type is that of its default, or text."""
    if isinstance(default, int | float):
      more.setdefault("type", type(default))
    self.add_argument(name, help=text, default=default, **more)

  def add_path(self, name: str, text: str | None = None, **more: Any) -> None:
    """Adds an option whose value is a path on this machine."""
    self.add_option(name, text, type=local, **more)

  def add_natural(self, name: str, text: str | None = None, **more) -> None:
    """Adds an option whose value is 0, 1, 2, ..."""
    self.add_option(name, text, type=natural, **more)

  def add_switch(self, name: str, text: str) -> None:
    """Adds an option without a value."""
    self.add_argument(name, action="store_true", help=text)

  def add_solutions(self, **more: Any) -> None:
    """Adds the input of a command that reads solutions."""
    self.add_option("--input", "solutions.jsonl", required=True, **more)
    self.add_option("--format", "of the input", "jsonl")

  def add_step(self) -> None:
    self.add_natural("--step", "saved step to use; the latest by default")

  def add_scorer(self) -> None:
    """Adds what scores steps: a checkpoint, or a file of scores."""
    self.add_path("--checkpoint", "scores by this")
    self.add_step()
    self.add_option("--scores", "scores.jsonl, instead of --checkpoint")

  def add_aggregate(self) -> None:
    text = "of step scores; the checkpoint's own, or product, by default"
    self.add_option("--aggregate", text, choices=AGGREGATES)

  def add_sampling(self) -> None:
    """Adds how a policy samples."""
    self.add_option("--temperature", default=1.0)
    self.add_option("--top_p", default=1.0)
    self.add_option("--max_tokens", default=512)


def _lazily(name: str) -> Callable[[argparse.Namespace], None]:
  """Returns a function by its name; jax and the rest load when it runs."""
  module, _, function = name.partition(".")

  def run(args: argparse.Namespace) -> None:
    loaded = importlib.import_module(f"prm_jax.cli.{module}")
    # orbax reports every save and restore, and prints tracebacks of its threads
    # over an error that it raises, too; our own log says what matters.
    from absl import logging as absl_logging

    absl_logging.get_absl_logger().setLevel(logging.CRITICAL)
    getattr(loaded, function)(args)

  return run


def natural(text: str) -> int:
  """Returns a number that isn't negative."""
  try:
    value = int(text)
  except ValueError:
    value = -1
  if value < 0:
    raise argparse.ArgumentTypeError(f"{text!r} isn't 0, 1, 2, ...")
  return value


def positive(text: str) -> float:
  """Returns a finite number above 0."""
  try:
    value = float(text)
  except ValueError:
    value = math.nan
  if not 0 < value < math.inf:
    raise argparse.ArgumentTypeError(f"{text!r} isn't a number above 0")
  return value


def local(text: str) -> pathlib.Path:
  """Returns a path on this machine."""
  try:
    return files.local_path(text)
  except errors.InputError as e:
    raise argparse.ArgumentTypeError(str(e)) from None


def workdir(text: str) -> pathlib.Path | str:
  """Returns a path on this machine, or the text of one in a bucket."""
  bucket, _, folder = text.removeprefix("gs://").partition("/")
  if not text.startswith("gs://"):
    return local(text)
  if not bucket or not folder.strip("/"):
    raise argparse.ArgumentTypeError(f"{text}: give gs://BUCKET/FOLDER")
  return text.rstrip("/")
