"""What a text weighs is its log-probability in the whole sequence."""

import functools

import hostile_text
from hypothesis import given
from hypothesis import strategies as st
import jax
from jax import numpy as jnp
import numpy as np
import pytest
import random_policies

from prm_jax import errors
from prm_jax import schema
from prm_jax.models import transformer
from prm_jax.policy import codecs
from prm_jax.policy import log_likelihood
from prm_jax.policy import sampler
from prm_jax.text import encoding
from prm_jax.text import own_form
from prm_jax.text import tokenizer_files

WORDS = tokenizer_files.train_sentencepiece(
  ["a b c d e f"], 32, model_type="word"
)
CONFIG = random_policies.model(WORDS.vocab_size)
PREFIXES = [
  schema.Solution("0", "a b", ()),
  schema.Solution("1", "a b", ("c",)),
  schema.Solution("2", "b", ("a a", "", "f e d")),
  schema.Solution("3", "b", ("a b c d e f " * 3 + "a",)),
]
OPTIONS = (" a", " b c", " b c f d")


@functools.cache
def _params(scale=0.4):
  return random_policies.params(CONFIG, scale=scale)


def _policy(tokenizer=WORDS):
  return sampler.Sampler(CONFIG, _params(), tokenizer)


@functools.cache
def _forward():
  return jax.jit(functools.partial(transformer.token_log_probs, CONFIG))


def _of_sequence(prefix, option):
  """Returns log P(option | prefix): two whole sequences, no tree."""
  *before, last = prefix.steps or ("",)
  ids = [WORDS.bos, *WORDS.encode(prefix.problem), WORDS.separator]
  for step in before:
    ids += [*WORDS.encode(step), WORDS.separator]
  start = len(ids) + len(WORDS.encode(last))
  ids += WORDS.encode(last + option)
  batch = random_policies.alone(ids, 64)
  found = _forward()(_params(), jax.tree.map(jnp.asarray, batch))
  return float(found[0, start : len(ids)].sum())


def test_a_text_weighs_what_it_does_in_the_whole_sequence():
  found = _policy().log_likelihoods(PREFIXES, OPTIONS)
  expected = [[_of_sequence(p, o) for o in OPTIONS] for p in PREFIXES]
  np.testing.assert_allclose(found, expected, atol=1e-5)
  assert len(set(np.round(found, 3).ravel())) == np.size(found)


def test_neither_batch_mates_nor_other_options_change_a_weight(monkeypatch):
  found = _policy().log_likelihoods(PREFIXES, OPTIONS)
  monkeypatch.setattr(log_likelihood, "_BATCH_TOKENS", 64)
  for prefix, row in zip(PREFIXES, found, strict=True):
    (alone,) = _policy().log_likelihoods([prefix], OPTIONS[1:])
    np.testing.assert_allclose(alone, row[1:], atol=1e-5)
  np.testing.assert_allclose(
    _policy().log_likelihoods(PREFIXES, OPTIONS), found, atol=1e-5
  )


def test_first_tokens_are_sampled_as_often_as_they_weigh():
  words = [WORDS.decode([i]) for i in range(WORDS.text_ids)]
  words = [word for word in words if WORDS.encode(word) and "⁇" not in word]
  prefix = schema.Solution("a", "a b", ())
  (weights,) = _policy().log_likelihoods([prefix], words)
  num = 4_000
  (row,) = _policy().complete(
    [own_form.prompt("a b", WORDS)],
    num,
    sampler.Sampling(max_tokens=1),
    jax.random.key(3),
  )
  drawn = [int(c.tokens[0]) for c in row]
  for word, weight in zip(words, weights, strict=True):
    p = np.exp(weight)
    share = drawn.count(*WORDS.encode(word)) / num
    assert abs(share - p) < 4 * np.sqrt(p * (1 - p) / num) + 1e-9
  assert max(weights) - min(weights) > 0.5


@given(
  steps=st.lists(hostile_text.TEXT, max_size=3),
  problem=hostile_text.TEXT,
  name=st.sampled_from(hostile_text.TOKENIZERS),
)
def test_ids_are_the_ledgers_whatever_the_text(steps, problem, name):
  """An option's path is the ids of a solution whose last step has it."""
  tokenizer = hostile_text.tokenizer(name)
  prefix = schema.Solution("a", problem, tuple(steps))
  codec = codecs.SeparatorCodec(tokenizer)
  options = (" 3", " answer so")
  *before, last = steps or [""]
  encoding_config = encoding.EncodingConfig(
    max_tokens=None, template=own_form.OWN
  )
  whole = [
    encoding.encode(
      problem, (*before, last + x), tokenizer, encoding_config
    ).tokens[:-1]
    for x in options
  ]
  if whole[0].tolist() == whole[1].tolist():
    with pytest.raises(errors.InputError):
      log_likelihood.choice(prefix, options, codec)
    return
  found = log_likelihood.choice(prefix, options, codec)
  for (start, end), expected in zip(found.spans, whole, strict=True):
    path = [*found.tokens[: found.shared], *found.tokens[start:end]]
    assert path == expected.tolist()


def test_options_that_the_tokenizer_cannot_tell_apart_are_refused():
  with pytest.raises(errors.InputError, match="same token ids") as e:
    _policy().log_likelihoods(PREFIXES[:1], [" Yes", " No"])
  assert "\n" not in str(e.value)


def test_nothing_to_weigh_weighs_nothing():
  assert _policy().log_likelihoods([], OPTIONS) == []
