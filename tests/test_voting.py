"""Best-of-N and votes against the enumeration of every subset."""

import decimal
import itertools
import json
import math

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax import voting

# --- The oracles: every subset, one by one ----------------------------------


def _enumerated_best_of_n(scores, correct, n):
  total, num = 0.0, 0
  for subset in itertools.combinations(range(len(scores)), n):
    top = max(scores[i] for i in subset)
    winners = [i for i in subset if scores[i] == top]
    total += sum(correct[i] for i in winners) / len(winners)
    num += 1
  return total / num


def _vote_of(answers, right, weights, subset):
  totals, rightness = {}, {}
  for i in subset:
    if answers[i] is not None:
      totals[answers[i]] = totals.get(answers[i], 0) + weights[i]
  for answer in totals:
    same = [right[i] for i, a in enumerate(answers) if a == answer]
    rightness[answer] = sum(same) / len(same)
  if not totals:
    return 0.0
  top = max(totals.values())
  winners = [a for a in totals if math.isclose(totals[a], top, rel_tol=1e-12)]
  return sum(rightness[a] for a in winners) / len(winners)


def _enumerated_vote(answers, right, weights, n):
  subsets = list(itertools.combinations(range(len(answers)), n))
  return np.mean([_vote_of(answers, right, weights, s) for s in subsets])


# --- Aggregates -------------------------------------------------------------


def test_aggregates_are_their_names():
  steps = [0.9, 0.5, 0.8]
  expected = {"product": 0.36, "min": 0.5, "last": 0.8, "mean": 2.2 / 3}
  assert set(expected) == set(voting.AGGREGATES)
  for how, value in expected.items():
    assert voting.aggregate(steps, how) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize("how", voting.AGGREGATES)
def test_an_empty_solution_scores_zero_and_a_nan_shows(how):
  assert voting.aggregate([], how) == 0.0
  assert math.isnan(voting.aggregate([0.5, math.nan], how))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_product_is_at_most_min_at_most_mean(steps):
  product, low, mean = (
    voting.aggregate(steps, how) for how in ("product", "min", "mean")
  )
  assert product <= low <= mean + 1e-15


def test_an_unknown_aggregate_is_named_with_the_choices():
  with pytest.raises(errors.InputError, match=r"'prod'.*product, min, last"):
    voting.aggregate([0.5], "prod")


@pytest.mark.real_data
def test_product_of_good_and_neutral_is_the_released_prm_score(public_data):
  record = json.loads(
    public_data("formats/sample_prm800k_scored.json").read_text()
  )
  steps = [step["1"] + step["0"] for step in record["rating_probs"]]
  score = voting.aggregate(steps, "product")
  assert score == pytest.approx(record["prm_score"], rel=1e-15)
  assert score == pytest.approx(0.09157553704097245, rel=1e-15)


# --- Ranking ----------------------------------------------------------------


def _of_logits(logits):
  """Returns step scores as a scorer makes them: sigmoids in float32."""
  with np.errstate(over="ignore"):
    scores = 1 / (1 + np.exp(-np.asarray(logits, np.float32)))
  return schema.StepScores(tuple(map(float, scores)), logits=tuple(logits))


def _exact_distances(logits, how):
  """Returns the aggregate P and 1 - P, each to 200 digits."""
  with decimal.localcontext(prec=200):
    odds = [decimal.Decimal(x).exp() for x in logits]
    right = [x / (1 + x) for x in odds]
    values = dict(product=math.prod(right), min=min(right), last=right[-1])
    value = values.get(how, sum(right) / len(right))
    return value, 1 - value


LOGITS = st.lists(
  st.one_of(st.floats(-100, 100, width=32), st.sampled_from([17.0, 30.0])),
  min_size=1,
  max_size=6,
)


@given(LOGITS, LOGITS, st.sampled_from(voting.AGGREGATES))
def test_solutions_rank_as_their_exact_aggregates_do(a, b, how):
  """Where float64 can hold the difference from 0 or from 1."""
  exact = [_exact_distances(x, how) for x in (a, b)]
  (p, not_p), (q, not_q) = exact
  found = voting.ranking_scores([_of_logits(a), _of_logits(b)], how)
  with decimal.localcontext(prec=200):
    gap = p - q
    # product: as far apart as sums of logarithms; mean: as 1 - mean.
    size = max(-p.ln(), -q.ln()) * p if how == "product" else max(not_p, not_q)
    if how in ("min", "last"):
      size = min(p, q, not_p, not_q)
  if abs(gap) > decimal.Decimal("1e-13") * size:
    assert (found[0] > found[1]) == (gap > 0)
    assert found[0] != found[1]
  if gap == 0 and how in ("min", "last"):
    assert found[0] == found[1]


@given(LOGITS, st.randoms(), st.sampled_from(["product", "min", "mean"]))
def test_the_order_of_steps_breaks_no_tie(logits, random, how):
  shuffled = random.sample(logits, len(logits))
  pair = [_of_logits(logits), _of_logits(shuffled)]
  assert len(set(voting.ranking_scores(pair, how))) == 1


@given(
  st.lists(st.lists(st.floats(-8, 8), min_size=1, max_size=5), min_size=2),
  st.sampled_from(voting.AGGREGATES),
)
def test_where_nothing_saturates_the_order_is_that_of_the_aggregates(rows, how):
  rows = [_of_logits(x) for x in rows]
  old = [voting.aggregate(x.scores, how) for x in rows]
  new = voting.ranking_scores(rows, how)
  for i, j in itertools.combinations(range(len(rows)), 2):
    if abs(old[i] - old[j]) > 1e-5 * max(old[i], old[j]):
      assert (old[i] > old[j]) == (new[i] > new[j])


@given(
  st.lists(st.lists(st.floats(0, 1), max_size=5)),
  st.sampled_from(voting.AGGREGATES),
)
def test_scores_without_log_odds_rank_by_their_aggregate(rows, how):
  plain = [schema.StepScores(tuple(x)) for x in rows]
  expected = [voting.aggregate(x, how) for x in rows]
  if any(rows):
    assert voting.ranking_scores(plain, how) == expected
  # One without log-odds among others: all are compared on one scale.
  mixed = [*plain, _of_logits([20.0]), schema.StepScores((0.25,))]
  found = voting.ranking_scores(mixed, how)
  assert found == [*expected, 1.0, 0.25]


@pytest.mark.parametrize("how", voting.AGGREGATES)
def test_a_bradley_terry_model_whose_probabilities_all_round_to_1_still_ranks(
  how,
):
  """Its level is free: training fixes differences of log-odds alone."""
  rng = np.random.default_rng(0)
  level = rng.uniform(18, 25, size=(12, 3))
  rows = [_of_logits(np.float32(x).tolist()) for x in level]
  assert {voting.aggregate(x.scores, how) for x in rows} == {1.0}
  found = voting.ranking_scores(rows, how)
  assert len(set(found)) == len(rows)
  low = [_of_logits((np.float32(x) - 22).tolist()) for x in level]
  if how in ("min", "last"):  # the others depend on the level
    order = np.argsort(found).tolist()
    assert order == np.argsort(voting.ranking_scores(low, how)).tolist()
  correct = np.array([[i == int(np.argmax(found)) for i in range(len(rows))]])
  assert voting.best_of_n(np.array([found]), correct, [len(rows)]) == 1


@pytest.mark.parametrize("how", voting.AGGREGATES)
def test_an_empty_solution_ranks_last_and_a_nan_shows_in_a_ranking(how):
  rows = [schema.StepScores(()), _of_logits([-100.0]), _of_logits([100.0])]
  found = voting.ranking_scores(rows, how)
  assert found == sorted(found) and found[0] < found[2]
  assert voting.best_of_n(np.array([found]), np.array([[1, 0, 0]]), [3]) == 0
  bad = schema.StepScores((0.5, 0.5), logits=(0.0, math.nan))
  assert math.isnan(voting.ranking_scores([bad], how)[0])


def test_an_unknown_aggregate_ranks_nothing():
  with pytest.raises(errors.InputError, match=r"'prod'.*product, min, last"):
    voting.ranking_scores([], "prod")


@pytest.mark.parametrize(
  "judged, how, raised",
  [
    ((True, True), "last", 0),
    ((True, False), "last", 1),
    ((True, False), "mean", 1),
    ((True, False), "min", 0),
    ((True, False), "product", 0),
    ((False, True), "last", 0),
    ((), "last", 0),
  ],
)
def test_last_and_mean_may_owe_their_value_to_a_step_that_isnt_judged(
  judged, how, raised, caplog
):
  row = schema.StepScores((0.3, 0.9)[: len(judged)], judged=judged)
  voting.warn_of_unjudged([row, schema.StepScores((0.1,))], how)
  assert ("in 1 of 2 solutions" in caplog.text) == bool(raised)
  assert len(caplog.records) == raised


# --- Best of n --------------------------------------------------------------

FEW_SCORES = st.integers(0, 3)  # so that ties are common


@given(st.lists(st.tuples(FEW_SCORES, st.booleans()), min_size=1, max_size=8))
def test_best_of_n_is_the_mean_over_all_subsets(samples):
  scores = np.array([[s for s, _ in samples]], np.float64)
  correct = np.array([[c for _, c in samples]])
  ns = list(range(1, len(samples) + 1))
  curve = voting.best_of_n(scores, correct, ns)
  expected = [_enumerated_best_of_n(scores[0], correct[0], n) for n in ns]
  np.testing.assert_allclose(curve, [expected], rtol=0, atol=1e-14)


@given(st.integers(0, 9), st.integers(1, 9))
def test_pass_at_n_is_the_unbiased_estimate(num_right, n):
  correct = np.arange(9)[None] < num_right
  expected = 1 - math.comb(9 - num_right, n) / math.comb(9, n)
  assert voting.pass_at_n(correct, [n]) == pytest.approx(expected, abs=1e-14)


def test_problems_are_independent_and_their_order_is_kept():
  rng = np.random.default_rng(0)
  scores, correct = (
    rng.integers(0, 4, (5, 12)) * 0.25,
    rng.random((5, 12)) < 0.4,
  )
  together = voting.best_of_n(scores, correct, [1, 5, 12, 3])
  for p in range(5):
    alone = voting.best_of_n(
      scores[p : p + 1], correct[p : p + 1], [1, 5, 12, 3]
    )
    np.testing.assert_allclose(alone[0], together[p], rtol=1e-14)


def test_only_the_order_of_the_scores_counts():
  rng = np.random.default_rng(1)
  scores, correct = rng.random((4, 30)), rng.random((4, 30)) < 0.5
  shuffle, ns = rng.permutation(30), [1, 2, 7, 30]
  curve = voting.best_of_n(scores, correct, ns)
  moved = voting.best_of_n(scores[:, shuffle], correct[:, shuffle], ns)
  np.testing.assert_allclose(moved, curve, atol=1e-14)
  np.testing.assert_array_equal(
    voting.best_of_n(np.log(scores), correct, ns), curve
  )


def test_a_constant_score_picks_at_random_and_1860_samples_dont_overflow():
  correct = np.arange(1860)[None] % 3 == 0
  ns = [1, 10, 930, 1860]
  curve = voting.best_of_n(np.zeros((1, 1860)), correct, ns)
  np.testing.assert_allclose(curve, [[1 / 3] * 4], rtol=1e-12)


def test_a_sample_at_minus_infinity_wins_only_among_its_likes():
  scores = np.array([[-np.inf, -np.inf, 0.2]])
  correct = np.array([[True, True, False]])
  curve = voting.best_of_n(scores, correct, [1, 2, 3])
  np.testing.assert_allclose(curve, [[2 / 3, 1 / 3, 0]], atol=1e-15)


def test_bad_scores_and_sizes_are_named():
  ones = np.ones((1, 4))
  with pytest.raises(errors.InputError, match="2 sample scores are NaN"):
    voting.best_of_n(np.array([[np.nan, 1, np.nan, 0]]), ones, [1])
  for n in (0, 5):
    with pytest.raises(errors.InputError, match=f"n = {n} with 4 samples"):
      voting.best_of_n(ones, ones, [n])
    with pytest.raises(errors.InputError, match=f"n = {n} with 4 samples"):
      voting.vote_accuracy([["a"] * 4], ones, None, [n])
  with pytest.raises(errors.InputError, match="exponentiate"):
    voting.vote_accuracy([["a"] * 4], ones, -ones, [2])


def test_best_is_the_first_of_the_highest():
  assert voting.best([0.2, 0.9, 0.9, 0.1]) == 1
  with pytest.raises(errors.InputError, match="no solution"):
    voting.best([])
  with pytest.raises(errors.InputError, match="NaN"):
    voting.best([0.1, math.nan])


# --- Votes ------------------------------------------------------------------

SAMPLES = st.lists(
  st.tuples(
    st.sampled_from(["a", "b", "c", None]),
    st.sampled_from([0.0, 0.1, 0.2, 0.3, 1.0]),
    st.booleans(),
  ),
  min_size=1,
  max_size=6,
)


@given(SAMPLES, st.booleans())
def test_one_vote_and_the_full_vote_are_exact(samples, weighted):
  answers = [a for a, _, _ in samples]
  right = np.array([[r for _, _, r in samples]])
  weights = [w if weighted else 1.0 for _, w, _ in samples]
  size = len(samples)
  curve = voting.vote_accuracy(
    [answers], right, np.array([weights]) if weighted else None, [1, size]
  )
  expected = [
    _enumerated_vote(answers, right[0], weights, n) for n in (1, size)
  ]
  np.testing.assert_allclose(curve, [expected], atol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_votes_between_approach_the_enumeration(weighted):
  answers = ["a", "b", "a", None, "c", "b", "a", "c"]
  right = np.array([[a == "b" for a in answers]])
  weights = np.array([[0.1, 0.6, 0.2, 0.9, 0.3, 0.3, 0.2, 0.6]])
  ns = [2, 3, 5, 7]
  curve = voting.vote_accuracy(
    [answers], right, weights if weighted else None, ns, num_subsets=20_000
  )
  used = weights[0] if weighted else np.ones(8)
  expected = [_enumerated_vote(answers, right[0], used, n) for n in ns]
  # Five standard errors of 20,000 subsets.
  np.testing.assert_allclose(curve, [expected], atol=5 * 0.5 / 20_000**0.5)


def test_ties_between_answers_share_the_win_evenly():
  answers = [["a", "a", "b", "b", "c"]]
  right = np.array([[True, True, False, False, False]])
  assert voting.vote_accuracy(answers, right, None, [5])[0, 0] == 0.5
  # In floating point 0.1 + 0.2 and 0.3 differ in the last bit.
  weights = np.array([[0.1, 0.2, 0.3, 0.0, 0.0]])
  assert voting.vote_accuracy(answers, right, weights, [5])[0, 0] == 0.5


def test_an_absent_answer_wins_nothing_even_where_all_weigh_zero():
  answers = [["b", "a", "a", "a"]]
  right = np.array([[True, False, False, False]])
  zeros = np.zeros((1, 4))
  curve = voting.vote_accuracy(answers, right, zeros, [1, 2], num_subsets=4_000)
  # Half of the pairs hold b, and there it ties.
  np.testing.assert_allclose(curve, [[0.25, 0.25]], atol=0.04)


def test_no_answer_never_wins():
  answers = [[None, None, "a"], [None, None, None]]
  right = np.array([[False, False, True], [True, True, True]])
  curve = voting.vote_accuracy(answers, right, None, [1, 3])
  np.testing.assert_allclose(curve, [[1 / 3, 1], [0, 0]])


def test_one_seed_gives_one_result_and_equal_weights_are_the_majority():
  rng = np.random.default_rng(3)
  ids = rng.integers(0, 5, (6, 20))
  answers, right = [[str(a) for a in row] for row in ids], ids == 0
  ns = [1, 2, 4, 8, 16, 20]
  first = voting.vote_accuracy(answers, right, None, ns, seed=7)
  again = voting.vote_accuracy(answers, right, None, ns, seed=7)
  other = voting.vote_accuracy(answers, right, None, ns, seed=8)
  halves = voting.vote_accuracy(
    answers, right, np.full((6, 20), 0.5), ns, seed=7
  )
  np.testing.assert_array_equal(again, first)
  np.testing.assert_allclose(halves, first, atol=1e-15)
  assert (other != first).any()
  one_by_one = [
    voting.vote_accuracy(answers, right, None, [n], seed=7) for n in ns
  ]
  np.testing.assert_allclose(np.hstack(one_by_one), first, atol=1e-15)


def test_the_chosen_answer_is_the_heaviest_then_the_earliest():
  answers = ["a", "b", "b", None, "c"]
  assert voting.majority_vote(answers) == "b"
  assert voting.weighted_vote(answers, [0.9, 0.2, 0.2, 5.0, 0.3]) == "a"
  assert voting.weighted_vote(["x", "a", "a"], [0.3, 0.1, 0.2]) == "x"
  assert voting.majority_vote([None, "b", "a"]) == "b"
  assert voting.majority_vote([None, None]) is None
  assert voting.majority_vote([]) is None


@given(SAMPLES)
def test_the_chosen_answer_is_among_the_winners_of_the_full_vote(samples):
  answers = [a for a, _, _ in samples]
  weights = [w for _, w, _ in samples]
  chosen = voting.weighted_vote(answers, weights)
  right = np.array([[a is not None and a == chosen for a in answers]])
  share = voting.vote_accuracy(
    [answers], right, np.array([weights]), [len(answers)]
  )
  assert (share[0, 0] > 0) == (chosen is not None)
