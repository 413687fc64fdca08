"""Load, hostile clients, keys, and the end of a server."""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import gzip
import json
import logging
import socket
import threading
import time

import numpy as np
import pytest
import served
from uvicorn.protocols.http import h11_impl

from prm_jax import errors
from prm_jax import schema
from prm_jax.runtime import json_text
from prm_jax.scoring import scorer as scorer_lib
from prm_jax.serving import batching
from prm_jax.serving import bodies
from prm_jax.serving import limits as limits_lib
from prm_jax.serving import metrics
from prm_jax.serving import metrics as metrics_lib
from prm_jax.serving import models as models_lib
from prm_jax.serving import score_api

SECRET = "the text of a client"
BODY = dict(items=[dict(problem=SECRET, steps=["2"])])


@pytest.fixture
def gate(monkeypatch):
  """Makes the model wait; the numbers of solutions in each of its batches."""
  gate = threading.Event()
  gate.batches, score = [], models_lib.Model.score

  def waiting(self, batch):
    gate.batches.append(len(batch))
    assert gate.wait(20)
    return score(self, batch)

  monkeypatch.setattr(models_lib.Model, "score", waiting)
  yield gate
  gate.set()


def _until(holds):
  end = time.monotonic() + 10
  while not holds():
    assert time.monotonic() < end
    time.sleep(0.01)


def _raw(asked, text, pause=0.0, wait=5.0):
  """Sends bytes, and returns what comes until the server closes."""
  with socket.create_connection((asked.host, asked.port), timeout=wait) as s:
    s.sendall(text)
    time.sleep(pause)
    out = b""
    with contextlib.suppress(TimeoutError):
      while more := s.recv(65_536):
        out += more
    return out


def _request(body, more=""):
  text = json.dumps(body)
  return (
    f"POST /v1/prm/score HTTP/1.1\r\nHost: x\r\n{more}"
    f"Content-Length: {len(text)}\r\n\r\n{text}"
  ).encode()


LONG = "so 2. " * 600_000
LONG_CHAT = [
  dict(role="user", content="1?"),
  dict(role="assistant", content=LONG),
]
LONG_REQUESTS = {
  "steps": ("/v1/prm/score", dict(items=[dict(problem="1?", steps=[LONG])])),
  "problem": ("/v1/prm/score", dict(items=[dict(problem=LONG, steps=["2"])])),
  "response": (
    "/v1/prm/score",
    dict(items=[dict(problem="1?", response=LONG)]),
  ),
  "messages": ("/v1/prm/score", dict(items=[dict(messages=LONG_CHAT)])),
  "vllm": ("/pooling", dict(messages=LONG_CHAT)),
  "marks": ("/rm", dict(prompt="1?", response=f"{LONG}<extra_0>")),
}


@pytest.mark.parametrize("name", LONG_REQUESTS)
def test_a_text_that_cant_fit_is_refused_before_any_work_on_it(
  running, monkeypatch, name
):
  """To cut or encode 3.6 MB takes seconds."""

  def work(self, *given):
    raise AssertionError

  monkeypatch.setattr(scorer_lib.Scorer, "cut", work)
  monkeypatch.setattr(scorer_lib.Scorer, "encode", work)
  path, body = LONG_REQUESTS[name]
  status, reply, _ = running.post(body, path)
  assert status == 413, reply
  assert "up to 96 tokens" in reply["error"]["message"]
  assert reply["error"]["param"]


def test_a_full_queue_refuses_with_a_time_to_wait_and_loses_nothing(
  serving, gate
):
  limits = dataclasses.replace(served.LIMITS, max_queue=2)
  with (
    serving(limits) as asked,
    concurrent.futures.ThreadPoolExecutor(3) as pool,
  ):
    first = pool.submit(asked.post, BODY)
    _until(lambda: gate.batches)
    others = [pool.submit(asked.post, BODY) for _ in range(2)]
    _until(lambda: len(asked.server._batcher._queue) == 2)
    status, reply, headers = asked.post(BODY)
    assert (status, headers["retry-after"]) == (503, "1")
    assert reply["error"]["type"] == "overloaded"
    assert "prm_jax_overloads_total 1.0" in asked.get("/metrics")[1]
    gate.set()
    assert [x.result()[0] for x in (first, *others)] == [200] * 3
    # One that alone is more than the queue would never be taken otherwise.
    assert asked.post(dict(items=BODY["items"] * 3))[0] == 200


def test_a_request_past_its_deadline_gets_504_and_leaves_the_queue(
  serving, gate
):
  limits = dataclasses.replace(served.LIMITS, deadline_s=0.5)
  with serving(limits) as asked:
    _until(lambda: asked.server.is_ready)
    status, reply, _ = asked.post(BODY)
    assert (status, reply["error"]["type"]) == (504, "timeout")
    gate.set()
    assert asked.post(BODY)[0] == 200
  assert gate.batches == [1, 1]


def test_the_model_doesnt_see_what_a_client_no_longer_waits_for(serving, gate):
  with (
    serving() as asked,
    concurrent.futures.ThreadPoolExecutor(1) as pool,
  ):
    first = pool.submit(asked.post, BODY)
    _until(lambda: gate.batches)
    with socket.create_connection((asked.host, asked.port)) as gone:
      gone.sendall(_request(dict(items=BODY["items"] * 3)))
      _until(lambda: len(asked.server._batcher._queue) == 3)
    _until(lambda: "clients_gone_total 1.0" in asked.get("/metrics")[1])
    gate.set()
    assert first.result()[0] == 200
    assert asked.post(BODY)[0] == 200
  assert gate.batches == [1, 1]


def test_what_nobody_waits_for_takes_no_room_in_the_queue(serving, gate):
  limits = dataclasses.replace(served.LIMITS, max_queue=3)
  with (
    serving(limits) as asked,
    concurrent.futures.ThreadPoolExecutor(2) as pool,
  ):
    batcher = asked.server._batcher
    answers = [pool.submit(asked.post, BODY)]
    _until(lambda: gate.batches)
    with socket.create_connection((asked.host, asked.port)) as gone:
      gone.sendall(_request(dict(items=BODY["items"] * 3)))
      _until(lambda: len(batcher._queue) == 3)
    _until(lambda: "clients_gone_total 1.0" in asked.get("/metrics")[1])
    assert "waiting_solutions 0.0" in asked.get("/metrics")[1]
    answers.append(pool.submit(asked.post, BODY))
    _until(lambda: len(batcher._queue) == 1)
    gate.set()
    assert [x.result()[0] for x in answers] == [200, 200]


def test_a_score_that_is_no_number_fails_only_its_own_request(
  serving, monkeypatch
):
  score = models_lib.Model.score

  def spoil(self, batch):
    return [
      row._replace(scores=dataclasses.replace(row.scores, scores=(np.nan,)))
      if x.solution.steps == ("nan",)
      else row
      for x, row in zip(batch, score(self, batch), strict=True)
    ]

  monkeypatch.setattr(models_lib.Model, "score", spoil)
  bad = dict(items=[dict(problem="1?", steps=["nan"])])
  limits = dataclasses.replace(served.LIMITS, max_wait_ms=500)
  with (
    serving(limits) as asked,
    concurrent.futures.ThreadPoolExecutor(2) as pool,
  ):
    both = list(pool.map(asked.post, (bad, BODY)))
  assert [status for status, _, _ in both] == [500, 200]
  assert "finite" in both[0][1]["error"]["message"]


def test_solutions_of_two_models_in_turn_are_scored_in_two_batches(
  scorer_of_text,
):
  one, two = (
    models_lib.Model(name, "", scorer_of_text, served.LIMITS)
    for name in ("one", "two")
  )
  steps = [("a",), ("b",), ("c",), ("d",)]
  prepared = [one.prepare(schema.Solution("0", "1?", s), "") for s in steps]
  metrics = metrics_lib.Metrics()

  async def ask():
    batcher = batching.Batcher(served.LIMITS, metrics)
    async with batcher.running():
      return await asyncio.gather(
        *(
          batcher.score(model, [x])
          for model, x in zip((one, two, one, two), prepared, strict=True)
        )
      )

  found = asyncio.run(ask())
  for (row,), expected in zip(found, one.score(prepared), strict=True):
    scores, other = row.scores.scores, expected.scores.scores
    assert scores == pytest.approx(other, abs=1e-5)
  assert b"batch_solutions_count 2.0" in metrics.text()


def test_a_batch_waits_for_others_and_ends_before_the_batcher(scorer_of_text):
  limits = dataclasses.replace(served.LIMITS, max_wait_ms=300)
  model = models_lib.Model("x", "", scorer_of_text, limits)
  prepared = model.prepare(schema.Solution("0", "1?", ("a",)), "")
  metrics = metrics_lib.Metrics()

  async def ask():
    batcher = batching.Batcher(limits, metrics)
    async with batcher.running():
      asked = [asyncio.create_task(batcher.score(model, [prepared]))]
      await asyncio.sleep(0.01)
      asked.append(asyncio.create_task(batcher.score(model, [prepared])))
      await asyncio.sleep(0)
    return await asyncio.wait_for(asyncio.gather(*asked), 5)

  assert len(asyncio.run(ask())) == 2
  assert b"batch_solutions_count 1.0" in metrics.text()


def test_a_solution_waits_for_others_since_it_came(scorer_of_text):
  limits = dataclasses.replace(served.LIMITS, max_wait_ms=5_000)
  model = models_lib.Model("x", "", scorer_of_text, limits)
  prepared = model.prepare(schema.Solution("0", "1?", ("a",)), "")

  async def wait():
    batcher = batching.Batcher(limits, metrics_lib.Metrics())
    loop = asyncio.get_running_loop()
    batcher._queue.append(
      batching._Waiting(
        prepared, model, loop.create_future(), loop.time() - 5.1
      )
    )
    await asyncio.wait_for(batcher._wait_for_others(), 1)

  asyncio.run(wait())


def test_what_was_asked_before_the_end_is_answered(serving, gate):
  with concurrent.futures.ThreadPoolExecutor(1) as pool:
    with serving() as asked:
      answer = pool.submit(asked.post, BODY)
      _until(lambda: gate.batches)
      threading.Timer(0.3, gate.set).start()
    assert answer.result()[0] == 200
  with pytest.raises(OSError):
    asked.post(BODY)


def test_a_server_is_ready_when_all_is_compiled(serving, monkeypatch):
  begun, go = threading.Event(), threading.Event()

  def waiting(self, *shape):
    begun.set()
    assert go.wait(10)

  monkeypatch.setattr(scorer_lib.Scorer, "compile_shape", waiting)
  with serving() as asked:
    assert begun.wait(10)
    status, _, headers = asked.get("/ready")
    assert (status, headers["retry-after"]) == (503, "2")
    assert asked.get("/health")[0] == 200
    go.set()
    _until(lambda: asked.get("/ready")[0] == 200)


def test_a_model_that_fails_gives_500_without_texts_and_serves_on(
  serving, monkeypatch, caplog
):
  good = models_lib.Model.score

  def fail(self, batch):
    monkeypatch.setattr(models_lib.Model, "score", good)
    raise RuntimeError("a path of ours")

  with serving() as asked:
    asked.post(BODY)
    monkeypatch.setattr(models_lib.Model, "score", fail)
    status, reply, _ = asked.post(BODY)
    assert status == 500
    assert "a path of ours" not in json.dumps(reply)
    assert asked.post(BODY)[0] == 200
  assert "a path of ours" in caplog.text


def test_no_text_of_a_client_is_logged(serving, caplog, monkeypatch):
  caplog.set_level(logging.DEBUG)
  prepare = models_lib.Model.prepare

  def fail(self, solution, *rest):
    if solution.steps == ("fail",):
      raise ValueError(f"can't read {solution.problem!r}")
    return prepare(self, solution, *rest)

  monkeypatch.setattr(models_lib.Model, "prepare", fail)
  with serving() as asked:
    bad = dict(items=[dict(problem=SECRET, steps=["fail"])])
    status, reply, _ = asked.post(bad)
    assert status == 500
    assert SECRET not in json.dumps(reply)
    assert "ValueError" in caplog.text
    asked.post(BODY)
    asked.post(dict(items=[dict(problem=SECRET, steps=[])]))
    asked.post(SECRET.encode(), f"/v1/{SECRET.replace(' ', '_')}")
  assert SECRET not in caplog.text
  assert SECRET.replace(" ", "_") not in caplog.text


def test_a_request_ends_on_the_model_that_it_began_with(
  serving, gate, monkeypatch
):
  """A later save is taken up in between, and no request is lost."""

  def load_newer(model):
    if model.fingerprint == "sha256:1" or not gate.batches:
      return None
    return dataclasses.replace(model, fingerprint="sha256:1")

  monkeypatch.setattr(models_lib, "load_newer", load_newer)
  limits = dataclasses.replace(served.LIMITS, reload_s=0.05)
  with (
    serving(limits) as asked,
    concurrent.futures.ThreadPoolExecutor(2) as pool,
  ):
    old = [pool.submit(asked.post, BODY)]
    _until(lambda: gate.batches)
    old.append(pool.submit(asked.post, BODY))
    _until(lambda: len(asked.server._batcher._queue) == 1)
    gate.set()
    _until(lambda: asked.server.models["tiny"].fingerprint == "sha256:1")
    new = asked.post(BODY)[1]
  prints = [x.result()[1]["model_fingerprint"] for x in old]
  assert [*prints, new["model_fingerprint"]] == ["sha256:0"] * 2 + ["sha256:1"]


def test_a_later_save_that_cant_be_compiled_changes_nothing(
  serving, monkeypatch, caplog
):
  """And the server looks for one that can."""
  loads = []

  def load_newer(model):
    loads.append(model)
    broken = dataclasses.replace(model.scorer, row_lengths=(256, -1))
    return dataclasses.replace(model, scorer=broken)

  monkeypatch.setattr(models_lib, "load_newer", load_newer)
  limits = dataclasses.replace(served.LIMITS, reload_s=0.01)
  with serving(limits) as asked:
    _until(lambda: len(loads) > 2)
    assert asked.post(BODY)[0] == 200
  assert "a later save can't be loaded" in caplog.text


def test_a_later_save_that_cant_be_loaded_changes_nothing(
  serving, monkeypatch, caplog
):
  def fail(model):
    raise errors.DamagedError("damaged")

  monkeypatch.setattr(models_lib, "load_newer", fail)
  limits = dataclasses.replace(served.LIMITS, reload_s=0.01)
  with serving(limits) as asked:
    _until(lambda: "a later save can't be loaded: damaged" in caplog.text)
    assert asked.post(BODY)[0] == 200


def test_a_batch_is_full_rows_of_one_model_and_the_first_is_never_left(
  scorer_of_text,
):
  """A longer solution is overtaken once: then it is the first."""
  limits = dataclasses.replace(served.LIMITS, max_batch_tokens=256)
  scorer = dataclasses.replace(scorer_of_text, batch_tokens=256)
  ours, other = (models_lib.Model(name, "", scorer, limits) for name in "ab")

  async def take():
    batcher = batching.Batcher(limits, metrics.Metrics())
    new = asyncio.get_running_loop().create_future
    for model, tokens in (
      *((ours, 128), (other, 64), (ours, 129), (ours, 64), (other, 193)),
      *((ours, 65), (ours, 256)),
    ):
      whole = model.prepare(scorer.cut("1?", "one"), "")
      ids = np.zeros(tokens, np.int32)
      encoded = dataclasses.replace(whole.encoded, tokens=ids)
      row = dataclasses.replace(whole, encoded=encoded)
      batcher._queue.append(batching._Waiting(row, model, new(), 0.0))
    batches = []
    while batcher._queue:
      batch = batcher._take()
      batches.append([(x.model.name, x.prepared.num_tokens) for x in batch])
    return batches

  assert asyncio.run(take()) == [
    [("a", 128), ("a", 64)],
    [("b", 64)],
    [("a", 129), ("a", 65)],
    [("b", 193)],
    [("a", 256)],
  ]


# --- Keys -------------------------------------------------------------------


def test_only_a_right_key_opens_what_isnt_open(serving):
  with serving(keys=["one", "twö"]) as asked:
    for headers, wanted in (
      ({}, 401),
      (dict(Authorization="Bearer on"), 401),
      (dict(Authorization="Basic one"), 401),
      (dict(Authorization="one"), 401),
      (dict(Authorization="Bearer one"), 200),
      (dict(Authorization="bearer one"), 200),
      (dict(Authorization="Bearer twö".encode()), 200),
    ):
      status, reply, sent = asked.post(BODY, **headers)
      assert status == wanted, headers
      if wanted == 401:
        assert sent["www-authenticate"] == "Bearer"
        assert "one" not in json.dumps(reply).split("no right key")[0]
      assert asked.get("/metrics", **headers)[0] == wanted
      assert asked.get("/v1/models", **headers)[0] == wanted
    assert asked.get("/health")[0] == 200
    assert asked.get("/ready")[0] in (200, 503)


def test_each_key_is_a_client_whose_prefixes_are_its_own(serving, monkeypatch):
  clients, prepare = [], models_lib.Model.prepare

  def noting(self, solution, where, client=""):
    clients.append(client)
    return prepare(self, solution, where, client)

  monkeypatch.setattr(models_lib.Model, "prepare", noting)
  with serving(keys=["one", "two"]) as asked:
    for key in ("one", "two", "one"):
      assert asked.post(BODY, Authorization=f"Bearer {key}")[0] == 200
  assert clients[0] == clients[2] != clients[1]


# --- Hostile bodies and clients ---------------------------------------------


def test_a_body_above_the_limit_is_refused_before_it_is_read(serving):
  limits = dataclasses.replace(served.LIMITS, max_body_bytes=100)
  with serving(limits) as asked:
    status, reply, _ = asked.post(dict(items=["x" * 200]))
    assert status == 413
    assert "100 bytes" in reply["error"]["message"]
    # Without a length, in pieces that never end.
    head = b"POST /v1/prm/score HTTP/1.1\r\nHost: x\r\n"
    chunk = b"40\r\n" + b" " * 64 + b"\r\n"
    reply = _raw(
      asked, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 5, wait=0.3
    )
    assert reply.startswith(b"HTTP/1.1 413")
    largest = json.dumps(BODY).encode().ljust(100)
    assert asked.post(largest)[0] == 200
    assert asked.post(largest + b" ")[0] == 413


def test_bodies_are_bounded_together_until_they_are_answered(serving, gate):
  limits = dataclasses.replace(
    served.LIMITS, max_body_bytes=1000, max_bodies_bytes=1000
  )
  large = json.dumps(BODY).encode().ljust(900)
  with (
    serving(limits) as asked,
    concurrent.futures.ThreadPoolExecutor(1) as pool,
  ):
    with socket.create_connection((asked.host, asked.port)) as slow:
      slow.sendall(
        _request(BODY).replace(b"Length: ", b"Length: 9") + large[:850]
      )
      _until(lambda: asked.server._bodies._held > 900)
      status, reply, headers = asked.post(large)
      assert (status, headers["retry-after"]) == (503, "1")
      assert "1,000 bytes" in reply["error"]["message"]
      # What was refused holds nothing.
      assert asked.server._bodies._held < 1000
    _until(lambda: asked.server._bodies._held == 0)
    first = pool.submit(asked.post, large)
    _until(lambda: gate.batches)
    assert asked.post(large)[0] == 503
    gate.set()
    assert first.result()[0] == 200
    assert asked.post(large)[0] == 200
    assert asked.server._bodies._held == 0


def test_only_a_piece_of_what_a_client_sends_is_read_at_a_time(
  serving, monkeypatch
):
  """It may be chunks of a byte, and others wait until all of it is read."""
  read, received = [], h11_impl.H11Protocol.data_received

  def noting(self, data):
    read.append(len(data))
    return received(self, data)

  monkeypatch.setattr(h11_impl.H11Protocol, "data_received", noting)
  with serving() as asked:
    assert asked.post(b" " * 300_000)[0] == 400
  assert max(read) <= 4096


def test_a_client_that_sends_far_too_much_reads_why(serving):
  """What it still sends is read and forgotten, for a while."""
  limits = dataclasses.replace(served.LIMITS, max_body_bytes=100)
  with serving(limits) as asked:
    assert asked.post(b" " * 8_000_000)[0] == 413
  with serving(limits, keys=["one"]) as asked:
    assert asked.post(b" " * 8_000_000)[0] == 401


def test_a_client_that_doesnt_read_its_replies_is_let_go(serving):
  limits = dataclasses.replace(served.LIMITS, deadline_s=0.5, read_s=0.5)
  ask = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 50
  with serving(limits) as asked, socket.socket() as s:
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.connect((asked.host, asked.port))
    s.settimeout(5)
    with pytest.raises(ConnectionError):
      while True:
        s.sendall(ask)


def test_others_are_answered_while_a_large_body_is_parsed(serving, monkeypatch):
  begun, go, parse = threading.Event(), threading.Event(), json_text.parse

  def waiting(text):
    if len(text) > 100_000:
      begun.set()
      assert go.wait(5)
    return parse(text)

  monkeypatch.setattr(json_text, "parse", waiting)
  with (
    serving() as asked,
    concurrent.futures.ThreadPoolExecutor(1) as pool,
  ):
    large = pool.submit(asked.post, b" " * 200_000)
    assert begun.wait(5)
    assert asked.get("/health")[0] == 200
    assert not large.done()
    go.set()
    assert large.result()[0] == 400


def test_others_are_answered_while_a_large_reply_is_written(
  serving, monkeypatch
):
  begun, go, write = threading.Event(), threading.Event(), score_api.reply

  def waiting(*arguments):
    begun.set()
    assert go.wait(5)
    return write(*arguments)

  body = dict(items=[dict(problem="é?", steps=["2", "3"])] * 2)
  with (
    serving() as asked,
    concurrent.futures.ThreadPoolExecutor(1) as pool,
  ):
    small = asked.post(body)
    monkeypatch.setattr(bodies, "_LARGE_STEPS", 3)
    monkeypatch.setattr(score_api, "reply", waiting)
    large = pool.submit(asked.post, body)
    assert begun.wait(5)
    assert asked.get("/health")[0] == 200
    assert not large.done()
    go.set()
    status, reply, headers = large.result()
  assert status == 200
  assert headers["content-length"] == small[2]["content-length"]
  assert headers["content-type"] == small[2]["content-type"]
  assert reply == small[1]


def test_a_compressed_body_is_refused_unread(serving):
  bomb = gzip.compress(b"0" * 1_000_000)
  with serving() as asked:
    status, reply, _ = asked.post(bomb, Content_Encoding="gzip")
  assert status == 415
  assert "uncompressed" in reply["error"]["message"]


def test_a_client_that_sends_too_slowly_is_let_go(serving):
  limits = dataclasses.replace(served.LIMITS, read_s=0.3)
  with serving(limits) as asked:
    began = time.monotonic()
    head = _request(BODY)
    assert _raw(asked, head[:-5]).startswith(b"HTTP/1.1 408")
    assert _raw(asked, b"POST /v1/prm/score HT") == b""
    assert _raw(asked, b"") == b""
    # The same, after a request that was answered.
    health = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    with socket.create_connection((asked.host, asked.port), timeout=5) as s:
      s.sendall(health)
      reply = b""
      while not reply.endswith(b"}"):
        reply += s.recv(4096)
      s.sendall(health[:9])
      assert s.recv(4096) == b""
    assert time.monotonic() - began < 4
    assert asked.post(BODY)[0] == 200


def test_requests_in_one_packet_are_answered_in_their_order(serving):
  other = dict(items=[dict(problem=SECRET, steps=["2", "3"])])
  last = _request(BODY, "Connection: close\r\n")
  with serving() as asked:
    out = _raw(asked, _request(BODY) + _request(other) + last)
  replies = [x for x in out.split(b"HTTP/1.1 ") if x]
  assert [x[:3] for x in replies] == [b"200"] * 3
  scores = [
    json.loads(x.split(b"\r\n\r\n", 1)[1])["data"][0]["step_scores"]
    for x in replies
  ]
  assert [len(x) for x in scores] == [1, 2, 1]


def test_all_bodies_together_have_room_for_one():
  with pytest.raises(errors.InputError, match="max_bodies_bytes=9: no request"):
    limits_lib.Limits(max_body_bytes=10, max_bodies_bytes=9)
