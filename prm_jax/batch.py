"""The arrays that cross to the device, and the letters of their axes.

  B rows   T tokens of a row (queries)   S tokens that are looked at (keys)
  D model  H query heads  K key/value heads  C channels of a head  F hidden
  V vocabulary   L layers   N samples of a problem

A row holds solutions one after another, or trees: tokens in depth-first
order, where a token is visible to the queries of its own subtree only. One
integer says who sees whom: key k is visible to the queries
k <= q < visible_until[k]. Separate solutions are the special case
visible_until[k] = end of the solution.
"""

from __future__ import annotations

import dataclasses

from flax import struct
from jaxtyping import Array, Bool, Float, Int
import numpy as np

ArrayLike = Array | np.ndarray


@struct.dataclass
class Batch:
  """Packed rows. Padding sees itself only and has weight 0.

  positions: depth of the token on its own path, from 0: RoPE's position.
  visible_until: one past the last query of the row that sees this token.
  parent: index in the row of the token before this one on its path; -1 at a
    root. In a row of whole solutions it is the index minus 1.
  labels: the target at this token, P(correct so far) in [0, 1].
  weights: how much the target counts; 0 where there is none. A token that n
    solutions share carries the sum of their weights.
  step_end: a step's score is read here.
  pair_group: targets of a row with the same number above 0 are compared with
    each other; None where the objective compares nothing.
  source: number of the source that the token's solution is of; None where the
    data has one source only.
  """

  tokens: Int[ArrayLike, "B T"]
  positions: Int[ArrayLike, "B T"]
  visible_until: Int[ArrayLike, "B T"]
  parent: Int[ArrayLike, "B T"]
  labels: Float[ArrayLike, "B T"]
  weights: Float[ArrayLike, "B T"]
  step_end: Bool[ArrayLike, "B T"]
  pair_group: Int[ArrayLike, "B T"] | None = None
  source: Int[ArrayLike, "B T"] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
  """The rows of a batch that one of several processes needs.

  rows: the rows themselves. numbers: int [R], the place of each in the whole
  batch. num_rows, num_tokens: of the whole batch; padding is no token.
  """

  rows: Batch
  numbers: np.ndarray
  num_rows: int
  num_tokens: int


def empty(rows: int, tokens: int) -> Batch:
  """Returns a batch of nothing but padding, as numpy arrays."""
  index = np.broadcast_to(np.arange(tokens, dtype=np.int32), (rows, tokens))
  return Batch(
    tokens=np.zeros((rows, tokens), np.int32),
    positions=np.zeros((rows, tokens), np.int32),
    visible_until=index + 1,
    parent=np.full((rows, tokens), -1, np.int32),
    labels=np.zeros((rows, tokens), np.float32),
    weights=np.zeros((rows, tokens), np.float32),
    step_end=np.zeros((rows, tokens), bool),
  )
