"""Points of curves: means that leave nothing out."""

import math

from prm_jax.reports import curves


def test_bins_of_one_point_are_the_points_that_are_known():
  nan, inf = math.nan, math.inf
  points = curves.bins(list(enumerate([1.0, None, nan, inf, 1e308, 5.0])))
  assert points == [(0, 1, 1, 1), (5, 5, 5, 5)]


def test_a_bin_has_the_mean_of_what_is_known_and_holds_all_of_it():
  y = [1.0, None, 3.0, 8.0, None, None, 2.0]
  points = curves.bins(list(enumerate(y)), 3)
  assert points == [(1, 2, 1, 3), (3, 8, 8, 8), (6, 2, 2, 2)]
  assert curves.bins([(1, None), (2, None), (None, 3.0)], 2) == []


def test_a_bin_of_nothing_known_can_be_a_gap():
  pairs = [(1, 2.0), (2, None), (3, math.nan), (None, None), (5, 4.0)]
  points = curves.bins(pairs, has_gaps=True)
  assert [x.x for x in points] == [1, 2, 3, 5]
  assert [math.isnan(x.mean) for x in points] == [False, True, True, False]
  assert curves.lines("a", points[1:3]) == []
  (line,) = curves.lines("a", points)
  assert line.low == ()
  (wide,) = curves.bins([(1, None), (2, 6.0)], 2, has_gaps=True)
  assert wide == (2, 6, 6, 6)


def test_a_line_has_a_band_if_a_point_is_of_several_values():
  (line,) = curves.lines("a", curves.bins([(0, 1), (2, 5), (4, 3)], 2))
  assert (line.x, line.y, line.low, line.high) == (
    (1, 4),
    (3, 3),
    (1, 3),
    (5, 3),
  )
  (line,) = curves.lines("a", curves.bins([(0, 1), (2, 5)]))
  assert line.low == line.high == ()
  assert curves.lines("a", []) == []
