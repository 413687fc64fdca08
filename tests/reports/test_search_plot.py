"""The picture of compared searches: their accuracies at what they cost."""

import pytest

from prm_jax.reports import search_plot


def _search(tokens, mean):
  best = dict(mean=mean, low=mean - 0.125, high=mean + 0.125)
  return dict(cost=dict(sampled=tokens), accuracy=dict(best=best))


@pytest.fixture
def compared():
  ways = dict(majority=[0.5, 0.5], weighted=[0.5, 0.6], best=[0.5, 0.7])
  return dict(
    searches={
      "beam@64": _search(64.0, 0.75),
      "beam@16": _search(16.0, 0.5),
      "best_of_n": _search(32.0, 0.7),
      "free": _search(0.0, 0.25),
    },
    curves=dict(best_of_n=dict(tokens=[16.0, 32.0], oracle=[0.5, 0.9], **ways)),
  )


def test_sizes_of_a_search_are_one_line_with_intervals(compared):
  (panel,) = search_plot.figure(compared).panels
  lines = {line.label: line for line in panel.lines}
  beam = lines["beam"]
  assert (tuple(beam.x), tuple(beam.y)) == ((16, 64), (0.5, 0.75))
  assert (tuple(beam.low), tuple(beam.high)) == ((0.375, 0.625), (0.625, 0.875))
  # What costs no tokens has no place on a logarithmic scale.
  assert "free" not in lines and panel.x_is_log


def test_a_search_that_drew_whole_solutions_is_a_curve_by_each_choice(compared):
  (panel,) = search_plot.figure(compared).panels
  lines = {line.label: line for line in panel.lines}
  labels = ("majority", "weighted vote", "best", "oracle")
  assert lines.keys() == {"beam", *(f"best_of_n, {x}" for x in labels)}
  oracle = lines["best_of_n, oracle"]
  assert (tuple(oracle.x), tuple(oracle.y)) == ((16, 32), (0.5, 0.9))


def test_searches_without_tokens_leave_nothing_to_draw(compared):
  searches = dict(free=compared["searches"]["free"])
  figure = search_plot.figure(dict(searches=searches, curves={}))
  assert not figure.panels
