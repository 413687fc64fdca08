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
from prm_jax import remote
from prm_jax import schema
from prm_jax.text import segmenters

# What a blank line may look like, and what stands next to it.
TEXTS = st.text("ab. \n\t\r\u00a0", max_size=24)
# Blocks that hold blank lines, some without an end.
BLOCKS = st.lists(
  st.sampled_from(
    (
      *("```\n", "\n```\n", "~~~py\n", "\n~~~", "$$", "\n$$\n", "\\[", "\\]"),
      *("\n\n", "\n\n", "\n\n", "\n \n", "a", "b.", "So it ", "\\begin{align}"),
    )
  ),
  max_size=12,
).map("".join)
LONG = dataclasses.replace(stub_server.SAMPLING, max_tokens=10_000)
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
@example(text="a.\n\n```\nx\n\ny\n\n\nz\n```\n\n\\[\n\na\n\n\\]\n\nb")
@given(text=TEXTS | BLOCKS)
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
      ((s,),) = client.generate([s], 1, LONG, 0, stop_at_step=True)
      stopped = s.extra["stopped"]
      assert len(s.steps) <= len(before.steps) + 1
      # Else it would ask for ever.
      assert stopped == "end" or s.raw_text != before.raw_text
  assert s.extra["ended"]
  assert s.raw_text == text
  whole = segmenters.spans(text, segmenters.PARAGRAPH)
  assert s.steps == tuple(text[start:end] for start, end in whole)


FENCED = "```\nx\n\ny\n\nz\n```\n\nSo 3."


def test_a_step_is_asked_for_in_parts_while_a_block_is_open(serve, tmp_path):
  text = "We add.\n\n" + FENCED
  stub = serve(_writes(text, "vllm"))
  start = schema.Solution("a", "p", ("We add.",), raw_text="We add.\n\n")
  start = dataclasses.replace(start, spans=((0, 7),))

  def ask():
    with stub_server.client(stub, tmp_path / "j.jsonl") as client:
      rows = client.generate(
        [start], 1, LONG, 0, stop_at_step=True, count_prompts=True
      )
      return rows[0][0], client.counts

  s, counts = ask()
  step = FENCED.removesuffix("\n\nSo 3.")
  assert s.steps == ("We add.", step) and text.startswith(s.raw_text)
  assert s.extra["stopped"] == "step" and s.extra["text"] == step
  # Three requests, with the budget that is left, and a seed of its own each.
  sizes = [len(x) for x in step.split("\n\n")]
  assert [x["max_tokens"] for x in stub.seen] == [
    10_000 - sum(sizes[:k]) for k in range(3)
  ]
  assert len({x["seed"] for x in stub.seen}) == 3
  assert s.extra["num_tokens"] == sum(sizes)
  assert s.extra["prompt_tokens"] == 7
  assert counts["prompt_tokens"] == 21
  assert (s.extra["log_prob_mean"], s.extra["log_prob_min"]) == (-0.5, -0.75)
  assert (counts["completions"], counts["continued"]) == (1, 2)
  again, counts = ask()
  assert again == s and len(stub.seen) == 3 and counts["from_journal"] == 3


def test_a_block_that_is_open_at_the_end_of_the_budget_has_that_length(serve):
  stub = serve(_writes("```\n" + "a\n\n" * 50, "vllm"))
  with stub_server.client(stub) as client:
    ((s,),) = client.generate(
      [schema.Solution("a", "p", ())],
      *(1, stub_server.SAMPLING, 0),
      stop_at_step=True,
    )
  assert s.extra["stopped"] == "length" and not s.extra["ended"]
  assert sum(x["max_tokens"] > 0 for x in stub.seen) == len(stub.seen) == 16


def test_a_stop_text_that_begins_with_a_blank_line_in_a_block_ends_all(serve):
  def behave(handler, body, times):
    text = body["prompt"].removeprefix("p\n\n")
    if not text:
      return stub_server.reply(body, "```\nx", stop_reason="\n\n")
    assert text == "```\nx\n\n"
    return stub_server.reply(body, "Q: y\n```", stop_reason="\n\n")

  template = remote.Template(stop=("\n\nQ:",))
  with stub_server.client(serve(behave), template=template) as client:
    ((s,),) = client.generate(
      [schema.Solution("a", "p", ())], 1, LONG, 0, stop_at_step=True
    )
  assert (s.raw_text, s.steps) == ("```\nx", ("```\nx",))
  assert s.extra["stopped"] == "end"


def test_a_chat_that_is_not_continued_writes_all_and_the_rest_is_dropped(serve):
  stub = serve(lambda h, body, _: stub_server.reply(body, FENCED))
  with stub_server.client(stub, chat=True) as client:
    ((s,),) = client.generate(
      [schema.Solution("a", "p", ())], 1, LONG, 0, stop_at_step=True
    )
    assert client.counts["overshot"] == 1
  assert "stop" not in stub.seen[0]
  assert s.raw_text + "So 3." == FENCED
  assert s.extra["stopped"] == "step" and len(s.steps) == 1


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
