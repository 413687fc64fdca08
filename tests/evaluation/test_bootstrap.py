"""Laws of resampling."""

import numpy as np
import pytest

from prm_jax.evaluation import bootstrap


def test_a_resample_has_as_many_units_and_a_seed_repeats_it():
  counts = bootstrap.counts(30, 500, seed=1)
  assert (counts.sum(axis=1) == 30).all()
  np.testing.assert_array_equal(counts, bootstrap.counts(30, 500, seed=1))
  assert (counts != bootstrap.counts(30, 500, seed=2)).any()


def test_the_interval_of_a_mean_is_the_normal_one():
  values = np.random.default_rng(0).normal(size=400)
  counts = bootstrap.counts(400, 4_000, seed=0)
  low, high = bootstrap.interval(counts @ values / 400)
  half = 1.96 * values.std() / 400**0.5
  assert low == pytest.approx(values.mean() - half, abs=half / 10)
  assert high == pytest.approx(values.mean() + half, abs=half / 10)


def test_sums_in_blocks_are_those_of_all_draws_at_once(monkeypatch):
  values = np.random.default_rng(0).normal(size=(30, 2))
  whole = bootstrap.counts(30, 500, seed=3) @ values
  monkeypatch.setattr(bootstrap, "_BLOCK", 30 * 7)
  np.testing.assert_allclose(bootstrap.sums(values, 500, seed=3), whole)
