"""A spoiled solution has one error, at its end; what is right stays right."""

import pathlib

import numpy as np
import pytest

from prm_jax import schema

EXPERIMENTS = pathlib.Path(__file__).parents[2] / "experiments"


@pytest.fixture(autouse=True)
def _on_path(monkeypatch):
  monkeypatch.syspath_prepend(str(EXPERIMENTS))


SOLUTION = schema.Solution(
  "s",
  "Ann has 12 pens, gives 5 away and buys 1,200 more. How many has she?",
  ("She has 12 pens.", "12 - 5 = 7, so 7 are left.", "7 + 1,200 = 1,207 now."),
)


@pytest.mark.parametrize(
  ("text", "found"),
  [
    ("12 - 5 = 7", ["12 - 5 = 7"]),
    ("$3.50 x 2 = $7.", ["$3.50 x 2 = $7"]),
    (r"\(4 \times 25 = 100\)", [r"4 \times 25 = 100"]),
    ("1,200/4=300 and 300*2=600", ["1,200/4=300", "300*2=600"]),
    ("12 - 5 = 8", []),  # doesn't add up
    ("3 + 4 + 5 = 12", []),  # its end alone would be another sum
    ("6 / 0 = 6", []),
    ("10 / 4 = 2.5", ["10 / 4 = 2.5"]),
    ("2 * 3 = 6%", []),
    ("1 + 1 = 2/1", []),
  ],
)
def test_a_sum_is_what_adds_up_in_a_text(text, found):
  import spoiled_sums

  assert [x[0] for x in spoiled_sums.sums(text)] == found


def test_the_last_step_alone_is_wrong_and_no_other_sum_is():
  import spoiled_sums

  kinds = set()
  for seed in range(200):
    random = np.random.default_rng(seed)
    found = spoiled_sums.spoiled(SOLUTION, random)
    n = len(found.steps)
    assert found.labels == (1.0,) * (n - 1) + (0.0,)
    assert found.steps[:-1] == SOLUTION.steps[: n - 1]
    assert found.steps[-1] != SOLUTION.steps[n - 1]
    assert found.outcome is False
    kinds.add(bool(spoiled_sums.sums(found.steps[-1])))
    if n == 2 and spoiled_sums.sums(found.steps[-1]):
      # The result is used again as it is.
      result = spoiled_sums.sums(found.steps[-1])[0]["c"]
      assert f"so {result} are left" in found.steps[-1]
  assert kinds == {True, False}  # an operand or operator, and a result


def test_a_solution_without_a_sum_stays_as_it_is():
  import spoiled_sums

  plain = schema.Solution("s", "1 + 1?", ("It is 2.",))
  assert spoiled_sums.spoiled(plain, np.random.default_rng(0)) is None


def test_right_solutions_rank_first_within_a_question_and_a_model():
  import real_prm_gsm8k

  def one(question, model, is_right):
    return schema.Solution(
      f"{question}{model}", question, ("x",), outcome=is_right, source=model
    )

  solutions = [
    one("p", "a", True),
    one("p", "b", False),
    one("q", "a", False),
    one("q", "b", False),  # all wrong: tells nothing within the question
  ]
  found = real_prm_gsm8k.ranked(solutions, [0.9, 0.1, 0.95, 0.0])
  assert found == dict(auroc_in_question=1.0, auroc_in_model=0.0)


def test_a_path_keeps_one_wrong_alternative_at_most():
  import real_prm_gsm8k

  def rated(part, *ratings):
    steps = [f"{part} {k}" for k in range(len(ratings))]
    return schema.Solution(f"row/0/{part}", "p", steps, ratings=ratings)

  path, good = rated("path", 1, 1), rated("0.1", 1)
  wrong = [rated("0.2", -1), rated("1.0", None, -1)]
  kept = real_prm_gsm8k.one_wrong_each([path, good, *wrong])
  assert kept[0] == path and len(kept) == 2 and kept[1] in wrong
