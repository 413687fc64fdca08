"""Completions as token ids, from replies of vLLM and SGLang."""

import math

import golden_replies
import numpy as np
import pytest
import stub_server

from prm_jax import errors
from prm_jax.policy import rollout_engine
from prm_jax.policy import sampler

REQUESTS = [
  rollout_engine.Request("a", np.asarray([5, 6, 7], np.int32), 2),
  rollout_engine.Request("b", [5, 6, 7, 8], 1, max_tokens=3),
]
SAMPLING = sampler.Sampling(max_tokens=8, temperature=1.0, top_k=4)
END_ID = golden_replies.END_ID
# How a completion ends: ids, text, finish_reason, and what stopped it.
ENDINGS = dict(
  end=([11, 12, END_ID], "ab", "stop", "END"),
  # The token 13 is "c\n\n", with which the step ends.
  step=([11, 13], "ac", "stop", "\n\n"),
  length=([11, 12, 13], "abc\n\nd", "length", None),
)


def _complete(client, requests=REQUESTS, **options):
  with client:
    return client.complete(requests, SAMPLING, 3, **options)


def _server(serve, server, ending, **changes):
  ids, text, finish, stopped = ENDINGS[ending]
  if stopped == "END":
    stopped = golden_replies.ENDS[server]
  log_probs = [-0.5 * (n + 1) for n in range(len(ids))]

  def behave(handler, body, times):
    given = dict(ids=ids, log_probs=log_probs, text=text) | changes
    return golden_replies.SERVERS[server](
      body, **given, finish=finish, stopped=stopped
    )

  return serve(behave)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("server", golden_replies.SERVERS)
def test_ids_and_log_probabilities_are_those_of_the_reply(
  serve, server, ending, tmp_path
):
  stub = _server(serve, server, ending)
  ask = dict(stop_at_step=ending == "step", ends=(END_ID,))
  client = stub_server.client(stub, tmp_path / "j.jsonl", concurrency=1)
  rows = _complete(client, **ask)
  assert [len(row) for row in rows] == [2, 1]
  ids = ENDINGS[ending][0]
  for completion in (c for row in rows for c in row):
    assert completion.tokens.dtype == np.int32
    assert completion.log_probs.dtype == np.float32
    assert completion.tokens.tolist() == ids
    assert completion.log_probs.tolist() == [-0.5, -1.0, -1.5][: len(ids)]
    assert completion.stopped == ending
    assert completion.ended == (ending == "end")
  first, second, other = stub.seen
  assert first["prompt"] == second["prompt"] == [5, 6, 7]
  assert other["prompt"] == [5, 6, 7, 8]
  assert (first["max_tokens"], other["max_tokens"]) == (8, 3)
  assert len({body["seed"] for body in stub.seen}) == 3
  assert first["return_token_ids"] is True and first["logprobs"] == 1
  assert first["stop_token_ids"] == [END_ID] and first["top_k"] == 4
  assert first.get("stop") == (["\n\n"] if ending == "step" else None)
  assert set(stub.paths) == {"/v1/completions"}
  # The journal has them all.
  again = _complete(stub_server.client(stub, tmp_path / "j.jsonl"), **ask)
  assert len(stub.seen) == 3
  for row, same in zip(rows, again, strict=True):
    for a, b in zip(row, same, strict=True):
      np.testing.assert_array_equal(a.tokens, b.tokens)
      np.testing.assert_array_equal(a.log_probs, b.log_probs)
      assert a.stopped == b.stopped
  assert client.counts["tokens"] == 3 * len(ids)


@pytest.mark.parametrize(
  "lacking, said",
  [
    ({}, "it returns no token ids; use vLLM or SGLang"),
    (dict(token_ids=[1], logprobs=None), "returns no log-probabilities"),
    (dict(token_ids=[1, 2], prompt_token_ids=[6, 7]), "the prompt's 3 ids"),
    (dict(token_ids=[1, 2]), "3 ids but others, 7 of them"),
  ],
)
def test_what_a_server_without_ids_lacks_is_said(serve, lacking, said):
  stub = serve(lambda h, body, _: stub_server.reply(body, "so", **lacking))
  with pytest.raises(errors.InputError, match=said):
    _complete(stub_server.client(stub, concurrency=1), REQUESTS[:1])
  assert len(stub.seen) == 1


def test_a_chat_takes_no_ids(serve):
  with pytest.raises(errors.InputError, match="a chat takes no token ids"):
    _complete(stub_server.client(serve(), chat=True))


@pytest.mark.parametrize(
  "changes",
  [
    dict(ids=[], log_probs=[]),
    dict(log_probs=[-1.0, None, -1.0]),
    dict(log_probs=[-1.0, -math.inf, -1.0]),
    dict(ids=[1, 2.5, 3]),
    dict(ids=[1, -2, 3]),
    dict(ids=[True, 2, 3]),
  ],
)
@pytest.mark.parametrize("server", golden_replies.SERVERS)
def test_a_reply_that_is_not_whole_is_asked_for_again(serve, server, changes):
  stub = _server(serve, server, "end", **changes)
  client = stub_server.client(stub, tries=2)
  with pytest.raises(errors.InputError, match="each new token"):
    _complete(client, REQUESTS[1:])
  assert len(stub.seen) == 2 and client.counts["failed_bad_reply"] == 2


@pytest.mark.parametrize("server", golden_replies.SERVERS)
def test_ids_go_on_while_a_block_is_open(serve, server):
  parts = {3: ([11, 13], "```\na"), 5: ([12, 14, 15], "b\n```")}

  def behave(handler, body, times):
    ids, text = parts[len(body["prompt"])]
    given = dict(ids=ids, log_probs=[-0.5] * len(ids), text=text)
    return golden_replies.SERVERS[server](
      body, **given, finish="stop", stopped="\n\n"
    )

  stub = serve(behave)
  ((c,),) = _complete(
    stub_server.client(stub),
    [rollout_engine.Request("a", [5, 6, 7], 1)],
    stop_at_step=True,
  )
  assert c.tokens.tolist() == [11, 13, 12, 14, 15]
  assert (c.log_probs.tolist(), c.stopped) == ([-0.5] * 5, "step")
  assert [x["prompt"] for x in stub.seen] == [[5, 6, 7], [5, 6, 7, 11, 13]]
  assert [x["max_tokens"] for x in stub.seen] == [8, 6]
