"""Laws of chat records, and of all forms that hold conversations."""

import json

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.datasets import formats
from prm_jax.datasets.formats import atif
from prm_jax.datasets.formats import chat
from prm_jax.records import jsonl
from prm_jax.text import messages

CALL = {
  "id": "c1",
  "type": "function",
  "function": {"name": "sql", "arguments": '{"query":  "SELECT 1"}', "x": 1},
  "index": 0,
}
ROW = {
  "messages": [
    {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
    {"role": "user", "content": "How many?", "name": "ann"},
    {
      "role": "assistant",
      "content": None,
      "reasoning": "I look.",
      "tool_calls": [CALL],
      "logprobs": None,
    },
    {"role": "tool", "tool_call_id": "c1", "content": "1", "is_error": False},
    {"role": "assistant", "content": "One."},
    {"role": "user", "content": "Thanks."},
  ],
  "tools": [{"type": "function", "function": {"name": "sql"}, "strict": True}],
  "split": "train",
  "metadata": {"a": [1]},
}


def _written(path, row, folder):
  path.write_text(json.dumps(row))
  chat.write(folder / "written.jsonl", chat.read(path))
  return json.loads((folder / "written.jsonl").read_text())


@pytest.mark.parametrize(
  "change",
  [
    {},
    {"id": "a", "labels": [1, None], "ratings": [1, 0], "outcome": True},
    {"id": 7, "answer": "1", "source": "me"},
    {"id": None, "labels": None, "tools": None, "answer": "", "outcome": None},
    {"tools": [], "source": "", "labels": [0.25, 1.0]},
    {"messages": []},
  ],
)
def test_a_record_comes_back_with_every_field_that_is_not_known(change, folder):
  row = ROW | change
  assert _written(folder / "in.jsonl", row, folder) == row


def test_messages_and_tools_that_are_json_texts_are_the_same(folder):
  path = folder / "in.jsonl"
  texts = {name: json.dumps(ROW[name]) for name in ("messages", "tools")}
  assert _written(path, ROW | texts, folder) == ROW


def test_everything_but_the_turns_of_the_assistant_is_context(read_row):
  found = read_row("chat", ROW)
  assert found.steps == ('sql({"query": "SELECT 1"})', "One.")
  assert found.problem == "How many?"
  roles = [x.role for x in found.messages]
  assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
  assert found.messages[2].thinking == "I look."


def test_a_made_id_is_not_written_and_a_given_one_is(read_row, folder):
  made = read_row("chat", ROW)
  assert made.id == "chat/rows:1"
  for solution, is_written in (
    (made, False),
    (read_row("chat", ROW | {"id": "a"}), True),
  ):
    chat.write(folder / "out.jsonl", [solution])
    assert (
      "id" in json.loads((folder / "out.jsonl").read_text())
    ) is is_written


def test_a_label_takes_the_place_of_a_field_that_said_null(read_row, folder):
  solution = read_row("chat", ROW | {"labels": None, "source": ""})
  values = vars(solution) | {"labels": (1.0, 0.0), "source": "me"}
  chat.write(folder / "out.jsonl", [schema.Solution(**values)])
  written = json.loads((folder / "out.jsonl").read_text())
  assert written == ROW | {"labels": [1.0, 0.0], "source": "me"}


# --- All forms of conversations ----------------------------------------------

TEXT = st.sampled_from(["So", "1+1?", "a\n\nb", '{"x": 1}', "name({})", "ки "])
NAME = st.sampled_from(["add", "sql"])
ARGUMENTS = st.dictionaries(TEXT, st.none() | st.integers() | TEXT, max_size=2)


@st.composite
def trajectories(draw):
  """Conversations that make sense, as messages without a record."""
  said = [schema.Message("system", draw(TEXT))] if draw(st.booleans()) else []
  for turn in range(draw(st.integers(1, 3))):
    said += [schema.Message("user", draw(TEXT))]
    calls = tuple(
      schema.Call(draw(NAME), draw(ARGUMENTS), f"c{turn}.{i}")
      for i in range(draw(st.integers(0, 2)))
    )
    said += [
      schema.Message("assistant", draw(TEXT), draw(st.none() | TEXT), calls)
    ]
    said += [schema.Message("tool", draw(TEXT), answers=x.id) for x in calls]
  turns = sum(x.role == "assistant" for x in said)
  each = st.lists(st.sampled_from([None, -1, 0, 1]), min_size=turns)
  return messages.trajectory(
    said,
    id=draw(st.sampled_from(["a", "chat/x", "7"])),
    tools=draw(st.sampled_from([(), ({"name": "add"},)])),
    ratings=draw(st.none() | each.map(lambda x: tuple(x[:turns]))),
    outcome=draw(st.none() | st.booleans()),
    answer=draw(st.none() | TEXT),
  )


@pytest.mark.parametrize("name", formats.OF_TRAJECTORIES)
@settings(max_examples=40, deadline=None)
@given(solution=trajectories())
def test_a_trajectory_reads_back_the_same_in_each_form(name, solution, folder):
  path = folder / f"trajectories-{name}.jsonl"
  formats.FORMATS[name].write(path, [solution])
  (same,) = formats.FORMATS[name].read(path)
  unrated = {None, *(solution.ratings or ())} == {None}
  for field in ("messages", "tools", "steps", "problem", "outcome", "answer"):
    assert getattr(same, field) == getattr(solution, field), field
  assert same.ratings == solution.ratings or (
    unrated and not any(same.ratings or ())
  )
  # What a reader keeps of a form is no hindrance in our own.
  again = jsonl.record_from_solution(same)
  assert jsonl.solution_from_record(again, "x:1") == same


@pytest.mark.parametrize("name", formats.OF_TRAJECTORIES)
@settings(max_examples=20, deadline=None)
@given(solution=trajectories(), num_turns=st.integers(1, 3))
def test_a_beginning_is_written_without_what_came_after_it(
  name, solution, num_turns, folder
):
  path = folder / f"beginnings-{name}.jsonl"
  formats.FORMATS[name].write(path, [solution])
  (read,) = formats.FORMATS[name].read(path)
  begun = schema.first_turns(read, min(num_turns, len(read.steps)))
  formats.FORMATS[name].write(path, [begun])
  (same,) = formats.FORMATS[name].read(path)
  assert same.messages == begun.messages


def test_a_clash_with_a_field_of_another_form_is_refused(read_row, folder):
  solution = read_row("chat", ROW | {"answer": "1"})
  fields = dict(solution.extra["fields"]) | {"answer": "2"}
  extra = dict(solution.extra) | {"fields": fields}
  bad = schema.Solution(**(vars(solution) | {"extra": extra}))
  with pytest.raises(errors.InputError, match='"fields" holds answer,'):
    chat.write(folder / "no.jsonl", [bad])


@pytest.mark.parametrize("form", [chat, atif])
def test_labels_that_ratings_contradict_are_refused_before_they_are_written(
  form, tmp_path
):
  said = [dict(role="user", content="q"), dict(role="assistant", content="x")]
  both = messages.trajectory(said, id="a", labels=(1.0,), ratings=(-1,))
  with pytest.raises(errors.InputError, match="solution 'a': \"labels\""):
    form.check(both)
  with pytest.raises(errors.InputError, match="solution 'a': \"labels\""):
    form.write(tmp_path / "out.jsonl", [both])
  assert not (tmp_path / "out.jsonl").exists()
