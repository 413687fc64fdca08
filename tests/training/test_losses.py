"""Losses against hand computation, and the sums that make means invariant."""

import functools
import math

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from prm_jax.models import kinds
from prm_jax.training import losses

# Each is compiled once a shape: one by one, its operations take far longer.
STEP_BCE = jax.jit(losses.step_bce, static_argnames="error_weight")
STEP_THREE_WAY = jax.jit(losses.step_three_way)
LANGUAGE_MODEL = jax.jit(losses.language_model)
PQM = jax.jit(losses.pqm, static_argnames="margin")
BRADLEY_TERRY = jax.jit(losses.bradley_terry, static_argnames="margin")


def _normal(*shape):
  return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def _row(*values):
  return jnp.asarray([values], jnp.float32)


def _logit(p):
  return math.log(p / (1 - p))


# --- Against hand computation -----------------------------------------------


def test_step_bce_is_the_hand_computed_cross_entropy():
  logits = _row(_logit(0.9), _logit(0.2), _logit(0.6), 5.0)
  total, weight = STEP_BCE(logits, _row(1, 0, 1, 0), _row(1, 1, 0.5, 0))
  expected = -math.log(0.9) - math.log(0.8) - 0.5 * math.log(0.6)
  np.testing.assert_allclose(total, expected, rtol=1e-6)
  assert float(weight) == 2.5


def test_step_bce_of_a_soft_label_is_the_mixture_of_both_hard_ones():
  logits, one = _row(0.7), _row(1)
  soft, _ = STEP_BCE(logits, _row(0.25), one)
  right, _ = STEP_BCE(logits, _row(1), one)
  wrong, _ = STEP_BCE(logits, _row(0), one)
  expected = 0.25 * float(right) + 0.75 * float(wrong)
  np.testing.assert_allclose(soft, expected, rtol=1e-6)


def test_step_bce_is_least_where_the_probability_is_the_label():
  gradient = jax.jit(
    jax.grad(lambda x: losses.step_bce(x, _row(0.3), _row(2))[0])
  )
  np.testing.assert_allclose(gradient(_row(_logit(0.3))), 0, atol=1e-6)
  # d/dx = weight * (p - label)
  np.testing.assert_allclose(gradient(_row(0)), 2 * (0.5 - 0.3), rtol=1e-6)


def test_step_bce_stays_finite_at_extreme_logits():
  total, _ = STEP_BCE(_row(1e4, -1e4), _row(0, 1), _row(1, 1))
  np.testing.assert_allclose(total, 2e4)


def test_step_mse_is_the_hand_computed_square():
  total, weight = losses.step_mse(
    _row(_logit(0.9), _logit(0.25)), _row(0.4, 1), _row(1, 2)
  )
  np.testing.assert_allclose(total, 0.25 + 2 * 0.75**2, rtol=1e-5)
  assert float(weight) == 3


def test_step_three_way_is_the_cross_entropy_of_the_labels_class():
  p = np.asarray([[[0.2, 0.3, 0.5], [0.6, 0.1, 0.3], [0.1, 0.7, 0.2]]])
  total, weight = STEP_THREE_WAY(
    jnp.asarray(np.log(p) + 4, jnp.float32), _row(0, 0.5, 1), _row(1, 1, 3)
  )
  expected = -math.log(0.2) - math.log(0.1) - 3 * math.log(0.2)
  np.testing.assert_allclose(total, expected, rtol=1e-5)
  assert float(weight) == 5


@pytest.mark.parametrize("label", [0.2, 0.25, 0.3, 0.75, 0.999, 1e-6])
def test_step_three_way_rounds_no_soft_label_to_a_class(label):
  logits = np.zeros((1, 2, 3), np.float32)
  total, _ = STEP_THREE_WAY(logits, _row(1, label), _row(1, 1))
  assert np.isnan(float(total))
  # A label that doesn't count may be anything.
  total, _ = STEP_THREE_WAY(logits, _row(1, label), _row(1, 0))
  np.testing.assert_allclose(total, math.log(3), rtol=1e-6)


def test_step_probability_counts_neutral_as_right():
  p = np.asarray([[[0.2, 0.3, 0.5]]])
  found = kinds.step_probability(jnp.asarray(np.log(p) - 1, jnp.float32))
  np.testing.assert_allclose(found, [[0.8]], rtol=1e-6)
  found = kinds.step_probability(_row(_logit(0.8)))
  np.testing.assert_allclose(found, [[0.8]], rtol=1e-6)


def test_step_bce_weighs_every_token_of_a_solution():
  total, weight = STEP_BCE(
    _row(_logit(0.5), _logit(0.75)), _row(1, 1), _row(0.5, 0.5)
  )
  np.testing.assert_allclose(
    total, -0.5 * math.log(0.5) - 0.5 * math.log(0.75), rtol=1e-6
  )
  assert float(weight) == 1


def test_language_model_is_the_log_probability_of_each_token():
  p = np.asarray([[[0.2, 0.3, 0.5], [0.6, 0.1, 0.3]]])
  total, weight = LANGUAGE_MODEL(
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
  found = STEP_BCE(*rows, error_weight=3)
  repeats = np.where(labels[0] == 0, 3, 1)
  expected = STEP_BCE(*(np.repeat(x, repeats, axis=1) for x in rows))
  np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_error_weight_repeats_the_wrong_share_of_a_soft_label():
  found = STEP_BCE(_row(0.4), _row(0.2), _row(1), error_weight=3)
  expected = STEP_BCE(_row(0.4, 0.4), _row(1, 0), _row(0.2, 0.8 * 3))
  np.testing.assert_allclose(found, expected, rtol=1e-6)


# --- What doesn't count -----------------------------------------------------


def _one_solution(loss, **options):
  """Returns a loss whose rows are one solution each."""

  def of_rows(logits, labels, weights):
    rows, tokens = logits.shape
    until = jnp.full((rows, tokens), tokens)
    return loss(logits, labels, weights, until, **options)

  return jax.jit(of_rows)


@jax.jit
def _one_group(logits, labels, weights):
  return losses.bradley_terry(
    logits, labels, weights, jnp.ones(logits.shape, jnp.int32), margin=0.5
  )


LOSSES = {
  "bce": (STEP_BCE, ()),
  "weighted_bce": (
    lambda *a: STEP_BCE(*a, error_weight=2.0),
    (),
  ),
  "mse": (jax.jit(losses.step_mse), ()),
  "three_way": (STEP_THREE_WAY, (3,)),
  "pqm": (_one_solution(losses.pqm), ()),
  "bradley_terry": (_one_group, ()),
  "implicit_ce": (_one_solution(losses.implicit_ce, beta=0.5), ()),
}


@functools.cache
def _both(name):
  """Returns a function for the sums of a loss and their gradient."""
  return jax.jit(jax.value_and_grad(LOSSES[name][0], has_aux=True))


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("poison", ["label", "logit"])
def test_weight_0_counts_nothing_whatever_stands_there(name, poison):
  logits = _normal(2, 3, *LOSSES[name][1])
  labels = np.asarray([[1, 0, 1], [0, 1, 0]], np.float32)
  weights = np.asarray([[1, 0, 2], [0, 0, 1]], np.float32)
  both = _both(name)
  expected = both(logits, labels, weights)
  if poison == "label":
    labels = np.where(weights == 0, np.float32(np.nan), labels)
  else:
    logits = logits.copy()
    logits[weights == 0] = np.nan
  found = both(logits, labels, weights)
  jax.tree.map(np.testing.assert_array_equal, found, expected)
  assert not np.asarray(found[1])[weights == 0].any()


def test_weight_0_counts_nothing_in_the_language_model_loss():
  logits = _normal(1, 3, 5)
  tokens, weights = jnp.asarray([[1, 4, 2]]), _row(1, 0, 1)
  both = jax.jit(jax.value_and_grad(losses.language_model, has_aux=True))
  expected = both(logits, tokens, weights)
  poisoned = logits.copy()
  poisoned[0, 1] = np.nan
  found = both(poisoned, tokens, weights)
  jax.tree.map(np.testing.assert_array_equal, found, expected)
  assert not np.asarray(found[1])[0, 1].any()


@pytest.mark.parametrize("name", LOSSES)
def test_no_labels_at_all_give_zero_and_no_gradient(name):
  logits = _normal(2, 3, *LOSSES[name][1])
  zeros = np.zeros((2, 3), np.float32)
  (total, weight), gradient = _both(name)(logits, zeros, zeros)
  assert float(total) == 0 and float(weight) == 0
  assert not np.asarray(gradient).any()


# --- Sums before means ------------------------------------------------------


@pytest.mark.parametrize("name", LOSSES)
def test_sums_add_up_over_any_split_of_the_rows(name):
  loss, classes = LOSSES[name]
  random = np.random.default_rng(1)
  rows = (
    _normal(6, 4, *classes),
    (random.integers(0, 3, (6, 4)) / 2).astype(np.float32),
    random.integers(0, 3, (6, 4)).astype(np.float32),
  )
  # Parts of one size are compiled once.
  parts = [loss(*(x[part] for x in rows)) for part in ([3, 0], [4, 1], [5, 2])]
  np.testing.assert_allclose(np.sum(parts, axis=0), loss(*rows), rtol=1e-5)


# --- Whole solutions in packed rows -----------------------------------------

# Each row: solutions as (logits, labels, weights) a token; -1 is no target.
_RANDOM = np.random.default_rng(7)


def _solution(*labels):
  """Returns random logits, the labels, and weight 1 where there is one."""
  labels = np.asarray(labels, np.float64)
  logits = _RANDOM.normal(size=len(labels)) * 2
  return logits, labels, (labels >= 0).astype(np.float64)


ROWS = [
  [_solution(-1, 1, -1, 1, 0), _solution(-1, -1, 0), _solution(1, 1, 1)],
  [_solution(-1, 1, 0, 0), _solution(-1, 1), _solution(-1, -1)],
]


def _packed(rows):
  """Returns logits, labels, weights and visible_until of two packed rows."""
  shape = 2, 12
  out = [np.zeros(shape, np.float32) for _ in range(3)]
  until = np.tile(np.arange(1, 13), (2, 1))
  for i, row in enumerate(rows):
    start = 0
    for solution in row:
      stop = start + len(solution[0])
      for array, values in zip(out, solution, strict=True):
        array[i, start:stop] = values
      until[i, start:stop] = stop
      start = stop
  return (*map(jnp.asarray, out), jnp.asarray(until))


def _differences(function, x, delta=1e-5):
  """Returns the gradient of a float64 function by central differences."""
  gradient = np.zeros_like(x)
  for i in range(len(x)):
    step = np.zeros_like(x)
    step[i] = delta
    gradient[i] = (function(x + step) - function(x - step)) / (2 * delta)
  return gradient


def _gradient_of_rows(oracle, rows):
  """Returns the gradient of the sum of a loss over solutions, packed."""
  return _packed(
    [
      [(_differences(lambda x, s=s: oracle(x, s[1]), s[0]), *s[1:]) for s in r]
      for r in rows
    ]
  )[0]


def _pqm_by_hand(logits, labels, margin=4.0):
  """The published closed form in float64, term by term."""
  right = [q for q, y in zip(logits, labels) if y == 1]
  wrong = sum(math.exp(q + margin) for q, y in zip(logits, labels) if y == 0)
  terms = [-math.log(1 / (1 + wrong))] if wrong else []
  for t, q in enumerate(right):
    ranked = 1 + sum(math.exp(x) for x in right[: t + 1])
    terms.append(-math.log(math.exp(q) / (ranked + wrong)))
  return sum(terms) / len(terms) if terms else 0.0


@pytest.mark.parametrize("margin", [0.0, 4.0])
def test_pqm_is_the_published_closed_form_in_packed_rows(margin):
  found = PQM(*_packed(ROWS), margin=margin)
  solutions = [s for row in ROWS for s in row]
  expected = sum(_pqm_by_hand(q, y, margin) for q, y, _ in solutions)
  # The last solution has no target, so it doesn't count.
  np.testing.assert_allclose(found, (expected, len(solutions) - 1), rtol=1e-5)


def test_pqm_has_the_gradient_of_the_closed_form():
  rows = _packed(ROWS)
  found = jax.jit(jax.grad(lambda q: losses.pqm(q, *rows[1:])[0]))(rows[0])
  expected = _gradient_of_rows(_pqm_by_hand, ROWS)
  np.testing.assert_allclose(found, expected, atol=1e-5)


def test_pqm_stays_exact_where_exp_overflows():
  until = jnp.full((1, 2), 2)
  both = jax.jit(
    jax.value_and_grad(functools.partial(losses.pqm, margin=4.0), has_aux=True)
  )
  (total, _), gradient = both(_row(1e4, -1e4), _row(1, 0), _row(1, 1), until)
  assert float(total) == 0 and not np.asarray(gradient).any()
  (total, _), gradient = both(_row(-1e4, 1e4), _row(1, 0), _row(1, 1), until)
  # Two terms: (1e4 + 4) + 1e4 for the right step, 1e4 + 4 for the start.
  np.testing.assert_allclose(total, (20_004 + 10_004) / 2)
  np.testing.assert_allclose(gradient, [[-0.5, 1.0]])


def test_pqm_of_a_masked_step_is_that_without_the_step():
  logits, labels, weights = _solution(1, 0, 1, 1, 0)
  weights[[1, 2]] = 0
  masked = PQM(*_packed([[(logits, labels, weights)]]))
  kept = [0, 3, 4]
  deleted = PQM(*_packed([[(logits[kept], labels[kept], weights[kept])]]))
  np.testing.assert_allclose(masked, deleted, rtol=1e-6)


def test_pqm_weighs_a_solution_as_its_copies_would():
  logits, labels, weights = _solution(-1, 1, 0, 1)
  once, thrice = (
    PQM(*_packed([[(logits, labels, n * weights)]])) for n in (1, 3)
  )
  np.testing.assert_allclose(thrice, np.multiply(once, 3), rtol=1e-6)


def _implicit_by_hand(log_ratios, outcome, beta=0.5):
  reward = beta * sum(log_ratios)
  p = 1 / (1 + math.exp(-reward))
  return -math.log(p if outcome else 1 - p)


def _tokens(num_prompt, num_steps, outcome):
  """Returns log-ratios, the outcome and weights of a solution's tokens."""
  n = num_prompt + num_steps
  weights = np.r_[np.zeros(num_prompt), np.ones(num_steps)]
  return _RANDOM.normal(size=n), np.full(n, float(outcome)), weights


TOKENS = [
  [_tokens(2, 3, True), _tokens(1, 2, False)],
  [_tokens(3, 1, False), _tokens(0, 4, True)],
]


def test_implicit_ce_is_the_outcomes_entropy_of_the_summed_log_ratio():
  rows = _packed(TOKENS)
  both = jax.jit(
    jax.value_and_grad(
      lambda x: losses.implicit_ce(x, *rows[1:], beta=0.5), has_aux=True
    )
  )
  found, gradient = both(rows[0])

  def by_hand(solution, log_ratios):
    _, labels, weights = solution
    return _implicit_by_hand(log_ratios[weights > 0], labels[0])

  expected = sum(by_hand(s, s[0]) for row in TOKENS for s in row)
  np.testing.assert_allclose(found, (expected, 4), rtol=1e-5)
  wanted = _packed(
    [
      [(_differences(lambda x, s=s: by_hand(s, x), s[0]), *s[1:]) for s in row]
      for row in TOKENS
    ]
  )[0]
  np.testing.assert_allclose(gradient, wanted, atol=1e-5)
  # Prompts are no part of the sum.
  assert not np.asarray(gradient)[np.asarray(rows[2]) == 0].any()


def test_implicit_dpo_is_bradley_terry_on_rewards():
  ratios, labels, weights, until = _packed(TOKENS)
  group = np.zeros(ratios.shape, np.int32)
  group[[0, 0], [4, 7]] = 3
  group[[1, 1], [3, 7]] = 5
  loss = jax.jit(functools.partial(losses.implicit_dpo, beta=0.5))
  found = loss(ratios, labels, weights, until, group)
  rewards = [[0.5 * (x * w).sum() for x, _, w in row] for row in TOKENS]
  margins = rewards[0][0] - rewards[0][1], rewards[1][1] - rewards[1][0]
  expected = sum(math.log(1 + math.exp(-m)) for m in margins)
  np.testing.assert_allclose(found, (expected, 2), rtol=1e-5)


# --- Pairs ------------------------------------------------------------------


def _pairs_by_hand(logits, labels, weights, groups, margin):
  total = weight = 0.0
  for s, y, w, g in zip(logits, labels, weights, groups, strict=True):
    for i in range(len(s)):
      for j in range(len(s)):
        if g[i] and g[i] == g[j] and y[i] > y[j]:
          pair = float(w[i] * w[j])
          total -= pair * math.log(1 / (1 + math.exp(s[j] - s[i] + margin)))
          weight += pair
  return total, weight


def _grouped(rows=2, tokens=11):
  random = np.random.default_rng(3)
  shape = rows, tokens
  return (
    random.normal(size=shape),
    random.integers(0, 3, shape) / 2,
    random.integers(0, 3, shape).astype(np.float64),
    random.integers(0, 4, shape),
  )


def _on_device(logits, labels, weights, groups):
  rows = (jnp.asarray(x, jnp.float32) for x in (logits, labels, weights))
  return (*rows, jnp.asarray(groups, jnp.int32))


@pytest.mark.parametrize("block", [4, 256])
@pytest.mark.parametrize("margin", [0.0, 1.5])
def test_bradley_terry_is_every_pair_once_in_blocks_or_not(
  margin, block, monkeypatch
):
  monkeypatch.setattr(losses, "_PAIR_BLOCK", block)
  rows = _grouped()
  logits, *rest = _on_device(*rows)
  loss = functools.partial(losses.bradley_terry, margin=margin)
  both = jax.jit(jax.value_and_grad(loss, has_aux=True))
  found, gradient = both(logits, *rest)
  expected = _pairs_by_hand(*rows, margin)
  assert expected[1] > 10
  np.testing.assert_allclose(found, expected, rtol=1e-5)

  def flat(x):
    return _pairs_by_hand(x.reshape(logits.shape), *rows[1:], margin)[0]

  wanted = _differences(flat, rows[0].reshape(-1)).reshape(logits.shape)
  np.testing.assert_allclose(gradient, wanted, atol=1e-5)


def test_a_pair_weighs_as_much_as_its_copies():
  logits, labels = [0.3, -0.2], [1, 0]
  heavy = BRADLEY_TERRY(*_on_device([logits], [labels], [[2, 3]], [[7, 7]]))
  copies = BRADLEY_TERRY(
    *_on_device(
      [[0.3, 0.3, -0.2, -0.2, -0.2]],
      [[1, 1, 0, 0, 0]],
      np.ones((1, 5)),
      [[7] * 5],
    )
  )
  np.testing.assert_allclose(heavy, copies, rtol=1e-6)


def test_masking_a_rival_equals_deleting_it():
  logits, labels, weights, groups = _grouped(1, 8)
  weights[0] = 1
  for masked in (
    (logits, labels, np.where(np.arange(8) == 2, 0, weights), groups),
    (logits, labels, weights, np.where(np.arange(8) == 2, 0, groups)),
  ):
    deleted = (np.delete(x, 2, axis=1) for x in masked)
    np.testing.assert_allclose(
      BRADLEY_TERRY(*_on_device(*masked)),
      BRADLEY_TERRY(*_on_device(*deleted)),
      rtol=1e-6,
    )


def test_pairs_are_the_same_wherever_in_the_rows_a_group_lies():
  logits, labels, weights, groups = _grouped()
  # Each group in a row of its own, in another order.
  apart = [np.zeros((6, 11)) for _ in range(4)]
  for k, (row, number) in enumerate(
    (row, number) for row in range(2) for number in (1, 2, 3)
  ):
    at = np.flatnonzero(groups[row] == number)[::-1]
    for array, values in zip(
      apart, (logits, labels, weights, groups), strict=True
    ):
      array[k, : len(at)] = values[row, at]
  np.testing.assert_allclose(
    BRADLEY_TERRY(*_on_device(*apart)),
    BRADLEY_TERRY(*_on_device(logits, labels, weights, groups)),
    rtol=1e-5,
  )


def test_pairs_in_order_counts_ties_half():
  found = jax.jit(losses.pairs_in_order)(
    *_on_device([[1, 0, 0, 2]], [[1, 1, 0, 0]], np.ones((1, 4)), [[1, 1, 1, 1]])
  )
  # 1 > 0, 1 < 2, 0 = 0, 0 < 2
  np.testing.assert_allclose(found, (1.5, 4))


# --- Soft labels ------------------------------------------------------------


def test_a_soft_label_is_where_bce_and_mse_are_least():
  """Nothing rounds 0.9 to a class: the gradient is 0 at p = 0.9 alone."""
  for loss in (losses.step_bce, losses.step_mse):
    slope = jax.jit(
      jax.grad(lambda x, loss=loss: loss(x, _row(0.9), _row(1))[0])
    )
    np.testing.assert_allclose(slope(_row(_logit(0.9))), 0, atol=1e-6)
    below, above = (float(slope(_row(_logit(p)))[0, 0]) for p in (0.89, 0.91))
    assert below < -1e-4 < 1e-4 < above
