"""Which updates are skipped, and what of them is remembered."""

import collections
import statistics

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from prm_jax.training import skip_updates

ABOVE = 6.0
HALF = skip_updates.WINDOW // 2


def _sequence(length, seed=0):
  """Returns losses and norms around 1 and 3, some of them far away."""
  random = np.random.default_rng(seed)
  values = np.array([1.0, 3.0]) + 0.1 * random.normal(size=(length, 2))
  values[random.random((length, 2)) < 0.03] *= 20
  return values.astype(np.float32)


class _Oracle:
  """The rule in a few lines of float64, for finite updates that learn."""

  def __init__(self):
    self.seen = [
      collections.deque(maxlen=skip_updates.WINDOW) for _ in range(2)
    ]

  def bounds(self):
    if len(self.seen[0]) < HALF:
      return [np.inf, np.inf]
    return [statistics.mean(x) + ABOVE * statistics.stdev(x) for x in self.seen]

  def is_spike(self, values):
    bounds = self.bounds()
    for x, value, bound in zip(self.seen, values, bounds, strict=True):
      x.append(min(float(value), bound))
    return any(v > b for v, b in zip(values, bounds, strict=True))


@jax.jit
def _judge(skipped, values, has_targets=True):
  return skipped.judge(
    jnp.isfinite(values).all(), *values, has_targets=has_targets
  )


def _after(values, skipped=None):
  """Returns the counts after a sequence, and which of it was fit to make."""
  is_finite = []
  skipped = skipped or skip_updates.Skipped.none(ABOVE)
  for x in np.asarray(values, np.float32):
    found, skipped = _judge(skipped, x)
    is_finite.append(bool(found))
  return skipped, is_finite


def test_spikes_and_bounds_are_those_of_the_rule():
  oracle, skipped = _Oracle(), skip_updates.Skipped.none(ABOVE)
  outliers = 0
  for values in _sequence(400):
    bounds = oracle.bounds()
    np.testing.assert_allclose(skipped.recent.bounds(), bounds, rtol=1e-5)
    is_spike = oracle.is_spike(values)
    is_finite, skipped = _judge(skipped, values)
    assert bool(is_finite) is not is_spike
    outliers += is_spike
  assert int(skipped.recent.outliers) == int(skipped.total) == outliers > 5


def test_none_is_a_spike_before_half_a_window_is_known():
  calm = np.ones((HALF - 1, 2)) + 0.01 * _sequence(HALF - 1)
  for length in (1, HALF - 1):
    _, is_finite = _after([*calm[:length], [1e6, 1e6]])
    assert all(is_finite)
  skipped, is_finite = _after([*calm, calm[0], [1e6, 1.0]])
  assert is_finite == [True] * HALF + [False]
  assert {k: int(v) for k, v in skipped.metrics.items()} == dict(
    skipped_total=1, skipped_in_a_row=1, skipped_empty=0, skipped_outliers=1
  )


def _calm(length=skip_updates.WINDOW):
  random = np.random.default_rng(1)
  return np.array([1.0, 3.0]) + 0.1 * random.normal(size=(length, 2))


@pytest.mark.parametrize(
  "outlier", [(100.0, 3.0), (1.0, 300.0), (100.0, 300.0)]
)
def test_a_spike_does_not_open_the_door_to_one_half_as_high(outlier):
  skipped, is_finite = _after([*_calm(), *[outlier] * 5])
  assert not any(is_finite[-5:])
  half = np.where(np.asarray(outlier) > 50, np.asarray(outlier) / 2, [1.0, 3.0])
  skipped, is_finite = _after([half], skipped)
  assert is_finite == [False] and int(skipped.in_a_row) == 6


def test_a_level_that_changes_for_good_is_let_through():
  _, is_finite = _after([*_calm(), *(_calm(60) + 2)])
  later = is_finite[skip_updates.WINDOW :]
  assert not any(later[:5])
  assert all(later[-20:])


def test_what_is_not_finite_or_teaches_nothing_is_not_remembered():
  before, _ = _after(_calm())
  is_finite, after = _judge(before, np.array([np.nan, 3.0], np.float32))
  assert (
    not is_finite and int(after.total) == 1 and int(after.recent.outliers) == 0
  )
  for x, y in zip(
    jax.tree.leaves(after.recent), jax.tree.leaves(before.recent), strict=True
  ):
    np.testing.assert_array_equal(x, y)
  # Far below, and far above: nothing to learn from is no spike.
  for number, values in enumerate(([0.0, 0.0], [100.0, 0.0]), 1):
    is_finite, after = _judge(
      after, np.asarray(values, np.float32), has_targets=False
    )
    assert int(after.empty) == number and int(after.total) == 1
    assert is_finite and int(after.recent.number) == skip_updates.WINDOW
    assert int(after.in_a_row) == 1


def test_without_a_window_only_what_is_not_finite_is_skipped():
  skipped, is_finite = _after(
    [*_calm(80), [1e30, 1e30], [np.inf, 1.0]], skip_updates.Skipped.none()
  )
  assert is_finite == [True] * 81 + [False]
  assert {k: int(v) for k, v in skipped.metrics.items()} == dict(
    skipped_total=1, skipped_in_a_row=1, skipped_empty=0
  )
