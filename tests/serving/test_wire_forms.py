"""Clients of other programs get the scorer's scores, or are told what is wrong."""

import json
import random

import golden_requests
import hostile_text
import numpy as np
import pytest
import served

from prm_jax import voting
from prm_jax.scoring import scorer
from prm_jax.serving import declarations
from prm_jax.serving import forms
from prm_jax.serving import models as models_lib
from prm_jax.serving import refusals
from prm_jax.serving import routes
from prm_jax.serving import server_limits as limits_lib
from prm_jax.serving.adapters import vllm_form
from prm_jax.text import encoding
from prm_jax.text import templates
from prm_jax.text import tokenizer_files

GOLDEN = golden_requests.GOLDEN
PROBLEM, RESPONSE = golden_requests.PROBLEM, golden_requests.RESPONSE
QWEN = golden_requests.QWEN


def _assert_near(found, expected, where="reply"):
  """Compares JSON, with numbers up to rounding."""
  assert type(found) is type(expected), where
  if isinstance(expected, dict):
    assert sorted(found) == sorted(expected), where
    for name in expected:
      _assert_near(found[name], expected[name], f"{where}.{name}")
  elif isinstance(expected, list):
    assert len(found) == len(expected), where
    for i, pair in enumerate(zip(found, expected, strict=True)):
      _assert_near(*pair, f"{where}[{i}]")
  elif isinstance(expected, float):
    assert found == pytest.approx(expected, abs=1e-5), where
  else:
    assert found == expected, where


def _expected(scorer_of_text, golden, how):
  """Returns the reply to a golden request, by the scorer itself."""
  rows = [scorer_of_text.score_text(*pair) for pair in golden.texts]
  tokens = [
    len(scorer_of_text.encode(scorer_of_text.cut(*pair)).tokens)
    for pair in golden.texts
  ]
  steps = [list(row.scores) for row in rows]
  scores = [voting.aggregate(row, how) for row in steps]
  return golden.reply(steps, scores, tokens), scores


@pytest.mark.parametrize("name", GOLDEN)
def test_a_golden_request_gets_the_reply_that_its_client_reads(
  running, scorer_of_text, name
):
  golden = GOLDEN[name]
  status, reply, _ = running.post(golden.bytes, golden.path)
  assert status == 200, reply
  expected, scores = _expected(scorer_of_text, golden, "min")
  _assert_near(reply, expected)
  assert golden.read(reply) == pytest.approx(scores[-1], abs=1e-5)


@pytest.mark.parametrize("how", voting.AGGREGATES)
def test_the_address_chooses_how_steps_become_a_score(
  running, scorer_of_text, how
):
  for name, golden in GOLDEN.items():
    path = f"{golden.path}?aggregate={how}"
    status, reply, _ = running.post(golden.bytes, path)
    if golden.path == "/pooling":
      assert status == 400
      continue
    _assert_near(reply, _expected(scorer_of_text, golden, how)[0], name)
  _, scores = _expected(scorer_of_text, GOLDEN["slime"], how)
  others = {*voting.AGGREGATES} - {how}
  for other in others:
    _, different = _expected(scorer_of_text, GOLDEN["slime"], other)
    assert abs(scores[0] - different[0]) > 1e-4


def test_openrlhfs_other_addresses_get_no_solutions(running):
  """With several, one gets the sample and all others empty lists (recorded)."""
  body = dict(query=[], prompts=[], labels=[])
  status, reply, _ = running.post(body, "/get_reward")
  assert status == 200
  assert reply == dict(rewards=[], scores=[], extra_logs={})
  golden = GOLDEN["openrlhf"]
  assert running.post(golden.bytes, golden.path)[0] == 200


def test_an_agent_of_gym_begins_an_episode_before_it_is_verified(running):
  status, reply, _ = running.post(golden_requests.GYM_SEED, "/seed_session")
  assert (status, reply) == (200, {})
  assert running.post([], "/seed_session")[0] == 400


def test_an_open_forms_own_fields_are_not_ours(running):
  """NeMo-Gym's episodes hold what their tasks hold."""
  own = dict(model=["x"], aggregate={})
  golden = GOLDEN["nemo_gym"]
  expected = running.post(golden.bytes, golden.path)[1] | own
  assert running.post(golden.body | own, golden.path)[:2] == (200, expected)
  assert running.post(own, "/seed_session")[:2] == (200, {})


def test_gym_gets_statistics_of_each_task_and_of_all(running):
  """By the names that its own resources servers give them."""
  body = golden_requests.GYM_VERIFIED
  status, reply, _ = running.post(body, "/aggregate_metrics")
  assert status == 200, reply
  rewards = {0: [1.0, 0.5], 3: [0.25, 0.75]}
  assert [x["_ng_task_index"] for x in reply["group_level_metrics"]] == [0, 3]
  for metrics, values in (
    *zip(reply["group_level_metrics"], rewards.values(), strict=True),
    (reply["agent_metrics"], [*rewards[0], *rewards[3]]),
  ):
    assert metrics["mean/reward"] == pytest.approx(np.mean(values))
    assert metrics["max/reward"] == max(values)
    assert metrics["min/reward"] == min(values)
    assert metrics["median/reward"] == pytest.approx(np.median(values))
    assert metrics["std/reward"] == pytest.approx(np.std(values, ddof=1))
  assert reply["key_metrics"] == {
    "mean/reward": 0.625,
    "mean/resolved": 0.5,
    "mean/output_tokens": 20,
  }
  one = dict(verify_responses=body["verify_responses"][:1])
  _, reply, _ = running.post(one, "/aggregate_metrics")
  assert reply["agent_metrics"]["std/reward"] == 0
  _, reply, _ = running.post(dict(verify_responses=[]), "/aggregate_metrics")
  assert reply == dict(group_level_metrics=[], agent_metrics={}, key_metrics={})


# --- What is refused ----------------------------------------------------------

CLASSIFY, RM = GOLDEN["verl_classify"].body, GOLDEN["slime"].body
REWARD, VERIFY = GOLDEN["openrlhf"].body, golden_requests.GYM_BODY
ASKED, ANSWERED = VERIFY["responses_create_params"], VERIFY["response"]
MESSAGE = ANSWERED["output"][1]
CALL = dict(type="function_call", name="f", arguments="{}", call_id="1")
BAD = {
  "no_object": ("/rm", [], 400, "", "JSON object"),
  "no_input": ("/classify", dict(model="tiny"), 400, "", "input and messages"),
  "both": ("/pooling", CLASSIFY | dict(messages=golden_requests.CHAT), 400, "", "one of input"),
  "ids": ("/classify", dict(input=[1, 2]), 400, "input[0]", "a text"),
  "empty": ("/classify", dict(input=[]), 400, "input", "one or more"),
  "null": ("/classify", dict(input=None), 400, "input", "a text"),
  "no_chat": ("/classify", dict(input="1 + 1? 2"), 400, "input", "apart"),
  "no_chat_in_list": ("/pooling", dict(input=[CLASSIFY["input"], "2"]), 400, "input[1]", "apart"),
  "task": ("/pooling", CLASSIFY | dict(task="embed"), 400, "task", "token_classify"),
  "base64": ("/pooling", CLASSIFY | dict(encoding_format="base64"), 400, "encoding_format", "float"),
  "cut": ("/classify", CLASSIFY | dict(truncate_prompt_tokens=5), 400, "truncate_prompt_tokens", "null"),
  "misspelt": ("/classify", CLASSIFY | dict(modle="tiny"), 400, "", "'modle'"),
  "model": ("/classify", CLASSIFY | dict(model="big"), 404, "model", "tiny"),
  "no_answer": ("/classify", dict(messages=golden_requests.CHAT[:1]), 400, "messages", "one message of each"),
  "picture": ("/classify", dict(messages=[dict(role="user", content=[dict(type="image_url", image_url="x")])]), 400, "messages[0].content[0].text", "missing"),
  "sglang_ids": ("/classify", dict(text=[[1]]), 400, "text", "a text"),
  "sglang_triple": ("/classify", dict(text=[["1?", "2", "3"]]), 400, "text", "list of 2 texts"),
  "embedding_ids": ("/v1/embeddings", dict(input=[1, 2]), 400, "input[0]", "a text"),
  "dimensions": ("/v1/embeddings", dict(input=CLASSIFY["input"], dimensions=8), 400, "dimensions", "null"),
  "embedding_base64": ("/v1/embeddings", dict(input=CLASSIFY["input"], encoding_format="base64"), 400, "encoding_format", "float"),
  "no_reward": ("/aggregate_metrics", dict(verify_responses=[{}]), 400, "verify_responses[0].reward", "missing"),
  "large_reward": ("/aggregate_metrics", dict(verify_responses=[dict(reward=10**200)]), 400, "verify_responses[0].reward", "1e+100"),
  "flag_reward": ("/aggregate_metrics", dict(verify_responses=[dict(reward=True)]), 400, "verify_responses[0].reward", "a number"),
  "task_index": ("/aggregate_metrics", dict(verify_responses=[dict(reward=1, _ng_task_index=[])]), 400, "verify_responses[0]._ng_task_index", "whole"),
  "seed_query": ("/seed_session?aggregate=min", {}, 400, "", "'aggregate'"),
  "prompts": ("/get_reward", REWARD | dict(prompts=[]), 400, "prompts", "one for each"),
  "cut_prompt": ("/get_reward", REWARD | dict(prompts=["x"]), 400, "query[0]", "begin with its prompt"),
  "null_query": ("/get_reward", dict(query=[None]), 400, "query[0]", "a text"),
  "unknown_prompt": ("/get_reward", dict(query=["<|user|>1?<|end|>2"], prompts=["<|user|>1?<|end|>"], labels=["2"]), 400, "query[0]", "<|user|>"),
  "no_response": ("/rm", dict(prompt="1?"), 400, "response", "missing"),
  "blank_problem": ("/rm", RM | dict(prompt=" "), 400, "response", "blank"),
  "no_step": ("/rm", RM | dict(response=" <|im_end|>"), 400, "response", "no step"),
  "two_turns": ("/rm", RM | dict(prompt=golden_requests.CHAT), 400, "prompt", "one message of each"),
  "marker": ("/rm", RM | dict(prompt=[golden_requests.CHAT[0]], response="2<|im_end|>3"), 400, "response", "<|im_end|>"),
  "raw": ("/predict", dict(inputs=["1?", "2"], raw_scores=True), 400, "raw_scores", "false"),
  "triple": ("/predict", dict(inputs=["1?", "2", "3"]), 400, "inputs", "list of 1 to 2"),
  "no_verify": ("/verify", dict(response=ANSWERED), 400, "responses_create_params", "missing"),
  "call": ("/verify", VERIFY | dict(response=dict(output=[CALL, MESSAGE])), 400, "response.output", "prm_jax.integrations.nemo_gym"),
  "user": ("/verify", VERIFY | dict(response=dict(output=[MESSAGE | dict(role="user")])), 400, "response.output", "assistant"),
  "refusal": ("/verify", VERIFY | dict(response=dict(output=[MESSAGE | dict(content=[dict(type="refusal", refusal="No.")])])), 400, "response.output.content[0].text", "missing"),
  "several_turns": ("/verify", VERIFY | dict(responses_create_params=dict(input=golden_requests.CHAT)), 400, "responses_create_params.input", "one message"),
  "many": ("/predict", dict(inputs=[["1?", "2"]] * 9), 413, "inputs", "up to 8"),
  "long": ("/predict", dict(inputs=[["1?", "2"], ["1?", "2" * 200]]), 413, "inputs[1]", "up to 96"),
  "aggregate": ("/rm?aggregate=max", RM, 400, "aggregate", "min"),
  "parameter": ("/rm?agregate=min", RM, 400, "", "'agregate'"),
  "twice": ("/rm?aggregate=min&aggregate=last", RM, 400, "aggregate", "twice"),
  "of_body": ("/rm?label=4", RM, 400, "", "'label'; give it in the body"),
  "mark": ("/pooling", dict(input=f"{QWEN}so 2<extra_0>then 3"), 400, "input", "'<extra_0>'"),
  "mark_of_letters": ("/rm", RM | dict(response="so 2 ки\nthen 3"), 400, "response", "'ки'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_is_told_what_and_where(running, name):
  path, body, wanted, where, words = BAD[name]
  status, reply, _ = running.post(body, path)
  assert status == wanted, reply
  assert reply["error"].get("param", "") == where
  assert words in reply["error"]["message"]


def test_random_requests_are_answered_or_refused_and_never_fail(running):
  draw = random.Random(0)
  values = [None, 0, -1.5, True, "", "x", [], {}, ["2"], QWEN, "4<|im_end|>"]

  seen = set()
  for number in range(200):
    golden = GOLDEN[draw.choice([*GOLDEN])]
    body = (
      golden_requests.changed(golden.body, draw, values)
      if number % 20
      else golden.body
    )
    status, reply, _ = running.post(body, golden.path)
    assert status < 500, reply
    seen.add(status)
    if status == 200 and golden.path != "/verify":
      assert "null" not in json.dumps(reply)
  assert {200, 400} <= seen


def test_other_clients_need_a_key_too(serving):
  golden = GOLDEN["openrlhf"]
  with serving(keys=("secret",)) as asked:
    assert asked.post(golden.bytes, golden.path)[0] == 401
    right = dict(Authorization="Bearer secret")
    assert asked.post(golden.bytes, golden.path, **right)[0] == 200


MARKED = "so 1<extra_0>then 2<extra_0>So 2.<extra_0>"
TURNS = [*golden_requests.CHAT[:1], dict(role="assistant", content=MARKED)]
SAID = [MESSAGE | dict(content=[dict(type="output_text", text=MARKED)])]
# A request with three marked steps on each route that reads texts.
THREE_STEPS = {
  "pooling": ("/pooling", dict(input=f"{QWEN}{MARKED}<|im_end|>\n")),
  "pooling_chat": ("/pooling", dict(messages=TURNS)),
  "classify": ("/classify", dict(input=[f"{QWEN}{MARKED}<|im_end|>"])),
  "sglang": ("/classify", dict(text=[[PROBLEM, MARKED]])),
  "embeddings": ("/v1/embeddings", dict(input=f"{QWEN}{MARKED}")),
  "openrlhf": (
    "/get_reward",
    dict(query=[f"{PROBLEM}{MARKED}"], prompts=[PROBLEM]),
  ),
  "slime": ("/rm", dict(prompt=PROBLEM, response=MARKED)),
  "slime_chat": ("/rm", dict(prompt=TURNS[:1], response=MARKED)),
  "tei": ("/predict", dict(inputs=[[PROBLEM, MARKED]])),
  "gym": ("/verify", VERIFY | dict(response=dict(output=SAID))),
}


def _numbers(reply):
  """Returns the numbers of a reply in their order."""
  if isinstance(reply, dict):
    reply = [reply[name] for name in sorted(reply)]
  if isinstance(reply, list):
    return [number for x in reply for number in _numbers(x)]
  return [reply] if isinstance(reply, float) else []


@pytest.mark.parametrize("name", THREE_STEPS)
def test_a_mark_after_each_step_gets_the_scores_of_these_steps(
  running, scorer_of_text, name
):
  """As vLLM answers clients of reward models with marks, a row for each."""
  path, body = THREE_STEPS[name]
  expected = scorer_of_text.score(PROBLEM, ["so 1", "then 2", "So 2."]).scores
  status, reply, _ = running.post(body, path)
  assert status == 200, reply
  if path == "/pooling":
    rows = reply["data"][0]["data"]
    assert [p for _, p in rows] == pytest.approx(expected, abs=1e-5)
  else:
    assert pytest.approx(min(expected), abs=1e-5) in _numbers(reply)


@pytest.mark.parametrize(
  ("method", "path"),
  [(x.method, x.path) for x in routes.ALL if x.method != "GET"],
)
def test_no_route_that_reads_ignores_a_query_parameter(running, method, path):
  for query in ("x=1", "x", "aggregate=min&x=", "temperature=0&model=tiny"):
    status, reply, _ = running.ask(method, f"{path}?{query}", b"{}", {})
    assert status == 400, reply
    assert "query parameter" in reply["error"]["message"]


@pytest.mark.parametrize(
  "path", [x.path for x in routes.ALL if x.method == "GET"]
)
def test_a_probe_may_add_what_it_wants_to_an_address(running, path):
  expected = running.ask("GET", path, b"", {})[0]
  assert expected in (200, 503)
  assert running.ask("GET", f"{path}?probe=1&x", b"", {})[0] == expected


def test_our_own_route_takes_its_fields_in_the_body_alone(running):
  body = dict(items=[dict(problem=PROBLEM, response=RESPONSE)])
  for query in ("aggregate=product", "model=orm"):
    status, reply, _ = running.post(body, f"/v1/prm/score?{query}")
    assert status == 400
    name = query.partition("=")[0]
    assert f"{name!r}; give it in the body" in reply["error"]["message"]


def test_marked_steps_are_the_steps_of_a_reward_model_with_marks():
  """vLLM is sent them for Qwen's reward models; nothing is compiled here."""
  tokenizer = tokenizer_files.SentencePiece(
    hostile_text.sentencepiece_model("identity")
  )
  config = encoding.EncodingConfig(template=templates.qwen_prm())
  model = models_lib.Model(
    *("prm", "sha256:0"),
    scorer.Scorer("prm", served.CONFIG, None, tokenizer, config),
    limits_lib.Limits(),
  )
  text = f"{QWEN}so 2<extra_0>then 3\n<extra_0><|im_end|><|endoftext|>"
  (prepared,) = forms.prepare(vllm_form.POOLING, dict(input=text), model, "")
  assert prepared.solution.problem == PROBLEM
  assert prepared.solution.steps == ("so 2", "then 3\n")
  mark = tokenizer.control("<extra_0>")
  ids = prepared.encoded.tokens
  assert [int(x) for x in prepared.encoded.step_end] == [
    i for i, x in enumerate(ids) if x == mark
  ]


# --- OpenAPI ---------------------------------------------------------------------


def _schemas(document, path, method="post"):
  """Returns the schemas of a path's request and reply."""
  operation = document["paths"][path][method]
  reply = operation["responses"]["200"]["content"]["application/json"]["schema"]
  asked = operation.get("requestBody")
  return asked and asked["content"]["application/json"]["schema"], reply


def test_the_document_describes_the_golden_requests_and_replies(running):
  _, document, _ = running.get("/openapi.json")
  for golden in GOLDEN.values():
    asked, replied = _schemas(document, golden.path)
    declarations.check(golden.body, asked)
    declarations.check(running.post(golden.bytes, golden.path)[1], replied)


def test_each_route_is_in_the_document_as_it_is_declared(running):
  _, document, _ = running.get("/openapi.json")
  for route in routes.ALL:
    operation = document["paths"][route.path][route.method.lower()]
    assert ("parameters" in operation) == route.takes_aggregate
    assert operation["security"] == ([] if route.is_open else [{}, {"key": []}])
    asked = operation.get("requestBody")
    for body, declared in (
      (asked, route.request),
      (operation["responses"]["200"], route.reply),
    ):
      content = (body or {}).get("content", {})
      schema = content.get("application/json", {}).get("schema")
      assert schema == declared or declared in schema["anyOf"]


def test_the_document_describes_our_own_routes(running):
  _, document, _ = running.get("/openapi.json")
  asked, replied = _schemas(document, "/v1/prm/score")
  items = [
    dict(problem=PROBLEM, response=RESPONSE),
    dict(problem=PROBLEM, steps=["2"]),
    dict(messages=golden_requests.CHAT),
  ]
  body = dict(items=items, aggregate="last")
  declarations.check(body, asked)
  declarations.check(running.post(body)[1], replied)
  for path in ("/v1/models", "/openapi.json", "/health"):
    declarations.check(running.get(path)[1], _schemas(document, path, "get")[1])
  # But what only a browser asks for.
  others = {x.path for x in running.server.app().routes if x.path != "/"}
  assert set(document["paths"]) == {
    path for path in others if not path.startswith("/web/")
  }


def test_the_document_describes_refusals(running):
  _, document, _ = running.get("/openapi.json")
  error = document["components"]["schemas"]["Error"]
  for path, body, status, _, _ in BAD.values():
    of_path = document["paths"][path.partition("?")[0]]["post"]["responses"]
    assert str(status) in of_path
    declarations.check(running.post(body, path)[1], error)


def test_a_form_refuses_what_its_schema_does_not_hold():
  for route in routes.ALL:
    if route.request is not None:
      with pytest.raises(refusals.RefusedError):
        declarations.check(3, route.request)
