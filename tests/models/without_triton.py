"""Lowers attention where jax has no backend of Pallas for GPUs.

A script of its own, for test_tree_attention.py: every module is imported with
that backend missing. It prints a line for each case.
"""

import sys

# An import of it fails.
sys.modules["jax.experimental.pallas.triton"] = None  # type: ignore[assignment]

# ruff: noqa: E402
import jax
from jax import numpy as jnp

from prm_jax import errors
from prm_jax.models import attention


def main():
  for platform, kind, T in (
    ("cpu", "tree", 16),
    ("tpu", "auto", 1024),
    ("gpu", "auto", 16),
    ("gpu", "blocks", 1024),
    ("gpu", "auto", 1024),
  ):
    print(f"{platform} {kind} {T}: {_outcome(platform, kind, T)}")


def _outcome(platform: str, kind: str, T: int) -> str:
  attention.matmul.platform = lambda: platform
  heads = jnp.ones((1, T, 1, 128))
  until = jnp.full((1, T), T)

  def attend(x):
    return attention.attend(x, x, x, until, kind)

  names = dict(gpu="cuda")
  try:
    lowered = (
      jax.jit(attend)
      .trace(heads)
      .lower(lowering_platforms=(names.get(platform, platform),))
    )
  except errors.InputError as e:
    return str(e)
  if platform == "cpu":
    return "interpreted"
  has_kernel = "tpu_custom_call" in lowered.as_text()
  return "kernel" if has_kernel else "no kernel"


if __name__ == "__main__":
  main()
