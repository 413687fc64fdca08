"""Which solutions rejection sampling learns from."""

import dataclasses

import numpy as np
import rl_tiny

from prm_jax import schema
from prm_jax.policy import sampler
from prm_jax.rl import baselines
from prm_jax.rl import credit
from prm_jax.rl import experience
from prm_jax.rl import rollout


def _sampled(lengths, samples):
  """Solutions whose text is their length; of what tokens doesn't matter."""
  completions = [
    sampler.Completion(np.ones(n, np.int32), np.zeros(n, np.float32), "end")
    for n in lengths
  ]
  solutions = [
    schema.Solution(str(i), f"problem {i // samples}", (f"step {n}",))
    for i, n in enumerate(lengths)
  ]
  prompts = [np.ones(2, np.int32)] * len(lengths)
  return rollout.Sampled(prompts, completions, solutions)


def test_distinct_solutions_above_the_threshold_are_selected():
  sampled = _sampled([5, 5, 4, 3, 6, 7, 8, 9], 4)
  config = rl_tiny.config(
    loss=dict(kind="rejection_sampling", max_per_problem=2),
    credit=dict(baseline="none"),
    rollout=dict(problems=2, samples=4),
  )
  blank = np.zeros((8, 3), np.float32)
  total = np.array([1, 1, 0.2, 1, 1, 1, 1, 0.5], np.float32)
  counts = np.array([1, 1, 1, 1, 0, 1, 1, 1], bool)
  rewards = dataclasses.replace(_rewards(), counts=counts)
  found = experience.select(
    sampled,
    rewards,
    credit.Credit(blank, blank, blank, total, total),
    config.loss,
  )
  # 1 is as 0, 2 and 7 are too low, 4 doesn't count.
  assert found.tolist() == [True, False, False, True, False, True, True, False]


def _rewards():
  two = np.zeros((8, 2), np.float32)
  three = np.zeros((8, 3), np.float32)
  return baselines.Rewards(
    steps=two,
    step_ends=two.astype(np.int32),
    step_mask=two > 0,
    outcome=two[:, 0],
    tokens=three,
    penalty=three,
    values=three,
    token_mask=three > 0,
    counts=np.ones(8, bool),
  )
