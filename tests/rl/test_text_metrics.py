"""The statistics of a rollout's texts, by counts done by hand."""

import math

import pytest

from prm_jax import schema
from prm_jax.rl import text_metrics
from prm_jax.testbed import arithmetic


def _solution(*steps, problem="p", labels=None, answer=None, **extra):
  return schema.Solution(
    "id", problem, steps, labels=labels, answer=answer, extra=extra
  )


def test_the_statistics_of_a_small_rollout_are_those_counted_by_hand():
  rollout = [
    _solution(
      *("a b", "c d", "a b", "c d"),  # abcd bcda cdab dabc abcd
      labels=(1.0, 1.0, 1.0, 0.0),
      answer="7",
      num_tokens=10,
      stopped="length",
    ),
    _solution("a b", labels=(1.0,), num_tokens=3, stopped="end"),
    _solution("a b", problem="q", answer="1", num_tokens=2, stopped="end"),
    _solution(problem="q", labels=(), num_tokens=1, stopped="end"),
    _solution("a b", problem="q", num_tokens=4, stopped="end"),
  ]
  assert text_metrics.of_rollout(rollout) == pytest.approx(
    dict(
      solutions=5,
      tokens=20 / 5,
      steps=7 / 5,
      tokens_per_step=20 / 7,
      repetition=(1 / 5) / 5,
      repeated_steps=(2 / 4) / 5,
      distinct=(2 / 2 + 2 / 3) / 2,
      without_answer=3 / 5,
      cut=1 / 5,
      empty=1 / 5,
      steps_right=4 / 5,
    )
  )


def test_what_is_not_known_is_nan_and_nothing_divides_by_zero():
  of_none = text_metrics.of_rollout([])
  assert of_none.pop("solutions") == 0
  assert all(map(math.isnan, of_none.values()))
  unknown = text_metrics.of_rollout([_solution("a", labels=(None,))])
  assert {k for k, v in unknown.items() if math.isnan(v)} == {
    *("tokens", "tokens_per_step", "steps_right")
  }
  # A rollout of nothing but empty solutions is known, and says so.
  empty = text_metrics.of_rollout([_solution("", " "), _solution()])
  assert (empty["empty"], empty["repetition"], empty["steps"]) == (1, 0, 1)


def test_no_ngram_of_fewer_words_is_repeated():
  assert text_metrics.repetition(["a a", "a"], ngram=4) == 0
  assert text_metrics.repetition(["a a", "a"], ngram=3) == 0
  assert text_metrics.repetition(["a a", "a"], ngram=2) == 1 / 2
  assert text_metrics.repetition(["a a", "a"], ngram=1) == 1 - 1 / 3


def test_repeating_the_last_step_raises_repetition_and_nothing_else_of_it():
  one = _solution("so 3 + 4 = 7", "answer 7", problem="Ann dials 3 up 4 .")
  again = _solution(*one.steps, *["answer 7"] * 6, problem=one.problem)
  honest, hacked = (
    text_metrics.of_rollout([arithmetic.judge(x)]) for x in (one, again)
  )
  assert hacked["repetition"] > 0.4 > honest["repetition"] == 0
  assert hacked["repeated_steps"] == 6 / 8 and honest["repeated_steps"] == 0
  assert honest["steps_right"] == 1 > hacked["steps_right"]
  same = ("solutions", "distinct", "without_answer", "cut", "empty")
  assert all(honest[k] == hacked[k] for k in same)
