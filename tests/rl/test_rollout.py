"""What a rollout samples."""

import numpy as np

from prm_jax.rl import rollout


def test_a_pass_over_the_problems_meets_each_once_in_an_order_of_its_own():
  passes = [rollout.chosen(step, 4, 6, seed=0) for step in range(6)]
  stream = np.concatenate(passes)
  passes = stream.reshape(4, 6).tolist()
  assert all(sorted(x) == list(range(6)) for x in passes)
  assert len({tuple(x) for x in passes}) > 1
  np.testing.assert_array_equal(rollout.chosen(4, 4, 6, 0), stream[16:20])
