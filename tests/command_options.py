"""The commands of the command line, each with its parser."""

import argparse
from collections.abc import Iterator

from prm_jax.cli import arguments
from prm_jax.cli import main


def commands() -> dict[str, arguments.Parser]:
  """Returns the parser of each command that runs something, by its name."""
  found = {parser.prog: parser for parser in _leaves(main._parser())}
  return {name.removeprefix("prm-jax "): p for name, p in found.items()}


def _leaves(parser: arguments.Parser) -> Iterator[arguments.Parser]:
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
