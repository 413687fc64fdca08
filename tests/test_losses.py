"""Losses against hand computation, and the sums that make means invariant."""

import math

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from prm_jax import losses


def _normal(*shape):
  return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def _row(*values):
  return jnp.asarray([values], jnp.float32)


def _logit(p):
  return math.log(p / (1 - p))


# --- Against hand computation -----------------------------------------------


def test_step_bce_is_the_hand_computed_cross_entropy():
  logits = _row(_logit(0.9), _logit(0.2), _logit(0.6), 5.0)
  total, weight = losses.step_bce(logits, _row(1, 0, 1, 0), _row(1, 1, 0.5, 0))
  expected = -math.log(0.9) - math.log(0.8) - 0.5 * math.log(0.6)
  np.testing.assert_allclose(total, expected, rtol=1e-6)
  assert float(weight) == 2.5


def test_step_bce_of_a_soft_label_is_the_mixture_of_both_hard_ones():
  logits, one = _row(0.7), _row(1)
  soft, _ = losses.step_bce(logits, _row(0.25), one)
  right, _ = losses.step_bce(logits, _row(1), one)
  wrong, _ = losses.step_bce(logits, _row(0), one)
  np.testing.assert_allclose(soft, 0.25 * right + 0.75 * wrong, rtol=1e-6)


def test_step_bce_is_least_where_the_probability_is_the_label():
  gradient = jax.grad(lambda x: losses.step_bce(x, _row(0.3), _row(2))[0])
  np.testing.assert_allclose(gradient(_row(_logit(0.3))), 0, atol=1e-6)
  # d/dx = weight * (p - label)
  np.testing.assert_allclose(gradient(_row(0)), 2 * (0.5 - 0.3), rtol=1e-6)


def test_step_bce_stays_finite_at_extreme_logits():
  total, _ = losses.step_bce(_row(1e4, -1e4), _row(0, 1), _row(1, 1))
  np.testing.assert_allclose(total, 2e4)


def test_step_mse_is_the_hand_computed_square():
  total, weight = losses.step_mse(
    _row(_logit(0.9), _logit(0.25)), _row(0.4, 1), _row(1, 2)
  )
  np.testing.assert_allclose(total, 0.25 + 2 * 0.75**2, rtol=1e-5)
  assert float(weight) == 3


def test_step_three_way_is_the_cross_entropy_of_the_labels_class():
  p = np.asarray([[[0.2, 0.3, 0.5], [0.6, 0.1, 0.3], [0.1, 0.7, 0.2]]])
  total, weight = losses.step_three_way(
    jnp.asarray(np.log(p) + 4, jnp.float32), _row(0, 0.5, 1), _row(1, 1, 3)
  )
  expected = -math.log(0.2) - math.log(0.1) - 3 * math.log(0.2)
  np.testing.assert_allclose(total, expected, rtol=1e-5)
  assert float(weight) == 5


def test_step_probability_counts_neutral_as_right():
  p = np.asarray([[[0.2, 0.3, 0.5]]])
  found = losses.step_probability(jnp.asarray(np.log(p) - 1, jnp.float32))
  np.testing.assert_allclose(found, [[0.8]], rtol=1e-6)
  found = losses.step_probability(_row(_logit(0.8)))
  np.testing.assert_allclose(found, [[0.8]], rtol=1e-6)


def test_outcome_bce_weighs_every_token_of_a_solution():
  total, weight = losses.outcome_bce(
    _row(_logit(0.5), _logit(0.75)), _row(1, 1), _row(0.5, 0.5)
  )
  np.testing.assert_allclose(
    total, -0.5 * math.log(0.5) - 0.5 * math.log(0.75), rtol=1e-6
  )
  assert float(weight) == 1


def test_language_model_is_the_log_probability_of_each_token():
  p = np.asarray([[[0.2, 0.3, 0.5], [0.6, 0.1, 0.3]]])
  total, weight = losses.language_model(
    jnp.asarray(np.log(p) + 2, jnp.float32),
    jnp.asarray([[2, 1]]),
    _row(1, 2),
  )
  np.testing.assert_allclose(
    total, -math.log(0.5) - 2 * math.log(0.1), rtol=1e-5
  )
  assert float(weight) == 3


# --- Class weight -----------------------------------------------------------


def test_error_weight_equals_repeating_the_errors_that_many_times():
  logits, weights = _normal(1, 8), np.abs(_normal(1, 8))
  labels = np.asarray([[1, 0, 1, 1, 0, 1, 0, 1]], np.float32)
  rows = (logits, labels, weights)
  found = losses.step_bce(*map(jnp.asarray, rows), error_weight=3)
  repeats = np.where(labels[0] == 0, 3, 1)
  expected = losses.step_bce(*(jnp.repeat(x, repeats, axis=1) for x in rows))
  np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_error_weight_repeats_the_wrong_share_of_a_soft_label():
  found = losses.step_bce(_row(0.4), _row(0.2), _row(1), error_weight=3)
  expected = losses.step_bce(_row(0.4, 0.4), _row(1, 0), _row(0.2, 0.8 * 3))
  np.testing.assert_allclose(found, expected, rtol=1e-6)


# --- What doesn't count -----------------------------------------------------

LOSSES = {
  "bce": (losses.step_bce, ()),
  "weighted_bce": (
    lambda *a: losses.step_bce(*a, error_weight=2.0),
    (),
  ),
  "mse": (losses.step_mse, ()),
  "three_way": (losses.step_three_way, (3,)),
  "outcome": (losses.outcome_bce, ()),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("poison", ["label", "logit"])
def test_weight_0_counts_nothing_whatever_stands_there(name, poison):
  loss, classes = LOSSES[name]
  logits = jnp.asarray(_normal(2, 3, *classes))
  labels = jnp.asarray([[1, 0, 1], [0, 1, 0]], jnp.float32)
  weights = jnp.asarray([[1, 0, 2], [0, 0, 1]], jnp.float32)
  both = jax.value_and_grad(loss, has_aux=True)
  expected = both(logits, labels, weights)
  if poison == "label":
    labels = jnp.where(weights == 0, jnp.nan, labels)
  else:
    logits = logits.at[weights == 0].set(jnp.nan)
  found = both(logits, labels, weights)
  jax.tree.map(np.testing.assert_array_equal, found, expected)
  assert not np.asarray(found[1])[weights == 0].any()


def test_weight_0_counts_nothing_in_the_language_model_loss():
  logits = jnp.asarray(_normal(1, 3, 5))
  tokens, weights = jnp.asarray([[1, 4, 2]]), _row(1, 0, 1)
  both = jax.value_and_grad(losses.language_model, has_aux=True)
  expected = both(logits, tokens, weights)
  found = both(logits.at[0, 1].set(jnp.nan), tokens, weights)
  jax.tree.map(np.testing.assert_array_equal, found, expected)
  assert not found[1][0, 1].any()


@pytest.mark.parametrize("name", LOSSES)
def test_no_labels_at_all_give_zero_and_no_gradient(name):
  loss, classes = LOSSES[name]
  logits, zeros = jnp.asarray(_normal(2, 3, *classes)), jnp.zeros((2, 3))
  (total, weight), gradient = jax.value_and_grad(loss, has_aux=True)(
    logits, zeros, zeros
  )
  assert float(total) == 0 and float(weight) == 0 and not gradient.any()


# --- Sums before means ------------------------------------------------------


@pytest.mark.parametrize("name", LOSSES)
def test_sums_add_up_over_any_split_of_the_rows(name):
  loss, classes = LOSSES[name]
  random = np.random.default_rng(1)
  rows = (
    jnp.asarray(_normal(5, 4, *classes)),
    jnp.asarray(random.integers(0, 3, (5, 4)) / 2, jnp.float32),
    jnp.asarray(random.integers(0, 3, (5, 4)), jnp.float32),
  )
  parts = [
    loss(*(x[jnp.asarray(part)] for x in rows))
    for part in ([3, 0], [4], [1, 2])
  ]
  np.testing.assert_allclose(np.sum(parts, axis=0), loss(*rows), rtol=1e-5)
