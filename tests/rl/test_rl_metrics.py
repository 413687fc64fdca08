"""What is logged of a rollout, by solutions checked by hand."""

import numpy as np
import pytest

from prm_jax import schema
from prm_jax.rl import rewards
from prm_jax.rl import rollout_metrics
from prm_jax.testbed import arithmetic

PROBLEM = "Ann dials 3 up 4 times 2 ."
LINES = ("so 3 + 4 = 7", "so 7 * 2 = 6", "answer 6")


def _outputs(*solutions):
  made = [schema.Solution("s", PROBLEM, steps) for steps in solutions]
  ends = [np.arange(len(steps)) for steps in solutions]
  return rewards.RewardOutputs(
    prm=None,
    ends=ends,
    exact=[list(x.scores) for x in arithmetic.verifier(made)],
    own_ends=ends,
    orm=None,
    right=arithmetic.verify(made),
    held_out=None,
    answered=[arithmetic.stated(s) is not None for s in solutions],
  )


def test_a_solution_with_all_steps_correct_has_the_right_answer_too():
  unfinished, lucky = LINES[:1], ("so 3 + 4 = 3", "so 3 * 2 = 6", LINES[2])
  outputs = _outputs(LINES, unfinished, lucky, ())
  assert outputs.exact[1] == [1.0]  # nothing in it is wrong
  assert outputs.right == [True, False, True, False]
  assert rollout_metrics.all_steps_correct(outputs) == 1 / 4


def test_values_that_are_the_returns_explain_their_variance():
  returns = np.array([0.0, 1.0, 2.0])
  assert rollout_metrics.explained_variance(returns, returns) == 1
  assert rollout_metrics.explained_variance(returns + 5, returns) == 1
  assert rollout_metrics.explained_variance(np.zeros(3), returns) == 0
  assert rollout_metrics.explained_variance(-returns, returns) == pytest.approx(
    -3
  )
  assert np.isnan(rollout_metrics.explained_variance(returns, np.ones(3)))
