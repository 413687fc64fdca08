"""What several commands print."""

from __future__ import annotations

from collections.abc import Mapping


def print_left_out(left_out: Mapping[str, int]) -> None:
  """Prints how many records a reader left out, and why."""
  for reason, count in sorted(left_out.items()):
    print(f"left out: {count:,} {reason.replace('_', ' ')}")
