"""Step measures against their definitions, pair by pair and bin by bin."""

import json

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.evaluation import bootstrap
from prm_jax.evaluation import step_metrics

STEPS = st.lists(
  st.tuples(st.sampled_from([0.0, 0.25, 0.5, 0.9, 1.0]), st.booleans()),
  min_size=1,
  max_size=12,
)


def _arrays(steps):
  scores, correct = zip(*steps)
  return np.array(scores), np.array(correct)


# --- Which steps count ------------------------------------------------------


def test_steps_after_the_first_error_and_unlabelled_ones_are_masked():
  steps = step_metrics.judged_steps(
    [[0.9, 0.1, 0.8], [0.7, 0.6], [0.5, 0.4]],
    [[1.0, 0.0, 1.0], [None, 0.5], [0.49, None]],
  )
  np.testing.assert_array_equal(steps.scores, [0.9, 0.1, 0.6, 0.5])
  np.testing.assert_array_equal(steps.correct, [True, False, True, False])
  np.testing.assert_array_equal(steps.solution, [0, 0, 1, 2])
  assert steps.first_error == (1, None, 0)
  assert (steps.num_after_error, steps.num_unlabelled) == (2, 1)


@pytest.mark.parametrize(
  ("scores", "labels", "message"),
  [
    ([[0.5]], [], "scores of 1 solutions but labels of 0"),
    ([[0.5], [0.5, 0.5]], [[1.0], [1.0]], "solution 1 .* 2 scores for 1 steps"),
    ([[0.5, 1.5]], [[1.0, 1.0]], "score 1.5 of step 1 isn't a probability"),
    ([[float("nan")]], [[1.0]], "score nan of step 0"),
  ],
)
def test_bad_scores_are_named(scores, labels, message):
  with pytest.raises(errors.InputError, match=message):
    step_metrics.judged_steps(scores, labels)


# --- Ranking ----------------------------------------------------------------


@given(STEPS)
def test_auroc_is_the_share_of_pairs_in_order(steps):
  scores, correct = _arrays(steps)
  pairs = [
    (a > b) + (a == b) / 2 for a in scores[correct] for b in scores[~correct]
  ]
  expected = np.mean(pairs) if pairs else np.nan
  value = step_metrics.auroc(scores, correct)
  np.testing.assert_allclose(value, expected, atol=1e-14)


@given(STEPS)
def test_auprc_is_precision_summed_over_the_gain_in_recall(steps):
  scores, correct = _arrays(steps)
  num_wrong = int((~correct).sum())
  value = step_metrics.auprc_error(scores, correct)
  if not num_wrong:
    assert np.isnan(value)
    return
  expected = recall = 0.0
  for threshold in sorted(set(scores)):
    called = scores <= threshold
    found = int((called & ~correct).sum())
    expected += (found / num_wrong - recall) * found / called.sum()
    recall = found / num_wrong
  assert value == pytest.approx(expected, abs=1e-14)


def test_a_score_that_knows_only_the_problem_has_no_auroc_inside_problems():
  correct = np.array([True] * 9 + [False] + [False] * 9 + [True])
  problem = np.array([0] * 10 + [1] * 10)
  scores = np.where(problem == 0, 0.9, 0.1)
  assert step_metrics.auroc(scores, correct) == pytest.approx(0.9)
  mean, num = step_metrics.mean_problem_auroc(scores, correct, problem)
  assert (mean, num) == (0.5, 2)


def test_problems_with_one_kind_of_step_have_no_auroc_of_their_own():
  scores = np.array([0.1, 0.9, 0.5, 0.6, 0.2])
  correct = np.array([False, True, True, True, True])
  problem = np.array([3, 3, 7, 7, 3])
  mean, num = step_metrics.mean_problem_auroc(scores, correct, problem)
  assert (mean, num) == (1.0, 1)


# --- Calibration ------------------------------------------------------------


def test_brier_is_the_mean_squared_distance():
  value = step_metrics.brier(np.array([0.8, 0.3]), np.array([True, False]))
  assert value == pytest.approx((0.04 + 0.09) / 2)


def test_ece_of_two_bins_by_hand():
  scores = np.array([0.9, 0.1, 0.7, 0.3])
  correct = np.array([True, False, False, False])
  rows = step_metrics.reliability(scores, correct, bins=2)
  assert [row["count"] for row in rows] == [2, 2]
  assert [row["mean_score"] for row in rows] == pytest.approx([0.2, 0.8])
  assert [row["share_correct"] for row in rows] == [0.0, 0.5]
  assert (rows[0]["low"], rows[0]["high"]) == (0.1, 0.3)
  assert step_metrics.ece(rows) == pytest.approx((0.2 + 0.3) / 2)


def test_calibrated_scores_have_a_small_ece_and_biased_ones_their_bias():
  rng = np.random.default_rng(0)
  scores = rng.random(60_000) * 0.8
  correct = rng.random(60_000) < scores
  biased = step_metrics.ece(step_metrics.reliability(scores + 0.2, correct))
  assert step_metrics.ece(step_metrics.reliability(scores, correct)) < 0.01
  assert biased == pytest.approx(0.2, abs=0.01)


@given(STEPS, st.integers(1, 6), st.randoms(use_true_random=False))
def test_bins_have_equal_mass_and_forget_the_order_of_the_steps(
  steps, bins, random
):
  rows = step_metrics.reliability(*_arrays(steps), bins)
  counts = [row["count"] for row in rows]
  assert sum(counts) == len(steps)
  assert len(rows) == min(bins, len(steps))
  assert max(counts) - min(counts) <= 1
  random.shuffle(steps)
  moved = step_metrics.reliability(*_arrays(steps), bins)
  for row, other in zip(rows, moved):
    assert row == pytest.approx(other)


# --- Places -----------------------------------------------------------------


def test_first_error_shares_by_hand():
  truth = np.array([2, 2, 2, 2, 2, -1, -1])
  predicted = np.array([2, 1, 0, 4, -1, -1, 0])
  assert step_metrics.first_error_shares(predicted, truth) == {
    "exact": 1 / 5,
    "within_one": 2 / 5,
    "early": 2 / 5,
    "late": 1 / 5,
    "missed": 1 / 5,
    "none": 1 / 2,
  }


def test_missing_an_error_at_step_zero_is_not_within_one():
  shares = step_metrics.first_error_shares(np.array([-1]), np.array([0]))
  assert shares["within_one"] == 0
  assert shares["missed"] == 1


def test_the_first_step_strictly_below_the_threshold_is_predicted():
  scores = [[0.5, 0.4, 0.1], [0.9, 0.5], [0.2], []]
  predicted = step_metrics.predicted_first_errors(scores, 0.5)
  np.testing.assert_array_equal(predicted, [1, -1, 0, -1])


def test_equal_minima_share_the_last_step():
  scores = [[0.9, 0.2], [0.2, 0.9], [0.3, 0.3, 0.3], []]
  share = step_metrics.min_on_last_share(scores)
  assert share == pytest.approx((1 + 0 + 1 / 3) / 3)


def test_false_positives_are_counted_among_right_answers_only():
  right = np.array([True, True, True, False])
  flawed = np.array([True, False, False, True])
  assert step_metrics.false_positive_share(right, flawed) == pytest.approx(
    1 / 3
  )


# --- All of it --------------------------------------------------------------


def _solutions(num: int):
  rng = np.random.default_rng(0)
  scores, labels = [], []
  for _ in range(num):
    of_steps = rng.random(rng.integers(1, 7))
    scores.append(of_steps.tolist())
    labels.append((rng.random(len(of_steps)) < of_steps).astype(float).tolist())
  return scores, labels


def test_evaluate_is_the_sum_of_its_parts_and_fits_json():
  scores, labels = _solutions(300)
  problems = [f"p{i // 10}" for i in range(300)]
  outcomes = [True, False, None] * 100
  result = step_metrics.evaluate(
    scores, labels, problems=problems, outcomes=outcomes, num_resamples=200
  )
  json.dumps(result, allow_nan=False)
  steps = step_metrics.judged_steps(scores, labels)
  assert result["auroc"] == step_metrics.auroc(steps.scores, steps.correct)
  low, high = result["auroc_interval"]
  assert 0.5 < low < result["auroc"] < high < 1
  assert result["num_steps"] + result["num_steps_after_error"] == sum(
    map(len, scores)
  )
  has_error = [schema.first_error(label) >= 0 for label in labels]
  assert result["num_with_error"] == sum(has_error)
  assert result["num_right_answers"] == 100
  assert result["false_positive_share"] == np.mean(has_error[::3])
  assert result["num_problems_with_auroc"] <= 30


def test_calibration_counts_judged_steps_and_says_what_it_left_out():
  """After its own first doubt a PRM isn't judging, whatever the labels are."""
  scores, labels = _solutions(100)
  judged = [schema.judged_steps(x, "until_first_error") for x in scores]
  result = step_metrics.evaluate(scores, labels, judged=judged)
  # By hand: labelled up to the first error, and up to the first doubt.
  ends = [
    (schema.first_error(x), schema.first_error(y))
    for x, y in zip(scores, labels)
  ]
  kept = [
    (score, label)
    for x, y, (doubt, error) in zip(scores, labels, ends)
    for k, (score, label) in enumerate(zip(x, y))
    if not 0 <= error < k and not 0 <= doubt < k
  ]
  steps = np.array(kept)
  assert result["num_steps_calibration"] == len(kept)
  assert result["num_steps_not_judged"] == result["num_steps"] - len(kept) > 0
  assert sum(row["count"] for row in result["reliability"]) == len(kept)
  assert result["brier"] == step_metrics.brier(steps[:, 0], steps[:, 1] == 1)
  # Changing the score of a step that isn't judged changes no calibration.
  other = [
    [x if sure else 1.0 for x, sure in zip(*row)] for row in zip(scores, judged)
  ]
  again = step_metrics.evaluate(other, labels, judged=judged)
  assert other != scores
  for name in ("ece", "brier", "reliability"):
    assert again[name] == result[name]
  # A model that learned all steps judges all.
  whole = step_metrics.evaluate(scores, labels)
  assert whole["num_steps_not_judged"] == 0
  assert whole["num_steps_calibration"] == whole["num_steps"]
  for name in ("auroc", "first_error_exact", "num_steps"):
    assert whole[name] == result[name]


def test_resampled_auroc_repeats_the_drawn_problems():
  scores, labels = _solutions(8)
  steps = step_metrics.judged_steps(scores, labels)
  result = step_metrics.evaluate(scores, labels, num_resamples=300, seed=5)
  judged = sorted(set(steps.solution))
  values = []
  for draw in bootstrap.counts(len(judged), 300, seed=5):
    copies = [np.flatnonzero(steps.solution == s) for s in judged]
    rows = np.concatenate(
      [np.tile(copy, count) for copy, count in zip(copies, draw)]
    ).astype(int)
    values.append(step_metrics.auroc(steps.scores[rows], steps.correct[rows]))
  np.testing.assert_allclose(
    result["auroc_interval"], bootstrap.interval(np.array(values))
  )


def test_nothing_to_measure_gives_null_and_never_nan():
  for scores, labels in (([], []), ([[0.5, 0.6]], [[1.0, 1.0]])):
    result = step_metrics.evaluate(
      scores, labels, outcomes=[False] * len(scores)
    )
    json.dumps(result, allow_nan=False)
    assert result["auroc"] is None
    assert result["false_positive_share"] is None


def test_labels_count_from_one_half_whatever_their_softness():
  scores, labels = _solutions(50)
  soft = [
    [0.5 + label / 2 - 0.01 * (label == 0) for label in s] for s in labels
  ]
  assert step_metrics.evaluate(scores, soft) == step_metrics.evaluate(
    scores, labels
  )
