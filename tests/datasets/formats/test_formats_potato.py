"""Laws of Potato's export: only what a person marked is a rating."""

import collections
import json

from hypothesis import given
from hypothesis import strategies as st
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.datasets import convert
from prm_jax.datasets.formats import potato
from prm_jax.records import jsonl
from prm_jax.records import sources

STEPS = ("a", "b", "c")


def _given(**changes):
  values = dict(id="x", problem="p", steps=STEPS, labels=(1.0, None, None))
  return schema.Solution(**(values | changes))


def _step(index, reward, **fields):
  return dict(index=index, reward=reward) | fields


def _human(index, reward):
  return _step(index, reward, source="human", verified=True)


def _unmarked(index, reward=None):
  return _step(index, reward, verified=False)


def _row(*steps, mode="per_step", **fields):
  row = dict(instance_id="x", annotator="ann", steps=list(steps), mode=mode)
  return row | fields


def _read(write_rows, *rows, solutions=None):
  left_out = collections.Counter()
  solutions = [_given()] if solutions is None else solutions
  found = [*potato.read(write_rows(*rows), solutions, left_out)]
  return found, dict(left_out)


def _ratings(write_rows, *steps, mode="per_step"):
  (one,), left_out = _read(write_rows, _row(*steps, mode=mode))
  return one.ratings, left_out


def test_an_annotators_marks_are_ratings_of_the_solution_that_was_given(
  write_rows,
):
  row = _row(_human(0, 1), _human(1, 0), _human(2, -1))
  (one,), left_out = _read(write_rows, row)
  assert (one.problem, one.steps) == ("p", STEPS)
  assert one.ratings == (1, 0, -1) and one.labels is None
  assert one.id == "x/ann" and one.extra[schema.ANNOTATOR] == "ann"
  assert one.extra["potato"] == dict(mode="per_step", steps=row["steps"])
  assert left_out == {}


# Neither an unmarked step nor a suggestion is what a person said.
@pytest.mark.parametrize(
  "step, rating",
  [
    (_unmarked(2), None),
    (_unmarked(2, 0), None),
    # After a reload the tool calls unmarked steps a human's.
    (_step(2, 0, source="human", verified=False), None),
    (_step(2, None), None),
    (_step(2, 0), None),
    (_step(2, 1), 1),
    (_step(2, 1, source="ai", verified=False), None),
    (_step(2, 1, source="ai"), None),
    (_step(2, 1, source="ai", verified=True, ai_reward=1), 1),
    (_step(2, -1, source="human", verified=True, ai_reward=1), -1),
    (_human(2, 0), 0),
  ],
)
def test_only_what_a_person_marked_or_confirmed_is_a_rating(
  step, rating, write_rows
):
  ratings, left_out = _ratings(write_rows, _human(0, 1), _human(1, 1), step)
  assert ratings == (1, 1, rating)
  assert sum(left_out.values()) == (rating is None)
  suggested = step.get("source") == "ai" and rating is None
  assert ("suggestions_that_nobody_verified" in left_out) == suggested


def test_an_old_record_with_an_unmarked_step_has_neutral_ones(write_rows):
  # As the tool's page on process supervision prints it.
  steps = [_step(0, 1), _step(1, 0), _step(2, None)]
  assert _ratings(write_rows, *steps)[0] == (1, 0, None)


@given(error=st.integers(0, 2))
def test_what_follows_the_first_error_is_not_wrong_but_unrated(
  error, write_rows
):
  steps = [_human(i, 1 if i < error else -1) for i in range(3)]
  ratings, left_out = _ratings(write_rows, *steps, mode="first_error")
  assert ratings == ((1,) * error + (-1,) + (None,) * 3)[:3]
  assert left_out.get("steps_after_the_first_error", 0) == 2 - error
  per_step, left_out = _ratings(write_rows, *steps)
  assert per_step == tuple(x["reward"] for x in steps) and left_out == {}


def test_steps_after_a_mark_of_right_alone_stay_unmarked(write_rows):
  steps = [_human(0, 1), _unmarked(1, 0), _unmarked(2, 0)]
  ratings, left_out = _ratings(write_rows, *steps, mode="first_error")
  assert ratings == (1, None, None)
  assert left_out == {"steps_that_nobody_marked": 2}


def test_several_annotators_are_as_many_solutions_and_the_rest_is_counted(
  write_rows,
):
  steps = [_human(i, 1) for i in range(3)]
  rows = [_row(*steps), _row(*steps, annotator="bob")]
  solutions = [_given(), _given(id="y"), _given(id="z")]
  found, left_out = _read(write_rows, *rows, solutions=solutions)
  assert [s.id for s in found] == ["x/ann", "x/bob"]
  assert left_out == {"solutions_that_nobody_annotated": 2}


GOOD = [_human(i, 1) for i in range(3)]


@pytest.mark.parametrize(
  "row, message",
  [
    (_row(*GOOD, instance_id="q"), "'q' is the id of none of the 1 solutions"),
    (_row(*GOOD), "'x/ann' was used at"),
    (_row(*GOOD[:2], annotator="b"), "2 entries for 3 steps"),
    (
      _row(*GOOD, annotator="b", mode="all"),
      "expected per_step or first_error",
    ),
    (_row(*GOOD, annotator=None), '"annotator" is null'),
    (_row(*GOOD[:2], _human(1, 1), annotator="b"), '"index" is 1'),
    (_row(*GOOD[:2], _human(2, 3), annotator="b"), '"reward" is 3'),
    (_row(*GOOD[:2], _step(2, "1"), annotator="b"), '"reward" must be int'),
    (_row(*GOOD[:2], 5, annotator="b"), "must be an object, found int"),
    (
      _row(*GOOD[:2], _step(2, 1, verified=1), annotator="b"),
      '"verified" must',
    ),
  ],
)
def test_a_bad_record_is_one_line_with_its_place(row, message, write_rows):
  with pytest.raises(errors.InputError) as caught:
    _read(write_rows, _row(*GOOD), row)
  told = str(caught.value)
  assert ":2: " in told and message in told and "\n" not in told


def test_a_format_names_the_file_that_the_tool_was_given(tmp_path):
  export = tmp_path / "prm_training_data.jsonl"
  export.write_text(json.dumps(_row(*GOOD)) + "\n")
  ours, other = tmp_path / "given.jsonl", tmp_path / "other.jsonl"
  jsonl.write(ours, [_given()])
  other.write_text('{"n": "x", "q": "p", "s": ["a", "b", "c"]}\n')
  names = (
    f"potato({ours})",
    f"potato(jsonl:{ours})",
    f"potato(map(id=n,problem=q,steps=s):{other})",
  )
  for name in names:
    (one,), _ = sources.read(name, export)
    assert (one.id, one.steps, one.ratings) == ("x/ann", STEPS, (1, 1, 1))
    (same,) = sources.open_source(f"{name}:{export}")
    assert same.ratings == one.ratings
  with pytest.raises(errors.InputError, match=r"potato\(solutions.jsonl\)"):
    sources.read("potato", export)
  with pytest.raises(errors.InputError, match="is read by this command"):
    convert.convert((names[0], export), "jsonl", ours)
