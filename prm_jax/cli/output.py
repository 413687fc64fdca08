"""What the command line prints: log lines, and messages with its flags."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
import contextlib
import logging
import re
import sys
from typing import Any

from prm_jax.runtime import files
from prm_jax.runtime import terminal

# The rate of long work goes to stderr, all other log lines to stdout.
_TO_STDERR = "prm_jax.runtime.progress"


class _Lines(logging.Handler):
  """Prints each log line at once, as one line of bare text."""

  def __init__(self, flags: Collection[str]):
    super().__init__()
    self._flags = flags

  def emit(self, record: logging.LogRecord) -> None:
    stream = sys.stderr if record.name == _TO_STDERR else sys.stdout
    text = with_flags(str(record.msg), self._flags)
    if record.args:
      text %= record.args
    print(terminal.visible(text, one_line=True), file=stream, flush=True)


@contextlib.contextmanager
def printing_log(flags: Collection[str] = ()) -> Iterator[None]:
  """Prints what the package logs inside, and leaves other loggers alone.

  Args:
    flags: Names of options, which the lines show as such; see with_flags.
  """
  logger = logging.getLogger("prm_jax")
  if any(isinstance(handler, _Lines) for handler in logger.handlers):
    yield  # a command that another one runs
    return
  before = logger.level, logger.propagate
  handler = _Lines(flags)
  logger.addHandler(handler)
  logger.setLevel(logging.INFO)
  logger.propagate = False  # else a root handler would print each line again
  try:
    yield
  finally:
    logger.removeHandler(handler)
    logger.setLevel(before[0])
    logger.propagate = before[1]


@contextlib.contextmanager
def records_alone(arguments: Mapping[str, Any]) -> Iterator[None]:
  """Prints to stderr inside, if one of the arguments is the standard output.

  So the standard output has records alone.
  """
  if not any(str(value) == files.STDOUT for value in arguments.values()):
    yield
    return
  with contextlib.redirect_stdout(sys.stderr):
    yield


def with_flags(text: str, flags: Collection[str]) -> str:
  """Returns a message in which arguments are named as flags.

  Below the command line a message names an argument in backquotes: `output`,
  `fresh=True` or `share=7`. Those that are flags become --output, --fresh and
  --share=7; all else stays, and so does what a log call has as its arguments:
  texts of strangers.
  """

  def flag(match: re.Match[str]) -> str:
    name, value = match.groups()
    if name.partition(".")[0] not in flags:
      return match[0]
    return f"--{name}" + ("" if value in (None, "=True") else value)

  return re.sub(r"`([a-z_][\w.]*)(=[^`]*)?`", flag, text)


def print_error(text: str, flags: Collection[str] = ()) -> None:
  """Prints why a command ends, as one line on standard error."""
  line = terminal.visible(with_flags(text, flags), one_line=True)
  print(f"prm-jax: {line}", file=sys.stderr, flush=True)
