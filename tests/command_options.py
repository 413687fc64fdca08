"""The commands of the command line, each with its parser."""

import argparse
from collections.abc import Iterator
from typing import Any

from prm_jax.cli import main
from prm_jax.cli import parser as parser_lib
from prm_jax.runtime import verbs


def commands() -> dict[str, parser_lib.Parser]:
  """Returns the parser of each command that runs something, by its name."""
  found = {parser.prog: parser for parser in _leaves(main._parser())}
  return {name.removeprefix("prm-jax "): p for name, p in found.items()}


def parse_of(action: argparse.Action) -> Any:
  """Returns the function from an option's text to its value.

  Without what makes its ValueError one of argparse's: see arguments.told.
  """
  inner = getattr(action.type, "__wrapped__", None)
  return inner if inner in vars(verbs).values() else action.type


def _leaves(parser: parser_lib.Parser) -> Iterator[parser_lib.Parser]:
  kinds = [
    action
    for action in parser._actions
    if isinstance(action, argparse._SubParsersAction)
  ]
  for kind in kinds:
    for command in kind.choices.values():
      yield from _leaves(command)
  if not kinds:
    yield parser
