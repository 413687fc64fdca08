"""What functions and servers return is taken if it is right, else refused."""

import math

import hypothesis
from hypothesis import strategies as st
from jax import numpy as jnp
import numpy as np
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.scoring import score_checks

SOLUTIONS = [
  schema.Solution("a", "p", ("one", "two")),
  schema.Solution("b", "p", ()),
  schema.Solution("c", "p", ("three",)),
]
GOOD = [[0.25, 1], [], [0.0]]


@pytest.mark.parametrize(
  "rows",
  [
    GOOD,
    tuple(map(tuple, GOOD)),
    [np.asarray(row) for row in GOOD],
    [np.asarray(row, np.float16) for row in GOOD],
    [jnp.asarray(row, jnp.bfloat16) for row in GOOD],
    [[np.float32(x) for x in row] for row in GOOD],
    [schema.StepScores(tuple(row)) for row in GOOD],
    np.array([np.array(row) for row in GOOD], object),
  ],
  ids=lambda x: type(x[0]).__name__,
)
def test_scores_may_be_lists_arrays_or_step_scores(rows):
  scores = score_checks.step_scores(rows, SOLUTIONS, "f")
  assert [list(row.scores) for row in scores] == GOOD
  assert all(type(x) in (float, int) for row in scores for x in row.scores)


def test_step_scores_keep_their_logits_and_what_was_judged():
  row = schema.StepScores((0.5, 0.5), (0.0, 0.0), judged=(True, False))
  assert score_checks.step_scores([row], SOLUTIONS[:1], "f") == [row]


@hypothesis.settings(max_examples=50)
@hypothesis.given(
  st.lists(st.lists(st.floats(0, 1), max_size=4), max_size=4),
)
def test_scores_come_back_unchanged(rows):
  solutions = [
    schema.Solution(str(i), "p", ("x",) * len(row))
    for i, row in enumerate(rows)
  ]
  scores = score_checks.step_scores(rows, solutions, "f")
  assert [list(row.scores) for row in scores] == rows


BAD_SCORES = (-1e-9, 1.0001, math.nan, math.inf, True, "0.5", None, [0.5])
BAD_SCORES += (1j, np.bool_(True), np.asarray([0.5]), np.nan, 10**400)


@pytest.mark.parametrize("bad", BAD_SCORES, ids=str)
def test_a_score_that_is_no_probability_is_refused_by_its_step(bad):
  with pytest.raises(errors.InputError) as caught:
    score_checks.step_scores([[0.5, bad], [], [0.5]], SOLUTIONS, "f")
  assert str(caught.value).startswith(
    "f: the score of step 2 of solution 'a' is"
  )
  assert "\n" not in str(caught.value)
  row = schema.StepScores((0.5, bad))
  with pytest.raises(errors.InputError, match="step 2 of solution 'a'"):
    score_checks.step_scores([row, [], [0.5]], SOLUTIONS, "f")


@pytest.mark.parametrize(
  ("rows", "said"),
  [
    (None, "f: returned None; expected a list with the step scores of each s"),
    ("abc", "f: returned 'abc'; expected a list"),
    (dict(a=1, b=2, c=3), "f: returned {'a': 1"),
    (iter(GOOD), "f: returned <list_itera"),
    (np.float64(1), "f: returned "),
    (GOOD[:2], "f: returned 2 entries for 3 solutions"),
    ([*GOOD, []], "f: returned 4 entries for 3 solutions"),
    ([[0.5], [], [0.5]], "f: 1 scores for the 2 steps of solution 'a'"),
    ([[0.5] * 3, [], [0.5]], "f: 3 scores for the 2 steps of solution 'a'"),
    ([[0.5] * 2, [0.5], [0.5]], "f: 1 scores for the 0 steps of solution 'b'"),
    ([0.5, 0.5, 0.5], "f: returned 0.5 for solution 'a'; expected a list"),
    (["ab", "", "c"], "f: returned 'ab' for solution 'a'"),
  ],
)
def test_rows_of_another_number_or_form_are_refused(rows, said):
  with pytest.raises(errors.InputError) as caught:
    score_checks.step_scores(rows, SOLUTIONS, "f")
  assert str(caught.value).startswith(said)


@pytest.mark.parametrize("values", [[-7, 1e9, 0.5], np.array([-7, 1e9, 0.5])])
def test_an_outcome_reward_is_any_finite_number(values):
  rewards = score_checks.outcome_rewards(values, SOLUTIONS, "f")
  assert rewards == [-7, 1e9, 0.5]
  assert all(type(x) is float for x in rewards)


@pytest.mark.parametrize("bad", (math.nan, -math.inf, True, None, "1"), ids=str)
def test_an_outcome_reward_that_isnt_finite_is_refused_by_its_solution(bad):
  with pytest.raises(errors.InputError, match=r"f: the reward of solution 'b'"):
    score_checks.outcome_rewards([1.0, bad, 2.0], SOLUTIONS, "f")
  with pytest.raises(errors.InputError, match="2 entries for 3 solutions"):
    score_checks.outcome_rewards([1.0, 2.0], SOLUTIONS, "f")


def test_a_verdict_is_true_false_or_none():
  verdicts = score_checks.verdicts(
    [True, None, np.bool_(False)], SOLUTIONS, "f"
  )
  assert verdicts == [True, None, False]
  assert type(verdicts[2]) is bool
  assert score_checks.verdicts(np.ones(3, bool), SOLUTIONS, "f") == [True] * 3


@pytest.mark.parametrize("bad", (1, 0.0, "yes", [True]), ids=str)
def test_another_verdict_is_refused_by_its_solution(bad):
  with pytest.raises(errors.InputError, match="f: the verdict on solution 'b'"):
    score_checks.verdicts([True, bad, False], SOLUTIONS, "f")
  with pytest.raises(errors.InputError, match="1 entries for 3 solutions"):
    score_checks.verdicts([True], SOLUTIONS, "f")


def test_a_checked_function_is_checked_at_each_call():
  replies = [[[0.5, 0.5], [], [0.5]], [[2.0, 0.5], [], [0.5]]]
  score = score_checks.scoring(lambda _: replies.pop(0), "f")
  assert len(score(SOLUTIONS)) == 3
  with pytest.raises(errors.InputError, match=r"is 2\.0"):
    score(SOLUTIONS)
