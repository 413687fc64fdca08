"""What the experiment on search computes itself."""

import importlib
import pathlib

import numpy as np
import pytest

from prm_jax import schema
from prm_jax.search import bill as bill_lib
from prm_jax.search import engine
from prm_jax.search import rules
from prm_jax.search import search_limits as limits_lib
from prm_jax.search import search_models
from prm_jax.search import tree as tree_lib
from prm_jax.testbed import arithmetic
from prm_jax.testbed import arithmetic_policy as policy_lib

EXPERIMENTS = pathlib.Path(__file__).parents[2] / "experiments"
TASK = arithmetic.Task(min_turns=3, max_turns=4)
WIDTHS, RATIOS = (1, 2, 4, 8, 16), (4.0, 3.0, 2.0, 1.0, 0.0)


@pytest.fixture
def module(monkeypatch):
  monkeypatch.syspath_prepend(EXPERIMENTS)
  return lambda name: importlib.import_module(f"search_{name}")


@pytest.mark.parametrize("name", ["beam", "dvts", "rebase", "particles"])
def test_every_strategy_stays_within_its_budget_and_one_child(module, name):
  runs = module("runs")
  rule = module("testbed").strategies(8)[name]
  policy = runs.policy(TASK, 0)
  verifier = search_models.Verifier(
    policy_lib.NoisyVerifier(), "last", runs.encode
  )
  trees = engine.search(
    runs.problems(0, 3, TASK),
    rule,
    {tree_lib.POLICY: policy},
    verifier,
    limits_lib.Limits(budget_tokens=90),
  )
  for tree in trees:
    most = max(bill_lib.sampled(n.cost) for n in tree.nodes)
    assert bill_lib.sampled(tree.bill) < 90 + most


def test_a_run_has_the_costs_and_the_outcomes_of_its_trees(module):
  runs = module("runs")
  run = runs.Run("x", rules.Beam(1, 2), problems=2)
  found = runs.measure(run, TASK, 0, 3, 4.0, 0.5)
  trees = engine.search(
    runs.problems(0, 3, TASK)[:2],
    run.rule,
    {tree_lib.POLICY: runs.policy(TASK, 0)},
    search_models.Verifier(runs.scorer(run, 4.0, 0), "last", runs.encode),
  )
  assert found["sampled"].tolist() == [bill_lib.sampled(t.bill) for t in trees]
  chosen = [t.nodes[t.candidates[0]].solution for t in trees]
  assert found["best_right"].tolist() == arithmetic.verify(chosen)


def test_samples_of_a_run_are_the_first_ones_of_a_larger_run(module):
  runs = module("runs")
  policies = {tree_lib.POLICY: runs.policy(TASK, 0)}
  verifier = search_models.Verifier(
    policy_lib.NoisyVerifier(), "last", runs.encode
  )
  few, many = (
    engine.search(
      runs.problems(0, 1, TASK), rules.BestOfN(n), policies, verifier
    )[0].nodes
    for n in (3, 5)
  )
  assert [n.solution.steps for n in few] == [n.solution.steps for n in many[:4]]


def test_a_blind_scorer_takes_a_systematic_slip_for_right_and_no_other(module):
  runs = module("runs")
  problem = runs.problems(0, 1, TASK)[0]
  _, turns = arithmetic.parse(problem.problem)
  confused = policy_lib.Annotator(
    arithmetic.Task(
      slip_shift=1.0, slip_times_easy=1.0, slip_times_hard=1.0, confusion=1.0
    )
  )
  ((slips,),) = confused.whole([problem], 1)
  blind = runs.Blind(policy_lib.NoisyVerifier(0.0, 4.0))
  assert min(blind([slips])[0].logits) == 2.0
  value, (sign, n) = int(slips.steps[0].split()[1]), turns[0]
  taken = {
    arithmetic.turn(value, x, n) for x in (sign, arithmetic.CONFUSED[sign])
  }
  other = min({*range(arithmetic.POSITIONS)} - taken)
  wrong = schema.Solution(
    "", problem.problem, (slips.steps[0][:-1] + str(other),)
  )
  assert blind([wrong])[0].logits == (-2.0,)


def test_likeliest_steps_slip_where_slips_are_likelier_than_not(module):
  task = arithmetic.Task(slip_times_hard=0.75, slip_shift=0.2, confusion=0.8)
  likeliest = module("runs").likeliest(task)
  assert (likeliest.slip_times_hard, likeliest.slip_shift) == (1.0, 0.0)


def test_the_slope_of_planted_turning_widths_is_found(module):
  # The best width doubles with each unit of the ratio.
  accuracy = np.zeros((len(RATIOS), len(WIDTHS), 2, 40))
  for i, ratio in enumerate(RATIOS):
    best = round(ratio)
    for k in range(len(WIDTHS)):
      accuracy[i, k] = 0.9 - 0.1 * abs(k - best)
  noise = np.random.default_rng(0).normal(0, 0.05, accuracy.shape)
  found = module("statistics").turning(accuracy + noise, WIDTHS, RATIOS)
  assert found["widths"] == [16, 8, 4, 2, 1]
  assert found["slope"] == pytest.approx(np.log(2), rel=1e-3)
  assert found["low"] <= found["slope"] <= found["high"]


def test_a_curve_at_the_cost_of_its_own_point_is_that_point(module):
  stats = module("statistics")
  values = np.random.default_rng(0).random((3, 2, 5))
  points = [
    stats.Point(v, dict(tokens=np.full((2, 5), cost)))
    for v, cost in zip(values, (10.0, 20.0, 80.0), strict=True)
  ]
  keep = np.ones((2, 5), bool)
  at = [stats.at_cost(points, "tokens", c, keep) for c in (20.0, 40.0, 500.0)]
  np.testing.assert_allclose(at[0], values[1])
  np.testing.assert_allclose(at[1], (values[1] + values[2]) / 2)
  np.testing.assert_allclose(at[2], values[2])


def test_an_interval_is_of_the_problems_that_were_searched(module):
  stats = module("statistics")
  values = np.array([[1.0, 0.0, np.nan], [1.0, 1.0, np.nan]])
  found = stats.interval(values)
  assert (found["mean"], found["problems"]) == (0.75, 4)
  assert found["seeds"] == [0.5, 1.0]
  assert (found["low"], found["high"]) == (0.5, 1.0)
