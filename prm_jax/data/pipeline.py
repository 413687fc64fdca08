"""A batch as a pure function of (seed, step), and its prefetching.

Row r of the endless stream is row r mod R of epoch r // R, and step k takes
the B rows from k * B on, so the step number is the whole iterator state, and
the number of hosts that share the rows can't change their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
import dataclasses
import functools
import itertools

import numpy as np

from prm_jax import batch as batch_lib
from prm_jax import schema
from prm_jax.data import packing


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
  """Pieces, and the shape of the batches that they are dealt into."""

  pieces: Sequence[packing.Piece]
  rows: int
  row_tokens: int
  seed: int = 0

  def __post_init__(self):
    if not self.pieces:
      raise schema.InputError(
        "no training data is left after encoding; check the counts above"
      )

  @functools.cached_property
  def lengths(self) -> np.ndarray:
    return np.asarray([len(p) for p in self.pieces])

  @functools.cached_property
  def rows_per_epoch(self) -> int:
    return len(packing.assign_rows(self.lengths, self.row_tokens))

  @functools.cached_property
  def fill(self) -> float:
    """Share of the rows' tokens that aren't padding."""
    return float(self.lengths.sum() / (self.rows_per_epoch * self.row_tokens))

  @functools.cached_property
  def _epoch(self) -> Callable[[int], list[list[int]]]:
    """Returns the rows of an epoch; the last few epochs are kept."""
    return functools.lru_cache(maxsize=2)(
      functools.partial(_assign, self.lengths, self.row_tokens, self.seed)
    )

  def batch_at(self, step: int) -> batch_lib.Batch:
    """Returns the batch of a step, counted from 0."""
    picked = []
    for r in range(step * self.rows, (step + 1) * self.rows):
      epoch, row = divmod(r, self.rows_per_epoch)
      picked.append([self.pieces[k] for k in self._epoch(epoch)[row]])
    return packing.fill(picked, self.row_tokens)


def _assign(
  lengths: np.ndarray, row_tokens: int, seed: int, epoch: int
) -> list[list[int]]:
  """Returns the rows of an epoch: packed in random order, then shuffled."""
  random = np.random.default_rng([seed, epoch])
  order = random.permutation(len(lengths))
  assigned = packing.assign_rows(lengths, row_tokens, order)
  return [assigned[i] for i in random.permutation(len(assigned))]


def batches(rows: Rows, steps: int) -> list[batch_lib.Batch]:
  """Returns the first `steps` batches: a fixed set to evaluate on."""
  return [rows.batch_at(step) for step in range(steps)]


def prefetch(
  batch_at: Callable[[int], batch_lib.Batch],
  start: int,
  stop: int,
  depth: int = 2,
) -> Iterator[batch_lib.Batch]:
  """Yields batch_at(start) to batch_at(stop - 1), built ahead in one thread.

  depth: how many batches are built or waiting, at least 1.
  """
  if depth < 1:
    raise ValueError(f"depth={depth}: expected 1 or more")
  steps = iter(range(start, stop))
  pool = futures.ThreadPoolExecutor(max_workers=1)
  try:
    pending = [
      pool.submit(batch_at, step) for step in itertools.islice(steps, depth)
    ]
    while pending:
      batch = pending.pop(0).result()
      pending += [
        pool.submit(batch_at, step) for step in itertools.islice(steps, 1)
      ]
      yield batch
  finally:
    # Also when the consumer leaves early.
    pool.shutdown(cancel_futures=True)
