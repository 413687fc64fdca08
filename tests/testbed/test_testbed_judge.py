"""Chains tell the labels that they are made from, and nothing is left unsaid."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st
import numpy as np

from prm_jax import schema
from prm_jax.labelling import judge_prompts
from prm_jax.testbed import arithmetic
from prm_jax.testbed import judge

PROBLEM = "Ann dials 3 up 4 times 7 ."
RIGHT = ("so 3 + 4 = 7", "ok 7 * 7 = 1", "answer 1")


def _solution(steps, labels=None):
  given_labels = arithmetic.check(PROBLEM, steps) if labels is None else labels
  return schema.Solution("x", PROBLEM, tuple(steps), labels=tuple(given_labels))


@given(seed=st.integers(0, 10_000))
def test_a_chain_reads_as_the_first_error_of_its_labels(seed):
  random = np.random.default_rng(seed)
  (problem,) = arithmetic.problems(1, "train", arithmetic.Task(), random)
  solved = arithmetic.solve(problem, random, arithmetic.Task())
  (chain,), counts = judge.chains([arithmetic.judge(solved)])
  n = len(solved.steps)
  labels = arithmetic.check(problem.problem, solved.steps)
  found = judge_prompts.DIAL.read("\n".join(chain.steps), n)
  assert found.first_error == schema.first_error(labels)
  judged = len(chain.steps) - 1
  assert counts == {"chains": 1, "labels": judged}
  # Its lines are the steps done right.
  right = arithmetic.solve(problem, random)
  for line, step in zip(chain.steps[:-1], right.steps, strict=False):
    assert step.endswith(line.partition(" check ")[0])
  # And they say the given steps again.
  for line, step in zip(chain.steps[:-1], solved.steps, strict=False):
    said = line.partition(" check ")[2].rpartition(" ")[0]
    assert said in (step, step.partition(" ")[2])


def test_a_chain_is_short_and_in_the_testbeds_words():
  (chain,), _ = judge.chains([_solution(("so 3 + 4 = 7", "ok 7 * 7 = 2", "x"))])
  assert chain.problem == (
    "check so 3 + 4 = 7 ; ok 7 * 7 = 2 ; x ; Ann dials 3 up 4 times 7 ."
  )
  assert chain.steps == (
    "3 + 4 = 7 check 3 + 4 = 7 correct",
    "7 * 7 = 1 check 7 * 7 = 2 incorrect",
    "solution no",
  )


def test_a_step_behind_the_answer_has_nothing_to_be_done_over():
  (chain,), _ = judge.chains([_solution((*RIGHT, "answer 1"))])
  assert chain.steps[2:] == (
    "answer 1 check answer 1 correct",
    "nothing check answer 1 incorrect",
    "solution no",
  )


def test_what_makes_no_chain_is_counted_by_reason():
  solutions = [
    _solution(RIGHT),
    _solution(()),
    _solution(RIGHT, (1.0, None, 1.0)),
    _solution(RIGHT, (1.0, 0.0, None)),
    dataclasses.replace(_solution(RIGHT), labels=None),
  ]
  chains, counts = judge.chains(solutions)
  assert len(chains) == 2
  assert counts == {
    "chains": 2,
    "labels": 5,
    "without_steps": 1,
    "unlabelled": 2,
  }


def test_an_exercise_tells_no_label():
  """Nothing in it depends on labels, and every step is in it."""
  wrong = _solution(("so 3 + 4 = 0", "ok 0 * 7 = 0", "answer 0"))
  (found,) = judge.exercises([wrong, _solution(())])
  bare = dataclasses.replace(wrong, labels=None)
  assert judge.exercises([bare]) == [found]
  assert found.steps == (
    "3 + 4 = 7 check 3 + 4 = 0",
    "7 * 7 = 1 check 0 * 7 = 0",
    "answer 1 check answer 0",
  )
  (chain,), _ = judge.chains([wrong])
  assert chain.problem == found.problem
  assert chain.steps == (f"{found.steps[0]} incorrect", "solution no")
