"""What the experiment on search computes itself."""

import dataclasses
import functools
import importlib
import pathlib

import numpy as np
import pytest

from prm_jax import schema
from prm_jax.search import bill as bill_lib
from prm_jax.search import engine
from prm_jax.search import rules
from prm_jax.search import search_limits
from prm_jax.search import search_models
from prm_jax.search import tree as tree_lib
from prm_jax.testbed import arithmetic
from prm_jax.testbed import arithmetic_policy

EXPERIMENTS = pathlib.Path(__file__).parents[2] / "experiments"
TASK = arithmetic.Task(min_turns=3, max_turns=4)


@pytest.fixture
def module(monkeypatch):
  monkeypatch.syspath_prepend(EXPERIMENTS)
  return lambda name: importlib.import_module(f"search_{name}")


@pytest.mark.parametrize("name", ["beam", "dvts", "rebase", "particles"])
def test_every_strategy_stays_within_its_budget_and_one_child(module, name):
  testbed = module("testbed")
  rule = module("runs").strategies(8)[name]
  policy = testbed.policy(TASK, 0)
  verifier = search_models.Verifier(
    arithmetic_policy.NoisyVerifier(), "last", testbed.encode
  )
  trees = engine.search(
    testbed.problems(0, 3, TASK),
    rule,
    {tree_lib.POLICY: policy},
    verifier,
    search_limits.Limits(budget_tokens=90),
  )
  for tree in trees:
    most = max(bill_lib.sampled(n.cost) for n in tree.nodes)
    assert bill_lib.sampled(tree.bill) < 90 + most


def test_a_run_has_the_costs_and_the_outcomes_of_its_trees(module, tmp_path):
  testbed = module("testbed")
  c = testbed.settings(small=True)
  c.problems, c.task = 3, dataclasses.asdict(TASK)
  prm = testbed.PRMS["good"]
  run = module("runs").Run("x", rules.Beam(1, 2), prm, "last", problems=2)
  found = testbed.build(c, tmp_path, 0, [run])(run)
  trees = engine.search(
    testbed.problems(0, 3, TASK)[:2],
    run.rule,
    {tree_lib.POLICY: testbed.policy(TASK, 0)},
    search_models.Verifier(
      functools.partial(prm.score, seed=0), "last", testbed.encode
    ),
  )
  assert found["sampled"].tolist() == [bill_lib.sampled(t.bill) for t in trees]
  chosen = [t.nodes[t.candidates[0]].solution for t in trees]
  assert found["best_right"].tolist() == arithmetic.verify(chosen)


def test_samples_of_a_run_are_the_first_ones_of_a_larger_run(module):
  testbed = module("testbed")
  policies = {tree_lib.POLICY: testbed.policy(TASK, 0)}
  verifier = search_models.Verifier(
    arithmetic_policy.NoisyVerifier(), "last", testbed.encode
  )
  few, many = (
    engine.search(
      testbed.problems(0, 1, TASK), rules.BestOfN(n), policies, verifier
    )[0].nodes
    for n in (3, 5)
  )
  assert [n.solution.steps for n in few] == [n.solution.steps for n in many[:4]]


def test_a_blind_scorer_takes_a_systematic_slip_for_right_and_no_other(module):
  testbed = module("testbed")
  problem = testbed.problems(0, 1, TASK)[0]
  _, turns = arithmetic.parse(problem.problem)
  confused = arithmetic_policy.Annotator(
    arithmetic.Task(
      slip_shift=1.0, slip_times_easy=1.0, slip_times_hard=1.0, confusion=1.0
    )
  )
  ((slips,),) = confused.whole([problem], 1)
  blind = functools.partial(testbed.Prm(0.0, blind=True).score, seed=0, gap=4.0)
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
  likeliest = module("testbed").likeliest(task)
  assert (likeliest.slip_times_hard, likeliest.slip_shift) == (1.0, 0.0)


def test_a_curve_at_the_cost_of_its_own_point_is_that_point(module):
  stats = module("runs")
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
  stats = module("runs")
  values = np.array([[1.0, 0.0, np.nan], [1.0, 1.0, np.nan]])
  found = stats.interval(values)
  assert (found["mean"], found["problems"]) == (0.75, 4)
  assert found["seeds"] == [0.5, 1.0]
  assert (found["low"], found["high"]) == (0.5, 1.0)
