"""Step rewards to returns: numbers by hand, slow oracles, and their laws."""

import math
import pathlib
import re

import holes
import jax
from jax import numpy as jnp
import numpy as np
import pytest

from prm_jax.rl import returns

REWARDS = np.asarray([0.9, 0.2, 0.8], np.float32)
ALL = np.ones(3, bool)
HOLES = np.asarray([False, True, False, True, True, False])
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "returns.md"


def _close(found, expected):
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


# --- Every form against a slow oracle that knows no mask --------------------


def _backwards(rewards, discount):
  total, found = 0.0, []
  for reward in reversed(rewards):
    total = reward + discount * total
    found.append(total)
  return found[::-1]


def _soft_min(rewards, temperature):
  weights = [math.exp(-reward / temperature) for reward in rewards]
  return [w * r / sum(weights) for w, r in zip(weights, rewards)]


def _delta(rewards):
  return [now - then for now, then in zip(rewards, [*rewards[1:], 0.0])]


# name: the form of rewards and a mask, and what it is of rewards alone.
FORMS = {
  "clip": (
    lambda r, mask: returns.masked(returns.clip(r, 0.5), mask),
    lambda r: [min(x - 0.5, 0) for x in r],
  ),
  "following": (
    lambda r, mask: returns.following(r, mask, 7.0),
    lambda r: [*r, 7.0][1:] if r else [],
  ),
  "delta": (returns.delta, _delta),
  "delta without the last": (
    lambda r, mask: returns.delta(r, returns.all_but_last(mask)),
    lambda r: [*_delta(r[:-1]), 0.0][: len(r)],
  ),
  "soft_min": (
    lambda r, mask: returns.soft_min(r, mask, 0.5),
    lambda r: _soft_min(r, 0.5),
  ),
  "discounted": (
    lambda r, mask: returns.discounted(r, mask, 0.9),
    lambda r: _backwards(r, 0.9),
  ),
  "sum": (returns.discounted, lambda r: _backwards(r, 1)),
  "min_to_go": (
    returns.min_to_go,
    lambda r: [min(r[k:]) for k in range(len(r))],
  ),
}
each_form = pytest.mark.parametrize("name", FORMS)


@each_form
def test_a_masked_step_equals_a_deleted_one(name):
  holes.check_values(*FORMS[name], HOLES.shape)


@each_form
def test_nan_behind_the_mask_does_not_reach_a_gradient(name):
  holes.check_gradients(FORMS[name][0], HOLES.shape)


@each_form
def test_vmapped_and_jitted_equals_plain(name):
  holes.check_plain(FORMS[name][0], HOLES.shape)


@each_form
def test_a_solution_without_steps_gets_zeros(name):
  found = FORMS[name][0](np.full(6, np.nan, np.float32), np.zeros(6, bool))
  np.testing.assert_array_equal(found, np.zeros(6))


@pytest.mark.parametrize("dtype", [np.int32, jnp.bfloat16, np.float64])
@each_form
def test_whatever_comes_in_floats_come_out(name, dtype):
  rewards = np.asarray([0, 1, 0, 2, 1, 0])
  found = FORMS[name][0](rewards.astype(dtype), HOLES)
  assert found.dtype == jnp.float32
  _close(found, FORMS[name][0](rewards.astype(np.float32), HOLES))


# --- By hand ----------------------------------------------------------------


def test_clip_takes_away_and_never_adds():
  _close(returns.clip(REWARDS, 0.5), [0, -0.3, 0])


def test_delta_is_the_fall_to_the_next_step():
  _close(returns.delta(REWARDS, ALL), [0.7, -0.6, 0.8])


def test_delta_as_published_leaves_the_final_answer_to_the_outcome():
  found = returns.delta(REWARDS, returns.all_but_last(ALL))
  _close(found, [0.7, 0.2, 0])
  _close(returns.discounted(found, ALL), [0.9, 0.2, 0])


def test_soft_min_is_the_hand_computed_softmax():
  # e^-7, 1 and e^-6 against the worst step; their sum is 1.0033906.
  found = returns.soft_min(REWARDS, ALL, 0.1)
  _close(found, [0.00081792, 0.19932416, 0.00197630])


def test_min_to_go_of_good_steps_is_above_0_at_all_of_their_tokens():
  least = returns.min_to_go(np.asarray([0.9, 0.7, 0.8]), ALL)
  _close(least, [0.7, 0.7, 0.8])
  found = returns.spread(least, np.asarray([1, 2, 4]), ALL, 6)
  _close(found, [0.7, 0.7, 0.7, 0.8, 0.8, 0])


def test_discounting_counts_real_tokens_only():
  mask = np.asarray([True, False, True, True])
  found = returns.discounted(np.asarray([1, 9, 2, 4]), mask, 0.5)
  _close(found, [1 + 1 + 1, 0, 2 + 2, 4])


# --- Placing ----------------------------------------------------------------


def test_a_reward_lands_on_the_token_that_closes_its_step_and_nowhere_else():
  mask = np.asarray([True, False, True, True])
  values = np.asarray([0.73, np.nan, 2.9, -1])
  found = returns.place(values, np.asarray([1, 3, 4, 4]), mask, 6)
  _close(found, [0, 0.73, 0, 0, 1.9, 0])


def test_place_loses_nothing():
  rng = np.random.default_rng(0)
  place = jax.jit(lambda *steps: returns.place(*steps, 9))
  for _ in range(20):
    values, mask = rng.normal(size=5).astype(np.float32), rng.random(5) < 0.6
    ends = rng.integers(0, 9, size=5)
    found = np.asarray(place(values, ends, mask))
    assert set(np.flatnonzero(found)) <= set(ends[mask])
    _close(found.sum(), values[mask].sum())


def test_a_token_has_the_value_of_the_first_real_step_that_ends_behind_it():
  rng = np.random.default_rng(1)
  spread = jax.jit(lambda *steps: returns.spread(*steps, 9))
  for _ in range(20):
    values, mask = rng.normal(size=5).astype(np.float32), rng.random(5) < 0.6
    ends = np.sort(rng.integers(0, 9, size=5))
    expected = [
      next((v for v, e in zip(values[mask], ends[mask]) if e >= t), 0)
      for t in range(9)
    ]
    (hidden,) = holes.hide([values], mask)
    _close(spread(hidden, ends, mask), expected)


def test_of_two_steps_that_end_at_one_token_the_second_has_no_token():
  ends = np.asarray([1, 1, 3])
  _close(returns.spread(REWARDS, ends, ALL, 5), [0.9, 0.9, 0.8, 0.8, 0])


@pytest.mark.parametrize("end", [-1, 5])
@pytest.mark.parametrize("form", [returns.place, returns.spread])
def test_a_step_that_ends_outside_makes_nan_unless_it_is_masked(form, end):
  ends = np.asarray([1, 3, end])
  assert np.isnan(form(REWARDS, ends, ALL, 5)).all()
  masked = form(REWARDS, ends, np.asarray([True, True, False]), 5)
  _close(masked, form(REWARDS[:2], ends[:2], ALL[:2], 5))
  assert np.isfinite(masked).all()


@pytest.mark.parametrize("form", [returns.place, returns.spread])
def test_nan_behind_the_mask_stays_there_when_steps_become_tokens(form):
  ends = np.asarray([7, 0, 2, 2, 3, -4])

  def loss(rewards):
    return jnp.square(form(rewards, ends, HOLES, 5)).sum()

  (rewards,) = holes.hide([np.ones(6)], HOLES)
  gradient = jax.jit(jax.grad(loss))(rewards)
  assert np.isfinite(gradient).all()
  np.testing.assert_array_equal(gradient != 0, HOLES)


def test_an_outcome_stands_at_the_last_real_token():
  _close(returns.at_last(True, HOLES), [0, 0, 0, 0, 1, 0])
  _close(returns.at_last(0.73, HOLES), [0, 0, 0, 0, 0.73, 0])
  _close(returns.at_last(1, np.zeros(4, bool)), np.zeros(4))


# --- Laws -------------------------------------------------------------------


def test_an_outcome_through_the_step_path_is_the_outcome_path():
  steps, tokens = np.asarray([True, True, True, False]), np.arange(9) < 8
  through = returns.at_last(0.73, steps)
  placed = returns.place(through, np.asarray([2, 4, 7, 8]), steps, 9)
  direct = returns.at_last(0.73, tokens)
  np.testing.assert_array_equal(placed, direct)
  _close(
    returns.discounted(placed, tokens, 0.9),
    [*(0.73 * 0.9 ** (7 - t) for t in range(8)), 0],
  )


def test_splitting_a_step_in_two_leaves_the_sums_of_other_steps_tokens():
  tokens = np.ones(9, bool)

  def sums(rewards, ends):
    mask = np.ones(len(ends), bool)
    placed = returns.place(np.asarray(rewards), np.asarray(ends), mask, 9)
    return np.asarray(returns.discounted(placed, tokens))

  whole = sums([0.5, -0.2, 0.7], [2, 5, 8])
  split = sums([0.5, 0.3, -0.5, 0.7], [2, 4, 5, 8])
  others = [0, 1, 2, 6, 7, 8]
  _close(split[others], whole[others])
  # The split step's second half now answers for itself.
  _close(whole[3:6], [0.5, 0.5, 0.5])
  _close(split[3:6], [0.5, 0.5, 0.2])


def _solution(good, size=8):
  """Returns a bad step after a number of good ones, and the mask."""
  mask = np.arange(size) <= good
  return np.where(np.arange(size) == good, -0.8, 0.9).astype(np.float32), mask


def test_min_form_ignores_the_number_of_good_steps_and_the_sum_does_not():
  short, long = _solution(good=1), _solution(good=6)
  assert returns.min_to_go(*short)[0] == returns.min_to_go(*long)[0]
  soft = [returns.soft_min(*x).sum() for x in (short, long)]
  _close(soft, [-0.8, -0.8])
  plain = [returns.discounted(*x)[0] for x in (short, long)]
  _close(plain[1] - plain[0], 5 * 0.9)


@pytest.mark.parametrize("step", range(3))
@pytest.mark.parametrize("copies", [1, 4])
def test_repeating_a_step_cannot_raise_deltas_return_and_raises_the_sum(
  step, copies
):
  repeats = np.ones(3, int)
  repeats[step] += copies
  rewards = np.repeat(REWARDS, repeats)
  long = np.zeros(8, np.float32)
  long[: len(rewards)] = rewards
  mask = np.arange(8) < len(rewards)
  found = returns.discounted(returns.delta(long, mask), mask)
  # From every step, the copies too, it is that step's own reward.
  _close(found, long)
  more = returns.discounted(long, mask)[0] - REWARDS.sum()
  _close(more, copies * REWARDS[step])
  clipped = returns.discounted(returns.clip(long, 0.5), mask)
  assert (clipped <= 0).all()


def test_the_sum_of_soft_min_tends_to_the_minimum():
  gaps = [
    abs(float(returns.soft_min(REWARDS, ALL, t).sum()) - 0.2)
    for t in (1.0, 0.3, 0.1, 0.03)
  ]
  assert gaps == sorted(gaps, reverse=True)
  _close(returns.soft_min(REWARDS, ALL, 1e-3).sum(), 0.2)
  # Two steps that are equally bad share the credit.
  tied = returns.soft_min(np.asarray([-1, 1, -1], np.float32), ALL, 1e-3)
  _close(tied, [-0.5, 0, -0.5])


# --- The page ---------------------------------------------------------------


def _rows(section):
  """Returns the numbers of the page's table rows, by what stands before."""
  text = PAGE.read_text(encoding="utf-8").split(f"## {section}\n")[1]
  rows = {}
  for line in text.split("\n## ")[0].splitlines():
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    numbers = [cell.replace("−", "-") for cell in cells[1:] if cell]
    if line.startswith("| `") and re.fullmatch(r"-?[\d.]+", numbers[0]):
      rows[cells[0].split("`")[1]] = [float(x) for x in numbers]
  return rows


def test_the_pages_example_holds():
  given = dict(
    r=REWARDS, mask=ALL, ends=np.asarray([1, 3, 6]), tokens=np.ones(7, bool)
  )
  rows = _rows("A worked example")
  assert len(rows) >= 10
  for expression, numbers in rows.items():
    found = eval(expression, dict(vars(returns), **given))
    np.testing.assert_allclose(found, numbers, atol=5e-4, err_msg=expression)
