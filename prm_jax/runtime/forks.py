"""A process that was forked from one in which JAX runs can't compute.

`os.fork` copies one thread, and JAX needs its others: what the child asks of it
waits for ever. So what computes calls `check` first.
"""

from __future__ import annotations

import os

from prm_jax import errors

# The process that was the first to compute, and all that were forked from it
# later: they have a copy of this number.
_first: list[int] = []


def check() -> None:
  """Refuses to compute in a process that was forked after its parent did.

  Raises:
    InputError: It is such a process.
  """
  if not _first:
    _first.append(os.getpid())
  if _first[0] != os.getpid():
    raise errors.InputError(
      f"this process ({os.getpid()}) was forked from one in which JAX already"
      f" ran ({_first[0]}), so JAX would wait in it for ever; start it with"
      ' multiprocessing.get_context("spawn"), or fork before the first model is'
      " loaded"
    )
