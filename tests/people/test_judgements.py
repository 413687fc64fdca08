"""What a person says is a function of the events; an undo takes one back."""

import desks
import hypothesis
from hypothesis import strategies as st
import pytest

from prm_jax import errors
from prm_jax.people import judgements


def rate(step, rating, alternative=0):
  return dict(kind="rate", step=step, alternative=alternative, rating=rating)


def said(task, *events):
  item, kept = desks.item(task), []
  for event in events:
    state = judgements.check(item, kept, event)
    kept.append(event)
  return state


def test_a_first_error_ends_the_item_and_later_steps_have_no_rating():
  state = said("first_error", rate(0, 1), rate(1, -1))
  assert state.reason == judgements.FOUND_ERROR
  assert state.ratings == {(0, 0): 1, (1, 0): -1}


def test_the_last_step_ends_the_item_as_a_solution():
  state = said("first_error", rate(0, 1), rate(1, 0))
  assert state.reason is None
  state = said("first_error", rate(0, 1), rate(1, 0), rate(2, 1))
  assert state.reason == judgements.SOLUTION


def test_one_key_names_the_first_error_or_says_that_there_is_none():
  state = said("first_error", rate(0, 0), dict(kind="error", step=2))
  assert [state.rating(i) for i in range(3)] == [0, 1, -1]
  assert state.reason == judgements.FOUND_ERROR
  state = said("first_error", rate(0, 0), dict(kind="right"))
  assert [state.rating(i) for i in range(3)] == [0, 1, 1]
  assert state.reason == judgements.SOLUTION


def test_every_step_is_rated_in_any_order_and_rated_again():
  state = said("per_step", rate(2, -1), rate(0, 1), rate(2, 0), rate(1, -1))
  assert [state.rating(i) for i in range(3)] == [1, -1, 0]
  assert state.reason == judgements.SOLUTION


def test_alternatives_are_rated_and_one_is_taken_or_written():
  item = desks.item("alternatives")
  assert item.alternatives(()) == ("2 + 2 = 4", "2 + 2 = 5")
  assert item.alternatives(("2 + 2 = 4",)) == ("so 4 x 3 = 12", "4 x 3 = 13")
  state = said(
    "alternatives",
    rate(0, 1, 0),
    rate(0, -1, 1),
    dict(kind="take", alternative=0),
    rate(1, -1, 1),
    dict(kind="write", text="4 times 3 is 12"),
    dict(kind="end", reason="solution"),
  )
  assert state.path == ("2 + 2 = 4", "4 times 3 is 12")
  assert state.written == {1} and state.reason == "solution"
  assert state.ratings == {(0, 0): 1, (0, 1): -1, (1, 1): -1}


def test_one_of_two_solutions_is_preferred_or_neither():
  for preferred in (0, 1, None):
    state = said("pairs", dict(kind="prefer", solution=preferred))
    assert (state.preferred, state.reason) == (preferred, "solution")


def test_a_flag_is_taken_back_by_another():
  flag = dict(kind="flag", step=1, alternative=0)
  assert said("per_step", flag).flags == {(1, 0)}
  assert said("per_step", flag, flag).flags == frozenset()


@pytest.mark.parametrize(
  "task, events, why",
  [
    ("first_error", [rate(1, 1)], "isn't the next one"),
    ("first_error", [rate(0, 1), rate(0, 1)], "isn't the next one"),
    ("first_error", [rate(0, -1), rate(1, 1)], r"has ended \(found_error\)"),
    ("first_error", [rate(0, 1), dict(kind="error", step=0)], "undo that"),
    ("first_error", [dict(kind="error", step=3)], "no step 3"),
    ("per_step", [rate(3, 1)], "no step 3"),
    ("per_step", [rate(-1, 1)], "no step -1"),
    ("per_step", [rate(0, 1, 1)], "alternative 1"),
    ("per_step", [dict(kind="right")], "no event of the task"),
    ("alternatives", [dict(kind="take", alternative=0)], "isn't rated 0 or 1"),
    (
      "alternatives",
      [rate(0, -1, 1), dict(kind="take", alternative=1)],
      "isn't rated 0 or 1",
    ),
    ("alternatives", [dict(kind="write", text=" ")], "the step is empty"),
    ("pairs", [dict(kind="prefer", solution=2)], "no solution 2"),
    ("pairs", [dict(kind="undo")], "nothing to undo"),
    ("per_step", [rate(0, 2)], "expected -1, 0 or 1"),
    ("per_step", [rate(0, True)], "rating is True"),
    ("per_step", [dict(kind="rate", step=0)], "expected kind, step"),
    ("per_step", [dict(kind="sing")], "kind is 'sing'"),
    ("per_step", [["rate"]], "kind is None"),
    ("per_step", [dict(kind="end", reason="tired")], "expected solution"),
    ("per_step", [dict(kind="end", reason="solution")], "rate the steps"),
    ("first_error", [dict(kind="end", reason="found_error")], "rate the steps"),
    ("alternatives", [dict(kind="write", text="\ud800")], "half a character"),
  ],
)
def test_an_event_that_doesnt_fit_is_refused_in_one_line(task, events, why):
  with pytest.raises(errors.InputError, match=why) as e:
    said(task, *events)
  assert "\n" not in str(e.value)


_EVENTS = st.one_of(
  st.builds(rate, st.integers(0, 3), st.integers(-1, 1), st.integers(0, 2)),
  st.sampled_from(
    [
      *(dict(kind="error", step=i) for i in range(3)),
      *(dict(kind="take", alternative=i) for i in range(2)),
      *(dict(kind="end", reason=x) for x in judgements.REASONS),
      *(dict(kind="prefer", solution=x) for x in (0, 1, None)),
      dict(kind="right"),
      dict(kind="write", text="so"),
      dict(kind="flag", step=0, alternative=0),
      dict(kind="undo"),
    ]
  ),
)


@pytest.mark.parametrize("task", judgements.TASKS)
@hypothesis.given(st.lists(_EVENTS, max_size=12))
def test_an_undo_is_as_if_the_last_event_had_not_been(task, events):
  item, kept, states = desks.item(task), [], [judgements.State()]
  for event in events:
    try:
      state = judgements.check(item, kept, event)
    except errors.InputError:
      continue
    kept.append(event)
    if event["kind"] == "undo":
      states.pop()
      assert state == states[-1]
    else:
      states.append(state)
  assert judgements.state_of(item, kept) == states[-1]


def test_people_disagree_on_the_first_error_and_not_on_what_isnt_wrong():
  right = said("first_error", dict(kind="right"))
  neutral = said("first_error", rate(0, 0), dict(kind="right"))
  first, second = (
    said("first_error", dict(kind="error", step=i)) for i in range(2)
  )
  assert not judgements.differ([right, neutral, right])
  assert judgements.differ([right, first])
  assert judgements.differ([first, first, second])
  assert not judgements.differ([]) and not judgements.differ([first])
