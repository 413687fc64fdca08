"""Draws a population anew, by the scores of its nodes."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
import numpy as np

from prm_jax.search.tree import Node


def weights(nodes: Sequence[Node], temperature: float) -> Float[np.ndarray, N]:
  """Returns the share of each node: softmax(log-odds / temperature).

  Args:
    nodes: The nodes.
    temperature: A high one gives equal shares.

  Returns:
    Shares that sum up to 1.
  """
  log_odds = np.asarray([node.log_odds for node in nodes])
  with np.errstate(over="ignore"):  # e^-inf is a share of 0
    shares = np.exp((log_odds - log_odds.max()) / temperature)
  return shares / shares.sum()


def resample(
  shares: Float[np.ndarray, N],
  num: int,
  random: np.random.Generator,
  how: str,
) -> list[int]:
  """Returns which nodes are drawn, in ascending order.

  Args:
    shares: The share of each node.
    num: The number of draws.
    random: The random numbers.
    how: See particles.ParticleFilter.

  Returns:
    num indices, some of them several times.
  """
  if how == "systematic":
    points = (random.random() + np.arange(num)) / num
  else:
    points = np.sort(random.random(num))
  ends = np.cumsum(shares)
  # Rounding may leave the last end below 1.
  drawn = np.searchsorted(ends, points, side="right")
  return np.minimum(drawn, len(shares) - 1).tolist()
