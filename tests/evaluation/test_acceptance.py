"""What a threshold gives: the loop played out in every order."""

import itertools

import numpy as np
import pytest

from prm_jax import errors
from prm_jax.evaluation import acceptance
from prm_jax.evaluation.choose_threshold import ChooseThreshold


def _played(scores, right, threshold, attempts):
  """Returns P(accepted), P(accepted and right) and E(samples) of a problem."""
  rows = []
  for order in itertools.permutations(range(len(scores))):
    drawn = order[:attempts]
    good = [k for k, i in enumerate(drawn) if scores[i] >= threshold]
    first = good[0] if good else None
    rows.append(
      (
        first is not None,
        first is not None and right[drawn[first]],
        attempts if first is None else first + 1,
      )
    )
  return np.mean(rows, axis=0)


@pytest.mark.parametrize("attempts", [1, 3, 5])
def test_a_threshold_gives_what_the_loop_gives_over_all_orders(attempts):
  random = np.random.default_rng(attempts)
  scores = random.integers(0, 5, (3, 5)) / 4
  right = random.random((3, 5)) < scores
  points = acceptance.curve(scores.tolist(), right.tolist(), attempts)
  assert [p.threshold for p in points] == sorted({*scores.ravel()})[::-1]
  for point in points:
    played = [
      _played(s, r, point.threshold, attempts)
      for s, r in zip(scores, right, strict=True)
    ]
    accepted, correct, samples = np.mean(played, axis=0)
    assert point.coverage == pytest.approx(accepted)
    assert point.precision == pytest.approx(correct / accepted)
    assert point.samples == pytest.approx(samples)


def test_the_lower_bound_is_below_the_precision_and_falls_with_confidence():
  random = np.random.default_rng(0)
  scores = np.ceil(20 * random.random((30, 4))) / 20  # 20 thresholds
  right = random.random((30, 4)) < scores
  curves = [
    acceptance.curve(scores.tolist(), right.tolist(), 2, confidence=confidence)
    for confidence in (0.6, 0.9, 0.99)
  ]
  # Where few are accepted, the bootstrap has few values.
  for points in zip(*(curve[8:] for curve in curves), strict=True):
    lower = [point.lower for point in points]
    assert points[0].precision > lower[0] > lower[1] > lower[2]


def test_a_few_right_answers_prove_little():
  """By the exact bound: p^n = 1 - confidence."""
  for num in (1, 5, 20):
    (point,) = acceptance.curve([[0.5]] * num, [[True]] * num, 1)
    assert point.precision == 1
    assert point.lower == pytest.approx(0.1 ** (1 / num), abs=1e-4)


def test_a_sample_that_states_no_answer_is_never_accepted():
  (point,) = acceptance.curve([[0.5, -1.0]] * 3, [[True, False]] * 3, 2)
  assert point.threshold == 0.5
  assert (point.coverage, point.precision) == (1.0, 1.0)
  (point,) = acceptance.curve([[0.5, -1.0]] * 3, [[True, False]] * 3, 1)
  assert point.coverage == 0.5


def test_the_highest_coverage_whose_bound_suffices_is_chosen():
  points = [
    acceptance.Point(0.9, 0.1, 1.0, 1.0, 3.0),
    acceptance.Point(0.8, 0.3, 0.9, 0.8, 2.0),
    acceptance.Point(0.7, 0.5, 0.95, 0.79, 2.0),
    acceptance.Point(0.6, 0.0, None, None, 4.0),
  ]
  assert acceptance.choose(points, 0.8) is points[1]
  assert acceptance.choose(points, 0.81) is points[0]
  assert acceptance.choose(points[1:], 0.9) is None
  assert acceptance.choose([], 0.5) is None


def test_of_many_scores_the_highest_and_the_lowest_are_thresholds():
  scores = np.random.default_rng(0).random((2, 300))
  points = acceptance.curve(scores.tolist(), (scores > 0.5).tolist(), 1)
  assert len(points) == 200
  assert points[0].threshold == scores.max()
  assert points[-1].threshold == scores.min()
  assert points[-1].coverage == 1


@pytest.mark.parametrize(
  ("make", "says"),
  [
    (lambda: acceptance.curve([], [], 1), "no problem"),
    (lambda: acceptance.curve([[0.5]], [[True]], 2), "attempts=2"),
    (lambda: acceptance.curve([[0.5]], [[True]], 0), "attempts=0"),
    (lambda: ChooseThreshold(0.9, confidence=1.0), "confidence=1"),
    (lambda: ChooseThreshold(0.0), "precision=0"),
    (lambda: ChooseThreshold(1.1), "precision=1.1"),
  ],
)
def test_numbers_out_of_range_are_refused(make, says):
  with pytest.raises(errors.InputError, match=says):
    make()
