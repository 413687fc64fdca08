"""Numbers of configs: what is in range passes, NaN never does."""

import dataclasses

import pytest

from prm_jax import errors
from prm_jax.runtime import checks

NAN, INF = float("nan"), float("inf")


@dataclasses.dataclass(frozen=True)
class _Config:
  good: float
  value: float


@pytest.mark.parametrize(
  ("check", "inside", "outside"),
  [
    (checks.check_counts, (1, 2), (0, -1, NAN)),
    (checks.check_shares, (0, 0.5, 1), (-0.1, 1.1, NAN, INF)),
    (checks.check_positive, (1e-9, 2), (0, -1, NAN, INF)),
    (checks.check_natural, (0, 2.5), (-1, NAN, INF)),
  ],
)
def test_a_number_out_of_its_range_is_named_with_its_group(
  check, inside, outside
):
  for value in inside:
    check(_Config(1, value), ("good", "value"), "group.")
  for value in outside:
    with pytest.raises(errors.InputError) as e:
      check(_Config(1, value), ("good", "value"), "group.")
    assert str(e.value).startswith(f"group.value={value}: expected ")
