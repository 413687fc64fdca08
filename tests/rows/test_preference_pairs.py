"""Pairs: who is whose rival, told by texts, and rivals that share a row."""

from collections import defaultdict
import functools
import itertools

from jax import numpy as jnp
import numpy as np
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.datasets.formats import prm800k
from prm_jax.rows import packing
from prm_jax.rows import preference_pairs
from prm_jax.text import encoding
from prm_jax.text import own_form
from prm_jax.text import tokenizer as tokenizer_lib
from prm_jax.training import batches
from prm_jax.training import losses

BYTES = tokenizer_lib.Bytes()
LONG = 1 << 12


class _Words(tokenizer_lib.Bytes):
  """One id per word: much shorter than bytes."""

  def __init__(self):
    self._ids, self._known = {}, {}

  def encode(self, text):
    if text not in self._known:
      ids, words = self._ids, text.split()
      self._known[text] = [ids.setdefault(w, len(ids) + 300) for w in words]
    return self._known[text]


def _solution(problem, steps, labels, outcome=None):
  return schema.Solution(
    id="x",
    problem=problem,
    steps=tuple(steps),
    labels=tuple(labels),
    outcome=labels[-1] == 1 if outcome is None else outcome,
  )


@functools.cache
def _solutions():
  """Returns solutions of three problems whose steps branch at random."""
  random = np.random.default_rng(0)
  made = []
  for i in range(24):
    steps = [f"{'ab'[random.integers(2)]}" for _ in range(1 + i % 4)]
    labels = [float(random.random() < 0.7) for _ in steps]
    made.append(_solution(f"problem {i % 3}", steps, labels))
  return made


def _examples(place="last_token", solutions=None):
  examples, _ = encoding.prm_examples(
    _solutions() if solutions is None else solutions,
    BYTES,
    encoding.EncodingConfig(
      score_position=place, max_tokens=LONG, template=own_form.OWN
    ),
    encoding.LabelPolicy(after_first_error="keep"),
  )
  return examples


def _pairs_by_text(solutions):
  """Returns all (better, worse) steps at one prefix, as texts."""
  members = defaultdict(list)
  for s in solutions:
    for k, label in enumerate(s.labels):
      members[s.problem, s.steps[:k]].append((label, s.steps[: k + 1]))
  return [
    (key[0], a[1], b[1])
    for key, found in members.items()
    for a, b in itertools.permutations(found, 2)
    if a[0] > b[0]
  ]


# --- Who is compared --------------------------------------------------------


@pytest.mark.parametrize("place", encoding.SCORE_POSITIONS)
def test_alternatives_are_the_steps_behind_equal_texts(place):
  kept, counts = preference_pairs.group(_examples(place), "alternatives")
  expected = len(_pairs_by_text(_solutions()))
  assert counts["pairs"] == expected > 20
  found = 0
  members = defaultdict(list)
  for example in kept:
    for at in np.flatnonzero(example.pair_group):
      assert example.weights[at] == 1 and example.step_end[at]
      members[example.pair_group[at]].append(example.labels[at])
  for labels in members.values():
    assert min(labels) < max(labels)
    found += sum(a > b for a, b in itertools.product(labels, labels))
  assert found == expected
  assert len(members) == counts["groups of rivals"]
  assert len(kept) + counts["solutions without a rival"] == len(_examples())


def test_an_example_ends_at_its_last_rival_and_others_weigh_0():
  examples = _examples(
    solutions=[
      _solution("p", ["a", "b", "c"], [1, 1, 1]),
      _solution("p", ["a", "d"], [1, 0]),
    ]
  )
  kept, counts = preference_pairs.group(examples, "alternatives")
  assert counts["pairs"] == 1
  for example, whole in zip(kept, examples, strict=True):
    second = np.flatnonzero(whole.step_end)[1]
    assert len(example) == second + 1
    assert np.flatnonzero(example.weights).tolist() == [second]
    assert np.flatnonzero(example.pair_group).tolist() == [second]


def test_a_blank_step_or_a_separator_in_the_text_moves_no_prefix():
  solutions = [
    _solution("p", ["a", ""], [1, 1]),
    _solution("p", ["a", "b"], [1, 0]),
    _solution("p", ["a\n", "c"], [1, 0]),
    _solution("p", ["", "a", "b"], [1, 1, 0]),
  ]
  for place in encoding.SCORE_POSITIONS:
    _, counts = preference_pairs.group(
      _examples(place, solutions), "alternatives"
    )
    assert counts["pairs"] == len(_pairs_by_text(solutions)) == 1


def test_solutions_of_one_problem_are_compared_at_their_last_targets():
  examples, _ = encoding.orm_examples(
    _solutions(),
    BYTES,
    encoding.EncodingConfig(max_tokens=LONG, template=own_form.OWN),
    "last_step",
  )
  kept, counts = preference_pairs.group(examples, "solutions")
  by_problem = defaultdict(list)
  for s in _solutions():
    by_problem[s.problem].append(s.outcome)
  expected = sum(sum(x) * (len(x) - sum(x)) for x in by_problem.values())
  assert counts["pairs"] == expected > 20
  for example in kept:
    assert np.flatnonzero(example.pair_group).tolist() == [len(example) - 1]


@pytest.mark.real_data
def test_phase_1_holds_17349_pairs_of_a_good_and_a_bad_alternative(
  public_data,
):
  path = public_data("prm800k", "phase1_train.jsonl.gz")
  policy = encoding.LabelPolicy(neutral="ignore")
  encoding_config = encoding.EncodingConfig(
    max_tokens=None, template=own_form.OWN
  )
  found, words = 0, _Words()
  for tree in prm800k.read_trees(path):
    examples, _ = encoding.prm_examples(tree, words, encoding_config, policy)
    _, counts = preference_pairs.group(examples, "alternatives")
    found += counts["pairs"]
  assert found == 17_349


# --- Rivals in one row ------------------------------------------------------


def _loss(batches):
  """Returns Bradley-Terry's sums where a logit is a function of the path."""
  total = weight = 0.0
  for batch in batches:
    logits = np.zeros(batch.tokens.shape, np.float32)
    for row, column in np.ndindex(*logits.shape):
      path, k = [], column
      while k >= 0:
        path.append(int(batch.tokens[row, k]))
        k = int(batch.parent[row, k])
      logits[row, column] = np.sin(sum((i + 1) * x for i, x in enumerate(path)))
    sums = losses.bradley_terry(
      jnp.asarray(logits), batch.labels, batch.weights, batch.pair_group
    )
    total, weight = total + float(sums[0]), weight + float(sums[1])
  return total, weight


@pytest.mark.parametrize("share_prefixes", [False, True])
def test_rivals_share_a_row_and_the_loss_is_that_of_all_pairs(share_prefixes):
  examples = _examples()
  segments, counts = batches.paired(
    examples, "alternatives", batches.PackingConfig(1, LONG, share_prefixes)
  )
  assert counts["pairs lost: their group is longer than a row"] == 0
  # Pieces of one problem stay together, those of others apart.
  assert len(segments) == 3
  tokens = sum(map(len, segments))
  one_row = packing.fill([segments], tokens)
  three = packing.fill([[x] for x in segments], max(map(len, segments)))
  found = _loss([one_row])
  np.testing.assert_allclose(_loss([three]), found, rtol=1e-5)
  kept, _ = preference_pairs.group(examples, "alternatives")
  unpacked = packing.fill(
    [[packing.chain(x) for x in kept]], sum(map(len, kept))
  )
  np.testing.assert_allclose(found, _loss([unpacked]), rtol=1e-5)
  assert found[1] == counts["pairs"]
  assert tokens == len(unpacked.tokens[0]) or share_prefixes


def test_equal_steps_with_unequal_labels_are_duplicates_that_are_compared():
  solutions = [
    _solution("p", ["a"], [1]),
    _solution("p", ["a"], [0]),
    _solution("p", ["b"], [0]),
  ]
  segments, counts = batches.paired(
    _examples(solutions=solutions),
    "alternatives",
    batches.PackingConfig(1, 64, True),
  )
  assert counts["pairs"] == 2 == preference_pairs.num_pairs(segments)
  assert (segments[0].pair_group > 0).sum() == 3


@pytest.mark.parametrize("kind", preference_pairs.KINDS)
def test_the_pairs_of_a_tree_are_those_of_its_solutions_alone(kind):
  # Many solutions end where others go on, so that a shared token is compared
  # in one solution and isn't in another.
  kept, counts = preference_pairs.group(_examples(), kind)
  segments = packing.trees(kept, LONG)
  assert len(segments) == 3
  tree = packing.fill([segments], sum(map(len, segments)))
  alone = packing.fill([[packing.chain(x) for x in kept]], sum(map(len, kept)))
  assert counts["pairs"] == preference_pairs.num_pairs(segments) > 20
  assert tree.weights.sum() == alone.weights.sum()
  np.testing.assert_allclose(_loss([tree]), _loss([alone]), rtol=1e-5)


def test_a_solution_that_goes_on_after_another_is_compared_with_it_in_a_tree():
  solutions = [_solution("p", ["a"], [0]), _solution("p", ["a", "b"], [1, 1])]
  kept, counts = preference_pairs.group(
    _examples(solutions=solutions), "solutions"
  )
  assert counts["pairs"] == 1
  assert preference_pairs.num_pairs(packing.trees(kept, LONG)) == 1


@pytest.mark.parametrize("sequence_length", [12, 24, 40])
def test_rivals_too_many_for_a_row_are_cut_and_the_lost_pairs_counted(
  sequence_length,
):
  solutions = [
    _solution("p", ["abc" * (1 + i % 2)], [float(i < 4)]) for i in range(12)
  ]
  kept, _ = preference_pairs.group(
    _examples(solutions=solutions), "alternatives"
  )
  chains = [packing.chain(x) for x in kept]
  segments = preference_pairs.together(chains, sequence_length)
  assert all(len(x) <= sequence_length for x in segments)
  assert sum(map(len, segments)) == sum(map(len, chains))
  _, counts = batches.paired(
    kept, "alternatives", batches.PackingConfig(1, sequence_length)
  )
  assert counts["pairs"] == 4 * 8
  lost = counts["pairs lost: their group is longer than a row"]
  assert lost == 4 * 8 - preference_pairs.num_pairs(segments) > 0
  if sequence_length == 24:
    # Right and wrong ones take turns: each row has pairs while both last.
    assert preference_pairs.num_pairs(segments) >= 4


def test_rows_too_short_for_every_pair_are_refused():
  examples = _examples(
    solutions=[_solution("p", ["abcdef"], [x]) for x in (1, 0)]
  )
  length = len(examples[0])
  for kind in preference_pairs.KINDS:
    with pytest.raises(errors.InputError, match="the 1 pairs; raise it"):
      batches.paired(examples, kind, batches.PackingConfig(1, 2 * length - 1))
    batches.paired(examples, kind, batches.PackingConfig(1, 2 * length))


def test_pieces_without_groups_stay_as_they_are():
  chains = [packing.chain(x) for x in _examples()]
  joined = preference_pairs.together(chains, LONG)
  assert all(a is b for a, b in zip(joined, chains, strict=True))
  assert packing.fill([chains], sum(map(len, chains))).pair_group is None


def test_rivals_are_of_one_problem_whatever_group_a_record_names():
  def solution(name, problem, right, group):
    return schema.Solution(
      name, problem, ("x",), outcome=right, extra={"group": group}
    )

  config = encoding.EncodingConfig(max_tokens=LONG, template=own_form.OWN)
  for others, pairs in (
    ([("b", "p", False, "h")], 1),
    ([("b", "q", False, "g")], 0),
  ):
    solutions = [solution(*x) for x in (("a", "p", True, "g"), *others)]
    examples, _ = encoding.orm_examples(solutions, BYTES, config, "last_step")
    _, counts = preference_pairs.group(examples, "solutions")
    assert counts["pairs"] == pairs
