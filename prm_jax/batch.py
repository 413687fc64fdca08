"""The arrays that are sent to the device, and the letters of their axes.

  B rows   T tokens of a row (queries)   S tokens that are looked at (keys)
  D model  H query heads  K key/value heads  C channels of a head  F hidden
  V vocabulary   L layers   N samples of a problem

A row holds solutions one after another, or trees. The tokens of a tree are in
depth-first order, and a token is visible only to the queries of its own
subtree. One integer per token defines this: key k is visible to the queries
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
  """Packed rows. A token of padding sees only itself and has weight 0.

  Args:
    tokens: The ids.
    positions: The number of tokens before each token on its own path; RoPE uses
      it.
    visible_until: One past the last query of the row that sees the token.
    parent: The index in the row of the token before this one on its path, -1 at
      a root. In a row of whole solutions it is the index minus 1.
    labels: The target at the token, P(correct so far) in [0, 1].
    weights: How much the target counts, 0 where there is none. A token that n
      solutions share has the sum of their weights.
    step_end: Whether a step's score is read at the token.
    pair_group: Targets of a row with the same number above 0 are compared with
      each other; None if the objective compares nothing.
    source: The number of the source of the token's solution; None if the data
      has one source.
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

  Args:
    rows: The rows themselves.
    numbers: The index of each row in the whole batch, int [R].
    num_rows: The number of rows of the whole batch.
    num_tokens: The number of tokens of the whole batch, without padding.
  """

  rows: Batch
  numbers: np.ndarray
  num_rows: int
  num_tokens: int


def empty(rows: int, tokens: int) -> Batch:
  """Returns a batch of padding alone, as numpy arrays."""
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
