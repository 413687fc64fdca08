"""What the experiments on labelling compute themselves."""

import dataclasses
import importlib
import math
import pathlib
import types

import numpy as np
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.policy import rollout_engine
from prm_jax.testbed import arithmetic

EXPERIMENTS = pathlib.Path(__file__).parents[2] / "experiments"
SIZES = (100, 200, 400, 800, 1_600)


@pytest.fixture
def load(monkeypatch):
  monkeypatch.syspath_prepend(EXPERIMENTS)
  return importlib.import_module


# --- labelling_active -------------------------------------------------------


@pytest.mark.parametrize("times", [0.5, 1.0, 1.7, 2.6])
def test_the_factor_of_a_curve_that_is_ahead_by_a_factor_is_that(load, times):

  def curve(n):
    return 0.1 * np.log(n)

  found = load("labelling_active").efficiency(
    SIZES, curve(np.array(SIZES)), curve(times * np.array(SIZES))
  )
  np.testing.assert_allclose(found, times)


def test_changing_places_inverts_the_factor(load):
  efficiency = load("labelling_active").efficiency
  a, b = (0.2, 0.31, 0.3, 0.45, 0.7), (0.2, 0.4, 0.38, 0.6, 0.65)
  np.testing.assert_allclose(
    efficiency(SIZES, a, b) * efficiency(SIZES, b, a), 1
  )
  assert efficiency(SIZES, a, b) > 1


def test_curves_without_a_common_accuracy_have_no_factor(load):
  efficiency = load("labelling_active").efficiency
  assert math.isnan(efficiency(SIZES, (0.1, 0.2), (0.3, 0.4)))
  assert math.isnan(efficiency(SIZES, (0.2, 0.1), (0.2, 0.4)))


# --- labelling_budget -------------------------------------------------------


@pytest.mark.parametrize("budget", [30, 99, 1_000, 5_000, 10**6])
def test_a_budget_labels_about_as_many_as_it_can_pay(load, budget):
  random = np.random.default_rng(budget)
  spent = np.cumsum(random.integers(0, 20, 400)) + 5

  def label(n):
    return ["x"] * n, dict(rollouts=int(spent[n - 1]))

  labelled, work = load("labelling_budget").as_many(budget, 400, label)
  assert work["rollouts"] == spent[len(labelled) - 1] <= budget
  most = int(np.searchsorted(spent, budget, side="right"))
  assert len(labelled) == most or work["rollouts"] >= 0.99 * budget


def test_a_budget_that_pays_for_nothing_is_refused(load):
  with pytest.raises(errors.InputError, match="not enough"):
    load("labelling_budget").as_many(
      3, 10, lambda n: ([], dict(rollouts=4 * n))
    )


# --- labelling_monte_carlo --------------------------------------------------


def test_the_rounds_of_k_are_the_first_of_a_larger_k(load):
  module = load("labelling_monte_carlo")
  longest = module.rounds(module.COMPLETIONS[-1])
  for k in module.COMPLETIONS:
    assert sum(module.rounds(k)) == k
    assert module.rounds(k) == longest[: len(module.rounds(k))]


def test_labels_by_the_exact_verifier_agree_with_themselves(load):
  random = np.random.default_rng(0)
  task = arithmetic.Task()
  solutions = [
    arithmetic.judge(arithmetic.solve(p, random, task))
    for p in arithmetic.problems(40, "train", task, random)
  ]
  found = load("labelling_monte_carlo").compare(solutions, solutions, 4)
  assert found["auroc"] == 1 and 0 < found["wrong_steps"] < found["steps"]
  for row in found["by_threshold"]:
    assert row["agreement"] == row["right_kept"] == row["wrong_found"] == 1
    # The outcome stands for the last step: its error isn't among the steps.
    assert row["first_error"] == 1


@pytest.mark.parametrize(
  ("steps", "num_wrong", "cause"),
  [
    # 3 + 1 = 4, times 2 = 0, plus 1 = 1.
    (("so 3 + 2 = 4", "so 4 * 2 = 0", "so 0 + 1 = 1"), 1, "right_value"),
    (("so 3 + 1 = 0", "so 0 * 2 = 0", "so 0 + 1 = 1"), 1, "many_to_one"),
    (("so 3 + 1 = 5", "so 5 * 2 = 0", "so 0 + 1 = 1"), 1, "second_error"),
    (("so 3 + 1 = 5", "so 4 * 2 = 0", "so 0 + 1 = 1"), 1, "not_carried"),
    (("so 3 + 1 = 0", "so 0 * 2 = 0", "so 0 + 1 = 1"), 1, "many_to_one"),
    (("so 3 + 1 = 5", "so 5 * 2 = 2", "so 2 + 1 = 3"), 1, "not_carried"),
    (("so 3 + 1 = 5", "so 5 * 2 = 2", "so 2 + 1 = 1"), 2, "second_error"),
    (("so 3 + 1 = 5", "so 0 + 1 = 1"), 1, "second_error"),
  ],
)
def test_luck_has_a_cause(load, steps, num_wrong, cause):
  problem = "Ann dials 3 up 1 times 2 up 1 ."
  whole = schema.Solution("a", problem, (*steps, "answer 1"))
  assert arithmetic.judge(whole).outcome
  prefix = schema.Solution("a", problem, steps[:num_wrong])
  assert load("labelling_monte_carlo").cause(prefix, whole) == cause


def test_a_cause_is_found_for_every_rollout_of_every_wrong_step(load):
  """Against the exact completer: a lucky one can only be many-to-one."""
  module = load("labelling_monte_carlo")
  random = np.random.default_rng(1)
  task = arithmetic.Task()
  found = 0
  for p in arithmetic.problems(200, "train", task, random):
    whole = arithmetic.judge(arithmetic.solve(p, random, task))
    error = schema.first_error(whole.labels)
    if error < 0 or not whole.outcome:
      continue
    prefix = schema.Solution(p.id, p.problem, whole.steps[: error + 1])
    carried = all(
      arithmetic.turn(
        int(step.split()[1]), step.split()[2], int(step.split()[3])
      )
      == int(step.split()[5])
      for step in whole.steps[error + 1 : -1]
    )
    expected = "many_to_one" if carried else "second_error"
    assert module.cause(prefix, whole) == expected
    found += 1
  assert found > 5


# --- labelling_testbed ------------------------------------------------------


class _Engine:
  """Completions that depend on the prefix's id and their index alone."""

  def __init__(self):
    self.asked = []

  def generate(self, prefixes, n, sampling, key):
    self.asked += [(p.id, n) for p in prefixes]
    rows = [
      [dataclasses.replace(p, id=f"{p.id}/{i}") for i in range(n)]
      for p in prefixes
    ]
    return rows, rollout_engine.Work(completions=n * len(rows))


def test_what_was_drawn_once_is_not_drawn_again(load):
  engine = _Engine()
  completer = load("labelling_testbed").Completer(engine, None, None)
  a, b = (schema.Solution(id_, "p", ()) for id_ in "ab")
  for prefixes, n in (((a,), 2), ((a, b), 4), ((b, a), 3), ((a,), 4)):
    anew, _ = _Engine().generate(prefixes, n, None, None)
    assert completer(prefixes, n) == anew
  assert engine.asked == [("a", 2), ("a", 4), ("b", 4)]
  assert completer.work.completions == 10


def test_the_rare_pool_holds_all_right_answers_and_the_first_wrong_ones(load):
  module = load("labelling_active")
  pool = [
    schema.Solution(str(i), "a", ("x",), outcome=i % 4 == 0) for i in range(80)
  ]
  kept = module.rare(types.SimpleNamespace(pool=pool))
  assert [s for s in kept if s.outcome] == [s for s in pool if s.outcome]
  wrong = [s for s in pool if not s.outcome]
  assert [s for s in kept if not s.outcome] == wrong[:2]


def test_settings_share_the_points_that_are_the_same(load):
  module = load("labelling_active")
  assert module.name_of("active", 100) == module.name_of("random", 100)
  assert module.name_of("apart", 100) == "apart_100"
  # Five sizes of five ways, but the first of two ways is one point.
  assert len(module.NAMES) == 5 * 5 - 1 == len({*module.NAMES})
