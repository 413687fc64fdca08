"""Runs `prm-jax` commands as a user would give them, and keeps what they said.

Not a command. labelling_gsm8k.py and labelling_published.py are made of them.
"""

from collections.abc import Sequence
import contextlib
import io
import time
from typing import Any

from prm_jax.cli import main as main_lib


def run(arguments: Sequence[str]) -> dict[str, Any]:
  """Returns a command, what it said, and how many seconds it took.

  Args:
    arguments: The words after `prm-jax`.

  Raises:
    SystemExit: The command failed; its message is on standard error.
  """
  command = f"prm-jax {' '.join(arguments)}"
  print(f"$ {command}", flush=True)
  output, start = io.StringIO(), time.perf_counter()
  with contextlib.redirect_stdout(output):
    code = main_lib.main(arguments)
  print(output.getvalue(), flush=True)
  if code:
    raise SystemExit(code)
  return dict(
    command=command,
    said=output.getvalue().splitlines(),
    s=round(time.perf_counter() - start, 1),
  )
