"""A policy that is asked in trees and slots says what a plain loop says."""

import functools
import threading

import jax
import numpy as np
import pytest
import random_policies
import recipes
import stub_server

from prm_jax import schema
from prm_jax.jobs import policies
from prm_jax.models import transformer
from prm_jax.policy import codecs
from prm_jax.policy import log_likelihood
from prm_jax.policy import sampling
from prm_jax.probes import faithfulness
from prm_jax.probes import probed_policy
from prm_jax.text import policy_templates
from prm_jax.text import tokenizer_files

RAW = "First 3 + 4 = 7.\n\nThen 7 * 2 = 14.\n\nThe answer is 14."
SPANS = ((0, 16), (18, 33), (35, 52))
SOLUTION = schema.Solution(
  "s",
  "What is (3 + 4) * 2?",
  tuple(RAW[a:b] for a, b in SPANS),
  raw_text=RAW,
  spans=SPANS,
  extra=dict(reference_answer="14"),
)


@functools.cache
def _policy(kind):
  return random_policies.policy(kind)


@functools.cache
def _forward(kind):
  config = _policy(kind).config
  return jax.jit(
    lambda params, batch: transformer.apply(
      config, params, batch, method="lm_logits"
    )
  )


def _log_probs(kind, ids):
  """Returns the log-probabilities at each of some ids, given those before."""
  batch = random_policies.alone(ids)
  logits = _forward(kind)(_policy(kind).params, batch)[0]
  return np.asarray(jax.nn.log_softmax(logits[: len(ids)], -1))


def _opened(kind):
  how = sampling.Sampling(temperature=0.0, max_tokens=12)
  return probed_policy.of_sampler(_policy(kind), how, 0, slots=4)


def _asked(kind):
  """Returns what the probes ask of the solution."""
  asked = faithfulness._Asked(SOLUTION, _opened(kind), faithfulness.Options())
  asked.hear({p.id: " 14." for p in asked.forced.values()})
  return asked


@pytest.mark.parametrize("kind", random_policies.KINDS)
def test_how_sure_it_is_is_what_whole_sequences_say(kind):
  codec, asked = _policy(kind).codec, _asked(kind)
  prefixes = [*asked.weighed.values()]
  assert len(prefixes) == 7  # whole; 2 corrupted, left out and cut each
  ((*found,),) = _opened(kind).sureness([prefixes], [" 14"])
  for prefix, row in zip(prefixes, found, strict=True):
    alone, ids = codec.within(prefix, ""), codec.within(prefix, " 14")
    assert ids[: len(alone)] == alone
    table = _log_probs(kind, ids)
    own = range(len(alone), len(ids))
    decode = _policy(kind).tokenizer.decode
    first = next(i for i in own if decode([ids[i]]).strip().isdigit())
    log_probs = [table[i][ids[i]] for i in own]
    assert row.log_prob == pytest.approx(sum(log_probs), abs=1e-4)
    at = table[first].astype(float)
    assert row.first_log_prob == pytest.approx(at[ids[first]], abs=1e-4)
    others = np.delete(at, ids[first]).max()
    assert row.margin == pytest.approx(at[ids[first]] - others, abs=1e-4)
    assert row.logit_std == pytest.approx(at.std(), rel=1e-4)


@pytest.mark.parametrize("kind", random_policies.KINDS)
def test_an_answer_goes_on_within_the_step_that_asks(kind, monkeypatch):
  monkeypatch.setattr(probed_policy, "ANSWER_TOKENS", 8)
  codec, prefixes = _policy(kind).codec, [*_asked(kind).forced.values()][1:3]
  for prefix, text in zip(
    prefixes, _opened(kind).answer(prefixes), strict=True
  ):
    ids = [*codec.within(prefix, "")]
    start = len(ids)
    while len(ids) - start < probed_policy.ANSWER_TOKENS:
      ids.append(int(_log_probs(kind, [*ids, 0])[-1].argmax()))
      if ids[-1] in codec.ends:
        break
    assert text == codec.places(np.asarray(ids[start:])).text


# GPT-2's, as SmolLM2's: of several line breaks the last is a piece by itself.
_GPT_2 = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


@pytest.mark.parametrize(
  ("raw", "end"),
  [
    ("So 3 + 4 = 7.\n\nThen", "So 3 + 4 = 7.\n\n"),
    ("It is 7. Then", "It is 7."),
  ],
)
def test_what_is_begun_has_the_ids_that_it_has_in_a_whole_text(
  raw, end, monkeypatch
):
  monkeypatch.setattr(recipes, "LESSONS", [*recipes.LESSONS, "So:\n\n\nThen"])
  tokenizer = tokenizer_files.HuggingFace(
    recipes._byte_level(recipes.QWEN, _GPT_2)
  )
  codec = codecs.of(policy_templates.plain(("<|im_end|>",)), tokenizer)
  stop = raw.index("Then")
  prefix = schema.Solution(
    *("s", "?", (raw[:stop].strip(),)),
    raw_text=raw[:stop],
    spans=((0, len(raw[:stop].strip())),),
  )
  begun = probed_policy._as_written(prefix, codec)
  assert begun.raw_text == end and begun.steps == prefix.steps
  ids = codec.prompt(begun).begun.tolist()
  whole = tokenizer.encode(raw)
  assert ids == whole[: len(ids)]
  # What is encoded alone isn't.
  alone = tokenizer.encode(raw[:stop])
  assert alone != whole[: len(alone)]


def test_the_digits_of_an_answer_are_weighed_and_not_its_sign():
  table = np.asarray([[0.0] * 4] * 4)
  row = log_likelihood.Margins(
    *(np.asarray(x, float) for x in ([-1, -2, -3, -4], table[0], table[0] + 1))
  )
  decode = lambda ids: (" ", "$", "1", "8")[ids[0]]  # noqa: E731
  found = probed_policy._sureness([0, 1, 2, 3], row, 0, decode)
  assert found.first_log_prob == -3 and found.log_prob == -10
  words = probed_policy._sureness([0, 1], row, 0, decode)
  assert words.first_log_prob == -2


def test_a_rewritten_solution_keeps_what_was_written_before():
  asked = _asked("template")
  for (what, k), prefix in asked.open.items():
    (whole,) = _opened("template").finish([prefix])
    assert whole.raw_text.startswith(prefix.raw_text)
    if what == "rewrite":
      assert whole.steps[: k + 1] == (
        *SOLUTION.steps[:k],
        asked.corrupted[k],
      )


def test_all_probes_of_a_model_have_numbers():
  (record,) = faithfulness.probe(
    [SOLUTION], _opened("template"), faithfulness.Options()
  )
  assert record["num_steps"] == 2 and record["right"] is True
  assert len(record["early"]["same"]) == 3
  assert len(record["corrupt_same"]) == len(record["rewrite_same"]) == 2
  assert len(record["weight_left_out"]) == 2
  assert None not in record["weight_left_out"]
  assert {"filler", "cue", "nldd_skipped"} <= {*record}


def test_a_server_is_asked_without_nldd():
  """It says 14 after any steps, and is as sure after any."""

  def behave(handler, body, times):
    text = body["prompt"]
    if body.get("echo"):
      tokens = dict(tokens=[text[:-3], " 14"], token_logprobs=[None, -0.5])
      reply = stub_server.reply(body, text, logprobs=tokens)
      return reply | dict(usage=dict(prompt_tokens=2, completion_tokens=1))
    is_asked = text.endswith("The answer is")
    return stub_server.reply(body, " 14." if is_asked else "The answer is 14.")

  stub = stub_server.Stub(behave)
  threading.Thread(target=stub.serve_forever, args=(0.01,), daemon=True).start()
  try:
    policy = policies.Policy(stub.url, server=policies.Server(model="m"))
    how = sampling.Sampling(temperature=0.0)
    with probed_policy.opened(policy, how, 0, None) as opened:
      (record,) = faithfulness.probe([SOLUTION], opened, faithfulness.Options())
  finally:
    stub.closing.set()
    stub.shutdown()
    stub.server_close()
  assert record["early"]["same"] == [True] * 3
  assert record["rewrite_same"] == [True] * 2
  assert record["weight_corrupted"] == [0, 0] and record["log_prob"] == -0.5
  assert "nldd" not in record and "nldd_skipped" not in record


def test_the_margin_of_the_likeliest_id_is_to_the_second():
  policy, ids = _policy("own"), [1, 2, 3]
  table = _log_probs("own", [*ids, 0])[-1]
  group = [np.asarray([*ids, int(x)]) for x in table.argsort()[-2:]]
  ((second, first),) = log_likelihood.of_groups(
    policy.config, policy.params, [group]
  )
  highest = np.sort(table)[-2:]
  for row, own, other in ((first, 1, 0), (second, 0, 1)):
    assert row.log_prob[-1] == pytest.approx(highest[own], abs=1e-4)
    assert row.best_other[-1] == pytest.approx(highest[other], abs=1e-4)
