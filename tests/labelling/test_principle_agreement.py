"""Each principle is compared with people's first errors, apart for each kind."""

import dataclasses

import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.evaluation import tables
from prm_jax.labelling import judge_prompts
from prm_jax.labelling import principle_agreement

STEPS = ("a", "b", "c")


def _pair(i, by_people, sums, style, steps=STEPS):
  """Returns a solution as the judge and people label it, by first errors."""

  def labels(error):
    return [float(error < 0 or k < error) for k in range(len(steps))]

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
    steps,
    labels=tuple(labels(sums)),
    extra={judge_prompts.GRADED: graded},
  )
  end = len(steps) if by_people < 0 else by_people + 1
  known = [*labels(by_people)[:end], *[None] * (len(steps) - end)]
  people = schema.Solution(f"{i}", f"problem {i}", steps, labels=tuple(known))
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
  names = ["sums", "style", "the label", "always the same"]
  assert [x["principle"] for x in rows] == names
  same = [
    [row[x]["first_error_same"]["value"] for x in principle_agreement.GROUPS]
    for row in rows
  ]
  assert same == [
    [0.5, pytest.approx(2 / 3), 0],
    [0.25, 0, 1],
    [0.5, pytest.approx(2 / 3), 0],
    [0.25, pytest.approx(1 / 3), 1],
  ]
  whole = rows[0]["with_an_error"]
  assert whole["solutions"] == 3
  assert whole["first_error_within_one"]["value"] == 1
  low, high = whole["first_error_same"]["interval"]
  assert 0 <= low < 2 / 3 < high <= 1
  head, _, style, *_ = tables.lines(principle_agreement.table(rows))
  for text in ("all (4), %", "with an error (3), %", "without (1), %"):
    assert text in head
  assert style.startswith("style") and "25.0 [" in style
  assert principle_agreement.measured(judged, [unknown]) == []
  assert principle_agreement.measured([unjudged], people) == []
  only = principle_agreement.measured(judged[:1], people[:1])
  assert only[0]["without_error"] is None
  _, line, *_ = tables.lines(principle_agreement.table(only))
  assert line.endswith("-")


def test_the_constant_judge_names_the_most_frequent_first_error():
  """Of several the earliest; none in a solution that is too short for it."""
  of = [(2, STEPS), (2, STEPS), (0, STEPS), (0, STEPS), (-1, STEPS[:2])]
  judged, people = zip(
    *(_pair(i, error, 0, 0, steps) for i, (error, steps) in enumerate(of))
  )
  *_, row = principle_agreement.measured(judged[1:], people[1:])
  assert row["all"]["first_error_same"]["value"] == 2 / 4
  *_, row = principle_agreement.measured(judged, people)
  assert row["with_an_error"]["first_error_same"]["value"] == 2 / 4
  *_, row = principle_agreement.measured(
    [*judged[:3], judged[4]], [*people[:3], people[4]]
  )
  # Of three steps the last is wrong, of two none is.
  assert row["all"]["first_error_same"]["value"] == 3 / 4


def test_a_principle_may_be_called_label():
  judged, people = _pair(0, 1, 0, 1)
  graded = judged.extra[judge_prompts.GRADED]
  graded["principles"]["label"] = graded["principles"].pop("style")
  rows = principle_agreement.measured([judged], [people])
  same = {x["principle"]: x["all"]["first_error_same"]["value"] for x in rows}
  assert same["label"] == 1 and same["the label"] == 0


@pytest.mark.parametrize("graded", ["x", dict(principles=dict(sums={}))])
def test_solutions_of_two_rubrics_arent_compared(graded):
  judged, people = zip(*(_pair(i, 1, 0, 1) for i in range(2)))
  other = dataclasses.replace(judged[1], extra={judge_prompts.GRADED: graded})
  with pytest.raises(errors.InputError, match="solution '1'"):
    principle_agreement.measured([judged[0], other], people)
