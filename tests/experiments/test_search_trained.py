"""What the experiment on search with trained models computes itself."""

import dataclasses
import functools
import importlib
import json
import pathlib

import ml_collections
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
TASK = arithmetic.Task(min_turns=2, max_turns=2)
COST = bill_lib.Cost(per_token=1000, per_context=4)
NUM = 2
PROBLEMS = arithmetic.problems(NUM, "test", TASK, np.random.default_rng(0))


@pytest.fixture
def module(monkeypatch):
  monkeypatch.syspath_prepend(EXPERIMENTS)
  return lambda name: importlib.import_module(f"search_{name}")


@pytest.fixture
def measured(module):
  """Returns what measures a run, the annotator in the place of the models."""
  annotator = arithmetic_policy.Annotator(TASK)
  scorers = dict(
    full=arithmetic_policy.NoisyVerifier(2.0),
    few=arithmetic_policy.NoisyVerifier(5.0),
  )
  return functools.partial(
    module("trained").measure,
    problems=PROBLEMS,
    policy=search_models.Policy(
      *(annotator.step, annotator.whole, annotator.step, annotator.encode),
      cost=COST,
    ),
    scorers=scorers,
    verifier=lambda name, how: search_models.Verifier(
      scorers[name], how, annotator.encode, COST
    ),
    seed=0,
    limits=search_limits.Limits(max_tokens=60),
  )


def test_all_runs_are_compared(module, measured, tmp_path, monkeypatch):
  trained = module("trained")

  def settings(small):
    c = ml_collections.ConfigDict()
    c.problems, c.some = NUM, 1
    return c

  experiment = dataclasses.replace(
    trained.EXPERIMENT,
    settings=settings,
    build=lambda *_: functools.partial(measured, num_samples=16),
  )
  monkeypatch.chdir(tmp_path)
  experiment.main("Doc.", ["--processes=1"])
  result = json.loads(
    (tmp_path / "docs/results/search_trained.json").read_text()
  )
  assert result["accuracy"]["beam.few.64"]["weighted"]["problems"] == 3
  assert result["accuracy"]["reject.few.1"]["weighted"]["problems"] == 3 * NUM
  assert len(result["differences"]) == len(trained.EXPERIMENT.differences)
  assert len(result["fresh_seeds"]["differences"]) == 5
  rows = result["differences"].values()
  assert {row["seen"] for row in rows} <= {"above", "below", "not seen"}
  # A sample's own curve at the cost of one sample is its accuracy.
  (one,) = {
    row["1"]["right"]["mean"] for name, row in result["samples"].items()
  }
  assert 0 <= one <= 1


def test_samples_of_a_run_have_the_outcomes_and_costs_of_their_tree(
  module, measured
):
  found = measured(module("runs").Run("samples", None, "full"), num_samples=5)
  annotator = arithmetic_policy.Annotator(TASK)
  policy = search_models.Policy(
    *(annotator.step, annotator.whole, annotator.step, annotator.encode),
    cost=COST,
  )
  scorer = arithmetic_policy.NoisyVerifier(2.0)
  trees = engine.search(
    [schema.Solution(p.id, p.problem, ()) for p in PROBLEMS],
    rules.BestOfN(5),
    {tree_lib.POLICY: policy},
    search_models.Verifier(scorer, "min", annotator.encode, COST),
    search_limits.Limits(max_tokens=60),
  )
  costs = {tree_lib.POLICY: COST, bill_lib.SCORER: COST}
  for i, tree in enumerate(trees):
    drawn = [n.solution for n in tree.nodes[1:]]
    assert found["right"][i].tolist() == arithmetic.verify(drawn)
    assert found["sampled"][i, -1] == bill_lib.sampled(tree.bill)
    assert found["flops"][i, -1] == bill_lib.flops(tree.bill, costs)
    least = [min(x.logits) for x in scorer(drawn)]
    np.testing.assert_allclose(found["full.min"][i], least)


def test_a_difference_is_of_the_same_problems_at_equal_n_or_cost(module):
  runs = module("runs")
  random = np.random.default_rng(0)

  def arrays(cost, right):
    right = np.asarray(right, float)
    tokens = np.full(len(right), cost)
    rows = {f"{n}.read{x}": tokens for n in ("scorer",) for x in ("", "_once")}
    return dict(weighted_right=right, sampled=tokens, **rows)

  a, b, c = random.integers(0, 2, (3, 6))
  results = runs.Results(
    {
      "beam.x.4": [arrays(10.0, a)],
      "beam.x.16": [arrays(40.0, b)],
      "mcts.x.1": [arrays(20.0, c[:4])],
    },
    6,
    "min",
  )
  paired = results.difference(runs.Difference("mcts.x.1", "beam.x.4"))
  assert paired["mean"] == pytest.approx((c[:4] - a[:4]).mean(), abs=1e-4)
  assert paired["problems"] == 4
  # Half way between 10 and 40 tokens in the logarithm.
  d = runs.Difference("mcts.x.1", "beam.x", "tokens")
  expected = (c[:4] - (a[:4] + b[:4]) / 2).mean()
  assert results.difference(d)["mean"] == pytest.approx(expected, abs=1e-4)
  d = d._replace(fifths=(1,))
  results.fifths[:, :2] = 1
  assert results.difference(d)["problems"] == 2
