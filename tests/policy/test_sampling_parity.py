"""Sampling against transformers' `generate` on random models of every family.

Needs the extra `parity`. The prompts are longer than the models' windows. What
transformers computes in float64 is the measure: its float32 has been 1.05e-4
from it.
"""

import copy
import dataclasses
import functools

import jax
from jax import numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from golden import make_hf  # noqa: E402
import test_sampler  # noqa: E402

from prm_jax import batch as batch_lib  # noqa: E402
from prm_jax import huggingface  # noqa: E402
from prm_jax.models import transformer  # noqa: E402
from prm_jax.policy import drawing  # noqa: E402
from prm_jax.policy import rollout_engine as rollout_engine  # noqa: E402
from prm_jax.policy import sampler as sampler_lib  # noqa: E402

torch.set_num_threads(1)  # other tests have the other cores
pytestmark = pytest.mark.parity
# Every family, and every window and scaling of RoPE that one has.
EVERY = pytest.mark.parametrize("case", make_hf.CASES)
V, NEW = make_hf._TINY["vocab_size"], 20
GREEDY = drawing.Sampling(NEW, temperature=0.0)
KEY = jax.random.key(3)
# Two logits that are closer than this may be in either order.
TIE_NATS = 1e-4


class Ids(test_sampler.Digits):
  """A tokenizer for ids alone."""

  separator = -1

  def __init__(self, eos):
    self.eos = eos


@pytest.fixture(scope="module")
def load(tmp_path_factory):
  """Returns a function: case -> transformers' model, our config and params."""

  @functools.cache
  def load(case):
    kind, config, _ = make_hf.CASES[case]
    theirs = make_hf.make_model(kind, config, seed=11)
    theirs.set_attn_implementation("eager")
    folder = tmp_path_factory.mktemp(case)
    theirs.save_pretrained(folder)
    source = huggingface.read_config(folder)
    params, left = huggingface.load_params(
      huggingface.open_tensors(folder), source.family, source.model
    )
    assert not left
    return theirs, source.model, jax.tree.map(jnp.asarray, params)

  return load


def _prompts(num, seed=0):
  """Returns prompts of 1 to 40 random ids."""
  random = np.random.default_rng(seed)
  lengths = [1, 2, 40, *random.integers(1, 41, num - 3)]
  return [random.integers(0, V, n).astype(np.int32) for n in lengths]


@functools.cache
def _exact(model):
  return copy.deepcopy(model).double()


def _theirs_log_probs(model, ids):
  """Returns transformers' log-probabilities [T, V] after each id."""
  with torch.no_grad():
    logits = _exact(model)(
      input_ids=torch.tensor([list(map(int, ids))])
    ).logits[0]
  return logits.log_softmax(-1).numpy()


def _of_completion(model, prompt, tokens):
  """Returns transformers' log-probabilities of a prompt's continuation."""
  rows = _theirs_log_probs(model, [*prompt, *tokens])[len(prompt) - 1 : -1]
  return rows[np.arange(len(tokens)), tokens]


def _generate(model, prompt, ends):
  """Returns the ids that transformers' greedy `generate` adds."""
  ids = torch.tensor([prompt.tolist()])
  with torch.no_grad():
    out = model.generate(
      ids,
      attention_mask=torch.ones_like(ids),
      do_sample=False,
      max_new_tokens=NEW,
      eos_token_id=ends or None,
      pad_token_id=0,
    )
  return out[0, len(prompt) :].tolist()


def _by_engine(config, params, prompts, sampling, eos):
  engine = rollout_engine.Engine(config, params, Ids(eos), slots=8, chunk=4)
  requests = [
    rollout_engine.Request(str(i), prompt, 1)
    for i, prompt in enumerate(prompts)
  ]
  return [row[0] for row in engine.complete(requests, sampling, KEY)[0]]


def _by_sampler(config, params, prompts, sampling, eos):
  policy = sampler_lib.Sampler(config, params, Ids(eos))
  return [row[0] for row in policy.complete(prompts, 1, sampling, KEY)]


WAYS = pytest.mark.parametrize("way", [_by_engine, _by_sampler])


@EVERY
def test_log_probabilities_of_a_forced_text_are_transformers(load, case):
  model, config, params = load(case)
  random = np.random.default_rng(1)
  tokens = random.integers(0, V, (2, 40)).astype(np.int32)
  index = np.broadcast_to(np.arange(40, dtype=np.int32), (2, 40))
  row = batch_lib.empty(2, 40).replace(
    tokens=tokens,
    positions=index,
    parent=index - 1,
    visible_until=np.full((2, 40), 40, np.int32),
  )
  of_row = jax.jit(functools.partial(transformer.token_log_probs, config))
  found = of_row(params, jax.tree.map(jnp.asarray, row))
  for ids, log_probs in zip(tokens, found, strict=True):
    expected = _of_completion(model, ids[:1], ids[1:])
    np.testing.assert_allclose(log_probs[1:], expected, atol=1e-4)
    assert np.ptp(expected) > 1


@WAYS
@EVERY
def test_log_probabilities_of_what_is_drawn_are_transformers(load, case, way):
  model, config, params = load(case)
  prompts = _prompts(6, seed=2)
  sampling = dataclasses.replace(GREEDY, temperature=1.3, top_k=20)
  rows = way(config, params, prompts, sampling, -1)
  for prompt, found in zip(prompts, rows, strict=True):
    assert len(found.tokens) == NEW
    expected = _of_completion(model, prompt, found.tokens)
    np.testing.assert_allclose(found.log_probs, expected, atol=1e-4)


@pytest.mark.parametrize("num_ends", [0, 1])
@WAYS
@EVERY
def test_greedy_texts_and_their_ends_are_those_of_generate(
  load, case, way, num_ends
):
  model, config, params = load(case)
  prompts = _prompts(20)
  ends = _common_ids(model)[:num_ends]
  found = way(config, params, prompts, GREEDY, ends[0] if ends else -1)
  ties, ended = 0, 0
  for prompt, completion in zip(prompts, found, strict=True):
    expected = _generate(model, prompt, ends)
    if completion.tokens.tolist() != expected:
      _check_tie(model, prompt, completion.tokens, expected)
      ties += 1
      continue
    ended += completion.ended
    assert completion.ended == (expected[-1] in ends)
  print(f"{case}: {ties} of {len(prompts)} texts differ by a tie")
  assert ties <= 1
  assert ended >= 3 * num_ends


@functools.cache
def _common_ids(model):
  """Returns all ids, those that most greedy texts have first."""
  texts = [set(_generate(model, p, [])) for p in _prompts(20)]
  counts = np.bincount([x for text in texts for x in text], minlength=V)
  return np.argsort(-counts, kind="stable").tolist()


def _check_tie(model, prompt, found, expected):
  """Asserts that two texts part at two ids that are as good as equally likely.

  Where one text is the beginning of the other, one of them missed its end.
  """
  length = min(len(found), len(expected))
  apart = np.flatnonzero(found[:length] != np.asarray(expected[:length]))
  assert len(apart), "one text is the beginning of the other"
  at = int(apart[0])
  rows = _theirs_log_probs(model, [*prompt, *expected[: at + 1]])
  best = np.sort(rows[len(prompt) + at - 1])[-2:]
  assert best[1] - best[0] < TIE_NATS


@WAYS
@EVERY
def test_a_half_finished_text_goes_on_as_the_whole_did(load, case, way):
  """The engine decodes all the beginnings from one prefill of the longest."""
  model, config, params = load(case)
  prompt = _prompts(3)[2]
  whole = way(config, params, [prompt], GREEDY, -1)[0]
  text = [*prompt, *whole.tokens]
  cuts = [0, 1, 4, 9, NEW - 1]
  halves = [np.asarray(text[: len(prompt) + cut], np.int32) for cut in cuts]
  expected = _of_completion(model, prompt, whole.tokens)
  found = way(config, params, halves, GREEDY, -1)
  for cut, completion in zip(cuts, found, strict=True):
    rest = whole.tokens[cut:]
    same = completion.tokens[: len(rest)]
    assert same.tolist() == rest.tolist()
    np.testing.assert_allclose(
      completion.log_probs[: len(rest)], expected[cut:], atol=1e-4
    )


@pytest.mark.parametrize(
  "filters",
  [
    dict(top_k=5),
    dict(top_p=0.6),
    dict(min_p=0.1),
    dict(temperature=1.7, top_k=12),
    dict(temperature=0.6, top_p=0.9),
    dict(temperature=2.5, top_k=30, top_p=0.9, min_p=0.05),
    dict(temperature=0.7, top_k=20, top_p=0.8, min_p=0.2),
  ],
  ids=str,
)
def test_the_filters_are_those_of_generate(load, filters):
  """Their `scores` are what `generate` draws from, by its own processors."""
  model, _, _ = load("qwen3")
  random = np.random.default_rng(5)
  ids = torch.tensor(random.integers(0, V, (200, 6)))
  with torch.no_grad():
    # What isn't given must not come from transformers' defaults: top_k is 50.
    out = model.generate(
      ids,
      attention_mask=torch.ones_like(ids),
      do_sample=True,
      max_new_tokens=1,
      output_scores=True,
      output_logits=True,
      return_dict_in_generate=True,
      pad_token_id=0,
      **dict(top_k=0, top_p=1.0) | filters,
    )
  expected = out.scores[0].double().softmax(-1).numpy()
  logits = jnp.asarray(out.logits[0].numpy())
  logits = logits / filters.get("temperature", 1.0)
  sampling = drawing.Sampling(1, **filters)
  log_probs = jax.nn.log_softmax(logits, axis=-1)
  kept = drawing.kept(logits, log_probs, sampling)
  found = np.asarray(jax.nn.softmax(kept, axis=-1))
  np.testing.assert_array_equal(found > 0, expected > 0)
  np.testing.assert_allclose(found, expected, atol=1e-6)
  assert 1 < (found > 0).sum(-1).mean() < V - 1
