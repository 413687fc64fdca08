"""Laws of what is read of a base that isn't trained."""

import pathlib

import numpy as np
import pytest

from prm_jax import schema

EXPERIMENTS = pathlib.Path(__file__).parents[2] / "experiments"


@pytest.fixture(autouse=True)
def _on_path(monkeypatch):
  monkeypatch.syspath_prepend(str(EXPERIMENTS))


def test_a_step_has_the_log_probabilities_of_its_own_tokens():
  import real_likelihood

  steps = ("a 1", "", "b.")
  text = "\n\n".join(steps)
  # "a", " 1", the blank lines, and a token that begins in them: " b" and ".".
  spans = [(0, 1), (1, 3), (3, 7), (7, 8), (8, 9)]
  log_probs = np.array([-1.0, -3.0, -9.0, -0.5, -0.25])
  found = real_likelihood.of_steps(log_probs, spans, text, steps)
  expected = [
    [-4.0, -2.0, -3.0, -3.0, -3.0],
    [0.0, 0.0, 0.0, 0.0, 0.0],
    [-0.75, -0.375, -0.5, 0.0, 0.0],
  ]
  np.testing.assert_allclose(found, expected)


def test_every_sequence_is_read_once_and_no_group_is_too_long():
  import real_likelihood

  lengths = [9, 5_000, 300, 300, 2_000, 1]
  found = real_likelihood.groups(lengths)
  assert sorted(i for group in found for i in group) == list(range(6))
  for group in found:
    rows = len(group) * max(lengths[i] for i in group)
    assert rows <= 4_096 or len(group) == 1


def test_a_regression_finds_the_weights_that_labels_were_drawn_with():
  import real_likelihood

  random = np.random.default_rng(0)
  x = random.normal(2, 3, (50_000, 2))
  p = 1 / (1 + np.exp(-(0.5 * x[:, 0] - x[:, 1] + 1)))
  y = (random.random(len(p)) < p).astype(float)
  found = real_likelihood.regression(x, y, penalty=0)
  np.testing.assert_allclose(found(x), p, atol=0.02)


def test_a_log_probability_keeps_its_order_as_a_score():
  import real_likelihood

  scores = real_likelihood.by_itself(np.array([-500.0, -3.0, -0.1, 0.0]))
  assert (np.diff(scores) > 0).all() and scores[0] > 0 and scores[-1] == 1


def test_a_threshold_by_outcomes_accepts_right_answers_and_refuses_wrong_ones():
  import real_likelihood

  def solution(outcome):
    return schema.Solution("s", "1?", ("a", "b"), outcome=outcome)

  scores = [[0.9, 0.6], [0.7, 0.8], [0.9, 0.4], [0.3, 0.9], [0.65, 0.8]]
  solutions = [*map(solution, [True, True, False, False, False])]
  # At 0.6 both right ones are accepted and two of three wrong ones refused; at
  # 0.7 one right one and all wrong ones would be.
  assert real_likelihood.by_outcomes(scores, solutions) == 0.6
