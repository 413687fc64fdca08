"""Credit of whole rollouts against a plain loop over solutions and tokens."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

from prm_jax.rl import advantages
from prm_jax.rl import baselines
from prm_jax.rl import credit
from prm_jax.rl import hacking_monitor
from prm_jax.rl import rl_run
from prm_jax.rl import rollout_metrics

N, SAMPLES, K, S = 6, 3, 4, 9
# More than any of them has.
MAX_TOKENS = 12


def _rewards(seed=0, **more):
  """Two problems of three solutions, of one to four steps."""
  random = np.random.default_rng(seed)
  lengths = random.integers(4, S + 1, N)
  num_steps = random.integers(1, K + 1, N)
  ends = np.zeros((N, K), np.int32)
  for i in range(N):
    cuts = np.sort(random.choice(lengths[i] - 1, num_steps[i] - 1, False))
    ends[i, : num_steps[i]] = [*cuts, lengths[i] - 1]
  token_mask = np.arange(S) < lengths[:, None]
  fields = dict(
    steps=random.random((N, K)).astype(np.float32),
    step_ends=ends,
    step_mask=np.arange(K) < num_steps[:, None],
    outcome=random.integers(0, 2, N).astype(np.float32),
    tokens=random.normal(size=(N, S)).astype(np.float32),
    penalty=0.1 * random.normal(size=(N, S)).astype(np.float32),
    values=random.random((N, S)).astype(np.float32),
    token_mask=token_mask,
    counts=np.ones(N, bool),
  )
  return baselines.Rewards(**fields | more)


def _assign(rewards, config, mean=None):
  mean = advantages.no_mean() if mean is None else mean
  return jax.device_get(
    credit.assign(
      rewards, mean, config=config, samples=SAMPLES, max_tokens=MAX_TOKENS
    )
  )


def _own(r, i):
  """Returns one solution's steps [(reward, end)], tokens and outcome."""
  steps = [
    (float(r.steps[i, k]), int(r.step_ends[i, k]))
    for k in range(K)
    if r.step_mask[i, k]
  ]
  return steps, int(r.token_mask[i].sum())


def _tail(r, i, t, steps):
  """Returns what is still to come from token t on, at discount 1."""
  _, length = _own(r, i)
  found = sum(reward for reward, end in steps if end >= t)
  return found + float(r.outcome[i]) - float(r.penalty[i, t:length].sum())


def _rivals(i):
  first = i // SAMPLES * SAMPLES
  return [j for j in range(first, first + SAMPLES) if j != i]


def _shaped(steps, config):
  values = [reward for reward, _ in steps]
  if "clip" in config.shape:
    values = [min(x - config.threshold, 0) for x in values]
  if "delta" in config.shape:
    # The last step, the answer, gets nothing, the one before it all of its own.
    before = values[:-1]
    values = [a - b for a, b in itertools.pairwise([*before, 0.0])]
    values.append(0.0)
  if config.returns == "soft_min":
    w = np.exp(-np.array(values) / config.min_temperature)
    values = list(w / w.sum() * values)
  return [(v, end) for v, (_, end) in zip(values, steps, strict=True)]


@pytest.mark.parametrize(
  "fields",
  [
    dict(baseline="none"),
    dict(baseline="leave_one_out", shape="clip"),
    dict(baseline="leave_one_out", shape="clip_delta", returns="soft_min"),
    dict(baseline="leave_one_out_budget", returns="soft_min"),
    dict(baseline="group"),
  ],
  ids=str,
)
def test_credit_is_what_a_loop_over_tokens_finds(fields):
  config, r = credit.CreditConfig(**fields), _rewards()
  found = _assign(r, config)
  steps = [_shaped(_own(r, i)[0], config) for i in range(N)]
  total = [_tail(r, i, 0, steps[i]) for i in range(N)]
  np.testing.assert_allclose(found.total, total, rtol=1e-5, atol=1e-6)
  for i in range(N):
    _, length = _own(r, i)
    rivals = [total[j] for j in _rivals(i)]
    for t in range(S):
      expected = 0.0
      if t < length:
        expected = _tail(r, i, t, steps[i])
        if config.baseline == "leave_one_out":
          expected -= np.mean(rivals)
        elif config.baseline == "leave_one_out_budget":
          tails = [
            sum(_tail(r, j, u, steps[j]) for u in range(_own(r, j)[1]))
            for j in _rivals(i)
          ]
          expected -= np.mean(tails) / MAX_TOKENS
        elif config.baseline == "group":
          group = [total[i], *rivals]
          expected = (total[i] - np.mean(group)) / np.std(group)
      assert found.advantages[i, t] == pytest.approx(expected, abs=2e-5)


def test_min_to_go_is_the_least_of_this_and_later_steps_plus_the_outcome():
  config = credit.CreditConfig(returns="min_to_go", baseline="none")
  r = _rewards()
  found = _assign(r, config)
  for i in range(N):
    steps, length = _own(r, i)
    for t in range(length):
      lowest = min(reward for reward, end in steps if end >= t)
      rest = _tail(r, i, t, [])
      assert found.returns[i, t] == pytest.approx(lowest + rest, abs=1e-5)


@pytest.mark.parametrize(
  "baseline", ["leave_one_out_step", "leave_one_out_token", "group_step"]
)
def test_step_baselines_compare_steps_and_the_outcome_on_its_own(baseline):
  config = credit.CreditConfig(baseline=baseline)
  r = _rewards(penalty=np.zeros((N, S), np.float32))
  found = _assign(r, config)
  own = [_own(r, i) for i in range(N)]
  for i in range(N):
    steps, length = own[i]
    rivals = _rivals(i)
    if baseline == "group_step":
      group = [x for j in [i, *rivals] for x, _ in own[j][0]]
      centred = [((x - np.mean(group)) / np.std(group), e) for x, e in steps]
      outcomes = [r.outcome[j] for j in [i, *rivals]]
      spread = np.std(outcomes)
      of_whole = (r.outcome[i] - np.mean(outcomes)) / (spread or 1)
    else:
      means = [np.mean([x for x, _ in own[j][0]]) for j in rivals]
      paid = sum(x for j in rivals for x, _ in own[j][0])
      price = paid / sum(own[j][1] for j in rivals)
      begun, centred = 0, []
      for x, end in steps:
        by_token = price * (end + 1 - begun)
        less = by_token if baseline.endswith("token") else np.mean(means)
        centred.append((x - less, end))
        begun = end + 1
      of_whole = r.outcome[i] - np.mean([r.outcome[j] for j in rivals])
    for t in range(length):
      expected = sum(x for x, end in centred if end >= t) + of_whole
      assert found.advantages[i, t] == pytest.approx(expected, abs=2e-4)


def test_the_two_forms_of_pure_differ_in_the_sign_of_some_tokens():
  """Two right solutions, the second of each two with a bad step in it."""
  r = _rewards(
    steps=np.float32([[0.9, 0.9, 0.9, 0], [0.9, -0.8, 0.9, 0]] * 3),
    step_ends=np.int32([[2, 5, 8, 0]] * N),
    step_mask=np.tile(np.arange(K) < 3, (N, 1)),
    token_mask=np.ones((N, S), bool),
    outcome=np.ones(N, np.float32),
    penalty=np.zeros((N, S), np.float32),
  )
  by_token, by_budget = (
    credit.assign(
      r,
      advantages.no_mean(),
      config=credit.CreditConfig(returns="soft_min", baseline=baseline),
      samples=2,
      max_tokens=4 * S,
    ).advantages
    for baseline in ("leave_one_out_token", "leave_one_out_budget")
  )
  # After the bad step its return is that of the outcome, 1. By tokens the other
  # solution's reward of .9 is subtracted for three of nine; by the budget the
  # other's returns of 1.9, 1.6 and 1.3 at three tokens each, over 36.
  np.testing.assert_allclose(by_token[1, 6:], -0.3, atol=1e-3)
  np.testing.assert_allclose(by_budget[1, 6:], 1 - 0.4, atol=1e-3)


def test_prime_compares_mean_token_rewards_and_outcomes_in_each_problem():
  r = _rewards()
  config = credit.CreditConfig(baseline="prime")
  found = jax.device_get(
    credit.assign(
      r,
      advantages.no_mean(),
      config=config,
      samples=SAMPLES,
      max_tokens=MAX_TOKENS,
      implicit_weight=5.0,
    )
  )
  lengths = r.token_mask.sum(1)
  own = [r.tokens[i, : lengths[i]].astype(np.float64) for i in range(N)]
  # The largest return of any token of the rollout, of either problem, is 1.
  largest = max(abs(x[t:].sum()) for x in own for t in range(len(x)))
  own = [x / largest for x in own]
  for i in range(N):
    rivals = _rivals(i)
    less = np.mean([own[j].mean() for j in rivals])
    outcome = r.outcome[i] - np.mean([r.outcome[j] for j in rivals])
    for t in range(lengths[i]):
      expected = 5 * (own[i][t:] - less).sum() + outcome
      expected -= r.penalty[i, t : lengths[i]].sum()
      assert found.advantages[i, t] == pytest.approx(expected, abs=1e-4)


def test_gae_with_trace_1_is_the_return_less_the_value():
  config = credit.CreditConfig(baseline="gae", gae_lambda=1.0)
  r = _rewards()
  found = _assign(r, config)
  plain = _assign(r, credit.CreditConfig(baseline="none"))
  mask = r.token_mask
  np.testing.assert_allclose(
    found.advantages[mask], (plain.returns - r.values)[mask], atol=1e-5
  )
  np.testing.assert_allclose(found.returns, plain.returns, atol=1e-5)


def test_what_is_to_come_has_no_values_in_it():
  r = _rewards()
  config = credit.CreditConfig(baseline="gae", gae_lambda=0.5)
  found = _assign(r, config)
  plain = _assign(r, credit.CreditConfig(baseline="none"))
  np.testing.assert_array_equal(found.to_come, plain.returns)
  assert np.abs(found.returns - plain.returns).max() > 0.1
  # Values that are the same in all of a solution and right of nothing.
  values = np.random.default_rng(1).normal(scale=9, size=(N, 1))
  values = np.repeat(values, S, axis=1)
  known = dataclasses.replace(r, values=values.astype(np.float32))
  found, mask = _assign(known, config), r.token_mask
  by_its_own, by_rewards = (
    rollout_metrics.explained_variance(values[mask], x[mask])
    for x in (found.returns, found.to_come)
  )
  assert by_its_own > 0 > by_rewards


def test_the_moving_baseline_is_the_mean_of_earlier_rollouts():
  config = credit.CreditConfig(baseline="moving")
  r = _rewards()
  plain = _assign(r, credit.CreditConfig(baseline="none"))
  first = _assign(r, config)
  np.testing.assert_allclose(first.advantages, plain.advantages, atol=1e-6)
  _, mean = advantages.moving(
    advantages.no_mean(), plain.total, r.counts, config.moving_decay
  )
  second = _assign(r, config, mean)
  mask = r.token_mask
  np.testing.assert_allclose(
    second.advantages[mask],
    plain.advantages[mask] - plain.total.mean(),
    atol=1e-5,
  )


@pytest.mark.parametrize(
  "baseline",
  [
    *("leave_one_out", "group", "leave_one_out_token", "prime"),
    *("leave_one_out_budget", "leave_one_out_to_go"),
  ],
)
def test_a_solution_that_doesnt_count_is_as_if_it_werent_there(baseline):
  config = credit.CreditConfig(baseline=baseline)
  r, counts = _rewards(), np.ones(N, bool)
  counts[4] = False
  broken = dataclasses.replace(
    r, counts=counts, steps=r.steps.copy(), outcome=r.outcome.copy()
  )
  broken.steps[4], broken.outcome[4] = np.nan, np.nan
  other = dataclasses.replace(
    broken, steps=r.steps.copy(), outcome=r.outcome.copy()
  )
  other.steps[4], other.outcome[4] = 7.0, -3.0
  found, again = _assign(broken, config), _assign(other, config)
  assert np.isfinite(found.advantages).all()
  assert not found.advantages[4].any()
  np.testing.assert_array_equal(found.advantages, again.advantages)
  # Its problem's other two are compared with each other alone.
  if baseline == "leave_one_out":
    assert found.advantages[3, 0] == pytest.approx(
      found.total[3] - found.total[5], abs=1e-5
    )


@pytest.mark.parametrize(
  "baseline", ["leave_one_out", "group", "group_step", "leave_one_out_step"]
)
def test_a_problem_whose_solutions_fare_alike_teaches_nothing(baseline):
  r = _rewards(
    steps=np.full((N, K), 0.7, np.float32),
    outcome=np.ones(N, np.float32),
    penalty=np.zeros((N, S), np.float32),
    step_mask=np.ones((N, K), bool),
    step_ends=np.tile(np.arange(K, dtype=np.int32), (N, 1)),
  )
  found = _assign(r, credit.CreditConfig(baseline=baseline))
  first = found.advantages[:, 0]
  np.testing.assert_allclose(first, 0, atol=1e-6)
  if baseline.startswith("group"):
    assert not found.advantages.any()


def test_whitened_advantages_have_mean_0_and_variance_1_over_the_rollout():
  r = _rewards()
  found = _assign(r, credit.CreditConfig(baseline="none", whiten=True))
  own = found.advantages[r.token_mask]
  assert own.mean() == pytest.approx(0, abs=1e-5)
  assert own.std() == pytest.approx(1, abs=1e-4)


# --- Credit that teaches nothing ---------------------------------------------


@pytest.mark.parametrize(
  ("form", "steps", "expected"),
  [
    (dict(shape="clip_delta", baseline="none"), 0.9, 1),
    (dict(shape="clip_delta", baseline="none"), 0.3, 0),
    (dict(baseline="group"), 0.0, 1),
    (dict(baseline="none"), 0.0, 1),
    (dict(baseline="none"), 0.9, 0),
  ],
)
def test_a_rollout_without_any_advantage_is_counted_in_every_form(
  form, steps, expected
):
  rewards = _rewards(
    steps=np.full((N, K), steps, np.float32),
    outcome=np.zeros(N, np.float32),
    tokens=np.zeros((N, S), np.float32),
    penalty=np.zeros((N, S), np.float32),
  )
  found = _assign(rewards, credit.CreditConfig(**form))
  assert rollout_metrics.zero_advantages(rewards, found) == expected
  nothing = dataclasses.replace(rewards, counts=np.zeros(N, bool))
  assert (
    rollout_metrics.zero_advantages(nothing, found) == 0
  )  # counted as left out


def test_a_run_says_once_that_a_rollout_teaches_nothing(caplog):
  watch = rl_run.watch(hacking_monitor.MonitorConfig(), "rl")
  record = dict(kind="train", step=1)
  for zero in (0.0, 1.0, 1.0):
    watch([dict(record, zero_advantages=zero)])
  assert caplog.text.count("no token of the rollout has an advantage") == 1
