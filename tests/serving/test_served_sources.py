"""A function, a server and a judge are served; their failures give no score."""

import concurrent.futures
import contextlib
import dataclasses
import json
import logging
import pathlib
import threading
import time

import numpy as np
import pytest
import served
import stub_server

import prm_jax
from prm_jax import errors
from prm_jax.labelling import judge_prompts
from prm_jax.runtime import listening
from prm_jax.scoring import score_sources
from prm_jax.serving import app as app_lib
from prm_jax.serving import declarations
from prm_jax.serving import judges
from prm_jax.serving import models as models_lib
from prm_jax.serving import refusals
from prm_jax.serving import routes
from prm_jax.serving import served_sources
from prm_jax.serving import server as server_lib
from prm_jax.serving import threads
from prm_jax.text import segmenters

SECRET = "the text of a client"
FUNCTIONS = """
import asyncio
import numpy as np
import gate
from prm_jax import errors

def score(solutions):
  gate.seen.append(len(solutions))
  gate.wait(solutions)
  return [np.float32([1 / (1 + len(step)) for step in s.steps])
          for s in solutions]

class Panic(BaseException):
  pass

def fail(solutions):
  gate.seen.append(len(solutions))
  for s in solutions:
    if s.steps == ("panic",):
      raise Panic(s.problem)
    if s.steps == ("cancel",):
      raise asyncio.CancelledError(s.problem)
    if s.steps == ("stop",):
      raise KeyboardInterrupt(s.problem)
    if s.steps == ("input",):
      raise errors.InputError(s.problem)
    if s.steps == ("bad",):
      raise ValueError(s.problem)
    if s.steps == ("exit",):
      raise SystemExit(s.problem)
    if s.steps == ("lie",):
      return [s.problem for s in solutions]
    if s.steps == ("high",):
      return [[1.5]]
    if s.steps == ("nan",):
      return [[float("nan")]]
    if s.steps == ("few",):
      return [[]]
  return [[0.25] * len(s.steps) for s in solutions]
"""


class _Gate:
  """What the functions call: counts, and a wait that a test may hold."""

  def __init__(self):
    self.seen, self.open, self.begun = [], threading.Event(), threading.Event()
    self.open.set()

  def wait(self, solutions):
    if any(s.steps == ("wait",) for s in solutions):
      self.begun.set()
      self.open.wait(20)


@pytest.fixture
def gate(tmp_path, monkeypatch):
  gate = _Gate()
  monkeypatch.setitem(__import__("sys").modules, "gate", gate)
  monkeypatch.chdir(tmp_path)
  pathlib.Path("f.py").write_text(FUNCTIONS)
  yield gate
  gate.open.set()


@pytest.fixture
def stub():
  with stub_server.running() as stub:
    yield stub


@contextlib.contextmanager
def _serving(*of, limits=served.LIMITS, models=()):
  server = app_lib.Server({x.name: x for x in (*models, *of)}, limits)
  with (
    listening.listen("127.0.0.1", 0) as listener,
    server_lib.answering(server, listener),
  ):
    yield served.Asked(server, listener.getsockname())


def _load(where, name=None, limits=served.LIMITS, **options):
  return served_sources.load(where, limits, name=name, **options)


def _items(*steps):
  return dict(items=[dict(problem=SECRET, steps=[*x]) for x in steps])


def _scores(handler, body, times):
  """Replies as a server of scores: 1 / (2 + length of the step)."""
  data = [
    dict(
      index=i,
      step_scores=[1 / (2 + len(step)) for step in item["steps"]],
      judged=[step != "odd" for step in item["steps"]],
    )
    for i, item in enumerate(body["items"])
  ]
  return dict(data=data, model="big", model_fingerprint="sha256:9")


JUDGE = dict(model="critic", chat=True, votes=4, max_tokens=9, seed=1)


def _judge(stub, *votes, **fields):
  """Returns a judge whose answers are `votes`, in turn for each prompt."""
  pathlib.Path("judge.json").write_text(
    json.dumps(dict(policy=stub.url) | JUDGE | fields)
  )
  lock, counts = threading.Lock(), {}

  def behave(handler, body, times):
    prompt = body["messages"][0]["content"]
    with lock:
      number = counts[prompt] = counts.get(prompt, -1) + 1
    return stub_server.reply(body, f"I see. {votes[number % len(votes)]}")

  stub.behave = behave
  return "judge.json"


# --- What is answered ---------------------------------------------------------


def test_each_source_gives_the_scores_that_it_gives_by_itself(gate, stub):
  stub.behave = _scores
  loaded = (
    _load("f.py:score"),
    _load(stub.url, "upstream"),
  )
  own = [prm_jax.load_score(x) for x in ("f.py:score", stub.url)]
  with _serving(*loaded) as asked:
    for source, score in zip(loaded, own, strict=True):
      body = _items(("one", "odd"), ("three",)) | dict(model=source.name)
      status, reply, _ = asked.post(body)
      assert status == 200, reply
      expected = score(
        [
          prm_jax.Solution("a", SECRET, tuple(x["steps"]))
          for x in body["items"]
        ]
      )
      assert [tuple(x["step_scores"]) for x in reply["data"]] == [
        row.scores for row in expected
      ]
      assert reply["aggregate"] == "product"
      assert reply["usage"]["prompt_tokens"] == 0
      assert [x["num_tokens"] for x in reply["data"]] == [0, 0]
      declarations.check(reply, routes.ALL[0].reply)
    assert reply["data"][0]["judged"] == [True, False]
    _, listed, _ = asked.get("/v1/models")
  assert [(x["id"], x["kind"]) for x in listed["data"]] == [
    ("score", "function"),
    ("upstream", "server"),
  ]
  assert all("max_tokens" not in x for x in listed["data"])
  declarations.check(listed, routes.MODELS.reply)
  prints = [x["model_fingerprint"] for x in listed["data"]]
  assert len({*prints}) == 2
  pathlib.Path("f.py").write_text(FUNCTIONS + "# changed\n")
  assert _load("f.py:score").fingerprint != prints[0]


def test_a_judges_score_is_the_share_of_votes_that_find_no_error_so_far(
  gate, stub
):
  none, second, unread = "\\boxed{-1}", "\\boxed{1}", "no box"
  path = _judge(stub, none, second, second, unread)
  with _serving(_load(path)) as asked:
    status, reply, _ = asked.post(_items("ab", "abc"))
  assert status == 200, reply
  assert reply["model"] == "judge"
  assert [x["step_scores"] for x in reply["data"]] == [
    pytest.approx([1, 1 / 3]),
    pytest.approx([1, 1 / 3, 1 / 3]),
  ]
  assert len(stub.seen) == 8
  assert {x["max_tokens"] for x in stub.seen} == {9}


def test_a_judges_votes_count_as_its_file_says(gate, stub):
  none, second, unread = "\\boxed{-1}", "\\boxed{1}", "no box"
  votes = (none, second, second, unread)
  found = []
  for how in (
    dict(vote="majority"),
    dict(min_votes=3),
    dict(min_votes=4),
    dict(min_votes=4, unknown=0.75),
    dict(vote="majority", votes=2),
  ):
    source = _load(_judge(stub, *votes, **how))
    (row,) = source.score(
      [source.prepare(prm_jax.Solution("0", "1?", ("a", "b")), "")]
    )
    is_refused = isinstance(row, refusals.RefusedError)
    found.append(row.message if is_refused else row.scores.scores)
  few = "the judge's answers make no score: 3 of 4 can be read"
  assert found[:4] == [(1, 0), (1, pytest.approx(1 / 3)), few, (0.75, 0.75)]
  assert found[4].startswith(few.replace("3 of 4", "2 of 2"))
  assert "a tie" in found[4]
  seeds = {x["seed"] for x in stub.seen}
  assert len(seeds) == 4
  again = _load(_judge(stub, *votes, seed=2))
  again.score([again.prepare(prm_jax.Solution("0", "1?", ("a", "b")), "")])
  assert len({x["seed"] for x in stub.seen} - seeds) == 4


def test_a_judge_with_a_rubric_gives_the_labels_of_its_principles(gate, stub):
  principles = [
    dict(name="sums", means="Right sums.", fatal=True),
    dict(name="style", means="Clear."),
  ]
  pathlib.Path("r.json").write_text(json.dumps(dict(principles=principles)))

  def graded(*sums):
    return "".join(
      stub_server.graded(k, sums=x, style=0, overall=1)
      for k, x in enumerate(sums, 1)
    )

  path = _judge(
    stub, graded(1, 1), graded(1, 0), "no", votes=3, rubric="r.json"
  )
  with _serving(_load(path)) as asked:
    status, reply, _ = asked.post(_items("ab"))
  assert status == 200, reply
  assert reply["data"][0]["step_scores"] == [0.5, 0.25]
  # The same of each principle as `label judge` keeps, also for a client.
  grades = reply["data"][0]["graded"]
  sums = grades["principles"]["sums"]
  assert sums["scores"] == [1, 0.5] and sums["labels"] == [1, 0.5]
  assert grades["principles"]["style"]["scores"] == [0, 0]
  assert [len(x) for x in sums["critiques"]] == [2, 2]
  assert "- sums: Right sums." in stub.seen[0]["messages"][0]["content"]
  prints = {reply["model_fingerprint"], _load(_judge(stub, "")).fingerprint}
  principles[0]["weight"] = 2
  pathlib.Path("r.json").write_text(json.dumps(dict(principles=principles)))
  path = _judge(stub, "", votes=3, rubric="r.json")
  assert len(prints | {_load(path).fingerprint}) == 3


def test_a_judge_that_weighs_its_verdicts_gives_their_probability(
  gate, stub, caplog
):
  """If it can't, the log says where and shows no text."""
  path = _judge(
    *(stub, ""),
    template="thinkprm",
    vote="log_likelihood",
    chat=False,
    votes=1,
  )
  answer = (
    "Step 1: yes. The step is \\boxed{correct}\nIs the solution correct? Yes"
  )
  template = judge_prompts.TEMPLATES["thinkprm"]
  words = (*template.step_words, *template.whole_words)
  weights = dict(zip(words, (-0.5, -1.5, -0.1, -3.0), strict=True))

  def behave(handler, body, times):
    if "echo" not in body:
      return stub_server.reply(body, answer)
    # A word is a token, and all before it another one.
    word = max((x for x in words if body["prompt"].endswith(x)), key=len)
    tokens = [body["prompt"].removesuffix(word), word]
    if SECRET in tokens[0]:
      tokens = ["".join(tokens)]
    values = [None, weights[word]][: len(tokens)]
    logprobs = dict(tokens=[*tokens, "!"], token_logprobs=[*values, -9.0])
    choice = dict(text=body["prompt"] + "!", finish_reason="length")
    usage = dict(prompt_tokens=2, completion_tokens=1)
    return dict(choices=[choice | dict(logprobs=logprobs)], usage=usage)

  stub.behave = behave
  source = _load(path)
  good, bad = (
    source.prepare(prm_jax.Solution("0", problem, ("a",)), "")
    for problem in ("1?", SECRET)
  )
  (row,) = source.score([good])
  assert row.scores.scores == pytest.approx((1 / (1 + np.exp(-1)),))
  (row,) = source.score([bad])
  assert row.status == 502
  assert SECRET not in caplog.text + row.message
  assert "log_prob" in caplog.text


def test_a_server_is_sent_its_key(gate, stub, monkeypatch):
  monkeypatch.setenv("UPSTREAM_KEY", "the key of the server")
  stub.behave = _scores
  key = score_sources.Key("UPSTREAM_KEY")
  with _serving(_load(stub.url, "up", key=key)) as asked:
    assert asked.post(_items(("2",)))[0] == 200
  assert {*stub.keys} == {"Bearer the key of the server"}


def test_a_text_is_cut_by_the_servers_segmenter_or_refused(gate):
  text = "one\r\n\r\n three "
  cutting = _load("f.py:score", "cut", segmenter=segmenters.PARAGRAPH)
  item = dict(problem="1?", response=text)
  with _serving(_load("f.py:score"), cutting) as asked:
    status, reply, _ = asked.post(dict(items=[item]))
    assert (status, reply["error"]["param"]) == (400, "items[0]")
    assert "give steps" in reply["error"]["message"]
    _, reply, _ = asked.post(dict(items=[item], model="cut"))
    assert reply["data"][0]["segments"] == [[0, 3], [8, 13]]
    assert reply["data"][0]["step_scores"] == pytest.approx([1 / 4, 1 / 6])
    body = dict(model="cut", messages=[])
    body["messages"] = [
      dict(role="user", content="1?"),
      dict(role="assistant", content=text),
    ]
    _, reply, _ = asked.post(body, "/classify?aggregate=last")
    assert reply["data"][0]["probs"] == pytest.approx([1 / 6])
    assert reply["usage"]["prompt_tokens"] == 0
    for steps, status in (([], 400), (["1"] * 10, 413)):
      assert asked.post(_items(steps))[0] == status


def test_functions_and_servers_get_conversations_and_judges_refuse_them(
  gate, stub
):
  said = [
    *(dict(role="user", content="1?"), dict(role="assistant", content="one")),
    *(dict(role="user", content="2?"), dict(role="assistant", content="two")),
  ]

  def behave(handler, body, times):
    own = [x for x in body["items"] if "messages" in x]
    turns = [dict(message=i, span=[0, 3]) for i in (1, 3)]
    scores = [len(own) / 4, 0.75] if own else [0.5]
    entry = dict(index=0, step_scores=scores, turns=turns)
    return dict(data=[entry], model="big", model_fingerprint="sha256:9")

  judge = _load(_judge(stub, "no box"))
  stub.behave = behave
  loaded = (_load("f.py:score"), _load(stub.url, "up"), judge)
  with _serving(*loaded) as asked:
    replies = [
      asked.post(dict(items=[dict(messages=said)], model=model))
      for model in ("score", "up", "judge")
    ]
  scores = ([1 / 4, 1 / 4], [0.25, 0.75])
  for (status, reply, _), expected in zip(replies, scores):
    assert status == 200, reply
    (entry,) = reply["data"]
    assert entry["step_scores"] == expected
    # Nothing is known of a template.
    assert entry["turns"] == [
      dict(message=1, span=[0, 3]),
      dict(message=3, span=[0, 3]),
    ]
    declarations.check(reply, routes.ALL[0].reply)
  (sent,) = (x for x in stub.seen if "messages" in x["items"][0])
  assert sent["items"][0]["steps_are"] == "turns"
  status, reply, _ = replies[2]
  assert (status, reply["error"]["param"]) == (400, "items[0]")
  assert "is a judge" in reply["error"]["message"]


# --- Threads and batches ------------------------------------------------------


def test_a_call_that_blocks_holds_up_no_other_model(gate, scorer_of_text):
  gate.open.clear()
  tiny = models_lib.Model("tiny", "", scorer_of_text, served.LIMITS)
  with (
    _serving(_load("f.py:score"), _load("f.py:fail"), models=[tiny]) as asked,
    concurrent.futures.ThreadPoolExecutor(1) as pool,
  ):
    blocked = pool.submit(asked.post, _items(("wait",)) | dict(model="score"))
    assert gate.begun.wait(10)
    for model in ("tiny", "fail"):
      assert asked.post(_items(("2",)) | dict(model=model))[0] == 200
    assert not blocked.done()
    gate.open.set()
    assert blocked.result()[0] == 200


def test_requests_that_wait_for_a_source_leave_bytes_for_others(gate):
  gate.open.clear()
  limits = dataclasses.replace(
    served.LIMITS, max_body_bytes=1000, max_bodies_bytes=3000
  )
  sizes = dict(blocked=900, small=500)
  bodies = {
    name: json.dumps(_items(("wait",)) | dict(model="score")).encode().ljust(n)
    for name, n in sizes.items()
  }
  with (
    _serving(_load("f.py:score"), _load("f.py:fail"), limits=limits) as asked,
    concurrent.futures.ThreadPoolExecutor(1) as pool,
  ):
    first = pool.submit(asked.post, bodies["blocked"])
    assert gate.begun.wait(10)
    for _ in range(2):  # what is refused holds nothing
      status, reply, headers = asked.post(bodies["small"])
      assert (status, headers["retry-after"]) == (503, "1")
      assert "wait for 'score' already" in reply["error"]["message"]
    other = json.dumps(_items(("2",)) | dict(model="fail")).encode()
    assert asked.post(other.ljust(1000))[0] == 200
    gate.open.set()
    assert first.result()[0] == 200
    assert asked.post(bodies["blocked"])[0] == 200
    assert asked.server._bodies._held == 0
    assert not any(asked.server._bodies._held_for.values())


def test_batches_are_bounded_by_their_number_of_solutions(gate):
  limits = dataclasses.replace(served.LIMITS, max_batch_solutions=3)
  with _serving(_load("f.py:score", limits=limits), limits=limits) as asked:
    assert asked.post(_items(*(["x"] * 8)))[0] == 200
    assert gate.seen == [3, 3, 2]
    text = asked.get("/metrics")[1]
    assert 'source_waiting_solutions{model="score"} 0.0' in text


def test_a_full_batch_waits_for_nothing(gate):
  limits = dataclasses.replace(
    served.LIMITS, max_batch_solutions=1, max_wait_ms=20_000, deadline_s=5
  )
  with _serving(_load("f.py:score", limits=limits), limits=limits) as asked:
    assert asked.post(_items(("x",)))[0] == 200


def test_a_call_that_never_ends_keeps_no_server_from_ending(gate):
  gate.open.clear()
  limits = dataclasses.replace(served.LIMITS, deadline_s=0.3)
  began = time.monotonic()
  with _serving(_load("f.py:score", limits=limits), limits=limits) as asked:
    assert asked.post(_items(("wait",)))[0] == 504
  assert time.monotonic() - began < 5


# --- Failures -----------------------------------------------------------------


FAULTS = {
  "bad": "failed (ValueError)",
  "exit": "failed (SystemExit)",
  "panic": "failed (Panic)",
  "cancel": "failed (CancelledError)",
  "stop": "failed (KeyboardInterrupt)",
  "input": "failed (InputError)",
  "lie": "no list with a score",
  "high": "no list with a score",
  "nan": "no list with a score",
  "few": "no list with a score",
}


def test_a_function_that_fails_gives_500_to_its_own_request(gate, caplog):
  caplog.set_level(logging.DEBUG)
  source = _load("f.py:fail")
  for step, words in FAULTS.items():
    caplog.clear()
    batch = [
      source.prepare(prm_jax.Solution("0", SECRET, steps), "")
      for steps in ((step,), ("2", "3"))
    ]
    bad, good = source.score(batch)
    assert (bad.status, good.scores.scores) == (500, (0.25, 0.25))
    assert words in bad.message
    assert "'fail'" in caplog.text and words in caplog.text
    assert ("f.py" in caplog.text) == words.startswith("failed")
    assert SECRET not in caplog.text + json.dumps(bad.record)
  with _serving(source) as asked:
    status, reply, _ = asked.post(_items(("2",), ("bad",)))
    assert (status, reply) == (500, bad.record | reply)
    assert asked.post(_items(("panic",)))[0] == 500
    assert asked.post(_items(("2",)))[0] == 200


def test_a_call_that_fails_in_a_sources_thread_doesnt_end_it(caplog, capfd):
  def fail(error):
    raise error

  thread = threads.Thread("x")
  for kind in (
    ValueError,
    KeyboardInterrupt,
    concurrent.futures.CancelledError,
  ):
    error = thread.submit(fail, kind(SECRET)).exception(10)
    assert str(error) == kind.__name__ and isinstance(error, RuntimeError)
    assert error.__context__ is None
  assert thread.submit(len, "abc").result(10) == 3
  thread.shutdown()
  assert "in fail" in caplog.text
  assert SECRET not in caplog.text + "".join(capfd.readouterr())


def test_one_of_many_that_fails_is_found_by_halves(gate):
  source = _load("f.py:fail")
  for place in (0, 37, 63):
    gate.seen.clear()
    steps = [("2",)] * 64
    steps[place] = ("bad",)
    rows = source.score(
      [source.prepare(prm_jax.Solution("0", "1?", s), "") for s in steps]
    )
    failed = [i for i, x in enumerate(rows) if not hasattr(x, "scores")]
    assert failed == [place]
    assert len(gate.seen) == 13


def test_what_nobody_waits_for_isnt_asked_for_again(gate):
  source = _load("f.py:fail")
  late, bad, good = (
    source.prepare(prm_jax.Solution("0", "1?", (step,)), "")
    for step in ("late", "bad", "2")
  )
  late = dataclasses.replace(late, until=time.monotonic())
  rows = source.score([late, late, bad, good])
  assert [getattr(x, "status", 200) for x in rows] == [504, 504, 500, 200]
  assert gate.seen == [4, 2, 1, 1]


def _says(status, **headers):
  def behave(handler, body, times):
    error = dict(error=dict(message=json.dumps(body)))
    handler.say(json.dumps(error).encode(), status, **headers)

  return behave


def _with(**changes):
  def behave(handler, body, times):
    reply = _scores(handler, body, times)
    reply["data"][0] |= changes
    return reply

  return behave


UPSTREAM = {
  "refusal": (_says(401), 502, "refuses it (status 401)"),
  "too_long": (_says(413), 502, "status 413"),
  "overload": (_says(503, Retry_After="0"), 503, "(status_503)"),
  "long_pause": (_says(429, Retry_After="9999"), 503, "(status_429)"),
  "no_json": (lambda handler, *_: handler.say(b"ok"), 503, "(bad_reply)"),
  "null": (_with(step_scores=[None]), 502, "no usable scores"),
  "range": (_with(step_scores=[1.5]), 502, "no usable scores"),
  "number": (_with(step_scores=[0.5, 0.5]), 502, "no usable scores"),
  "cut": (_with(truncated=True), 502, "no usable scores"),
  "other_model": (
    lambda *x: _scores(*x) | dict(model="other"),
    502,
    "no usable scores",
  ),
}


def test_a_server_that_fails_gives_502_or_503_and_no_score(
  gate, stub, caplog, monkeypatch
):
  caplog.set_level(logging.DEBUG)
  monkeypatch.setattr(served_sources, "TRIES", 1)
  stub.behave = _scores
  with _serving(_load(stub.url, "upstream")) as asked:
    for behave, wanted, words in UPSTREAM.values():
      caplog.clear()
      stub.behave = behave
      before = len(stub.seen)
      status, reply, headers = asked.post(_items(("2",), ("3",)))
      assert status == wanted, reply
      # What has nothing to do with a solution isn't asked of each.
      if wanted == 503 or "401" in words:
        assert len(stub.seen) == before + 1
      assert words in reply["error"]["message"]
      assert ("retry-after" in headers) == (wanted == 503)
      assert SECRET not in caplog.text + json.dumps(reply)
      assert "upstream" in caplog.text
    stub.behave = _scores
    assert asked.post(_items(("2",)))[0] == 200


def test_a_server_that_is_gone_gives_503(gate, stub, monkeypatch):
  monkeypatch.setattr(served_sources, "TRIES", 1)
  stub.behave = _scores
  source = _load(stub.url, "upstream")
  stub.shutdown()
  stub.server_close()
  source.ask.args[0].__self__.close()
  with _serving(source) as asked:
    status, reply, _ = asked.post(_items(("2",)))
  assert (status, reply["error"]["type"]) == (503, "overloaded")


@pytest.mark.parametrize(
  ("status", "own"), [(413, 502), (500, 503), (502, 503)]
)
def test_what_a_server_refuses_of_one_client_fails_no_other(
  gate, stub, monkeypatch, status, own
):
  monkeypatch.setattr(served_sources, "TRIES", 1)

  def behave(handler, body, times):
    if any("long" in item["steps"] for item in body["items"]):
      return _says(status)(handler, body, times)
    return _scores(handler, body, times)

  limits = dataclasses.replace(served.LIMITS, max_wait_ms=200)
  stub.behave = behave
  with (
    _serving(_load(stub.url, "up", limits=limits), limits=limits) as asked,
    concurrent.futures.ThreadPoolExecutor(2) as pool,
  ):
    bodies = (_items(("long",)), _items(("2",)))
    assert [x[0] for x in pool.map(asked.post, bodies)] == [own, 200]
  # The trial, both together, and each alone.
  assert [len(x["items"]) for x in stub.seen] == [1, 2, 1, 1]


def test_what_isnt_a_solutions_fault_is_asked_for_once(gate, stub, monkeypatch):
  monkeypatch.setattr(served_sources, "TRIES", 1)
  stub.behave = _scores
  source = _load(stub.url, "up")
  batch = [source.prepare(prm_jax.Solution("0", "1?", ("2",)), "")] * 4
  for fault in ("other_model", "overload", "refusal", "no_json"):
    stub.seen.clear()
    stub.behave, wanted, _ = UPSTREAM[fault]
    assert [x.status for x in source.score(batch)] == [wanted] * 4
    assert len(stub.seen) == 1, fault


def test_all_tries_of_a_call_end_within_the_deadline(gate, stub):
  limits = dataclasses.replace(served.LIMITS, deadline_s=0.6)
  stub.behave = _scores
  server = _load(stub.url, "up", limits=limits)
  judge = _load(_judge(stub, "", votes=4, concurrency=2), limits=limits)
  stub.behave = lambda handler, body, times: stub_server.hang(handler, body)
  for source in (server, judge):
    stub.seen.clear()
    began = time.monotonic()
    (row,) = source.score(
      [source.prepare(prm_jax.Solution("0", "1?", ("2",)), "")]
    )
    assert time.monotonic() - began < 1.1
    assert (row.status, "(timeout)" in row.message) == (503, True)
    assert len(stub.seen) > 1


def test_a_judge_begins_no_weighing_that_would_end_too_late(
  gate, stub, monkeypatch
):
  loaded = judges.load(
    _judge(stub, "", template="thinkprm", vote="log_likelihood", chat=False),
    **dict(tries=2, read_s=1.0, backoff_s=0.1, max_wait_s=0.1),
  )
  asked = []

  def log_likelihoods(prefixes, words):
    asked.append(len(prefixes))
    return [[-1.0] * len(words)] * len(prefixes)

  monkeypatch.setattr(loaded.client, "log_likelihoods", log_likelihoods)
  prefixes = [prm_jax.Solution(f"{i}", "1?", ("a",)) for i in range(20)]
  now = time.monotonic()
  assert len(loaded._weigh(now + 99, prefixes, ("a", "b"))) == 20
  assert asked == [8, 8, 4]
  with pytest.raises(errors.InputError, match="take too long"):
    loaded._weigh(now + 1, prefixes, ("a", "b"))
  assert len(asked) == 3


def test_a_judge_without_readable_votes_gives_502_unless_a_score_is_named(
  gate, stub, caplog
):
  path = _judge(stub, SECRET, votes=2)
  with _serving(_load(path)) as asked:
    status, reply, _ = asked.post(_items(("2",)))
  assert status == 502
  assert "0 of 2 can be read" in reply["error"]["message"]
  assert SECRET not in caplog.text
  assert "unparsable_no_verdict" in caplog.text
  path = _judge(stub, SECRET, votes=2, unknown=0.25)
  with _serving(_load(path)) as asked:
    status, reply, _ = asked.post(_items(("2",)))
  assert reply["data"][0]["step_scores"] == [0.25]
  assert reply["data"][0]["judged"] == [False]


def test_a_judges_answers_are_all_asked_for_at_once(gate, stub):
  path = _judge(stub, "\\boxed{-1}", concurrency=9)
  assert _load(path).limits.max_batch_tokens == 2
  path = _judge(stub, "\\boxed{-1}", concurrency=2)
  assert _load(path).limits.max_batch_tokens == 1


# --- What can't be served -------------------------------------------------------


@pytest.mark.parametrize(
  ("fields", "words"),
  [
    (dict(policy=None), "policy must be str"),
    (dict(votes="4"), "votes must be int"),
    (dict(vots=4), "unknown field 'vots'"),
    (dict(min_votes=5), "min_votes=5"),
    (
      dict(vote="log_likelihood", template="thinkprm"),
      "gives no log-probabilities",
    ),
    (dict(vote="log_likelihood", chat=False), "no word per step"),
    (dict(template="other"), "template='other'"),
    (dict(rubric="no.json"), "no.json"),
    (dict(rubric="f.py"), "ends in .json or .toml"),
    (dict(rubric=3), "rubric must be"),
    (dict(unknown=2.0), "unknown=2.0"),
    (dict(chat=False, system="x"), "only a chat"),
    (dict(request_option=[1]), "expected an object"),
    (dict(request_option=dict(seed=1)), "seed: prm_jax sets it"),
    (dict(key_variable="NO_KEY"), "NO_KEY isn't set"),
    (dict(temperature=-1), "temperature must be"),
  ],
  ids=lambda x: "-".join(x) if isinstance(x, dict) else "",
)
def test_a_file_that_describes_no_judge_is_refused(
  gate, stub, monkeypatch, fields, words
):
  monkeypatch.delenv("NO_KEY", raising=False)
  path = _judge(stub, "", **fields)
  with pytest.raises(errors.InputError, match=r"judge\.json: ") as e:
    _load(path)
  assert words in str(e.value)
  assert "\n" not in str(e.value)
  assert not stub.seen


def test_a_judge_has_an_address_and_a_model(gate):
  for field in ("policy", "model"):
    record = dict(policy="http://localhost:1/v1", model="m")
    del record[field]
    pathlib.Path("judge.json").write_text(json.dumps(record))
    with pytest.raises(errors.InputError, match=f"{field} is missing"):
      _load("judge.json")


def test_a_judges_fingerprint_is_of_what_it_is_asked(gate, stub):
  prints = {
    _load(_judge(stub, "", **fields)).fingerprint
    for fields in ({}, dict(concurrency=3), dict(votes=5), dict(seed=2))
  }
  assert len(prints) == 3


def test_a_source_that_cant_be_loaded_is_refused(gate, stub):
  for where, options, words in (
    ("f.py:nothing", {}, "no such function"),
    ("http://127.0.0.1:9/v1", {}, "give it a name"),
    (
      "f.py:score",
      dict(segmenter=segmenters.parse("tokens:4")),
      "has no tokenizer",
    ),
    (
      "http://192.0.2.1/v1",
      dict(name="x", key=score_sources.Key("HOME")),
      "unencrypted",
    ),
  ):
    with pytest.raises(errors.InputError, match=words):
      _load(where, **options)


def test_a_judges_fields_are_options_of_label_judge():
  from prm_jax.cli import main

  parser = main._parser()
  known = {
    action.dest
    for action in _command(parser, "label", "judge")._actions
    if action.option_strings
  }
  own = {"unknown"}
  assert {x.name for x in dataclasses.fields(judges.Judge)} - own <= known


def _command(parser, *names):
  for name in names:
    (kinds,) = (x for x in parser._actions if getattr(x, "choices", None))
    parser = kinds.choices[name]
  return parser
