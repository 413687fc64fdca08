"""Conversations become trajectories, whose steps are the assistant's turns."""

import dataclasses
import time

import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.records import jsonl
from prm_jax.text import messages
from prm_jax.text import segmenters
from prm_jax.text import turn_cuts

USER = dict(role="user", content="How many orders are open?")
CALL = dict(
  role="assistant",
  content="I look.",
  tool_calls=[
    dict(
      id="a",
      type="function",
      function=dict(name="sql", arguments='{"query": "SELECT 1"}'),
    )
  ],
)
RESULT = dict(role="tool", tool_call_id="a", content="1")
ANSWER = dict(role="assistant", content="One.\n\nIt is open.")
WHOLE = (USER, CALL, RESULT, ANSWER)


def _call(**changes):
  (call,) = CALL["tool_calls"]
  return CALL | dict(tool_calls=[call | changes])


def test_a_step_is_a_turn_with_its_calls_and_the_problem_what_users_say_before():
  first = dict(role="system", content="Be brief.")
  trajectory = messages.trajectory([first, USER, *WHOLE], labels=(1.0, 0.0))
  assert trajectory.problem == "\n\n".join([USER["content"]] * 2)
  assert trajectory.steps == (
    'I look.\nsql({"query": "SELECT 1"})',
    ANSWER["content"],
  )


@pytest.mark.parametrize(
  "changes", [{}, dict(content=None), dict(content=[dict(text="One.")])]
)
def test_openais_and_hugging_faces_arguments_are_the_same_call(changes):
  (call,) = CALL["tool_calls"]
  objects = call["function"] | dict(arguments=dict(query="SELECT 1"))
  both = (CALL, _call(function=objects))
  first, second = (
    messages.trajectory([USER, x | changes, RESULT, ANSWER]) for x in both
  )
  assert first == second


def test_records_come_back_as_they_were_with_fields_that_are_not_known():
  given = [x | dict(seen=[1]) for x in WHOLE]
  trajectory = messages.trajectory(given, tools=[dict(name="sql")])
  record = jsonl.record_from_solution(trajectory)
  assert record["messages"] == given
  again = jsonl.solution_from_record(record, "x:1")
  assert again == trajectory
  del record["steps"], record["problem"]
  assert jsonl.solution_from_record(record, "x:1") == trajectory


def test_a_message_without_a_record_is_written_in_hugging_faces_form():
  made = [
    dataclasses.replace(x, record={})
    for x in messages.trajectory(WHOLE).messages
  ]
  records = [messages.record_of(x) for x in made]
  (call,) = records[1]["tool_calls"]
  assert call["function"]["arguments"] == dict(query="SELECT 1")
  assert messages.read(records, "x") == tuple(made)


def test_turns_cut_into_steps_are_of_their_turns_and_begin_with_whole_ones():
  cut = turn_cuts.cut(messages.trajectory(WHOLE), segmenters.PARAGRAPH)
  assert cut.steps == (
    'I look.\nsql({"query": "SELECT 1"})',
    "One.",
    "It is open.",
  )
  assert schema.turns_of(cut) == (0, 1, 1)
  begun = schema.first_steps(cut, 1)
  assert begun.steps == cut.steps[:1] and len(begun.messages) == 2
  assert schema.first_steps(cut, 0).messages == cut.messages[:1]
  with pytest.raises(errors.InputError, match="end within a turn"):
    schema.first_steps(cut, 2)
  record = jsonl.record_from_solution(cut)
  assert jsonl.solution_from_record(record, "x:1") == cut


def test_steps_that_are_not_the_turns_are_refused():
  trajectory = messages.trajectory(WHOLE)
  for changes in (
    dict(steps=trajectory.steps[:1]),
    dict(messages=trajectory.messages[:1]),
    dict(messages=WHOLE),
  ):
    with pytest.raises(errors.InputError, match=r"prm_jax\.trajectory"):
      dataclasses.replace(trajectory, **changes)


BAD = {
  "an unanswered call": ([USER, CALL, ANSWER], "'sql' before it has no result"),
  "a call that a user follows": (
    [USER, CALL, USER],
    "is of role user, but the call of 'sql' before it has no result",
  ),
  "two turns in a row": ([USER, ANSWER, ANSWER], "two assistant messages"),
  "an empty turn": ([USER, ANSWER | dict(content=" ")], "an empty turn"),
  "no content": ([USER, dict(role="assistant")], "an empty turn"),
  "arguments that are a list": (
    [USER, _call(function=dict(name="sql", arguments=[1]))],
    r"messages\[1\]: tool_calls\[0\]: arguments is \[1\]",
  ),
  "arguments that aren't JSON": (
    [USER, _call(function=dict(name="sql", arguments="{query: 1}"))],
    "isn't the JSON of an object",
  ),
  "arguments of two values": (
    [USER, _call(function=dict(name="sql", arguments='{"a": 1, "a": 2}'))],
    "isn't the JSON of an object",
  ),
  "arguments that JSON can't hold": (
    [USER, _call(function=dict(name="sql", arguments={"a": {1, 2}}))],
    "isn't the JSON of an object",
  ),
  "arguments that aren't a number": (
    [USER, _call(function=dict(name="sql", arguments={"a": float("nan")}))],
    "isn't the JSON of an object",
  ),
  "a call without a name": (
    [USER, _call(function=dict(arguments={}))],
    "has a name and arguments",
  ),
  "a name with a quote": (
    [USER, _call(function=dict(name='a"b', arguments={}))],
    "characters that JSON",
  ),
  "a result without a call": ([USER, RESULT], "without a tool call before"),
  "a result of another call": (
    [USER, CALL, RESULT | dict(tool_call_id="b")],
    "without a result are 'a'",
  ),
  "a result twice": (
    [USER, CALL, RESULT, RESULT],
    "without a tool call before",
  ),
  "an id twice": (
    [USER, CALL | dict(tool_calls=CALL["tool_calls"] * 2)],
    "two tool calls have one id",
  ),
  "another role": ([dict(role="human", content="x")], "role is 'human'"),
  "a role of another form": (
    [dict(role="gpt", content="x")],
    "role is 'gpt'.*; write assistant$",
  ),
  "a legacy call": (
    [USER, ANSWER | dict(function_call=dict(name="f", arguments="{}"))],
    "function_call is .*; write it as tool_calls",
  ),
  "a refusal": (
    [USER, dict(role="assistant", content=None, refusal="No.")],
    "it has refusal, so give a content, or take it out",
  ),
  "a thought alone": (
    [USER, dict(role="assistant", content="", reasoning="Hm.")],
    "an empty turn.* it has reasoning, so give a content",
  ),
  "a thought that is no text": (
    [USER, ANSWER | dict(reasoning_content="", reasoning=["Hm."])],
    "thinking is .*; expected a text",
  ),
  **{
    f"{calls!r} as tool calls": (
      [USER, ANSWER | dict(tool_calls=calls)],
      "tool_calls is .*; expected a list",
    )
    for calls in (0, "", {})
  },
  **{
    f"a part {part}": (
      [USER | dict(content=[dict(text="So."), part])],
      r"content\[1\] is .*; expected a text",
    )
    for part in (
      dict(type="image_url", image_url="x"),
      dict(type="image_url", text="", image_url="x"),
      dict(type="reasoning", text="Hm."),
      dict(type="refusal", refusal="No."),
      dict(title="A", text="one"),
    )
  },
  "an object as content": (
    [USER | dict(content=dict(text="a", rows=[1]))],
    "content is .*; expected a text or a list",
  ),
  "a text": ("hello", "give a list of objects"),
  "texts": (["hello"], r"messages\[0\] is 'hello'"),
  "a user's call": (
    [USER | dict(tool_calls=CALL["tool_calls"])],
    "in an assistant's message",
  ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_conversation_that_makes_no_sense_is_refused_in_one_line(name):
  given, reason = BAD[name]
  with pytest.raises(errors.InputError, match=reason) as caught:
    messages.read(given, "solution 't1'")
  assert str(caught.value).startswith("solution 't1': ")
  assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_parts_are_read_whose_further_fields_are_no_text():
  parts = ["a", dict(type="input_text", text="b", cache_control={})]
  parts += [dict(type="output_text", text="c", annotations=[1], image=None)]
  (message,) = messages.read([USER | dict(content=parts)], "x")
  assert message.text == "abc"


def test_what_was_thought_is_in_the_first_field_that_is_not_empty():
  for given, thought in ((("", "why"), "why"), (("a", "b"), "a"), (("",), "")):
    names = dict(zip(messages.THINKING, given))
    _, turn = messages.read([USER, ANSWER | names], "x")
    assert turn.thinking == thought


def _unchecked(made, **changes):
  """Returns a value with fields that the tests' type checker would refuse."""
  for name, value in changes.items():
    object.__setattr__(made, name, value)
  return made


def _made(**changes):
  return _unchecked(schema.Message("assistant", "x"), **changes)


BAD_MESSAGES = {
  "role is": _made(role="bogus"),
  "text is None": _made(text=None),
  "calls is None": _made(calls=None),
  "calls is .*name": _made(calls=(dict(name="f"),)),
  "whose arguments are": _made(
    calls=(_unchecked(schema.Call("f", {}), arguments="{}"),)
  ),
  "in an assistant's": _made(role="user", calls=(schema.Call("f", {}),)),
  "arguments is .*nan": _made(calls=(schema.Call("f", dict(a=float("nan"))),)),
}


@pytest.mark.parametrize("reason", BAD_MESSAGES)
def test_a_message_that_a_program_made_is_checked_as_a_record_is(reason):
  with pytest.raises(errors.InputError, match=rf"'0': messages\[0\].*{reason}"):
    messages.trajectory([BAD_MESSAGES[reason]])


@pytest.mark.parametrize("name", ["labels", "ratings"])
def test_labels_of_turns_are_a_list(name):
  for given in (1, iter([1])):
    with pytest.raises(errors.InputError, match=f"{name} is .*one per step"):
      messages.trajectory([USER, ANSWER], **{name: given})


def test_the_problem_of_a_conversation_that_the_assistant_opens_is_its_users():
  system = dict(role="system", content="Be brief.")
  greeting = dict(role="assistant", content="Hi!")
  opened = messages.trajectory([system, greeting, USER, ANSWER, USER])
  assert opened.problem == USER["content"]
  assert messages.trajectory([system, greeting]).problem == "Be brief."
  # A beginning is of the same problem, also where it is read again.
  begun = schema.first_turns(opened, 1)
  record = jsonl.record_from_solution(begun)
  assert jsonl.solution_from_record(record, "x:1") == begun
  assert begun.problem == opened.problem


def test_results_answer_calls_in_any_order_and_each_call_once():
  """In time that grows with their number alone: of 30,000 it takes 1 s."""
  (call,) = CALL["tool_calls"]
  ids = [f"c{i}" for i in range(30_000)]
  calling = CALL | dict(tool_calls=[call | dict(id=x) for x in ids])
  results = [RESULT | dict(tool_call_id=x) for x in reversed(ids)]
  began = time.process_time()
  assert len(messages.read([USER, calling, *results, ANSWER], "x")) == 30_003
  assert time.process_time() - began < 30
  with pytest.raises(errors.InputError, match="has no result"):
    messages.read([USER, calling, *results[:-1], ANSWER], "x")
  first, last = call | dict(id=None), call | dict(id="a")
  both = CALL | dict(tool_calls=[first, last])
  own, any_ = RESULT, RESULT | dict(tool_call_id=None)
  for given in ((own, any_), (any_, own), (any_, any_)):
    assert messages.read([USER, both, *given, ANSWER], "x")
  with pytest.raises(errors.InputError, match="has no result"):
    messages.read([USER, both, own, ANSWER], "x")


@pytest.mark.parametrize("tool", [{"a": {1}}, {"function": "f"}, "f"])
def test_a_declaration_of_a_tool_is_an_object_of_json(tool):
  with pytest.raises(errors.InputError, match="solution 't1': tools") as caught:
    messages.read_tools([tool], "solution 't1'")
  assert "\n" not in str(caught.value)


def test_a_trajectory_without_a_turn_begins_with_itself():
  begun = messages.trajectory([USER])
  assert schema.first_steps(begun, 0).messages == begun.messages


def test_labels_of_whole_turns_stay_with_whole_turns():
  labelled = messages.trajectory(WHOLE, labels=(1.0, None))
  with pytest.raises(errors.InputError, match="labels are of whole turns"):
    turn_cuts.cut(labelled, segmenters.PARAGRAPH)
  plain = schema.Solution("0", "p", ("s",))
  with pytest.raises(errors.InputError, match="no trajectory of whole turns"):
    turn_cuts.cut(plain, segmenters.PARAGRAPH)
