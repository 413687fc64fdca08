"""What servers say of an end, and odd things that they say."""

from collections import Counter
import functools
import math

import pytest
import stub_server

from prm_jax import errors
from prm_jax import remote
from prm_jax import schema
from prm_jax.records import jsonl

# How servers say that a stop string ended a completion, and that the end did.
STOPS = {
  "vllm": ("", dict(stop_reason="\n\n"), dict(stop_reason=None), {}),
  "sglang": ("", dict(matched_stop="\n\n"), dict(matched_stop=151645), {}),
  "transformers": ("\n\n", {}, {}, dict(stop_in_text=True)),
}


@pytest.mark.parametrize("server", STOPS)
def test_a_step_end_is_told_from_the_end(serve, server):
  left, at_step, at_end, settings = STOPS[server]
  for rest, fields, stopped in ((left, at_step, "step"), ("", at_end, "end")):
    reply = functools.partial(
      stub_server.reply, text=f"a step.{rest}", **fields
    )
    stub = serve(lambda h, body, _, reply=reply: reply(body))
    client = stub_server.client(stub, **settings)
    (row,) = stub_server.generate(
      client, stub_server.PREFIXES[:1], n=1, stop_at_step=True
    )
    assert row[0].steps == ("We add.", "a step.")
    assert row[0].extra["stopped"] == stopped
    assert row[0].extra["ended"] == (stopped == "end")
    assert stub.seen[0]["stop"] == ["\n\n"]


def test_a_server_that_does_not_tell_a_step_end_is_refused(serve):
  stub = serve(lambda h, body, _: stub_server.reply(body, "a step."))
  with pytest.raises(errors.InputError, match="doesn't tell a step's end"):
    stub_server.generate(
      stub_server.client(stub), stub_server.PREFIXES[:1], n=1, stop_at_step=True
    )
  # The budget is told from both anywhere.
  stub = serve(
    lambda h, body, _: stub_server.reply(body, "a step", finish="length")
  )
  (row,) = stub_server.generate(
    stub_server.client(stub), stub_server.PREFIXES[:1], n=1, stop_at_step=True
  )
  assert (row[0].extra["stopped"], row[0].extra["ended"]) == ("length", False)


@pytest.mark.parametrize("text, stopped", [("\n", "step"), ("", "end")])
def test_a_stop_string_may_begin_in_the_prompt(serve, text, stopped):
  """transformers looks for it in the whole text, so "\\n\\n" + "\\n" has it."""
  stub = serve(lambda h, body, _: stub_server.reply(body, text))
  client = stub_server.client(stub, stop_in_text=True)
  (row,) = stub_server.generate(
    client, stub_server.PREFIXES[:1], n=1, stop_at_step=True
  )
  assert row[0].steps == stub_server.PREFIXES[0].steps
  assert row[0].extra["stopped"] == stopped


def test_a_stop_string_of_the_template_is_an_end_and_no_step(serve):
  template = remote.Template(stop=("Problem:",))
  text = "a step.\n\nanswer 4\n\nProblem: What"
  stub = serve(lambda h, body, _: stub_server.reply(body, text))
  (row,) = stub_server.generate(
    stub_server.client(stub, template=template, stop_in_text=True),
    stub_server.PREFIXES[:1],
    n=1,
  )
  assert row[0].steps == ("We add.", "a step.", "answer 4")
  assert row[0].extra["stopped"] == "end"
  assert row[0].extra["text"] == text


def test_odd_completions_come_back_and_are_counted(serve, tmp_path):
  replies = dict(
    empty=dict(text=""),
    blank=dict(text=" \n"),
    cut=dict(text="so", finish="length"),
    filtered=dict(text="so", finish="content_filter"),
    unlogged=dict(text="so", logprobs=None),
    half=dict(text="so", logprobs=dict(token_logprobs=[-1.0, None])),
    infinite=dict(text="so", logprobs=dict(token_logprobs=[-math.inf])),
    torn=dict(text="so \ud83d"),
  )
  prefixes = [schema.Solution(name, name, ()) for name in replies]

  def behave(handler, body, times):
    return stub_server.reply(body, **replies[body["prompt"].strip()])

  client = stub_server.client(serve(behave))
  rows = stub_server.generate(client, prefixes, n=1)
  found = {s.id.split("/")[0]: s for (s,) in rows}
  assert found["empty"].steps == found["blank"].steps == ()
  assert found["empty"].extra["num_tokens"] == 0
  stopped = {name: s.extra["stopped"] for name, s in found.items()}
  assert Counter(stopped.values()) == dict(end=6, length=2)
  assert stopped["filtered"] == stopped["cut"] == "length"
  for name in ("unlogged", "half", "infinite"):
    assert found[name].extra["log_prob_mean"] is None
    assert found[name].extra["log_prob_min"] is None
  assert found["torn"].steps == ("so \ufffd",)
  jsonl.write_solutions(tmp_path / "s.jsonl", [s for (s,) in rows])
  assert (
    client.counts.items()
    >= dict(
      completions=8, empty=2, length=1, content_filter=1, without_log_probs=3
    ).items()
  )


def test_text_in_the_reasoning_is_refused_with_the_mend(serve):
  message = dict(role="assistant", content=None, reasoning_content="I think")
  stub = serve(lambda h, body, _: stub_server.reply(body, "", message=message))
  with pytest.raises(errors.InputError, match="without a reasoning parser"):
    stub_server.generate(
      stub_server.client(stub, chat=True), stub_server.PREFIXES[1:2], n=1
    )
  assert len(stub.seen) == 1
