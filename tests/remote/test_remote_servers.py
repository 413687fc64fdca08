"""Several servers of one model: who is asked, and what a failure changes."""

import contextlib
import json
import logging
import socket
import threading

import pytest
import stub_server

from prm_jax import errors
from prm_jax import remote
from prm_jax.policy import rollout_engine


class Clock:
  """A time that passes in pauses alone."""

  def __init__(self):
    self._lock, self.now_s, self.pauses = threading.Lock(), 0.0, []

  def __call__(self):
    return self.now_s

  def sleep(self, wait_s):
    with self._lock:
      self.pauses.append(wait_s)
      self.now_s += wait_s


def _client(stubs, journal=None, clock=None, **changes):
  settings = dict(concurrency=4, tries=4, read_s=10.0) | changes
  clock = clock or Clock()
  first, *others = (getattr(x, "url", x) for x in stubs)
  return remote.Client(
    remote.Endpoint(first, "tiny", replica=tuple(others), **settings),
    remote.Template(),
    journal,
    clock=clock,
    sleep=clock.sleep,
    random=lambda: 0.0,
  )


@pytest.fixture
def clean(serve):
  """What one good server writes, five solutions of each prefix."""
  return stub_server.generate(_client([serve()]), n=5)


@pytest.fixture
def dead():
  """The address of a server that isn't there."""
  with socket.socket() as taken:
    taken.bind(("127.0.0.1", 0))  # and nobody listens
    yield f"http://127.0.0.1:{taken.getsockname()[1]}/v1"


def _status(status, **headers):
  return lambda handler, body, times: handler.say(b"no", status, **headers)


def _lines(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


def _plain(lines):
  return sorted(json.dumps(line, sort_keys=True) for line in lines)


# --- Who is asked -------------------------------------------------------------


def test_one_two_and_three_servers_write_the_same(serve, clean, tmp_path):
  journals, stubs = [], []

  def behave(handler, body, times):
    while not all(x.seen for x in stubs):  # each has a part in it
      if handler.server.closing.wait(0.005):
        break
    return stub_server.reply(body)

  for number in (1, 2, 3):
    stubs[:] = [serve(behave) for _ in range(number)]
    journals.append(tmp_path / f"{number}.jsonl")
    client = _client(stubs, journals[-1])
    assert stub_server.generate(client, n=5) == clean
    assert sum(len(x.seen) for x in stubs) == 15
    assert client.counts["requests"] == client.counts["completions"] == 15
  one, *others = (_plain(_lines(path)) for path in journals)
  assert others == [one, one] and len(one) == 15


def test_a_journal_is_resumed_at_other_servers(serve, clean, tmp_path):
  path, first = tmp_path / "j.jsonl", serve()
  stub_server.generate(_client([first], path), n=2)
  second, third = serve(), serve()
  client = _client([second, third], path)
  assert stub_server.generate(client, n=5) == clean
  assert client.counts["from_journal"] == 6 == len(first.seen)
  assert len(second.seen) + len(third.seen) == 9


def test_what_the_journal_holds_needs_no_server(serve, clean, dead, tmp_path):
  path, pauses = tmp_path / "j.jsonl", Clock()
  stub_server.generate(_client([serve()], path), n=5)
  client = _client([dead, f"{dead}/x"], path, pauses)
  assert stub_server.generate(client, n=5) == clean
  assert not client.counts["requests"] and not pauses.pauses


def test_each_server_has_as_many_requests_as_allowed_and_no_more(serve):
  together = threading.Barrier(6, timeout=60)

  def behave(handler, body, times):
    together.wait()  # fewer than 3 at each would break it
    return stub_server.reply(body)

  stubs = [serve(behave), serve(behave)]
  stub_server.generate(_client(stubs, concurrency=3), n=4)
  assert [x.most_active for x in stubs] == [3, 3]


def test_a_server_alone_has_no_more_requests_than_it_is_allowed(serve, dead):
  more = threading.Barrier(4)

  def behave(handler, body, times):
    with contextlib.suppress(threading.BrokenBarrierError):
      more.wait(0.3)  # for a fourth one
    return stub_server.reply(body)

  stub = serve(behave)
  stub_server.generate(_client([dead, stub], concurrency=3), n=4)
  assert stub.most_active == 3


def test_requests_under_way_are_spread_evenly(serve):
  together = threading.Barrier(6, timeout=60)

  def behave(handler, body, times):
    together.wait()
    return stub_server.reply(body)

  stubs = [serve(behave), serve(behave)]
  stub_server.generate(_client(stubs), n=2)
  assert [len(x.seen) for x in stubs] == [3, 3]


def test_a_slow_server_gets_fewer_requests(serve):
  quick = serve()

  def slow(handler, body, times):
    while len(quick.seen) < 10 and not handler.server.closing.wait(0.005):
      pass
    return stub_server.reply(body)

  stub = serve(slow)
  stub_server.generate(_client([stub, quick], concurrency=1), n=4)
  assert len(quick.seen) >= 10 and 1 <= len(stub.seen) <= 2


def test_of_equals_the_first_is_asked(serve):
  stubs = [serve(), serve(), serve()]
  stub_server.generate(_client(stubs), stub_server.PREFIXES[:1], n=1)
  assert [len(x.seen) for x in stubs] == [1, 0, 0]


# --- What a failure changes ---------------------------------------------------


def test_a_server_that_dies_is_replaced_by_the_other(serve, clean, tmp_path):
  def dies(handler, body, times):
    if len(handler.server.seen) <= 3:
      return stub_server.reply(body)
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')
    return handler.cut()

  def waits(handler, body, times):
    while len(stub.seen) < 4 and not handler.server.closing.wait(0.005):
      pass
    return stub_server.reply(body)

  stub, clock, path = serve(dies), Clock(), tmp_path / "j.jsonl"
  client = _client([stub, serve(waits)], path, clock, concurrency=1)
  assert stub_server.generate(client, n=5) == clean
  counts = client.counts
  assert counts["failed_connection"] == counts["retries"] == 1
  assert len(stub.seen) == 4 and not clock.pauses and len(_lines(path)) == 15


def test_what_a_server_never_answers_another_one_does(serve, clean):
  stalls = serve(lambda handler, body, times: stub_server.hang(handler, body))
  # On a busy machine a good reply may take too long, too.
  client = _client([stalls, serve()], read_s=0.5, tries=20)
  assert stub_server.generate(client, n=5) == clean
  assert client.counts["failed_timeout"] >= 1


def test_a_reply_that_comes_too_late_is_not_used(serve, clean, tmp_path):
  late, clock, path = threading.Event(), Clock(), tmp_path / "j.jsonl"

  def slow(handler, body, times):
    if len(handler.server.seen) > 1:
      return stub_server.reply(body)
    while not other.seen and not handler.server.closing.wait(0.005):
      pass
    try:
      handler.say(json.dumps(stub_server.reply(body, "late")).encode())
    finally:  # the client has hung up
      late.set()

  stub, other = serve(slow), serve()
  changes = dict(read_s=0.5, tries=20, concurrency=1)
  with _client([stub, other], path, clock, **changes) as client:
    how = stub_server.SAMPLING, 1
    (first,) = client.generate(stub_server.PREFIXES[:1], 1, *how)
    assert late.wait(20)
    clock.now_s += 9  # its rest is over
    assert client.generate(stub_server.PREFIXES, 5, *how) == clean
  assert first == clean[0][:1] and len(stub.seen) > 1
  assert len(_lines(path)) == 15 and "late" not in path.read_text()


def test_a_reply_that_comes_twice_is_used_once(serve, clean, tmp_path):
  def twice(handler, body, times):
    # More than a reader takes at once.
    reply = dict(stub_server.reply(body), more="x" * (1 << 17))
    content = json.dumps(reply).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content)
    handler.wfile.write((head + content) * 2)

  path = tmp_path / "j.jsonl"
  client = _client([serve(twice), serve()], path, concurrency=1)
  assert stub_server.generate(client, n=5) == clean
  assert len(_lines(path)) == client.counts["requests"] == 15


def test_a_server_that_always_fails_costs_a_try_at_a_time(serve, clean):
  """Time passes with each reply of the other; the rests double: 1, 2, 4, 8."""
  clock = Clock()

  def good(handler, body, times):
    failed = client.counts["failed_status_500"]
    while not failed and not handler.server.closing.wait(0.005):
      failed = client.counts["failed_status_500"]
    clock.now_s += 1
    return stub_server.reply(body)

  fails = serve(_status(500))
  client = _client([fails, serve(good)], clock=clock, concurrency=1)
  assert stub_server.generate(client, n=5) == clean
  assert client.counts["failed_status_500"] == len(fails.seen)
  assert 2 <= len(fails.seen) <= 4 and not clock.pauses


def test_after_its_rest_a_server_is_asked_with_one_request_first(serve):
  clock, states = Clock(), []
  together = threading.Barrier(3, timeout=60)

  def recovers(handler, body, times):
    stub = handler.server
    number = len(stub.seen)
    if number <= 3:
      together.wait()  # three at a time fail
      return handler.say(b"no", 500)
    if not states:
      states.append("probed")
      before = len(other.seen)
      while len(other.seen) < before + 6:
        if stub.closing.wait(0.005):
          return None
      states.append("answered")
    elif states == ["probed"]:
      states.append("more")
    return stub_server.reply(body)

  def good(handler, body, times):
    while len(stub.seen) < 3 and not handler.server.closing.wait(0.005):
      pass
    clock.now_s += 1
    return stub_server.reply(body)

  stub, other = serve(recovers), serve(good)
  rows = stub_server.generate(
    _client([stub, other], clock=clock, concurrency=3), n=40
  )
  assert rows == stub_server.generate(_client([serve()]), n=40)
  assert states == ["probed", "answered"]
  assert len(stub.seen) > 4  # all its places are filled again


def test_a_failure_at_all_servers_names_each_and_what_it_said(serve, dead):
  clock, full = Clock(), serve(_status(503))
  client = _client([full, dead], clock=clock)
  with pytest.raises(errors.InputError) as caught:
    stub_server.generate(client, stub_server.PREFIXES[:1], n=1)
  line = str(caught.value)
  assert "prefix 'a': no usable reply of 2 servers" in line and "\n" not in line
  assert f"{full.url}/" not in line
  assert f"{full.url}: 4 tries, at last status 503, no" in line
  assert f"{dead}: 4 tries, at last [Errno" in line and "refused" in line
  assert len(full.seen) == 4 and clock.now_s >= 1 + 2 + 4


def test_many_requests_end_together_if_all_servers_are_down(serve):
  clock = Clock()

  def fails():
    together = threading.Barrier(4, timeout=60)

    def behave(handler, body, times):
      if len(handler.server.seen) <= 4:
        together.wait()
      handler.say(b"no", 500)

    return behave

  stubs = [serve(fails()), serve(fails())]
  with pytest.raises(errors.InputError, match="no usable reply of 2 servers"):
    stub_server.generate(_client(stubs, clock=clock), n=20)
  # Four in the first round, then one in each.
  assert [len(x.seen) for x in stubs] == [4 + 3] * 2
  assert clock.now_s >= 7


def test_a_refusal_ends_the_run_in_the_words_of_its_server(serve, dead):
  other = serve(_status(400))
  with pytest.raises(errors.InputError) as caught:
    stub_server.generate(_client([dead, other]), stub_server.PREFIXES[:1], n=1)
  assert str(caught.value).startswith(f"{other.url}/completions: prefix 'a'")
  assert "status 400, no" in str(caught.value)


def test_a_reply_that_is_refused_names_the_server_that_wrote_it(serve, dead):
  other = serve()  # returns no token ids
  with (
    _client([dead, other]) as client,
    pytest.raises(errors.InputError, match="no token ids") as caught,
  ):
    request = rollout_engine.Request("a", [1, 2], 1)
    client.complete([request], stub_server.SAMPLING, 0)
  assert str(caught.value).startswith(f"{other.url}: ")


def test_a_server_that_asks_for_a_day_is_left_alone(serve, clean):
  quota = serve(_status(429, Retry_After="86400"))
  clock = Clock()
  client = _client([quota, serve()], clock=clock)
  assert stub_server.generate(client, n=5) == clean
  assert len(quota.seen) <= 4 and not clock.pauses
  assert client.counts["failed_status_429"] == len(quota.seen)
  with pytest.raises(errors.InputError, match="a pause of 86,400 s"):
    stub_server.generate(_client([quota, quota.url + "/x"], clock=clock))
  assert not clock.pauses


def test_of_two_pauses_that_a_server_asks_for_the_longer_one_holds(serve):
  clock, waits = Clock(), ["5", "50"]
  together = threading.Barrier(2, timeout=60)

  def busy(handler, body, times):
    together.wait()
    handler.say(b"no", 429, Retry_After=waits.pop(0))

  def good(handler, body, times):
    while len(stub.seen) < 2 and not handler.server.closing.wait(0.005):
      pass
    clock.now_s += 1
    return stub_server.reply(body)

  stub = serve(busy)
  client = _client([stub, serve(good)], clock=clock, concurrency=2)
  stub_server.generate(client, n=8)
  assert len(stub.seen) == 2 and clock.now_s >= 24


def test_a_request_waits_longer_each_time_though_others_are_answered(serve):
  """As at full servers, where others take each place that is free."""
  clock, tried, others, lock = Clock(), [], [], threading.Lock()

  def behave(handler, body, times):
    with lock:
      is_first = not tried or body in tried
      (tried if is_first else others).append(body)
      number = len(others)
    closing = handler.server.closing
    if is_first:
      while len(others) < 8 and not closing.wait(0.002):
        pass
      return handler.say(b"full", 429)
    while len(tried) < number and not closing.wait(0.002):
      pass
    return stub_server.reply(body)

  client = _client([serve(behave), serve(behave)], clock=clock, concurrency=8)
  with pytest.raises(errors.InputError, match="no usable reply of 2 servers"):
    stub_server.generate(client, n=3)
  assert len(tried) == 8 and len(others) == 8 and clock.now_s >= 1 + 2 + 4


def test_an_answer_to_an_older_request_ends_no_rest(serve):
  clock, done = Clock(), []
  together = threading.Barrier(2, timeout=60)

  def until(handler, is_so):
    while not is_so() and not handler.server.closing.wait(0.005):
      pass

  def busy(handler, body, times):
    if together.wait():
      return handler.say(b"no", 429, Retry_After="50")
    until(handler, lambda: client.counts["failed_status_429"])
    return stub_server.reply(body)

  def good(handler, body, times):
    until(handler, lambda: any(done))  # by the older request
    clock.now_s += 1
    return stub_server.reply(body)

  stub = serve(busy)
  client = _client([stub, serve(good)], clock=clock, concurrency=2)
  stub_server.generate(client, n=8, progress=done.append)
  assert len(stub.seen) == 2 and clock.now_s < 50


# --- Before the first request -------------------------------------------------


def test_a_server_of_another_model_is_refused_before_any_request(serve):
  stubs = [serve(), serve(), serve()]
  stubs[0].models, stubs[1].models = ["tiny", "x"], ["large", "small"]
  with pytest.raises(errors.InputError) as caught:
    stub_server.generate(_client(stubs))
  assert str(caught.value) == (
    f"{stubs[1].url}: serves large, small, not tiny; start it with `model`, or"
    " take it out"
  )
  assert not any(x.seen for x in stubs)
  stubs[1].models = 401
  with pytest.raises(errors.InputError, match="status 401, no; check the key"):
    stub_server.generate(_client(stubs))
  assert not any(x.seen for x in stubs)


def test_a_server_that_is_not_there_is_said_and_asked_later(
  serve, clean, dead, caplog
):
  caplog.set_level(logging.INFO, "prm_jax")
  other, busy = serve(), serve()
  other.models, busy.models = ["tiny"], 503
  assert stub_server.generate(_client([dead, other, busy]), n=5) == clean
  lines = [x.getMessage() for x in caplog.records]
  assert [x.partition(" (")[0] for x in lines[:2]] == [
    f"{dead}: doesn't answer",
    f"{busy.url}: doesn't answer",
  ]
  assert "refused" in lines[0] and "status 503, no" in lines[1]
  # None was asked again: no time has passed.
  assert lines[2:] == [
    f"{dead}: answered 0 requests",
    f"{other.url}: answered 15 requests",
    f"{busy.url}: answered 0 requests",
  ]


def test_a_server_that_asks_for_a_day_at_the_start_is_left_alone(
  serve, clean, caplog
):
  caplog.set_level(logging.INFO, "prm_jax")
  quota, clock = serve(), Clock()
  quota.models = lambda handler: handler.say(b"no", 429, Retry_After="86400")

  def good(handler, body, times):
    clock.now_s += 1_000
    return stub_server.reply(body)

  client = _client([quota, serve(good)], clock=clock, concurrency=1)
  assert stub_server.generate(client, n=5) == clean
  assert not quota.seen and not clock.pauses
  assert caplog.records[0].getMessage() == (
    f"{quota.url}: doesn't answer (status 429, it asks for a pause of 86,400"
    " s); it is asked again later"
  )


# --- What is refused ----------------------------------------------------------


@pytest.mark.parametrize(
  ("replica", "words"),
  [
    (
      "http://h:80/v1/",
      "`replica=http://h:80/v1/`: this server is given twice",
    ),
    ("http://H/v1", "`replica=http://H/v1`: this server is given twice"),
    ("h/v1", "endpoint.replica: expected such as http"),
    ("http://h/v1?key=x", "endpoint.replica: the address ends with its path"),
  ],
)
def test_a_replica_that_cant_be_is_refused(replica, words):
  with pytest.raises(errors.InputError) as caught:
    remote.Endpoint("http://h/v1", "m", replica=(replica,))
  assert words in str(caught.value)
  with pytest.raises(errors.InputError) as caught:
    remote.Endpoint("http://g/v1", "m", replica=("http://h/v1", replica))
  assert words in str(caught.value)


def test_the_key_goes_encrypted_to_each_server(serve, monkeypatch):
  monkeypatch.setenv("MY_KEY", "sk-secret")
  where = dict(model="m", key_variable="MY_KEY", replica=("http://h/v1",))
  with pytest.raises(errors.InputError, match=r"endpoint.replica: http://h w"):
    remote.Endpoint("https://g/v1", **where)
  remote.Endpoint("https://g/v1", **where, insecure_key=True)
  stubs = [serve(), serve()]
  stub_server.generate(_client(stubs, key_variable="MY_KEY"))
  assert {x for stub in stubs for x in stub.keys} == {"Bearer sk-secret"}
