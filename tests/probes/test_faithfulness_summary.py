"""Means, intervals and rank correlations, by plain loops."""

import math
import re

import numpy as np
import pytest
from scipy import stats

from prm_jax.probes import faithfulness_summary


def _record(same, weights=(), **more):
  return dict(
    skipped=None,
    whole_same=True,
    whole_answer="1",
    corrupted=["1"] * len(same),
    num_steps=len(same),
    steps=[*range(len(same))],
    corrupt_same=same,
    weight_corrupted=[*weights],
    **more,
  )


def test_steps_are_pooled_and_problems_drawn():
  records = [
    _record([True, False, None]),
    _record([False]),
    _record([True] * 4),
    dict(skipped="no_answer"),
  ]
  found = faithfulness_summary.summary(records, ["a", "a", "b", "c"])
  row = found["corrupt_changed"]
  assert row["value"] == pytest.approx(2 / 7) and row["num"] == 7
  # Two problems: 2 of 3 changed in one, none of 4 in the other.
  assert row["interval"] == pytest.approx([0, 2 / 3])
  assert found["num_probed"] == 3 and found["skipped"] == dict(no_answer=1)
  alone = faithfulness_summary.summary(records[:2], ["a", "a"])
  assert alone["corrupt_changed"]["interval"] is None
  # Nor has what one of several problems has.
  records[0] |= dict(rewrite_same=[True, False])
  of_one = faithfulness_summary.summary(records, ["a", "a", "b", "c"])
  assert of_one["rewrite_changed"]["value"] == 0.5
  assert of_one["rewrite_changed"]["interval"] is None


def test_the_area_over_a_curve():
  area = faithfulness_summary.area_over_curve
  assert area([0, 1], [True, True]) == 0
  assert area([0, 1], [False, False]) == 1
  assert area([0, 0.5, 1], [False, False, True]) == pytest.approx(0.75)
  assert area([0, 0.2, 1], [False, True, True]) == pytest.approx(0.1)


def test_normalised_by_what_is_known_without_steps():
  def record(same, right):
    early = dict(steps=[0, 2], same=same, right=right)
    return _record([True, True], early=early)

  records = [
    record([True, True], [True, True]),
    record([False, True], [False, True]),
  ]
  found = faithfulness_summary.summary(records, ["a", "b"])
  assert found["early_aoc"]["value"] == pytest.approx(0.25)
  assert found["early_right_0"]["value"] == 0.5
  assert found["early_aoc_normalised"]["value"] == pytest.approx(0.5)
  assert found["early_same_50"]["value"] == pytest.approx(0.75)


def test_rank_correlations_are_scipys():
  random = np.random.default_rng(0)
  for _ in range(20):
    a, b = random.integers(0, 6, (2, 30)).astype(float)
    ours = faithfulness_summary.spearman(a, b)
    assert ours == pytest.approx(stats.spearmanr(a, b).statistic)
  assert math.isnan(faithfulness_summary.spearman(np.ones(3), np.arange(3.0)))


def test_weights_stand_beside_scores_drops_and_places():
  records = [
    _record(
      [True] * 3,
      [1, 2, 3],
      step_scores=[0.9, 0.5, 0.1, 0.7],
      score_drop=[0.3, 0.1, 0.2],
      score_drop_after=[0.3, 0.2, 0.1],
    ),
    _record(
      [True] * 3,
      [3, 2, None],
      step_scores=[0.1, 0.5, 0.7],
      score_drop=[0.1, 0.2, None],
      score_drop_after=[0, 0.1, None],
    ),
  ]
  found = faithfulness_summary.summary(records, ["a", "b"])
  assert found["weight_and_score"]["value"] == pytest.approx(-1)
  weights, places = [1, 2, 3, 3, 2], [0, 1, 2, 0, 1]
  for name, b in dict(
    weight_and_position=places,
    weight_and_score_drop=[0.3, 0.1, 0.2, 0.1, 0.2],
    weight_and_score_drop_after=[0.3, 0.2, 0.1, 0, 0.1],
  ).items():
    rank = stats.spearmanr(weights, b).statistic
    assert found[name]["value"] == pytest.approx(rank), name
    assert found[name]["num"] == 5
  assert found["score_drop"]["value"] == pytest.approx(0.9 / 5)
  table = faithfulness_summary.table(found)
  assert re.search("weight of a step and its PRM score +-1.000 ", table)
  without = faithfulness_summary.summary(
    [_record([True] * 3, [1, 2, 3])], ["a"]
  )
  assert not {"weight_and_score", "score_drop"} & {*without}
  assert without["weight_and_position"]["value"] == pytest.approx(1)


def test_only_areas_of_known_problems_are_normalised():
  def record(same, right):
    early = dict(steps=[0, 1], same=same, right=right)
    return _record([True], early=early)

  records = [
    record([False, True], [True, True]),
    record([False, True], [False, True]),
    record([True, True], [None, None]),
  ]
  found = faithfulness_summary.summary(records, ["a", "b", "c"])
  assert found["early_aoc"]["num"] == 3
  assert found["early_aoc_normalised"]["value"] == pytest.approx(1)
  assert found["early_aoc_normalised"]["num"] == 2


def test_what_has_no_number_is_counted():
  early = dict(steps=[0, 2], same=[None, None], right=[False, False])
  record = _record([None, True], rewrite_same=[None, None], early=early)
  record |= dict(corrupted=[None, "2"], whole_answer=None, whole_same=None)
  found = faithfulness_summary.summary([record], ["a"])
  assert found["skipped"] == dict(
    no_answer_after_all_steps=1,
    no_number_in_a_step=1,
    no_end_of_a_rewritten_solution=1,
  )
  assert "early_aoc" not in found and found["early_right_0"]["value"] == 0


def test_quarters_of_the_chain():
  record = _record([True] * 8, nldd=[*range(8)])
  found = faithfulness_summary.summary([record], ["a"])
  values = [
    found[f"nldd_{x}"]["value"] for x in ("0-25", "25-50", "50-75", "75-100")
  ]
  assert values == [0.5, 2.5, 4.5, 6.5] and found["nldd"]["num"] == 8
