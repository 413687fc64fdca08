"""Pieces that are read when they are needed are those made in memory."""

from collections import Counter
import operator

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import jax
import numpy as np
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.records import array_record
from prm_jax.rows import lazy_segments
from prm_jax.rows import loader
from prm_jax.text import encoding
from prm_jax.text import tokenizer as tokenizer_lib

TOKENIZER = tokenizer_lib.Bytes()
READING = encoding.EncodingConfig(max_tokens=24)


def _encoded(solutions):
  return encoding.prm_examples(
    solutions, TOKENIZER, READING, encoding.LabelPolicy()
  )


STEPS = st.lists(st.sampled_from(["a", "b", "ab", "é"]), max_size=5)
SOLUTIONS = st.lists(
  st.tuples(
    st.sampled_from(["p", "q", "longer problem"]),
    STEPS,
    st.sampled_from([0.0, 1.0, None]),
    st.integers(0, 2),
  ),
  max_size=25,
)


def _solutions(drawn):
  return [
    schema.Solution(
      str(i),
      problem,
      tuple(steps),
      (1.0,) * (len(steps) - 1) + (last,) if steps else (),
    )
    for i, (problem, steps, last, _) in enumerate(drawn)
  ]


def _assert_equal(a, b):
  for x, y in zip(
    jax.tree.leaves(vars(a)), jax.tree.leaves(vars(b)), strict=True
  ):
    assert x.dtype == y.dtype
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("tree_tokens", [None, 24, 1_000])
@settings(max_examples=60)
@given(drawn=SOLUTIONS, one_source=st.booleans())
def test_they_are_bit_for_bit_those_in_memory(tree_tokens, drawn, one_source):
  solutions = _solutions(drawn)
  sources = np.asarray([0 if one_source else x[3] for x in drawn], np.int32)
  expected, of, counts = lazy_segments.made(
    solutions, _encoded, sources, tree_tokens
  )
  table = lazy_segments.index(solutions, _encoded, sources, tree_tokens)
  assert table.counts == counts and list(table.counts) == list(counts)
  found = lazy_segments.Segments(
    solutions, _encoded, table, tree_tokens is not None
  )
  assert table.lengths.tolist() == [len(p) for p in expected]
  assert table.sources.tolist() == of.tolist()
  for mine, theirs in zip(found, expected, strict=True):
    _assert_equal(mine, theirs)
  assert len(found) == len(expected) == len(table.starts) - 1


@given(drawn=SOLUTIONS)
def test_one_source_in_memory_is_what_packing_makes_of_all_at_once(drawn):
  solutions = _solutions(drawn)
  none = np.zeros(len(solutions), np.int32)
  examples, counts = _encoded(solutions)
  for tree_tokens, expected in (
    (None, [lazy_segments.packing.chain(x) for x in examples]),
    (24, lazy_segments.packing.trees(examples, 24)),
  ):
    found, of, said = lazy_segments.made(solutions, _encoded, none, tree_tokens)
    assert not of.any() and (said == counts or not solutions)
    for a, b in zip(found, expected, strict=True):
      _assert_equal(a, b)


def test_an_index_of_other_data_is_refused():
  solutions = [schema.Solution("1", "p", ("a",), (1.0,))]
  table = lazy_segments.index(solutions, _encoded, np.zeros(1, np.int32), None)
  for other in (
    schema.Solution("1", "p", ("ab",), (1.0,)),
    schema.Solution("1", "p", ("a",), (None,)),
  ):
    changed = lazy_segments.Segments([other], _encoded, table, trees=False)
    with pytest.raises(errors.InputError, match="isn't what the index says"):
      changed[0]


def test_batches_of_pieces_read_when_needed_are_the_same():
  drawn = [(f"{i % 8}", ["a"] * (i % 5 + 1), 1.0, i % 2) for i in range(60)]
  solutions = _solutions(drawn)
  sources = np.asarray([x[3] for x in drawn], np.int32)
  for tree_tokens in (None, 24):
    made, of, _ = lazy_segments.made(solutions, _encoded, sources, tree_tokens)
    table = lazy_segments.index(solutions, _encoded, sources, tree_tokens)
    read = lazy_segments.Segments(
      solutions, _encoded, table, tree_tokens is not None
    )
    for weights in ((), (3.0, 1.0)):
      rows = [
        loader.PackedDataset(p, 3, 24, seed=5, sources=s, weights=weights)
        for p, s in ((made, of), (read, table.sources))
      ]
      for step in (0, 1, 7, 30):
        _assert_equal(rows[0].batch_at(step), rows[1].batch_at(step))


def test_a_part_of_a_batch_reads_the_solutions_of_its_rows_alone():
  drawn = [(f"{i % 8}", ["a"] * (i % 5 + 1), 1.0, 0) for i in range(60)]
  solutions = _solutions(drawn)
  table = lazy_segments.index(solutions, _encoded, np.zeros(60, np.int32), 24)
  seen: list[str] = []

  def encoded(some):
    seen.extend(s.id for s in some)
    return _encoded(some)

  rows = [
    loader.PackedDataset(
      lazy_segments.Segments(solutions, e, table, True), 4, 24
    )
    for e in (encoded, _encoded)
  ]
  ids: list[set[str]] = []
  for number in range(4):
    seen.clear()
    part = rows[0].part_at(1, np.array([number]))
    ids.append(set(seen))
    whole = rows[1].batch_at(1)
    row = slice(number, number + 1)
    _assert_equal(part.rows, jax.tree.map(operator.itemgetter(row), whole))
  seen.clear()
  rows[0].batch_at(1)
  assert sorted(seen) == sorted(set().union(*ids))
  assert sum(map(len, ids)) == len(seen)


def test_no_solution_makes_no_piece():
  for tree_tokens in (None, 24):
    table = lazy_segments.index(
      [], _encoded, np.zeros(0, np.int32), tree_tokens
    )
    assert not len(lazy_segments.Segments([], _encoded, table, trees=True))
    assert table.counts == Counter()


def test_an_index_is_made_once(tmp_path, monkeypatch):
  from prm_jax.datasets import tfds_records

  tfds_records.quiet(bars=False)
  rows = _solutions([("p", ["a", "b"], 1.0, 0)] * 5)
  folder = tfds_records.write(tmp_path, "x", dict(train=rows))
  calls = []

  def encoded(solutions):
    calls.append(len(solutions))
    return _encoded(solutions)

  def index(max_tokens=24, tree_tokens=None, numbers=range(5)):
    chosen = array_record.Chosen(
      [array_record.Stored(folder)], np.asarray(numbers)
    )
    sources = np.zeros(len(chosen), np.int32)
    calls.clear()
    fields = dict(max_tokens=max_tokens)
    found = lazy_segments.kept_index(
      chosen, encoded, sources, tree_tokens, fields
    )
    return found, sum(calls)

  first, work = index()
  again, none = index()
  assert (work, none) == (5, 0)
  assert again.counts == first.counts and list(again.counts) == list(
    first.counts
  )
  for name in ("members", "starts", "lengths", "sources"):
    np.testing.assert_array_equal(getattr(again, name), getattr(first, name))
  for changes in (
    dict(max_tokens=9),
    dict(tree_tokens=24),
    dict(numbers=range(4)),
  ):
    assert index(**changes)[1], changes
