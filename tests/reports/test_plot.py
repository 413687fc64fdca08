"""Pictures' axes and points: short ticks, means that leave nothing out."""

import itertools
import math
from xml.etree import ElementTree

import pytest

from prm_jax.reports import plot

SVG = "{http://www.w3.org/2000/svg}"
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
  points = plot.bins(list(enumerate([1.0, None, nan, inf, 5.0])))
  assert points == [(0, 1, 1, 1, 1), (4, 5, 5, 5, 1)]


def test_a_bin_has_the_mean_of_what_is_known_and_holds_all_of_it():
  y = [1.0, None, 3.0, 8.0, None, None, 2.0]
  points = plot.bins(list(enumerate(y)), 3)
  assert points == [(1, 2, 1, 3, 2), (3, 8, 8, 8, 1), (6, 2, 2, 2, 1)]
  assert plot.bins([(1, None), (2, None)], 2) == []


def _curve(y, texts=()):
  points = plot.bins(list(enumerate(y)))
  return plot.Curve(plot.LineStyle("a", "k0"), points, texts)


def _axes():
  return plot.Axes("t", "x", "y", plot.axis(0, 2))


def test_points_without_a_text_have_no_marker():
  curves = [_curve([0, 1, 2], ["first", "second"])]
  svg = ElementTree.fromstring(plot.draw(curves, _axes(), (300, 200)))
  group = svg.findall(f"{SVG}g")[-1]
  notes = [g.find(f"{SVG}title").text for g in group.findall(f"{SVG}g")]
  assert notes == ["a, first", "a, second"]
  line = group.find(f"{SVG}path").get("d")
  places = [g.get("transform") for g in group.findall(f"{SVG}g")]
  drawn = line[1:].split("L")
  assert len(drawn) == 3
  assert places == [f"translate({place})" for place in drawn[:2]]


def test_a_curve_has_all_points_and_at_most_12_notes():
  for num in (1, 12, 13, 100):
    curve = _curve(
      [x / 2 for x in range(num)], [f"point {i}" for i in range(num)]
    )
    assert curve.line() == [(i, i / 2) for i in range(num)]
    notes = curve.notes()
    assert min(num, 7) <= len(notes) <= 12
    for x, y, text in notes:
      assert (y, text) == (x / 2, f"a, point {x:g}")


def test_a_band_goes_along_the_highs_and_back_along_the_lows():
  points = plot.bins([(0, 1), (2, 5), (4, 3), (6, 9)], 2)
  curve = plot.Curve(plot.LineStyle("a", "k0"), points)
  assert curve.band() == [(1, 5), (5, 9), (5, 3), (1, 1)]
  assert curve._replace(with_band=False).band() == []
  assert _curve([0, 1, 2]).band() == []


def test_the_axis_of_y_is_in_its_scale_and_holds_what_it_must():
  curves = [_curve([0.25, 0.5, 0.75])]
  axes = _axes()._replace(scale=100, holds=(0, 1))
  svg = ElementTree.fromstring(plot.draw(curves, axes, (300, 200)))
  texts = [text.text for text in svg.iter(f"{SVG}text")]
  assert texts[2:8] == ["0", "20", "40", "60", "80", "100"]


def test_names_stand_right_of_all_curves_also_of_one_that_ends_early():
  curves = [_curve([0, 1, 2]), _curve([0, 1])]
  drawn = plot.draw(curves, _axes(), (600, 300), "right")
  svg = ElementTree.fromstring(drawn)
  grid = svg.find(f"{SVG}g[@class='grid']/{SVG}path").get("d")
  right = float(grid.partition("H")[2])
  names = svg.findall(f"{SVG}g[@class='k0']/{SVG}text")
  assert len(names) == 2
  assert all(float(name.get("x")) > right for name in names)


def test_a_picture_of_a_page_is_that_of_a_file_without_its_paper():
  curves = [_curve([0, 1, 2], ["first", "second"])]
  page = str(plot.draw(curves, _axes(), (300, 200), page_class="small"))
  alone = str(plot.draw(curves, _axes(), (300, 200)))
  assert page.startswith('<svg class="small"') and "<style>" not in page
  assert alone.startswith("<svg xmlns") and "<style>" in alone
  same = page.partition('<g class="grid"')[2]
  assert same and same == alone.partition('<g class="grid"')[2]
