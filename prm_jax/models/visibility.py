"""Who sees whom in a row."""

from __future__ import annotations

from typing import NamedTuple

from jax import numpy as jnp
from jaxtyping import Array, Bool, Int


class Window(NamedTuple):
  """The window: a query sees less than `size` tokens back on its path."""

  positions: Int[Array, "B T"]
  size: Int[Array, ""]


def visibility(
  visible_until: Int[Array, "B T"], window: Window | None = None
) -> Bool[Array, "B T T"]:
  """Returns mask[b, q, k]: whether query q sees key k."""
  index = jnp.arange(visible_until.shape[1])
  query, key = index[:, None], index[None, :]
  sees = (key <= query) & (query < visible_until[:, None, :])
  if window is None:
    return sees
  positions, size = window
  return sees & (positions[:, :, None] - positions[:, None, :] < size)


def lengthened(
  visible_until: Int[Array, "B T"], window: Window | None, length: int
) -> tuple[Int[Array, "B L"], Window | None]:
  """Returns rows of whole blocks.

  What fills the last one sees itself: a softmax over nothing is NaN.

  Args:
    visible_until: See batch.Batch.
    window: The window, or None.
    length: L, the number of tokens of the longer rows.
  """
  after = ((0, 0), (0, length - visible_until.shape[1]))
  until = jnp.maximum(jnp.pad(visible_until, after), jnp.arange(length) + 1)
  if window is not None:
    window = window._replace(positions=jnp.pad(window.positions, after))
  return until, window
