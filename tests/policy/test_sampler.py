"""The sampler against the full forward, and what a sample may depend on."""

import dataclasses
import functools

from flax.core import meta
import jax
from jax import numpy as jnp
import numpy as np
import pytest
from scipy import special
from scipy import stats
import test_drawing

from prm_jax import batch as batch_lib
from prm_jax import errors
from prm_jax import schema
from prm_jax.models import model_config
from prm_jax.models import transformer
from prm_jax.policy import sampler
from prm_jax.text import encoding
from prm_jax.text import own_form
from prm_jax.text import tokenizer as tokenizer_lib


class Digits:
  """One id per digit; anything else is a zero."""

  vocab_size, bos, eos, separator = 13, 10, 11, 12
  text_ids, bos_name = 10, None

  def encode(self, text):
    return [int(c) if c.isdigit() else 0 for c in text]

  def encode_with_spans(self, text):
    return self.encode(text), [(i, i + 1) for i in range(len(text))]

  def control(self, name):
    return None

  def decode(self, ids):
    return "".join(str(i) for i in ids if i < 10)

  def save(self, folder):
    raise NotImplementedError


class EndingInZero(Digits):
  """Its eos is what an indifferent greedy policy writes."""

  eos = 0


PLAIN = model_config.ModelConfig(
  vocab_size=13,
  d_model=16,
  num_layers=2,
  num_heads=4,
  num_kv_heads=2,
  head_dim=8,
  d_ff=24,
)
CONFIGS = {
  "plain": PLAIN,
  "every_option": dataclasses.replace(
    PLAIN,
    num_kv_heads=1,
    qkv_bias=True,
    qk_norm=True,
    tie_embedding=False,
    scale_embedding=True,
  ),
  "as_gemma": dataclasses.replace(
    PLAIN,
    norm_offset=True,
    post_norms=True,
    query_scale=0.3,
    attention_softcap=2.0,
    final_softcap=3.0,
    window=5,
    global_layers=(1,),
    rope_local_theta=50.0,
  ),
}
PROMPTS = [[10, 3, 12], [10, *range(9), 7, 12], [10, *[1, 4] * 8, 12]]
GREEDY = sampler.Sampling(max_tokens=12, temperature=0.0)
WARM = sampler.Sampling(max_tokens=12)
KEY = jax.random.key(7)


@functools.cache
def _params(config, scale=0.4):
  random = np.random.default_rng(0)
  return jax.tree.map(
    lambda x: jnp.asarray(scale * random.normal(size=x.shape), x.dtype),
    jax.eval_shape(
      lambda: meta.unbox(transformer.init(jax.random.key(0), config, ("lm",)))
    ),
  )


def _sampler(config=PLAIN, tokenizer=None, scale=0.4, **options):
  return sampler.Sampler(
    config, _params(config, scale), tokenizer or Digits(), **options
  )


@functools.cache
def _forward(config):
  return jax.jit(
    functools.partial(transformer.apply, config, method="lm_logits")
  )


def _teacher_forced(config, prompt, tokens):
  """Returns the logits [len(tokens), V] that the full forward predicts."""
  ids = [*prompt, *tokens]
  row = batch_lib.empty(1, 48)
  index = np.arange(48, dtype=np.int32)[None]
  row.tokens[0, : len(ids)] = ids
  batch = row.replace(
    positions=index,
    visible_until=np.full((1, 48), 48, np.int32),
    parent=index - 1,
  )
  logits = _forward(config)(_params(config), jax.tree.map(jnp.asarray, batch))
  return np.asarray(logits)[0, len(prompt) : len(ids)]


def _same(found, expected):
  """Compares completions: the ids exactly, log-probabilities to 1e-5."""
  for a, b in zip(found, expected, strict=True):
    assert a.tokens.tolist() == b.tokens.tolist()
    np.testing.assert_allclose(a.log_probs, b.log_probs, atol=1e-5)
    assert a.ended == b.ended


# --- Against the full forward -----------------------------------------------


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_greedy_is_the_argmax_of_the_full_forward_everywhere(config):
  rows = _sampler(config).complete(PROMPTS, 1, GREEDY, KEY)
  for prompt, (found,) in zip(PROMPTS, rows, strict=True):
    logits = _teacher_forced(config, prompt, found.tokens)
    assert found.tokens.tolist() == logits.argmax(-1).tolist()
    log_probs = special.log_softmax(logits, axis=-1).max(-1)
    np.testing.assert_allclose(found.log_probs, log_probs, atol=1e-5)
    assert len(found.tokens) == 12 or found.ended
  assert len({tuple(row[0].tokens) for row in rows}) == len(PROMPTS)


@pytest.mark.parametrize(
  "sampling",
  [
    WARM,
    dataclasses.replace(WARM, temperature=1.7),
    dataclasses.replace(WARM, temperature=0.7, top_p=0.8),
  ],
  ids=str,
)
def test_log_probabilities_are_the_policys_own_at_temperature_1(sampling):
  config = CONFIGS["every_option"]
  rows = _sampler(config).complete(PROMPTS, 4, sampling, KEY)
  for prompt, row in zip(PROMPTS, rows, strict=True):
    for found in row:
      logits = _teacher_forced(config, prompt, found.tokens)
      log_probs = special.log_softmax(logits, axis=-1)
      chosen = log_probs[np.arange(len(found.tokens)), found.tokens]
      np.testing.assert_allclose(found.log_probs, chosen, atol=1e-5)


def test_bfloat16_decodes_what_its_full_forward_predicts():
  config = dataclasses.replace(
    CONFIGS["every_option"], compute_dtype="bfloat16"
  )
  (row,) = _sampler(config).complete(PROMPTS[:1], 2, WARM, KEY)
  for found in row:
    assert found.log_probs.dtype == np.float32
    logits = _teacher_forced(config, PROMPTS[0], found.tokens)
    log_probs = special.log_softmax(logits, axis=-1)
    chosen = log_probs[np.arange(len(found.tokens)), found.tokens]
    np.testing.assert_allclose(found.log_probs, chosen, atol=0.2)


# --- What a sample depends on -----------------------------------------------


@pytest.fixture(scope="module")
def samples():
  return _sampler().complete(PROMPTS, 3, WARM, KEY)


def test_the_batch_size_changes_no_sample(samples):
  found = _sampler(batch_samples=2).complete(PROMPTS, 3, WARM, KEY)
  for a, b in zip(found, samples, strict=True):
    _same(a, b)


def test_batch_mates_and_padding_change_no_sample(samples):
  mates = [[10, *[5] * 30, 12], [10, 12]]
  found = _sampler().complete([*PROMPTS, *mates], 3, WARM, KEY)
  for a, b in zip(found, samples):
    _same(a, b)
  _same(_sampler().complete(PROMPTS[:1], 3, WARM, KEY)[0], samples[0])


def test_further_samples_change_no_sample(samples):
  found = _sampler().complete(PROMPTS, 5, WARM, KEY)
  for a, b in zip(found, samples, strict=True):
    _same(a[:3], b)


def test_a_larger_token_budget_only_goes_on(samples):
  longer = dataclasses.replace(WARM, max_tokens=15)
  found = _sampler().complete(PROMPTS, 3, longer, KEY)
  for longer_row, row in zip(found, samples, strict=True):
    for a, b in zip(longer_row, row, strict=True):
      assert a.tokens[:12].tolist() == b.tokens.tolist()


def test_key_request_and_sample_index_each_change_the_sample():
  twice = [PROMPTS[0], PROMPTS[0]]
  first = _sampler().complete(twice, 3, WARM, KEY)
  other = _sampler().complete(twice, 3, WARM, jax.random.key(8))
  texts = [tuple(c.tokens) for row in first + other for c in row]
  long = [x for x in texts if len(x) > 3]
  assert len(long) > 6 and len(set(long)) == len(long)


def test_nothing_asked_is_nothing_answered():
  assert _sampler().complete([], 3, WARM, KEY) == []


# --- The distribution -------------------------------------------------------


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (2.0, 0.7)])
def test_many_draws_follow_the_softmax(temperature, top_p):
  num = 4_000
  sampling = sampler.Sampling(1, temperature, top_p)
  (row,) = _sampler(scale=0.25, batch_samples=num).complete(
    PROMPTS[1:2], num, sampling, KEY
  )
  counts = np.bincount([c.tokens[0] for c in row], minlength=13)
  # At the first position the full forward needs no token of the policy.
  logits = jax.jit(
    functools.partial(transformer.apply, PLAIN, method="prefill")
  )(
    _params(PLAIN, 0.25),
    jnp.asarray([PROMPTS[1]]),
    jnp.asarray([len(PROMPTS[1])]),
  )[0][0]
  p = special.softmax(np.asarray(logits, np.float64) / temperature)
  p = np.where(test_drawing.oracle_nucleus(p, top_p - 1e-9), p, 0)
  p /= p.sum()
  inside = p > 0
  assert (inside.sum() < 13) == (top_p < 1)
  assert counts[~inside].sum() == 0
  expected = num * p[inside]
  merged = expected >= 5  # the test's condition
  observed = [*counts[inside][merged], counts[inside][~merged].sum()]
  expected = [*expected[merged], expected[~merged].sum()]
  if expected[-1] == 0:
    observed, expected = observed[:-1], expected[:-1]
  assert stats.chisquare(observed, expected).pvalue > 1e-3


def test_tokens_of_one_sample_are_drawn_independently():
  """Indifferent between 13 ids: all pairs of neighbours come as often."""
  num = 8_000
  sampling = sampler.Sampling(max_tokens=2)
  (row,) = _sampler(scale=0.0, batch_samples=num).complete(
    PROMPTS[:1], num, sampling, KEY
  )
  pairs = [tuple(c.tokens) for c in row if c.tokens[0] != Digits.eos]
  counts = np.zeros((13, 13))
  np.add.at(counts, tuple(np.asarray(pairs).T), 1)
  counts = np.delete(counts, Digits.eos, axis=0)
  assert stats.chisquare(counts.ravel()).pvalue > 1e-3


# --- How a sample ends ------------------------------------------------------


def test_the_token_budget_ends_a_policy_that_never_does():
  (row,) = _sampler(scale=0.0).complete(PROMPTS[:1], 2, GREEDY, KEY)
  for found in row:
    assert found.tokens.tolist() == [0] * 12 and not found.ended
    np.testing.assert_allclose(found.log_probs, -np.log(13), rtol=1e-5)


def test_eos_ends_a_sample_and_counts():
  policy = _sampler(scale=0.0, tokenizer=EndingInZero())
  (row,) = policy.complete(PROMPTS[:1], 2, GREEDY, KEY)
  for found in row:
    assert found.tokens.tolist() == [0] and found.ended
    assert found.log_probs.shape == (1,)


def test_nothing_follows_eos_and_the_others_go_on():
  (row,) = _sampler(scale=0.0).complete(PROMPTS[:1], 200, WARM, KEY)
  lengths = {len(c.tokens) for c in row}
  assert min(lengths) == 1 and max(lengths) == 12
  for found in row:
    assert Digits.eos not in found.tokens[:-1]
    assert found.ended == (found.tokens[-1] == Digits.eos)
    assert found.ended or len(found.tokens) == 12


# --- Solutions --------------------------------------------------------------


def _prefix(num_steps):
  return schema.Solution(
    id=f"p{num_steps}",
    problem="12",
    steps=tuple(str(k) * 2 for k in range(num_steps)),
    extra={"mark": num_steps},
  )


def test_generate_keeps_the_steps_it_is_given_and_goes_on():
  tokenizer, prefixes = Digits(), [_prefix(k) for k in (0, 1, 3)]
  rows = _sampler().generate(prefixes, 4, WARM, KEY)
  prompts = [
    encoding.encode(
      p.problem,
      p.steps,
      tokenizer,
      encoding.EncodingConfig(template=own_form.OWN),
    ).tokens
    for p in prefixes
  ]
  completions = _sampler().complete(prompts, 4, WARM, KEY)
  for prefix, row, expected in zip(prefixes, rows, completions, strict=True):
    for n, (found, c) in enumerate(zip(row, expected, strict=True)):
      steps = own_form.split_steps(c.tokens, tokenizer)
      assert found.steps == (*prefix.steps, *steps)
      assert found.id == f"{prefix.id}/{n}"
      assert found.problem == prefix.problem
      assert found.extra["mark"] == len(prefix.steps)
      ended = tokenizer.eos in c.tokens
      assert found.extra["ended"] == ended == c.ended
      np.testing.assert_allclose(
        [found.extra["log_prob_mean"], found.extra["log_prob_min"]],
        [c.log_probs.mean(), c.log_probs.min()],
        rtol=1e-5,
      )


def test_a_continuation_reads_the_prefix_as_training_does():
  """Greedy from k of its own steps ends where greedy from none did."""
  policy, tokenizer = _sampler(), Digits()
  budget = dataclasses.replace(GREEDY, max_tokens=40)
  (whole,) = policy.complete(
    [own_form.prompt("12", tokenizer)], 1, budget, KEY
  )[0]
  steps = own_form.split_steps(whole.tokens, tokenizer)
  full = schema.Solution(id="a", problem="12", steps=tuple(steps))
  separators = np.flatnonzero(whole.tokens == tokenizer.separator)
  for k in range(1, len(separators)):
    used = int(separators[k - 1]) + 1
    prefix = dataclasses.replace(full, steps=full.steps[:k])
    rest = dataclasses.replace(budget, max_tokens=len(whole.tokens) - used)
    ((found,),) = policy.generate([prefix], 1, rest, KEY)
    assert found.steps == full.steps


@pytest.mark.parametrize(
  "fields",
  [
    {"max_tokens": 0},
    {"max_tokens": 1, "temperature": -0.1},
    {"max_tokens": 1, "temperature": float("nan")},
    {"max_tokens": 1, "temperature": float("inf")},
    {"max_tokens": 1, "top_p": 0.0},
    {"max_tokens": 1, "top_p": 1.1},
    {"max_tokens": 1, "top_k": -1},
    {"max_tokens": 1, "min_p": -0.1},
    {"max_tokens": 1, "min_p": 1.1},
    {"max_tokens": 1, "min_p": float("nan")},
  ],
  ids=str,
)
def test_sampling_that_makes_no_sense_is_refused_in_one_line(fields):
  with pytest.raises(errors.InputError) as e:
    sampler.Sampling(**fields)
  assert "\n" not in str(e.value)


def test_a_budget_beyond_all_memory_is_refused_before_anything_is_drawn():
  policy = sampler.Sampler(PLAIN, {}, tokenizer_lib.Bytes())
  with pytest.raises(errors.InputError, match="`max_tokens=2147483647`"):
    policy.complete(
      [np.array([10])], 512, sampler.Sampling(2**31 - 1), jax.random.key(0)
    )
