"""Monte-Carlo labels are shares of right ends, each prefix rolled out once."""

import dataclasses
import itertools

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from prm_jax import arithmetic
from prm_jax import schema
from prm_jax.data import encode
from prm_jax.labelling import monte_carlo

PROBLEM = "Ann dials 2 up 1 times 4 back 3 ."


def _steps(first: int) -> tuple[str, ...]:
  """Returns the steps from what the first one says on, without a slip."""
  product = arithmetic.turn(first, "*", 4)
  last = arithmetic.turn(product, "-", 3)
  return (
    f"so 2 + 1 = {first}",
    f"now {first} * 4 = {product}",
    f"ok {product} - 3 = {last}",
    f"answer {last}",
  )


RIGHT = _steps(3)
LUCKY, *_ = (
  _steps(x)
  for x in range(arithmetic.POSITIONS)
  if x != 3 and _steps(x)[-1] == RIGHT[-1]
)
WRONG = _steps(4)


def _solution(steps, problem=PROBLEM, **fields):
  return schema.Solution("a", problem, tuple(steps), **fields)


def _finish(prefix: schema.Solution) -> schema.Solution:
  """Carries on without a slip from the value that the prefix ends in."""
  start, turns = arithmetic.parse(prefix.problem)
  value = int(prefix.steps[-1][-1]) if prefix.steps else start
  steps = list(prefix.steps)
  for sign, n in turns[len(steps) :]:
    result = arithmetic.turn(value, sign, n)
    steps.append(f"so {value} {sign} {n} = {result}")
    value = result
  if len(steps) == len(turns):
    steps.append(f"answer {value}")
  return dataclasses.replace(prefix, steps=tuple(steps))


def _exact(prefixes, n):
  return [[_finish(prefix)] * n for prefix in prefixes]


def _is_right(solution):
  return arithmetic.judge(solution).outcome


@given(seed=st.integers(0, 500), completions=st.integers(1, 3))
def test_a_right_prefix_is_worth_1_to_a_completer_without_slips(
  seed, completions
):
  random = np.random.default_rng(seed)
  (problem,) = arithmetic.problems(1, "train", arithmetic.Task(), random)
  solution = arithmetic.solve(problem, random, arithmetic.Task())
  (labelled,), _ = monte_carlo.label([solution], _exact, _is_right, completions)
  exact = arithmetic.check(problem.problem, solution.steps)
  for value, right in zip(labelled.labels, exact, strict=True):
    assert value == 1 or not right
    # Without slips all that follows a wrong step is lucky or isn't.
    assert value in (0, 1)
  assert labelled.steps == solution.steps and labelled.id == solution.id
  assert labelled.labels[-1] == float(_is_right(solution))


def test_a_lucky_wrong_prefix_is_worth_more_than_0():
  """It is promising, not right: what the demo's Monte-Carlo PRM suffers."""
  labelled, _ = monte_carlo.label(
    [_solution(s) for s in (RIGHT, LUCKY, WRONG)], _exact, _is_right, 2
  )
  assert [s.labels for s in labelled] == [
    (1, 1, 1, 1),
    (1, 1, 1, 1),
    (0, 0, 0, 0),
  ]
  assert arithmetic.check(PROBLEM, LUCKY) == [0, 0, 0, 0]


@given(
  rights=st.lists(
    st.lists(st.booleans(), min_size=4, max_size=4), min_size=3, max_size=3
  ),
  last=st.booleans(),
)
def test_a_value_is_the_share_of_right_completions(rights, last):
  table = {RIGHT[: k + 1]: row for k, row in enumerate(rights)}

  def generate(prefixes, n):
    return [
      [
        dataclasses.replace(p, steps=(*p.steps, f"{p.steps}{i}{right}"))
        for i, right in enumerate(table[p.steps][:n])
      ]
      for p in prefixes
    ]

  def is_right(solution):
    return last if solution.steps == RIGHT else "True" in solution.steps[-1]

  (labelled,), _ = monte_carlo.label([_solution(RIGHT)], generate, is_right, 4)
  shares = [sum(row) / 4 for row in rights]
  assert labelled.labels == (*shares, float(last))


@given(
  chosen=st.lists(
    st.tuples(
      st.sampled_from([RIGHT, LUCKY, WRONG]), st.integers(0, 4), st.booleans()
    ),
    max_size=8,
  )
)
def test_equal_prefixes_of_a_problem_are_rolled_out_once(chosen):
  other = PROBLEM.replace("Ann", "Ben")
  solutions = [
    _solution(steps[:n], problem=other if swap else PROBLEM)
    for steps, n, swap in chosen
  ]
  asked = []

  def generate(prefixes, n):
    asked.extend((p.problem, *p.steps) for p in prefixes)
    return _exact(prefixes, n)

  labelled, work = monte_carlo.label(solutions, generate, _is_right, 3)
  wanted = [
    (s.problem, *s.steps[:k]) for s in solutions for k in range(1, len(s.steps))
  ]
  assert sorted(asked) == sorted(set(wanted))
  assert work == {
    "prefixes": len(wanted),
    "distinct_prefixes": len(set(wanted)),
    "rollouts": 3 * len(set(wanted)),
  }
  assert [s.steps for s in labelled] == [s.steps for s in solutions]
  # Alike prefixes get alike values.
  for a, b in itertools.combinations(labelled, 2):
    for k in range(min(len(a.steps), len(b.steps)) - 1):
      if (a.problem, *a.steps[: k + 1]) == (b.problem, *b.steps[: k + 1]):
        assert a.labels[k] == b.labels[k]


def test_a_prefix_knows_nothing_of_the_whole_solution():
  known = {
    "labels": (1.0,) * 4,
    "ratings": (1,) * 4,
    "answer": "1",
    "outcome": True,
  }
  seen = []

  def generate(prefixes, n):
    seen.extend(prefixes)
    return _exact(prefixes, n)

  monte_carlo.label([_solution(RIGHT, **known)], generate, _is_right, 1)
  assert len(seen) == 3
  for prefix in seen:
    assert prefix.problem == PROBLEM
    for name in known:
      assert getattr(prefix, name) is None


def test_monte_carlo_labels_are_what_training_reads_even_of_rated_solutions():
  rated = _solution(WRONG, ratings=(1, 1, 1, 1), labels=(1.0,) * 4)
  (labelled,), _ = monte_carlo.label([rated], _exact, _is_right, 1)
  keep = encode.LabelPolicy(after_first_error="keep")
  assert encode.step_labels(labelled, keep) == [0, 0, 0, 0]
  assert labelled.source == "monte_carlo"


def test_solutions_of_no_or_one_step_take_no_rollouts():
  labelled, work = monte_carlo.label(
    [_solution(()), _solution(RIGHT[-1:])], _exact, _is_right, 5
  )
  assert [s.labels for s in labelled] == [(), (1.0,)]
  assert work["rollouts"] == 0


def test_a_generator_that_gives_too_few_is_an_error():
  with pytest.raises(ValueError, match="a: 2 completions instead of 3"):
    monte_carlo.label(
      [_solution(RIGHT)], lambda p, n: _exact(p, n - 1), _is_right, 3
    )


@pytest.mark.parametrize("stop_at_zero", [False, True])
def test_progress_reaches_the_number_of_distinct_prefixes(stop_at_zero):
  solutions = [_solution(RIGHT), _solution(WRONG), _solution(RIGHT[:2])]
  told = []
  monte_carlo.label(
    solutions,
    _exact,
    _is_right,
    2,
    stop_at_zero=stop_at_zero,
    progress=told.append,
  )
  assert monte_carlo.num_prefixes(solutions) == 6
  # Prefixes of one length at a time; those behind a zero count as settled.
  assert told == ([2, 4, 6] if stop_at_zero else [6])


def test_stopping_at_zero_saves_the_rollouts_behind_and_changes_no_label():
  solutions = [_solution(RIGHT), _solution(LUCKY), _solution(WRONG)]
  full, work = monte_carlo.label(solutions, _exact, _is_right, 2)
  short, less = monte_carlo.label(
    solutions, _exact, _is_right, 2, stop_at_zero=True
  )
  for a, b in zip(full, short, strict=True):
    end = a.labels.index(0.0) + 1 if 0.0 in a.labels else len(a.labels)
    assert b.labels == a.labels[:end] + (None,) * (len(a.labels) - end)
  assert less["rollouts"] < work["rollouts"]
  assert less["distinct_prefixes"] == work["distinct_prefixes"]
