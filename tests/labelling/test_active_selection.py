"""What is chosen for labelling: the mistakes that the model is surest of."""

from collections import Counter
import dataclasses

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.labelling import active_selection
from prm_jax.labelling import select
from prm_jax.labelling.active_selection import Budget


def _at_random(pool, score, budget, **options):
  del score
  return active_selection.at_random(pool, budget, **options)


HOW = (active_selection.most_convincing, _at_random)


def _pool(count, num_problems=3, seed=0):
  random = np.random.default_rng(seed)
  return [
    schema.Solution(
      f"s{i}",
      f"p{random.integers(num_problems)}",
      ("a", "b"),
      outcome=(True, False, None)[random.integers(3)],
      # Coarse, so that there are ties.
      extra=dict(scores=random.integers(1, 5, 2) / 4),
    )
    for i in range(count)
  ]


def _score(solutions):
  return [schema.StepScores(tuple(s.extra["scores"])) for s in solutions]


def _never(solutions):
  raise AssertionError("there is nothing to score")


def _ids(found):
  return [s.id for s in found[0]]


def test_of_each_problem_4_of_5_are_convincing_wrong_answers():
  """Let's Verify Step by Step, section 4.2, by hand."""

  def solution(name, outcome, score):
    extra = dict(scores=[1.0, score])
    return schema.Solution(name, "p", ("a", "b"), outcome=outcome, extra=extra)

  pool = [
    solution("right, sure", True, 0.95),
    solution("wrong, 4th", False, 0.3),
    solution("wrong, 1st", False, 0.9),
    solution("wrong, 5th", False, 0.2),
    solution("right, unsure", True, 0.1),
    solution("wrong, 2nd", False, 0.8),
    solution("unknown", None, 0.99),
    solution("wrong, 3rd", False, 0.7),
  ]
  chosen, counts = active_selection.most_convincing(
    pool, _score, Budget(per_problem=5)
  )
  reasons = {s.id: s.extra["selected"] for s in chosen}
  assert reasons == {
    "wrong, 4th": "convincing_wrong",
    "wrong, 1st": "convincing_wrong",
    "wrong, 2nd": "convincing_wrong",
    # Of the rest the most convincing one, whatever its answer: here nobody
    # knows whether that is right, so it isn't one of the wrong ones.
    "unknown": "convincing_rest",
    "wrong, 3rd": "convincing_wrong",
  }
  assert counts == dict(
    pool=8,
    outcome_unknown=1,
    chosen=5,
    convincing_wrong=4,
    convincing_rest=1,
    answer_wrong=4,
    answer_unknown=1,
    problems=1,
  )
  assert [s.extra["selection_score"] for s in chosen] == [
    *(0.3, 0.9, 0.8, 0.99, 0.7)
  ]


def test_convincing_is_by_log_odds_where_probabilities_are_all_1():
  pool = _pool(6, seed=0)
  logits = {s.id: 18.0 + (7 * i) % 6 for i, s in enumerate(pool)}

  def score(solutions):
    return [
      schema.StepScores(
        (1.0,) * len(s.steps), logits=(logits[s.id],) * len(s.steps)
      )
      for s in solutions
    ]

  surest = max(logits, key=logits.__getitem__)
  for how in ("product", "min"):
    chosen, _ = active_selection.most_convincing(
      pool, score, Budget(total=1), wrong_share=0.0, aggregate=how
    )
    assert [s.id for s in chosen] == [surest]
    assert chosen[0].extra["selection_score"] == 1.0


def _oracle(pool, n, share):
  """Returns the ids by taking the best of what is left, again and again."""
  left, out = list(pool), set()

  def take(candidates):
    def value(s):
      return (-float(np.prod(s.extra["scores"])), s.id)

    best = min(candidates, key=value)
    left.remove(best)
    out.add(best.id)

  for _ in range(int(share * n + 0.5)):
    wrong = [s for s in left if s.outcome is False]
    if wrong:
      take(wrong)
  while left and len(out) < n:
    take(left)
  return out


@given(
  count=st.integers(0, 30),
  seed=st.integers(0, 99),
  n=st.integers(1, 12),
  share=st.sampled_from([0.0, 0.5, 0.8, 1.0]),
)
def test_it_takes_what_a_greedy_hand_would_take(count, seed, n, share):
  pool = _pool(count, seed=seed)
  overall = active_selection.most_convincing(
    pool, _score, Budget(total=n), wrong_share=share
  )
  assert set(_ids(overall)) == _oracle(pool, n, share)
  each = active_selection.most_convincing(
    pool, _score, Budget(per_problem=n), wrong_share=share
  )
  of_problem = [
    _oracle([s for s in pool if s.problem == p], n, share)
    for p in {s.problem for s in pool}
  ]
  assert set(_ids(each)) == set().union(*of_problem)


@given(
  seed=st.integers(0, 99),
  total=st.integers(1, 30) | st.none(),
  per_problem=st.integers(1, 9),
  order=st.randoms(use_true_random=False),
)
@pytest.mark.parametrize("how", HOW)
def test_the_budget_holds_and_the_pools_order_changes_nothing(
  how, seed, total, per_problem, order
):
  pool = _pool(25, num_problems=5, seed=seed)
  budget = Budget(total, per_problem)
  chosen, counts = how(pool, _score, budget, seed=seed)
  places = [s.id for s in pool]
  ids = [s.id for s in chosen]
  assert ids == sorted(ids, key=places.index)
  sizes = Counter(s.problem for s in pool)
  most = sum(min(n, per_problem) for n in sizes.values())
  assert len(ids) == most if total is None else len(ids) == min(total, most)
  of_problem = Counter(s.problem for s in chosen)
  assert max(of_problem.values()) <= per_problem
  # At most one problem is cut short by the budget.
  short = [p for p, n in of_problem.items() if n < min(sizes[p], per_problem)]
  assert len(short) <= 1
  shuffled = list(pool)
  order.shuffle(shuffled)
  again = how(shuffled, _score, budget, seed=seed)
  assert set(_ids(again)) == set(ids) and again[1] == counts


@given(seed=st.integers(0, 30))
def test_both_ways_ask_about_the_same_problems(seed):
  pool = _pool(60, num_problems=20)
  budget = Budget(total=10, per_problem=1)
  active, at_random = (
    Counter(s.problem for s in how(pool, _score, budget, seed=seed)[0])
    for how in HOW
  )
  assert active == at_random and len(active) == 10


@pytest.mark.parametrize("how", HOW)
def test_the_seed_draws_the_problems_that_the_budget_reaches(how):
  pool = _pool(60, num_problems=8)
  drawn = Counter(
    s.problem
    for seed in range(200)
    for s in how(pool, _score, Budget(2, per_problem=1), seed=seed)[0]
  )
  # 50 of each, with a standard deviation of 6.1.
  assert len(drawn) == 8 and all(abs(n - 50) < 25 for n in drawn.values())


@pytest.mark.parametrize("how", HOW)
def test_what_is_labelled_or_has_no_step_is_left_out_and_counted(how):
  pool = _pool(12)
  pool[3] = dataclasses.replace(pool[3], steps=())
  exclude = {"s0", "s7", "not here"}
  chosen, counts = how(pool, _score, Budget(total=99), exclude=exclude)
  assert not {s.id for s in chosen} & {"s0", "s3", "s7"}
  assert counts["labelled_already"] == 2 and counts["no_steps"] == 1
  assert counts["chosen"] == len(chosen) == 9


def test_random_choice_is_even_and_asks_no_model():
  pool = _pool(10, num_problems=1)
  drawn = Counter(
    id_
    for seed in range(400)
    for id_ in _ids(
      active_selection.at_random(pool, Budget(total=3), seed=seed)
    )
  )
  # 120 of each, with a standard deviation of 9.2.
  assert all(abs(drawn[s.id] - 120) < 40 for s in pool)


def test_a_larger_pool_leaves_the_order_of_the_others():
  pool = _pool(40, num_problems=1)
  few = _ids(active_selection.at_random(pool[:20], Budget(total=6)))
  many = _ids(active_selection.at_random(pool, Budget(total=6)))
  assert [i for i in many if int(i[1:]) < 20] == [i for i in few if i in many]


@pytest.mark.parametrize("given", [{}, dict(total=0), dict(per_problem=-1)])
def test_a_budget_of_nothing_is_refused(given):
  with pytest.raises(errors.InputError, match="`total`"):
    Budget(**given)


def test_a_share_or_a_score_that_cant_be_is_refused():
  pool, budget = _pool(3), Budget(total=1)
  with pytest.raises(errors.InputError, match=r"wrong_share=1\.5"):
    select.Select(budget=1, wrong_share=1.5)
  with pytest.raises(errors.InputError, match="'s0': its score is NaN"):
    active_selection.most_convincing(
      pool, lambda s: [schema.StepScores((float("nan"),))] * len(s), budget
    )
