"""Best-of-n, beam search, DVTS, the chosen answer, and every golden tree."""

import dataclasses
import json
import math
import pathlib

import numpy as np
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.search import adaptive
from prm_jax.search import choice
from prm_jax.search import mcts
from prm_jax.search import particles
from prm_jax.search import records
from prm_jax.search import rules
from prm_jax.search import search_limits
from prm_jax.search import search_models
from prm_jax.search import tree as tree_lib
from prm_jax.testbed import arithmetic
from tests.search import searches

GOLDEN = pathlib.Path(__file__).parent.parent / "golden/search"


@pytest.mark.parametrize(
  "rule",
  [
    rules.Beam(5, 1, distinct=False),
    rules.DiverseTrees(5, 1, distinct=False),
    rules.Rebase(5, balance_temperature=1e9),
    particles.ParticleFilter(5, 1e9, resampling="systematic"),
  ],
)
def test_a_search_that_never_chooses_is_best_of_n(rule):
  """The annotator's random numbers are keyed by path and step."""
  whole = searches.search(rules.BestOfN(5))
  by_step = searches.search(rule)
  assert [*map(searches.candidate_steps, by_step)] == [
    *map(searches.candidate_steps, whole)
  ]


def test_beam_continues_the_best_and_a_finished_one_takes_its_place():
  keep = 3
  early = 0
  for tree in searches.search(rules.Beam(keep, 2), writes=searches.UNEVEN):
    finished = []
    for number, round_ in enumerate(tree.rounds[1:]):
      nodes = tree.nodes[([1, *tree.sizes][number] if number else 1) :]
      nodes = nodes[
        : tree.sizes[number] - (tree.sizes[number - 1] if number else 1)
      ]
      unique = {}
      for node in nodes:
        unique.setdefault((node.solution.steps, node.ended), node)
      ranked = sorted(unique.values(), key=lambda n: -n.log_odds)
      best = {n.id for n in ranked[: keep - len(finished)]}
      new = set(round_.candidates) - set(finished)
      assert {e.node for e in round_.expansions} | new == best
      assert all(not tree.nodes[n].is_open for n in new)
      finished = [*round_.candidates]
      early += bool(finished and round_.expansions)
    assert len(tree.candidates) <= keep
  assert early


def test_to_keep_more_than_there_are_keeps_all():
  for tree in searches.search(rules.Beam(9, 1, distinct=False)):
    assert len(tree.candidates) == 9


def test_scores_that_round_to_1_are_ranked_by_their_log_odds():
  nodes = [
    tree_lib.Node(i, 0, "", searches.PROBLEMS[0], score=1.0, log_odds=x)
    for i, x in enumerate([40.0, 60.0, 50.0, 60.0])
  ]
  assert rules.ids(rules.ranked(nodes)) == (1, 3, 2, 0)


def test_equal_siblings_take_one_place():
  def same(prefixes, num):
    del num
    rows = searches.POLICY.step(
      [dataclasses.replace(p, id="same") for p in prefixes], 1
    )
    return rows

  writes = dataclasses.replace(searches.POLICY, step=same)
  for tree in searches.search(rules.Beam(2, 2), writes=writes):
    assert len(tree.candidates) == 1
    assert all(len(r.expansions) <= 1 for r in tree.rounds)
  again = searches.search(rules.Beam(2, 2, distinct=False), writes=writes)
  assert {len(tree.candidates) for tree in again} == {2}


def test_a_step_that_was_cut_does_not_take_the_place_of_its_open_twin():
  nodes = [
    tree_lib.Node(i, 0, str(i), searches.PROBLEMS[0], stopped=stopped)
    for i, stopped in enumerate(["length", "step", "end", "step", "stop"], 1)
  ]
  assert rules.ids(rules.distinct(nodes)) == (1, 2, 3)


def test_the_parts_of_dvts_do_not_compete():
  rule = rules.DiverseTrees(3, 2)
  for tree in searches.search(rule, writes=searches.UNEVEN):
    for round_ in tree.rounds[1:]:
      parts = [
        int(tree.nodes[e.node].path.split(".")[0]) // 2
        for e in round_.expansions
      ]
      assert len(parts) == len(set(parts))
    reached = {
      int(tree.nodes[n].path.split(".")[0]) // 2 for n in tree.candidates
    }
    assert reached == {0, 1, 2}
    # The best of its siblings, and those that have ended with it.
    for part in reached:
      ended = [
        tree.nodes[n]
        for n in tree.candidates
        if int(tree.nodes[n].path.split(".")[0]) // 2 == part
      ]
      siblings = [
        node
        for node in tree.nodes[1:]
        if node.num_steps == ended[0].num_steps
        and int(node.path.split(".")[0]) // 2 == part
      ]
      assert max(siblings, key=lambda n: n.log_odds).log_odds == max(
        n.log_odds for n in ended
      )
      unique = {n.solution.steps for n in siblings if not n.is_open}
      assert unique == {n.solution.steps for n in ended}


def _tree(*nodes):
  """Returns a tree whose candidates end in answers, by (answer, log-odds)."""
  root = tree_lib.begin(searches.PROBLEMS[0])
  made = tuple(
    tree_lib.Node(
      i + 1,
      0,
      str(i),
      schema.Solution(str(i), "p", ("a",) if a is None else (f"answer {a}",)),
      stopped="end",
      score=1 / (1 + math.exp(-x)),
      log_odds=x,
    )
    for i, (a, x) in enumerate(nodes)
  )
  round_ = tree_lib.Round(candidates=tuple(range(1, len(made) + 1)))
  tree = tree_lib.grow(root, tree_lib.Round(), made, {})
  return tree_lib.grow(tree, round_, (), {})


def test_answers_are_chosen_by_score_by_weight_and_by_count():
  tree = _tree(("1", -1.0), ("2", 0.0), ("1.0", -1.0), ("3", 1.5), ("2", 0.2))
  found = choice.choose(tree)
  assert found["best"] == choice.Choice("3", 4)
  assert found["weighted"] == choice.Choice("2", 5)
  assert found["majority"].answer == "1"


def test_without_a_candidate_or_an_answer_there_is_none():
  none = choice.Choice(None, None)
  assert set(choice.choose(_tree()).values()) == {none}
  found = choice.choose(_tree((None, 0.0), (None, 1.0)))
  assert set(found.values()) == {choice.Choice(None, 2)}
  found = choice.choose(_tree((None, 3.0), ("1", 1.0)))
  assert found["best"] == choice.Choice(None, 1)
  assert found["majority"] == choice.Choice("1", 2)


@pytest.mark.parametrize(
  ("make", "says"),
  [
    (lambda: rules.Beam(0, 4), "keep=0"),
    (lambda: rules.Beam(4, 0), "expand=0"),
    (lambda: rules.DiverseTrees(0), "trees=0"),
    (lambda: rules.BestOfN(0), "num=0"),
    (lambda: rules.Rebase(4, 0.0), "balance_temperature=0"),
    (lambda: rules.RejectResample(1.5), "threshold=1.5"),
    (lambda: rules.Speculate(-0.1), "threshold=-0.1"),
    (lambda: particles.ParticleFilter(1, iterations=2), "num=1"),
    (lambda: particles.ParticleFilter(2, resampling="no"), "resampling"),
    (lambda: mcts.MCTS(0), "simulations=0"),
    (lambda: adaptive.AdaptiveBestOfN(9, 3), "pilot=9"),
    (lambda: adaptive.AdaptiveBestOfN(1, 3, 1.0), "confidence=1"),
    (lambda: adaptive.fit([[1.0]], [1.0]), "2 or more"),
    (lambda: search_limits.Limits(budget_tokens=0), "budget_tokens=0"),
  ],
)
def test_options_that_make_no_sense_are_refused(make, says):
  with pytest.raises(errors.InputError, match=says):
    make()


def test_a_policy_that_is_not_there_is_named():
  with pytest.raises(errors.InputError, match=r"'draft'.*policy"):
    searches.search(rules.Speculate())


@pytest.mark.parametrize("name", searches.RULES)
def test_the_tree_is_the_golden_one(name):
  """A change of any strategy shows here; make_search.py writes the files."""
  (tree,) = searches.search(searches.RULES[name], searches.PROBLEMS[:1])
  golden = json.loads((GOLDEN / f"{name}.json").read_text())
  found = json.loads(json.dumps(records.tree_record(tree)))
  assert found["rounds"] == golden["rounds"]
  assert len(found["nodes"]) == len(golden["nodes"])
  numbers = ("score", "log_odds", "step_scores")
  for node, saved in zip(found["nodes"], golden["nodes"], strict=True):
    for field in numbers:
      np.testing.assert_allclose(node.pop(field), saved.pop(field), rtol=1e-6)
    assert node == saved


def test_golden_trees_are_those_of_all_strategies():
  assert {p.stem for p in GOLDEN.glob("*.json")} == set(searches.RULES)
  assert arithmetic.Task() == searches.TASK
  assert isinstance(searches.POLICY, search_models.Policy)
