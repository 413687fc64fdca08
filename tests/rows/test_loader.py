"""A batch is a pure function of (seed, step), however it is asked for."""

from collections import Counter
import dataclasses
import gc
import itertools
import threading

from hypothesis import example
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import jax
import numpy as np
import pytest

from prm_jax import errors
from prm_jax.rows import loader
from prm_jax.rows import packing
from prm_jax.text import encoding

LENGTHS = tuple(1 + i % 7 for i in range(40))


def _segments(lengths=LENGTHS) -> list[packing.Segment]:
  """Returns chains; every token of the i-th is i + 1."""
  return [
    packing.chain(
      encoding.Example(
        tokens=np.full(n, i + 1, np.int32),
        labels=np.full(n, i / 100, np.float32),
        weights=np.ones(n, np.float32),
        step_end=np.arange(n) == n - 1,
      )
    )
    for i, n in enumerate(lengths)
  ]


def _rows(rows=3, seed=0, lengths=LENGTHS) -> loader.PackedDataset:
  return loader.PackedDataset(
    _segments(lengths), rows, sequence_length=16, seed=seed
  )


def _stream(rows: loader.PackedDataset, number: int) -> np.ndarray:
  """Returns the tokens of the first `number` rows of the endless stream."""
  steps = -(-number // rows.batch_size)
  tokens = [rows.batch_at(step).tokens for step in range(steps)]
  return np.concatenate(tokens)[:number]


def _assert_same(a, b):
  jax.tree.map(np.testing.assert_array_equal, a, b)


@given(steps=st.lists(st.integers(0, 40), max_size=6), seed=st.integers(0, 9))
def test_a_batch_is_the_same_in_any_order_and_from_a_fresh_object(steps, seed):
  rows = _rows(seed=seed)
  for step in steps:
    _assert_same(rows.batch_at(step), _rows(seed=seed).batch_at(step))


@given(
  lengths=st.lists(st.integers(1, 16), min_size=1, max_size=30),
  rows=st.integers(1, 9),
  seed=st.integers(0, 9),
)
def test_an_epoch_holds_every_piece_once(lengths, rows, seed):
  data = _rows(rows, seed, lengths)
  size = data.rows_per_epoch
  whole = Counter({i + 1: n for i, n in enumerate(lengths)})
  stream = _stream(data, 3 * size)
  for epoch in range(3):
    tokens = Counter(stream[epoch * size : (epoch + 1) * size].ravel().tolist())
    padding = tokens.pop(0, 0)
    assert tokens == whole
    assert data.fill == pytest.approx(1 - padding / (16 * size))


@pytest.mark.parametrize("rows", [1, 2, 5, 64])
def test_the_rows_come_in_the_same_order_for_any_batch_size(rows):
  np.testing.assert_array_equal(_stream(_rows(rows), 60), _stream(_rows(3), 60))


def test_every_array_of_a_batch_is_that_of_its_pieces():
  segments = {int(segment.tokens[0]): segment for segment in _segments()}
  batch = _rows().batch_at(2)
  for i in range(3):
    ids = [int(k) for k, _ in itertools.groupby(batch.tokens[i]) if k]
    expected = packing.fill([[segments[k] for k in ids]], 16)
    _assert_same(jax.tree.map(lambda x, i=i: x[i : i + 1], batch), expected)


def test_the_order_changes_with_the_epoch_and_the_seed():
  size = _rows().rows_per_epoch
  orders = [_stream(_rows(seed=seed), 4 * size) for seed in range(3)]
  epochs = [o[k * size : (k + 1) * size] for o in orders for k in range(4)]
  for a, b in itertools.combinations(epochs, 2):
    assert (a != b).any()


def test_pieces_of_one_length_change_their_company_from_epoch_to_epoch():
  rows = loader.PackedDataset(_segments((8,) * 20), 1, sequence_length=16)
  companies = [
    {frozenset(row.tolist()) for row in _stream(rows, 20)[k : k + 10]}
    for k in (0, 10)
  ]
  assert companies[0] != companies[1]


def test_rows_whose_pieces_never_change_come_in_another_order_each_epoch():
  rows = loader.PackedDataset(_segments(range(9, 17)), 1, sequence_length=16)
  stream = _stream(rows, 3 * 8).reshape(3, 8, 16)
  for a, b in itertools.combinations(stream, 2):
    assert (a != b).any()
    assert sorted(a[:, 0]) == sorted(b[:, 0]) == list(range(1, 9))


def test_no_data_is_one_line_and_a_segment_longer_than_a_row_is_refused():
  with pytest.raises(errors.InputError, match="no training data is left"):
    loader.PackedDataset([], 1, 8)
  with pytest.raises(ValueError, match="a segment of 17 tokens, rows of 16"):
    _rows(lengths=(3, 17)).batch_at(0)


# --- Parts ------------------------------------------------------------------


class _Counted(list):
  """Pieces that say which of them were read."""

  def __init__(self, segments):
    super().__init__(segments)
    self.read: list[int] = []

  def __getitem__(self, number):
    self.read.append(int(number))
    return super().__getitem__(number)


@settings(max_examples=30)
@given(
  num_segments=st.integers(1, 17),
  owners=st.lists(st.integers(0, 2), min_size=6, max_size=6),
  step=st.integers(0, 9),
  weighted=st.booleans(),
)
def test_parts_make_up_the_batch_and_read_the_pieces_of_their_rows_alone(
  num_segments, owners, step, weighted
):
  lengths = LENGTHS[:num_segments]
  sources = np.arange(num_segments, dtype=np.int32) % 2
  mixed = weighted and num_segments > 3
  more = dict(sources=sources, weights=(1.0, 1.0)) if mixed else {}

  def rows(segments):
    return loader.PackedDataset(segments, 6, 16, seed=3, **more)

  whole = rows(_segments(lengths)).batch_at(step)
  for owner in set(owners):
    numbers = np.flatnonzero(np.equal(owners, owner))
    segments = _Counted(_segments(lengths))
    mine = rows(segments)
    segments.read.clear()  # the annotation was checked
    part = mine.part_at(step, numbers)
    _assert_same(part.rows, jax.tree.map(lambda x, n=numbers: x[n], whole))
    assert (part.num_rows, part.numbers.tolist()) == (6, numbers.tolist())
    assert part.num_tokens == np.count_nonzero(whole.tokens)
    # Every token of the i-th piece is i + 1.
    expected = [
      k - 1
      for row in part.rows.tokens.tolist()
      for k, _ in itertools.groupby(row)
      if k
    ]
    assert segments.read == expected


def test_all_parts_have_the_same_fields_though_one_has_no_pairs():
  first, *others = _segments((16,) * 4)
  group = np.ones(16, np.int32)
  segments = [dataclasses.replace(first, pair_group=group), *others]
  rows = loader.PackedDataset(segments, 4, 16)
  found = [rows.part_at(0, np.array([i])).rows.pair_group for i in range(4)]
  assert sorted(int(x.sum()) for x in found) == [0, 0, 0, 16]


# --- Sources and weights ----------------------------------------------------


def _mixed(weights=(), rows=3, seed=0, num=(50, 30, 9)) -> loader.PackedDataset:
  """Returns rows of pieces of three sources, not one after another."""
  sources = np.repeat(np.arange(3, dtype=np.int32), num)
  np.random.default_rng(1).shuffle(sources)
  lengths = tuple(1 + i % 7 for i in range(len(sources)))
  return loader.PackedDataset(
    _segments(lengths), rows, 16, seed, sources=sources, weights=weights
  )


def _sources_of_rows(data: loader.PackedDataset, number: int) -> np.ndarray:
  """Returns the one source of each of the first rows of the stream."""
  steps = -(-number // data.batch_size)
  found = []
  for step in range(steps):
    batch = data.batch_at(step)
    for tokens, source in zip(batch.tokens, batch.source):
      (only,) = set(source[tokens > 0].tolist())
      found.append(only)
  return np.asarray(found[:number])


@given(steps=st.lists(st.integers(0, 40), max_size=6), seed=st.integers(0, 9))
def test_a_mixed_batch_is_the_same_in_any_order(steps, seed):
  data = _mixed((0.5, 0.3, 0.2), seed=seed)
  for step in steps:
    fresh = _mixed((0.5, 0.3, 0.2), seed=seed).batch_at(step)
    _assert_same(data.batch_at(step), fresh)


def test_without_weights_the_sources_are_only_said():
  data = _mixed()
  plain = loader.PackedDataset(
    data.segments, data.batch_size, data.sequence_length, data.seed
  )
  assert plain.batch_at(0).source is None
  for step in range(12):
    batch = data.batch_at(step)
    for i, k in np.argwhere(batch.tokens > 0):
      # Every token of the i-th piece is i + 1.
      assert batch.source[i, k] == data.sources[batch.tokens[i, k] - 1]
    assert not batch.source[batch.tokens == 0].any()
    _assert_same(batch.replace(source=None), plain.batch_at(step))


# Not so unequal that a source has no row at all: that is refused.
@given(
  weights=st.tuples(*[st.floats(0.5, 5.0)] * 3),
  rows=st.integers(1, 7),
  seed=st.integers(0, 9),
)
def test_an_epoch_holds_exactly_the_share_of_each_source(weights, rows, seed):
  data = _mixed(weights, rows, seed)
  size = data.rows_per_epoch
  exact = np.asarray(weights) / sum(weights) * size
  assert data.shares.sum() == size
  assert (abs(data.shares - exact) < 1).all()
  found = _sources_of_rows(data, 2 * size)
  for epoch in (found[:size], found[size:]):
    assert np.bincount(epoch, minlength=3).tolist() == data.shares.tolist()
    # Evenly: no stretch from the start is off by more than a row of each.
    for n in range(size + 1):
      counts = np.bincount(epoch[:n], minlength=3)
      assert (abs(counts - data.shares * n / size) <= 3).all()


def test_every_piece_of_a_source_comes_once_before_any_comes_again():
  data = _mixed((0.6, 0.2, 0.2))
  one = [
    loader.PackedDataset(
      [p for p, s in zip(data.segments, data.sources) if s == k], 1, 16
    )
    for k in range(3)
  ]
  number = 4 * data.rows_per_epoch
  stream, sources = _stream(data, number), _sources_of_rows(data, number)
  for k in range(3):
    own = stream[sources == k]
    assert len(own) > one[k].rows_per_epoch
    # It is the source's own stream, as if it were alone.
    np.testing.assert_array_equal(own, _stream(one[k], len(own)))


def test_a_change_of_weights_changes_the_shares_and_nothing_of_a_source():
  shares = [_mixed(w).shares for w in ((1.0, 1.0, 1.0), (8.0, 1.0, 1.0))]
  assert shares[1][0] > shares[0][0] and shares[0].max() <= shares[0].min() + 1


def test_a_source_that_weights_cant_reach_is_refused():
  with pytest.raises(errors.InputError, match=r"data\.weights\[2\]=0.001: not"):
    _mixed((1.0, 1.0, 0.001))
  with pytest.raises(errors.InputError, match=r"weights\[2\]=1.0: nothing of"):
    _mixed((1.0, 1.0, 1.0), num=(50, 30, 0))


# --- Prefetching ------------------------------------------------------------


def _threads() -> set[threading.Thread]:
  return set(threading.enumerate())


@given(
  start=st.integers(0, 9), count=st.integers(-1, 12), depth=st.integers(1, 5)
)
@example(start=0, count=3, depth=2)
@example(start=4, count=1, depth=3)
def test_prefetching_yields_every_step_once_in_order(start, count, depth):
  before = _threads()
  found = loader.prefetch(lambda step: step, start, start + count, depth)
  assert list(found) == list(range(start, start + count))
  assert not _threads() - before  # another test's may end meanwhile


def test_prefetched_batches_are_those_of_their_steps():
  rows = _rows()
  for step, batch in enumerate(loader.prefetch(rows.batch_at, 2, 9), 2):
    _assert_same(batch, _rows().batch_at(step))
  assert step == 8


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_no_more_is_built_ahead_than_asked_for(depth):
  built = []
  for taken, _ in enumerate(
    loader.prefetch(lambda step: built.append(step), 0, 20, depth), 1
  ):
    assert taken <= len(built) <= taken + depth
  assert built == list(range(20))


@pytest.mark.parametrize("depth", [1, 2])
def test_building_overlaps_with_the_consumer(depth):
  """The next batch is built while this one is in use, or this would hang."""
  started = [threading.Event() for _ in range(6)]

  def batch_at(step):
    started[step].set()
    return step

  for step in loader.prefetch(batch_at, 0, 6, depth):
    if step < 5:
      assert started[step + 1].wait(timeout=60)


@pytest.mark.parametrize("leave", ["close", "delete", "raise"])
def test_the_thread_ends_when_the_consumer_leaves(leave):
  before = _threads()
  built = []
  found = loader.prefetch(lambda step: built.append(step), 0, 1_000_000)
  next(found)
  assert len(_threads() - before) == 1
  if leave == "close":
    found.close()
  elif leave == "raise":
    with pytest.raises(KeyError):
      found.throw(KeyError)
  del found
  gc.collect()
  assert not _threads() - before  # another test's may end meanwhile
  assert len(built) <= 3


def test_a_batch_that_fails_fails_at_its_step_and_ends_the_thread():
  before = _threads()

  def batch_at(step):
    if step == 3:
      raise KeyError(step)
    return step

  found = loader.prefetch(batch_at, 0, 10, depth=4)
  assert list(itertools.islice(found, 3)) == [0, 1, 2]
  with pytest.raises(KeyError):
    next(found)
  assert not _threads() - before  # another test's may end meanwhile


def test_prefetching_nothing_ahead_is_refused():
  with pytest.raises(ValueError, match="depth=0"):
    next(loader.prefetch(lambda step: step, 0, 3, depth=0))
