"""A judge by a rubric is measured on what it does beyond naming one step."""

import pathlib

import pytest

from prm_jax import schema
from prm_jax.labelling import llm_judge
from prm_jax.labelling import rubrics

EXPERIMENTS = pathlib.Path(__file__).parents[2] / "experiments"
RUBRIC = rubrics.Rubric(
  (
    rubrics.Principle("sums", "Right sums.", fatal=True),
    rubrics.Principle("style", "Clear."),
  )
)


def _people(i, error):
  end = 3 if error < 0 else error + 1
  labels = [float(k != error) for k in range(end)] + [None] * (3 - end)
  return schema.Solution(f"{i}", f"{i}?", ("a", "b", "c"), labels=(*labels,))


def _answer(error):
  return "".join(
    f"<analysis_{k + 1}>\nsums | {int(k != error)} | x\nstyle | 1 | x\n"
    f"overall | 1 | x\n</analysis_{k + 1}>\n"
    for k in range(3)
  )


def test_a_judge_that_is_right_is_above_one_that_always_says_the_same(
  monkeypatch,
):
  """And one that can't be read, or finds nothing, isn't."""
  monkeypatch.syspath_prepend(str(EXPERIMENTS))
  import judge_rubric

  errors = [0, 1, 1, 2, -1, -1, 2]
  people = [_people(i, error) for i, error in enumerate(errors)]
  texts = {s.problem: _answer(error) for s, error in zip(people, errors)}
  texts["6?"] = "raves"

  def generate(prefixes, n):
    of = (next(t for p, t in texts.items() if p in x.problem) for x in prefixes)
    return [
      [schema.Solution(x.id, x.problem, (t,))] for x, t in zip(prefixes, of)
    ]

  judged, _ = llm_judge.label(
    people, generate, rubrics.template(RUBRIC), keep_texts=True
  )
  others = [_people(i, error) for i, error in enumerate([1, 1, -1, -1, -1, 0])]
  found = judge_rubric.measured(judged, people, others, RUBRIC)
  assert found["always"] == 1
  assert found["scores"]["sums"] == {"0.0": 4, "1.0": 14}
  assert found["reasons"] == dict(no_verdict=1)
  assert found["unusable"]["value"] == pytest.approx(1 / 7)
  assert (found["readable"], found["readable_with_an_error"]) == (6, 4)
  rows = {
    name: [None if x is None else x["value"] for x in row.values()]
    for name, row in found["by_principle"].items()
  }
  assert rows["sums"] == rows["the label"] == [1, 0.5, 1, 0, 1]
  assert rows["style"] == rows["overall"] == [0, -0.5, 0, 0, 0]
  assert "| sums | 100 [100, 100] |" in judge_rubric.table(found)
