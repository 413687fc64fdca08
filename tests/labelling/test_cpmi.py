"""CPMI's rewards are what a policy says of whole sequences, one at a time."""

import dataclasses
import functools
import itertools
import math

import jax
from jax import numpy as jnp
import numpy as np
import pytest
import random_policies

from prm_jax import errors
from prm_jax import schema
from prm_jax.jobs import policies
from prm_jax.labelling import cpmi
from prm_jax.models import transformer
from prm_jax.policy import log_likelihood
from prm_jax.testbed import arithmetic

QUESTION = "What is (3 + 4) * 2?"
SOLUTIONS = [
  schema.Solution("a", QUESTION, ("3 + 4 = 7.", "7 * 2 = 14.", "So 14.")),
  schema.Solution("b", QUESTION, ("3 + 4 = 7.", "7 * 2 = 12."), answer="12"),
]
REFERENCES = {QUESTION: "14"}
PHRASINGS = ("{problem}", "Solve this: {problem}")
OPTIONS = cpmi.Options(phrasing=PHRASINGS, num_wrong=2, wrong_weight=0.5)


@functools.cache
def _policy(kind):
  return random_policies.policy(kind, num_layers=1)


def _weigher(kind, counts=None):
  policy = _policy(kind)

  def weigh(groups):
    rows, num_tokens = log_likelihood.weigh(
      policy.config, policy.params, policy.codec, groups
    )
    if counts is not None:
      counts.append(num_tokens)
    return rows

  return policies.Weigher(weigh)


@functools.cache
def _forward(kind):
  return jax.jit(
    functools.partial(transformer.token_log_probs, _policy(kind).config)
  )


@functools.cache
def _mean_log_prob(kind, problem, steps, answer):
  """Returns LP of an answer after steps: one whole sequence, by itself."""
  codec = _policy(kind).codec
  prefix = schema.Solution("x", problem, (*steps, ""))
  start = len(codec.within(prefix, ""))
  ids = codec.within(prefix, f"The answer is: {answer}")
  batch = random_policies.alone(ids)
  found = _forward(kind)(_policy(kind).params, jax.tree.map(jnp.asarray, batch))
  return float(np.mean(np.asarray(found)[0, start : len(ids)]))


def _slow_reward(kind, solution, k, form, wrong):
  """Returns r of step k by its formula."""
  shown = {
    "alone": ((), solution.steps[k : k + 1]),
    "increment": (solution.steps[:k], solution.steps[: k + 1]),
    "cumulative": ((), solution.steps[: k + 1]),
  }[form]

  def moved(answer):
    each = []
    for phrasing in PHRASINGS:
      problem = phrasing.replace("{problem}", solution.problem)
      before, after = (
        _mean_log_prob(kind, problem, steps, answer) for steps in shown
      )
      each.append(after - before)
    return np.mean(each)

  return moved("14") - 0.5 * np.mean([moved(x) for x in wrong])


@pytest.mark.parametrize("kind", random_policies.KINDS)
@pytest.mark.parametrize("form", ["alone", "increment", "cumulative"])
def test_a_reward_is_that_of_each_prefix_alone(kind, form):
  options = dataclasses.replace(OPTIONS, form=form)
  found, work = cpmi.label(SOLUTIONS, _weigher(kind), REFERENCES, options)
  assert [s.id for s in found] == ["a", "b"]
  for s in found:
    own = s.extra["cpmi"]
    assert own["wrong_answers"] == ["12", "16"]
    expected = [
      _slow_reward(kind, s, k, form, own["wrong_answers"])
      for k in range(len(s.steps))
    ]
    np.testing.assert_allclose(own["reward"], expected, atol=1e-4)
    assert np.ptp(expected) > 1e-3
  prefixes = dict(alone=5, increment=5, cumulative=5)[form]
  assert work["texts_weighed"] == 2 * 3 * prefixes


def test_the_bill_is_each_shared_token_once():
  counts = []
  options = cpmi.Options(form="cumulative", num_wrong=2)
  cpmi.label(SOLUTIONS, _weigher("own", counts), REFERENCES, options)
  codec, nodes = _policy("own").codec, set()
  for s, answer in itertools.product(SOLUTIONS, ("14", "12", "16")):
    for k in range(len(s.steps) + 1):
      prefix = schema.Solution("x", s.problem, (*s.steps[:k], ""))
      ids = codec.within(prefix, f"The answer is: {answer}")
      nodes |= {tuple(ids[:n]) for n in range(1, len(ids) + 1)}
  assert counts == [len(nodes)]


def test_alone_reads_no_other_step_and_increments_add_up():
  changed = dataclasses.replace(
    SOLUTIONS[0], steps=("Hm.", *SOLUTIONS[0].steps[1:])
  )

  def rewards(solution, form):
    options = cpmi.Options(form=form)
    (found,), _ = cpmi.label([solution], _weigher("own"), REFERENCES, options)
    return np.array(found.extra["cpmi"]["reward"])

  for form, is_same in (("alone", True), ("increment", False)):
    a, b = (rewards(s, form)[1:] for s in (SOLUTIONS[0], changed))
    assert np.allclose(a, b, atol=1e-5) == is_same, form
  np.testing.assert_allclose(
    np.cumsum(rewards(SOLUTIONS[0], "increment")),
    rewards(SOLUTIONS[0], "cumulative"),
    atol=1e-4,
  )


def _with_rewards(*rows):
  return [
    schema.Solution(
      str(i), "q", ("s",) * len(row), extra=dict(cpmi=dict(reward=list(row)))
    )
    for i, row in enumerate(rows)
  ]


def test_labels_are_sigmoids_of_z_scores_without_what_is_too_large():
  rows = [(-2.0, 1.0, 99.0), (4.0,)]
  found = cpmi.with_labels(_with_rewards(*rows), cpmi.Options())
  assert [s.labels[-1] is None for s in found] == [True, False]
  known = np.array([-2.0, 1.0, 4.0])
  expected = 1 / (1 + np.exp(-(known - known.mean()) / known.std()))
  np.testing.assert_allclose(
    [*found[0].labels[:2], *found[1].labels], expected, rtol=1e-9
  )
  assert found[0].extra["cpmi"]["center"] == pytest.approx(1.0)
  (plain, _) = cpmi.with_labels(
    _with_rewards(*rows), cpmi.Options(map="none", most=1.5)
  )
  assert plain.labels == (None, pytest.approx(1 / (1 + math.exp(-1))), None)


def test_quantiles_become_one_and_ninety_nine_percent():
  rewards = np.linspace(-3, 7, 101)
  (found,) = cpmi.with_labels(
    _with_rewards(rewards), cpmi.Options(map="quantile")
  )
  assert found.labels[1] == pytest.approx(0.01)
  assert found.labels[99] == pytest.approx(0.99)
  assert found.labels[50] == pytest.approx(0.5)


def test_equal_rewards_or_none_are_no_error():
  (found,) = cpmi.with_labels(_with_rewards((2.0, 2.0)), cpmi.Options())
  assert found.labels == (0.5, 0.5)
  bare_one = [schema.Solution("x", "q", ("s",))]
  (bare,) = cpmi.with_labels(bare_one, cpmi.Options())
  assert bare.labels is None


def test_wrong_answers_are_named_then_stated_then_near_and_each_once():
  def stating(*texts, **extra):
    return [
      schema.Solution(str(i), "q", ("s",), answer=x, extra=extra)
      for i, x in enumerate(texts)
    ]

  solutions = stating("9", "8", "8", "7.0", "7", None, wrong_answers=["5", "7"])
  assert cpmi.wrong_answers("7", solutions) == [
    *("5", "8", "9"),
    *("17", "-3", "7.7", "6.3"),
  ]
  spelled = cpmi.wrong_answers("7", [], lambda text: len(text) == 1)
  assert spelled == ["9", "5"]
  assert cpmi.numbers_near("1,200") == [
    *("1202", "1198", "1210", "1190", "1320", "1080", "1200", "1200")
  ]
  assert cpmi.wrong_answers("x + 1", []) == []


@pytest.mark.parametrize("named", ["13", [13], ["13", None], dict(a="13")])
def test_wrong_answers_that_are_no_list_of_texts_are_refused(named):
  extra = dict(wrong_answers=named)
  bad = dataclasses.replace(SOLUTIONS[1], extra=extra)
  with pytest.raises(errors.InputError, match="must be a list of texts"):
    cpmi.wrong_answers("14", [SOLUTIONS[0], bad])


def test_solutions_of_one_id_and_a_conversation_are_told_apart():
  twin = dataclasses.replace(
    SOLUTIONS[1], id="a", extra=dict(wrong_answers=None)
  )
  talk = schema.Solution(
    "c", QUESTION, ("14",), messages=(schema.Message("assistant", "14"),)
  )
  options = cpmi.Options(num_wrong=0)
  found, work = cpmi.label(
    [SOLUTIONS[0], twin, talk], _weigher("own"), REFERENCES, options
  )
  rewards = [s.extra["cpmi"]["reward"] for s in found[:2]]
  assert [len(x) for x in rewards] == [3, 2]
  assert "cpmi" not in found[2].extra and work["conversations"] == 1


def test_a_problem_without_wrong_answers_is_counted_and_has_no_labels():
  references = {QUESTION: "x + 1"}
  same = [dataclasses.replace(s, answer="x + 1") for s in SOLUTIONS]
  found, work = cpmi.label(same, _weigher("own"), references, cpmi.Options())
  assert work["solutions_without_wrong_answers"] == 2
  assert all("cpmi" not in s.extra and s.labels is None for s in found)
  (one, _), work = cpmi.label(
    same, _weigher("own"), references, cpmi.Options(num_wrong=0)
  )
  assert work["solutions_without_wrong_answers"] == 0
  assert one.extra["cpmi"]["reward"] == one.extra["cpmi"]["right"]


def _exact_reader(groups):
  """A policy that reads the last line and goes on without an error."""

  def log_prob(prefix, text):
    value, turns = arithmetic.parse(prefix.problem)
    lines = prefix.steps[:-1]
    if lines:
      value = int(lines[-1].split()[-1])
    for sign, n in turns[len(lines) :]:
      value = arithmetic.turn(value, sign, n)
    return -0.1 if text == f"answer {value}" else -3.0

  return [
    [[schema.Weighed(2 * log_prob(p, x), 2) for x in texts] for p in prefixes]
    for prefixes, texts in groups
  ]


def test_labels_by_a_policy_that_cant_err_name_the_first_error():
  random = np.random.default_rng(0)
  task = arithmetic.Task(times_share=0.0)
  solutions = [
    arithmetic.judge(arithmetic.solve(p, random, task))
    for p in arithmetic.problems(30, "train", task, random)
  ]
  references = {s.problem: arithmetic.answer(s.problem) for s in solutions}
  options = cpmi.Options(form="cumulative", force="answer", map="none")
  rewarded, _ = cpmi.label(
    solutions, policies.Weigher(_exact_reader), references, options
  )
  found = cpmi.with_labels(rewarded, options)
  wrong = 0
  for s, exact in zip(found, solutions, strict=True):
    error = schema.first_error(exact.labels)
    hard = [float(x >= 0.5) for x in s.labels]
    assert schema.first_error(hard) == error
    wrong += error >= 0
  assert 5 < wrong < 30


@pytest.mark.parametrize(
  ("fields", "word"),
  [
    (dict(phrasing=("Solve it.",)), "exactly once"),
    (dict(phrasing=("{problem} {problem}",)), "exactly once"),
    (dict(force=" "), "force"),
    (dict(form="before"), "form"),
    (dict(wrong_weight=-1.0), "wrong_weight"),
  ],
)
def test_an_option_that_means_nothing_is_refused(fields, word):
  with pytest.raises(errors.InputError, match=word) as e:
    cpmi.Options(**fields)
  assert "\n" not in str(e.value)
