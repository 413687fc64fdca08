"""A batch as a pure function of (seed, step), and its prefetching.

Row r of the endless stream is row r mod R of epoch r // R, and step k takes
the B rows from k * B on. So the step number is the whole state of the data, and
the number of hosts that share the rows can't change their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
import dataclasses
import functools
import itertools
from typing import NamedTuple

import numpy as np

from prm_jax import batch as batch_lib
from prm_jax import errors
from prm_jax.records import array_record
from prm_jax.rows import lazy_segments
from prm_jax.rows import packing


@dataclasses.dataclass(frozen=True, eq=False)
class PackedDataset:
  """Segments, and the shape of the batches that they are packed into.

  Args:
    segments: The segments.
    batch_size: The number of rows of a batch.
    sequence_length: The number of tokens of a row.
    seed: The seed of the order.
    sources: The source of each segment, [number of segments]; batches then have
      the source of each token.
    weights: The weight of each source; its share of the rows is its weight
      divided by their sum. None mixes all segments in proportion to their size.
      With weights
      - a row holds segments of one source; each source has epochs of its own,
      in
        which each of its segments comes once;
      - an epoch has as many rows as one pass over every source, and exactly
        share[s] of them are of source s: weights[s] of the epoch, rounded so
        that the shares add up (largest remainders);
      - within an epoch the rows of each source are spread evenly.
  """

  segments: Sequence[packing.Segment]
  batch_size: int
  sequence_length: int
  seed: int = 0
  sources: np.ndarray | None = None
  weights: tuple[float, ...] = ()

  def __post_init__(self):
    if not len(self.segments):
      raise errors.InputError(
        "no training data is left after encoding; check the counts above"
      )
    if self.weights:
      self._check_weights()

  def _check_weights(self) -> None:
    for k, (weight, stream) in enumerate(zip(self.weights, self._streams)):
      if not len(stream):
        raise errors.InputError(
          f"data.weights[{k}]={weight}: nothing of that source is left after"
          " encoding; check the counts above, or take it out"
        )
    for k, (weight, share) in enumerate(zip(self.weights, self.shares)):
      if not share:
        raise errors.InputError(
          f"data.weights[{k}]={weight}: not one of an epoch's"
          f" {self.rows_per_epoch} rows; raise it or take the source out"
        )

  @functools.cached_property
  def lengths(self) -> np.ndarray:
    if isinstance(self.segments, lazy_segments.Segments):
      return self.segments.table.lengths
    return np.asarray([len(p) for p in self.segments])

  @functools.cached_property
  def _compares(self) -> bool:
    """Returns whether a segment has targets that are compared."""
    # What stays in its files never has: see training.batches.
    stored = isinstance(self.segments, lazy_segments.Segments)
    return not stored and any(p.pair_group is not None for p in self.segments)

  @functools.cached_property
  def _streams(self) -> list[np.ndarray]:
    """Returns the numbers of the segments that are packed together."""
    if not self.weights:
      return [np.arange(len(self.segments))]
    return [np.flatnonzero(self.sources == k) for k in range(len(self.weights))]

  @functools.cached_property
  def _sizes(self) -> list[int]:
    """Returns the number of rows of each stream, for every order the same."""
    return [len(self._epoch(k, 0).ends) for k in range(len(self._streams))]

  @functools.cached_property
  def rows_per_epoch(self) -> int:
    return sum(self._sizes)

  @functools.cached_property
  def shares(self) -> np.ndarray:
    """The number of rows of an epoch from each source, if there are weights."""
    return _shares(self.weights, self.rows_per_epoch)

  @functools.cached_property
  def fill(self) -> float:
    """The share of the rows' tokens that isn't padding."""
    return float(
      self.lengths.sum() / (self.rows_per_epoch * self.sequence_length)
    )

  @functools.cached_property
  def _epoch(self) -> Callable[[int, int], _Packed]:
    """Returns the rows of a stream's epoch; the last few epochs are kept."""

    def epoch(stream: int, number: int) -> _Packed:
      segments = self._streams[stream]
      lengths = self.lengths[segments]
      return _assign(lengths, self.sequence_length, self.seed, number)

    return functools.lru_cache(maxsize=2 * len(self._streams))(epoch)

  @functools.cached_property
  def _schedule(self) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
    return functools.lru_cache(maxsize=2)(
      functools.partial(_interleave, self.shares, self.seed)
    )

  def _row(self, r: int) -> np.ndarray:
    """Returns the numbers of the segments in row r of the endless stream."""
    stream = 0
    if self.weights:
      epoch, place = divmod(r, self.rows_per_epoch)
      streams, ranks = self._schedule(epoch)
      stream = int(streams[place])
      r = epoch * int(self.shares[stream]) + int(ranks[place])
    epoch, row = divmod(r, self._sizes[stream])
    return self._streams[stream][self._epoch(stream, epoch).row(row)]

  def batch_at(self, step: int) -> batch_lib.Batch:
    """Returns the batch of a step, counted from 0."""
    return self._filled(self._plan(step))

  def part_at(self, step: int, numbers: np.ndarray) -> batch_lib.Part:
    """Returns some rows of the batch of a step; no other row is read or made.

    Args:
      step: The step, counted from 0.
      numbers: The indices of the rows in the batch, int [R].
    """
    plan = self._plan(step)
    return batch_lib.Part(
      rows=self._filled([plan[i] for i in numbers]),
      numbers=numbers,
      num_rows=self.batch_size,
      num_tokens=int(self.lengths[np.concatenate(plan)].sum()),
    )

  def _plan(self, step: int) -> list[np.ndarray]:
    """Returns the numbers of the segments in each row of a step's batch."""
    first = step * self.batch_size
    return [self._row(r) for r in range(first, first + self.batch_size)]

  def _filled(self, rows: Sequence[np.ndarray]) -> batch_lib.Batch:
    numbers = np.concatenate(rows)
    segments = iter(array_record.pick(self.segments, numbers))
    picked = [[next(segments) for _ in row] for row in rows]
    batch = packing.fill(picked, self.sequence_length)
    if self._compares and batch.pair_group is None:
      # All batches, and all parts of one, have the same fields.
      none = np.zeros(batch.tokens.shape, np.int32)
      batch = dataclasses.replace(batch, pair_group=none)
    if self.sources is None:
      return batch
    source = np.zeros(batch.tokens.shape, np.int32)
    for i, row in enumerate(rows):
      of_token = np.repeat(self.sources[row], self.lengths[row])
      source[i, : len(of_token)] = of_token
    return dataclasses.replace(batch, source=source)


class _Packed(NamedTuple):
  """Rows of numbers: a list of lists, in eight bytes for each number."""

  numbers: np.ndarray
  ends: np.ndarray

  @classmethod
  def of(cls, rows: Sequence[Sequence[int]]) -> _Packed:
    ends = np.cumsum([len(row) for row in rows])
    flat = itertools.chain.from_iterable(rows)
    return cls(np.fromiter(flat, np.int64, ends[-1]), ends)

  def row(self, i: int) -> np.ndarray:
    return self.numbers[self.ends[i - 1] if i else 0 : self.ends[i]]


def _assign(
  lengths: np.ndarray, sequence_length: int, seed: int, epoch: int
) -> _Packed:
  """Returns the rows of an epoch: packed in random order, then shuffled."""
  random = np.random.default_rng([seed, epoch])
  order = random.permutation(len(lengths))
  assigned = packing.assign_rows(lengths, sequence_length, order)
  return _Packed.of([assigned[i] for i in random.permutation(len(assigned))])


def _shares(weights: Sequence[float], rows: int) -> np.ndarray:
  """Returns whole numbers that add up to rows, by largest remainders."""
  exact = np.asarray(weights) / sum(weights) * rows
  shares = np.floor(exact).astype(np.int64)
  # In a stable order, so that equal remainders go to the first.
  largest = np.argsort(shares - exact, kind="stable")
  shares[largest[: rows - shares.sum()]] += 1
  return shares


def _interleave(
  shares: np.ndarray, seed: int, epoch: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns each row's stream, and how many rows of that stream precede it.

  The k-th of n rows is at (k + u) / n of the epoch, with one random u for each
  stream and epoch.
  """
  # A third number, so that these aren't the numbers that order the segments.
  random = np.random.default_rng([seed, epoch, 1])
  streams = np.repeat(np.arange(len(shares)), shares)
  ranks = np.concatenate([np.arange(n) for n in shares])
  places = (ranks + random.random(len(shares))[streams]) / shares[streams]
  order = np.argsort(places, kind="stable")
  return streams[order], ranks[order]


def prefetch(
  batch_at: Callable[[int], batch_lib.Batch | batch_lib.Part],
  start: int,
  stop: int,
  depth: int = 2,
) -> Iterator[batch_lib.Batch | batch_lib.Part]:
  """Yields batch_at(start) to batch_at(stop - 1), built ahead in one thread.

  Args:
    batch_at: Returns the batch of a step.
    start: The first step.
    stop: One past the last step.
    depth: The most batches that are built or waiting, at least 1.
  """
  if depth < 1:
    raise ValueError(f"depth={depth}: expected 1 or more")
  steps = iter(range(start, stop))
  pool = futures.ThreadPoolExecutor(max_workers=1)
  try:
    pending = [pool.submit(batch_at, k) for k in itertools.islice(steps, depth)]
    while pending:
      batch = pending.pop(0).result()
      pending += [pool.submit(batch_at, k) for k in itertools.islice(steps, 1)]
      yield batch
  finally:
    # Also when the consumer stops early.
    pool.shutdown(cancel_futures=True)
