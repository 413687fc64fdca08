"""Intervals by bootstrap: what a number would be with other problems drawn."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from jaxtyping import Float, Int
import numpy as np

# How many draws a block of `sums` holds at most.
_BLOCK = 10_000_000


def numbered(units: Iterable[Hashable]) -> Int[np.ndarray, " N"]:
  """Returns each unit's number, in the order in which they first occur."""
  index: dict[Hashable, int] = {}
  return np.array([index.setdefault(u, len(index)) for u in units], np.int64)


def counts(
  num_units: int, num_resamples: int, seed: int
) -> Int[np.ndarray, "R N"]:
  """Returns how often each unit is drawn in each bootstrap resample."""
  return _drawn(np.random.default_rng(seed), num_units, num_resamples)


def _drawn(
  rng: np.random.Generator, num_units: int, num: int
) -> Int[np.ndarray, "R N"]:
  return rng.multinomial(num_units, np.full(num_units, 1 / num_units), num)


def sums(
  values: Float[np.ndarray, "N K"], num_resamples: int, seed: int
) -> Float[np.ndarray, "R K"]:
  """Returns the sums of the units' values in each resample.

  They are counts(N, num_resamples, seed) @ values, in little memory.

  Args:
    values: The values of each unit.
    num_resamples: The number of resamples.
    seed: The seed of the draws.
  """
  num_units = len(values)
  rng = np.random.default_rng(seed)
  block = max(1, _BLOCK // num_units)
  return np.concatenate(
    [
      _drawn(rng, num_units, min(block, num_resamples - start)) @ values
      for start in range(0, num_resamples, block)
    ]
  )


def interval(values: Float[np.ndarray, "R ..."]) -> list[Any] | None:
  """Returns the 95 % percentile interval [low, high] of each column, as lists.

  Resamples in which the value isn't defined (NaN) are left out. None without a
  resample.
  """
  values = np.asarray(values, np.float64)
  if not len(values):
    return None
  if np.isnan(values).all():
    return np.full((*values.shape[1:], 2), np.nan).tolist()
  ends = np.nanquantile(values, [0.025, 0.975], axis=0)
  return np.moveaxis(ends, 0, -1).tolist()
