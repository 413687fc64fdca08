"""An endpoint as a policy: order, concurrency, seeds, prompts, weights."""

import dataclasses
import json
import pathlib
import re
import threading
import time

import pytest
import stub_server

from prm_jax import errors
from prm_jax import remote
from prm_jax import schema


def test_many_at_a_time_give_the_same_solutions_in_the_same_order(serve):
  alone = stub_server.generate(stub_server.client(serve(), concurrency=1))
  assert (
    stub_server.generate(stub_server.client(serve(), concurrency=7)) == alone
  )
  assert [[s.id for s in row] for row in alone] == [
    [f"{name}/{n}" for n in range(3)] for name in "abc"
  ]
  for prefix, row in zip(stub_server.PREFIXES, alone, strict=True):
    for s in row:
      assert s.problem == prefix.problem
      assert s.steps[: len(prefix.steps)] == prefix.steps
      assert "\n\n".join(s.steps[len(prefix.steps) :]) == s.extra["text"]
      assert (s.extra["stopped"], s.extra["ended"]) == ("end", True)
      assert s.extra["num_tokens"] == len(s.extra["text"])
      assert s.extra["log_prob_mean"] == -0.5
      assert s.extra["log_prob_min"] == -0.75
  assert alone[1][0].extra["level"] == 3
  assert len({s.extra["text"] for row in alone for s in row}) == 9


def test_as_many_requests_are_under_way_as_allowed_and_no_more(serve):
  together = threading.Barrier(4, timeout=60)

  def behave(handler, body, times):
    together.wait()  # fewer than 4 at a time would break it
    return stub_server.reply(body)

  stub = serve(behave)
  stub_server.generate(stub_server.client(stub, concurrency=4), n=4)
  assert (stub.most_active, len(stub.seen)) == (4, 12)


def test_a_completion_depends_on_seed_id_text_and_index_alone(serve):
  stub = serve()
  whole = stub_server.generate(stub_server.client(stub), n=3)
  fewer = stub_server.generate(
    stub_server.client(stub), stub_server.PREFIXES[::-1], n=2
  )
  assert fewer == [row[:2] for row in whole[::-1]]
  seeds = {body["seed"] for body in stub.seen}
  assert len(seeds) == 9 and all(0 <= seed < 1 << 31 for seed in seeds)
  stub.seen.clear()
  stub_server.generate(stub_server.client(stub), seed=2)
  assert not seeds & {body["seed"] for body in stub.seen}


def test_one_refusal_ends_the_work_and_keeps_what_is_finished(serve, tmp_path):
  """What is under way when it comes is settled still."""
  together, refused = threading.Barrier(2, timeout=60), threading.Event()

  def behave(handler, body, times):
    if body["prompt"] == "more\n\n":
      refused.wait(60)
    elif not body["prompt"].startswith("1"):
      together.wait()
    if body["prompt"].startswith("3"):
      handler.say(b"bad", 400)
      return refused.set()
    return stub_server.reply(body)

  stub = serve(behave)
  client = stub_server.client(stub, tmp_path / "j.jsonl", concurrency=2)
  order = [
    stub_server.PREFIXES[0],
    stub_server.PREFIXES[2],
    stub_server.PREFIXES[1],
  ]
  more = [schema.Solution(f"d{i}", "more", ()) for i in range(60)]
  with pytest.raises(errors.InputError, match="prefix 'c': status 400"):
    stub_server.generate(client, order + more, n=1)
  ids = [
    json.loads(line)["id"]
    for line in (tmp_path / "j.jsonl").read_text().splitlines()
  ]
  assert {"a", "b"} <= set(ids) and len(ids) < 60


def test_ctrl_c_waits_for_no_reply_and_keeps_what_is_finished(serve, tmp_path):
  def behave(handler, body, times):
    return (
      stub_server.reply(body)
      if body["prompt"][0] == "1"
      else stub_server.hang(handler, body)
    )

  def interrupt(done):
    if done:
      raise KeyboardInterrupt

  client = stub_server.client(serve(behave), tmp_path / "j.jsonl", read_s=60.0)
  begin = time.monotonic()
  with pytest.raises(KeyboardInterrupt):
    stub_server.generate(client, n=1, progress=interrupt)
  assert time.monotonic() - begin < 15  # hanging up takes the server 20
  (line,) = (tmp_path / "j.jsonl").read_text().splitlines()
  assert json.loads(line)["id"] == "a"


def test_a_prompt_is_the_problem_and_the_steps_joined(serve):
  stub = serve()
  template = remote.Template("Q: {problem}\n\\boxed{}:", "\n", stop=("Q:",))
  stub_server.generate(
    stub_server.client(stub, template=template, concurrency=1, log_probs=False),
    n=1,
  )
  assert [body["prompt"] for body in stub.seen] == [
    "Q: 1 + 1?\n\\boxed{}:\nWe add.\n",
    "Q: 2 + 2?\n\\boxed{}:\n",
    "Q: 3 \\cdot {3}?\n\\boxed{}:\nOne.\nTwo.\n",
  ]
  assert (
    stub.seen[0].items()
    >= dict(
      model="tiny", max_tokens=20, temperature=0.7, top_p=0.9, stop=["Q:"]
    ).items()
  )
  assert "logprobs" not in stub.seen[0]
  assert set(stub.paths) == {"/v1/completions"}


def test_top_k_and_min_p_are_sent_if_they_are_set_and_only_once(serve):
  both = dataclasses.replace(stub_server.SAMPLING, top_k=20, min_p=0.1)

  def sent(sampling, **options):
    stub = serve()
    with stub_server.client(stub, options=options) as client:
      client.generate(stub_server.PREFIXES[:1], 1, sampling, 0)
    (body,) = stub.seen
    return body.get("top_k"), body.get("min_p")

  assert sent(stub_server.SAMPLING) == (None, None)
  assert sent(stub_server.SAMPLING, top_k=7) == (7, None)
  assert sent(both) == (20, 0.1)
  with pytest.raises(
    errors.InputError, match="options: min_p: given as an option"
  ):
    sent(both, min_p=0.0)


def test_a_chat_goes_on_from_steps_only_where_the_server_can(serve):
  stub = serve()
  with pytest.raises(errors.InputError, match="prefix 'a' has steps") as caught:
    stub_server.generate(stub_server.client(stub, chat=True))
  assert not stub.seen
  for word in (
    "vLLM, SGLang and llama.cpp",
    "`continues=True`",
    "transformers",
  ):
    assert word in str(caught.value)
  template = remote.Template("Solve: {problem}", system="Be brief.")
  client = stub_server.client(
    stub, chat=True, continues=True, template=template, concurrency=1
  )
  rows = stub_server.generate(client, n=1)
  assert set(stub.paths) == {"/v1/chat/completions"}
  system = dict(role="system", content="Be brief.")
  assert stub.seen[0]["messages"] == [
    system,
    dict(role="user", content="Solve: 1 + 1?"),
    dict(role="assistant", content="We add.\n\n"),
  ]
  assert stub.seen[0]["continue_final_message"] is True
  assert stub.seen[0]["add_generation_prompt"] is False
  assert len(stub.seen[1]["messages"]) == 2
  assert "continue_final_message" not in stub.seen[1]
  assert rows[0][0].steps[0] == "We add." and len(rows[0][0].steps) == 3
  assert rows[0][0].extra["log_prob_mean"] == -0.5


def _words(text):
  """Returns the tokens of a text: words with the space before them, and lines."""
  return re.findall(r"\n+| ?[^ \n]+| ", text)


def _echo(handler, body, times):
  """A server that weighs its prompt: each word by its own and all before."""
  tokens = _words(body["prompt"])
  values = [None] + [
    -len("".join(tokens[:i])) / 64 for i in range(1, len(tokens))
  ]
  logprobs = dict(tokens=[*tokens, "!"], token_logprobs=[*values, -9.0])
  usage = dict(prompt_tokens=len(tokens), completion_tokens=1)
  choice = dict(text=body["prompt"] + "!", finish_reason="length")
  return dict(choices=[choice | dict(logprobs=logprobs)], usage=usage)


def test_an_option_weighs_what_its_tokens_do_behind_the_last_step(
  serve, tmp_path
):
  stub, options = serve(_echo), [" yes", " no it is not", ""]
  with stub_server.client(stub, tmp_path / "j.jsonl") as client:
    found = client.log_likelihoods(stub_server.PREFIXES, options)
    assert client.log_likelihoods(stub_server.PREFIXES, options) == found
    groups = [
      (stub_server.PREFIXES[:1], options),
      (stub_server.PREFIXES[1:], []),
    ]
    ((row,), (none, _)) = client.weigh(groups)
    assert [x.num_tokens for x in row] == [1, 4, 0] and none == []
    assert [x.log_prob for x in row] == found[0]
  assert len(stub.seen) == 9
  texts = ["1 + 1?\n\nWe add.", "2 + 2?\n\n", "3 \\cdot {3}?\n\nOne.\n\nTwo."]
  for text, row in zip(texts, found, strict=True):
    n = len(text)
    assert row == [
      -n / 64,
      sum(-(n + k) / 64 for k in (0, 3, 6, 9)),
      0.0,
    ]


def test_a_text_after_an_empty_last_step_is_a_step_of_its_own(serve):
  """As CPMI asks: the answer's text is written as a further step."""
  prefix = schema.Solution("x", "1 + 1?", ("We add.", ""))
  stub = serve(_echo)
  with stub_server.client(stub) as client:
    (((found,),),) = client.weigh([([prefix], ["The answer is: 2"])])
  sent = stub.seen[0]["prompt"]
  assert sent == "1 + 1?\n\nWe add.\n\nThe answer is: 2"
  assert found.num_tokens == len(_words("The answer is: 2")) == 4


def test_an_option_that_is_not_whole_tokens_is_refused(serve):
  with (
    stub_server.client(serve(_echo)) as client,
    pytest.raises(errors.InputError, match="'yes' isn't whole tokens"),
  ):
    client.log_likelihoods(stub_server.PREFIXES[:1], ["yes"])


def test_a_server_that_does_not_weigh_its_prompt_is_refused(serve):
  with (
    stub_server.client(serve()) as client,
    pytest.raises(errors.InputError, match="log-probabilities of a prompt"),
  ):
    client.log_likelihoods(stub_server.PREFIXES[:1], [" yes"])
  with (
    stub_server.client(serve(), chat=True) as client,
    pytest.raises(errors.InputError, match="a chat doesn't"),
  ):
    client.log_likelihoods(stub_server.PREFIXES[:1], [" yes"])


def test_the_example_of_the_docs_runs(serve, tmp_path, monkeypatch, capsys):
  page = pathlib.Path(__file__).parents[2] / "docs" / "remote.md"
  (code,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
  stub = serve()
  monkeypatch.chdir(tmp_path)
  exec(code.replace("http://localhost:8000/v1", stub.url), {})
  assert len(stub.seen) == 8
  assert "'completions': 8" in capsys.readouterr().out


def test_two_prefixes_of_one_id_are_refused(serve):
  stub = serve()
  with pytest.raises(errors.InputError, match="'a' is asked for 2 times"):
    stub_server.generate(
      stub_server.client(stub),
      [stub_server.PREFIXES[0], stub_server.PREFIXES[0]],
    )
  assert not stub.seen
