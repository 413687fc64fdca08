"""What holds of every search: its bill, its limits and its determinism."""

import dataclasses
import json
import math

import numpy as np
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.models import model_config
from prm_jax.search import bill as bill_lib
from prm_jax.search import engine
from prm_jax.search import records
from prm_jax.search import rules
from prm_jax.search import search_limits
from prm_jax.search import search_models
from prm_jax.search import solutions
from prm_jax.search import tree as tree_lib
from prm_jax.testbed import arithmetic
from prm_jax.testbed import arithmetic_policy
from tests.search import searches

ALL = pytest.mark.parametrize("name", searches.RULES)


def _records(trees):
  return [json.dumps(records.tree_record(tree)) for tree in trees]


@ALL
def test_a_tree_depends_on_its_own_problem_alone(name):
  rule, limits = searches.RULES[name], search_limits.Limits(budget_tokens=150)
  together = _records(searches.search(rule, limits=limits))
  other_way = _records(
    searches.search(rule, searches.PROBLEMS[::-1], limits=limits)
  )
  assert together == other_way[::-1]
  alone = searches.search(rule, searches.PROBLEMS[2:3], limits=limits)
  assert _records(alone) == together[2:3]


@ALL
def test_a_saved_tree_goes_on_as_if_it_had_never_stopped(name):
  rule = searches.RULES[name]
  policies = {tree_lib.POLICY: searches.POLICY}
  models_of = (policies, searches.verifier())
  whole = searches.search(rule, searches.PROBLEMS[:2])
  assert max(len(tree.rounds) for tree in whole) > 1
  trees = [tree_lib.begin(p) for p in searches.PROBLEMS[:2]]
  while any(not tree.stopped for tree in trees):
    trees = engine.extend(trees, rule, *models_of, max_rounds=1)
    saved = json.loads(json.dumps([records.tree_record(t) for t in trees]))
    trees = [records.tree_from_record(r, "a file") for r in saved]
  assert _records(trees) == _records(whole)


@ALL
@pytest.mark.parametrize("lookahead", [0, 1])
def test_the_bill_is_what_the_tree_shows(name, lookahead):
  """Counted again from the texts alone, with sets of whole prefixes."""
  limits = search_limits.Limits(lookahead=lookahead)
  for tree in searches.search(searches.RULES[name], limits=limits):
    encode = arithmetic_policy.Annotator().encode
    written, read = set(), set()
    policy_spent = dict(calls=0, sampled=0, read=0, read_once=0, context=0)
    scorer_spent = dict(policy_spent)

    def see(ids, known, spent):
      new = [n for n in range(1, len(ids) + 1) if ids[:n] not in known]
      known.update(ids[:n] for n in new)
      spent["read"] += len(ids)
      spent["read_once"] += len(new)
      spent["context"] += sum(new)

    for node in tree.nodes[1:]:
      steps = (*node.solution.steps, *node.ahead)
      begun = tree.nodes[node.parent].num_steps
      # Each call: the steps it was given, and those it wrote.
      calls = [(begun, node.num_steps)]
      calls += [(n, n + 1) for n in range(node.num_steps, len(steps))]
      for before, after in calls:
        problem = tree.problem.problem
        given = schema.Solution("", problem, steps[:before])
        wrote = schema.Solution("", problem, steps[:after])
        prompt = tuple(encode(given).tolist())
        full = tuple(encode(wrote).tolist())
        see(prompt, written, policy_spent)
        written.update(full[:n] for n in range(len(full) + 1))
        policy_spent["calls"] += 1
        policy_spent["sampled"] += len(full) - len(prompt)
        policy_spent["context"] += sum(range(len(prompt) + 1, len(full) + 1))
      see(full, read, scorer_spent)
      scorer_spent["calls"] += 1
    assert len(tree.nodes) > 3
    assert dataclasses.asdict(tree.bill["policy"]) == policy_spent
    assert dataclasses.asdict(tree.bill["scorer"]) == scorer_spent
    flops = bill_lib.flops(
      tree.bill, {"policy": searches.COST, "scorer": searches.COST}
    )
    assert flops == 1000 * (
      policy_spent["sampled"]
      + policy_spent["read_once"]
      + scorer_spent["read_once"]
    ) + 4 * (policy_spent["context"] + scorer_spent["context"])


@ALL
@pytest.mark.parametrize("limit", ["budget_tokens", "budget_flops"])
def test_no_child_is_begun_when_the_budget_is_spent(name, limit):
  unlimited = searches.search(searches.RULES[name])
  for budget in (1, 60, 90):
    budget *= 1 if limit == "budget_tokens" else 1500
    trees = searches.search(
      searches.RULES[name], limits=search_limits.Limits(**{limit: budget})
    )
    for tree, free in zip(trees, unlimited, strict=True):
      costs = {"policy": searches.COST, "scorer": searches.COST}
      bills = [node.cost for node in tree.nodes[1:]]
      spent = bill_lib.add(*bills)
      before = bill_lib.add(*bills[:-1])
      if limit == "budget_tokens":
        assert bill_lib.sampled(before) < budget
        over = bill_lib.sampled(spent) >= budget
      else:
        without = {"policy": before["policy"]} if before else {}
        assert bill_lib.flops(without, costs) < budget
        over = bill_lib.flops(spent, costs) >= budget
      assert (tree.stopped == "budget") <= over
      # What was drawn is what would have been drawn anyway.
      for node, same in zip(tree.nodes[1:], free.nodes[1:], strict=False):
        assert (node.path, node.solution) == (same.path, same.solution)


@pytest.mark.parametrize("limit", ["budget_tokens", "budget_flops"])
def test_a_budget_that_one_child_takes_to_the_unit_is_spent_by_it(limit):
  (free,) = searches.search(rules.BestOfN(3), searches.PROBLEMS[:1])
  took = {"policy": free.nodes[1].cost["policy"]}
  budget = bill_lib.sampled(took)
  if limit == "budget_flops":
    flops = bill_lib.flops(took, {"policy": searches.COST})
    assert flops is not None
    budget = flops
  for more, children in ((0, 1), (1, 2)):
    limits = search_limits.Limits(**{limit: budget + more})
    (tree,) = searches.search(rules.BestOfN(3), searches.PROBLEMS[:1], limits)
    assert len(tree.nodes) == 1 + children
    assert len(tree.candidates) == children
    assert tree.stopped == "budget"  # the rule asked for 3


def test_a_budget_for_less_than_a_solution_is_a_counted_outcome():
  trees = searches.search(
    searches.RULES["beam"], limits=search_limits.Limits(budget_tokens=1)
  )
  found = [*solutions.results(trees, {})]
  counts = solutions.counts(found)
  assert counts["ended_by_budget"] == counts["without_candidate"] == 4
  assert [s.answer for s in found] == [None] * 4


def test_what_was_drawn_in_vain_is_in_a_bill_of_its_own():
  (tree,) = searches.search(
    rules.BestOfN(8),
    searches.PROBLEMS[:1],
    search_limits.Limits(budget_tokens=40),
  )
  first = len(tree.nodes) - 1
  assert first < 4  # the first call has four
  (free,) = searches.search(rules.BestOfN(4), searches.PROBLEMS[:1])
  vain = sum(n.cost["policy"].sampled for n in free.nodes[1 + first :])
  assert tree.unused["policy"].sampled == vain > 0


@pytest.mark.parametrize("ahead", [1, 2, 9])
def test_looking_ahead_scores_the_greedy_continuation(ahead):
  """The exact verifier at its end; the tree holds none of its steps."""
  limits = search_limits.Limits(lookahead=ahead)
  for tree in searches.search(rules.Beam(2, 2), limits=limits, noise=0.0):
    for node in tree.nodes[1:]:
      steps = (*node.solution.steps, *node.ahead)
      turns = len(arithmetic.parse(tree.problem.problem)[1])
      most = turns + 1
      assert len(steps) == min(node.num_steps + ahead, most)
      label = arithmetic.check(tree.problem.problem, steps)[-1]
      assert (node.score > 0.5) == bool(label)
      assert len(node.step_scores) == node.num_steps


def _writes(step_of):
  """Returns a policy whose every completion is what a function makes of it."""

  def generate(prefixes, num):
    assert num == 1
    return [[step_of(prefix)] for prefix in prefixes]

  return search_models.Policy(generate, generate)


def _new(prefix, steps, **extra):
  counts = dict(num_tokens=2, stopped="step", ended=False) | extra
  return dataclasses.replace(
    prefix, steps=(*prefix.steps, *steps), extra=counts
  )


@pytest.mark.parametrize(
  ("step_of", "why"),
  [
    (lambda p: _new(p, [], stopped="end", ended=True), "end"),
    (lambda p: _new(p, [], stopped="stop", ended=True), "stop"),
    (lambda p: _new(p, ["on and on"]), "steps"),
    (lambda p: _new(p, ["on and"], stopped="length"), "length"),
    (lambda p: _new(p, []), "empty"),
  ],
)
@pytest.mark.parametrize(
  "name", ["best_of_n", "beam", "rebase", "particle_filter", "mcts"]
)
def test_a_policy_that_ends_at_once_or_never_ends_the_search(
  step_of, why, name
):
  trees = searches.search(
    searches.RULES[name],
    limits=search_limits.Limits(max_steps=3),
    writes=_writes(step_of),
  )
  for tree in trees:
    assert tree.stopped == "rule"
    assert tree.candidates
    stops = {node.stopped for node in tree.nodes[1:]} - {"step"}
    assert max(node.num_steps for node in tree.nodes) <= 3
    whole_cut = name == "best_of_n" and why in ("steps", "empty")
    assert stops == {"length" if whole_cut else why}


@pytest.mark.parametrize(("most", "num_steps"), [(4, 2), (5, 3)])
def test_a_solution_ends_with_the_step_that_reaches_its_most_tokens(
  most, num_steps
):
  trees = searches.search(
    rules.Beam(2, 1),
    limits=search_limits.Limits(max_tokens=most),
    writes=_writes(lambda p: _new(p, ["a b"])),
  )
  assert {
    n.num_steps for t in trees for n in t.nodes if n.stopped == "length"
  } == {num_steps}


def test_flops_are_those_of_the_matrices_and_of_attention():
  """Counted by hand: a layer has q, k, v and o, and three matrices of an MLP."""
  model = model_config.ModelConfig(
    vocab_size=50,
    d_model=8,
    num_layers=3,
    num_heads=2,
    num_kv_heads=1,
    head_dim=6,
    d_ff=7,
  )
  layer = 8 * 12 + 2 * 8 * 6 + 12 * 8 + 3 * 8 * 7
  # Scores and sums of values: a multiplication and an addition each.
  attention = 3 * 2 * (2 * 6 + 2 * 6)
  scorer = bill_lib.cost_of(model, writes=False)
  assert scorer == bill_lib.Cost(2 * (3 * layer + 8), attention)
  writer = bill_lib.cost_of(model, writes=True)
  assert writer == bill_lib.Cost(2 * (3 * layer + 8 * 50), attention)
  bill = {"policy": bill_lib.Spent(calls=1, sampled=2, read=9, read_once=3)}
  assert bill_lib.flops(bill, {"policy": writer}) == 5 * writer.per_token
  assert bill_lib.flops(bill, {}) is None
  # What did nothing needs no cost.
  idle = bill | {"scorer": bill_lib.Spent()}
  assert bill_lib.flops(idle, {"policy": writer, "scorer": None}) is not None


def test_what_is_not_known_is_none_and_what_was_not_read_is_0():
  bill = {"scorer": bill_lib.Spent(calls=2)}
  known = records.bill_record(bill, {"scorer": searches.COST})
  assert known["models"]["scorer"]["read"] == known["flops"] == 0
  unknown = records.bill_record(bill, {"scorer": None})
  assert unknown["models"]["scorer"]["read"] is unknown["flops"] is None


def test_the_writer_of_a_step_looks_ahead_from_it():
  limits = search_limits.Limits(lookahead=1)
  policies = dict(draft=searches.POLICY, target=searches.POLICY)
  trees = engine.search(
    searches.PROBLEMS,
    rules.Speculate(0.9),
    policies,
    searches.verifier(),
    limits,
  )
  for tree in trees:
    writers = {node.writer for node in tree.nodes[1:]}
    for node in tree.nodes[1:]:
      assert len(node.ahead) == node.is_open
      calls = 1 + len(node.ahead)
      assert {n: s.calls for n, s in node.cost.items()} == {
        node.writer: calls,
        "scorer": 1,
      }
    assert writers == {"draft", "target"}


def test_a_score_that_is_nan_is_named_with_its_node():
  def scores(asked):
    return [schema.StepScores((math.nan,) * len(s.steps)) for s in asked]

  with pytest.raises(errors.InputError, match=r"dial-test-0.*node 0.*NaN"):
    engine.search(
      searches.PROBLEMS,
      rules.BestOfN(2),
      {tree_lib.POLICY: searches.POLICY},
      search_models.Verifier(scores),
    )


def test_a_policy_without_counts_is_refused():
  policy_of = _writes(
    lambda p: dataclasses.replace(p, steps=("a",), extra={"ended": True})
  )
  with pytest.raises(errors.InputError, match="no num_tokens"):
    searches.search(rules.BestOfN(2), writes=policy_of)


def test_problems_that_would_be_drawn_alike_are_refused():
  with pytest.raises(errors.InputError, match="comes twice"):
    searches.search(rules.BestOfN(2), searches.PROBLEMS[:1] * 2)


def test_no_two_completions_have_one_seed():
  """So a second try of a rejected step draws other tokens."""
  asked = []

  def watched(generate):
    def recorded(prefixes, num):
      asked.extend(p.id for p in prefixes)
      return generate(prefixes, num)

    return recorded

  writes = dataclasses.replace(
    searches.POLICY,
    step=watched(searches.POLICY.step),
    whole=watched(searches.POLICY.whole),
    greedy_step=watched(searches.POLICY.greedy_step),
  )
  for name, rule in searches.RULES.items():
    asked.clear()
    limits = search_limits.Limits(lookahead=1)
    searches.search(rule, searches.PROBLEMS[:2], limits, writes=writes)
    assert len(asked) == len(set(asked)) > 4, name


def test_calls_serve_all_problems_together():
  calls = dict(policy=0, scorer=0)

  def counted(name, function):
    def call(*args):
      calls[name] += 1
      return function(*args)

    return call

  writes = dataclasses.replace(
    searches.POLICY, step=counted("policy", searches.POLICY.step)
  )
  verifier = searches.verifier()
  verifier = dataclasses.replace(
    verifier, score=counted("scorer", verifier.score)
  )
  trees = engine.search(
    searches.PROBLEMS, rules.Beam(2, 2), {tree_lib.POLICY: writes}, verifier
  )
  rounds = max(len(tree.rounds) for tree in trees) - 1
  assert calls == dict(policy=rounds, scorer=rounds)


@pytest.mark.parametrize("how", ["product", "min", "last", "mean"])
def test_nodes_are_ordered_as_solutions_are_ranked(how):
  from prm_jax import voting

  random = np.random.default_rng(0)
  rows = []
  for scale in (1, 10, 60):
    for _ in range(20):
      logits = tuple((scale * random.normal(size=3)).tolist())
      scores = tuple((1 / (1 + np.exp(-np.asarray(logits)))).tolist())
      rows.append(schema.StepScores(scores, logits=logits))
  by_rank = np.argsort(voting.ranking_scores(rows, how), kind="stable")
  log_odds = np.asarray([voting.log_odds(row, how) for row in rows])
  assert (np.diff(log_odds[by_rank]) >= 0).all()
  scores = np.asarray([voting.aggregate(row.scores, how) for row in rows])
  np.testing.assert_allclose(1 / (1 + np.exp(-log_odds)), scores, atol=1e-6)
