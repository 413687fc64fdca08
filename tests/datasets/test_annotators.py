"""What several annotators say becomes one solution by rules that count all."""

import collections
import dataclasses

import hypothesis
from hypothesis import given
from hypothesis import strategies as st
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.datasets import annotators
from prm_jax.datasets import convert
from prm_jax.records import jsonl
from prm_jax.text import encoding
from prm_jax.text import messages


def _of(name, labels, *, ratings=None, problem="p", **fields):
  num = len(labels if ratings is None else ratings)
  steps = fields.pop("steps", tuple("abcde"[:num]))
  extra = {} if name is None else {schema.ANNOTATOR: name}
  return schema.Solution(
    fields.pop("id", f"x/{name}"),
    problem,
    steps,
    labels=labels,
    ratings=ratings,
    extra=extra | fields.pop("extra", {}),
    **fields,
  )


def _merged(solutions, how):
  left_out = collections.Counter()
  merged = [*annotators.merged(solutions, how, left_out)]
  return merged, dict(left_out)


def _table(rows, how):
  """Returns the labels that rows of labels become."""
  ((one,), left_out) = _merged(
    [_of(str(i), r) for i, r in enumerate(rows)], how
  )
  return one.labels, left_out


@st.composite
def _free(draw):
  """Labels of each annotator, not all of whom stop at an error."""
  n = draw(st.integers(1, 4))
  label = st.sampled_from([0.0, 1.0, None])
  row = st.lists(label, min_size=n, max_size=n).map(tuple)
  rows = draw(st.lists(row, min_size=1, max_size=4))
  return rows


@st.composite
def _first_errors(draw):
  n = draw(st.integers(1, 4))
  errors_ = draw(st.lists(st.integers(0, n), min_size=1, max_size=5))
  rows = [((1.0,) * e + (0.0,) + (None,) * n)[:n] for e in errors_]
  return n, errors_, rows


def _looks_on(row):
  """Whether an annotator labels a step after an error."""
  wrong = [i for i, x in enumerate(row) if x == 0]
  return bool(wrong) and any(x is not None for x in row[wrong[0] + 1 :])


@given(rows=_free())
def test_a_step_has_the_label_of_more_than_half(rows):
  hypothesis.assume(any(map(_looks_on, rows)))
  expected, num_open = [], 0
  for column in zip(*rows):
    votes = [x for x in column if x is not None]
    label = next((x for x in votes if 2 * votes.count(x) > len(votes)), None)
    num_open += bool(votes) and label is None
    expected.append(label)
  labels, left_out = _table(rows, "vote")
  assert labels == tuple(expected)
  assert left_out.get("steps without a majority", 0) == num_open


@given(given_=_first_errors())
def test_a_first_error_is_that_of_more_than_half(given_):
  n, found, rows = given_
  expected = []
  for i in range(n):
    later, here = (sum(f(e) for e in found) for f in (i.__lt__, i.__eq__))
    is_right, is_error = 2 * later > len(found), 2 * here > len(found)
    expected.append(1.0 if is_right else 0.0 if is_error else None)
    if not is_right:
      break
  expected += [None] * (n - len(expected))
  labels, left_out = _table(rows, "vote")
  assert labels == tuple(expected)
  lost = sum(
    any(row[i] is not None for row in rows) and labels[i] is None
    for i in range(n)
  )
  assert sum(left_out.values()) == lost


def test_a_vote_ends_where_the_first_error_is_open():
  # Who skips the first step can't make the second one right.
  rows = [(0.0, None), (1.0, 1.0), (None, 1.0)]
  labels, left_out = _table(rows, "vote")
  assert labels == (None, None)
  assert left_out == {
    "steps without a majority": 1,
    "steps after the majority's first error, or where it is open": 1,
  }


@given(given_=_first_errors())
def test_a_mean_is_the_share_that_still_finds_no_error(given_):
  n, found, rows = given_
  labels, left_out = _table(rows, "mean")
  for i in range(n):
    share = sum(e > i for e in found) / len(found)
    assert labels[i] == (share if max(found) >= i else None)
  assert left_out == {}


@given(given_=_first_errors())
def test_the_order_of_annotators_changes_no_label(given_):
  _, _, rows = given_
  for how in ("vote", "mean"):
    assert _table(rows, how) == _table(rows[::-1], how)


def test_a_mean_is_of_those_who_label_the_step():
  rows = [(0.0, 1.0, None), (0.5, 1.0, 0.25), (1.0, None, None)]
  assert _table(rows, "mean")[0] == (0.5, 1.0, 0.25)


def test_soft_labels_vote_by_their_side():
  rows = [(0.9, 0.1, 0.4), (0.6, 0.8, 0.1), (0.2, 0.9, 0.8)]
  assert _table(rows, "vote")[0] == (1.0, 1.0, 0.0)


def test_ratings_vote_as_ratings_and_two_kinds_of_right_go_on():
  rows = [(1, 0, 1, -1), (1, 1, 1, -1), (1, 0, -1, None), (1, 1, 1, 1)]
  given_ = [_of(str(i), None, ratings=r) for i, r in enumerate(rows)]
  (one,), left_out = _merged(given_, "vote")
  # Of the last step 2 of 4 say that it is the first error.
  assert one.ratings == (1, None, 1, None) and one.labels is None
  assert left_out == {"steps without a majority": 2}


def test_only_the_same_problem_steps_and_context_are_one_solution():
  same = [_of("a", (1.0,)), _of("b", (0.0,))]
  other = [
    _of("c", (1.0,), problem="q"),
    _of("d", (1.0,), steps=("A",)),
    _of(None, (1.0,), id="e"),
    _of(None, (0.0,), id="f"),
  ]
  groups = annotators.grouped([same[0], *other, same[1]])
  assert [[s.id for s in group] for group in groups] == [
    ["x/a", "x/b"], *([s.id] for s in other)
  ]  # fmt: skip
  said = [dict(role="user", content="?"), dict(role="assistant", content="a")]
  call = dict(function=dict(name="f", arguments={}))
  for result in "12":
    middle = dict(role="assistant", content="", tool_calls=[call])
    told = [said[0], middle, dict(role="tool", content=result), said[1]]
    said_on = messages.trajectory(told, id=result, extra=dict(annotator=result))
    same.append(said_on)
  assert len(annotators.grouped(same)) == 3


def test_one_solution_keeps_what_all_have_and_names_who_labelled_it():
  first = _of("a", (1.0,), outcome=True, extra=dict(topic="sums", time_s=3))
  second = _of("b", (1.0,), outcome=None, extra=dict(topic="sums", time_s=4))
  (one,), left_out = _merged([first, second], "vote")
  assert one.id == "x" and one.outcome is True and left_out == {}
  assert one.extra == dict(topic="sums", annotators=["a", "b"])
  second = dataclasses.replace(second, outcome=False)
  (one,), left_out = _merged([first, second], "vote")
  assert one.outcome is None
  assert left_out == {"outcomes on which annotators differ": 1}


def test_ids_stay_different():
  twice = [_of(n, (1.0,), problem=p, id=f"x/{n}") for n, p in ("ap", "bq")]
  found, _ = _merged([*twice, _of(None, (1.0,), id="y")], "vote")
  assert [s.id for s in found] == ["x", "x/b", "y"]
  found, _ = _merged([twice[0], _of(None, (1.0,), id="x")], "vote")
  assert [s.id for s in found] == ["x/a", "x"]


def test_a_second_judgement_by_one_annotator_is_counted_and_not_used():
  given_ = [_of("a", (1.0,)), _of("a", (0.0,)), _of("a", (0.0,))]
  (one,), left_out = _merged(given_, "vote")
  assert one.labels == (1.0,)
  twice = "second judgements of a solution by one annotator"
  assert left_out == {twice: 2}


def test_who_decided_between_others_is_no_judgement_of_their_own():
  """It has seen what they said: it votes, and agrees with nobody."""
  for why, is_own in (("random", True), ("adjudication", False)):
    said = _of("a", (1.0,), extra={schema.GIVEN_FOR: why})
    assert (annotators.judgement(said) is not None) == is_own


def test_who_names_nobody_is_unchanged_and_each_changes_nothing():
  unnamed = [_of(None, (0.3,), id=i) for i in "de"]
  assert _merged([*unnamed, _of("a", (1.0,))], "mean")[0][:2] == unnamed
  given_ = [_of("a", (1.0,)), _of("b", (0.0,))]
  assert _merged(given_, "each") == (given_, {})
  assert _merged([], "vote") == ([], {})


@pytest.mark.parametrize(
  "solutions, how, message",
  [
    ([_of(None, (1.0,))], "vote", "no solution says who labelled it"),
    ([_of("a", None, ratings=(1,))], "mean", "a mean is of labels"),
    (
      [_of("a", None, ratings=(1,)), _of("b", (1.0,))],
      "vote",
      "'x/a': has ratings, and others have labels",
    ),
  ],
)
def test_what_cannot_be_merged_is_refused(solutions, how, message):
  with pytest.raises(errors.InputError, match=message) as caught:
    _merged(solutions, how)
  assert "\n" not in str(caught.value)


def test_converting_merges_after_the_label_policy_and_says_what_is_lost(
  tmp_path,
):
  given_ = [
    _of("a", None, ratings=(1, 0, -1)),
    _of("b", None, ratings=(1, 1, 1)),
    _of("c", None, ratings=(0, -1, None)),
  ]
  jsonl.write(tmp_path / "in.jsonl", given_)
  done = convert.convert(
    ("jsonl", tmp_path / "in.jsonl"),
    *("jsonl", tmp_path / "out.jsonl"),
    policy=encoding.LabelPolicy("good", "ignore"),
    merge="vote",
  )
  (one,) = jsonl.read(tmp_path / "out.jsonl")
  assert one.id == "x" and one.labels == (1.0, 1.0, None)
  assert done.left_out == {"steps without a majority": 1}
  assert done.solutions == 1 and not done.changed
