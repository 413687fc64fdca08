"""The parser of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
import difflib
import functools
import logging
from typing import Any, NoReturn

from prm_jax import errors
from prm_jax.runtime import compilation_cache

FIELDS = (
  "Any field of the config can be changed with --config.FIELD=VALUE, and an"
  " optional one unset with --config.FIELD=null;"
  " --config=FILE --help lists the fields and their values."
)

# How argparse begins to say so.
_REQUIRED = "the following arguments are required: "


class _MissingError(errors.InputError):
  """A command lacks arguments: the command's parser, and their names."""

  def __init__(self, parser: Parser, names: Sequence[str]):
    super().__init__(_REQUIRED + ", ".join(names))
    self.parser, self.names = parser, names


class Parser(argparse.ArgumentParser):
  """An argparse parser whose errors are the user's, with exit code 1."""

  def error(self, message: str) -> Any:
    if message.startswith(_REQUIRED):
      raise _MissingError(self, message.removeprefix(_REQUIRED).split(", "))
    raise errors.InputError(f"{message}; see {self.prog} --help")

  def _check_value(self, action: argparse.Action, value: Any) -> None:
    """Refuses a value, or a command, that isn't one of those there are."""
    if action.choices is None or value in action.choices:
      return
    known = [str(x) for x in action.choices]
    near = difflib.get_close_matches(str(value), known, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    name = f"{action.option_strings[0]}=" if action.option_strings else ""
    raise errors.InputError(
      f"{name}{str(value)[:60]!r}: expected one of {', '.join(known)}{hint}; see"
      f" {self.prog} --help"
    )

  def parse(self, argv: Sequence[str]) -> argparse.Namespace:
    """Returns the parsed arguments; refuses words that no command has.

    Args:
      argv: The words of the command line.
    """
    try:
      parsed, unknown = self.parse_known_args(argv)
    except _MissingError as e:
      e.parser.refuse(argv, e.names)
    if unknown:
      parsed.refuse(unknown)
    return parsed

  def refuse(
    self, words: Sequence[str], missing: Sequence[str] = ()
  ) -> NoReturn:
    """Refuses words that are no arguments of the command, or too few of them.

    Args:
      words: The words; if arguments are missing the whole command line.
      missing: The names of required arguments that are missing.
    """
    own = self._names() - set(missing)
    said = []
    if missing:
      said.append(_REQUIRED + ", ".join(missing))
      options = (x for x in words if x.startswith("--") and x != "--")
      words = [x for x in options if x.partition("=")[0] not in own]
    if words:
      said.append(f"unrecognized arguments: {' '.join(words)}")
    options = (x for x in words if x.startswith("--"))
    hint = self._hint(next(options, "").partition("=")[0])
    raise errors.InputError(
      f"{'; '.join([*said, *hint])}; see {self.prog} --help"
    )

  def _hint(self, word: str) -> list[str]:
    """Returns what may have been meant by an option that isn't known here."""
    if word.removeprefix("--") in self.flags():
      return [f"give {word} after the command"]
    names = sorted(self._names())
    near = [x for x in names if word.strip("-") and x.startswith(word)]
    if len(word) >= len("--abc"):
      near = near or difflib.get_close_matches(word, names, 1)
    return [f"did you mean {' or '.join(near[:3])}?"] if near else []

  def add_commands(self, metavar: str, *, required: bool = True) -> None:
    """Makes this the parser of several commands; see add_command."""
    self._commands = self.add_subparsers(metavar=metavar, required=required)

  def add_command(
    self,
    name: str,
    text: str,
    run: Callable[[argparse.Namespace], None] | None = None,
    *,
    is_printed: bool = False,
    compiles: bool = False,
  ) -> Parser:
    """Returns the parser of a new command.

    Args:
      name: The word that a user types.
      text: What the command does, in one line.
      run: What it does; None if the command has commands of its own.
      is_printed: Whether the command's result is what it prints, unless it
        writes an --output.
      compiles: Whether the programs that it compiles are kept on disk.
    """
    # A part of an option's name would be another one when one is added.
    command = self._commands.add_parser(
      name, help=text, description=text, allow_abbrev=False
    )
    command.set_defaults(
      run=run and _prepared(run, compiles), command=name, is_printed=is_printed
    )
    command.set_defaults(refuse=command.refuse)
    command.add_argument(
      "--debug",
      action="store_true",
      help="show a traceback if an error occurs",
    )
    return command

  def flags(self) -> frozenset[str]:
    """Returns the names of the options, those of its commands included."""
    names = {name.removeprefix("--") for name in self._names()}
    for action in self._actions:
      if isinstance(action, argparse._SubParsersAction):
        names.update(*(parser.flags() for parser in action.choices.values()))
    return frozenset(names)

  def _names(self) -> set[str]:
    """Returns its own options, with their dashes."""
    names = (x for action in self._actions for x in action.option_strings)
    return {name for name in names if name.startswith("--")}


def _prepared(
  work: Callable[[argparse.Namespace], None], compiles: bool
) -> Callable[[argparse.Namespace], None]:
  """Returns what does the work of a command, in a process made ready for it."""

  def run(args: argparse.Namespace) -> None:
    if compiles:  # first: a module may compile when it is imported
      compilation_cache.enable()
    # orbax reports every save and restore, and prints tracebacks of its threads
    # over an error that it raises, too; our own log says what matters.
    from absl import logging as absl_logging

    absl_logging.get_absl_logger().setLevel(logging.CRITICAL)
    work(args)

  return run


def told(parse: Callable[[str], Any]) -> Callable[[str], Any]:
  """Returns a function of a text whose ValueError argparse shows as it is.

  Args:
    parse: The function.
  """

  @functools.wraps(parse)
  def wrapped(text: str) -> Any:
    try:
      return parse(text)
    except ValueError as e:
      raise argparse.ArgumentTypeError(str(e)) from None

  return wrapped
