"""Curves over n: what they must equal, and their paired intervals."""

import json

import numpy as np
import pytest

from prm_jax import errors
from prm_jax import voting
from prm_jax.evaluation import best_of_n

NS = [1, 2, 4, 8, 16]


def _samples(num_problems=40, num_samples=16, seed=0):
  """Returns scores, correctness and answers; "good" sees the truth dimly."""
  rng = np.random.default_rng(seed)
  difficulty = rng.random((num_problems, 1))
  correct = rng.random((num_problems, num_samples)) > difficulty
  wrong = rng.integers(1, 4, correct.shape)
  answers = [
    ["1/2" if c else str(w) for c, w in zip(*row)]
    for row in zip(correct, wrong)
  ]
  noise = rng.random(correct.shape)
  scores = {
    "good": 0.5 * noise + 0.5 * correct,
    "blind": rng.random(correct.shape),
  }
  return scores, correct, answers


def test_every_curve_starts_at_the_mean_accuracy_and_none_passes_the_oracle():
  scores, correct, answers = _samples()
  curves = best_of_n.curves(scores, correct, answers, NS)
  assert set(curves) == {
    "good", "blind", "oracle", "majority", "weighted_good", "weighted_blind",
  }  # fmt: skip
  for curve in curves.values():
    assert curve.shape == (40, len(NS))
    np.testing.assert_allclose(curve[:, 0], correct.mean(1))
  for name in ("good", "blind"):
    assert (curves[name] <= curves["oracle"] + 1e-12).all()
  np.testing.assert_allclose(curves["oracle"][:, -1], correct.any(1))


def test_a_perfect_score_is_the_oracle_and_a_constant_one_is_flat():
  _, correct, answers = _samples()
  perfect = correct.astype(np.float64)
  scores = {"perfect": perfect, "constant": np.full_like(perfect, 0.7)}
  curves = best_of_n.curves(scores, correct, answers, NS)
  np.testing.assert_allclose(curves["perfect"], curves["oracle"])
  flat = np.repeat(correct.mean(1)[:, None], len(NS), axis=1)
  np.testing.assert_allclose(curves["constant"], flat, rtol=1e-12)
  np.testing.assert_allclose(
    curves["weighted_constant"], curves["majority"], atol=1e-12
  )


def test_a_weighted_vote_weighs_by_its_own_score():
  scores, correct, answers = _samples()
  curves = best_of_n.curves(scores, correct, answers, NS, seed=3)
  for name, score in scores.items():
    expected = voting.vote_accuracy(answers, correct, score, NS, seed=3)
    np.testing.assert_array_equal(curves[f"weighted_{name}"], expected)


def test_ways_to_write_one_answer_vote_together():
  correct = np.array([[True, True, False, False, True]])
  answers = [["1/2", "0.5", "3", "3", r"\frac{1}{2}"]]
  curves = best_of_n.curves({}, correct, answers, [5])
  assert curves["majority"][0, 0] == 1.0


def test_without_answers_there_are_no_votes():
  scores, correct, _ = _samples()
  curves = best_of_n.curves(scores, correct, None, NS)
  assert set(curves) == {"good", "blind", "oracle"}


def test_intervals_hold_the_mean_and_are_those_of_resampled_problems():
  scores, correct, _ = _samples(num_problems=200)
  curves = best_of_n.curves(scores, correct, None, NS)
  intervals = best_of_n.intervals(curves, seed=3)
  for name, curve in curves.items():
    assert np.shape(intervals[name]) == (len(NS), 2)
    for at in range(len(NS)):
      low, high = intervals[name][at]
      assert low <= curve[:, at].mean() <= high
      half = 1.96 * curve[:, at].std() / 200**0.5
      assert (high - low) / 2 == pytest.approx(half, rel=0.15)
  assert intervals == best_of_n.intervals(curves, seed=3)
  assert intervals != best_of_n.intervals(curves, seed=4)


def test_a_paired_difference_forgets_what_the_curves_share():
  rng = np.random.default_rng(0)
  shared = rng.random(200)
  a, b = shared + 0.1, shared
  exact = best_of_n.paired_difference(a, b)
  assert exact == pytest.approx({"mean": 0.1, "low": 0.1, "high": 0.1})
  # Unpaired, the problems' own spread would hide it.
  unpaired = best_of_n.paired_difference(a, rng.permutation(b))
  assert unpaired["low"] < 0.08
  assert unpaired["high"] > 0.12


def test_a_difference_turned_round_changes_its_sign():
  rng = np.random.default_rng(1)
  a, b = rng.random(90), rng.random(90)
  forth, back = (
    best_of_n.paired_difference(x, y, seed=5) for x, y in ((a, b), (b, a))
  )
  assert forth == pytest.approx(
    {"mean": -back["mean"], "low": -back["high"], "high": -back["low"]}
  )


def test_a_difference_from_nothing_has_the_curves_own_interval():
  scores, correct, _ = _samples()
  curves = best_of_n.curves(scores, correct, None, NS)
  (low, high) = best_of_n.intervals(curves, seed=2)["good"][3]
  alone = best_of_n.paired_difference(
    curves["good"][:, 3], np.zeros(40), seed=2
  )
  assert (alone["low"], alone["high"]) == pytest.approx((low, high))


def test_picked_false_positives_are_those_of_the_winners():
  # Two problems; the winner at n = 3 is right in both, and lucky in one.
  scores = np.array([[0.9, 0.5, 0.1], [0.2, 0.8, 0.3]])
  correct = np.array([[True, True, False], [False, True, True]])
  flawed = np.array([[True, False, True], [True, False, False]])
  at_1, at_3 = best_of_n.picked_false_positive_share(
    scores, correct, flawed, [1, 3]
  )
  assert at_1 == pytest.approx(1 / 4)
  assert at_3 == pytest.approx(1 / 2)
  none = best_of_n.picked_false_positive_share(
    scores, np.zeros((2, 3)), flawed, [2]
  )
  assert none == [None]


def test_results_have_the_form_of_results_json():
  scores, correct, answers = _samples()
  result = best_of_n.evaluate(
    scores,
    correct,
    answers,
    NS,
    weights={"good": scores["good"]},
    pairs=[
      ("good", "blind", 16),
      ("good", "majority", 16),
      ("good", "blind", 4),
    ],
    seed=1,
  )
  json.dumps(result, allow_nan=False)
  assert result["n"] == NS
  assert (result["num_problems"], result["num_samples"]) == (40, 16)
  names = {"good", "blind", "oracle", "majority", "weighted_good"}
  assert set(result["accuracy"]) == set(result["interval"]) == names
  assert result["accuracy"]["good"] == pytest.approx(
    voting.best_of_n(scores["good"], correct, NS).mean(0).tolist()
  )
  assert set(result["paired"]) == {
    "good_minus_blind_at_16",
    "good_minus_majority_at_16",
    "good_minus_blind_at_4",
  }
  paired = result["paired"]["good_minus_blind_at_16"]
  gap = result["accuracy"]["good"][-1] - result["accuracy"]["blind"][-1]
  assert paired["mean"] == pytest.approx(gap)
  assert 0 < paired["low"] < paired["mean"] < paired["high"]


def test_a_log_probability_picks_but_must_not_vote():
  scores, correct, answers = _samples()
  scores["logprob"] = np.log(scores["good"] + 1e-3)
  with pytest.raises(errors.InputError, match="'logprob' can't weigh votes"):
    best_of_n.curves(scores, correct, answers, NS)
  curves = best_of_n.curves(
    scores, correct, answers, NS, weights={"good": scores["good"]}
  )
  np.testing.assert_allclose(curves["logprob"], curves["good"])
  assert "weighted_logprob" not in curves


def test_bad_input_is_named():
  scores, correct, answers = _samples(4)
  for name in ("oracle", "majority", "weighted_x"):
    with pytest.raises(errors.InputError, match=f"named '{name}'"):
      best_of_n.curves({name: scores["good"]}, correct, answers, NS)
  with pytest.raises(errors.InputError, match="answers of 3 problems"):
    best_of_n.curves(scores, correct, answers[:3], NS)
  with pytest.raises(errors.InputError, match="no pair 'good', 'prm' at n = 4"):
    best_of_n.evaluate(scores, correct, answers, NS, pairs=[("good", "prm", 4)])
