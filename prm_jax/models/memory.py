"""Whether what a model needs can fit its devices at all.

XLA on a CPU may wait for ever, or abort, for memory that isn't there.
"""

from __future__ import annotations

from collections.abc import Sequence
import math
import os
from typing import Any

import jax
import numpy as np

from prm_jax import errors


def check_parameters(abstract: Any, mesh: jax.sharding.Mesh) -> None:
  """Refuses parameters that take more than all memory of a mesh.

  Whether an update fits, too, `prm-jax plan` finds out.

  Args:
    abstract: The shapes and types of the parameters.
    mesh: The devices.

  Raises:
    InputError: They take more.
  """
  need = sum(
    math.prod(x.shape) * np.dtype(x.dtype).itemsize
    for x in jax.tree.leaves(abstract)
  )
  what = "`config.model`: its parameters"
  check(need, mesh.devices.ravel().tolist(), what)


def check(need: int, devices: Sequence[jax.Device], what: str) -> None:
  """Refuses what takes more bytes than all memory of some devices.

  Args:
    need: The number of bytes.
    devices: The devices; several share it.
    what: What takes them, as the beginning of an error.

  Raises:
    InputError: It takes more.
  """
  have = _num_bytes(devices)
  if have is not None and need > have:
    raise errors.InputError(
      f"{what} take {need / 2**30:,.1f} GiB, more than all memory,"
      f" {have / 2**30:,.1f} GiB; make it smaller"
    )


def _num_bytes(devices: Sequence[jax.Device]) -> int | None:
  """Returns the memory of devices; None if they don't say."""
  first = devices[0]
  if first.platform != "cpu":
    limit = (first.memory_stats() or {}).get("bytes_limit")
    return None if limit is None else limit * len(devices)
  # Those of one process share the machine's.
  hosts = len({device.process_index for device in devices})
  return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * hosts
