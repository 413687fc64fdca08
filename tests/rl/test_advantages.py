"""Returns to advantages: numbers by hand, slow oracles, and their laws."""

import functools
import itertools
import pathlib

import holes
import jax
from jax import numpy as jnp
import numpy as np
import pytest

from prm_jax.rl import advantages
from prm_jax.rl import returns

HOLES = np.asarray([False, True, False, True, True, False])
# Of three solutions the second has nothing.
GRID_HOLES = np.asarray([[False, True], [False, False], [True, True]])
FIRST = np.asarray([0.4, 0.9, -0.3, 0.1, 0.7, 0.2], np.float32)
SECOND = np.asarray([0.3, -0.2, 0.5, 0.8, 0.1, 0.6], np.float32)
GRID = np.asarray([[0.4, 0.9], [-0.3, 0.1], [0.7, 0.2]], np.float32)


def _close(found, expected, atol=1e-6):
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=atol)


# --- Every form against a slow oracle that knows no mask --------------------


def _mean(values, empty=0.0):
  values = list(values)
  return sum(values) / len(values) if values else empty


def _std(values):
  return _mean((x - _mean(values)) ** 2 for x in values) ** 0.5


def _leave_one_out(values):
  return [
    own - _mean(values[:i] + values[i + 1 :]) for i, own in enumerate(values)
  ]


def _normalised(values, epsilon=0.1):
  return [(x - _mean(values)) / (_std(values) + epsilon) for x in values]


def _centred(values):
  return [x - _mean(values) for x in values]


def _gae(rewards, values, discount, gae_lambda, bootstrap):
  error, found = 0.0, []
  nexts = [*values[1:], bootstrap]
  for r, now, then in list(zip(rewards, values, nexts))[::-1]:
    error = r + discount * then - now + discount * gae_lambda * error
    found.append(error)
  return found[::-1]


def _by_rows(values, rows):
  """Returns the values in lists as long as those of rows."""
  values = iter(values)
  return [[next(values) for _ in row] for row in rows]


def _leave_one_out_tokens(rewards, sizes):
  found = []
  for i, row in enumerate(rewards):
    others = [j for j in range(len(rewards)) if j != i]
    total = sum(sum(rewards[j]) for j in others)
    tokens = sum(sum(sizes[j]) for j in others)
    price = total / tokens if tokens else 0.0
    found.append([r - price * size for r, size in zip(row, sizes[i])])
  return found


def _leave_one_out_steps(rewards):
  found = []
  for i, row in enumerate(rewards):
    others = [other for j, other in enumerate(rewards) if j != i]
    found.append([r - _mean(map(_mean, others)) for r in row])
  return found


def _leave_one_out_budget(rows, max_tokens):
  found = []
  for i, row in enumerate(rows):
    others = [sum(other) for j, other in enumerate(rows) if j != i]
    found.append([x - _mean(others) / max_tokens for x in row])
  return found


def _sums(row, discount=1.0):
  powers = [discount**i for i in range(len(row))]
  return [sum(p * r for p, r in zip(powers, row[t:])) for t in range(len(row))]


def _scaled(rewards):
  largest = max((abs(x) for row in rewards for x in _sums(row)), default=0)
  return [[r / (largest or 1) for r in row] for row in rewards]


def _prime(rewards, scale, outcome, discount=1.0):
  """outcome: from a row of rewards, so that it is deleted with it."""
  outcomes = _leave_one_out([outcome(row) for row in rewards])
  if scale:
    rewards = _scaled(rewards)
  baselines = [
    _mean(_mean(other) for j, other in enumerate(rewards) if j != i)
    for i in range(len(rewards))
  ]
  found = []
  for row, baseline, result in zip(rewards, baselines, outcomes):
    mixed = [3 * (r - baseline) for r in row]
    mixed[-1] += 2 * result
    found.append(_sums(mixed, discount))
  return found


def _fast_prime(rewards, mask, scale, discount=1.0):
  outcomes = returns.masked(rewards, mask).sum(axis=1)
  return advantages.prime(
    rewards, mask, outcomes, process_weight=3.0, outcome_weight=2.0,
    discount=discount, scale=scale,
  )  # fmt: skip


EARLIER = advantages.MovingMean(jnp.float32(6.0), jnp.float32(4.0))
# name: the form of arrays and a mask, and what it is of arrays alone.
FORMS = {
  "leave_one_out": (advantages.leave_one_out, _leave_one_out),
  "group_normalised": (
    lambda x, mask: advantages.group_normalised(x, mask, 0.1),
    _normalised,
  ),
  "group_centred": (
    lambda x, mask: advantages.group_normalised(x, mask, scale=False),
    _centred,
  ),
  "whiten": (
    lambda x, mask: advantages.whiten(x, mask, 0.1),
    lambda x: [c / (_std(x) ** 2 + 0.1) ** 0.5 for c in _centred(x)],
  ),
  "moving": (
    lambda x, mask: advantages.moving(EARLIER, x, mask, 0.9)[0],
    lambda x: [r - 1.5 for r in x],
  ),
}
PAIR_FORMS = {
  "gae": (
    lambda r, v, mask: advantages.gae(r, v, mask, 0.9, 0.8, 2.0)[0],
    lambda r, v: _gae(r, v, 0.9, 0.8, 2.0),
  ),
  "gae's returns": (
    lambda r, v, mask: advantages.gae(r, v, mask, 0.9, 0.8)[1],
    lambda r, v: [a + x for a, x in zip(_gae(r, v, 0.9, 0.8, 0.0), v)],
  ),
}
GRID_FORMS = {
  "leave_one_out_steps": (
    advantages.leave_one_out_steps,
    _leave_one_out_steps,
  ),
  "leave_one_out_tokens": (
    lambda r, mask: advantages.leave_one_out_tokens(
      r, np.full(mask.shape, 3), mask
    ),
    lambda r: _leave_one_out_tokens(r, [[3] * len(row) for row in r]),
  ),
  "leave_one_out_budget": (
    lambda x, mask: advantages.leave_one_out_budget(x, mask, 5),
    lambda x: _leave_one_out_budget(x, 5),
  ),
  "group_normalised_steps": (
    lambda r, mask: advantages.group_normalised(r, mask, 0.1),
    lambda r: _by_rows(_normalised([x for row in r for x in row]), r),
  ),
  "max_return_scaled": (advantages.max_return_scaled, _scaled),
  "prime": (
    lambda r, mask: _fast_prime(r, mask, None, 0.9),
    lambda r: _prime(r, False, sum, 0.9),
  ),
  "prime, scaled": (
    lambda r, mask: _fast_prime(r, mask, "max_return"),
    lambda r: _prime(r, True, sum),
  ),
}
# name: form, oracle, example, mask
CASES = {
  **{k: (*v, (FIRST,), HOLES) for k, v in FORMS.items()},
  **{k: (*v, (FIRST, SECOND), HOLES) for k, v in PAIR_FORMS.items()},
  **{k: (*v, (GRID,), GRID_HOLES) for k, v in GRID_FORMS.items()},
}
each_form = pytest.mark.parametrize("name", CASES)


@each_form
def test_what_is_masked_equals_what_was_deleted(name):
  function, oracle, arrays, mask = CASES[name]
  holes.check_values(function, oracle, mask.shape, len(arrays))


@each_form
def test_nan_behind_the_mask_does_not_reach_a_gradient(name):
  function, _, arrays, mask = CASES[name]
  holes.check_gradients(function, mask.shape, len(arrays))


@each_form
def test_vmapped_and_jitted_equals_plain(name):
  function, _, arrays, mask = CASES[name]
  holes.check_plain(function, mask.shape, len(arrays))


@each_form
def test_nothing_real_gives_zeros(name):
  function, _, arrays, mask = CASES[name]
  hidden = [np.full_like(array, np.nan) for array in arrays]
  found = function(*hidden, np.zeros_like(mask))
  np.testing.assert_array_equal(found, np.zeros(mask.shape))


@pytest.mark.parametrize("dtype", [np.int32, jnp.bfloat16])
@each_form
def test_whatever_comes_in_floats_come_out(name, dtype):
  function, _, arrays, mask = CASES[name]
  whole = [np.round(3 * array) for array in arrays]
  found = function(*(array.astype(dtype) for array in whole), mask)
  assert found.dtype == jnp.float32
  expected = function(*(array.astype(np.float32) for array in whole), mask)
  _close(found, expected)
  assert np.any(expected != np.round(expected)) or name == "moving"


def test_outcomes_may_be_booleans():
  right = np.asarray([True, False, False, True])
  mask = np.ones(4, bool)
  _close(advantages.leave_one_out(right, mask), [2 / 3, -2 / 3, -2 / 3, 2 / 3])
  _close(advantages.group_normalised(right, mask, 0.0), [1, -1, -1, 1])
  centred = advantages.group_normalised(right, mask, scale=False)
  _close(centred, [0.5, -0.5, -0.5, 0.5])


# --- Equal rewards, and nothing to compare with -----------------------------


def test_equal_rewards_give_0_exactly_and_a_finite_gradient():
  # 0.1 + 0.1 + 0.1 is not 3 * 0.1 in floats: a mean would leave rounding.
  normalise = functools.partial(advantages.group_normalised, epsilon=0.0)
  forms = (normalise, advantages.leave_one_out, advantages.whiten)
  fast = jax.jit(lambda *x: jnp.stack([form(*x) for form in forms]))
  slope = jax.jit(jax.jacobian(normalise))
  for number in (2, 3, 7):
    mask = np.arange(8) < number
    rewards = np.where(mask, 0.1, 5).astype(np.float32)
    np.testing.assert_array_equal(fast(rewards, mask), np.zeros((3, 8)))
    np.testing.assert_array_equal(slope(rewards, mask), np.zeros((8, 8)))


def test_equal_steps_of_a_group_give_0_exactly():
  rewards = np.full((3, 2), 0.1, np.float32)
  found = advantages.group_normalised(rewards, GRID_HOLES)
  np.testing.assert_array_equal(found, np.zeros((3, 2)))


def test_a_solution_without_others_has_the_baseline_0():
  alone = np.asarray([False, True, False])
  rewards = np.asarray([9, 0.7, 9], np.float32)
  _close(advantages.leave_one_out(rewards, alone), [0, 0.7, 0])
  steps, mask = np.asarray([[0.7, 0.2], [9, 9]]), [[True, True], [False] * 2]
  found = advantages.leave_one_out_steps(steps, np.asarray(mask))
  _close(found, [[0.7, 0.2], [0, 0]])
  _close(advantages.group_normalised(rewards, alone), [0, 0, 0])


# --- Bias, by enumeration of everything that can be drawn -------------------

LOGITS = np.asarray([0.2, -0.5, 1.0])
ARM_REWARDS = np.asarray([1.0, 0.0, 0.3], np.float32)


def _gradients(baseline, num_samples):
  """Returns E[1/n sum_i A_i grad log pi(a_i)] and the gradient of E[r]."""
  policy = np.exp(LOGITS) / np.exp(LOGITS).sum()
  scores = np.eye(3) - policy
  draws = np.asarray(list(itertools.product(range(3), repeat=num_samples)))
  found = np.asarray(jax.jit(jax.vmap(baseline))(ARM_REWARDS[draws]))
  estimates = np.einsum("XN,XNA->XA", found, scores[draws]) / num_samples
  mean = np.einsum("X,XA->A", policy[draws].prod(axis=1), estimates)
  return mean, np.einsum("a,a,aA->A", policy, ARM_REWARDS, scores)


def test_the_budgets_baseline_is_one_number_without_the_solution_itself():
  values = np.float32([[0.5, 0.25, 1], [2, 1, 9], [0.75, 9, 9]])
  mask = np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0]], bool)
  found = advantages.leave_one_out_budget(values, mask, 10)
  baselines = [3.75 / 2 / 10, 2.5 / 2 / 10, 4.75 / 2 / 10]
  _close(found, np.where(mask, values - np.array(baselines)[:, None], 0))
  # All of it moves with the budget, none of it with the width of the array.
  wide = np.pad(values, ((0, 0), (0, 4))), np.pad(mask, ((0, 0), (0, 4)))
  _close(advantages.leave_one_out_budget(*wide, 10)[:, :3], found)
  half = advantages.leave_one_out_budget(values, mask, 20)
  _close(np.where(mask, values, 0) - half, (values * mask - found) / 2)


# Up to three steps: a good one, a poor one, or the token that ends the solution.
STEP_REWARDS = np.asarray([1.0, 0.3, 0.0])
PATHS = [
  path
  for n in range(4)
  for path in itertools.product((0, 1), repeat=n)
  for path in ([*path, 2] if n < 3 else path,)
]


def _paths():
  """Returns the chance, the gradient at each token, and the rest of PATHS."""
  policy = np.exp(LOGITS) / np.exp(LOGITS).sum()
  mask = np.asarray([[t < len(path) for t in range(3)] for path in PATHS])
  actions = np.asarray([[*path, 2, 2, 2][:3] for path in PATHS])
  chance = np.where(mask, policy[actions], 1).prod(axis=1)
  scores = np.where(mask[..., None], np.eye(3)[actions] - policy, 0)
  rewards = np.where(mask, STEP_REWARDS[actions], 0).astype(np.float32)
  return chance, scores, rewards, mask & (actions < 2), mask


def _gradient_of_paths(form):
  """Returns the mean estimate of two solutions, and the true gradient."""
  chance, scores, rewards, steps, mask = _paths()
  assert chance.sum() == pytest.approx(1)
  pairs = np.asarray(list(itertools.product(range(len(PATHS)), repeat=2)))
  found = jax.jit(jax.vmap(form))(rewards[pairs], steps[pairs], mask[pairs])
  estimates = np.einsum("XNT,XNTA->XA", np.asarray(found), scores[pairs]) / 2
  mean = np.einsum("X,XA->A", chance[pairs].prod(axis=1), estimates)
  return mean, np.einsum("X,X,XTA->A", chance, rewards.sum(axis=1), scores)


def _to_go(rewards, steps, mask):
  ends = jnp.broadcast_to(jnp.arange(3), steps.shape)
  token_returns = jax.vmap(returns.discounted)(rewards, mask)
  return advantages.leave_one_out_to_go(token_returns, ends, steps, mask)


def test_a_baseline_to_go_is_unbiased_whatever_the_number_of_steps():
  mean, true = _gradient_of_paths(_to_go)
  _close(mean, true)
  assert np.abs(true).max() > 0.1


@pytest.mark.parametrize("shrinks", [True, False])
def test_a_mean_of_steps_pays_or_charges_each_further_step(shrinks):
  def usual(rewards, steps, mask):
    if shrinks:
      steps = advantages.group_normalised(rewards, steps, scale=False) * 2
    else:
      steps = advantages.leave_one_out_steps(rewards, steps)
    return jax.vmap(returns.discounted)(steps, mask)

  mean, true = _gradient_of_paths(usual)
  assert np.abs(mean - true).max() > 0.1 * np.abs(true).max()
  # What it gets wrong most is the token that ends a solution.
  assert np.abs(mean - true).argmax() == 2


def test_a_baseline_to_go_compares_the_same_step_of_the_others():
  rng = np.random.default_rng(0)
  shape = (4, 9)
  values = rng.normal(size=shape).astype(np.float32)
  mask = np.arange(9) < rng.integers(1, 10, 4)[:, None]
  ends = np.sort(rng.integers(0, 9, (4, 3)), axis=1)
  steps = ends < mask.sum(axis=1)[:, None]
  found = advantages.leave_one_out_to_go(values, ends, steps, mask)
  step_of = [
    [sum(end < t for end in ends[i][steps[i]]) for t in range(mask[i].sum())]
    for i in range(4)
  ]
  for i, row in enumerate(step_of):
    for t, k in enumerate(row):
      others = [
        values[j, step_of[j].index(k)]
        for j in range(4)
        if j != i and k in step_of[j]
      ]
      expected = values[i, t] - (np.mean(others) if others else 0)
      assert found[i, t] == pytest.approx(expected, abs=1e-5)
  assert not found[~mask].any()


@pytest.mark.parametrize("number", [1, 3])
def test_leave_one_out_is_unbiased(number):
  everybody = np.ones(number, bool)
  mean, true = _gradients(
    lambda r: advantages.leave_one_out(r, everybody), number
  )
  _close(mean, true)
  assert np.abs(true).max() > 0.1


def test_a_moving_mean_of_earlier_returns_is_unbiased():
  everybody = np.ones(2, bool)
  mean, true = _gradients(
    lambda r: advantages.moving(EARLIER, r, everybody, 0.9)[0], 2
  )
  _close(mean, true)


def test_a_mean_that_holds_ones_own_reward_shrinks_the_gradient():
  everybody = np.ones(3, bool)
  mean, true = _gradients(
    lambda r: advantages.group_normalised(r, everybody, scale=False), 3
  )
  _close(mean, true * 2 / 3)


def test_a_step_baseline_counts_each_of_the_others_once():
  # The others' means are 0.5 and 0.1, of one step and of two.
  rewards = np.asarray([[0.3, 0], [0.5, 0], [0.2, 0]], np.float32)
  mask = np.asarray([[True, False], [True, False], [True, True]])
  found = advantages.leave_one_out_steps(rewards, mask)
  _close(found[0], [0, 0])


def test_a_step_baseline_favours_few_steps_and_a_token_baseline_does_not():
  rewards = np.asarray([[0.6, 0, 0], [0.2, 0.2, 0.2]], np.float32)
  mask = np.asarray([[True, False, False], [True, True, True]])
  by_steps = advantages.leave_one_out_steps(rewards, mask)
  _close(by_steps.sum(axis=1), [0.4, -1.2])
  sizes = np.asarray([[12, 0, 0], [4, 4, 4]])
  by_tokens = advantages.leave_one_out_tokens(rewards, sizes, mask)
  _close(by_tokens.sum(axis=1), [0, 0])
  # More tokens for the same reward cost what they bring elsewhere.
  sizes[1] *= 2
  by_tokens = advantages.leave_one_out_tokens(rewards, sizes, mask)
  _close(by_tokens.sum(axis=1), [0.6 - 12 * 0.025, 0.6 - 24 * 0.05])


def test_cutting_a_step_in_two_leaves_its_token_advantage():
  mask = np.asarray([[True, True, False], [True, False, False]])
  whole = advantages.leave_one_out_tokens(
    np.asarray([[0.5, 0.3, 0], [0.4, 0, 0]]),
    np.asarray([[6, 4, 0], [5, 0, 0]]),
    mask,
  )
  mask = np.asarray([[True, True, True], [True, False, False]])
  cut = advantages.leave_one_out_tokens(
    np.asarray([[0.4, 0.1, 0.3], [0.4, 0, 0]]),
    np.asarray([[1, 5, 4], [5, 0, 0]]),
    mask,
  )
  _close(cut[0, :2].sum(), whole[0, 0])
  _close(cut[0, 2], whole[0, 1])
  _close(cut[1], whole[1])


# --- By hand ----------------------------------------------------------------


def test_process_grpo_sums_the_normalised_rewards_of_the_steps_still_to_end():
  # Of 1, 0, 0, 1, 1, 1: mean 2/3, deviation sqrt(2) / 3.
  rewards = np.asarray([[1, 0, 0], [1, 1, 1]])
  mask = np.ones((2, 3), bool)
  found = advantages.group_normalised(rewards, mask, 0.0)
  good, bad = 1 / 2**0.5, -(2**0.5)
  _close(found, [[good, bad, bad], [good] * 3])
  ends, tokens = np.asarray([0, 2, 3]), np.ones(4, bool)
  placed = returns.place(found[0], ends, mask[0], 4)
  _close(
    returns.discounted(placed, tokens),
    [good + 2 * bad, 2 * bad, 2 * bad, bad],
  )


def test_gae_is_the_hand_computed_trace_of_errors():
  rewards, values = np.asarray([0, 0, 1.0]), np.asarray([0.5, 0.6, 0.7])
  mask = np.ones(3, bool)
  # Errors .04, .03, .3, and each keeps .45 of the next.
  found, targets = advantages.gae(rewards, values, mask, 0.9, 0.5)
  _close(found, [0.11425, 0.165, 0.3])
  _close(targets, [0.61425, 0.765, 1.0])
  # A solution that was cut: the last error is 1 + .9 * 2 - .7.
  found, _ = advantages.gae(rewards, values, mask, 0.9, 0.0, 2.0)
  _close(found, [0.04, 0.03, 2.1])


def test_gae_with_a_trace_of_1_is_the_return_less_the_value():
  found, targets = advantages.gae(FIRST, SECOND, HOLES, 0.9, 1.0)
  sums = returns.discounted(FIRST, HOLES, 0.9)
  _close(found, sums - returns.masked(SECOND, HOLES))
  _close(targets, sums)


def test_gae_with_a_trace_of_0_is_the_td_error():
  found, _ = advantages.gae(FIRST, SECOND, HOLES, 0.9, 0.0)
  after = returns.following(SECOND, HOLES)
  errors = returns.masked(FIRST + 0.9 * after - SECOND, HOLES)
  _close(found, errors)


def test_whitened_values_have_mean_0_and_variance_1():
  found = np.asarray(advantages.whiten(FIRST * 7 + 100, HOLES))
  _close(found[HOLES].mean(), 0, atol=1e-5)
  _close(found[HOLES].var(), 1, atol=1e-5)


def test_a_moving_mean_is_of_earlier_updates_and_starts_unbiased():
  mean, mask = advantages.no_mean(), np.asarray([True, True, False])
  found, mean = advantages.moving(mean, np.asarray([4, 2, 9]), mask, 0.5)
  _close(found, [4, 2, 0])
  found, mean = advantages.moving(mean, np.asarray([1, 5, 9]), mask, 0.5)
  _close(found, [-2, 2, 0])
  # (0.5 * 6 + 6) / (0.5 * 2 + 2) = 3; then (0.5 * 9 + 9) / (0.5 * 3 + 1).
  alone = np.asarray([False, True, False])
  found, mean = advantages.moving(mean, np.asarray([9, 9, 9]), alone, 0.5)
  _close(found, [0, 6, 0])
  found, _ = advantages.moving(mean, np.asarray([0, 0, 0]), mask, 0.5)
  _close(found, [-5.4, -5.4, 0])


PRIME_REWARDS = np.asarray([[0.3, -0.1, 0.1], [0.2, 0.4, np.nan]], np.float32)
PRIME_MASK = np.asarray([[True, True, True], [True, True, False]])


fast_prime = jax.jit(
  advantages.prime, static_argnames=("process_weight", "discount", "scale")
)


@pytest.mark.parametrize(
  "scale, expected",
  [
    # Mean rewards .1 and .3; with 5 * (r - the other's) + 5 * +-1 at the end
    # the tokens hold 0, -2, -1 + 5 and .5, 1.5 - 5.
    (None, [[2, 2, 4], [-3, -3.5, 0]]),
    # The largest return, .6, divides first: 0, -10/3, -5/3 + 5 and 5/6,
    # 5/2 - 5.
    ("max_return", [[0, 0, 10 / 3], [-5 / 3, -5 / 2, 0]]),
  ],
)
def test_prime_is_the_hand_computed_sum_of_both_sources(scale, expected):
  found = fast_prime(PRIME_REWARDS, PRIME_MASK, np.asarray([1, 0]), scale=scale)
  _close(found, expected, atol=1e-5)


def test_prime_over_a_batch_is_scaled_by_the_batch():
  rewards = np.stack([PRIME_REWARDS, 3 * PRIME_REWARDS])
  masks = np.stack([PRIME_MASK, PRIME_MASK])
  flat = advantages.max_return_scaled(
    rewards.reshape(4, 3), masks.reshape(4, 3)
  )
  sums = jax.vmap(returns.discounted)(flat, masks.reshape(4, 3))
  _close(np.abs(sums).max(), 1)
  found = fast_prime(
    flat.reshape(2, 2, 3)[0], PRIME_MASK, np.asarray([0, 0]), scale=None
  )
  own = fast_prime(PRIME_REWARDS, PRIME_MASK, np.asarray([0, 0]))
  _close(found, own / 3)


def test_prime_differs_from_the_released_code_behind_the_first_token_only():
  mask, outcomes = np.ones((3, 2), bool), np.zeros(3)
  found = fast_prime(GRID, mask, outcomes, process_weight=1.0, scale=None)
  means = GRID.mean(axis=1)
  released = GRID * 3 / 2 - means.sum() / 2
  sums = np.cumsum(released[:, ::-1], axis=1)[:, ::-1]
  _close(found[:, 0], sums[:, 0])
  assert np.abs(found - sums)[:, 1].min() > 0.05
  extra = (GRID - means[:, None]) / 2
  _close(sums - found, np.cumsum(extra[:, ::-1], axis=1)[:, ::-1])


def test_the_pages_recipe_is_pure_with_an_outcome():
  text = (pathlib.Path(__file__).parents[2] / "docs/returns.md").read_text()
  code = text.split("## A problem's solutions")[1].split("```")[1]
  given = dict(
    r=np.asarray([[0.9, -0.5], [0.8, 0.6]], np.float32),
    ends=np.asarray([[1, 2], [0, 3]]),
    step_tokens=np.asarray([[2, 1], [1, 3]]),
    outcomes=np.asarray([0, 1]),
    steps=np.ones((2, 2), bool),
    tokens=np.asarray([[True, True, True, False], [True] * 4]),
  )
  exec(code.removeprefix("python"), dict(globals(), **given), given)
  # The worst steps have all but e^-14 and e^-2 of the credit: -0.5, and 0.6
  # and 0.8 by 1 to e^-2; the others' price goes by the token.
  worst, share = -0.5, 1 / (1 + np.exp(-2))
  first, second = 0.8 * (1 - share), 0.6 * share
  price = (first + second) / 4
  expected = [
    [worst - 3 * price - 1] * 2 + [worst - price - 1, 0],
    [first + second - 4 * worst / 3 + 1] + [second - 3 * worst / 3 + 1] * 3,
  ]
  _close(given["advantage"], expected, atol=1e-5)
