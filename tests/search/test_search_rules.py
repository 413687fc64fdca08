"""What each strategy does, by the cases in which it must equal another."""

import collections
import dataclasses
import itertools
import json
import math
import pathlib

import numpy as np
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.search import adaptive
from prm_jax.search import answers
from prm_jax.search import engine
from prm_jax.search import mcts
from prm_jax.search import models
from prm_jax.search import particles
from prm_jax.search import records
from prm_jax.search import rules
from prm_jax.search import tree as tree_lib
from prm_jax.testbed import arithmetic
from prm_jax.testbed import policy
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
    models.Verifier(score, "last"),
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


def test_rebase_shares_its_width_by_the_authors_formula():
  rule = rules.Rebase(10, balance_temperature=0.2)
  for tree in searches.search(rule, writes=searches.UNEVEN):
    for number, round_ in enumerate(tree.rounds[1:-1], 1):
      start = tree.sizes[number - 2] if number > 1 else 1
      nodes = tree.nodes[start : tree.sizes[number - 1]]
      width = 10 - len(round_.candidates)
      left = sorted((n for n in nodes if n.is_open), key=lambda n: -n.log_odds)
      rest = sum(math.exp(n.score / 0.2) for n in left)
      wanted = {}
      for node in left:
        num = math.ceil(width * math.exp(node.score / 0.2) / rest - 1e-9)
        rest -= math.exp(node.score / 0.2)
        if num > 0 and width > 0:
          wanted[node.id] = num
        width -= num
      assert {e.node: e.num for e in round_.expansions} == wanted
      if left:
        assert sum(wanted.values()) == 10 - len(round_.candidates)


@pytest.mark.parametrize("temperature", [1e-3, 1e-308])
def test_at_a_low_temperature_the_best_gets_all(temperature):
  for tree in searches.search(rules.Rebase(4, temperature)):
    for number, round_ in enumerate(tree.rounds[1:-1], 1):
      start = tree.sizes[number - 2] if number > 1 else 1
      nodes = tree.nodes[start : tree.sizes[number - 1]]
      best = max(node.score for node in nodes if node.is_open)
      worst = min(tree.nodes[e.node].score for e in round_.expansions)
      assert worst > best - 50 * temperature - 1e-12
  nodes = [
    tree_lib.Node(i, 0, str(i), searches.PROBLEMS[0], log_odds=x)
    for i, x in enumerate([-1000.0, 2.0, 1000.0, 1000.0])
  ]
  shares = particles.weights(nodes, temperature)
  assert shares.tolist() == [0.0, 0.0, 0.5, 0.5]


def test_particles_are_drawn_by_the_odds_of_their_scores():
  nodes = [
    tree_lib.Node(i, 0, str(i), searches.PROBLEMS[0], log_odds=x)
    for i, x in enumerate([math.log(1 / 3), 0.0, math.log(3)])
  ]
  shares = particles.weights(nodes, 1.0)
  np.testing.assert_allclose(shares, np.array([1, 3, 9]) / 13)
  random = np.random.default_rng(0)
  for how in particles.RESAMPLING:
    drawn = collections.Counter(
      i for _ in range(500) for i in particles.resample(shares, 26, random, how)
    )
    mean = [drawn[i] / 500 for i in range(3)]
    np.testing.assert_allclose(mean, [2, 6, 18], atol=0.3)
  for _ in range(20):
    systematic = particles.resample(shares, 26, random, "systematic")
    assert np.bincount(systematic, minlength=3).tolist() == [2, 6, 18]


def test_each_problem_seed_and_round_has_random_numbers_of_its_own():
  trees = [tree_lib.begin(p, s) for p in searches.PROBLEMS for s in (0, 1)]
  trees += [tree_lib.grow(t, tree_lib.Round(), (), {}) for t in trees]
  assert len({tree.random().random() for tree in trees}) == len(trees) == 16


def test_multinomial_resampling_loses_a_third_of_equal_particles():
  random = np.random.default_rng(1)
  equal = np.full(64, 1 / 64)
  kept = [
    len(set(particles.resample(equal, 64, random, "multinomial")))
    for _ in range(50)
  ]
  assert 0.6 < np.mean(kept) / 64 < 0.67


@pytest.mark.parametrize("num", [2, 6])
def test_a_filter_has_the_same_number_of_particles_in_every_round(num):
  rule = particles.ParticleFilter(num)
  for tree in searches.search(rule, writes=searches.UNEVEN):
    for round_ in tree.rounds[:-1]:
      drawn = sum(e.num for e in round_.expansions) + len(round_.carried)
      assert drawn == num
    assert len(tree.candidates) == num
    assert all(tree.nodes[n].ended for n in tree.candidates)


def test_the_reference_of_particle_gibbs_is_never_lost():
  rule = particles.ParticleFilter(3, 4.0, iterations=4)
  iterations = again = 0
  for tree in searches.search(rule, writes=searches.UNEVEN):
    reference, depth = None, 0
    for number, round_ in enumerate(tree.rounds):
      depth += 1
      if round_.expansions and round_.expansions[0].node == 0:
        iterations, depth = iterations + 1, 0
        if reference is not None:
          assert round_.expansions == (tree_lib.Expansion(0, 2),)
        reference = round_.carried[0] if round_.carried else None
        assert reference is None or not tree.nodes[reference].is_open
      elif reference is not None:
        assert reference in round_.candidates
        if round_.expansions:
          assert reference == round_.carried[0]
          drawn = sum(e.num for e in round_.expansions) + len(round_.carried)
          assert drawn == 3
          # Of older nodes, what the reference was after as many rounds.
          newest = range(tree.sizes[number - 2], tree.sizes[number - 1])
          path = [*tree.ancestors(reference)][::-1]
          for e in round_.expansions:
            if e.node not in newest:
              assert e.node == path[depth - 1]
              again += 1
    assert reference is not None
    assert len(tree.candidates) == 3
  assert iterations == 4 * len(searches.PROBLEMS)
  assert again


def test_mcts_goes_to_the_child_with_the_highest_upper_bound():
  """Recounted by walking down once more before each round."""
  rule = mcts.MCTS(9, 3, exploration=1.0, prior="uniform")
  for tree in searches.search(rule, writes=searches.UNEVEN):
    begun = 0
    for number, round_ in enumerate(tree.rounds[:-1]):
      size = tree.sizes[number - 1] if number else 1
      nodes = tree.nodes[:size]

      def below(top, nodes=nodes, tree=tree):
        return [n for n in nodes if not top or top in tree.ancestors(n.id)]

      (e,) = round_.expansions
      assert nodes[e.node].is_open
      assert not any(n.parent == e.node for n in nodes)
      begun += bool(round_.carried)
      if round_.carried:
        at = 0
        while any(n.parent == at for n in nodes):
          live = [
            n.id
            for n in nodes
            if n.parent == at
            and any(
              m.is_open and not any(c.parent == m.id for c in nodes)
              for m in below(n.id)
            )
          ]
          top = len(below(at))
          at = max(
            live,
            key=lambda c: (
              np.mean([m.score for m in below(c)])
              + 1.0 * math.sqrt(top) / (1 + len(below(c)))
            ),
          )
        assert at == e.node
    assert begun <= 9
    closed = [n.id for n in tree.nodes[1:] if not n.is_open]
    assert list(tree.candidates) == closed


def test_a_likelier_step_is_tried_first():
  def with_log_prob(prefixes, num):
    rows = searches.POLICY.step(prefixes, num)
    return [
      [
        dataclasses.replace(s, extra=s.extra | dict(log_prob_mean=x))
        for s, x in zip(row, [-5.0 if p.id.endswith("0") else -0.1])
      ]
      for p, row in zip(prefixes, rows)
    ]

  writes = dataclasses.replace(searches.POLICY, step=with_log_prob)
  rule = mcts.MCTS(1, 2, exploration=100.0)
  for tree in searches.search(rule, writes=writes):
    assert all(
      tree.nodes[r.expansions[0].node].path.endswith("1") or i == 0
      for i, r in enumerate(tree.rounds[:-1])
    )


@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_speculation_takes_all_steps_from_the_draft_or_none(threshold):
  draft = searches.of_annotator(policy.Annotator(seed=1))
  target = searches.of_annotator(policy.Annotator(seed=2))
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
  same = searches.of_annotator(policy.Annotator(seed=1))
  (tree,) = engine.search(
    searches.PROBLEMS[:1],
    rules.Speculate(1.0),
    dict(draft=same, target=same),
    searches.verifier(),
  )
  ids = [policy.Annotator().encode(n.solution) for n in tree.nodes]
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

  return models.Policy(step, step)


def test_a_server_reads_once_what_the_other_policy_wrote():
  def score(asked):
    wrong = ("draft 1", "draft 3")
    return [
      schema.StepScores(tuple(0.1 if x in wrong else 0.9 for x in s.steps))
      for s in asked
    ]

  policies = dict(draft=_server("draft"), target=_server("target"))
  given = (rules.Speculate(0.5), policies, models.Verifier(score, "last"))
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


@pytest.mark.parametrize(
  ("chance", "confidence", "num"),
  [(0.5, 0.99, 7), (0.9, 0.99, 2), (0.99, 0.9, 1), (0.0, 0.99, 64)],
)
def test_n_is_so_many_that_one_is_right_with_the_confidence(
  chance, confidence, num
):
  logit = math.log(chance / (1 - chance)) if chance else -50.0
  rule = adaptive.AdaptiveBestOfN(
    *(1, 64, confidence), adaptive.Calibration(logit, 0.0)
  )
  assert rule.num_samples([0.0]) == num
  if 1 < num < 64:
    assert 1 - (1 - chance) ** num >= confidence
    assert 1 - (1 - chance) ** (num - 1) < confidence


def test_a_fitted_quantile_is_above_that_share_of_the_problems():
  random = np.random.default_rng(0)
  logits = random.normal(size=400) * 2
  chance = 1 / (1 + np.exp(-(0.5 + 0.7 * logits)))
  success = random.binomial(16, chance) / 16
  pilots = [[x, x] for x in logits.tolist()]
  previous = -math.inf
  for quantile in (0.1, 0.5, 0.9):
    found = adaptive.fit(pilots, success.tolist(), quantile=quantile)
    predicted = np.asarray([found.chance(p) for p in pilots])
    below = np.mean(success < predicted)
    assert abs(below - quantile) < 0.06
    assert found.slope > 0.3
    assert found.intercept > previous
    previous = found.intercept


def test_a_chance_is_finite_and_never_falls_with_the_score():
  limited = adaptive.Calibration(0.0, 1.0)
  assert limited.chance([1000.0, -3.0]) == limited.chance([10.0, -3.0])
  wrong_way = adaptive.fit([[-4.0], [-2.0], [2.0], [4.0]], [1.0, 1.0, 0.0, 0.0])
  assert wrong_way.slope == 0.0
  for success in (0.0, 1.0):  # and of pilots that are all equal
    found = adaptive.fit([[3.0], [3.0]], [success] * 2)
    assert (found.chance([3.0]) > 0.5) == bool(success)


def test_adaptive_draws_its_pilots_and_then_the_rest():
  rule = adaptive.AdaptiveBestOfN(2, 9, 0.9, adaptive.Calibration(-1.0, 1.0))
  sizes = set()
  for tree in searches.search(rule):
    pilots = [n.log_odds for n in tree.nodes[1:3]]
    assert len(tree.nodes) - 1 == rule.num_samples(pilots)
    assert len(tree.candidates) == len(tree.nodes) - 1
    sizes.add(len(tree.nodes))
  assert len(sizes) > 1


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
  found = answers.choose(tree)
  assert found["best"] == answers.Choice("3", 4)
  assert found["weighted"] == answers.Choice("2", 5)
  assert found["majority"].answer == "1"


def test_without_a_candidate_or_an_answer_there_is_none():
  none = answers.Choice(None, None)
  assert set(answers.choose(_tree()).values()) == {none}
  found = answers.choose(_tree((None, 0.0), (None, 1.0)))
  assert set(found.values()) == {answers.Choice(None, 2)}
  found = answers.choose(_tree((None, 3.0), ("1", 1.0)))
  assert found["best"] == answers.Choice(None, 1)
  assert found["majority"] == answers.Choice("1", 2)


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
    (lambda: engine.Limits(budget_tokens=0), "budget_tokens=0"),
    (lambda: rules.check_policies(rules.Speculate(), ["policy"]), "draft"),
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
  assert isinstance(searches.POLICY, models.Policy)


def test_a_solution_without_an_answer_is_not_accepted():
  rule = rules.AcceptFirst(0.0, 3, find_answer=lambda steps: None)
  for tree in searches.search(rule):
    assert (len(tree.nodes), tree.candidates) == (4, ())
