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
