"""Pictures' axes and points: short ticks, means that leave nothing out."""

import itertools
import math

import pytest

from prm_jax.reports import plot

RANGES = [
  *(
    (0, 1),
    (0, 0),
    (0, 3e-4),
    (0, 1.2e-4),
    (0, 0.009),
    (-2, 5),
    (0.62, 0.68),
    (0, 200),
  ),
  *((0, 9_999), (0, 15_000), (0, 1e6), (0, 3.4e6), (0, 2.5e9), (-7, -3)),
]


@pytest.mark.parametrize("low, high", RANGES)
def test_an_axis_holds_its_range_and_its_texts_name_its_ticks(low, high):
  ticks = plot.axis(low, high)
  values = [v for v, _ in ticks]
  assert values[0] <= low and high <= values[-1]
  assert all(b > a for a, b in itertools.pairwise(values))
  units = dict(k=1e3, M=1e6, G=1e9)
  for value, text in ticks:
    unit = units.get(text[-1], 1)
    number = float(text.rstrip("kMG")) * unit
    assert number == pytest.approx(value, rel=1e-6, abs=1e-12)
    assert len(text) <= 6
  # One unit for all of an axis.
  assert len({text[-1] for v, text in ticks if v and text[-1] in units}) <= 1


def test_bins_of_one_point_are_the_points_that_are_known():
  nan, inf = math.nan, math.inf
  found = plot.bins([0, 1, 2, 3, 4], [1.0, None, nan, inf, 5.0])
  assert found == [(0, 1, 1, 1), (4, 5, 5, 5)]


def test_a_bin_has_the_mean_of_what_is_known_and_holds_all_of_it():
  y = [1.0, None, 3.0, 8.0, None, None, 2.0]
  found = plot.bins(range(7), y, 3)
  assert found == [(1, 2, 1, 3), (3, 8, 8, 8), (6, 2, 2, 2)]
  assert plot.bins([1, 2], [None, None], 2) == []


def _curve(y, notes):
  look = plot.Look("a", "k0", "M0 0")
  return dict(look=look, x=[0, 1, 2], y=y, notes=notes, band=[])


def test_points_without_a_note_have_no_marker():
  picture = plot.lay_out(
    [_curve([0, 1, 2], ["first", "", "last"])],
    x_ticks=plot.axis(0, 2),
    y_ticks=plot.axis(0, 2),
    size=(300, 200),
  )
  (drawn,) = picture["curves"]
  assert [note for _, _, note in drawn["points"]] == ["first", "last"]
  assert drawn["path"].count("L") == 2


def test_names_stand_right_of_all_curves_also_of_one_that_ends_early():
  short = _curve([0, 1], ["", ""]) | dict(x=[0, 0.5])
  picture = plot.lay_out(
    [_curve([0, 1, 2], [""] * 3), short],
    x_ticks=plot.axis(0, 2),
    y_ticks=plot.axis(0, 2),
    size=(600, 300),
    key="right",
  )
  assert all(c["key"][0] > picture["right"] for c in picture["curves"])
