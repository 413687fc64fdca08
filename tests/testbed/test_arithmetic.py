"""The testbed's verifier is exact, its splits are apart, and luck exists."""

import dataclasses

import hostile_text
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.testbed import arithmetic

TASK = arithmetic.Task()
NEVER = dataclasses.replace(
  TASK, slip_times_hard=0.0, slip_times_easy=0.0, slip_shift=0.0
)
SEEDS = st.integers(0, 1_000)


def _random(seed=0):
  return np.random.default_rng(seed)


def _problem(seed) -> schema.Problem:
  return arithmetic.problems(1, "train", TASK, _random(seed))[0]


# --- The verifier -----------------------------------------------------------


def _moved(dial: int, word: str, n: int) -> int:
  """Turns a dial by hand, one position at a time."""
  if word in ("times", "by"):
    total = 0
    for _ in range(n):
      total = _moved(total, "up", dial)
    return total
  positions = list(range(arithmetic.POSITIONS))
  by = n if word in ("up", "plus") else -n
  for _ in range(abs(by)):
    positions = (
      positions[1:] + positions[:1]
      if by > 0
      else positions[-1:] + positions[:-1]
    )
  return positions[dial]


def _right_lines(problem: str) -> list[set[str]]:
  """The oracle: every text that is right as each line, told from the words."""
  signs = {"up": "+", "plus": "+", "back": "-", "minus": "-"}
  _, _, start, *words, _ = problem.split()
  dial, lines = int(start), []
  for word, number in zip(words[::2], words[1::2]):
    result = _moved(dial, word, int(number))
    line = f"{dial} {signs.get(word, '*')} {number} = {result}"
    lines.append({f"{first} {line}" for first in arithmetic.CONNECTIVES})
    dial = result
  return [*lines, {f"answer {dial}"}]


def _labels(problem: str, steps) -> list[float]:
  right = _right_lines(problem)
  return [
    float(k < len(right) and all(steps[i] in right[i] for i in range(k + 1)))
    for k in range(len(steps))
  ]


@given(seed=SEEDS)
def test_the_annotators_labels_are_those_of_the_oracle(seed):
  problem = _problem(seed)
  solution = arithmetic.solve(problem, _random(seed), TASK)
  judged = arithmetic.judge(solution)
  assert judged.labels == tuple(_labels(problem.problem, solution.steps))
  (answer,) = _right_lines(problem.problem)[-1]
  assert f"answer {problem.answer}" == answer
  assert judged.outcome == (solution.steps[-1] == answer)
  assert solution.steps[-1] == f"answer {judged.answer}"
  assert arithmetic.verifier([solution])[0].scores == judged.labels


@given(
  seed=SEEDS,
  edits=st.lists(
    st.tuples(
      st.integers(0, 7),
      st.sampled_from(["drop", "twice", "swap", "change"]),
      st.integers(0, 20),
      st.sampled_from(" 0123456789+-*=\n") | hostile_text.TEXT,
    ),
    max_size=3,
  ),
)
def test_damaged_solutions_are_labelled_as_by_the_oracle(seed, edits):
  problem = _problem(seed)
  steps = list(arithmetic.solve(problem, _random(seed)).steps)
  for line, edit, column, text in edits:
    k = line % len(steps)
    if edit == "drop" and len(steps) > 1:
      del steps[k]
    elif edit == "twice":
      steps.insert(k, steps[k])
    elif edit == "swap":
      steps[k], steps[k - 1] = steps[k - 1], steps[k]
    elif edit == "change":
      steps[k] = steps[k][:column] + text + steps[k][column + 1 :]
  labels = arithmetic.check(problem.problem, steps)
  assert labels == _labels(problem.problem, steps)
  assert labels == sorted(labels, reverse=True)


@given(seed=SEEDS, steps=st.lists(hostile_text.TEXT, max_size=6))
def test_any_text_is_judged_without_failing(seed, steps):
  problem = _problem(seed)
  solution = schema.Solution("a", problem.problem, tuple(steps))
  judged = arithmetic.judge(solution)
  assert judged.labels == tuple(_labels(problem.problem, steps))
  answers = {
    f"answer {digit}": str(digit) for digit in range(arithmetic.POSITIONS)
  }
  assert judged.answer == (answers.get(steps[-1]) if steps else None)
  assert judged.outcome == (judged.answer == problem.answer)


@given(
  problem=hostile_text.TEXT
  | st.lists(
    st.sampled_from(["Ann", "dials", "3", "up", "times", ".", "12", "٣"])
  ).map(" ".join)
)
def test_any_text_is_a_problem_or_is_refused_in_one_line(problem):
  try:
    _, turns = arithmetic.parse(problem)
  except errors.InputError as e:
    assert "is no dial problem" in str(e) and "\n" not in str(e)
    assert len(str(e)) < 200
  else:
    assert len(problem.split()) == 4 + 2 * len(turns)


@pytest.mark.parametrize(
  "steps, expected",
  [
    ((), None),
    (("answer 3",), "3"),
    (("answer 3", "so 1 + 1 = 2"), None),
    (("answer 12",), None),
    (("answer 3 ",), None),
    (("answer ٣",), None),
    (("answer 3\n",), None),
  ],
)
def test_the_final_answer_is_the_digit_of_a_closing_answer(steps, expected):
  assert arithmetic.stated(steps) == expected


def test_a_step_is_wrong_once_an_earlier_one_was_even_if_it_is_right_alone():
  problem = "Ann dials 2 up 1 times 4 ."
  right = arithmetic.turn(3, "*", 4)
  # Another value that times 4 takes to the same place.
  value = next(
    x
    for x in range(arithmetic.POSITIONS)
    if x != 3 and arithmetic.turn(x, "*", 4) == right
  )
  line = f"so 2 + 1 = {value}"
  lucky = (line, f"now {value} * 4 = {right}", f"answer {right}")
  assert arithmetic.check(problem, lucky) == [0, 0, 0]
  back = (line, f"now 3 * 4 = {right}", f"answer {right}")
  assert arithmetic.check(problem, back) == [0, 0, 0]
  assert arithmetic.check(problem, ("so 2 + 1 = 3", *back[1:])) == [1, 1, 1]
  assert arithmetic.judge(schema.Solution("a", problem, lucky)).outcome is True


# --- Solutions --------------------------------------------------------------


@given(seed=SEEDS)
def test_right_solutions_are_all_right(seed):
  problem = _problem(seed)
  for task in (None, NEVER):
    judged = arithmetic.judge(arithmetic.solve(problem, _random(seed), task))
    assert set(judged.labels) == {1.0}
    assert judged.outcome is True and judged.answer == problem.answer


def test_right_solutions_are_varied():
  problem = _problem(0)
  texts = {arithmetic.solve(problem, _random(i)).steps for i in range(50)}
  assert len(texts) == 50


@given(seed=SEEDS)
def test_the_annotator_carries_on_from_its_own_value(seed):
  steps = arithmetic.solve(_problem(seed), _random(seed), TASK).steps
  results = [step[-1] for step in steps[:-1]]
  assert [step.split()[1] for step in steps[1:-1]] == results[:-1]
  assert steps[-1] == f"answer {results[-1]}"


def _annotated(task, number):
  """Yields (value, sign, n, result) of every line that an annotator writes."""
  random = _random()
  for problem in arithmetic.problems(number, "train", task, random):
    for step in arithmetic.solve(problem, random, task).steps[:-1]:
      _, value, sign, n, _, result = step.split()
      yield int(value), sign, int(n), int(result)


def test_the_annotator_slips_as_often_as_the_task_says():
  rates = {"slip_times_hard": 0.5, "slip_times_easy": 0.3, "slip_shift": 0.2}
  task = dataclasses.replace(TASK, confusion=0.6, **rates)
  slips = {name: [] for name in rates}
  for value, sign, n, result in _annotated(task, 1_500):
    hard = "slip_times_hard" if n >= task.hard_from else "slip_times_easy"
    right = arithmetic.turn(value, sign, n)
    other = arithmetic.turn(value, {"*": "+", "+": "-", "-": "+"}[sign], n)
    if right != other:  # 2 + 2 is 2 * 2: no one can tell.
      name = hard if sign == "*" else "slip_shift"
      slips[name].append((result == other, result != right))
  for name, rate in rates.items():
    confused, wrong = np.mean(slips[name], axis=0)
    # A position at random is now and then the confused one, or right.
    chance = 1 / arithmetic.POSITIONS
    assert confused == pytest.approx(rate * (0.6 + 0.4 * chance), abs=0.05)
    assert wrong == pytest.approx(rate * (1 - 0.4 * chance), abs=0.05)


def test_lucky_answers_exist_and_so_do_wrong_ones():
  random = _random()
  judged = [
    arithmetic.judge(arithmetic.solve(p, random, TASK))
    for p in arithmetic.problems(400, "train", TASK, random)
  ]
  wrong_steps = [s for s in judged if 0.0 in s.labels]
  lucky = [s for s in wrong_steps if s.outcome]
  assert 0.3 < len(wrong_steps) / 400 < 0.95
  assert 0.03 < len(lucky) / len(wrong_steps) < 0.4
  assert all(s.outcome for s in judged if 0.0 not in s.labels)


# --- Problems ---------------------------------------------------------------


def test_splits_differ_in_start_or_turns_whatever_the_words():
  keys = {}
  for split in arithmetic.SPLITS:
    made = arithmetic.problems(200, split, TASK, _random())
    assert len(made) == len({p.id for p in made}) == 200
    keys[split] = {repr(arithmetic.parse(p.problem)) for p in made}
    assert len(keys[split]) == 200
    for p in made:
      other = p.problem.replace(p.problem.split()[0], "Zoe")
      for words in arithmetic.WORDS.values():
        other = other.replace(*words)
      assert arithmetic.split_of(other) == split
      assert arithmetic.answer(other) == p.answer
      turns = arithmetic.parse(p.problem)[1]
      assert TASK.min_turns <= len(turns) <= TASK.max_turns
  assert not keys["train"] & keys["test"]
  assert not keys["train"] & keys["validation"]
  assert not keys["validation"] & keys["test"]


def test_a_tenth_of_all_problems_is_for_testing_and_one_for_validation():
  splits = [
    arithmetic.split_of(f"Ann dials {a} up {b} times {c} back {d} .")
    for a in range(arithmetic.POSITIONS)
    for b in range(10)
    for c in range(10)
    for d in range(10)
  ]
  for split, share in (("train", 0.8), ("validation", 0.1), ("test", 0.1)):
    assert splits.count(split) / len(splits) == pytest.approx(share, abs=0.015)


def test_problems_are_a_function_of_the_random_numbers():
  one, same = (
    arithmetic.problems(20, "test", TASK, _random(3)) for _ in range(2)
  )
  assert one == same
  assert one != arithmetic.problems(20, "test", TASK, _random(4))


def test_more_problems_than_there_are_is_one_line():
  task = arithmetic.Task(min_turns=0, max_turns=0)
  starts = [
    arithmetic.split_of(f"Ann dials {i} .") for i in range(arithmetic.POSITIONS)
  ]
  there = starts.count("train")
  assert len(arithmetic.problems(there, "train", task, _random())) == there
  with pytest.raises(errors.InputError, match=f"and {there} were found"):
    arithmetic.problems(there + 1, "train", task, _random())
  with pytest.raises(errors.InputError, match="split='dev': expected one of"):
    arithmetic.problems(1, "dev", TASK, _random())


@pytest.mark.parametrize(
  "fields",
  [
    {"min_turns": 3, "max_turns": 2},
    {"min_turns": -1},
    {"times": (2, 10)},
    {"shifts": ()},
  ],
)
def test_a_task_that_its_verifier_could_not_judge_is_refused(fields):
  with pytest.raises(errors.InputError, match="task: "):
    dataclasses.replace(TASK, **fields)


@pytest.mark.parametrize(
  "name",
  [
    *("slip_times_hard", "slip_times_easy", "slip_shift"),
    *("times_share", "confusion"),
  ],
)
def test_a_rate_outside_0_to_1_is_refused(name):
  for value in (0, 1):
    arithmetic.Task(**{name: value})
  for value in (-0.1, 1.1, float("nan")):
    with pytest.raises(errors.InputError, match=rf"task\.{name}={value}"):
      arithmetic.Task(**{name: value})
