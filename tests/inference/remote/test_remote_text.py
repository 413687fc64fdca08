"""What a server wrote comes back to it byte for byte."""

import dataclasses

from hypothesis import example
from hypothesis import given
from hypothesis import HealthCheck
from hypothesis import settings
from hypothesis import strategies as st
import pytest
import stub_server

from prm_jax import errors
from prm_jax import schema
from prm_jax.data import segmenters
from prm_jax.inference import remote

# What a blank line may look like, and what stands next to it.
TEXTS = st.text("ab. \n\t\r\u00a0", max_size=24)
QUICK = settings(
  max_examples=15,
  deadline=None,
  suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def _first(solution, k):
  """Returns the first k steps, up to the beginning of the next."""
  spans = solution.spans
  end = spans[k][0] if k < len(spans) else len(solution.raw_text)
  return dataclasses.replace(
    solution,
    steps=solution.steps[:k],
    spans=spans[:k],
    raw_text=solution.raw_text[:end],
  )


@QUICK
@given(text=TEXTS, steps=st.lists(st.text("a\n", max_size=4), max_size=2))
@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("separator", ["\n\n", "a"])
def test_a_text_is_the_prompt_of_its_continuation(
  serve, text, steps, chat, separator
):
  template = remote.Template("Q: {problem}", separator)
  stub = serve(lambda h, body, _: stub_server.reply(body, text))
  start = schema.Solution("a", "1 + 1?", tuple(steps))
  with stub_server.client(
    stub, template=template, chat=chat, continues=True
  ) as client:

    def ask(prefix):
      ((s,),) = client.generate([prefix], 1, stub_server.SAMPLING, 0)
      body = stub.seen[-1]
      if not chat:
        opening = f"Q: 1 + 1?{separator}"
        assert body["prompt"].startswith(opening)
        return s, body["prompt"].removeprefix(opening)
      if len(body["messages"]) == 1:
        return s, ""
      return s, body["messages"][-1]["content"]

    whole, prompt = ask(start)
    assert prompt == "".join(f"{step}{separator}" for step in steps)
    assert whole.raw_text == prompt + text
    assert whole.steps[: len(steps)] == tuple(steps)
    again, prompt = ask(whole)
    assert prompt == whole.raw_text
    assert again.raw_text == prompt + text
    for k in range(len(whole.steps)):
      _, prompt = ask(_first(whole, k))
      assert whole.raw_text.startswith(prompt)
      assert len(prompt) == whole.spans[k][0]


def _writes(text, server):
  """Returns a server that writes a text, from where the prompt ends it."""

  def behave(handler, body, times):
    prompt = body["prompt"]
    done = prompt.removeprefix("p\n\n")
    rest = text[len(done) :]
    assert text.startswith(done)
    (stop,) = body["stop"]
    if server == "transformers":
      # It looks for the stop string in the prompt and the text, token by token.
      for n in range(1, len(rest) + 1):
        if (prompt + rest[:n]).endswith(stop):
          return stub_server.reply(body, rest[:n])
      return stub_server.reply(body, rest)
    name = dict(vllm="stop_reason", sglang="matched_stop")[server]
    begin, found, _ = rest.partition(stop)
    return stub_server.reply(body, begin, **{name: stop if found else None})

  return behave


@QUICK
@example(text="a.\n \nb.\n\n\nb\n\n")
@given(text=TEXTS)
@pytest.mark.parametrize("server", ["vllm", "sglang", "transformers"])
def test_one_step_at_a_time_gives_the_text_of_one_completion(
  serve, text, server
):
  stub = serve(_writes(text, server))
  own = dict(stop_in_text=server == "transformers")
  with stub_server.client(stub, **own) as client:
    s, stopped = schema.Solution("a", "p", ()), ""
    while stopped != "end":
      before = s
      ((s,),) = client.generate(
        [s], 1, stub_server.SAMPLING, 0, stop_at_step=True
      )
      stopped = s.extra["stopped"]
      assert len(s.steps) <= len(before.steps) + 1
      # Else it would ask for ever.
      assert stopped == "end" or s.raw_text != before.raw_text
  assert s.extra["ended"]
  assert s.raw_text == text
  whole = segmenters.spans(text, segmenters.PARAGRAPH)
  assert s.steps == tuple(text[start:end] for start, end in whole)


def test_a_segmenter_whose_steps_do_not_end_at_the_separator_is_refused(serve):
  stub = serve()
  template = remote.Template(separator=" ", segmenter=segmenters.LINE)
  with (
    stub_server.client(stub, template=template) as client,
    pytest.raises(errors.InputError, match="no step ends at the `separator`"),
  ):
    client.generate(
      stub_server.PREFIXES, 1, stub_server.SAMPLING, 0, stop_at_step=True
    )
  assert not stub.seen


@pytest.mark.parametrize("cuts", [{}, dict(top_k=5), dict(min_p=0.1)])
def test_top_k_and_min_p_are_sent_if_they_are_set(serve, cuts):
  stub = serve()
  sampling = dataclasses.replace(stub_server.SAMPLING, **cuts)
  with stub_server.client(stub) as client:
    client.generate(stub_server.PREFIXES[:1], 1, sampling, 0)
  sent = {k: v for k, v in stub.seen[0].items() if k in ("top_k", "min_p")}
  assert sent == cuts
  for name in cuts:
    with (
      stub_server.client(stub, options={name: 1}) as client,
      pytest.raises(errors.InputError, match=f"{name}: given as an option of"),
    ):
      client.generate(stub_server.PREFIXES[:1], 1, sampling, 0)
