"""A model's turns are read as its chat template writes them."""

import functools
import pathlib
import tempfile

import policy_folders
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.environments import turns
from prm_jax.huggingface import import_policy
from prm_jax.policy import turn_policy
from prm_jax.records import jsonl
from prm_jax.text import conversation_templates
from prm_jax.text import messages

Message = schema.Message
_USER = Message("user", "How many?")


@functools.cache
def _template(family):
  with tempfile.TemporaryDirectory() as folder:
    return import_policy.read(
      policy_folders.write(
        pathlib.Path(folder) / "x", family, policy_folders.TOOLS[family]
      ),
      policy_folders.tokenizer(family),
      import_policy.Options(),
    ).template


def _call(name, i=0, **arguments):
  return schema.Call(name, arguments, f"call{i:05}")


TURNS = {
  "a text": Message("assistant", "Seven.\nOr eight."),
  "a call": Message("assistant", "", calls=(_call("sql", query='say "x"\n'),)),
  "no arguments": Message("assistant", "", calls=(_call("now"),)),
  "nested": Message("assistant", "", calls=(_call("f", x=[1, {"a": None}]),)),
  "a remark": Message("assistant", "I look.", calls=(_call("sql", q="é"),)),
  "two calls": Message(
    "assistant", "", calls=(_call("sql", q="a"), _call("sql", 1, q="b"))
  ),
  "a thought": Message("assistant", "Seven.", thinking="three and four"),
  "a call after a thought": Message(
    "assistant", "", thinking="hm", calls=(_call("sql", q="a"),)
  ),
}


@pytest.mark.parametrize("family", policy_folders.TOOLS)
@pytest.mark.parametrize("name", TURNS)
def test_a_turn_that_the_template_writes_is_read_back(name, family):
  turn = TURNS[name]
  known = _template(family).conversation
  try:
    parts = conversation_templates.parts_of(known, (_USER, turn))
  except errors.InputError:
    return  # it isn't written
  kinds = [kind for kind, _ in parts]
  own = parts[kinds.index("step") + 1 : kinds.index("read") - 1]
  text = "".join(content for _, content in own)
  read = turn_policy.read_turn(text, turn_policy.written(known))
  if turn.thinking is not None and turn.thinking not in text:
    assert read.thinking is None  # the template leaves it out
    read = Message(
      "assistant", read.text, turn.thinking, read.calls, read.answers
    )
  assert (read.text.strip(), read.thinking, read.calls) == (
    turn.text,
    turn.thinking,
    turn.calls,
  )


@pytest.mark.parametrize(
  "text",
  [
    '<tool_call>\n{"name": "sql", "arguments": {"q": }}\n</tool_call>',
    '<tool_call>\n{"name": "sql", "arguments": [1]}\n</tool_call>',
    '<tool_call>\n{"name": "sql", "arguments": {}}\n</tool_call> and',
    "<tool_call>",
    "<tool_call>\n",
  ],
)
def test_what_is_no_call_is_the_turns_text(text):
  around = turn_policy.written(_template("qwen2_5").conversation)
  read = turn_policy.read_turn(text, around)
  assert read.calls == () and read.text == text.strip("\n")


# --- Texts that can't be turns ------------------------------------------------


class _Tools:
  """A world that answers each call, twice, and then a text."""

  def begin(self, opening):
    return 0

  def act(self, state, turn):
    results = (Message("tool", "7", answers=x.id) for x in turn.calls)
    said = () if turn.calls or state else (Message("user", "And?"),)
    return state + 1, (*results, *said)

  def answer(self, trajectory):
    return None

  def outcome(self, trajectory):
    return None


def _writes(hostile, known):
  """Returns a policy that writes a text once, in each rollout but the first."""

  def write(trajectories, seeds):
    written = []
    for x in trajectories:
      begun = (*x.messages, Message("assistant", "a"))
      conversation_templates.parts_of(known, begun, x.tools)
      text = "Seven." if x.id.endswith("/0") or x.steps else hostile
      written.append(turn_policy.turn_after(x, text, known))
    return written

  return write


def _called(around, arguments="{}", name="sql", call_id="abcdefghi", text=None):
  """Returns the text of a call, as a template writes it."""
  begun = around.first if text is None else f"{text}{around.after_text}"
  id_ = "" if around.before_id is None else f"{around.before_id}{call_id}"
  return f"{begun}{name}{around.middle}{arguments}{id_}{around.last}"


def _twice(around):
  if around.between is None:
    return _called(around)
  one = _called(around)
  again = one.removeprefix(around.first)
  return one.removesuffix(around.last) + around.between + again


HOSTILE = {
  "white space beside thinking": lambda x: "<think> hm </think> 7",
  "two ends of thinking": lambda x: "<think>a</think>b</think>c",
  "an end of thinking": lambda x: "hm</think>7",
  "a late thought": lambda x: "So <think>7</think>",
  "an open thought": lambda x: "<think>hm",
  "a bad thought and a call": lambda x: f"<think>a</think></think>{_called(x)}",
  "an end of thinking beside a call": lambda x: _called(x, text="hi</think>"),
  "a blank beside a call": lambda x: _called(x, text=" "),
  "a short id": lambda x: _called(x, call_id="abc"),
  "one id twice": _twice,
  "a quotation mark": lambda x: _called(x, name='a"b'),
  "a line break": lambda x: _called(x, name="a\nb"),
  "open lists": lambda x: _called(x, '{"a": ' + "[" * 100_000),
  "deep lists": lambda x: _called(x, f'{{"a": {"[" * 600}{"]" * 600}}}'),
  # No deeper than arguments may be, and too deep in a file.
  "lists": lambda x: _called(x, f'{{"a": {"[" * 497}{"]" * 497}}}'),
  "no number": lambda x: _called(x, '{"a": NaN}'),
  "no finite number": lambda x: _called(x, '{"a": 1e999}'),
  "a long number": lambda x: _called(x, f'{{"a": {"9" * 5_000}}}'),
  "half a character": lambda x: _called(x, '{"a": "\\ud800"}'),
}


@pytest.mark.parametrize("family", policy_folders.TOOLS)
@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_ends_another_rollout_or_is_lost(name, family, tmp_path):
  """It is a turn in prompts and in files, or its rollout says what it was."""
  known = _template(family).conversation
  text = HOSTILE[name](turn_policy.written(known))
  opening = messages.trajectory([_USER])
  write = turns.generate(_Tools(), _writes(text, known), seed=0, max_turns=2)
  (rows,) = write([opening], 3)
  assert [x.text for x in rows[0].messages[1::2]] == ["Seven.", "Seven."]
  for row in rows[1:]:
    said = row.messages[1:]
    if "left_out" in row.extra:
      assert not said and row.extra["ended"] is False
      assert row.extra["left_out"]["content"] == text
      assert row.extra["left_out"]["why"]
    else:
      assert said[-1].text == "Seven." or said[-2].text == "Seven."
      assert said[0].calls or said[0].shown == text
  path = tmp_path / "rollouts.jsonl"
  jsonl.write_solutions(path, rows)
  assert [x.messages for x in jsonl.read_solutions(path)] == [
    x.messages for x in rows
  ]


def test_a_text_that_the_template_writes_is_a_turn_as_it_stands():
  opening = messages.trajectory([_USER])
  for family in ("qwen2_5", "llama3_1", "mistral"):
    known = _template(family).conversation
    for text in ("<think> hm </think> 7", "<think>a</think>b</think>c"):
      turn = turn_policy.turn_after(opening, text, known)
      assert (turn.text, turn.thinking, turn.calls) == (text, None, ())
  known = _template("mistral").conversation
  text = _called(turn_policy.written(known), call_id="abc")
  assert turn_policy.turn_after(opening, text, known) == Message(
    "assistant", text
  )


def test_what_was_left_out_of_a_rollout_is_not_said_of_those_after_it():
  opening = messages.trajectory([_USER], extra=dict(left_out={}, level=1))
  known = _template("qwen3").conversation
  write = turns.generate(_Tools(), _writes("a</think>", known), seed=0)
  first, second = write([opening], 2)[0]
  assert first.extra == dict(level=1, ended=True)
  assert second.extra["left_out"]["content"] == "a</think>"
