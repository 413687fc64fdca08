"""How long rows are and how many a batch has: each such shape is compiled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import dataclasses
import itertools
from typing import TypeVar

from prm_jax.rows import packing

_PACKED_TOKENS = 2048
# The same with `lengths`, for batches that are small.
_FEW_TOKENS = 1024
_Row = TypeVar("_Row")


@dataclasses.dataclass(frozen=True)
class Shapes:
  """The shapes of a scorer's batches.

  Args:
    batch_tokens: The most tokens of a batch. A longer row is one of its own.
    sequence_length: The length of every row, and every batch is full; a longer
      solution's row is twice, four times, ... as long. 0 is no such length.
    lengths: The lengths that rows may have, ascending, which makes few shapes; a
      longer solution's row is as without. Empty leaves them to the solutions.
  """

  batch_tokens: int
  sequence_length: int = 0
  lengths: tuple[int, ...] = ()

  def all(self) -> list[tuple[int, int]]:
    """Returns every shape of batches whose rows hold several solutions.

    There are few of them with `lengths`: what fits into one row has a row of its
    own length, and more solutions have rows of `packed_length`.

    Returns:
      (length of a row in tokens, number of rows) of each.
    """
    usual = self.packed_length(0)
    return [
      (length, num)
      for length in self.lengths
      for num in (_sizes(self.most_rows(length)) if length >= usual else [1])
    ]

  def row_length(self, tokens: int) -> int:
    """Returns the length of a row for so many tokens, at least as many."""
    tokens = max(tokens, 1)  # a solution without steps may have no token
    if tokens <= max(self.lengths, default=0):
      return next(length for length in self.lengths if length >= tokens)
    padded = self.sequence_length or packing.padded_length(tokens)
    while padded < tokens:
      padded *= 2
    return padded

  def packed_length(self, longest: int) -> int:
    """Returns the length of rows that hold several solutions.

    Args:
      longest: The number of tokens of the longest one.
    """
    if self.sequence_length:
      return self.row_length(longest)
    if self.lengths:
      usual = min(_FEW_TOKENS, self.batch_tokens, self.lengths[-1])
      return self.row_length(max(usual, longest))
    return max(_PACKED_TOKENS, packing.padded_length(longest))

  def most_rows(self, length: int) -> int:
    """Returns the most rows of a length that are in a batch."""
    return max(1, self.batch_tokens // length)

  def batches(
    self, rows: Sequence[_Row], length: int
  ) -> Iterator[tuple[Sequence[_Row], int]]:
    """Yields rows of a length in batches, with the batch's number of rows.

    If that is more than there are, the last ones are padding.
    """
    start = 0
    while left := len(rows) - start:
      num = self._num_rows(self.most_rows(length), left)
      yield rows[start : start + num], num
      start += min(num, left)

  def _num_rows(self, most: int, left: int) -> int:
    if self.sequence_length:
      return most
    if self.lengths:
      return next((num for num in _sizes(most) if num >= left), most)
    # A small set is padded to few shapes, not to a whole batch.
    return min(most, packing.power_of_two(left))


def _sizes(most: int) -> list[int]:
  """Returns the numbers of rows of batches: 1, 2, 3, 4, 6, 8, ... and the most.

  So less than a third of a batch is padding.
  """
  sizes = itertools.chain([1], *((1 << k, 3 << k - 1) for k in range(1, 31)))
  return [*itertools.takewhile(lambda num: num < most, sizes), most]
