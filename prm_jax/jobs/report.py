"""What a job says when it is done: log lines, which the command line prints."""

from __future__ import annotations

from collections.abc import Mapping
import logging

_logger = logging.getLogger(__name__)


def left_out(counts: Mapping[str, int]) -> None:
  """Logs how many records a reader left out, and why.

  Args:
    counts: The number of records by reason.
  """
  for reason, count in sorted(counts.items()):
    _logger.info(f"left out: {count:,} {reason.replace('_', ' ')}")


def computed(types: Mapping[str, str | None]) -> None:
  """Logs the type that each model computed in.

  Args:
    types: Of each model its type; None isn't known, and isn't said.
  """
  known = [f"{name} {x}" for name, x in types.items() if x is not None]
  if known:
    _logger.info(f"computed in: {', '.join(known)}")


def counted(counts: Mapping[str, int]) -> None:
  """Logs counts, each with its name.

  Args:
    counts: The counts by their names.
  """
  for name, count in counts.items():
    _logger.info(f"{count:>12,}  {name.replace('_', ' ')}")
