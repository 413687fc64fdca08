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


# --- labelling_rounds -------------------------------------------------------


def _judged_pool(num):
  random = np.random.default_rng(5)
  task = arithmetic.Task()
  return [
    arithmetic.judge(arithmetic.solve(p, random, task))
    for p in arithmetic.problems(num, "train", task, random)
  ]


def test_the_person_errs_as_often_as_the_experiment_says(load):
  module = load("labelling_rounds")
  pool = _judged_pool(1_500)
  way = module.Way("file", pool, 0)
  wrong = 0
  for item in way.items:
    rated = module.judged(item, 0)
    assert rated == module.judged(item, 0)
    said = schema.first_error([x != -1 for x in rated.ratings])
    wrong += said != schema.first_error(item.solutions[0].labels)
  assert abs(wrong / len(pool) - module.NOISE) < 0.01


def test_a_round_costs_as_many_steps_by_any_order(load):
  module = load("labelling_rounds")
  pool = _judged_pool(400)
  # The longer a solution, the surer is the model: a wrong one is convincing.
  score = [
    schema.StepScores((1 - 1 / len(s.steps),) * len(s.steps)) for s in pool
  ]
  of = dict(zip((s.id for s in pool), score))
  ways = {
    name: module.Way(order, pool, 0) for name, order in module.ORDERS.items()
  }
  for number in (1, 2):
    for way in ways.values():
      way.work(number * 100)
      steps = module.num_judged(way.labelled)
      assert number * 100 <= steps < number * 100 + 8
      way.rank(lambda given: [of[s.id] for s in given])
    ids = {name: [s.id for s in way.labelled] for name, way in ways.items()}
    assert all(len(x) == len({*x}) for x in ids.values())
    if number == 1:
      assert ids["random"] == ids["convincing"] == ids["uncertain"]
      first = len(ids["random"])
  items = [x.item for x in ways["random"].given]
  assert items == [x.id for x in ways["random"].items][: len(items)]
  by_id = {s.id: s for s in pool}
  chosen = [by_id[x.item] for x in ways["convincing"].given[first:]]
  assert chosen and not any(s.outcome for s in chosen)
  assert [len(s.steps) for s in chosen] == sorted(
    (len(s.steps) for s in chosen), reverse=True
  )


def test_a_factor_by_its_own_sizes_is_that_of_the_sizes(load):
  """The same curve at half of the labels, whatever the sizes' names."""
  module = load("labelling_active")
  picks = np.linspace(0.1, 0.9, 5)[None, None, :, None].repeat(2, 1)
  sizes = [100.0, 200.0, 300.0, 400.0, 500.0]
  value, (low, high), undefined = module.of_picks(
    picks, sizes, [x / 2 for x in sizes]
  )
  np.testing.assert_allclose([value, low, high], 2)
  assert undefined == 0


@pytest.mark.parametrize(
  "found, verdict",
  [
    ((1.4, (1.1, 1.9), 0), "saves labels"),
    ((0.7, (0.5, 0.9), 50), "costs labels"),
    ((1.4, (0.9, 1.9), 0), "saves none that we can see"),
    ((1.4, (1.1, 1.9), 51), "undecided"),
  ],
)
def test_the_verdict_is_by_the_interval(load, found, verdict):
  assert load("labelling_rounds").verdict(found) == verdict


# --- labelling_cpmi ---------------------------------------------------------


def _labels(own, tokens, position=0.5, by_completions=(0.6, 0.7, 0.8, 0.9)):
  kinds = dict(
    own=dict(auroc=own, tokens=tokens), position=dict(auroc=position, tokens=0)
  )
  for i, auroc in enumerate(by_completions):
    kinds[f"monte_carlo_{2**i}"] = dict(auroc=auroc, tokens=100 * 2**i)
  return dict(name="labels", kinds=kinds)


def test_labels_are_compared_with_the_most_rollouts_that_cost_no_more(load):
  module = load("labelling_cpmi")
  kinds = _labels(0.5, 0)["kinds"]
  for tokens, k in ((50, 1), (100, 1), (399, 2), (400, 4), (9_999, 8)):
    assert module.equal_cost(kinds, tokens) == k


def test_a_verdict_needs_every_seed(load):
  def verdict(*seeds):
    (text,) = load("labelling_cpmi").verdicts(seeds)
    return text

  good, bad = _labels(0.75, 250), _labels(0.65, 250)
  assert verdict(good, good).endswith("yes; against K = 2, 2: as good")
  assert verdict(bad, bad).endswith("yes; against K = 2, 2: worse")
  assert verdict(good, bad).endswith("open")
  assert "no; against" in verdict(good, _labels(0.5, 250))
