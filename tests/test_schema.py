"""Problems and solutions refuse what would contradict itself."""

import pytest

from prm_jax import errors
from prm_jax import schema


def test_a_field_of_our_own_can_not_hide_in_extra():
  with pytest.raises(errors.InputError, match="'a': extra holds labels, steps"):
    schema.Solution("a", "p", (), extra={"steps": [], "labels": []})
  with pytest.raises(errors.InputError, match="'a': extra holds answer"):
    schema.Problem("a", "p", extra={"answer": "4"})


@pytest.mark.parametrize("name", ["labels", "ratings"])
def test_a_solution_has_one_judgement_per_step(name):
  with pytest.raises(errors.InputError, match=f"1 {name} for 2 steps"):
    schema.Solution("a", "p", ("x", "y"), **{name: (1,)})


@pytest.mark.parametrize(
  "labels, threshold, expected",
  [
    ((), 0.5, -1),
    ((1.0, None, 0.5), 0.5, -1),
    ((1.0, None, 0.49, 0.0), 0.5, 2),
    ((None, 0.0), 0.5, 1),
    ((0.9, 0.8), 0.85, 1),
  ],
)
def test_the_first_error_is_the_first_label_below_the_threshold(
  labels, threshold, expected
):
  assert schema.first_error(labels, threshold) == expected
