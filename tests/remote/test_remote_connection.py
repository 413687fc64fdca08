"""Requests: what is tried again, what is final, and where the key goes."""

import gzip
import json
import socket

import pytest
import stub_server

from prm_jax import client as client_lib
from prm_jax import errors
from prm_jax import remote


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
  handler.say(b" " * (17 << 20) + json.dumps(stub_server.reply(body)).encode())


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
    reply = stub_server.reply(body)
    change(reply)
    handler.say(json.dumps(reply).encode())

  return behave


FAILURES = {
  "status 500": (_status(500), "status_500"),
  "status 503": (_status(503), "status_503"),
  "status 429": (_status(429, Retry_After="3"), "status_429"),
  "hangs": (stub_server.hang, "timeout"),
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
    return fail(handler, body) if times < 2 else stub_server.reply(body)

  clean = stub_server.generate(
    stub_server.client(serve()), stub_server.PREFIXES[:1], n=1
  )
  sleeps = []
  # On a busy machine a good reply may take too long, too.
  patience = dict(read_s=0.2, tries=20) if cause == "timeout" else {}
  client = stub_server.client(serve(behave), sleeps=sleeps, **patience)
  assert stub_server.generate(client, stub_server.PREFIXES[:1], n=1) == clean
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
  client = stub_server.client(stub, tries=3)
  with pytest.raises(errors.InputError) as caught:
    stub_server.generate(client, stub_server.PREFIXES[:1], n=1)
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
    with pytest.raises(errors.InputError, match=f"{url}.*in 2 tries.*refused"):
      stub_server.generate(client, stub_server.PREFIXES[:1], n=1)


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
  with pytest.raises(errors.InputError) as caught:
    stub_server.generate(
      stub_server.client(stub, sleeps=sleeps), stub_server.PREFIXES[:1], n=1
    )
  assert f"status {status}, no model 'tiny'; " in str(caught.value)
  assert (len(stub.seen), sleeps) == (1, [])


def test_a_compressed_reply_is_refused_at_once_and_says_so(serve):
  def behave(handler, body, times):
    content = gzip.compress(json.dumps(stub_server.reply(body)).encode())
    handler.say(content, Content_Encoding="gzip")

  stub = serve(behave)
  with pytest.raises(errors.InputError, match="a reply in gzip") as caught:
    stub_server.generate(
      stub_server.client(stub), stub_server.PREFIXES[:1], n=1
    )
  assert len(stub.seen) == 1 and "\n" not in str(caught.value)


@pytest.mark.parametrize("drawn, share", [(0.0, 1.0), (1.0, 0.5)])
def test_pauses_double_up_to_a_limit_less_up_to_half(serve, drawn, share):
  stub, sleeps = serve(lambda h, body, _: _status(500)(h, body)), []
  client = remote.Client(
    remote.Endpoint(stub.url, "tiny", tries=6, backoff_s=2.0, max_wait_s=12.0),
    sleep=sleeps.append,
    random=lambda: drawn,
  )
  with pytest.raises(errors.InputError, match="status 500, it said 500"):
    stub_server.generate(client, stub_server.PREFIXES[:1], n=1)
  assert sleeps == [share * x for x in (2, 4, 8, 12, 12)]


@pytest.mark.parametrize(
  "asked, wait_s",
  [("9", 9.0), ("soon", 1.0), ("Fri, 31 Dec 1999 23:59:59 GMT", 1.0)],
)
def test_a_server_is_given_the_time_it_asks_for(serve, asked, wait_s):
  def behave(handler, body, times):
    if times:
      return stub_server.reply(body)
    return _status(503, Retry_After=asked)(handler, body)

  sleeps = []
  stub_server.generate(
    stub_server.client(serve(behave), sleeps=sleeps),
    stub_server.PREFIXES[:1],
    n=1,
  )
  assert sleeps == [wait_s]


@pytest.mark.parametrize(
  "wait",
  ["9" * 5000, "Mon, 01 Jan 99999 00:00:00 GMT", f"Mon, 01 Jan {10**20}"],
)
def test_a_pause_that_is_no_time_is_none(wait):
  assert client_lib._retry_after_s(wait) == 0


def test_a_server_that_asks_for_a_day_ends_the_run(serve):
  def behave(handler, body, times):
    return _status(429, Retry_After="86400")(handler, body)

  stub = serve(behave)
  with pytest.raises(errors.InputError, match="Retry-After: 86400;"):
    stub_server.generate(
      stub_server.client(stub), stub_server.PREFIXES[:1], n=1
    )
  assert len(stub.seen) == 1


def test_the_key_goes_to_the_server_and_nowhere_else(
  serve, tmp_path, monkeypatch
):
  monkeypatch.setenv("MY_KEY", "sk-secret")
  stub = serve(
    lambda handler, body, _: (
      stub_server.reply(body)
      if body["prompt"].startswith("1")
      else handler.say(b"bad key sk-secret", 401)
    )
  )
  path = tmp_path / "j.jsonl"
  client = stub_server.client(stub, path, key_variable="MY_KEY", concurrency=1)
  with pytest.raises(errors.InputError) as caught:
    stub_server.generate(client, n=1)
  assert stub.keys == ["Bearer sk-secret"] * 2
  for text in (str(caught.value), path.read_text(), repr(client.endpoint)):
    assert "sk-secret" not in text
  assert "bad key ***" in str(caught.value)
  monkeypatch.setenv("MY_KEY", "sk\nsecret")
  with pytest.raises(errors.InputError, match="MY_KEY") as caught:
    stub_server.client(stub, key_variable="MY_KEY")
  assert "secret" not in str(caught.value)
  monkeypatch.delenv("MY_KEY")
  with pytest.raises(errors.InputError, match="MY_KEY isn't set"):
    stub_server.client(stub, key_variable="MY_KEY")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_and_takes_the_key_nowhere(
  serve, status, monkeypatch
):
  monkeypatch.setenv("MY_KEY", "sk-secret")
  other = serve()
  stub = serve(
    lambda handler, body, _: handler.say(b"", status, Location=other.url)
  )
  client = stub_server.client(stub, key_variable="MY_KEY")
  with pytest.raises(errors.InputError, match=f"status {status}"):
    stub_server.generate(client, stub_server.PREFIXES[:1], n=1)
  assert stub.keys == ["Bearer sk-secret"] and not other.seen


@pytest.mark.parametrize("key", ["sk-secret" * 9, "sk-'\"\\secret"])
@pytest.mark.parametrize("words", ["<html>{}", '{{"choices": [{{"text": "{}'])
def test_the_key_is_hidden_before_a_message_is_cut_or_quoted(
  serve, key, words, monkeypatch
):
  monkeypatch.setenv("MY_KEY", key)
  stub = serve(lambda h, body, _: h.say(words.format(key).encode()))
  client = stub_server.client(stub, key_variable="MY_KEY", tries=1)
  with pytest.raises(errors.InputError, match="not JSON") as caught:
    stub_server.generate(client, stub_server.PREFIXES[:1], n=1)
  assert "secret" not in str(caught.value) and "***" in str(caught.value)


@pytest.mark.parametrize("field", ["continue_final_message", "top_k", "min_p"])
def test_a_field_that_a_server_refuses_is_named_with_servers_that_know_it(
  serve, field
):
  body = json.dumps(dict(error=f"unsupported field: {field}")).encode()
  stub = serve(lambda handler, _, times: handler.say(body, 422))
  with pytest.raises(
    errors.InputError,
    match=rf"{field}; if this server .*vLLM, SGLang and llama",
  ):
    stub_server.generate(stub_server.client(stub), n=1)
