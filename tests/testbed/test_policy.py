"""The noisy verifier's noise; tests/search/ tests the rest by searching."""

import numpy as np
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.testbed import arithmetic_policy

GAP = 4.0


def _noise(persistence, num=2_000):
  """Returns the noise of three wrong steps of many solutions."""
  verifier = arithmetic_policy.NoisyVerifier(1.0, GAP, persistence=persistence)
  solutions = [
    schema.Solution(str(i), "Ann dials 3 .", (f"a {i}", f"b {i}", f"c {i}"))
    for i in range(num)
  ]
  logits = np.array([s.logits for s in verifier(solutions)])
  return logits + GAP / 2


@pytest.mark.parametrize("persistence", [0.0, 0.6, 1.0])
def test_noise_persists_along_a_path_and_keeps_its_deviation(persistence):
  noise = _noise(persistence)
  np.testing.assert_allclose(noise.std(axis=0), 1, atol=0.05)
  correlation = np.corrcoef(noise.T)
  assert correlation[0, 1] == pytest.approx(persistence, abs=0.06)
  assert correlation[0, 2] == pytest.approx(persistence**2, abs=0.06)


def test_noise_that_persists_in_full_is_one_number_of_a_path():
  noise = _noise(1.0, num=20)
  np.testing.assert_array_equal(noise, noise[:, :1] + np.zeros(3))


def test_a_persistence_above_1_is_refused():
  with pytest.raises(errors.InputError, match=r"persistence=1\.5"):
    arithmetic_policy.NoisyVerifier(persistence=1.5)
