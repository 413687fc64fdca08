"""Trees, rows and batches hold the examples one by one, told by an oracle."""

from collections import Counter
import dataclasses
import functools
import itertools

from hypothesis import example
from hypothesis import given
from hypothesis import strategies as st
import jax
import numpy as np
import pytest

from prm_jax import batch as batch_lib
from prm_jax.datasets.formats import prm800k
from prm_jax.rows import loader
from prm_jax.rows import packing
from prm_jax.text import encoding
from prm_jax.text import own_form

# --- Examples ---------------------------------------------------------------


def _example(tokens, targets=(), ends=(), group=""):
  """Returns an example; targets: (index, label, weight) each."""
  n = len(tokens)
  made = encoding.Example(
    tokens=np.asarray(tokens, np.int32),
    labels=np.zeros(n, np.float32),
    weights=np.zeros(n, np.float32),
    step_end=np.zeros(n, bool),
    group=group,
  )
  for i, label, weight in targets:
    made.labels[i], made.weights[i] = label, weight
  made.step_end[list(ends)] = True
  return made


@st.composite
def examples(draw):
  """Few tokens and labels: shared prefixes, twins and copies abound.

  Weights are sums of powers of 2, so that no order of adding rounds.
  """
  tokens = draw(st.lists(st.integers(0, 2), min_size=1, max_size=7))
  n = len(tokens)
  weights = draw(
    st.lists(st.sampled_from([0, 0.25, 1, 2]), min_size=n, max_size=n)
  )
  labels = draw(st.lists(st.sampled_from([0, 0.5, 1]), min_size=n, max_size=n))
  ends = draw(st.lists(st.booleans(), min_size=n, max_size=n))
  return _example(
    [0, *tokens],
    [(i + 1, labels[i], weights[i]) for i in range(n)],
    [i + 1 for i in range(n) if ends[i]],
    draw(st.sampled_from("ab")),
  )


MANY = st.lists(examples(), max_size=8)


# --- The oracle -------------------------------------------------------------


def _paths(segment, start=0, stop=None) -> list[tuple[int, ...]]:
  """Returns the tokens that each token sees, itself last, in two ways.

  By who sees whom (visible_until) and by parent; asserts that both agree.
  """
  stop = len(segment.tokens) if stop is None else stop
  found = []
  for query in range(start, stop):
    visible = [
      k for k in range(query + 1) if query < int(segment.visible_until[k])
    ]
    climbed, k = [], query
    while k >= 0:
      climbed.append(k)
      k = int(segment.parent[k])
    assert climbed[::-1] == visible
    assert [int(segment.positions[k]) for k in visible] == list(
      range(len(visible))
    )
    found.append(tuple(int(segment.tokens[k]) for k in visible))
  return found


def _targets_of_examples(given_examples) -> Counter:
  """Returns (path, label) -> weight, one example after another."""
  total = Counter()
  for made in given_examples:
    for i in np.flatnonzero(made.weights):
      path = tuple(made.tokens[: i + 1].tolist())
      total[path, float(made.labels[i])] += float(made.weights[i])
  return total


def _targets_of_pieces(segments) -> Counter:
  total = Counter()
  for segment in segments:
    paths = _paths(segment)
    for i in np.flatnonzero(segment.weights):
      total[paths[i], float(segment.labels[i])] += float(segment.weights[i])
  return total


def _prefixes(given_examples) -> set[tuple[int, ...]]:
  return {
    tuple(made.tokens[: i + 1].tolist())
    for made in given_examples
    for i in range(len(made))
  }


def _read_places(given_examples) -> set[tuple[int, ...]]:
  return {
    tuple(made.tokens[: i + 1].tolist())
    for made in given_examples
    for i in np.flatnonzero(made.step_end)
  }


# --- Trees ------------------------------------------------------------------

TWINS = [
  _example([0, 1, 2, 1], [(1, 1, 1), (3, 1, 1)], [1, 3]),
  _example([0, 1, 2, 1], [(1, 0, 1), (3, 0.5, 2)], [1, 3]),
  _example([0, 1], [(1, 0, 0.25)], [1]),
  _example([0, 1, 2, 1, 0], [(1, 0.5, 1), (4, 1, 1)], [1, 4]),
]


@given(made=MANY, more=st.integers(0, 30))
@example(made=TWINS, more=30)
@example(made=TWINS, more=0)
@example(made=[*TWINS, *TWINS], more=3)
def test_the_trees_targets_are_those_of_the_examples_one_by_one(made, more):
  max_tokens = max(map(len, made), default=1) + more
  segments = packing.trees(made, max_tokens)
  assert _targets_of_pieces(segments) == _targets_of_examples(made)
  assert all(0 < len(segment) <= max_tokens for segment in segments)
  assert sum(map(len, segments)) <= sum(map(len, made))


@given(made=MANY, more=st.integers(0, 30))
def test_the_trees_paths_and_read_places_are_those_of_the_examples(made, more):
  max_tokens = max(map(len, made), default=1) + more
  segments = packing.trees(made, max_tokens)
  paths = [_paths(segment) for segment in segments]
  assert set(itertools.chain(*paths)) == _prefixes(made)
  read = {
    path
    for segment, of in zip(segments, paths)
    for path, end in zip(of, segment.step_end)
    if end
  }
  assert read == _read_places(made)


@given(made=MANY)
def test_an_uncut_tree_has_one_token_per_prefix_and_further_label(made):
  groups = {x.group for x in made}
  assert len(packing.trees(made, max_tokens=10_000)) == len(groups)
  for group in groups:
    members = [x for x in made if x.group == group]
    (segment,) = packing.trees(members, max_tokens=10_000)
    targets = _targets_of_examples(members)
    further = len(targets) - len({path for path, _ in targets})
    assert len(segment) == len(_prefixes(members)) + further
    read = _read_places(members)
    assert segment.step_end.tolist() == [
      path in read for path in _paths(segment)
    ]


@given(MANY, st.integers(8, 24))
def test_every_example_finds_its_path_in_the_tree(made, max_tokens):
  made = [_example(x.tokens) for x in made]
  for members, segment in packing.cut(made, max_tokens) if made else ():
    chosen = [made[i] for i in members]
    for one, path in zip(chosen, packing.paths(chosen), strict=True):
      np.testing.assert_array_equal(segment.tokens[path], one.tokens)
      np.testing.assert_array_equal(segment.parent[path], [-1, *path[:-1]])


def test_a_shared_prefix_is_stored_once():
  made = [
    _example([0, 1, 1, 1, 2], [(3, 1, 1), (4, 1, 1)]),
    _example([0, 1, 1, 1, 1], [(3, 1, 1), (4, 0, 1)]),
  ]
  (segment,) = packing.trees(made, max_tokens=10)
  assert segment.tokens.tolist() == [0, 1, 1, 1, 1, 2]
  assert segment.positions.tolist() == [0, 1, 2, 3, 4, 4]
  assert segment.visible_until.tolist() == [6, 6, 6, 6, 5, 6]
  assert segment.parent.tolist() == [-1, 0, 1, 2, 3, 3]
  assert segment.labels.tolist() == [0, 0, 0, 1, 0, 1]
  assert segment.weights.tolist() == [0, 0, 0, 2, 1, 1]


def test_labels_that_disagree_stand_on_twins_that_see_the_same():
  made = [
    _example([0, 1, 2], [(1, 1, 1)], [1]),
    _example([0, 1, 1], [(1, 0, 0.5)], [1]),
    _example([0, 1, 0], [(1, 1, 2)], [1]),
  ]
  (segment,) = packing.trees(made, max_tokens=10)
  paths = _paths(segment)
  at = [i for i, path in enumerate(paths) if path == (0, 1)]
  found = {(float(segment.labels[i]), float(segment.weights[i])) for i in at}
  assert found == {(1.0, 3.0), (0.0, 0.5)}
  assert segment.step_end[at].all()
  # The twin is seen by nobody else.
  assert sum(path[:2] == (0, 1) for path in paths) == 2 + 3


def test_a_tree_larger_than_a_piece_repeats_the_path_to_the_cut():
  trunk = [0] * 6
  made = [_example([*trunk, i], [(5, 1, 1), (6, 1, 1)]) for i in range(8)]
  segments = packing.trees(made, max_tokens=9)
  # Six tokens of trunk leave room for three leaves.
  assert [len(segment) for segment in segments] == [9, 9, 8]
  assert [float(segment.weights[5]) for segment in segments] == [3, 3, 2]
  assert all(segment.tokens[:6].tolist() == trunk for segment in segments)


def test_examples_of_other_groups_share_nothing():
  made = [_example([0, 1], [(1, 1, 1)], group=g) for g in ("a", "b", "a")]
  assert [float(p.weights.sum()) for p in packing.trees(made, 9)] == [2, 1]


def test_an_example_longer_than_a_segment_is_refused():
  with pytest.raises(ValueError, match="an example of 5 tokens, segments of 4"):
    packing.trees([_example([0] * 3), _example([0] * 5)], max_tokens=4)
  assert packing.trees([], max_tokens=4) == []


@given(made=MANY)
def test_the_given_examples_are_left_as_they_were(made):
  before = [(x.labels.copy(), x.weights.copy()) for x in made]
  packing.trees(made, max_tokens=20)
  for x, (labels, weights) in zip(made, before):
    np.testing.assert_array_equal(x.labels, labels)
    np.testing.assert_array_equal(x.weights, weights)


@given(made=examples())
def test_a_chain_is_its_example(made):
  segment = packing.chain(made)
  assert _paths(segment)[-1] == tuple(made.tokens.tolist())
  assert _targets_of_pieces([segment]) == _targets_of_examples([made])
  np.testing.assert_array_equal(segment.step_end, made.step_end)


# --- Rows -------------------------------------------------------------------

LENGTHS = st.lists(st.integers(1, 20), max_size=30)


@given(lengths=LENGTHS, seed=st.integers(0, 9))
def test_every_piece_is_in_one_row_and_no_row_overflows(lengths, seed):
  order = np.random.default_rng(seed).permutation(len(lengths))
  rows = packing.assign_rows(lengths, 20, order)
  assert sorted(itertools.chain(*rows)) == list(range(len(lengths)))
  assert all(0 < sum(lengths[i] for i in row) <= 20 for row in rows)


@given(lengths=LENGTHS, seed=st.integers(0, 9))
def test_the_rows_lengths_do_not_depend_on_how_ties_are_broken(lengths, seed):
  order = np.random.default_rng(seed).permutation(len(lengths))
  plain = packing.assign_rows(lengths, 20)
  mixed = packing.assign_rows(lengths, 20, order)
  assert [[lengths[i] for i in row] for row in plain] == [
    [lengths[i] for i in row] for row in mixed
  ]


@given(lengths=LENGTHS)
def test_no_two_rows_would_fit_into_one(lengths):
  rows = packing.assign_rows(lengths, 20)
  totals = sorted(sum(lengths[i] for i in row) for row in rows)
  assert len(totals) < 2 or totals[0] + totals[1] > 20


def test_the_tightest_row_is_filled_first():
  # 15 and 12 leave 5 and 8: the 5 goes where it fits exactly, then the 4.
  assert packing.assign_rows([12, 15, 5, 4], 20) == [[1, 2], [0, 3]]
  assert packing.assign_rows([11, 9, 12, 7], 20) == [[2, 3], [0, 1]]


def test_ties_are_broken_by_the_order_given():
  rows = packing.assign_rows([5, 5, 5, 5], 10, [3, 1, 2, 0])
  assert rows == [[3, 1], [2, 0]]


def test_a_segment_longer_than_a_row_is_refused():
  with pytest.raises(ValueError, match="a segment of 21 tokens, rows of 20"):
    packing.assign_rows([3, 21], 20)
  assert packing.assign_rows([], 20) == []


# --- Batches ----------------------------------------------------------------


@given(rows=st.lists(MANY, min_size=1, max_size=3), more=st.integers(0, 5))
def test_a_filled_row_is_its_pieces_and_padding_sees_itself_only(rows, more):
  segments = [packing.trees(made, max_tokens=64) for made in rows]
  used = [sum(map(len, row)) for row in segments]
  batch = packing.fill(segments, max(used) + more)
  assert batch.tokens.shape == (len(rows), max(used) + more)
  for i, (made, row) in enumerate(zip(rows, segments)):
    fields = {f.name for f in dataclasses.fields(packing.Segment)}
    found = {k: v for k, v in vars(batch).items() if v is not None}
    whole = packing.Segment(**{k: found[k][i] for k in fields & found.keys()})
    paths = _paths(whole)
    assert paths[: used[i]] == [p for segment in row for p in _paths(segment)]
    assert paths[used[i] :] == [(0,)] * (len(paths) - used[i])
    assert not whole.weights[used[i] :].any()
    assert not whole.step_end[used[i] :].any()
    assert (whole.parent[used[i] :] == -1).all()
    assert _targets_of_pieces([whole]) == _targets_of_examples(made)
    for k in range(used[i], len(paths)):
      assert whole.visible_until[k] == k + 1


def test_pieces_that_overflow_a_row_are_refused():
  segment = packing.chain(_example([0, 1, 2]))
  with pytest.raises(ValueError, match="broadcast"):
    packing.fill([[segment, segment]], 5)


def test_an_empty_batch_is_padding_of_the_right_types():
  batch = batch_lib.empty(2, 3)
  assert batch.visible_until.tolist() == [[1, 2, 3]] * 2
  assert batch.parent.tolist() == [[-1] * 3] * 2
  assert not batch.weights.any() and not batch.step_end.any()
  # Every array can be written to, and none is another one.
  for value in jax.tree.leaves(batch):
    value[0, 0] = 1
  assert batch.visible_until[1].tolist() == [1, 2, 3]


# --- Real data --------------------------------------------------------------


class _Words:
  """One id per word."""

  bos, eos, separator = 0, 1, 2
  vocab_size = text_ids = 1 << 20
  bos_name = None

  def __init__(self):
    self._ids = {}

  @functools.cache  # noqa: B019
  def encode(self, text):
    return [self._ids.setdefault(w, len(self._ids) + 3) for w in text.split()]

  def encode_with_spans(self, text):
    raise NotImplementedError

  def control(self, name):
    return None

  def decode(self, ids):
    return " ".join(list(self._ids)[i - 3] for i in ids if i > 2)

  def save(self, folder):
    return {"kind": "words"}


@pytest.mark.real_data
def test_prm800k_fills_its_rows_as_chains_and_as_trees(public_data):
  """With 1-in-10 of phase 1, all alternatives, and the phase-2 sample."""
  words, encoding_config = (
    _Words(),
    encoding.EncodingConfig(max_tokens=4_096, template=own_form.OWN),
  )
  made = []
  for name in ("phase1_test", "phase2_sample"):
    solutions = prm800k.read(public_data("prm800k", f"{name}.jsonl.gz"))
    more, counts = encoding.prm_examples(
      solutions,
      words,
      encoding_config,
      encoding.LabelPolicy(after_first_error="keep"),
    )
    assert not counts["solutions too long"]
    made += more
  assert sum(x.weights.sum() for x in made) == 2_245 + 867 + 1_970 + 9_377
  chains = [packing.chain(x) for x in made]
  for max_tokens in (4_096, 1_024):
    fitting = [x for x in made if len(x) <= max_tokens]
    trees = packing.trees(fitting, max_tokens)
    assert sum(segment.weights.sum() for segment in trees) == sum(
      x.weights.sum() for x in fitting
    )
    assert sum(map(len, trees)) < sum(map(len, fitting)) / 3
  trees = packing.trees(made, 4_096)
  for segments in (chains, trees):
    assert (
      loader.PackedDataset(segments, batch_size=8, sequence_length=4_096).fill
      >= 0.98
    )
