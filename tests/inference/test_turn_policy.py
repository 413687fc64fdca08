"""A model's turns are read as its chat template writes them."""

import functools
import pathlib
import tempfile

import policy_folders
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.data import conversation_templates
from prm_jax.huggingface import import_policy
from prm_jax.inference import turn_policy

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
