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


@pytest.mark.parametrize(
  ("words", "hint"),
  [
    (
      ["search", "best_of_n", "--n=3"],
      "; did you mean --no_log_probs or --num?; see",
    ),
    (["sample", "--temprature=2"], "; did you mean --temperature?; see"),
    (["sample", "--zzzz"], "unrecognized arguments: --zzzz; see"),
    (["label", "judge", "more"], "unrecognized arguments: more; see"),
    (["sample", "more", "--zz"], "unrecognized arguments: more --zz; see"),
    (["sample", "x", "--temprature=2"], "; did you mean --temperature?; see"),
    (["sample", "--=2"], "unrecognized arguments: --=2; see"),
  ],
)
def test_a_part_of_an_options_name_is_none_and_a_hint_names_the_command(
  words, hint, capsys
):
  command = words[0] if words[0] == "sample" else " ".join(words[:-1])
  of = PARSERS[f"prm-jax {command}"]
  needed = [
    f"{x.option_strings[0]}={next(iter(x.choices or '1'))}"
    for x in of._actions
    if x.required
  ]
  assert main.main([*words, *needed]) == 1
  error = capsys.readouterr().err
  assert hint in error and f"see prm-jax {command} --help" in error


@pytest.mark.parametrize(
  ("words", "error"),
  [
    ("--input=x", "--input=x; give --input after the command; see prm-jax -"),
    ("--version=", "ignored explicit argument ''; see prm-jax -"),
    ("doctor --", "unrecognized arguments: --; see prm-jax doctor"),
    ("--inputt=x", "unrecognized arguments: --inputt=x; see prm-jax -"),
    (
      "label --policy=x monte_carlo",
      "required: --policy, --input, --output; unrecognized arguments:"
      " --policy=x; give --policy after the command; see prm-jax label",
    ),
    (
      "score --checkpont=a --input=b --output=c",
      "required: --checkpoint; unrecognized arguments: --checkpont=a; did you"
      " mean --checkpoint?; see prm-jax score -",
    ),
    ("score --input=b --output=c", "required: --checkpoint; see prm-jax score"),
  ],
)
def test_an_option_at_the_wrong_place_and_a_misspelt_required_one_have_hints(
  words, error, capsys
):
  assert main.main(words.split()) == 1
  assert error in capsys.readouterr().err


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
