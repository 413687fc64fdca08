"""All checks, in the order in which they run."""

from __future__ import annotations

from prm_jax.device_check import attention_checks
from prm_jax.device_check import check_results
from prm_jax.device_check import inference
from prm_jax.device_check import kernels
from prm_jax.device_check import machine
from prm_jax.device_check import model_checks
from prm_jax.device_check import peers
from prm_jax.device_check import shapes
from prm_jax.device_check import speed
from prm_jax.device_check import training


def stages(setting: check_results.Setting) -> tuple[str, ...]:
  """Returns the stages; each has a process, and so its memory, of its own.

  What is right comes first, then what people run first.
  """
  updates = [f"update_{name}" for name in shapes.trained(setting)]
  return ("right", *updates, "inference", "kernels", "peers")


def checks(setting: check_results.Setting) -> list[check_results.Check]:
  """Returns the checks of a machine, in order."""
  parts = (
    machine,
    attention_checks,
    model_checks,
    training,
    speed,
    kernels,
    inference,
    peers,
  )
  order = stages(setting)
  return sorted(
    (check for part in parts for check in part.checks(setting)),
    key=lambda check: order.index(check.stage),
  )
