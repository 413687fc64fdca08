"""Agreement is counted step by step, up to the first error of either rater."""

import json

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest
import rater_tables

from prm_jax import schema
from prm_jax.evaluation import agreement
from prm_jax.evaluation import agreement_texts
from prm_jax.evaluation import bootstrap
from prm_jax.evaluation import rater_coefficients

RATERS = "abc"
LABEL = st.sampled_from([0.0, 0.5, 1.0, 1.0, None])


@st.composite
def _judgements(draw):
  """Some raters' values of some solutions, of problems that share solutions."""
  judgements = []
  for solution in range(draw(st.integers(0, 5))):
    num_steps = draw(st.integers(0, 4))
    for rater in RATERS:
      if draw(st.booleans()):
        values = draw(st.lists(LABEL, min_size=num_steps, max_size=num_steps))
        judgements.append(
          agreement.Judgement(rater, solution, solution // 2, values)
        )
  return draw(st.permutations(judgements))


def _measured(judgements, **options):
  return agreement.measured(judgements, num_resamples=20, **options)


def _by_solution(judgements, raters):
  """The values of solutions that at least two of these raters judged."""
  shared = {}
  for x in judgements:
    if x.rater in raters:
      shared.setdefault(x.solution, {})[x.rater] = x.values
  return [x for x in shared.values() if len(x) > 1]


def _columns(solutions, raters, scope):
  """The values of each step that counts: one column of each rater's value."""
  columns = []
  for by_rater in solutions:
    errors = [schema.first_error(x) for x in by_rater.values()]
    end = min((e for e in errors if e >= 0), default=99)
    for step in range(len(next(iter(by_rater.values())))):
      if scope == "all" or step <= end:
        row = [by_rater.get(r, [None] * 9)[step] for r in raters]
        columns.append([np.nan if x is None else x for x in row])
  return np.array(columns, np.float64).reshape(-1, len(raters)).T


@settings(max_examples=60, deadline=None)
@given(judgements=_judgements())
def test_alpha_is_that_of_the_steps_that_count(judgements):
  results = _measured(judgements)
  solutions = _by_solution(judgements, RATERS)
  assert (results is None) == (not solutions)
  if results is None:
    return
  for scope in agreement.SCOPES:
    columns = _columns(solutions, RATERS, scope)
    for level in rater_coefficients.LEVELS:
      expected = rater_tables.alpha(columns, level)
      value = results["alpha"][scope][level]["value"]
      value = np.nan if value is None else value
      assert value == pytest.approx(expected, nan_ok=True)
    steps = ((~np.isnan(columns)).sum(axis=0) > 1).sum()
    assert results["alpha"][scope]["nominal"]["steps"] == steps


def _first(values):
  """The first error by its definition; None if a missing value hides it."""
  for i, x in enumerate(values):
    if x is None or x < 0.5:
      return None if x is None else i
  return -1


@settings(max_examples=60, deadline=None)
@given(judgements=_judgements())
def test_each_pair_is_compared_on_what_both_judged(judgements):
  results = _measured(judgements)
  pairs = [] if results is None else results["pairs"]
  by_name = {(x["a"], x["b"]): x for x in pairs}
  for raters in ("ab", "ac", "bc"):
    solutions = _by_solution(judgements, raters)
    if not solutions:
      assert tuple(raters) not in by_name
      continue
    pair = by_name[tuple(raters)]
    assert pair["solutions"] == len(solutions)
    firsts = [[_first(s[r]) for r in raters] for s in solutions]
    known = [(x, y) for x, y in firsts if None not in (x, y)]
    assert pair["first_errors"] == len(known)
    same = [x == y for x, y in known]
    near = [x == y or (abs(x - y) < 2 and -1 not in (x, y)) for x, y in known]
    for name, told in (("same", same), ("within_one", near)):
      value = pair[f"first_error_{name}"]["value"]
      assert value == (pytest.approx(np.mean(told)) if told else None)
    for scope in agreement.SCOPES:
      columns = _columns(solutions, raters, scope)
      x, y = columns[:, ~np.isnan(columns).any(axis=0)]
      table = [[((x == c) & (y == k)).sum() for k in (0, 0.5, 1)]
               for c in (0, 0.5, 1)]  # fmt: skip
      value = pair["kappa"][scope]["value"]
      expected = rater_tables.kappa(np.array(table))
      value = np.nan if value is None else value
      assert value == pytest.approx(expected, nan_ok=True)


@settings(max_examples=30, deadline=None)
@given(judgements=_judgements(), seed=st.integers(0, 3))
def test_the_order_of_raters_changes_nothing_and_results_are_json(
  judgements, seed
):
  results = _measured(judgements, seed=seed)
  again = _measured(sorted(judgements, key=lambda x: x.rater), seed=seed)
  for name in ("alpha", "by_rater", "pairs") if results else ():
    text = json.dumps(results[name], allow_nan=False)
    if name == "by_rater":  # Intervals depend on the order of problems.
      assert text == json.dumps(again[name])
  if results is not None:
    assert "agreement of" in agreement_texts.texts(results)[0]


def _of(rater, solution, problem, *values):
  return agreement.Judgement(rater, solution, problem, values)


def test_the_interval_resamples_problems_and_not_solutions():
  # Problem 0 has three solutions in agreement, problem 1 one in conflict.
  judgements = [
    _of(rater, i, int(i == 3), float(i == 3 and rater == "b"))
    for rater in "ab"
    for i in range(4)
  ]
  (pair,) = agreement.measured(judgements, num_resamples=200)["pairs"]
  draws = bootstrap.counts(2, 200, seed=0)
  shares = 3 * draws[:, 0] / (draws @ [3, 1])
  assert pair["first_error_same"] == dict(
    value=0.75, interval=bootstrap.interval(shares)
  )


def test_a_second_judgement_by_one_rater_is_left_out_and_counted():
  judgements = [_of("a", 0, 0, 1.0), _of("b", 0, 0, 1.0), _of("a", 0, 0, 0.0)]
  results = _measured(judgements)
  assert results["judged_twice"] == 1
  assert results["pairs"][0]["first_error_same"]["value"] == 1
  assert "1 second judgements" in agreement_texts.texts(results)[-1]


def test_soft_values_agree_by_side_and_in_order():
  judgements = [
    _of("a", 0, 0, 0.9, 0.8, 0.1), _of("b", 0, 0, 0.7, 0.6, 0.2)
  ]  # fmt: skip
  alpha = _measured(judgements)["alpha"]["all"]
  assert alpha["nominal"]["value"] == 1
  assert 0 < alpha["ordinal"]["value"] < 1


def test_ratings_are_read_before_labels():
  solution = schema.Solution(
    "x", "p", ("a", "b", "c", "d"), (1.0,) * 4, ratings=(-1, 0, 1, None)
  )
  assert agreement.values_of(solution) == (0, 0.5, 1, None)
  unrated = schema.Solution("x", "p", ("a", "b"))
  assert agreement.values_of(unrated) == (None, None)


def test_whoever_has_no_companion_is_not_compared():
  assert agreement.measured([]) is None
  assert agreement.measured([_of("a", 0, 0, 1.0), _of("b", 1, 0, 1.0)]) is None
