"""What the experiments on reinforcement learning compute themselves."""

import importlib
import math
import pathlib

import numpy as np
import pytest

EXPERIMENTS = pathlib.Path(__file__).parents[2] / "experiments"
UPDATES = 40


@pytest.fixture
def testbed(monkeypatch):
  monkeypatch.syspath_prepend(EXPERIMENTS)
  return importlib.import_module("rl_testbed")


def _curves(curve, every=2, tokens=1_000.0):
  """Returns a run's curves, evaluated at every so many updates."""
  steps = range(0, UPDATES + 1, every)
  return dict(
    eval=dict(
      step=list(steps), all_steps_correct=[float(curve(s)) for s in steps]
    ),
    train=dict(sampled_tokens=[tokens] * UPDATES),
  )


def _line(slope):
  return lambda step: min(0.2 + slope * step, 0.97)


@pytest.mark.parametrize("times", [0.5, 1.0, 2.6])
def test_a_run_that_is_ahead_by_a_factor_has_that_efficiency(testbed, times):
  slow, fast = _curves(_line(0.02)), _curves(_line(times * 0.02), every=1)
  found = testbed.efficiency(slow, fast, "all_steps_correct")
  assert found == pytest.approx(times, rel=0.02)


def test_what_counts_is_tokens_not_updates(testbed):
  short, long = _curves(_line(0.02)), _curves(_line(0.02), tokens=3_000.0)
  assert testbed.efficiency(long, short, "all_steps_correct") == pytest.approx(
    3
  )
  assert testbed.sampled_tokens(long)[-1] == UPDATES * 3_000


def test_a_run_that_never_gets_as_far_has_no_efficiency(testbed):
  flat = _curves(lambda step: 0.2)
  assert math.isnan(
    testbed.efficiency(flat, _curves(_line(0.02)), "all_steps_correct")
  )


def test_an_accuracy_that_a_run_starts_with_is_no_level(testbed):
  """0.35 isn't above 0.35, though 7 times 0.05 is in floating point."""
  fast = _curves(lambda step: 0.35 + 0.02 * step)
  slow = _curves(lambda step: 0.35 + 0.01 * step - 0.03 * (0 < step < 4))
  found = testbed.efficiency(slow, fast, "all_steps_correct")
  assert found == pytest.approx(2, rel=0.02)


def test_the_factor_is_over_seeds_with_students_interval(testbed):
  points = [
    dict(name=name, seed=seed, curves=_curves(_line(slope)))
    for name, slopes in (("a", [0.02] * 3), ("b", [0.02, 0.04, 0.08]))
    for seed, slope in enumerate(slopes)
  ]
  logs = np.log(
    [
      testbed.efficiency(a["curves"], b["curves"], "all_steps_correct")
      for a, b in zip(points[:3], points[3:], strict=True)
    ]
  )
  # Student's t of two degrees of freedom is 4.303 at 97.5 %.
  half = 4.3027 * logs.std(ddof=1) / math.sqrt(3)
  low, middle, high = (math.exp(logs.mean() + x) for x in (-half, 0, half))
  found = testbed.factor(points, "a", "b", "all_steps_correct")
  assert found == f"{middle:.2f} [{low:.2f}, {high:.2f}]"
  assert testbed.factor(points, "b", "c", "all_steps_correct") == ""


# --- rl_monitor -------------------------------------------------------------


@pytest.fixture
def monitor(monkeypatch):
  monkeypatch.syspath_prepend(EXPERIMENTS)
  return importlib.import_module("rl_monitor")


def _watched(accuracy, **columns):
  """Returns the point of a run with saves every four updates."""
  size = len(accuracy)
  train = dict(step=list(range(1, size + 1)), accuracy=list(accuracy))
  constant = ("prm_return", "prm_return_std", "prm_score", "heldout_prm")
  train |= {name: [1.0] * size for name in (*constant, "steps", "tokens")}
  train |= {name: list(values) for name, values in columns.items()}
  saves = list(range(0, size + 1, 4))
  greedy = [accuracy[max(step - 1, 0)] for step in saves]
  return dict(
    name="a",
    seed=0,
    curves=dict(train=train, eval=dict(step=saves, accuracy=greedy)),
  )


def test_a_runs_turn_is_its_last_update_near_the_best_before_the_fall(monitor):
  accuracy = [*np.linspace(0.2, 0.8, 20), *[0.8] * 10, *[0.2] * 10]
  run = monitor.run_of(_watched(accuracy))
  # The mean of five is 0.12 lower at update 31.
  assert run.turn == 30
  assert run.largest_fall == pytest.approx(0.6)
  healthy = monitor.run_of(_watched(np.linspace(0.2, 0.8, 40)))
  assert healthy.turn == 0 and healthy.largest_fall == 0


def test_a_signal_is_measured_by_what_is_lost_before_it_and_kept_after(monitor):
  accuracy = [*np.linspace(0.2, 0.8, 20), *[0.8] * 10, *[0.2] * 10]
  silent = [0.01] * 40
  answers = [*[0.01] * 30, *[0.5] * 10]
  hacked = monitor.run_of(_watched(accuracy, without_answer=answers))
  missed = monitor.run_of(_watched(accuracy, without_answer=silent))
  alarm = monitor.SIGNALS["`without_answer` alone"](hacked)
  # At the first update that shows it; back to the window before.
  assert alarm == (31, 28)
  assert monitor._kept(hacked, *alarm) == 1.0
  assert monitor.SIGNALS["`without_answer` alone"](missed) is None
  text = monitor.table([hacked, missed])
  row = next(x for x in text.splitlines() if x.startswith("| `without_answer`"))
  # 0.8 less the mean of updates 29 to 31, 0.6: 20 points.
  assert row == (
    "| `without_answer` alone | 1 | 1 [1, 1] | 20 [20, 20] | 100 [100, 100]"
    " | 0 |"
  )
