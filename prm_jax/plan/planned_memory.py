"""How much memory a compiled program has in use at most."""

from __future__ import annotations

from typing import Any


def peak(analysis: Any) -> int:
  """Returns the most bytes in use at one time, by the compiler's account.

  Args:
    analysis: what a compiled program's memory_analysis() returns.
  """
  peak_bytes = getattr(analysis, "peak_memory_in_bytes", 0)
  # Not every backend says its peak; what all buffers take is never less.
  return peak_bytes or (
    analysis.argument_size_in_bytes
    + analysis.output_size_in_bytes
    - analysis.alias_size_in_bytes
    + analysis.temp_size_in_bytes
  )
