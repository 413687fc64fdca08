"""A reward model behind a URL: what is sent, what is taken, what is refused."""

import json
import math
import pathlib

import pytest

from prm_jax import client as client_lib
from prm_jax import errors
from prm_jax import schema
from prm_jax.scoring import score_sources

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "rewards.md"
SOLUTIONS = [
  schema.Solution("a", "1 + 1?", ("We add.", "2")),
  schema.Solution("b", "2 + 2?", ()),
  schema.Solution("c", "3?", ("\u00e9\n",)),
]


def _score(step):
  return len(step) / 10


def _reply(body, **fields):
  """Returns a server's reply; its entries come in reverse order."""
  data = [
    dict(index=i, step_scores=[_score(x) for x in item["steps"]])
    for i, item in enumerate(body["items"])
  ]
  return dict(data=data[::-1], model="m", model_fingerprint="f") | fields


def _client(stub, sleeps=None, **settings):
  return client_lib.Client(
    stub.url,
    **dict(tries=4, read_s=5.0) | settings,
    sleep=lambda wait_s: None if sleeps is None else sleeps.append(wait_s),
    random=lambda: 0.0,
  )


def _scores(client, solutions):
  return [[*row.scores] for row in client.score(solutions)]


def _refused(serve, change, solutions=SOLUTIONS):
  """Returns the error for a reply that is spoiled after the trial, in a line.

  It is refused at once: the same request would get the same reply.
  """
  seen = []

  def behave(handler, body, _):
    seen.append(body)
    reply = _reply(body)
    if len(seen) > 1:
      reply = change(reply) or reply
    return reply

  stub = serve(behave)
  score = score_sources.load_score(stub.url)
  with pytest.raises(errors.InputError) as caught:
    score(solutions)
  assert "\n" not in str(caught.value)
  assert str(caught.value).startswith(stub.url)
  assert len(seen) == 2
  return str(caught.value).removeprefix(f"{stub.url}: ")


def test_a_request_and_a_reply_are_those_of_the_page(serve):
  block = PAGE.read_text().partition("POST /v1/prm/score`")[2]
  block = block.partition("```\n")[2].partition("```")[0]
  sent, replied = (json.loads(x) for x in block.split("\n\n"))
  names = {k: v for k, v in replied.items() if k.startswith("model")}
  stub = serve(
    lambda _, body, __: replied if body == sent else _reply(body, **names)
  )
  item, scores = sent["items"][0], replied["data"][0]["step_scores"]
  client = _client(stub)
  solution = schema.Solution("a", item["problem"], tuple(item["steps"]))
  assert _scores(client, [solution]) == [scores]
  assert stub.seen[1] == sent
  assert set(stub.paths) == {"/v1/prm/score"}
  assert client.model_fingerprint == replied["model_fingerprint"]


def test_scores_come_back_in_the_order_of_solutions_and_steps(serve):
  stub = serve(lambda handler, body, _: _reply(body))
  rows = score_sources.load_score(stub.url)(SOLUTIONS)
  assert [list(row.scores) for row in rows] == [
    list(map(_score, s.steps)) for s in SOLUTIONS
  ]
  # What has no step isn't sent, nor is more than the texts.
  items = [dict(problem=s.problem, steps=[*s.steps]) for s in SOLUTIONS]
  assert stub.seen[1:] == [dict(items=[items[0], items[2]])]


def test_what_a_server_doesnt_judge_isnt_judged(serve):
  def behave(handler, body, _):
    reply = _reply(body)
    for entry in reply["data"]:
      entry["judged"] = [True] + [False] * (len(entry["step_scores"]) - 1)
    return reply

  rows = score_sources.load_score(serve(behave).url)(SOLUTIONS)
  for row, s in zip(rows, SOLUTIONS, strict=True):
    assert row.judged == (True, False, False, False)[: len(s.steps)]
  assert any(len(s.steps) > 1 for s in SOLUTIONS)


def test_many_solutions_are_sent_in_several_requests(serve, monkeypatch):
  monkeypatch.setattr(client_lib, "MAX_ITEMS", 8)
  stub = serve(lambda handler, body, _: _reply(body))
  solutions = [
    schema.Solution(str(i), "p", ("x" * (i % 7 + 1),)) for i in range(20)
  ]
  client = _client(stub, model="mine")
  rows = _scores(client, solutions)
  assert rows == [[_score(s.steps[0])] for s in solutions]
  assert [len(body["items"]) for body in stub.seen] == [1, 8, 8, 4]
  assert {body["model"] for body in stub.seen} == {"mine"}
  assert client.score([]) == []


def test_a_failure_that_may_pass_is_tried_again(serve):
  def behave(handler, body, times):
    if times < 2:
      return handler.say(b"busy", 503)
    return _reply(body)

  sleeps = []
  client = _client(serve(behave), sleeps)
  assert _scores(client, SOLUTIONS[:1]) == [[0.7, 0.1]]
  assert sleeps == [1.0, 2.0, 1.0, 2.0]


def test_a_server_that_isnt_there_is_noticed_at_the_start(serve):
  stub, sleeps = serve(lambda h, *_: h.say(b'{"error": "no"}', 404)), []
  with pytest.raises(errors.InputError, match="status 404, no; check the mod"):
    _client(stub, sleeps)
  assert not sleeps
  gone = serve()
  gone.shutdown()
  gone.server_close()
  with pytest.raises(errors.InputError, match="no usable reply in 4 tries"):
    _client(gone, sleeps)
  assert sleeps == [1.0, 2.0, 4.0]


def test_a_reply_that_is_too_long_is_refused(serve):
  stub = serve(
    lambda handler, body, _: handler.say(
      b" " * (17 << 20) + json.dumps(_reply(body)).encode()
    )
  )
  with pytest.raises(errors.InputError, match="more than 16 MiB"):
    _client(stub, tries=1)


def _entry(**fields):
  return lambda reply: reply["data"][-1].update(fields)


@pytest.mark.parametrize(
  ("change", "said"),
  [
    (_entry(step_scores=[0.5]), "1 scores for the 2 steps of solution 'a'"),
    (_entry(step_scores=[]), "0 scores for the 2 steps of solution 'a'"),
    (_entry(step_scores=[0.5, math.nan]), "the score of step 2 of solution"),
    (
      _entry(step_scores=[0.5, 1.5]),
      "the score of step 2 of solution 'a' is 1",
    ),
    (
      _entry(step_scores=[-1, 0.5]),
      "the score of step 1 of solution 'a' is -1",
    ),
    (_entry(step_scores=[0.5, None]), "solution 'a': \"step_scores\" is [0.5,"),
    (_entry(step_scores=None), "solution 'a': \"step_scores\" is None"),
    (_entry(truncated=True), "solution 'a': the server cut it"),
    (
      _entry(index=1),
      'an entry of "data" has index 1; expected each of 0 to 1',
    ),
    (_entry(index=7), 'an entry of "data" has index 7'),
    (_entry(index=True), 'an entry of "data" has index True'),
    (
      lambda r: r.update(data=r["data"][1:]),
      '"data" has 1 entries for 2 items',
    ),
    (lambda r: dict(scores=[]), 'a reply without a list "data"'),
    (lambda r: r.update(data=["a", "b"]), 'an entry of "data" has index None'),
    (lambda r: r.update(model="n"), "its model was 'm' 'f' and is 'n' 'f' now"),
    (
      lambda r: r.pop("model_fingerprint") * 0,
      "its model was 'm' 'f' and is 'm'",
    ),
  ],
)
def test_a_reply_that_breaks_the_protocol_is_one_line(serve, change, said):
  assert _refused(serve, change).startswith(said)


def test_a_server_may_say_nothing_of_its_model(serve):
  stub = serve(
    lambda handler, body, _: dict(data=_reply(body)["data"], model=None)
  )
  loaded = score_sources.load(stub.url)
  assert loaded.identity == dict(
    url=stub.url, model=None, model_fingerprint=None
  )
  assert len(loaded.score(SOLUTIONS)) == 3


def test_the_key_goes_to_the_server_and_into_no_message(serve, monkeypatch):
  monkeypatch.setenv("MY_KEY", "sk-secret")
  seen = []

  def behave(handler, body, _):
    seen.append(body)
    scores = ["sk-secret"] if len(seen) > 1 else [0.5]
    return dict(data=[dict(index=0, step_scores=scores)])

  stub = serve(behave)
  score = score_sources.load_score(stub.url, key_variable="MY_KEY")
  with pytest.raises(errors.InputError, match=r"\*\*\*") as caught:
    score(SOLUTIONS[2:])
  assert stub.keys == ["Bearer sk-secret"] * 2
  assert "secret" not in str(caught.value)
  monkeypatch.delenv("MY_KEY")
  with pytest.raises(errors.InputError, match="MY_KEY isn't set"):
    score_sources.load_score(stub.url, key_variable="MY_KEY")
  for name, key in (("http://a.com/v1", "MY_KEY"), ("http://u:p@a/v1", None)):
    with pytest.raises(errors.InputError, match=r"^endpoint\.url"):
      score_sources.load_score(name, key_variable=key)
