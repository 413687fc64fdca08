"""OmegaPRM on the testbed: true first errors, for fewer rollouts."""

from collections import Counter
import dataclasses
import hashlib
import itertools

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np

from prm_jax import schema
from prm_jax.datasets.formats import math_aps_tree
from prm_jax.labelling import monte_carlo
from prm_jax.labelling import omega_prm
from prm_jax.labelling import omega_tree
from prm_jax.labelling.prefix_rollouts import Rollout
from prm_jax.testbed import arithmetic
from prm_jax.text import encoding
from prm_jax.text import tokenizer

TASK = arithmetic.Task(min_turns=4, max_turns=8)


def _verify(solutions):
  return [arithmetic.judge(s).outcome for s in solutions]


def _go_on(prefix: schema.Solution, random=None) -> schema.Solution:
  """Carries on from the value that the prefix ends in; slips with `random`."""
  value, turns = arithmetic.parse(prefix.problem)
  steps = list(prefix.steps)
  if steps:
    value = int(steps[-1][-1])
  for sign, n in turns[len(steps) :]:
    result = arithmetic.turn(value, sign, n)
    if random is not None and random.random() < 0.25:
      result = int(random.integers(arithmetic.POSITIONS))
    steps.append(f"so {value} {sign} {n} = {result}")
    value = result
  if len(steps) == len(turns):
    steps.append(f"answer {value}")
  num_tokens = sum(len(step.split()) for step in steps[len(prefix.steps) :])
  return dataclasses.replace(
    prefix,
    steps=tuple(steps),
    extra=dict(prefix.extra, num_tokens=num_tokens, ended=True),
  )


def _exact(prefixes, n):
  """Ends right exactly where the prefix is right: no error is lucky."""
  out = []
  for prefix in prefixes:
    whole = _go_on(prefix)
    right = all(arithmetic.check(prefix.problem, prefix.steps))
    if not right and arithmetic.judge(whole).outcome:
      last = (int(whole.steps[-1][-1]) + 1) % arithmetic.POSITIONS
      steps = (*whole.steps[:-1], f"answer {last}")
      whole = dataclasses.replace(whole, steps=steps)
    out.append([whole] * n)
  return out


def _slipping(seed: int):
  """A policy that errs and is lucky, by the seed, the prefix and the sample."""

  def generate(prefixes, n):
    return [
      [_go_on(p, _random(seed, p, j)) for j in range(n)] for p in prefixes
    ]

  return generate


def _random(seed, prefix, j):
  text = f"{seed} {prefix.id} {prefix.problem} {prefix.steps} {j}"
  return np.random.default_rng(list(hashlib.sha256(text.encode()).digest()[:8]))


def _given(seed: int, num_problems: int, each: int = 8):
  """Returns solutions of an annotator who slips, `each` of every problem."""
  random = np.random.default_rng(seed)
  problems = arithmetic.problems(num_problems, "train", TASK, random)
  return [
    dataclasses.replace(
      solved, id=f"{p.id}-{j}", extra=dict(num_tokens=6 * len(solved.steps))
    )
    for p in problems
    for j in range(each)
    for solved in [arithmetic.solve(p, random, TASK)]
  ]


def _options(**fields):
  return omega_prm.Options(**dict(root_rollouts=8) | fields)


# --- On the testbed -----------------------------------------------------------


@settings(max_examples=10)
@given(seed=st.integers(0, 500), hard=st.booleans())
def test_with_an_exact_completer_every_label_is_the_verifiers(seed, hard):
  labelled, work = omega_prm.label(
    _given(seed, 3), _exact, _verify, _options(completions=2, hard=hard)
  )
  for s in labelled:
    exact = arithmetic.check(s.problem, s.steps)
    for label, value, right in zip(
      s.labels, s.extra["values"], exact, strict=True
    ):
      assert label in (None, right) and value in (None, right)
    # The first error is found, and nothing is said of what stands behind it.
    error = schema.first_error(exact)
    assert s.extra["values"][error] == 0
    assert s.labels[error + 1 :] == (None,) * (len(exact) - error - 1)
    assert s.outcome is False and s.source == "omega_prm"
  assert work["first_errors"] <= work["searches"]
  assert not work["contradicted"] and not work["undecided"]


def test_the_same_hard_labels_take_brute_force_more_rollouts():
  solutions = _given(0, 10)
  labelled, work = omega_prm.label(
    solutions, _exact, _verify, _options(hard=True)
  )
  searched = [
    s
    for s in solutions
    if any((s.problem, s.steps) == (x.problem, x.steps) for x in labelled)
  ]
  assert work["searches"] - work["repeated"] == len(labelled) > 20
  brute, brute_work = monte_carlo.label(
    searched, _exact, _verify, monte_carlo.Options(8, hard=True)
  )
  by_text = {(s.problem, s.steps): s.labels for s in brute}
  ours = {
    (s.problem, s.steps[:n]): label
    for s in labelled
    for n, label in enumerate(s.labels, 1)
    if label is not None
  }
  theirs = {}
  for (problem, steps), labels in by_text.items():
    for n, label in enumerate(labels[: labels.index(0.0) + 1], 1):
      theirs[problem, steps[:n]] = label
  assert ours == theirs and len(ours) == work["labels"]
  # Those searched in vain, since all was told before, count here too.
  assert work["brute_force_rollouts"] >= brute_work["rollouts"]
  ratio = omega_prm.ratio(work)
  print(
    f"{work['rollouts']:,} rollouts for {len(ours)} labels, brute force"
    f" {work['brute_force_rollouts']:,}: {ratio:.2f} times"
  )
  assert ratio > 2


def test_the_saving_grows_with_the_length_of_the_solutions():
  ratios = []
  for turns in (4, 16):
    random = np.random.default_rng(0)
    task = dataclasses.replace(TASK, min_turns=turns, max_turns=turns)
    solutions = [
      dataclasses.replace(
        arithmetic.solve(p, random, task),
        id=f"{p.id}-{j}",
        extra=dict(num_tokens=turns),
      )
      for p in arithmetic.problems(8, "train", task, random)
      for j in range(4)
    ]
    _, work = omega_prm.label(
      solutions, _exact, _verify, _options(root_rollouts=4)
    )
    ratios.append(omega_prm.ratio(work))
  assert ratios[1] > 1.5 * ratios[0]


@settings(max_examples=6)
@given(seed=st.integers(0, 200), hard=st.booleans())
def test_a_problems_tree_depends_on_none_beside_it(seed, hard):
  solutions = _given(seed, 3, each=2)
  options = _options(searches=4, completions=4, hard=hard)
  together, work = omega_prm.label(solutions, _slipping(seed), _verify, options)
  alone, summed = [], Counter()
  for _, same in itertools.groupby(solutions, lambda s: s.problem):
    found, of_one = omega_prm.label(
      list(same), _slipping(seed), _verify, options
    )
    alone.append(found)
    summed.update(of_one)
  assert together == [s for found in alone for s in found]
  assert work == dict(summed)
  # Nor on the order of the problems.
  turned, _ = omega_prm.label(
    sorted(solutions, key=lambda s: s.problem),
    _slipping(seed),
    _verify,
    options,
  )
  by_problem = sorted(together, key=lambda s: s.problem)
  assert turned == by_problem


def test_one_call_serves_all_problems():
  calls = []

  def generate(prefixes, n):
    calls.append((n, len(prefixes)))
    assert len({p.id for p in prefixes}) == len(prefixes)
    return _slipping(0)(prefixes, n)

  problems = [
    schema.Solution(p.id, p.problem, ())
    for p in arithmetic.problems(20, "train", TASK, np.random.default_rng(0))
  ]
  told = []
  _, work = omega_prm.label(
    problems, generate, _verify, _options(searches=2), progress=told.append
  )
  assert calls[0] == (8, 20) and calls[1][1] > 10
  # As many calls as the longest search has requests, not the sum of all.
  assert len(calls) <= 1 + 2 * 4
  assert work["problems"] == 20
  assert told == sorted(told) and told[-1] == 20
  assert work["rollouts"] == sum(n * rows for n, rows in calls)


# --- The labelled solutions ---------------------------------------------------


@settings(max_examples=6)
@given(seed=st.integers(0, 200), hard=st.booleans())
def test_every_prefix_has_one_label_and_it_is_the_states_value(seed, hard):
  asked = {}

  def generate(prefixes, n):
    rows = _slipping(seed)(prefixes, n)
    for prefix, row in zip(prefixes, rows, strict=True):
      assert (prefix.problem, prefix.steps) not in asked
      asked[prefix.problem, prefix.steps] = np.mean(_verify(row))
    return rows

  solutions = [
    schema.Solution(f"p{i}", s.problem, ())
    for i, s in enumerate(_given(seed, 3, each=1))
  ]
  labelled, work = omega_prm.label(
    solutions, generate, _verify, _options(searches=6, hard=hard)
  )
  told = {}
  for s in labelled:
    assert not arithmetic.judge(s).outcome
    assert any(label is not None for label in s.labels)
    for n, (label, value) in enumerate(zip(s.labels, s.extra["values"]), 1):
      state = (s.problem, s.steps[:n])
      if label is not None:
        assert state not in told
        told[state] = label
      if value is not None:
        assert value == asked.get(state, 0.0)
        assert hard or told[state] == value
      if hard and label is not None and state in asked:
        assert label == 1 or asked[state] == 0
    assert s.extra["problem_value"] == asked[s.problem, ()]
  assert work["labels"] == len(told)
  assert len({s.id for s in labelled}) == len(labelled)
  assert work["searches"] == len(labelled) + work["repeated"]


def test_a_step_that_goes_on_right_elsewhere_is_not_the_first_error():
  """Its own rollouts had no luck; those of a longer prefix had."""

  def whole(*steps):
    return schema.Solution("r", "p", steps)

  def state(*steps, ends):
    rollouts = tuple(Rollout(whole("x"), is_right) for is_right in ends)
    return steps, omega_tree.State(steps, rollouts)

  root, *others = (
    state(ends=(True, False)),
    state("a", ends=(False, False)),
    state("a", "b", ends=(True, False)),
  )

  def path(*steps, num_right, num_wrong):
    selected = omega_tree.Candidate(root[1], whole(*steps), 3)
    return omega_tree.Path(selected, num_right, num_wrong)

  tree = omega_tree.Tree(
    dict([root, *others]),
    (
      path("a", "c", num_right=0, num_wrong=1),
      path("a", "b", "d", num_right=2, num_wrong=3),
    ),
    visits={(): 2},
    duplicates=0,
    left=0,
  )
  soft = omega_prm.paths_of(tree, "p", _options())
  assert [s.labels for s in soft] == [(0.0, None), (None, 0.5, 0.0)]
  hard = omega_prm.paths_of(tree, "p", _options(hard=True))
  assert [s.labels for s in hard] == [(1.0, 1.0, 0.0)]


def test_labelled_paths_are_the_published_forms_tree(tmp_path):
  labelled, _ = omega_prm.label(
    _given(3, 6), _slipping(3), _verify, _options(searches=12)
  )
  path = tmp_path / "trees.jsonl"
  math_aps_tree.write(path, labelled)
  states = Counter(
    (s.problem, s.steps[:n], label)
    for s in labelled
    for n, label in enumerate(s.labels, 1)
    if label is not None
  )
  read = Counter(
    (s.problem, s.steps, s.labels[-1])
    for s in math_aps_tree.read(path)
    if s.labels[-1] is not None
  )
  assert read == states and max(states.values()) == 1


def test_training_reads_the_labels_as_they_are():
  labelled, work = omega_prm.label(
    _given(3, 6), _slipping(3), _verify, _options(searches=12)
  )
  policy = encoding.LabelPolicy(after_first_error="keep")
  assert [encoding.step_labels(s, policy) for s in labelled] == [
    list(s.labels) for s in labelled
  ]
  texts = [text for s in labelled for text in (s.problem, *s.steps)]
  examples, _ = encoding.prm_examples(
    labelled,
    tokenizer.train_sentencepiece(texts, 60, model_type="word"),
    encoding.EncodingConfig(),
    policy,
  )
  assert sum(int((x.weights > 0).sum()) for x in examples) == work["labels"]


# --- What is dropped or can't be told -----------------------------------------


def test_problems_that_are_too_hard_or_too_easy_are_counted():
  problems = [schema.Solution(str(i), f"problem {i}", ()) for i in range(5)]
  shares = {
    "problem 0": [True, True],
    "problem 1": [False, False],
    "problem 2": [None, None],
    "problem 3": [True, False],
    "problem 4": [True, False],
  }

  def generate(prefixes, n):
    return [
      [
        dataclasses.replace(
          p,
          steps=(*p.steps, f"answer {j}"),
          extra=dict(ended=p.problem != "problem 3", num_tokens=3),
        )
        for j in range(n)
      ]
      for p in prefixes
    ]

  labelled, work = omega_prm.label(
    problems,
    generate,
    lambda solutions: [
      shares[s.problem][int(s.steps[-1][-1])] for s in solutions
    ],
    _options(root_rollouts=2),
  )
  assert [(s.id, s.labels) for s in labelled] == [("4/0", (0.0,))]
  assert labelled[0].answer == "1"
  fates = (
    *("dropped_all_right", "dropped_none_right", "dropped_untold"),
    "dropped_unsearched",
  )
  assert [work[name] for name in fates] == [1, 1, 1, 1]
  assert work["problems"] == 5 and work["searches"] == 1
  # Counts, not truth values, also where nothing was drawn.
  _, idle = omega_prm.label(
    [schema.Solution("a", "problem 0", ("answer 0",))],
    generate,
    lambda solutions: [True] * len(solutions),
    _options(root_rollouts=1),
  )
  assert {type(n) for n in (*work.values(), *idle.values())} == {int}
  assert idle["dropped_all_right"] == 1 and idle["rollouts"] == 0
  assert work["rollouts"] == 10 and work["tokens"] == 30
  assert work["unended"] == 2 and work["unverifiable"] == 2


def test_no_problem_is_no_call():
  def fail(*_):
    raise AssertionError

  labelled, work = omega_prm.label([], fail, fail, _options())
  assert labelled == [] and set(work.values()) == {0}
  assert np.isnan(omega_prm.ratio(work))


def test_undecided_searches_are_counted_and_keep_what_is_known():
  def generate(prefixes, n):
    return [[_go_on(p)] * n for p in prefixes]

  solutions = _given(1, 5)

  def verify(whole):
    # The grader knows the given ones alone.
    known = {(s.problem, s.steps) for s in solutions}
    return [
      arithmetic.judge(s).outcome if (s.problem, s.steps) in known else None
      for s in whole
    ]

  _, work = omega_prm.label(solutions, generate, verify, _options())
  assert work["undecided"] > 0
  assert work["unverifiable"] > 0
