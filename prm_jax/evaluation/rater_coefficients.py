"""Coefficients of agreement: Krippendorff's alpha and Cohen's kappa.

Both compare how often values differ with how often they would by chance. They
are made of tables that may be added up, so that resamples of problems cost one
product.

Krippendorff, Content Analysis (4th edition, 2019), chapter 12, and "Computing
Krippendorff's Alpha-Reliability" (2011); Cohen 1960, "A coefficient of agreement
for nominal scales".
"""

from __future__ import annotations

import itertools
import math
from typing import Literal

from jaxtyping import Float, Int
import numpy as np

Level = Literal["nominal", "ordinal"]
LEVELS: tuple[Level, ...] = ("nominal", "ordinal")


def unit_counts(
  unit: Int[np.ndarray, " F"],
  code: Int[np.ndarray, " F"],
  num_units: int,
  num_values: int,
) -> Float[np.ndarray, "U V"]:
  """Returns how often each value occurs in each unit.

  Args:
    unit: The unit of each value that was given.
    code: The value's number in the order of values.
    num_units: The number of units.
    num_values: The number of different values.
  """
  flat = np.bincount(unit * num_values + code, minlength=num_units * num_values)
  return flat.reshape(num_units, num_values).astype(np.float64)


def coincidences(
  counts: Float[np.ndarray, "U V"],
  problem: Int[np.ndarray, " U"],
  num_problems: int,
) -> Float[np.ndarray, "P VV"]:
  """Returns the coincidence matrix of each problem's units, as one row.

  Each ordered pair of values in a unit with m values adds 1 / (m - 1) to its
  cell.

  Args:
    counts: How often each value occurs in each unit.
    problem: The problem of each unit.
    num_problems: The number of problems.
  """
  size = counts.sum(axis=1)
  weight = np.where(size > 1, 1 / np.maximum(size - 1, 1), 0.0)
  num_values = counts.shape[1]
  cells = []
  for c, k in itertools.product(range(num_values), repeat=2):
    pairs = counts[:, c] * (counts[:, k] - (c == k)) * weight
    cells.append(np.bincount(problem, pairs, minlength=num_problems))
  return np.stack(cells, axis=1) if cells else np.zeros((num_problems, 0))


def alphas(
  coincidences: Float[np.ndarray, "R VV"], level: Level
) -> Float[np.ndarray, " R"]:
  """Returns Krippendorff's alpha of each coincidence matrix, 1 - Do / De.

  It is NaN if it isn't defined: no unit has two values, or all are equal.

  Args:
    coincidences: The matrices, each as one row.
    level: nominal, where values are equal or not, or ordinal, where they differ
      by how many values are between them.
  """
  num_values = math.isqrt(coincidences.shape[1])
  o = coincidences.reshape(len(coincidences), num_values, num_values)
  n = o.sum(axis=2)
  total = n.sum(axis=1)
  if level == "nominal":
    distance = np.broadcast_to(1.0 - np.eye(num_values), o.shape)
  else:  # All values from c to k, the outer two half.
    before = np.cumsum(n, axis=1) - n / 2
    distance = (before[:, :, None] - before[:, None, :]) ** 2
  observed = np.einsum("rck,rck->r", o, distance) * (total - 1)
  expected = np.einsum("rc,rk,rck->r", n, n, distance)
  return _one_minus(observed, expected)


def kappas(confusion: Float[np.ndarray, "R VV"]) -> Float[np.ndarray, " R"]:
  """Returns Cohen's kappa of each table, NaN where it isn't defined.

  Args:
    confusion: Tables, each as one row: how often one rater gives a value where
      the other gives another one.
  """
  num_values = math.isqrt(confusion.shape[1])
  n = confusion.reshape(len(confusion), num_values, num_values)
  total = n.sum(axis=(1, 2))
  differ = (total - np.einsum("rcc->r", n)) * total
  by_chance = total**2 - np.einsum("rc,rc->r", n.sum(axis=2), n.sum(axis=1))
  return _one_minus(differ, by_chance)


def _one_minus(
  observed: Float[np.ndarray, " R"], expected: Float[np.ndarray, " R"]
) -> Float[np.ndarray, " R"]:
  # Sums of reciprocals: what is 0 may be a rounding error.
  is_defined = expected > 1e-9
  return np.where(
    is_defined, 1 - observed / np.where(is_defined, expected, 1), np.nan
  )
