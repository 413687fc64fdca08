"""Every number on the command line is refused in one line or is one to use."""

import argparse
import math

import command_options
import pytest

from prm_jax import errors
from prm_jax.runtime import checks
from prm_jax.runtime import verbs

NUMBERS = (
  *(verbs.whole, verbs.natural, verbs.seed),
  *(verbs.number, verbs.positive),
)


COMMANDS = command_options.commands()
OPTIONS = [
  (name, action.option_strings[0])
  for name, parser in COMMANDS.items()
  for action in parser._actions
  if command_options.parse_of(action) in NUMBERS
]


def test_every_option_with_a_number_is_of_a_kind_that_is_checked():
  assert len(OPTIONS) > 160
  for name, parser in COMMANDS.items():
    for action in parser._actions:
      bare = action.type in (int, float)
      unknown = isinstance(action.default, int | float) and (
        command_options.parse_of(action) not in NUMBERS and action.nargs != 0
      )
      assert not bare and not unknown, (name, action.option_strings)


def _parsed(name, option, value):
  action = COMMANDS[name]._option_string_actions[option]
  return COMMANDS[name]._get_values(action, [value])


@pytest.mark.parametrize("option", OPTIONS, ids=" ".join)
def test_what_is_no_number_or_too_large_is_refused_in_one_line(option):
  for value in ("1e3x", "nan", "-inf", "inf", "", "9" * 5000, str(10**20)):
    try:
      taken = _parsed(*option, value)
    except argparse.ArgumentError as e:
      message = str(errors.InputError(str(e)))
      assert option[1] in message and "\n" not in message
      assert len(message) < 200
    else:
      assert isinstance(taken, float) and math.isfinite(taken)
  for value in ("-1", "0", "1"):
    try:
      assert abs(_parsed(*option, value)) <= 1
    except argparse.ArgumentError as e:
      assert value != "1" and option[1] in str(e)


def test_two_seeds_that_are_taken_are_two_for_jax():
  assert verbs.seed(str(checks.MAX_SEED)) == 2**32 - 1
  with pytest.raises(ValueError, match="is more than"):
    verbs.seed(str(2**32))
  for value in (-1, 2**32, 10**20):
    with pytest.raises(errors.InputError, match=f"seed={value}: expected 0"):
      checks.check_seed(value)
