"""MATH-APS as trees: see math_aps, which reads both of its forms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prm_jax import schema
from prm_jax.datasets.formats import math_aps
from prm_jax.runtime import files


def read(path: files.PathLike) -> Iterator[schema.Solution]:
  """Yields the nodes of every row; see math_aps.read."""
  return math_aps.read(path)


def check(solution: schema.Solution) -> None:
  """Raises InputError if the form can't hold the solution."""
  math_aps.tree_row([solution])


def write(path: files.PathLike, solutions: Iterable[schema.Solution]) -> int:
  """Writes trees, all or nothing; see math_aps.write_trees."""
  return math_aps.write_trees(path, solutions)
