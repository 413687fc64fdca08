"""REBASE, particles, MCTS, adaptive best-of-n: which solutions get samples."""

import collections
import dataclasses
import math

import numpy as np
import pytest

from prm_jax.search import adaptive
from prm_jax.search import mcts
from prm_jax.search import particles
from prm_jax.search import resampling
from prm_jax.search import rules
from prm_jax.search import tree as tree_lib
from tests.search import searches


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
  shares = resampling.weights(nodes, temperature)
  assert shares.tolist() == [0.0, 0.0, 0.5, 0.5]


def test_particles_are_drawn_by_the_odds_of_their_scores():
  nodes = [
    tree_lib.Node(i, 0, str(i), searches.PROBLEMS[0], log_odds=x)
    for i, x in enumerate([math.log(1 / 3), 0.0, math.log(3)])
  ]
  shares = resampling.weights(nodes, 1.0)
  np.testing.assert_allclose(shares, np.array([1, 3, 9]) / 13)
  random = np.random.default_rng(0)
  for how in ("multinomial", "systematic"):
    drawn = collections.Counter(
      i
      for _ in range(500)
      for i in resampling.resample(shares, 26, random, how)
    )
    mean = [drawn[i] / 500 for i in range(3)]
    np.testing.assert_allclose(mean, [2, 6, 18], atol=0.3)
  for _ in range(20):
    systematic = resampling.resample(shares, 26, random, "systematic")
    assert np.bincount(systematic, minlength=3).tolist() == [2, 6, 18]


def test_each_problem_seed_and_round_has_random_numbers_of_its_own():
  trees = [tree_lib.begin(p, s) for p in searches.PROBLEMS for s in (0, 1)]
  trees += [tree_lib.grow(t, tree_lib.Round(), (), {}) for t in trees]
  assert len({tree.random().random() for tree in trees}) == len(trees) == 16


def test_multinomial_resampling_loses_a_third_of_equal_particles():
  random = np.random.default_rng(1)
  equal = np.full(64, 1 / 64)
  kept = [
    len(set(resampling.resample(equal, 64, random, "multinomial")))
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


def _pinball_loss(found, pilots, success):
  """Returns the mean loss of a calibration, one problem after another."""
  total = 0.0
  for row, share in zip(pilots, success, strict=True):
    over = found.chance(row) - share
    total += (1 - found.quantile) * over if over > 0 else -found.quantile * over
  return total / len(success)


# The errors of the shares at each score, in nats; 0 is their quantile.
ERRORS = {0.1: (0, 1, 1, 1, 1, 1), 0.3: (-1, 0, 0.5, 1), 0.6: (-2, -1, 0, 0.5)}


@pytest.mark.parametrize("quantile", ERRORS)
def test_a_planted_quantile_is_found_and_its_loss(quantile):
  planted = adaptive.Calibration(-0.5, 0.8, quantile)
  shifted = [
    dataclasses.replace(planted, intercept=planted.intercept + error)
    for error in ERRORS[quantile]
  ]
  scores = [[x - 1, x + 1] for x in np.linspace(-1, 4, 11).tolist()]
  pilots = [row for row in scores for _ in shifted]
  success = [other.chance(row) for row in scores for other in shifted]
  found = adaptive.fit(pilots, success, quantile=quantile)
  assert found.intercept == pytest.approx(-0.5, abs=1e-3)
  assert found.slope == pytest.approx(0.8, abs=1e-3)
  least = _pinball_loss(planted, pilots, success)
  assert least <= _pinball_loss(found, pilots, success) < least + 1e-5
  errors = np.subtract(success, [found.chance(row) for row in pilots])
  loss = adaptive._pinball(errors, quantile)
  assert loss == pytest.approx(_pinball_loss(found, pilots, success))


def test_more_updates_never_give_a_larger_loss():
  pilots, success = [[0.0], [0.0]], [0.4, 0.4]
  losses = [
    _pinball_loss(
      adaptive.fit(pilots, success, quantile=0.3, updates=updates),
      *(pilots, success),
    )
    for updates in range(1, 100)
  ]
  assert losses == sorted(losses, reverse=True)
  assert losses[-1] < 0.01 * losses[0]


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
