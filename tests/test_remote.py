"""An endpoint as a policy, against a server that fails in every way."""

from collections import Counter
import functools
import hashlib
import http.server
import json
import math
import pathlib
import re
import resource
import socket
import threading
import time

import pytest

from prm_jax import remote
from prm_jax import sampler
from prm_jax import schema

SAMPLING = sampler.Sampling(max_tokens=20, temperature=0.7, top_p=0.9)
PREFIXES = [
  schema.Solution("a", "1 + 1?", ("We add.",)),
  schema.Solution("b", "2 + 2?", (), extra=dict(level=3)),
  schema.Solution("c", "3 \\cdot {3}?", ("One.", "Two.")),
]


def _luck(body):
  """Returns what this model writes: a function of all that it was asked."""
  return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _reply(body, text=None, finish="stop", **fields):
  """Returns a good reply of a server."""
  if text is None:
    text = f"so {_luck(body)[:6]}\n\nanswer {_luck(body)[6:9]}"
  choice = dict(index=0, finish_reason=finish)
  if "messages" in body:
    choice["message"] = dict(role="assistant", content=text)
    choice["logprobs"] = dict(content=[dict(token="x", logprob=-0.5)])
  else:
    choice["text"] = text
    choice["logprobs"] = dict(token_logprobs=[-0.25, -0.75], tokens=["x", "y"])
  usage = dict(prompt_tokens=7, completion_tokens=len(text))
  return dict(choices=[choice | fields], usage=usage)


class Stub(http.server.ThreadingHTTPServer):
  """Answers by `behave(handler, body, times)`; times: since it first came.

  behave returns a reply (any JSON), or None where it wrote its own.
  """

  daemon_threads = True
  request_queue_size = 64

  def __init__(self, behave):
    super().__init__(("127.0.0.1", 0), _Handler)
    self.behave, self.closing = behave, threading.Event()
    self.lock, self.seen, self.paths = threading.Lock(), [], []
    self.keys, self.active, self.most_active = [], 0, 0
    self.url = f"http://127.0.0.1:{self.server_port}/v1"

  def handle_error(self, request, client_address):
    """Clients hang up on it; that is what it is for."""


class _Handler(http.server.BaseHTTPRequestHandler):
  protocol_version = "HTTP/1.1"
  disable_nagle_algorithm = True  # else each reply waits 40 ms

  def log_message(self, *_):
    pass

  def do_POST(self):
    length = int(self.headers["Content-Length"])
    body, stub = json.loads(self.rfile.read(length)), self.server
    with stub.lock:
      times = stub.seen.count(body)
      stub.seen.append(body)
      stub.paths.append(self.path)
      stub.keys.append(self.headers.get("Authorization"))
      stub.active += 1
      stub.most_active = max(stub.most_active, stub.active)
    try:
      reply = stub.behave(self, body, times)
    finally:
      with stub.lock:
        stub.active -= 1
    if reply is not None:
      self.say(json.dumps(reply).encode())

  def say(self, content, status=200, kind="application/json", **headers):
    self.send_response(status)
    self.send_header("Content-Type", kind)
    self.send_header("Content-Length", str(len(content)))
    for name, value in headers.items():
      self.send_header(name.replace("_", "-"), value)
    self.end_headers()
    self.wfile.write(content)

  def cut(self):
    """Ends the connection with what was said so far."""
    self.wfile.flush()
    self.connection.shutdown(socket.SHUT_RDWR)
    self.close_connection = True


@pytest.fixture
def serve():
  stubs = []

  def start(behave=lambda handler, body, times: _reply(body)):
    stubs.append(Stub(behave))
    threading.Thread(
      target=stubs[-1].serve_forever, args=(0.01,), daemon=True
    ).start()
    return stubs[-1]

  yield start
  for stub in stubs:
    stub.closing.set()
    stub.shutdown()
    stub.server_close()


def _client(stub, journal=None, sleeps=None, template=None, **changes):
  settings = dict(concurrency=4, tries=4, read_s=5.0) | changes
  return remote.Client(
    remote.Endpoint(stub.url, "tiny", **settings),
    template or remote.Template(),
    journal,
    sleep=lambda wait_s: None if sleeps is None else sleeps.append(wait_s),
    random=lambda: 0.0,
  )


def _generate(client, prefixes=PREFIXES, n=3, seed=1, **kwargs):
  with client:
    return client.generate(prefixes, n, SAMPLING, seed, **kwargs)


def test_many_at_a_time_give_the_same_solutions_in_the_same_order(serve):
  alone = _generate(_client(serve(), concurrency=1))
  assert _generate(_client(serve(), concurrency=7)) == alone
  assert [[s.id for s in row] for row in alone] == [
    [f"{name}/{n}" for n in range(3)] for name in "abc"
  ]
  for prefix, row in zip(PREFIXES, alone, strict=True):
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
    return _reply(body)

  stub = serve(behave)
  _generate(_client(stub, concurrency=4), n=4)
  assert (stub.most_active, len(stub.seen)) == (4, 12)


def test_a_completion_depends_on_seed_id_text_and_index_alone(serve):
  stub = serve()
  whole = _generate(_client(stub), n=3)
  fewer = _generate(_client(stub), PREFIXES[::-1], n=2)
  assert fewer == [row[:2] for row in whole[::-1]]
  seeds = {body["seed"] for body in stub.seen}
  assert len(seeds) == 9 and all(0 <= seed < 1 << 31 for seed in seeds)
  stub.seen.clear()
  _generate(_client(stub), seed=2)
  assert not seeds & {body["seed"] for body in stub.seen}


# --- Failures -------------------------------------------------------------------


def _hang(handler, body):
  handler.server.closing.wait(20)
  handler.cut()


def _drip(handler, body):
  handler.send_response(200)
  handler.end_headers()
  while not handler.server.closing.wait(0.02):
    handler.wfile.write(b" ")


def _cut_body(handler, body):
  handler.send_response(200)
  handler.send_header("Content-Length", "1000")
  handler.end_headers()
  handler.wfile.write(b'{"choices": [')
  handler.cut()


def _cut_headers(handler, body):
  handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Ty")
  handler.cut()


def _huge(handler, body):
  handler.say(b" " * (17 << 20) + json.dumps(_reply(body)).encode())


def _status(status, **headers):
  def behave(handler, body):
    error = dict(error=dict(message=f"it said {status}"))
    handler.say(json.dumps(error).encode(), status, **headers)

  return behave


def _saying(content, kind="application/json"):
  return lambda handler, body: handler.say(content, kind=kind)


def _changed(change):
  """Returns a behaviour that spoils a good reply."""

  def behave(handler, body):
    reply = _reply(body)
    change(reply)
    handler.say(json.dumps(reply).encode())

  return behave


FAILURES = {
  "status 500": (_status(500), "status_500"),
  "status 503": (_status(503), "status_503"),
  "status 429": (_status(429, Retry_After="3"), "status_429"),
  "hangs": (_hang, "timeout"),
  "drips": (_drip, "timeout"),
  "cut at once": (lambda handler, body: handler.cut(), "connection"),
  # http.client takes these for all headers, so there is a body, of nothing.
  "cut in the headers": (_cut_headers, "bad_reply"),
  "cut in the body": (_cut_body, "connection"),
  "huge": (_huge, "bad_reply"),
  "garbage": (_saying(b'{"choices": [{]}'), "bad_reply"),
  "not UTF-8": (_saying(b'{"\xff": 1}'), "bad_reply"),
  "a web page": (_saying(b"<html>Hello", "text/html"), "bad_reply"),
  "an array": (_saying(b"[]"), "bad_reply"),
  "no choices": (_changed(lambda r: r.pop("choices")), "bad_reply"),
  "empty choices": (_changed(lambda r: r["choices"].clear()), "bad_reply"),
  "two choices": (
    _changed(lambda r: r.update(choices=r["choices"] * 2)),
    "bad_reply",
  ),
  "a choice of null": (
    _changed(lambda r: r.update(choices=[None])),
    "bad_reply",
  ),
  "null text": (
    _changed(lambda r: r["choices"][0].update(text=None)),
    "bad_reply",
  ),
  "no usage": (_changed(lambda r: r.pop("usage")), "bad_reply"),
  "unknown finish": (
    _changed(lambda r: r["choices"][0].update(finish_reason="abort")),
    "bad_reply",
  ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_what_may_pass_is_tried_again_and_counted(serve, name):
  fail, cause = FAILURES[name]

  def behave(handler, body, times):
    return fail(handler, body) if times < 2 else _reply(body)

  clean = _generate(_client(serve()), PREFIXES[:1], n=1)
  sleeps = []
  # On a busy machine a good reply may take too long, too.
  patience = dict(read_s=0.2, tries=20) if cause == "timeout" else {}
  client = _client(serve(behave), sleeps=sleeps, **patience)
  assert _generate(client, PREFIXES[:1], n=1) == clean
  counts = client.counts
  assert counts[f"failed_{cause}"] == counts["retries"] == len(sleeps)
  assert counts["requests"] == counts["retries"] + 1
  assert counts["completions"] == 1
  assert sleeps[:2] == ([3.0, 3.0] if cause == "status_429" else [1.0, 2.0])
  assert len(sleeps) == 2 or patience


@pytest.mark.parametrize(
  "name", ["status 503", "cut at once", "two choices", "a web page"]
)
def test_what_does_not_pass_ends_the_run_after_all_tries(serve, name):
  fail, cause = FAILURES[name]
  stub = serve(lambda handler, body, times: fail(handler, body))
  client = _client(stub, tries=3)
  with pytest.raises(schema.InputError) as caught:
    _generate(client, PREFIXES[:1], n=1)
  assert len(stub.seen) == client.counts[f"failed_{cause}"] == 3
  assert "prefix 'a'" in str(caught.value) and "3 tries" in str(caught.value)
  assert "\n" not in str(caught.value)


def test_no_server_is_said_so_after_all_tries():
  with socket.socket() as taken:
    taken.bind(("127.0.0.1", 0))  # and nobody listens
    url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
    client = remote.Client(
      remote.Endpoint(url, "tiny", tries=2), sleep=lambda _: None
    )
    with pytest.raises(schema.InputError, match=f"{url}.*in 2 tries.*refused"):
      _generate(client, PREFIXES[:1], n=1)


@pytest.mark.parametrize("form", ["openai", "fastapi", "sglang", "text"])
@pytest.mark.parametrize("status", [400, 401, 404, 422, 301])
def test_a_refusal_is_final_and_in_the_servers_words(serve, status, form):
  said = "no model\n'tiny'"
  content = dict(
    openai=dict(error=dict(message=said)),
    fastapi=dict(detail=said),
    sglang=dict(object="error", message=said),
  ).get(form)

  def behave(handler, body, times):
    text = said if content is None else json.dumps(content)
    handler.say(text.encode(), status, Location="/elsewhere")

  sleeps, stub = [], serve(behave)
  with pytest.raises(schema.InputError) as caught:
    _generate(_client(stub, sleeps=sleeps), PREFIXES[:1], n=1)
  assert f"status {status}, no model 'tiny'; " in str(caught.value)
  assert (len(stub.seen), sleeps) == (1, [])


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
    return _reply(body)

  stub = serve(behave)
  client = _client(stub, tmp_path / "j.jsonl", concurrency=2)
  order = [PREFIXES[0], PREFIXES[2], PREFIXES[1]]
  more = [schema.Solution(f"d{i}", "more", ()) for i in range(60)]
  with pytest.raises(schema.InputError, match="prefix 'c': status 400"):
    _generate(client, order + more, n=1)
  ids = [
    json.loads(line)["id"]
    for line in (tmp_path / "j.jsonl").read_text().splitlines()
  ]
  assert {"a", "b"} <= set(ids) and len(ids) < 60


def test_ctrl_c_waits_for_no_reply_and_keeps_what_is_finished(serve, tmp_path):
  def behave(handler, body, times):
    return _reply(body) if body["prompt"][0] == "1" else _hang(handler, body)

  def interrupt(done):
    if done:
      raise KeyboardInterrupt

  client = _client(serve(behave), tmp_path / "j.jsonl", read_s=60.0)
  begin = time.monotonic()
  with pytest.raises(KeyboardInterrupt):
    _generate(client, n=1, progress=interrupt)
  assert time.monotonic() - begin < 15  # hanging up takes the server 20
  (line,) = (tmp_path / "j.jsonl").read_text().splitlines()
  assert json.loads(line)["id"] == "a"


@pytest.mark.parametrize("drawn, share", [(0.0, 1.0), (1.0, 0.5)])
def test_pauses_double_up_to_a_limit_less_up_to_half(serve, drawn, share):
  stub, sleeps = serve(lambda h, body, _: _status(500)(h, body)), []
  client = remote.Client(
    remote.Endpoint(stub.url, "tiny", tries=6, backoff_s=2.0, max_wait_s=12.0),
    sleep=sleeps.append,
    random=lambda: drawn,
  )
  with pytest.raises(schema.InputError, match="status 500, it said 500"):
    _generate(client, PREFIXES[:1], n=1)
  assert sleeps == [share * x for x in (2, 4, 8, 12, 12)]


@pytest.mark.parametrize(
  "asked, wait_s",
  [("9", 9.0), ("soon", 1.0), ("Fri, 31 Dec 1999 23:59:59 GMT", 1.0)],
)
def test_a_server_is_given_the_time_it_asks_for(serve, asked, wait_s):
  def behave(handler, body, times):
    if times:
      return _reply(body)
    return _status(503, Retry_After=asked)(handler, body)

  sleeps = []
  _generate(_client(serve(behave), sleeps=sleeps), PREFIXES[:1], n=1)
  assert sleeps == [wait_s]


def test_a_server_that_asks_for_a_day_ends_the_run(serve):
  def behave(handler, body, times):
    return _status(429, Retry_After="86400")(handler, body)

  stub = serve(behave)
  with pytest.raises(schema.InputError, match="Retry-After: 86400;"):
    _generate(_client(stub), PREFIXES[:1], n=1)
  assert len(stub.seen) == 1


# --- Journal ----------------------------------------------------------------------


def test_a_stopped_run_asks_only_for_what_is_missing(serve, tmp_path):
  path = tmp_path / "j.jsonl"
  clean = _generate(_client(serve()))
  broken = serve(
    lambda handler, body, _: (
      handler.say(b"no", 400) if "3" in body["prompt"] else _reply(body)
    )
  )
  with pytest.raises(schema.InputError):
    _generate(_client(broken, path, concurrency=1))
  finished = len(path.read_text().splitlines())
  assert finished == 6
  with path.open("a") as f:
    f.write('{"key": "killed in the midd')  # and a torn last line
  stub = serve()
  client = _client(stub, path)
  told = []
  assert _generate(client, progress=told.append) == clean
  assert len(stub.seen) == 9 - finished
  assert client.counts["torn_lines"] == 1
  assert client.counts["from_journal"] == finished
  assert told == [6, 7, 8, 9]
  assert _generate(_client(stub, path)) == clean
  assert len(stub.seen) == 9 - finished


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_journal_cut_anywhere_costs_one_line(serve, tmp_path, cut):
  path = tmp_path / "j.jsonl"
  clean = _generate(_client(serve(), path), PREFIXES[:1])
  path.write_bytes(path.read_bytes()[:-cut])
  stub = serve()
  assert _generate(_client(stub, path), PREFIXES[:1]) == clean
  assert len(stub.seen) == 1
  assert _generate(_client(stub, path), PREFIXES[:1]) == clean
  assert len(stub.seen) == 1


def test_whatever_changes_the_request_is_asked_anew(serve, tmp_path):
  path, stub = tmp_path / "j.jsonl", serve()
  ask = functools.partial(_generate, prefixes=PREFIXES[:1], n=1)
  ask(_client(stub, path))
  ask(_client(stub, path))
  assert len(stub.seen) == 1
  ask(_client(stub, path), seed=2)
  ask(_client(stub, path, options=dict(top_k=5)))
  ask(_client(stub, path, template=remote.Template(stop=("Problem",))))
  other = schema.Solution("a2", PREFIXES[0].problem, PREFIXES[0].steps)
  ask(_client(stub, path), prefixes=[other])
  longer = schema.Solution("a", PREFIXES[0].problem, ("We add.", "So."))
  ask(_client(stub, path), prefixes=[longer])
  with _client(stub, path) as client:
    greedy = sampler.Sampling(max_tokens=20, temperature=0.0)
    client.generate(PREFIXES[:1], 1, greedy, 1)
  assert len(stub.seen) == len(path.read_text().splitlines()) == 7


@pytest.mark.parametrize(
  "content", ['{"id": "a"}\n', "my notes", '{"key": "x", "found": 1}\n', "{\n"]
)
def test_another_kind_of_file_is_refused_and_left_alone(
  serve, tmp_path, content
):
  path = tmp_path / "notes.txt"
  path.write_text(content)
  with pytest.raises(schema.InputError, match=r"notes.txt:1: no record"):
    _client(serve(), path)
  assert path.read_text() == content


def test_two_runs_cannot_share_a_journal(serve, tmp_path):
  stub = serve()
  with (
    _client(stub, tmp_path / "j.jsonl"),
    pytest.raises(schema.InputError, match="another run writes"),
  ):
    _client(stub, tmp_path / "j.jsonl")
  _client(stub, tmp_path / "j.jsonl").close()
  with pytest.raises(schema.InputError, match="can't be opened"):
    _client(stub, tmp_path / "nowhere" / "j.jsonl")


def test_a_full_disk_is_said_so_and_costs_nothing_finished(serve, tmp_path):
  path, stub = tmp_path / "j.jsonl", serve()
  clean = _generate(_client(stub, path), n=1)
  lines = path.read_bytes()
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  client = _client(stub, path)
  resource.setrlimit(resource.RLIMIT_FSIZE, (len(lines) + 20, hard))
  try:
    with pytest.raises(schema.InputError, match="make room and start again"):
      _generate(client, seed=2, n=1)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
  assert path.read_bytes() == lines
  stub = serve()
  assert _generate(_client(stub, path), n=1) == clean
  assert not stub.seen


# --- What is said and heard -------------------------------------------------------


def test_the_key_goes_to_the_server_and_nowhere_else(
  serve, tmp_path, monkeypatch
):
  monkeypatch.setenv("MY_KEY", "sk-secret")
  stub = serve(
    lambda handler, body, _: (
      _reply(body)
      if body["prompt"].startswith("1")
      else handler.say(b"bad key sk-secret", 401)
    )
  )
  path = tmp_path / "j.jsonl"
  client = _client(stub, path, key_variable="MY_KEY", concurrency=1)
  with pytest.raises(schema.InputError) as caught:
    _generate(client, n=1)
  assert stub.keys == ["Bearer sk-secret"] * 2
  for text in (str(caught.value), path.read_text(), repr(client.endpoint)):
    assert "sk-secret" not in text
  assert "bad key ***" in str(caught.value)
  monkeypatch.setenv("MY_KEY", "sk\nsecret")
  with pytest.raises(schema.InputError, match="MY_KEY") as caught:
    _client(stub, key_variable="MY_KEY")
  assert "secret" not in str(caught.value)
  monkeypatch.delenv("MY_KEY")
  with pytest.raises(schema.InputError, match="MY_KEY isn't set"):
    _client(stub, key_variable="MY_KEY")


def test_a_prompt_is_the_problem_and_the_steps_joined(serve):
  stub = serve()
  template = remote.Template("Q: {problem}\n\\boxed{}:", "\n", stop=("Q:",))
  _generate(
    _client(stub, template=template, concurrency=1, log_probs=False), n=1
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


def test_steps_come_back_as_they_were_joined():
  template = remote.Template()
  steps = ("First, $x$.", "a\nb", "{c}")
  assert template.split(template.written(steps)) == steps
  assert template.split("\n\n one \n\n\n\n two\n") == ("one", "two")
  assert template.split(" \n\n\n") == ()


def test_a_chat_goes_on_from_steps_only_where_the_server_can(serve):
  stub = serve()
  with pytest.raises(schema.InputError, match="prefix 'a' has steps"):
    _generate(_client(stub, chat=True))
  assert not stub.seen
  template = remote.Template("Solve: {problem}", system="Be brief.")
  client = _client(
    stub, chat=True, continues=True, template=template, concurrency=1
  )
  rows = _generate(client, n=1)
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
    reply = functools.partial(_reply, text=f"a step.{rest}", **fields)
    stub = serve(lambda h, body, _, reply=reply: reply(body))
    client = _client(stub, **settings)
    (row,) = _generate(client, PREFIXES[:1], n=1, stop_at_step=True)
    assert row[0].steps == ("We add.", "a step.")
    assert row[0].extra["stopped"] == stopped
    assert row[0].extra["ended"] == (stopped == "end")
    assert stub.seen[0]["stop"] == ["\n\n"]


def test_a_server_that_does_not_tell_a_step_end_is_refused(serve):
  stub = serve(lambda h, body, _: _reply(body, "a step."))
  with pytest.raises(schema.InputError, match="doesn't tell a step's end"):
    _generate(_client(stub), PREFIXES[:1], n=1, stop_at_step=True)
  # The budget is told from both anywhere.
  stub = serve(lambda h, body, _: _reply(body, "a step", finish="length"))
  (row,) = _generate(_client(stub), PREFIXES[:1], n=1, stop_at_step=True)
  assert (row[0].extra["stopped"], row[0].extra["ended"]) == ("length", False)


@pytest.mark.parametrize("text, stopped", [("\n", "step"), ("", "end")])
def test_a_stop_string_may_begin_in_the_prompt(serve, text, stopped):
  """transformers looks for it in the whole text, so "\\n\\n" + "\\n" has it."""
  stub = serve(lambda h, body, _: _reply(body, text))
  client = _client(stub, stop_in_text=True)
  (row,) = _generate(client, PREFIXES[:1], n=1, stop_at_step=True)
  assert row[0].steps == PREFIXES[0].steps
  assert row[0].extra["stopped"] == stopped


def test_a_stop_string_of_the_template_is_an_end_and_no_step(serve):
  template = remote.Template(stop=("Problem:",))
  text = "a step.\n\nanswer 4\n\nProblem: What"
  stub = serve(lambda h, body, _: _reply(body, text))
  (row,) = _generate(
    _client(stub, template=template, stop_in_text=True), PREFIXES[:1], n=1
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
    return _reply(body, **replies[body["prompt"].strip()])

  client = _client(serve(behave))
  rows = _generate(client, prefixes, n=1)
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
  schema.write_solutions(tmp_path / "s.jsonl", [s for (s,) in rows])
  assert (
    client.counts.items()
    >= dict(
      completions=8, empty=2, length=1, content_filter=1, without_log_probs=3
    ).items()
  )


def test_text_in_the_reasoning_is_refused_with_the_mend(serve):
  message = dict(role="assistant", content=None, reasoning_content="I think")
  stub = serve(lambda h, body, _: _reply(body, "", message=message))
  with pytest.raises(schema.InputError, match="without a reasoning parser"):
    _generate(_client(stub, chat=True), PREFIXES[1:2], n=1)
  assert len(stub.seen) == 1


# --- Weigh --------------------------------------------------------------------------


def _words(text):
  """Returns the tokens of a text: words with the space before them."""
  words = text.replace(" ", "\0 ").split("\0")
  return [word for word in words if word]


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
  with _client(stub, tmp_path / "j.jsonl") as client:
    found = client.weigh(PREFIXES, options)
    assert client.weigh(PREFIXES, options) == found
  assert len(stub.seen) == 9
  texts = ["1 + 1?\n\nWe add.", "2 + 2?\n\n", "3 \\cdot {3}?\n\nOne.\n\nTwo."]
  for text, row in zip(texts, found, strict=True):
    n = len(text)
    assert row == [
      -n / 64,
      sum(-(n + k) / 64 for k in (0, 3, 6, 9)),
      0.0,
    ]


def test_an_option_that_is_not_whole_tokens_is_refused(serve):
  with (
    _client(serve(_echo)) as client,
    pytest.raises(schema.InputError, match="'yes' isn't whole tokens"),
  ):
    client.weigh(PREFIXES[:1], ["yes"])


def test_a_server_that_does_not_weigh_its_prompt_is_refused(serve):
  with (
    _client(serve()) as client,
    pytest.raises(schema.InputError, match="log-probabilities of a prompt"),
  ):
    client.weigh(PREFIXES[:1], [" yes"])
  with (
    _client(serve(), chat=True) as client,
    pytest.raises(schema.InputError, match="a chat doesn't"),
  ):
    client.weigh(PREFIXES[:1], [" yes"])


def test_the_example_of_the_docs_runs(serve, tmp_path, monkeypatch, capsys):
  page = pathlib.Path(__file__).parents[1] / "docs" / "remote.md"
  (code,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
  stub = serve()
  monkeypatch.chdir(tmp_path)
  exec(code.replace("http://localhost:8000/v1", stub.url), {})
  assert len(stub.seen) == 8
  assert "'completions': 8" in capsys.readouterr().out


# --- Input ----------------------------------------------------------------------------


def test_two_prefixes_of_one_id_are_refused(serve):
  stub = serve()
  with pytest.raises(schema.InputError, match="'a' is asked for 2 times"):
    _generate(_client(stub), [PREFIXES[0], PREFIXES[0]])
  assert not stub.seen


@pytest.mark.parametrize(
  "settings, said",
  [
    (dict(url="localhost:8000/v1"), "endpoint.url"),
    (dict(url="http://me:pass@host/v1"), "endpoint.url"),
    (dict(url="http://[::1/v1"), "endpoint.url"),
    (dict(tries=0), "endpoint.tries=0"),
    (dict(concurrency=0), "endpoint.concurrency=0"),
    (dict(read_s=math.nan), "endpoint.read_s=nan"),
    (dict(options=dict(seed=1, top_k=2)), "endpoint.options: seed"),
  ],
)
def test_a_wrong_setting_is_named(settings, said):
  with pytest.raises(schema.InputError, match=said) as caught:
    remote.Endpoint(**(dict(url="http://h/v1", model="m") | settings))
  assert "pass@" not in str(caught.value)


@pytest.mark.parametrize(
  "settings",
  [
    dict(prompt="no place"),
    dict(prompt="{problem}{problem}"),
    dict(separator=""),
    dict(stop=("",)),
  ],
)
def test_a_wrong_template_is_refused(settings):
  with pytest.raises(schema.InputError, match="template"):
    remote.Template(**settings)
