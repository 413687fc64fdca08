"""Who sees whom in a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
from jax import numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int


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


def running(
  combine: Callable[[Array, Array], Array],
  values: Float[Array, "B T"],
  starts: Bool[Array, "B T"],
) -> Float[Array, "B T"]:
  """Returns values combined from the last start in the row up to each token.

  Args:
    combine: An associative function of two arrays, such as jnp.add.
    values: The value at each token.
    starts: Where combining starts anew; true at the first token of each row.

  Returns:
    The combined value at each token.
  """

  def join(left, right):
    (begins, before), (begins_too, after) = left, right
    value = jnp.where(begins_too, after, combine(before, after))
    return begins | begins_too, value

  return jax.lax.associative_scan(join, (starts, values), axis=1)[1]


def solution_starts(visible_until: Int[ArrayLike, "B T"]) -> Bool[Array, "B T"]:
  """Returns where the solutions of each row begin.

  Args:
    visible_until: The first later token that doesn't see each token; equal for
      all tokens of a solution.

  Returns:
    True at the first token of each solution, and at each token of padding.
  """
  until = jnp.asarray(visible_until)
  other = until[:, 1:] != until[:, :-1]
  return jnp.pad(other, ((0, 0), (1, 0)), constant_values=True)
