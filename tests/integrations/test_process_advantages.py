"""Advantages in plain Python are those of rl/advantages.py."""

import jax
import numpy as np
import pytest
import scored

from prm_jax import errors
from prm_jax.integrations import placement
from prm_jax.integrations import scoring
from prm_jax.integrations import token_credit
from prm_jax.rl import advantages
from prm_jax.rl import returns

TOKENIZER = scored.Tokenizer()
TEXTS = ["a [0.9]\nb [0.2]\nc [0.7]", "€ [0.6]", ""]


def group():
  return scoring.score_responses(
    scored.score_texts,
    placement.decoder(TOKENIZER),
    [scored.PROBLEM] * len(TEXTS),
    [[*TOKENIZER.encode(text), TOKENIZER.eos] for text in TEXTS],
  )


@pytest.mark.parametrize("scale", [True, False])
def test_process_advantages_are_those_of_jax(scale):
  ours = token_credit.process_advantages(group(), scale=scale)
  rewards = np.array([[0.9, 0.2, 0], [0.6, 0, 0], [0, 0, 0]])
  steps = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 0]], bool)
  ends = np.array([[6, 14, 0], [8, 0, 0], [0, 0, 0]])
  lengths = [len(row) for row in ours]
  assert lengths == [len(x.token_offsets) for x in group()] == [24, 10, 1]
  tokens = np.arange(24) < np.array(lengths)[:, None]
  normal = advantages.group_normalised(rewards, steps, scale=scale)

  def of_tokens(row, ends, mask, tokens):
    return returns.discounted(returns.place(row, ends, mask, 24), tokens)

  theirs = jax.jit(jax.vmap(of_tokens))(normal, ends, steps, tokens)
  np.testing.assert_allclose(placement.align(ours, tokens), theirs, atol=1e-5)


def test_advantages_to_go_are_those_of_jax():
  ours = token_credit.to_go_advantages(group(), rewards=scoring.judged)
  rewards = np.array([[0.9, 0.2, 0], [0.6, 0, 0], [0, 0, 0]])
  steps = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 0]], bool)
  # The third step of the first has no score, and is a step all the same.
  whole = np.array([[1, 1, 1], [1, 0, 0], [0, 0, 0]], bool)
  ends = np.array([[6, 14, 22], [8, 0, 0], [0, 0, 0]])
  tokens = np.arange(24) < np.array([24, 10, 1])[:, None]

  def to_go(row, ends, mask, tokens):
    return returns.discounted(returns.place(row, ends, mask, 24), tokens)

  to_come = jax.jit(jax.vmap(to_go))(rewards, ends, steps, tokens)
  theirs = advantages.leave_one_out_to_go(to_come, ends, whole, tokens)
  np.testing.assert_allclose(placement.align(ours, tokens), theirs, atol=1e-5)
  # 1.1 from the first step on; the others have 0.6 and, at its end, 0.
  assert ours[0][0] == pytest.approx(1.1 - 0.3)
  assert ours[0][7] == pytest.approx(0.2 - 0.0) and ours[0][-1] == 0


def test_a_batch_has_the_advantages_that_are_asked_for():
  both = token_credit.in_groups(
    [*group(), *group()], 3, advantages=token_credit.to_go_advantages
  )
  assert both == 2 * token_credit.to_go_advantages(group())


def test_equal_rewards_have_no_advantage():
  assert token_credit.normalised([[0.1, None], [0.1, 0.1]]) == [
    [0, None],
    [0, 0],
  ]
  assert token_credit.normalised([[], [None]]) == [[], [None]]


def test_a_return_discounts_later_tokens():
  assert token_credit.returns_to_go([0, 1, 0, 2], 0.5) == [0.75, 1.5, 1, 2]
  assert token_credit.returns_to_go([]) == []


def test_outcomes_are_added_to_each_token_without_their_mean():
  out = token_credit.with_outcomes([[1, 2], [3]], [1, 0], process_weight=0.5)
  assert out == [[1.0, 1.5], [1.0]]
  with pytest.raises(errors.InputError, match="1 outcomes for 2 responses"):
    token_credit.with_outcomes([[1], [2]], [1])


def test_the_outcome_of_a_single_response_is_its_own_mean():
  assert token_credit.with_outcomes([[1, 2]], [3]) == [[1.0, 2.0]]
  assert token_credit.with_outcomes([[0, 0]], [-1]) == [[0.0, 0.0]]
  assert token_credit.with_outcomes([], []) == []
