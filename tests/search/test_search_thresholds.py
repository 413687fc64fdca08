"""Strategies with a threshold: reject_resample, accept_first and speculate."""

import dataclasses
import itertools
import json

import pytest

from prm_jax import schema
from prm_jax.search import engine
from prm_jax.search import records
from prm_jax.search import rules
from prm_jax.search import search_models
from prm_jax.search import tree as tree_lib
from prm_jax.testbed import arithmetic_policy
from tests.search import searches


def test_to_reject_nothing_is_to_sample():
  whole = searches.search(rules.BestOfN(1))
  by_step = searches.search(rules.RejectResample(0.0))
  assert [*map(searches.candidate_steps, by_step)] == [
    *map(searches.candidate_steps, whole)
  ]


def test_a_rejected_step_is_drawn_again_up_to_the_tries_and_the_best_goes_on():
  for tree in searches.search(rules.RejectResample(1.0, attempts=3), noise=1.0):
    (last,) = tree.candidates
    path = [0, *[*tree.ancestors(last)][::-1]]
    assert tree.nodes[last].ended
    for parent, chosen in itertools.pairwise(path):
      attempts = [tree.nodes[n] for n in tree.children[parent]]
      assert len(attempts) == 3
      assert tree.nodes[chosen].score == max(n.score for n in attempts)


def test_the_first_step_above_the_threshold_is_accepted():
  for tree in searches.search(rules.RejectResample(0.5, attempts=9), noise=0.0):
    for children in tree.children:
      scores = [tree.nodes[n].score for n in children]
      assert all(score < 0.5 for score in scores[:-1])
    assert tree.nodes[tree.candidates[0]].score > 0.5


@pytest.mark.parametrize(
  "rule",
  [
    rules.RejectResample(0.5, 3),
    rules.AcceptFirst(0.5, 3),
    rules.Speculate(0.5),
  ],
)
def test_a_score_that_equals_the_threshold_is_accepted(rule):
  def score(asked):
    return [schema.StepScores((0.5,) * len(s.steps)) for s in asked]

  names = ("draft", "target") if rule == rules.Speculate(0.5) else ("policy",)
  (tree,) = engine.search(
    searches.PROBLEMS[:1],
    rule,
    dict.fromkeys(names, searches.POLICY),
    search_models.Verifier(score, "last"),
  )
  (last,) = tree.candidates
  assert last == len(tree.nodes) - 1 == len([*tree.ancestors(last)])
  assert {node.writer for node in tree.nodes[1:]} == {names[0]}


@pytest.mark.parametrize("attempts", [1, 3, 5])
def test_the_first_of_best_of_n_above_the_threshold_is_accepted(attempts):
  sizes = set()
  for tree, samples in zip(
    searches.search(rules.AcceptFirst(0.7, attempts)),
    searches.search(rules.BestOfN(attempts)),
    strict=True,
  ):
    scores = [node.score for node in samples.nodes[1:]]
    first = next((i for i, x in enumerate(scores) if x >= 0.7), None)
    assert len(tree.nodes) == 1 + (attempts if first is None else first + 1)
    assert tree.candidates == (() if first is None else (first + 1,))
    assert [n.score for n in tree.nodes[1:]] == scores[: len(tree.nodes) - 1]
    sizes.add(len(tree.candidates))
  assert sizes == {0, 1} or attempts > 1


def test_a_solution_without_an_answer_is_not_accepted():
  rule = rules.AcceptFirst(0.0, 3, find_answer=lambda solution: None)
  for tree in searches.search(rule):
    assert (len(tree.nodes), tree.candidates) == (4, ())


@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_speculation_takes_all_steps_from_the_draft_or_none(threshold):
  draft = searches.of_annotator(arithmetic_policy.Annotator(seed=1))
  target = searches.of_annotator(arithmetic_policy.Annotator(seed=2))
  trees = engine.search(
    searches.PROBLEMS,
    rules.Speculate(threshold),
    dict(draft=draft, target=target),
    searches.verifier(),
  )
  for tree in trees:
    (last,) = tree.candidates
    writers = {tree.nodes[n].writer for n in tree.ancestors(last)}
    assert writers == {"target" if threshold else "draft"}
    drafted = sum(n.writer == "draft" for n in tree.nodes[1:])
    assert drafted == tree.nodes[last].num_steps
    assert tree.bill["draft"].calls == drafted


def test_a_target_reads_what_the_draft_wrote():
  same = searches.of_annotator(arithmetic_policy.Annotator(seed=1))
  (tree,) = engine.search(
    searches.PROBLEMS[:1],
    rules.Speculate(1.0),
    dict(draft=same, target=same),
    searches.verifier(),
  )
  ids = [arithmetic_policy.Annotator().encode(n.solution) for n in tree.nodes]
  target = [n for n in tree.nodes[1:] if n.writer == "target"]
  # It writes every step that goes on, so it reads the problem alone.
  assert tree.bill["target"].read_once == len(ids[0])
  read = sum(
    n.cost["draft"].read_once for n in tree.nodes if n.writer == "draft"
  )
  # The draft reads the steps that the target wrote, but for what is the same.
  assert read > len(ids[0])
  assert len(target) > 2


def _server(name):
  """Returns a policy whose prompts are counted in words, and aren't known."""

  def step(prefixes, num):
    del num
    rows = []
    for p in prefixes:
      words = len(p.problem.split()) + 2 * len(p.steps)
      ended = len(p.steps) == 3
      extra = dict(
        num_tokens=2,
        stopped="end" if ended else "step",
        ended=ended,
        prompt_tokens=words,
      )
      steps = (*p.steps, f"{name} {len(p.steps)}")
      rows.append([dataclasses.replace(p, steps=steps, extra=extra)])
    return rows

  return search_models.Policy(step, step)


def test_a_server_reads_once_what_the_other_policy_wrote():
  def score(asked):
    wrong = ("draft 1", "draft 3")
    return [
      schema.StepScores(tuple(0.1 if x in wrong else 0.9 for x in s.steps))
      for s in asked
    ]

  policies = dict(draft=_server("draft"), target=_server("target"))
  given = (
    rules.Speculate(0.5),
    policies,
    search_models.Verifier(score, "last"),
  )
  (tree,) = engine.search([schema.Solution("a", "one two", ())], *given)
  steps = tree.nodes[tree.candidates[0]].solution.steps
  assert steps == ("draft 0", "target 1", "draft 2", "target 3")
  # The problem's words, and those of the steps that the other wrote.
  assert tree.bill["draft"].read_once == 2 + 2
  assert tree.bill["target"].read_once == 4 + 2
  # The target attends to words 1 to 6, and then 7 to 10.
  assert tree.bill["target"].context == sum(range(1, 11))
  trees = [tree_lib.begin(tree.problem)]
  while not trees[0].stopped:
    trees = engine.extend(trees, *given, max_rounds=1)
    saved = json.loads(json.dumps(records.tree_record(trees[0])))
    trees = [records.tree_from_record(saved, "a file")]
  assert trees[0].bill == tree.bill
