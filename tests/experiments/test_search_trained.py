"""What the experiment on search with trained models computes itself."""

import importlib
import json
import math
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
TASK = arithmetic.Task(min_turns=2, max_turns=3)
COST = bill_lib.Cost(per_token=1000, per_context=4)
PROBLEM = "Ann dials 3 up 2 times 3 ."
NUM = 2


@pytest.fixture
def module(monkeypatch):
  monkeypatch.syspath_prepend(EXPERIMENTS)
  return lambda name: importlib.import_module(f"search_trained{name}")


def _of_annotator(module):
  """Returns a seed's models whose place the annotator and verifiers take."""
  annotator = policy_lib.Annotator(TASK)
  scorers = dict(
    full=policy_lib.NoisyVerifier(2.0), few=policy_lib.NoisyVerifier(5.0)
  )
  return module("_models").Models(
    problems=arithmetic.problems(NUM, "test", TASK, np.random.default_rng(0)),
    policy=search_models.Policy(
      *(annotator.step, annotator.whole, annotator.step, annotator.encode),
      cost=COST,
    ),
    scorers=scorers,
    verifier=lambda name, how: search_models.Verifier(
      scorers[name], how, annotator.encode, COST
    ),
    max_tokens=60,
  )


def test_all_runs_are_judged(module):
  c = module("_models").settings(small=True)
  c.some = 1
  of_seed = _of_annotator(module)
  records = {
    run.name: [module("_runs").measure(run, of_seed, 0, NUM, 16)]
    for run in module("").all_runs(c)
  }
  fresh = {run.name: records[run.name] for run in module("").fresh_runs(c)}
  judged = module("_claims").judge(records, fresh, NUM)
  table = module("_claims").table(judged)
  for claim in judged["claims"].values():
    assert claim["name"] in table
  assert judged["accuracy"]["beam.few.64"]["problems"] == 1
  assert judged["accuracy"]["reject.few.1"]["problems"] == NUM
  assert len(judged["fresh_seeds"]["claims"]) == 5
  json.dumps(judged, allow_nan=False)


def test_samples_of_a_run_have_the_outcomes_and_costs_of_their_tree(module):
  of_seed = _of_annotator(module)
  run = module("_runs").Run("samples", None)
  found = module("_runs").measure(run, of_seed, 0, NUM, 5)
  trees = engine.search(
    [schema.Solution(p.id, p.problem, ()) for p in of_seed.problems],
    rules.BestOfN(5),
    {tree_lib.POLICY: of_seed.policy},
    of_seed.verifier("full", "min"),
    limits_lib.Limits(max_tokens=60),
  )
  costs = {tree_lib.POLICY: COST, bill_lib.SCORER: COST}
  for i, tree in enumerate(trees):
    drawn = [n.solution for n in tree.nodes[1:]]
    assert found["right"][i].tolist() == arithmetic.verify(drawn)
    assert found["sampled"][i, -1] == bill_lib.sampled(tree.bill)
    assert found["flops"][i, -1] == bill_lib.flops(tree.bill, costs)


@pytest.mark.parametrize(
  ("steps", "first", "kind"),
  [
    (("so 3 + 2 = 5", "so 5 * 3 = 7", "answer 7"), None, ""),
    (("so 3 + 2 = 6",), 0, "slip"),
    (("so 4 + 2 = 6",), 0, "copied"),
    (("so 3 + 2 = 5", "so 5 + 3 = 0"), 1, "copied"),
    (("so 3 + 2 = 5", "so 5 * 3 = 7", "answer 6"), 2, "other"),
  ],
)
def test_the_first_wrong_step_and_its_kind_are_found(
  module, steps, first, kind
):
  runs = module("_runs")
  assert runs.first_wrong(arithmetic.check(PROBLEM, steps)) == first
  if first is not None:
    solution = schema.Solution("", PROBLEM, steps)
    assert runs.kind_of_error(solution, first) == kind


def _tree(*paths):
  """Returns the tree of some children of the root, all of them candidates."""
  root = tree_lib.Node(0, None, "", schema.Solution("p", PROBLEM, ()))
  nodes = [root]
  for i, steps in enumerate(paths):
    nodes.append(
      tree_lib.Node(
        *(i + 1, 0, str(i), schema.Solution("p", PROBLEM, steps)),
        stopped="end",
        step_scores=(0.9,) * len(steps),
        score=0.9,
        log_odds=math.log(9) - i,
      )
    )
  ids = tuple(range(1, len(nodes)))
  return tree_lib.Tree(
    root.solution,
    tuple(nodes),
    (tree_lib.Round(candidates=ids),),
    (len(nodes),),
  )


def test_candidates_with_one_wrong_opening_share_it_whatever_its_word(module):
  diagnosis = module("_runs").diagnosis
  wrong = ("so 4 + 2 = 6", "so 6 * 3 = 2", "answer 2")
  same = ("ok 4 + 2 = 6", "so 6 * 3 = 3", "answer 2")
  other = ("so 3 + 2 = 7", "so 7 * 3 = 5", "answer 2")
  found = diagnosis(_tree(wrong, same))
  assert (found["first"], found["shared"], found["end"]) == (0, 1, 2)
  assert found["first_log_odds"] == pytest.approx(math.log(9))
  assert diagnosis(_tree(wrong, other))["shared"] == 0


def test_a_right_candidate_that_loses_was_not_chosen(module):
  right = ("so 3 + 2 = 5", "so 5 * 3 = 7", "answer 7")
  wrong = ("so 4 + 2 = 6", "so 6 * 3 = 2", "answer 2")
  found = module("_runs").diagnosis(_tree(wrong, right))
  assert (found["end"], found["first"]) == (0, 0)


def test_persistence_is_measured_from_the_first_wrong_step_on(module):
  claims, runs = module("_claims"), module("_runs")
  labels = np.full((1, 2, 4, runs.MOST_STEPS), np.nan)
  logits = labels.copy()
  # Steps before the first wrong one are doubted at random; those after it have
  # twice its log-odds.
  for i, x in enumerate((-3.0, -1.0, 2.0, 4.0)):
    labels[..., i, :4] = (1, 0, 0, 0)
    logits[..., i, :4] = ((-1) ** i * 9, x, 2 * x, 4 * x)
  results = claims.Results.__new__(claims.Results)
  results.runs = dict(samples={"few.logits": logits, "labels": labels})
  found = claims.prm_quality(results, "few")
  assert found["persistence"] == pytest.approx(1)
  assert found["missed"] == 0.5
  assert found["never_doubted"] == 1
  assert found["believed_next"] == dict(after_believed=1, after_doubted=0)
  assert (found["first_wrong_steps"], found["pairs"]) == (8, 16)
