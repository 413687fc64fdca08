"""From completions to rows and back: nothing is lost, nothing is counted twice."""

import dataclasses

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
import rl_tiny

from prm_jax import errors
from prm_jax import schema
from prm_jax.policy import sampler
from prm_jax.rl import rollout
from prm_jax.rl import rows


def _sampled(prompt_lengths, lengths, samples):
  """Solutions of made-up ids: no two tokens of one rollout are alike."""
  ids = iter(range(1, 10**6))

  def take(n):
    return np.asarray([next(ids) for _ in range(n)], np.int32)

  prompts = [take(n) for n in prompt_lengths for _ in [0]]
  prompts = [p for p in prompts for _ in range(samples)]
  completions = [
    sampler.Completion(take(n), np.zeros(n, np.float32), "end") for n in lengths
  ]
  solutions = [
    schema.Solution(str(i), f"problem {i // samples}", (f"step {n}",))
    for i, n in enumerate(lengths)
  ]
  return rollout.Sampled(prompts, completions, solutions)


@hypothesis.given(
  data=st.data(), share=st.booleans(), minibatches=st.sampled_from([1, 2, 4])
)
def test_every_token_is_packed_once_behind_its_own_prompt(
  data, share, minibatches
):
  draw = data.draw
  prompts = draw(st.lists(st.integers(1, 9), min_size=4, max_size=4))
  lengths = draw(st.lists(st.integers(1, 24), min_size=8, max_size=8))
  config = rl_tiny.config(
    minibatches=minibatches,
    share_prompts=share,
    rows=draw(st.integers(1, 3)),
    sequence_length=draw(st.integers(33, 90)),
  )
  sampled = _sampled(prompts, lengths, 2)
  micro = rows.num_microbatches(config.shape, config.rollout, max(prompts))
  packed = rows.pack(sampled, config.shape, config.rollout, micro)
  batch = packed.batch
  assert (
    batch.tokens.shape[0] == config.packing.batch_size * minibatches * micro
  )
  T = config.packing.sequence_length
  for i, (prompt, c) in enumerate(
    zip(sampled.prompts, sampled.completions, strict=True)
  ):
    places = packed.places[i, : len(c.tokens)]
    np.testing.assert_array_equal(batch.tokens.reshape(-1)[places], c.tokens)
    assert (packed.places[i, len(c.tokens) :] == -1).all()
    # Each token's path back to the root is the prompt and its own solution.
    b, at = divmod(int(places[-1]), T)
    path = []
    while at >= 0:
      path.append(int(batch.tokens[b, at]))
      assert batch.positions[b, at] == len(prompt) + len(c.tokens) - len(path)
      parent = int(batch.parent[b, at])
      assert parent < 0 or batch.visible_until[b, parent] > at
      at = parent
    np.testing.assert_array_equal(path[::-1], [*prompt, *c.tokens])
    # A row's minibatch, by the order that the program takes rows in.
    assert (b // micro) % minibatches == packed.minibatch[i]
  real = packed.places[packed.places >= 0]
  assert len(set(real.tolist())) == len(real) == sum(lengths)
  values = np.random.default_rng(0).random(packed.places.shape, np.float32)
  values[packed.places < 0] = 0
  scattered = rows.scatter(values, packed)
  np.testing.assert_array_equal(rows.gather(scattered, packed), values)
  assert scattered.sum() == pytest.approx(values.sum(), rel=1e-5)


def test_shared_prompts_are_stored_once():
  sampled = _sampled([9], [3, 4, 5, 6], 4)
  config = rl_tiny.config(
    rollout=dict(problems=1, samples=4), sequence_length=64, rows=1
  )
  packing = dataclasses.replace(config.packing, share_prefixes=False)
  alone = dataclasses.replace(config, packing=packing)
  tokens = [
    (rows.pack(sampled, c.shape, c.rollout, 4).batch.tokens > 0).sum()
    for c in (config, alone)
  ]
  assert tokens == [9 + 18, 4 * 9 + 18]


def test_solutions_of_full_length_fit_the_rows_that_were_planned():
  # Three solutions of 25 tokens would fit a row of 75, but of two that share
  # their prompt (49 tokens) only one pair does.
  config = rl_tiny.config(sequence_length=75, rows=1)
  sampled = _sampled([1] * 4, [24] * 8, 2)
  micro = rows.num_microbatches(config.shape, config.rollout, 1)
  assert micro == 3
  packed = rows.pack(sampled, config.shape, config.rollout, micro)
  found = packed.batch.tokens.reshape(-1)[packed.places]
  expected = [c.tokens for c in sampled.completions]
  np.testing.assert_array_equal(found, expected)
  assert (packed.batch.parent >= 0).sum() == 8 * 24


def test_a_solution_that_cannot_fit_a_row_is_refused_before_any_is_sampled():
  config = rl_tiny.config(sequence_length=30)
  with pytest.raises(errors.InputError, match="make it 33 or more"):
    rows.num_microbatches(config.shape, config.rollout, 9)


@pytest.mark.parametrize("kind", ["tokens", "solutions", "constant"])
def test_weights_add_up_in_each_minibatch(kind):
  config = rl_tiny.config(loss=dict(loss_aggregation=kind), minibatches=2)
  lengths = np.array([3, 5, 24, 1, 7, 0, 2, 9])  # 0: one that doesn't count
  mask = np.arange(rl_tiny.MAX_TOKENS) < lengths[:, None]
  minibatch = np.repeat([0, 1], 4)
  weights = rows.loss_weights(
    mask,
    minibatch,
    loss_aggregation=kind,
    max_tokens=config.rollout.max_tokens,
  )
  assert not weights[~mask].any()
  for m, count in ((0, 4), (1, 3)):
    own = weights[minibatch == m]
    total = lengths[minibatch == m].sum()
    expected = total / (rl_tiny.MAX_TOKENS * count) if kind == "constant" else 1
    assert own.sum() == pytest.approx(expected, rel=1e-5)
    per_solution = own.sum(1)[lengths[minibatch == m] > 0]
    if kind == "solutions":
      np.testing.assert_allclose(per_solution, 1 / count, rtol=1e-5)
