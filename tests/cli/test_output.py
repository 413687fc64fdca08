"""The command line prints the package's log, and names arguments as flags."""

import logging

import pytest

from prm_jax.cli import main
from prm_jax.cli import output

LOGGER = logging.getLogger("prm_jax.training.loop")


def test_each_line_is_printed_once_as_it_is_and_later_ones_are_not(capsys):
  with output.printing_log(), output.printing_log():
    LOGGER.info("a: 100 % of {it}")
    logging.getLogger("prm_jax.runtime.progress").info("score 1/2")
    LOGGER.warning("b")
    LOGGER.debug("c")
  LOGGER.info("d")
  assert capsys.readouterr() == ("a: 100 % of {it}\nb\n", "score 1/2\n")


def test_other_loggers_stay_as_they_are():
  def state():
    names = ("", "absl", "jax", "prm_jax", LOGGER.name)
    loggers = [logging.getLogger(name) for name in names]
    return [(x.level, list(x.handlers), x.propagate) for x in loggers]

  before = state()
  with output.printing_log():
    during = state()
  assert state() == before
  assert [a == b for a, b in zip(before, during)] == [
    *(True, True, True, False, True)
  ]


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ("give `fresh=True`", "give --fresh"),
    ("another `workdir`, or", "another --workdir, or"),
    ("`shard=8/8`: expected i/n", "--shard=8/8: expected i/n"),
    ("`system='be kind'`: only", "--system='be kind': only"),
    ("`total` isn't a flag, nor `fresh", "`total` isn't a flag, nor `fresh"),
    ("run `prm-jax train`, fresh=True", "run `prm-jax train`, fresh=True"),
  ],
)
def test_an_argument_in_backquotes_is_shown_as_the_flag_it_is(text, expected):
  flags = main._parser().flags()
  assert output.with_flags(text, flags) == expected
