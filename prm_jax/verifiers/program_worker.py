"""Becomes a program that speaks on its pipes, in a sandbox.

It imports nothing of prm_jax.
"""

from __future__ import annotations

import os


def main(program: str, *arguments: str) -> None:
  """Becomes the program; what it says as errors is in its output, in order.

  Args:
    program: Its file.
    *arguments: Its arguments.
  """
  os.dup2(1, 2)
  os.execv(program, (program, *arguments))
