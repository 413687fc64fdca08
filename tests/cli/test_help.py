"""The help of every command is written in whole phrases."""

import argparse

import pytest

from prm_jax.cli import main


def _parsers(parser, name="prm-jax"):
  """Yields every command with its parser."""
  yield name, parser
  for action in parser._actions:
    if isinstance(action, argparse._SubParsersAction):
      for word, command in action.choices.items():
        yield from _parsers(command, f"{name} {word}")


PARSERS = dict(_parsers(main._parser()))


@pytest.mark.parametrize("name", PARSERS)
def test_every_flag_of_a_command_has_a_help_of_a_whole_phrase(name):
  parser = PARSERS[name]
  assert parser.description and len(parser.description.split()) >= 3
  for action in parser._actions:
    if isinstance(action, argparse._SubParsersAction):
      continue
    words = (action.help or "").split()
    assert len(words) >= 4, f"{action.option_strings}: {action.help!r}"
    assert words[0] not in ("...", "of", "that", "its"), action.help


@pytest.mark.parametrize("name", PARSERS)
def test_a_help_names_the_default_and_each_choice_can_be_seen(name):
  for action in PARSERS[name]._actions:
    # A switch is off by default.
    if action.default in (None, False, [], argparse.SUPPRESS):
      continue
    assert "default" in action.help, action.option_strings
  shown = PARSERS[name].format_help()
  for action in PARSERS[name]._actions:
    assert all(str(choice) in shown for choice in action.choices or ())
