"""A process that was forked from one in which JAX runs can't compute.

`os.fork` copies one thread, and JAX needs its others: what the child asks of it
waits for ever. So what computes calls `check` first. Whether JAX ran is asked
at the fork itself, whoever it ran for: importing this module installs the hook.
"""

from __future__ import annotations

import os
import sys

from prm_jax import errors

# Whether JAX runs in the process that is about to fork; and whether it did in
# the one that this process was forked from, or in one before that.
_runs = False
_forked = False


def check() -> None:
  """Refuses to compute in a process that was forked after JAX ran.

  Raises:
    InputError: It is such a process.
  """
  if _forked:
    raise errors.InputError(
      f"this process ({os.getpid()}) was forked from one in which JAX already"
      f" ran ({os.getppid()}), so JAX would wait in it for ever; start it with"
      ' multiprocessing.get_context("spawn"), or fork before the first model is'
      " loaded"
    )


def _before() -> None:
  global _runs
  bridge = sys.modules.get("jax._src.xla_bridge")
  # It isn't public: without it nothing is refused.
  initialized = getattr(bridge, "backends_are_initialized", None)
  _runs = initialized is not None and initialized()


def _in_child() -> None:
  global _forked
  _forked = _runs


if hasattr(os, "register_at_fork"):  # not on Windows
  os.register_at_fork(before=_before, after_in_child=_in_child)
