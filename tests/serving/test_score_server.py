"""A server's scores are the scorer's, whoever else asks; the rest is refused."""

import concurrent.futures
import dataclasses
import functools
import json
import random
import time

from flax.core import meta
import jax
import numpy as np
import pytest
import served

import prm_jax
from prm_jax import errors
from prm_jax import schema
from prm_jax import voting
from prm_jax.integrations import scoring
from prm_jax.models import transformer
from prm_jax.scoring import prefix_programs
from prm_jax.scoring import prefix_shapes
from prm_jax.scoring import scorer as scorer_lib
from prm_jax.serving import models as models_lib

TEXTS = [
  "1 + 1 = 2.\n\nSo 2.",
  "A line\r\nand more.\r\n\r\nThen 😀 é.\n\n  \n\nEnd.  ",
  "one step only",
]


def _items(texts=TEXTS):
  return [dict(problem="1 + 1?", response=text) for text in texts]


def _near(found, expected):
  assert found == pytest.approx(expected, abs=1e-5)


# --- What is answered -------------------------------------------------------


def test_scores_are_the_scorers_and_segments_are_places_in_the_callers_text(
  serving, scorer_of_text
):
  with serving() as asked:
    status, reply, _ = asked.post(dict(items=_items(), aggregate="product"))
  assert status == 200
  assert [entry["index"] for entry in reply["data"]] == [0, 1, 2]
  for entry, text in zip(reply["data"], TEXTS, strict=True):
    expected = scorer_of_text.score_text("1 + 1?", text)
    _near(entry["step_scores"], expected.scores)
    cut = [text[start:end] for start, end in entry["segments"]]
    assert [tuple(span) for span in entry["segments"]] == [*expected.spans]
    assert all(step == step.strip() for step in cut)
    _near(entry["score"], voting.aggregate(expected.scores, "product"))
    assert entry["judged"] == [*expected.judged]
    assert entry["truncated"] is False
  assert reply["usage"]["prompt_tokens"] == sum(
    entry["num_tokens"] for entry in reply["data"]
  )
  assert (reply["model"], reply["model_fingerprint"]) == ("tiny", "sha256:0")


def test_a_chat_and_given_steps_are_scored_as_a_text_is(serving):
  chat = [
    dict(role="user", content="1 + 1?"),
    dict(role="assistant", content=TEXTS[0]),
  ]
  items = [
    _items()[0],
    dict(messages=chat),
    dict(problem="1 + 1?", steps=["1 + 1 = 2.", "So 2."]),
  ]
  with serving() as asked:
    _, reply, _ = asked.post(dict(items=items))
  text, messages, steps = reply["data"]
  _near(messages["step_scores"], text["step_scores"])
  _near(steps["step_scores"], text["step_scores"])
  assert "segments" not in steps
  assert reply["aggregate"] == "min"


def test_a_model_without_a_segmenter_reads_texts_by_the_servers(
  serving, scorer_of_text
):
  """On every route, and so do clients and trainers' adapters."""
  silent = dataclasses.replace(scorer_of_text, segmenter=None)
  problem, text = "1 + 1?", "1 + 1 = 2\n\nSo 2.\nAnswer 2 "
  body = dict(items=[dict(problem=problem, response=text)])
  slime = dict(prompt=problem, response=text)
  with serving(scorer_of_text=silent) as asked:
    for sent, path in ((body, "/v1/prm/score"), (slime, "/rm")):
      status, reply, _ = asked.post(sent, path)
      assert status == 400
      assert "give steps, or start the server" in reply["error"]["message"]
  expected = silent.score_text(problem, text, segmenter="line")
  line = silent.cut_by("line")
  with serving(scorer_of_text=line) as asked:
    entry = asked.post(body)[1]["data"][0]
    assert entry["segments"] == [[0, 9], [11, 16], [17, 25]]
    _near(entry["step_scores"], expected.scores)
    _near(asked.post(slime, "/rm")[1]["step_scores"], expected.scores)
    with prm_jax.Client(asked.url) as client:
      for score_texts in (
        client.score_texts,
        lambda problems, texts: [client.score_text(problems[0], texts[0])],
        scoring.cut_and_score(line.score, line.cut),
      ):
        (row,) = score_texts([problem], [text])
        _near(row.scores, expected.scores)
        assert row.spans == expected.spans


def test_text_that_looks_like_a_separator_moves_no_boundary(serving):
  """The tokenizer's own names of control tokens are text here."""
  items = [dict(problem="1?", steps=["a <sep> <eos> b", "c"])]
  with serving() as asked:
    _, reply, _ = asked.post(dict(items=items))
  assert len(reply["data"][0]["step_scores"]) == 2


def test_many_single_requests_get_their_own_scores_from_few_batches(
  serving, scorer_of_text
):
  texts = [f"{i} + {i} = {2 * i}.\n\nSo {2 * i}." for i in range(48)]
  with serving() as asked, concurrent.futures.ThreadPoolExecutor(16) as pool:
    replies = list(
      pool.map(lambda text: asked.post(dict(items=_items([text]))), texts)
    )
    _, metrics, _ = asked.get("/metrics")
  for (status, reply, _), text in zip(replies, texts, strict=True):
    assert status == 200
    expected = scorer_of_text.score_text("1 + 1?", text)
    _near(reply["data"][0]["step_scores"], expected.scores)
  line = next(
    x
    for x in metrics.splitlines()
    if x.startswith("prm_jax_batch_solutions_count")
  )
  assert float(line.split()[1]) < len(texts) / 2


def _read_tokens(monkeypatch):
  """Returns a list that gets the tokens of each batch, without padding."""
  read, forward = [], scorer_lib.Scorer._forward

  def noting(self, batch):
    read.append(int((batch.tokens > 0).sum()))
    return forward(self, batch)

  monkeypatch.setattr(scorer_lib.Scorer, "_forward", noting)
  return read


def test_solutions_of_a_problem_share_what_they_have_in_common(
  serving, scorer_of_text, monkeypatch
):
  begun = "1 + 1 = 2, as we know.\n\n"
  texts = [begun + f"So {i}." for i in range(6)]
  items = [*_items(texts), dict(problem="2?", steps=["alone"])]
  expected = [
    *(scorer_of_text.score_text("1 + 1?", text) for text in texts),
    scorer_of_text.score("2?", ["alone"]),
  ]
  with serving() as asked:
    while asked.get("/ready")[0] == 503:
      time.sleep(0.05)
    read = _read_tokens(monkeypatch)
    _, reply, _ = asked.post(dict(items=items))
  for entry, scores in zip(reply["data"], expected, strict=True):
    _near(entry["step_scores"], scores.scores)
  whole = sum(entry["num_tokens"] for entry in reply["data"])
  assert sum(read) < whole / 2


def test_solutions_of_several_clients_share_nothing(
  serving, scorer_of_text, monkeypatch
):
  """How long a request takes must not tell of another client's texts."""
  model = models_lib.Model("x", "", scorer_of_text, served.LIMITS)
  solution = scorer_of_text.cut("1 + 1?", TEXTS[0])
  read = _read_tokens(monkeypatch)
  for clients in ("aa", "ab"):
    rows = model.score(
      [model.prepare(solution, "", client) for client in clients]
    )
    one, other = (row.scores.scores for row in rows)
    assert one == pytest.approx(other, abs=1e-5)
  shared, apart = read
  assert apart == 2 * shared


def test_a_growing_solution_is_read_on_by_its_own_client_only(
  serving, scorer_of_text, monkeypatch
):
  """And no request waits for a program."""
  monkeypatch.setattr(prefix_shapes, "_FEW_ROWS", (1,))
  limits = dataclasses.replace(served.LIMITS, cache_tokens=512)
  steps = ["1 + 1 = 2.", "So 2.", "Answer 2"]
  with serving(limits, keys=["a", "b"]) as asked:
    while asked.get("/ready")[0] == 503:
      time.sleep(0.05)
    num = prefix_programs.extend._cache_size()
    reused = []
    for key, count in (("a", 1), ("a", 2), ("b", 3), ("a", 3), ("b", 3)):
      _, reply, _ = asked.post(
        dict(items=[dict(problem="1 + 1?", steps=steps[:count])]),
        Authorization=f"Bearer {key}",
      )
      expected = scorer_of_text.score("1 + 1?", steps[:count])
      _near(reply["data"][0]["step_scores"], expected.scores)
      reused.append(reply["usage"]["cached_tokens"])
    metrics = asked.get("/metrics", Authorization="Bearer a")[1]
  lengths = [
    len(scorer_of_text.encode(schema.Solution("", "1 + 1?", tuple(x))).tokens)
    for x in (steps[:1], steps[:2], steps)
  ]
  # A step more changes the last id of the step before, its separator.
  assert reused[0] == reused[2] == 0
  assert 0 <= lengths[0] - reused[1] <= 2
  assert 0 <= lengths[1] - reused[3] <= 2
  assert 0 <= lengths[2] - reused[4] <= 2
  assert f"prm_jax_cached_tokens_total {sum(reused)}.0" in metrics
  assert prefix_programs.extend._cache_size() == num


@pytest.mark.parametrize("cache_tokens", [0, 512])
def test_a_text_without_finite_scores_spoils_no_other(
  scorer_of_text, monkeypatch, cache_tokens
):
  """Neither of its batch nor of later ones."""
  monkeypatch.setattr(prefix_shapes, "_FEW_ROWS", (1,))
  params = jax.tree.map(np.array, scorer_of_text.params)
  (embedding,) = jax.tree.leaves(params["embedding"])
  embedding[served.BYTES.encode("Q")[0]] = np.inf
  scorer = dataclasses.replace(scorer_of_text, params=params)
  limits = dataclasses.replace(served.LIMITS, cache_tokens=cache_tokens)
  model = models_lib.Model(
    *("x", "", scorer, limits), cache=models_lib.cache_of(scorer, limits)
  )
  for texts in (("Q",), ("a", "Qa", "b"), ("a", "c")):
    solutions = [schema.Solution("0", "1?", (text,)) for text in texts]
    rows = model.score([model.prepare(x, "") for x in solutions])
    for text, solution, row in zip(texts, solutions, rows, strict=True):
      (score,) = row.scores.scores
      if "Q" in text:
        assert not np.isfinite(score)
      else:
        _near([score], scorer_of_text.score([solution])[0].scores)


def test_an_implicit_prm_keeps_nothing(scorer_of_text):
  implicit = dataclasses.replace(
    scorer_of_text, layout="packed", program="implicit"
  )
  limits = dataclasses.replace(served.LIMITS, cache_tokens=512)
  with pytest.raises(
    errors.InputError,
    match="`cache_tokens=512`: a cache of prefixes: an implic",
  ):
    models_lib.cache_of(implicit, limits)


def test_a_model_that_knows_no_trees_scores_siblings_too(scorer_of_text):
  init = jax.jit(
    functools.partial(transformer.init, config=served.CONFIG, heads=())
  )
  params, reference = init(jax.random.key(1)), init(jax.random.key(2))
  scorer = dataclasses.replace(
    scorer_of_text,
    layout="padded",
    row_lengths=(),
    program="implicit",
    params=dict(meta.unbox(params), reference=meta.unbox(reference)),
    scoring=dict(beta=1.0, step_score="cumulative"),
  )
  in_batches = models_lib.in_batches(scorer, served.LIMITS)
  model = models_lib.Model("x", "", in_batches, served.LIMITS)
  solutions = [
    schema.Solution("0", "1 + 1?", steps) for steps in (("1", "2"), ("1", "3"))
  ]
  found = model.score([model.prepare(x, "") for x in solutions])
  for row, expected in zip(found, scorer.score(solutions), strict=True):
    _near(row.scores.scores, expected.scores)
  assert found[0].scores.scores[1] != found[1].scores.scores[1]


def test_load_score_reads_this_server(serving, scorer_of_text):
  solutions = [schema.Solution("a", "1 + 1?", ("1 + 1 = 2.", "So 2."))]
  with serving() as asked:
    (row,) = prm_jax.load_score(asked.url)(solutions)
  (expected,) = scorer_of_text.score(solutions)
  _near(row.scores, expected.scores)


def test_models_are_listed_with_what_their_scores_are(serving):
  with serving() as asked:
    _, reply, _ = asked.get("/v1/models")
  (model,) = reply["data"]
  assert model["id"] == "tiny"
  assert model["kind"] == "prm"
  assert model["max_tokens"] == served.LIMITS.max_tokens


def test_a_ready_server_compiles_nothing_more(serving):
  with serving() as asked:
    while asked.get("/ready")[0] == 503:
      time.sleep(0.05)
    before = scorer_lib._forward._cache_size()
    for num in range(1, 9):
      for problem in ("1?", "{}?"):
        items = [
          dict(problem=problem.format(i), steps=["x" * (9 * i + 1)])
          for i in range(num)
        ]
        assert asked.post(dict(items=items))[0] == 200
    assert scorer_lib._forward._cache_size() == before


# --- What is refused --------------------------------------------------------

GOOD = dict(problem="1 + 1?", steps=["2"])
CHAT = [dict(role="user", content="1?"), dict(role="assistant", content="2")]
BAD = {
  "no_object": ([], 400, "", "JSON object"),
  "no_items": (dict(), 400, "items", "one item or more"),
  "empty": (dict(items=[]), 400, "items", "one item or more"),
  "item": (dict(items=[3]), 400, "items[0]", "an object"),
  "misspelt": (dict(items=[GOOD], aggregat="min"), 400, "", "'aggregat'"),
  "field": (dict(items=[GOOD | dict(x=1)]), 400, "items[0]", "'x'"),
  "aggregate": (dict(items=[GOOD], aggregate="max"), 400, "aggregate", "min"),
  "no_model": (dict(items=[GOOD], model="big"), 404, "model", "tiny"),
  "model_type": (dict(items=[GOOD], model=3), 400, "model", "a text"),
  "both": (
    dict(items=[GOOD | dict(response="2")]),
    400,
    "items[0]",
    "one of steps",
  ),
  "neither": (dict(items=[dict(problem="1?")]), 400, "items[0]", "one of"),
  "no_problem": (
    dict(items=[dict(steps=["2"])]),
    400,
    "items[0].problem",
    "text",
  ),
  "blank": (
    dict(items=[dict(problem=" ", steps=["2"])]),
    400,
    "items[0].problem",
    "blank",
  ),
  "steps": (
    dict(items=[GOOD, GOOD | dict(steps="2")]),
    400,
    "items[1].steps",
    "list of texts",
  ),
  "null_step": (
    dict(items=[GOOD | dict(steps=[None])]),
    400,
    "items[0].steps[0]",
    "a text",
  ),
  "no_step": (dict(items=[GOOD | dict(steps=[])]), 400, "items[0]", "no step"),
  "blank_text": (
    dict(items=[dict(problem="1?", response=" \n\n ")]),
    400,
    "items[0]",
    "no step",
  ),
  "system": (
    dict(items=[dict(messages=[dict(role="system", content="x")])]),
    400,
    "items[0]",
    "no step to score; give a message of the assistant",
  ),
  "no_messages": (
    dict(items=[dict(messages="x")]),
    400,
    "items[0].messages",
    "one message of the user",
  ),
  "steps_are": (
    dict(items=[dict(messages=CHAT, steps_are="lines")]),
    400,
    "items[0].steps_are",
    "expected turns",
  ),
  "steps_with_tools": (
    dict(items=[GOOD | dict(tools=[])]),
    400,
    "items[0].tools",
    "only messages have it",
  ),
  "problem_twice": (
    dict(items=[dict(problem="1?", messages=CHAT)]),
    400,
    "items[0]",
    "in the messages",
  ),
  "pictures": (
    dict(
      items=[
        dict(
          messages=[
            dict(role="user", content=[]),
            dict(role="assistant", content="x"),
          ]
        )
      ]
    ),
    400,
    "items[0].messages",
    "`content`",
  ),
  "reasoning": (
    dict(
      items=[
        dict(
          messages=[
            dict(role="user", content="x", name=None),
            dict(role="assistant", content="x", reasoning_content="y"),
          ]
        )
      ]
    ),
    400,
    "items[0]",
    "is a conversation, and this model reads a problem and its steps",
  ),
  "unknown": (
    dict(items=[dict(messages=[CHAT[0], CHAT[1] | dict(name="x")])]),
    400,
    "items[0].messages",
    "'name'; there are role, content",
  ),
  "many_items": (dict(items=[GOOD] * 9), 413, "items", "up to 8"),
  # Before each of them is looked at: there may be a million.
  "many_wrong_items": (dict(items=[3] * 9), 413, "items", "up to 8"),
  "many_steps": (
    dict(items=[GOOD | dict(steps=["2"] * 10)]),
    413,
    "items[0]",
    "up to 9",
  ),
  "long": (
    dict(items=[GOOD, GOOD | dict(steps=["2" * 200])]),
    413,
    "items[1]",
    "up to 96",
  ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_is_told_what_and_where(running, name):
  body, wanted, where, words = BAD[name]
  status, reply, _ = running.post(body)
  assert status == wanted
  assert reply["error"].get("param", "") == where
  assert words in reply["error"]["message"]


def test_the_most_that_a_limit_allows_is_answered(running):
  def ask(num_items, num_steps, length):
    steps = ["2"] * (num_steps - 1) + ["2" * length]
    item = dict(problem="1?", steps=steps)
    return running.post(dict(items=[item] * num_items))[:2]

  assert ask(8, 9, 1)[0] == 200
  _, reply = ask(1, 1, 1)
  room = served.LIMITS.max_tokens - reply["data"][0]["num_tokens"]
  status, reply = ask(1, 1, 1 + room)
  assert (status, reply["data"][0]["num_tokens"]) == (200, 96)
  assert ask(1, 1, 2 + room)[0] == 413


@pytest.mark.parametrize(
  "body",
  [
    b"",
    b"{",
    b"\xff",
    b'{"items": NaN}',
    b"[" * 100_000,
    b'{"items": "\\ud800"}',
  ],
  ids=["empty", "open", "bytes", "nan", "deep", "surrogate"],
)
def test_what_is_no_json_is_refused(running, body):
  status, reply, _ = running.post(body)
  assert status == 400
  assert reply["error"]["type"] == "invalid_request"


def test_another_path_or_method_is_refused(running):
  assert running.get("/v1/nothing")[0] == 404
  assert running.get("/v1/prm/score")[0] == 405
  assert running.post({}, "/../../etc/passwd")[0] == 404


def test_random_requests_are_answered_or_refused_and_never_fail(running):
  draw = random.Random(0)
  values = [None, 0, -1.5, True, "", "x", "\ud83d", [], {}, ["2"], "a\n\nb"]
  fields = ["problem", "steps", "response", "messages", "model", "y"]
  fields += ["tools", "steps_are", "role", "content", "tool_calls"]

  def value(depth):
    if depth and draw.random() < 0.5:
      size = draw.randrange(4)
      if draw.random() < 0.5:
        return [value(depth - 1) for _ in range(size)]
      return {draw.choice(fields): value(depth - 1) for _ in range(size)}
    return draw.choice(values)

  seen = set()
  for number in range(600):
    body = dict(items=[value(2) for _ in range(draw.randrange(3))])
    if number % 3 == 0:
      item = GOOD | {draw.choice(fields[:2]): value(1)}
      body = dict(items=[item])
    text = bytearray(json.dumps(body).encode())
    if number % 5 == 0 and text:
      text[draw.randrange(len(text))] = draw.randrange(256)
    status, reply, _ = running.post(bytes(text))
    assert status < 500, reply
    seen.add(status)
    if status == 200:
      assert all(x["score"] is not None for x in reply["data"])
  assert {200, 400} <= seen
