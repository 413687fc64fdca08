"""Each principle is compared with people's first errors, apart for each kind."""

import pytest

from prm_jax import schema
from prm_jax.labelling import judge_prompts
from prm_jax.labelling import principle_agreement

STEPS = ("a", "b", "c")


def _pair(i, by_people, sums, style):
  """Returns a solution as the judge and people label it, by first errors."""

  def labels(error):
    return [float(error < 0 or k < error) for k in range(3)]

  graded = dict(
    rubric="sha256:0",
    principles={
      name: dict(labels=labels(error))
      for name, error in dict(sums=sums, style=style).items()
    },
  )
  judged = schema.Solution(
    f"{i}",
    f"problem {i}",
    STEPS,
    labels=tuple(labels(sums)),
    extra={judge_prompts.GRADED: graded},
  )
  end = 3 if by_people < 0 else by_people + 1
  known = [*labels(by_people)[:end], *[None] * (3 - end)]
  people = schema.Solution(f"{i}", f"problem {i}", STEPS, labels=tuple(known))
  return judged, people


def test_a_principle_that_finds_nothing_agrees_only_where_people_find_nothing():
  # first errors by people, sums and style
  pairs = [
    _pair(i, *x)
    for i, x in enumerate([(0, 0, -1), (1, 2, -1), (2, 2, -1), (-1, 0, -1)])
  ]
  judged, people = map(list, zip(*pairs))
  unjudged = schema.Solution("5", "p", STEPS, labels=(0.0, 0.0, 0.0))
  unknown = schema.Solution("0", "problem 0", STEPS)
  rows = principle_agreement.measured(
    [*judged, unjudged], [unjudged, *reversed(people)]
  )
  assert [x["principle"] for x in rows] == ["sums", "style", "label"]
  same = [
    [row[x]["first_error_same"]["value"] for x in principle_agreement.GROUPS]
    for row in rows
  ]
  assert same == [
    [0.5, pytest.approx(2 / 3), 0],
    [0.25, 0, 1],
    [0.5, pytest.approx(2 / 3), 0],
  ]
  whole = rows[0]["with_an_error"]
  assert whole["solutions"] == 3
  assert whole["first_error_within_one"]["value"] == 1
  low, high = whole["first_error_same"]["interval"]
  assert 0 <= low < 2 / 3 < high <= 1
  text = "\n".join(principle_agreement.texts(rows))
  assert "all (4)" in text and "with an error (3)" in text
  assert "style" in text and "0.25 [" in text
  assert principle_agreement.measured(judged, [unknown]) == []
  assert principle_agreement.measured([unjudged], people) == []
  only = principle_agreement.measured(judged[:1], people[:1])
  assert only[0]["without_error"] is None
  assert principle_agreement.texts(only)[3].endswith("-")
