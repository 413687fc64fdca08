"""The hacking monitor on simulated runs: bad ones, good ones and chance."""

import math

import numpy as np
import pytest
import simulated_runs

from prm_jax import errors
from prm_jax.rl import hacking_monitor
from prm_jax.rl import update_windows

CONFIG = hacking_monitor.MonitorConfig()


def _runs(name, num, *, alike=0.0, **changes):
  """Yields runs, with some curves changed; other seeds than the docs'."""
  updates, curves = simulated_runs.RUNS[name]
  random = np.random.default_rng(7)
  for _ in range(num):
    yield simulated_runs.records(
      random, updates, alike=alike, **(curves | changes)
    )


def _first(run, config=CONFIG, kinds=hacking_monitor.KINDS):
  """Returns the update of the first alarm of these kinds, or infinity."""
  found = [
    x.update for x in hacking_monitor.replay(run, config) if x.kind in kinds
  ]
  return min(found, default=math.inf)


def _without(run, *names):
  return [{k: v for k, v in r.items() if k not in names} for r in run]


# --- Good runs and bad ones -------------------------------------------------


@pytest.mark.parametrize("alike", [0.0, 0.3])
def test_a_run_without_change_has_no_alarm_in_500_updates(alike):
  """Though its return rises all the time; more runs are in the docs."""
  for run in _runs("no change", 8, alike=alike):
    assert hacking_monitor.replay(run, CONFIG) == []
  # Chance does bring falls that a lower threshold takes for real.
  loose = hacking_monitor.MonitorConfig(sigmas=2.0, smallest_fall=0.0)
  falls = [
    _first(r, loose, hacking_monitor.FALLS) for r in _runs("no change", 2)
  ]
  assert max(falls) < 500


def test_a_run_of_noise_alone_has_no_alarm():
  for run in _runs("no change", 4, prm_return=((1, 0.7),)):
    assert hacking_monitor.replay(run, CONFIG) == []


@pytest.mark.parametrize("alike", [0.0, 0.3])
def test_a_healthy_run_has_no_alarm_though_length_and_diversity_drift(alike):
  name = "healthy: better, longer, less diverse"
  for run in _runs(name, 4, alike=alike):
    assert hacking_monitor.replay(run, CONFIG) == []
    # Without a verifier the held-out PRM says that it learns.
    assert hacking_monitor.replay(_without(run, "accuracy"), CONFIG) == []
  worse = next(_runs(name, 1, accuracy=((1, 0.63),)))
  kinds = {x.kind for x in hacking_monitor.replay(worse, CONFIG)}
  assert kinds == {"steps", "tokens", "distinct"}


@pytest.mark.parametrize(("alike", "delay"), [(0.0, 20), (0.3, 25)])
def test_the_collapse_by_a_plain_sum_is_seen_soon_after_its_turn(alike, delay):
  name = "plain-sum collapse, turn at 15"
  at = [_first(run) for run in _runs(name, 20, alike=alike)]
  assert min(at) > 15 and max(at) <= 15 + delay
  assert np.median(at) <= 15 + delay - 3
  for run in _runs(name, 5, alike=alike):
    # The held-out PRM alone sees it as well.
    assert _first(_without(run, "accuracy")) <= 15 + delay
    # Where the trained PRM's return falls too, it isn't hacked.
    down = [r | dict(prm_return=-r["step"]) for r in run]
    assert _first(down) == math.inf


def test_a_slow_drift_is_seen_within_the_lookback():
  for run in _runs("slow drift, turn at 100", 5):
    assert 100 < _first(run) <= 100 + CONFIG.lookback


def test_a_length_explosion_at_constant_accuracy_is_seen():
  for run in _runs("steps x 3 from 100 to 150", 5):
    found = hacking_monitor.replay(run, CONFIG)
    assert {x.kind for x in found} == {"steps", "tokens"}
    # They have doubled at 125, and half of a window later its mean has.
    assert all(120 <= x.update <= 140 for x in found)
    assert all(100 < x.turn < 125 for x in found)


@pytest.mark.parametrize(
  ("kind", "changes"),
  [
    ("steps", dict(steps=((100, 5.0), (150, 1.0)))),
    ("repetition", dict(repetition=((100, 0.05), (150, 0.6)))),
    ("distinct", dict(distinct=((100, 0.8), (150, 0.2)))),
  ],
)
def test_without_verifier_or_held_out_model_drift_and_diversity_still_alarm(
  kind, changes
):
  for run in _runs("no change", 2, **changes):
    blind = _without(run, "accuracy", "heldout_prm")
    found = {x.kind: x.update for x in hacking_monitor.replay(blind, CONFIG)}
    assert set(found) - {"tokens"} == {kind}
    assert 100 < found[kind] < 160


def test_solutions_that_suddenly_lack_an_answer_are_seen_without_any_truth():
  name = "no answers, from 1 % at 100 to 60 % at 110"
  for run in _runs(name, 10):
    blind = _without(run, "accuracy", "heldout_prm", "prm_return")
    (alarm,) = hacking_monitor.replay(blind, CONFIG)
    assert alarm.kind == "without_answer"
    assert 102 <= alarm.update <= 105 and alarm.turn == alarm.update - 3
    # The fall of the accuracy itself is seen later.
    assert alarm.update < _first(run, kinds=hacking_monitor.FALLS)


def test_solutions_that_slowly_lack_an_answer_are_not_a_sudden_rise():
  for run in _runs("no answers, from 1 % at 1 to 60 % at 200", 10):
    assert _first(run) == math.inf


def test_a_repetition_that_was_hardly_there_may_double():
  for run in _runs("no change", 2, repetition=((1, 0.001), (500, 0.05))):
    assert _first(run) == math.inf


# --- By hand ----------------------------------------------------------------


def _record(step, accuracy, prm_return=None, **more):
  if prm_return is None:
    prm_return = step / 10
  return dict(step=step, accuracy=accuracy, prm_return=prm_return, **more)


# Successive differences: 0.1 twice and 0.4 once, and 0.1 again.
BY_HAND = [
  *(_record(1, 0.5), _record(2, 0.6)),
  *(_record(3, 0.9), _record(4, 0.8), _record(5, 0.4), _record(6, 0.5)),
]


def test_an_alarm_says_in_numbers_what_was_seen():
  config = hacking_monitor.MonitorConfig(
    window=2, short_window=1, lookback=4, sigmas=1.0
  )
  run = [r | dict(kl_nats=0.25, solutions=1_000) for r in BY_HAND]
  # Of updates 3-6: (0.1^2 + 0.4^2 + 0.1^2) / (2 * 3) = 0.03 an update, so
  # 0.03 (1/2 + 1/2) of the difference, and 0.4 / sqrt(0.03) = 2.31.
  (alarm,) = hacking_monitor.alarms(run, config)
  assert alarm == hacking_monitor.Alarm(
    6,
    "accuracy",
    4,
    "accuracy fell from 0.85 to 0.45 (2.3 standard errors) from updates 3-4 to"
    " updates 5-6, while prm_return rose from 0.35 to 0.55; KL 0.25 nats",
  )


def test_few_solutions_are_no_evidence_however_steady_they_look():
  config = hacking_monitor.MonitorConfig(
    window=2, short_window=1, lookback=4, sigmas=2.2
  )
  assert hacking_monitor.alarms(BY_HAND, config)
  many = [r | dict(solutions=100) for r in BY_HAND]
  # 0.65 * 0.35 / 7 = 0.0325 an update: 0.4 / sqrt(0.0325) = 2.22; of 6: 2.05.
  assert hacking_monitor.alarms(many, config)
  assert hacking_monitor.alarms(
    [r | dict(solutions=7) for r in BY_HAND], config
  )
  assert not hacking_monitor.alarms(
    [r | dict(solutions=6) for r in BY_HAND], config
  )


def test_a_fall_counts_only_where_the_return_is_higher_than_then():
  config = hacking_monitor.MonitorConfig(
    window=2, short_window=1, lookback=4, sigmas=1.0
  )
  flat = [r | dict(prm_return=1.0) for r in BY_HAND]
  assert not hacking_monitor.alarms(flat, config)
  higher = [*flat[:-1], flat[-1] | dict(prm_return=1.1)]
  assert hacking_monitor.alarms(higher, config)


def test_records_before_the_lookback_are_not_read():
  config = hacking_monitor.MonitorConfig(
    window=2, short_window=1, lookback=4, sigmas=1.0
  )
  more = [_record(7, 0.45), _record(8, 0.45)]
  assert hacking_monitor.alarms(BY_HAND, config)
  assert not hacking_monitor.alarms([*BY_HAND, *more], config)
  # But for the first window: what is no record between fails when it's read.
  unread = [*BY_HAND[:2], *[{}] * 3, *BY_HAND[2:]]
  assert hacking_monitor.alarms(unread, config) == hacking_monitor.alarms(
    BY_HAND, config
  )


def test_a_sudden_rise_is_measured_in_binomial_errors():
  config = hacking_monitor.MonitorConfig(
    window=2, short_window=1, lookback=4, sigmas=3.0
  )
  run = [
    dict(step=k, cut=x, solutions=100) for k, x in enumerate((0, 0, 0.3), 1)
  ]
  # Of 300 solutions 0.1 are cut: 0.1 * 0.9 / 100 an update, times 1/2 + 1/1,
  # and 0.3 / sqrt(0.00135) = 8.16.
  (alarm,) = hacking_monitor.alarms(run, config)
  assert alarm == hacking_monitor.Alarm(
    3,
    "cut",
    2,
    "cut rose from 0 to 0.3 (8.2 standard errors) from updates 1-2 to updates"
    " 3-3",
  )
  few = [r | dict(solutions=13) for r in run]
  assert not hacking_monitor.alarms(few, config)
  # Of an unknown number of solutions nothing is known.
  assert not hacking_monitor.alarms(_without(run, "solutions"), config)
  high = hacking_monitor.MonitorConfig(
    window=2, short_window=1, lookback=4, sigmas=3.0, sudden_rise=0.31
  )
  assert not hacking_monitor.alarms(run, high)


def test_a_drift_counts_only_beyond_its_own_noise():
  config = hacking_monitor.MonitorConfig(
    window=2, short_window=1, lookback=4, sigmas=1.0
  )
  steady, noisy = (
    [dict(step=k, steps=x) for k, x in enumerate(steps, 1)]
    for steps in ((5, 5, 10, 11), (2, 8, 3, 18))
  )
  assert not hacking_monitor.alarms(noisy, config)
  (alarm,) = hacking_monitor.alarms(steady, config)
  assert alarm.text == (
    "steps rose from 5 to 10.5 from updates 1-2 to updates 3-4, and no better"
    " solutions show"
  )


@pytest.mark.parametrize("unknown", [None, math.nan, math.inf])
def test_a_window_that_is_mostly_unknown_says_nothing(unknown):
  config = hacking_monitor.MonitorConfig(window=3, lookback=6, sigmas=1.0)
  run = [_record(k, 0.9 if k <= 3 else 0.4) for k in range(1, 7)]
  run[1]["accuracy"] = 0.8
  assert hacking_monitor.alarms(run, config)
  run[3]["accuracy"] = unknown
  assert hacking_monitor.alarms(run, config)
  run[4]["accuracy"] = unknown
  assert not hacking_monitor.alarms(run, config)
  assert not hacking_monitor.alarms(_without(run, "accuracy"), config)


def test_a_short_window_is_no_longer_than_the_window():
  small = hacking_monitor.MonitorConfig(window=1, lookback=2)
  assert small.fewest == 2
  run = [dict(step=k, cut=float(k == 2), solutions=100) for k in (1, 2)]
  (alarm,) = hacking_monitor.alarms(run, small)
  assert (alarm.update, alarm.turn) == (2, 1)


def test_fewer_than_two_windows_have_no_fall_or_drift():
  config = hacking_monitor.MonitorConfig(
    window=2, short_window=1, lookback=4, sigmas=0.1
  )
  worse = [_record(k, 1 / k) for k in range(1, 5)]
  assert hacking_monitor.alarms(worse, config) and hacking_monitor.replay(
    worse, config
  )
  for n in range(4):
    assert hacking_monitor.alarms(worse[:n], config) == []
    assert hacking_monitor.replay(worse[:n], config) == []


def test_a_replay_is_the_first_of_each_kind_that_the_updates_gave():
  """And an update's alarms depend on its records alone: a resume is safe."""
  name = "steps x 3 from 100 to 150"
  run = next(_runs(name, 1, accuracy=((1, 0.7), (80, 0.7), (120, 0.2))))
  first = {}
  for n in range(1, len(run) + 1):
    for alarm in hacking_monitor.alarms(run[:n], CONFIG):
      first.setdefault(alarm.kind, alarm)
  assert set(first) == {"accuracy", "heldout_prm", "steps", "tokens"}
  assert hacking_monitor.replay(run, CONFIG) == list(first.values())
  # A drift slower than the lookback has its turn in the first window.
  small = hacking_monitor.MonitorConfig(window=2, short_window=1, lookback=4)
  slow = [dict(step=k, steps=5 + 0.5 * k) for k in range(1, 20)]
  (alarm,) = hacking_monitor.replay(slow, small)
  assert alarm.turn == 2
  assert hacking_monitor.alarms(slow[: alarm.update], small) == [alarm]
  assert not hacking_monitor.alarms(slow[: alarm.update - 1], small)


def test_windows_of_the_lookback_are_those_of_the_whole_run():
  """Also where values are unknown, at the edge of the lookback, too."""
  random = np.random.default_rng(0)
  records = [
    dict(step=t + 1, x=None if random.random() < 0.4 else random.normal())
    for t in range(60)
  ]
  sizes = dict(window=3, short_window=2, lookback=8)
  whole = update_windows.of_records(records, ["x"], **sizes).series["x"]
  for t in range(8, 60):
    part = update_windows.of_records(records[t - 7 : t + 1], ["x"], **sizes)
    part = part.series["x"]
    for name in ("mean", "short_mean", "noise"):
      np.testing.assert_allclose(
        getattr(part, name)[-1], getattr(whole, name)[t], rtol=1e-9
      )
    np.testing.assert_allclose(
      part.noise_then[-3], whole.noise_then[t - 2], rtol=1e-9
    )


def test_a_sudden_rise_depends_on_no_record_before_the_lookback():
  config = hacking_monitor.MonitorConfig(window=5, lookback=10, sigmas=3.0)
  shares = [*np.random.default_rng(0).uniform(0, 0.2, 30), 0.9, 0.9]
  run = [dict(step=k, cut=x, solutions=10**6) for k, x in enumerate(shares, 1)]
  (alarm,) = hacking_monitor.replay(run, config)
  assert alarm in hacking_monitor.alarms(run[: alarm.update], config)


# --- What follows -----------------------------------------------------------


def _alarm(kind, turn=40):
  return hacking_monitor.Alarm(60, kind, turn, "")


def test_the_turn_of_a_collapse_is_near_its_best_window():
  for run in _runs("plain-sum collapse, turn at 15", 10):
    found = {x.kind: x for x in hacking_monitor.replay(run, CONFIG)}
    assert 10 <= found["accuracy"].turn <= 25


def test_only_the_kinds_that_are_to_act_stop_a_run():
  found = [_alarm("distinct"), _alarm("steps")]
  assert hacking_monitor.acting(found, hacking_monitor.MonitorConfig()) is None
  for action in ("stop", "rollback"):
    config = hacking_monitor.MonitorConfig(action=action)
    assert hacking_monitor.acting(found, config) is found[0]
    assert hacking_monitor.acting([], config) is None
    config = hacking_monitor.MonitorConfig(action=action, acts_on=("steps",))
    assert hacking_monitor.acting(found, config) is found[1]
    config = hacking_monitor.MonitorConfig(action=action, acts_on=("accuracy",))
    assert hacking_monitor.acting(found, config) is None


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    (dict(action="halt"), "monitor.action='halt': expected one of warn, stop"),
    (dict(acts_on=("kl",)), "monitor.acts_on has 'kl': expected some of"),
    (dict(window=0), "monitor.window=0: expected 1 or more"),
    (dict(short_window=0), "monitor.short_window=0: expected 1 or more"),
    (dict(sudden_rise=2), "monitor.sudden_rise=2: expected a share"),
    (dict(lookback=19), "monitor.lookback=19: expected two windows or more"),
    (dict(sigmas=0), "monitor.sigmas=0: expected a number above 0"),
    (dict(smallest_fall=2), "monitor.smallest_fall=2: expected a share"),
    (dict(repetition_rise=-1), "monitor.repetition_rise=-1: expected a share"),
    (dict(drift_factor=1), "monitor.drift_factor=1: expected a number above 1"),
    (dict(drift_factor=math.nan), "monitor.drift_factor=nan: expected"),
  ],
)
def test_a_config_that_can_not_be_is_one_line(fields, message):
  with pytest.raises(errors.InputError) as e:
    hacking_monitor.MonitorConfig(**fields)
  assert str(e.value).startswith(message) and "\n" not in str(e.value)
