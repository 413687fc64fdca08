"""A client's results are those of the model that is served."""

import asyncio
import dataclasses
import json
import shutil
import subprocess
import sys
import threading

import pytest

import prm_jax
from prm_jax import client as client_lib
from prm_jax import schema
from prm_jax.serving import app as app_lib
from prm_jax.serving import models as models_lib
from prm_jax.serving import score_api

TEXT = "1 + 1 = 2.\r\n\r\nSo 😀 2.  "
SOLUTIONS = [
  schema.Solution("a", "1 + 1?", ("1 + 1 = 2.", "So 2.")),
  schema.Solution("b", "2?", ()),
  schema.Solution("c", "3?", ("three",)),
]


def _same(found, expected):
  assert found.scores == pytest.approx(expected.scores, abs=1e-5)
  assert (found.spans, found.judged) == (expected.spans, expected.judged)


def test_a_client_scores_as_the_scorer_does(serving, scorer_of_text):
  with serving() as asked, prm_jax.Client(asked.url) as client:
    for found, expected in zip(
      client.score(SOLUTIONS), scorer_of_text.score(SOLUTIONS), strict=True
    ):
      _same(found, expected)
    first = SOLUTIONS[0]
    _same(
      client.score(first.problem, first.steps),
      scorer_of_text.score(first.problem, first.steps),
    )
    _same(
      client.score_text("1 + 1?", TEXT),
      scorer_of_text.score_text("1 + 1?", TEXT),
    )
    assert client.model_fingerprint == "sha256:0"
    blank, text, one = client.score_texts(["1?"] * 3, [" ", TEXT, "one"])
    assert (blank.scores, blank.spans) == ((), ())
    _same(text, scorer_of_text.score_text("1?", TEXT))
    _same(one, scorer_of_text.score_text("1?", "one"))


def test_requests_of_an_async_client_are_under_way_together(
  serving, scorer_of_text, monkeypatch
):
  together, score = threading.Barrier(2, timeout=10), models_lib.Model.prepare

  def meet(self, solution, *rest):
    if solution.problem == "meet":
      together.wait()
    return score(self, solution, *rest)

  monkeypatch.setattr(models_lib.Model, "prepare", meet)

  async def ask(url):
    async with prm_jax.AsyncClient(url, concurrency=2) as client:
      return await asyncio.gather(
        client.score("meet", ["1"]),
        client.score_text("meet", TEXT),
      )

  with serving() as asked:
    steps, text = asyncio.run(ask(asked.url))
  _same(steps, scorer_of_text.score("meet", ["1"]))
  _same(text, scorer_of_text.score_text("meet", TEXT))


def test_the_loop_runs_while_an_async_client_ends(serving, monkeypatch):
  begun, go, score = (
    *(threading.Event(), threading.Event()),
    models_lib.Model.score,
  )

  def waiting(self, batch):
    if batch[0].solution.problem == "wait":
      begun.set()
      assert go.wait(3)
    return score(self, batch)

  monkeypatch.setattr(models_lib.Model, "score", waiting)

  async def ask(url):
    async with prm_jax.AsyncClient(url) as client:
      asking = asyncio.create_task(client.score("wait", ["1"]))
      while not begun.is_set():
        await asyncio.sleep(0.01)
      asyncio.get_running_loop().call_later(0.05, go.set)
    assert go.is_set()
    return await asking

  with serving() as asked:
    assert len(asyncio.run(ask(asked.url))) == 1


def test_a_refusal_is_one_line_and_isnt_sent_again(serving):
  with serving() as asked, prm_jax.Client(asked.url) as client:
    with pytest.raises(prm_jax.InputError, match=r"solution 'a'.*up to 9"):
      client.score([dataclasses.replace(SOLUTIONS[0], steps=("x",) * 10)])
    with pytest.raises(prm_jax.InputError, match="isn't blank"):
      client.score([dataclasses.replace(SOLUTIONS[0], problem=" ")])
    with pytest.raises(prm_jax.InputError, match="2 problems and 1 texts"):
      client.score_texts(["1?", "2?"], ["x"])
    with pytest.raises(prm_jax.InputError, match="list of steps"):
      client.score("1?", "one step")
    refused = [
      x
      for x in asked.get("/metrics")[1].splitlines()
      if x.startswith("prm_jax_requests_total") and 'status="4' in x
    ]
  assert sum(float(x.split()[-1]) for x in refused) == 2


def test_a_refusal_names_the_callers_own_solution(serving):
  blank = dataclasses.replace(SOLUTIONS[2], problem=" ")
  with serving() as asked, prm_jax.Client(asked.url) as client:
    with pytest.raises(
      prm_jax.InputError, match=r"score: solution 'c': problem: status 400"
    ):
      client.score([SOLUTIONS[0], SOLUTIONS[1], blank])
    with pytest.raises(prm_jax.InputError, match=r"score: texts\[2\]: status"):
      client.score_texts(["1?"] * 3, ["one", " ", "x" * 20_000])
    with pytest.raises(prm_jax.InputError, match="score: the solution: status"):
      client.score("1?", ["x"] * 10)


BAD = {
  "one solution": (lambda c: c.score(SOLUTIONS[0]), "score[(]solutions[)]"),
  "no solution": (
    lambda c: c.score([SOLUTIONS[0], object()]),
    r"solutions\[1\] is <object.*'id'; give objects",
  ),
  "a number": (lambda c: c.score(3), "score[(]solutions[)]"),
  "no text": (lambda c: c.score("1?", [3]), r"the solution: steps\[0\] must"),
  "no steps": (lambda c: c.score("1?", 3), "give a list of steps; found 3"),
  "texts": (
    lambda c: c.score_texts(["1?", "2?"], ["one", 2]),
    r"texts\[1\]: response must be a str, found 2",
  ),
  "one text": (lambda c: c.score_texts("1?", ["a", "b"]), "list of problems"),
  "half a character": (
    lambda c: c.score_texts(["1?", "2?"], ["one", "\ud800"]),
    r"texts\[1\]: it can't be sent as JSON",
  ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_can_not_be_sent_is_told_in_one_line(serving, name):
  ask, said = BAD[name]
  with (
    serving() as asked,
    prm_jax.Client(asked.url) as client,
    pytest.raises(prm_jax.InputError, match=said) as caught,
  ):
    ask(client)
  assert "\n" not in str(caught.value)


def test_iterators_are_read_once(serving, scorer_of_text):
  with serving() as asked, prm_jax.Client(asked.url) as client:
    rows = client.score(iter(SOLUTIONS))
    texts = client.score_texts(iter(["1 + 1?"]), iter([TEXT]))
    steps = client.score("1 + 1?", iter(SOLUTIONS[0].steps))
  for found, expected in zip(
    rows, scorer_of_text.score(SOLUTIONS), strict=True
  ):
    _same(found, expected)
  _same(texts[0], scorer_of_text.score_text("1 + 1?", TEXT))
  _same(steps, rows[0])


def test_an_async_client_that_was_closed_says_so(serving):
  async def ask(url, is_used):
    client = prm_jax.AsyncClient(url)
    if is_used:
      await client.score("1?", ["1"])
    client.close()
    await client.score("1?", ["1"])

  with serving() as asked:
    for is_used in (True, False):
      with pytest.raises(prm_jax.InputError, match="was closed"):
        asyncio.run(ask(asked.url, is_used))


def test_a_full_queue_is_waited_for(serving, monkeypatch):
  calls, real = [], app_lib.batching.Batcher.score

  async def score(self, model, prepared):
    calls.append(len(prepared))
    if len(calls) == 2:
      raise app_lib.refusals.overloaded("full", 0)
    return await real(self, model, prepared)

  monkeypatch.setattr(app_lib.batching.Batcher, "score", score)
  with serving() as asked, prm_jax.Client(asked.url) as client:
    client._connection._sleep = lambda wait_s: None
    assert len(client.score("1?", ["1"])) == 1
  assert calls == [1, 1, 1]


@pytest.mark.parametrize(
  ("segments", "words"),
  [(None, "no places"), ([[0, 99]], "no places"), ([[1, 0]], "segments")],
)
def test_places_that_are_none_of_the_text_are_refused(
  serving, monkeypatch, segments, words
):
  reply = score_api.reply

  def spoiled(*given):
    record = reply(*given)
    for entry in record["data"]:
      if entry.pop("segments", None) and segments is not None:
        entry["segments"] = segments
    return record

  monkeypatch.setattr(score_api, "reply", spoiled)
  with (
    serving() as asked,
    prm_jax.Client(asked.url) as client,
    pytest.raises(prm_jax.InputError, match=words),
  ):
    client.score_text("1?", "one step")


def test_scores_that_are_no_probabilities_are_refused(serving, monkeypatch):
  reply = score_api.reply

  def spoiled(*given):
    record = reply(*given)
    for entry in record["data"]:
      entry["step_scores"] = [1.5] * len(entry["step_scores"])
    return record

  with serving() as asked, prm_jax.Client(asked.url) as client:
    monkeypatch.setattr(score_api, "reply", spoiled)
    for ask in (client.score_text, lambda *x: client.score(x[0], [x[1]])):
      with pytest.raises(prm_jax.InputError, match=r"is 1\.5"):
        ask("1?", "one step")


def test_what_a_judge_says_by_its_rubric_is_kept(serving, monkeypatch):
  reply, graded = score_api.reply, dict(rubric="r", principles={})

  def spoiled(*given):
    record = reply(*given)
    for entry in record["data"]:
      entry["graded"] = said[0]
    return record

  with serving() as asked, prm_jax.Client(asked.url) as client:
    assert client.score("1?", ["one step"]).graded is None
    monkeypatch.setattr(score_api, "reply", spoiled)
    said = [graded]
    assert client.score("1?", ["one step"]).graded == graded
    said = ["a text"]
    with pytest.raises(prm_jax.InputError, match='"graded" is'):
      client.score("1?", ["one step"])


def test_an_async_client_of_no_requests_is_refused():
  with pytest.raises(prm_jax.InputError, match="concurrency=0"):
    prm_jax.AsyncClient("http://127.0.0.1:1/v1", concurrency=0)


# What a trainer does with the file alone; argv: its folder and the address.
ALONE = """
import asyncio, importlib, json, sys, types
for name in ("prm_jax", "numpy"):
  try:
    importlib.import_module(name)
  except ImportError:
    continue
  sys.exit(f"{name} is here")
folder, url = sys.argv[1:]
sys.path.insert(0, folder)
import client

def shown(row):
  return [row.scores, row.spans, row.judged]

TEXT = json.loads(sys.stdin.read())
found = {}
with client.Client(url) as prm:
  solutions = [
    types.SimpleNamespace(id=x, problem="1 + 1?", steps=steps)
    for x, steps in (("a", ["1 + 1 = 2.", "So 2."]), ("b", []))
  ]
  found["solutions"] = [*map(shown, prm.score(solutions))]
  found["steps"] = shown(prm.score("1 + 1?", ["1 + 1 = 2."]))
  found["text"] = shown(prm.score_text("1 + 1?", TEXT))
  found["blank"] = shown(prm.score_text("1 + 1?", " "))
  try:
    prm.score("1 + 1?", ["x"] * 10)
  except client.InputError as e:
    found["refusal"] = str(e)

async def ask():
  async with client.AsyncClient(url) as prm:
    return await asyncio.gather(
      prm.score("1 + 1?", ["1 + 1 = 2."]), prm.score_text("1 + 1?", TEXT)
    )

found["together"] = [*map(shown, asyncio.run(ask()))]
json.dump(found, sys.stdout)
"""


def _alone(folder, url):
  """Returns what the copied file gives in an empty environment."""
  shutil.copy(client_lib.__file__, folder / "client.py")
  # -I: neither PYTHONPATH nor a folder of the user; -S: no installed packages.
  done = subprocess.run(
    [sys.executable, "-I", "-S", "-c", ALONE, str(folder), url],
    input=json.dumps(TEXT),
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout)


def _row(shown):
  """Returns what `shown` says of a row, as StepScores."""
  scores, spans, judged = shown
  spans = None if spans is None else tuple(map(tuple, spans))
  return schema.StepScores(tuple(scores), spans=spans, judged=tuple(judged))


def test_the_client_works_where_prm_jax_isnt_installed(serving, tmp_path):
  with serving() as asked, prm_jax.Client(asked.url) as client:
    found = _alone(tmp_path, asked.url)
    steps = client.score("1 + 1?", ["1 + 1 = 2."])
    text = client.score_text("1 + 1?", TEXT)
    rows = client.score(SOLUTIONS[:2])
    with pytest.raises(prm_jax.InputError) as refused:
      client.score("1 + 1?", ["x"] * 10)
  assert found["refusal"] == str(refused.value) and len(text.spans) == 2
  for shown, expected in (
    *zip(found["solutions"], rows, strict=True),
    *zip(found["together"], (steps, text), strict=True),
    (found["steps"], steps),
    (found["text"], text),
    (found["blank"], schema.StepScores((), spans=())),
  ):
    _same(_row(shown), expected)
