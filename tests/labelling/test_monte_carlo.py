"""Monte-Carlo labels are shares of right ends, each prefix rolled out once."""

from collections import Counter
import dataclasses
import hashlib
import itertools

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.labelling import monte_carlo
from prm_jax.testbed import arithmetic
from prm_jax.text import encoding
from prm_jax.text import messages

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


def _verify(solutions):
  return [_is_right(s) for s in solutions]


def _options(completions, **fields):
  return monte_carlo.Options(completions, **fields)


@given(seed=st.integers(0, 500), completions=st.integers(1, 3))
def test_a_right_prefix_is_worth_1_to_a_completer_without_slips(
  seed, completions
):
  random = np.random.default_rng(seed)
  (problem,) = arithmetic.problems(1, "train", arithmetic.Task(), random)
  solution = arithmetic.solve(problem, random, arithmetic.Task())
  (labelled,), _ = monte_carlo.label(
    [solution], _exact, _verify, _options(completions)
  )
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
    [_solution(s) for s in (RIGHT, LUCKY, WRONG)], _exact, _verify, _options(2)
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

  def verify(solutions):
    return [
      last if s.steps == RIGHT else "True" in s.steps[-1] for s in solutions
    ]

  (labelled,), _ = monte_carlo.label(
    [_solution(RIGHT)], generate, verify, _options(4)
  )
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

  labelled, work = monte_carlo.label(solutions, generate, _verify, _options(3))
  wanted = [
    (s.problem, *s.steps[:k]) for s in solutions for k in range(1, len(s.steps))
  ]
  assert sorted(asked) == sorted(set(wanted))
  assert {name: n for name, n in work.items() if n} == {
    name: n
    for name, n in (
      ("prefixes", len(wanted)),
      ("distinct_prefixes", len(set(wanted))),
      ("rollouts", 3 * len(set(wanted))),
      ("tokens_unknown", 3 * len(set(wanted))),
    )
    if n
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

  # What a sampler said of the whole isn't true of the prefix either.
  extra = {"num_tokens": 12, "ended": True, "values": [1.0] * 4, "level": 3}
  monte_carlo.label(
    [_solution(RIGHT, extra=extra, **known)], generate, _verify, _options(1)
  )
  assert len(seen) == 3
  for prefix in seen:
    assert prefix.problem == PROBLEM
    for name in known:
      assert getattr(prefix, name) is None
    assert prefix.extra == {"level": 3}


def test_monte_carlo_labels_are_what_training_reads_even_of_rated_solutions():
  rated = _solution(WRONG, ratings=(1, 1, 1, 1), labels=(1.0,) * 4)
  (labelled,), _ = monte_carlo.label([rated], _exact, _verify, _options(1))
  keep = encoding.LabelPolicy(after_first_error="keep")
  assert encoding.step_labels(labelled, keep) == [0, 0, 0, 0]
  assert labelled.source == "monte_carlo"


def test_solutions_of_no_or_one_step_take_no_rollouts():
  labelled, work = monte_carlo.label(
    [_solution(()), _solution(RIGHT[-1:])], _exact, _verify, _options(5)
  )
  assert [s.labels for s in labelled] == [(), (1.0,)]
  assert work["rollouts"] == 0


@pytest.mark.parametrize(
  ("generate", "verify", "message"),
  [
    (lambda p, n: _exact(p, n - 1), _verify, "#0: 2 completions instead of 3"),
    (lambda p, n: _exact(p[1:], n), _verify, "of 2 prefixes, not 3"),
    (_exact, lambda s: _verify(s)[1:], "8 verdicts on 9 solutions"),
  ],
)
def test_functions_that_give_another_number_are_an_error(
  generate, verify, message
):
  with pytest.raises(ValueError, match=message):
    monte_carlo.label([_solution(RIGHT)], generate, verify, _options(3))


@pytest.mark.parametrize("stop_at_zero", [False, True])
def test_progress_reaches_the_number_of_distinct_prefixes(stop_at_zero):
  solutions = [_solution(RIGHT), _solution(WRONG), _solution(RIGHT[:2])]
  told = []
  _, work = monte_carlo.label(
    solutions,
    _exact,
    _verify,
    _options(2, stop_at_zero=stop_at_zero),
    progress=told.append,
  )
  assert work["distinct_prefixes"] == monte_carlo.num_prefixes(solutions) == 6
  # Prefixes of one length at a time; those behind a zero count as settled.
  assert told == ([2, 4, 6] if stop_at_zero else [6])


def test_stopping_at_zero_saves_the_rollouts_behind_and_changes_no_label():
  solutions = [_solution(RIGHT), _solution(LUCKY), _solution(WRONG)]
  full, work = monte_carlo.label(solutions, _exact, _verify, _options(2))
  short, less = monte_carlo.label(
    solutions, _exact, _verify, _options(2, stop_at_zero=True)
  )
  for a, b in zip(full, short, strict=True):
    end = a.labels.index(0.0) + 1 if 0.0 in a.labels else len(a.labels)
    assert b.labels == a.labels[:end] + (None,) * (len(a.labels) - end)
  assert less["rollouts"] < work["rollouts"]
  assert less["rollouts_saved"] == work["rollouts"] - less["rollouts"]
  assert less["distinct_prefixes"] == work["distinct_prefixes"]


# --- Rounds, hard labels, early stopping --------------------------------------


def _lucky(seed: int, share: float = 0.5, untold: float = 0.0):
  """Returns a Generate and a Verify of rollouts that end by luck.

  As a Generate must, it knows nothing but the seed, the prefix and the number
  of the sample.
  """

  def generate(prefixes, n):
    return [
      [
        dataclasses.replace(
          p, steps=(*p.steps, _rng_words(f"{seed} {p.id} {p.steps} {j}"))
        )
        for j in range(n)
      ]
      for p in prefixes
    ]

  def _rng_words(text):
    draw = int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 2**32
    if draw < untold:
      return "untold"
    return "right" if draw < untold + (1 - untold) * share else "wrong"

  def verify(solutions):
    verdicts = dict(right=True, wrong=False, untold=None)
    return [verdicts.get(s.steps[-1], True) for s in solutions]

  return generate, verify


def _long(num_steps: int, name: str = "a") -> schema.Solution:
  steps = tuple(f"{name}{k}" for k in range(num_steps))
  return schema.Solution(name, "How many?", steps)


@given(
  seed=st.integers(0, 1_000),
  share=st.sampled_from([0.05, 0.3, 0.7, 1.0]),
  untold=st.sampled_from([0.0, 0.3, 1.0]),
  threshold=st.sampled_from([0.0, 1 / 8, 0.5, 7 / 8]),
  completions=st.integers(1, 11),
  stop_at_zero=st.booleans(),
)
def test_hard_labels_that_stop_early_are_those_of_the_full_run(
  seed, share, untold, threshold, completions, stop_at_zero
):
  generate, verify = _lucky(seed, share, untold)
  common = dict(
    hard=True,
    threshold=threshold,
    stop_at_zero=stop_at_zero,
    rounds=monte_carlo.doubling(completions),
  )
  runs = [
    monte_carlo.label(
      [_long(6)],
      generate,
      verify,
      _options(completions, stop_early=early, **common),
    )
    for early in (False, True)
  ]
  ((full,), work), ((early,), less) = runs
  assert early.labels == full.labels
  assert less["rollouts"] <= work["rollouts"]
  assert work["rollouts"] + work["rollouts_saved"] == 5 * completions
  assert sum(early.extra["rollouts"]) == less["rollouts"]


def test_a_label_that_can_be_known_takes_no_further_round():
  """With threshold 0 that is the first right end."""
  generate, verify = _lucky(0, share=0.3)
  rounds = (1,) * 16
  (full,), _ = monte_carlo.label(
    [_long(60)], generate, verify, _options(16, hard=True, rounds=rounds)
  )
  (early,), work = monte_carlo.label(
    [_long(60)],
    generate,
    verify,
    _options(16, hard=True, stop_early=True, rounds=rounds),
  )
  seen = Counter()
  for value, n in zip(early.extra["values"], early.extra["rollouts"]):
    if n:
      assert value == (1 / n if n < 16 or value else 0)
      seen[n] += 1
  assert len(seen) > 4
  assert full.labels == early.labels
  # E = (1 - (1 - p)^K) / p of 59 prefixes; its deviation is about 0.4.
  expected = (1 - 0.7**16) / 0.3
  assert abs(work["rollouts"] / 59 - expected) < 1.2


def test_a_hard_label_is_1_above_the_threshold_and_its_value_is_kept():
  generate, verify = _lucky(3, share=0.4)
  (soft,), _ = monte_carlo.label([_long(9)], generate, verify, _options(4))
  assert len(set(soft.labels)) > 3
  for threshold in (0.0, 0.25, 0.5):
    (hard,), _ = monte_carlo.label(
      [_long(9)], generate, verify, _options(4, hard=True, threshold=threshold)
    )
    assert hard.labels == tuple(float(x > threshold) for x in soft.labels)
    assert hard.extra["values"] == list(soft.labels)
  # Labelled anew, it keeps nothing of the old labels.
  (again,), _ = monte_carlo.label([hard], generate, verify, _options(4))
  assert again == soft


def test_labels_depend_on_no_batch_mate():
  generate, verify = _lucky(5, share=0.3)
  solutions = [_long(n, name) for n, name in ((5, "a"), (3, "b"), (7, "c"))]
  for options in (
    _options(6),
    _options(6, stop_at_zero=True),
    _options(6, hard=True, stop_early=True),
    _options(6, max_width=0.9),
  ):
    together, work = monte_carlo.label(solutions, generate, verify, options)
    alone = [
      monte_carlo.label([s], generate, verify, options)
      for s in reversed(solutions)
    ]
    assert together == [row[0] for row, _ in reversed(alone)]
    summed = Counter()
    for _, of_one in alone:
      summed.update(of_one)
    assert work == dict(summed)


def test_a_round_asks_for_all_open_prefixes_at_once_under_ids_of_its_own():
  generate, verify = _lucky(1, share=0.4)
  calls = []

  def recorded(prefixes, n):
    calls.append((n, [p.id for p in prefixes]))
    return generate(prefixes, n)

  monte_carlo.label(
    [_long(9), _long(9, "b")],
    recorded,
    verify,
    _options(8, hard=True, stop_early=True),
  )
  assert [n for n, _ in calls] == [1, 1, 2, 4]
  assert len(calls[0][1]) == 16
  for number, (_, ids) in enumerate(calls):
    assert {id_.split("#")[1] for id_ in ids} == {str(number)}
    assert len(set(ids)) == len(ids)
  texts = [{id_.split("#")[0] for id_ in ids} for _, ids in calls]
  assert texts[0] > texts[1] > texts[2]


@given(st.integers(1, 100))
def test_doubling_rounds_sum_up_to_the_completions(completions):
  sizes = monte_carlo.doubling(completions)
  assert sum(sizes) == completions and min(sizes) >= 1
  assert len(sizes) <= completions.bit_length() + 1


def _miss(p: float, at_most: int, bounds) -> float:
  """Returns P(p is out of bounds at any number of trials up to at_most)."""
  inside, missed = {0: 1.0}, 0.0
  for n in range(1, at_most + 1):
    after = Counter()
    for right, mass in inside.items():
      after[right] += mass * (1 - p)
      after[right + 1] += mass * p
    inside = {}
    for right, mass in after.items():
      low, high = bounds(right, n)
      if low <= p <= high:
        inside[right] = mass
      else:
        missed += mass
  return missed


@pytest.mark.parametrize("p", [0.0, 0.03, 0.1, 0.5, 0.8, 1.0])
def test_the_interval_holds_at_every_number_of_rollouts_at_once(p):
  """Exactly, by enumeration."""
  missed = _miss(p, 40, lambda r, n: monte_carlo.interval(r, n, 0.9))
  assert missed <= 0.1


def test_an_interval_for_one_number_of_rollouts_would_miss_too_often():
  """So the test above can fail: Wilson's, looked at after every rollout."""

  def wilson(right, n):
    z2, share = 1.645**2, right / n
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = (z2 * share * (1 - share) / n + z2 * z2 / (4 * n * n)) ** 0.5
    return middle - half / (1 + z2 / n), middle + half / (1 + z2 / n)

  assert _miss(0.5, 40, wilson) > 0.2


def test_the_interval_holds_the_share_and_narrows():
  assert monte_carlo.interval(0, 0, 0.95) == (0.0, 1.0)
  widths = []
  for n in (1, 4, 16, 64, 256):
    for right in {0, n // 4, n // 2, n}:
      low, high = monte_carlo.interval(right, n, 0.95)
      assert 0 <= low <= right / n <= high <= 1
      mirrored = monte_carlo.interval(n - right, n, 0.95)
      np.testing.assert_allclose(mirrored, (1 - high, 1 - low), atol=1e-9)
    low, high = monte_carlo.interval(n // 2, n, 0.95)
    widths.append(high - low)
    wider = monte_carlo.interval(n // 2, n, 0.99)
    assert wider[0] <= low and high <= wider[1]
  assert widths == sorted(widths, reverse=True)


def test_soft_labels_stop_where_the_interval_is_narrow_enough():
  generate, verify = _lucky(2, share=0.9)
  options = _options(64, max_width=0.4)
  (labelled,), work = monte_carlo.label([_long(30)], generate, verify, options)
  drawn = labelled.extra["rollouts"][:-1]
  assert min(drawn) < 64 and set(drawn) <= {1, 2, 4, 8, 16, 32, 64}
  assert work["rollouts"] == sum(drawn) == 64 * 29 - work["rollouts_saved"]
  for value, n, (low, high) in zip(
    labelled.labels, drawn, labelled.extra["intervals"][:-1]
  ):
    assert low <= value <= high and (high - low <= 0.4 or n == 64)
    # One round earlier it was wider.
    widest = max(
      np.ptp(monte_carlo.interval(right, n // 2, 0.95))
      for right in range(n // 2 + 1)
    )
    assert widest > 0.4
  assert labelled.extra["intervals"][-1] is None


# --- What can't be told, and other ends ---------------------------------------


def test_rollouts_that_cant_be_told_are_left_out_of_the_share_and_counted():
  ends = {"a0": [True, None, False, True], "a1": [None] * 4}

  def generate(prefixes, n):
    return [
      [dataclasses.replace(p, steps=(*p.steps, str(j))) for j in range(n)]
      for p in prefixes
    ]

  def verify(solutions):
    return [
      ends[s.steps[-2]][int(s.steps[-1])] if s.steps[-1].isdigit() else None
      for s in solutions
    ]

  (labelled,), work = monte_carlo.label(
    [_long(3)], generate, verify, _options(4)
  )
  assert labelled.labels == (2 / 3, None, None)
  assert work["unverifiable"] == 5
  assert work["unlabelled"] == 2  # the second prefix, the whole solution
  # A prefix of which nothing is known doesn't pass for one worth nothing.
  (stopping,), _ = monte_carlo.label(
    [_long(3)], generate, verify, _options(4, stop_at_zero=True, hard=True)
  )
  assert stopping.labels == (1.0, None, None)


def test_ends_of_every_kind_are_counted():
  def generate(prefixes, n):
    said = [
      ((), {"ended": True, "num_tokens": 1}),
      (("answer 1",), {"ended": True, "num_tokens": 5}),
      (("well",), {"ended": False, "num_tokens": 7}),
      (("answer 2",), {}),
    ]
    return [
      [
        dataclasses.replace(p, steps=p.steps + steps, extra=extra)
        for steps, extra in said[:n]
      ]
      for p in prefixes
    ]

  (labelled,), work = monte_carlo.label(
    [_long(2)],
    generate,
    lambda solutions: [s.steps[-1] == "answer 1" for s in solutions],
    _options(4),
  )
  assert labelled.labels == (0.25, 0.0)
  assert work == dict(
    prefixes=1,
    distinct_prefixes=1,
    rollouts=4,
    tokens=13,
    tokens_unknown=1,
    no_answer=2,
    unended=1,
    empty=1,
    unverifiable=0,
    rollouts_saved=0,
    unlabelled=0,
  )


@pytest.mark.parametrize(
  ("fields", "match"),
  [
    (dict(completions=0), "`completions=0`: expected 1 or more"),
    (dict(hard=True, threshold=1.0), "threshold=1.0: expected at least 0"),
    (dict(threshold=0.5), "soft labels have none"),
    (dict(stop_early=True), "stop_early is for hard labels"),
    (dict(max_width=0.5, hard=True), "max_width=0.5: expected soft labels"),
    (dict(max_width=0.0), "max_width=0.0"),
    (dict(max_width=0.5, confidence=1.0), "confidence=1.0"),
    (dict(rounds=(4, 5)), r"rounds=\(4, 5\).*completions=8"),
    (dict(rounds=(8, 0)), "counts of 1 or more"),
    (dict(rounds=()), "rounds="),
  ],
)
def test_options_without_a_meaning_are_refused_in_one_line(fields, match):
  with pytest.raises(errors.InputError, match=match) as found:
    monte_carlo.Options(**fields)
  assert "\n" not in str(found.value)


def test_one_text_cut_into_other_steps_is_rolled_out_once():
  text = "a\n\nb\n\nc"
  input_ = [
    schema.Solution(
      *(name, "p", tuple(text[a:b] for a, b in spans)),
      raw_text=text,
      spans=spans,
    )
    for name, spans in (
      ("a", ((0, 1), (3, 4), (6, 7))),
      ("b", ((0, 4), (6, 7))),
    )
  ]
  asked = []

  def generate(prefixes, num):
    asked.extend(prefix.id for prefix in prefixes)
    return [[prefix] * num for prefix in prefixes]

  labelled, work = monte_carlo.label(
    *(input_, generate, lambda s: [True] * len(s)),
    monte_carlo.Options(completions=2),
  )
  assert len(asked) == len({*asked}) == 2
  assert [s.labels for s in labelled] == [(1.0,) * 3, (1.0,) * 2]
  assert work["rollouts"] == 4


def test_turns_after_different_results_are_rolled_out_apart():
  def conversation(result):
    call = dict(id="1", function=dict(name="look", arguments={}))
    return messages.trajectory(
      [
        dict(role="user", content="What is there?"),
        dict(role="assistant", tool_calls=[call]),
        dict(role="tool", content=result),
        dict(role="assistant", content="I see."),
        dict(role="user", content="And?"),
        dict(role="assistant", content="A cat."),
      ]
    )

  def verify(solutions):
    return [any("cat" in x.text for x in s.messages) for s in solutions]

  def generate(prefixes, n):
    return [[p] * n for p in prefixes]

  options = _options(2)
  labelled, work = monte_carlo.label(
    [conversation("a dog"), conversation("a cat")], generate, verify, options
  )
  assert [s.labels for s in labelled] == [(0, 0, 1), (0, 1, 1)]
  # The first turn is the same.
  assert work["distinct_prefixes"] == 3
