"""Alpha and kappa against their definitions, and published values."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
import rater_tables

from prm_jax.evaluation import rater_coefficients

_ = np.nan
# Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability", example C:
# 4 observers and 12 units, with missing values.
OBSERVERS = np.array(
  [
    [1, 2, 3, 3, 2, 1, 4, 1, 2, _, _, _],
    [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, _, 3],
    [_, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, _],
    [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, _],
  ]
)
VALUES = st.sampled_from([0.0, 0.5, 1.0, 4.0, np.nan])
TABLES = st.integers(0, 6).flatmap(
  lambda units: st.lists(
    st.lists(VALUES, min_size=units, max_size=units), min_size=2, max_size=4
  )
)


def _distance(c, k, level, pairable):
  """The squared difference of two values, by its definition."""
  if level == "nominal":
    return float(c != k)
  low, high = min(c, k), max(c, k)
  between = sum(low <= x <= high for x in pairable)
  return (between - (pairable.count(c) + pairable.count(k)) / 2) ** 2


def _alpha(table, level):
  """Alpha from all pairs of values, within units and of all units."""
  units = [[x for x in unit if not np.isnan(x)] for unit in zip(*table)]
  units = [unit for unit in units if len(unit) > 1]
  pairable = [x for unit in units for x in unit]
  n = len(pairable)
  observed = sum(
    _distance(a, b, level, pairable) / (len(unit) - 1)
    for unit in units
    for a, b in itertools.permutations(unit, 2)
  )
  expected = sum(
    _distance(a, b, level, pairable)
    for a, b in itertools.permutations(pairable, 2)
  )
  return 1 - (n - 1) * observed / expected if expected else np.nan


@pytest.mark.parametrize(
  "level, published", [("nominal", 0.743), ("ordinal", 0.815)]
)
def test_alpha_of_krippendorffs_example_is_the_published_one(level, published):
  value = rater_tables.alpha(OBSERVERS, level)
  assert value == pytest.approx(published, abs=0.0005)


@given(table=TABLES, level=st.sampled_from(rater_coefficients.LEVELS))
def test_alpha_is_its_definition_by_all_pairs(table, level):
  value = rater_tables.alpha(np.array(table), level)
  assert value == pytest.approx(_alpha(table, level), nan_ok=True)


@given(table=TABLES, level=st.sampled_from(rater_coefficients.LEVELS))
def test_alpha_forgets_who_rated_what_and_the_scale(table, level):
  values = np.array(table)
  value = rater_tables.alpha(values, level)
  other = rater_tables.alpha(values[::-1, ::-1] ** 3 + 1, level)
  assert other == pytest.approx(value, nan_ok=True)


def test_kappa_of_a_worked_example():
  # 20 + 15 of 50 agree, by chance .5 * .6 + .5 * .4 would.
  table = np.array([[20, 5], [10, 15]])
  assert rater_tables.kappa(table) == pytest.approx(0.4)
  assert rater_tables.kappa(np.diag([3, 4])) == 1
  assert np.isnan(rater_tables.kappa(np.diag([3, 0])))
