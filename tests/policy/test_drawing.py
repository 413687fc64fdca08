"""What draws a token, against filters that sort and against frequencies."""

import dataclasses
import functools

import hypothesis
from hypothesis import strategies
import jax
from jax import numpy as jnp
import numpy as np
import pytest
from scipy import stats

from prm_jax import errors
from prm_jax.models import matmul
from prm_jax.policy import drawing

# --- The nucleus ------------------------------------------------------------


def oracle_nucleus(p, top_p):
  """Returns which entries of one distribution are in its nucleus, sorting."""
  order = np.argsort(-p, kind="stable")
  count = int(np.searchsorted(np.cumsum(p[order]), top_p)) + 1
  return p >= p[order[min(count, len(p)) - 1]]


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("top_p", [0.05, 0.3, 0.6, 0.9, 0.99])
def test_the_nucleus_is_the_one_found_by_sorting(top_p, platform, monkeypatch):
  monkeypatch.setattr(matmul, "platform", lambda: platform)
  random = np.random.default_rng(int(100 * top_p))
  p = np.concatenate(
    [random.dirichlet(np.full(40, a), 50) for a in (0.05, 0.5, 5.0)]
  )
  with np.errstate(divide="ignore"):
    log_p = np.log(p).astype(np.float32)
  found = np.asarray(drawing.nucleus(jnp.asarray(log_p), top_p))
  kept = np.isfinite(found)
  np.testing.assert_array_equal(
    kept, [oracle_nucleus(row, top_p) for row in np.exp(log_p)]
  )
  np.testing.assert_array_equal(found[kept], log_p[kept])


def test_three_halvings_at_a_time_lead_where_one_at_a_time_leads():
  random = np.random.default_rng(0)
  # Decisions that contradict each other, as rounding could make them, too.
  decisions = {
    halvings: jnp.asarray(random.random((2**halvings - 1, 500)) < 0.5)
    for halvings in (1, 2, 3)
  }
  low, high = (jnp.asarray(x, jnp.float32) for x in ([0.0] * 500, [0.7] * 500))
  for halvings, enough in decisions.items():
    edges = drawing._edges(low, high, halvings)
    found = drawing._descend(edges, list(enough))
    for n in range(500):
      a, b, left = np.float32(0), np.float32(0.7), list(enough[:, n])
      while left:
        half = len(left) // 2
        middle = (a + b) / np.float32(2)
        upper = left[half]
        a, b = (middle, b) if upper else (a, middle)
        left = left[half + 1 :] if upper else left[:half]
      assert (a, b) == tuple(float(x[n]) for x in found)


def test_the_nucleus_keeps_ties_and_never_nothing():
  log_p = jnp.log(jnp.asarray([[0.4, 0.2, 0.2, 0.2], [0.25] * 4]))
  kept = np.isfinite(drawing.nucleus(log_p, 0.5))
  np.testing.assert_array_equal(kept, [[1, 1, 1, 1], [1, 1, 1, 1]])
  kept = np.isfinite(drawing.nucleus(log_p, 1e-6))
  np.testing.assert_array_equal(kept, [[1, 0, 0, 0], [1, 1, 1, 1]])


# --- All filters ------------------------------------------------------------


def oracle(logits, sampling):
  """Returns the probabilities [V] that one token is drawn with, by sorting.

  In float64, from logits [V] that may be -inf.
  """
  logits = np.asarray(logits, np.float64)
  if sampling.temperature == 0:
    return np.eye(len(logits))[logits.argmax()]
  logits = logits / sampling.temperature
  kept = np.isfinite(logits)
  if sampling.top_k:
    smallest = np.sort(logits)[::-1][: sampling.top_k][-1]
    kept &= logits >= smallest
  p = _normal(np.where(kept, np.exp(logits - logits.max()), 0))
  if sampling.top_p < 1:
    p = _normal(np.where(oracle_nucleus(p, sampling.top_p), p, 0))
  return _normal(np.where(p >= sampling.min_p * p.max(), p, 0))


def _normal(p):
  return p / p.sum()


def _found(logits, sampling):
  """Returns the probabilities [rows, V] that draw uses."""
  logits = jnp.asarray(logits, jnp.float32) / (sampling.temperature or 1)
  log_probs = jax.nn.log_softmax(logits, axis=-1)
  kept = drawing.kept(logits, log_probs, sampling)
  return np.asarray(jax.nn.softmax(kept, axis=-1))


# Multiples of a half tie often and are exact in float32. A nucleus that ends
# within rounding of a token's edge has two right answers: top_p is none of the
# sums that such logits make.
LOGITS = strategies.sampled_from([1, 3, 10]).flatmap(
  lambda size: strategies.lists(
    strategies.one_of(
      strategies.integers(-6, 6).map(lambda x: x / 2),
      strategies.just(-np.inf),
    ),
    min_size=size,
    max_size=size,
  ).filter(lambda row: max(row) > -np.inf)
)
SAMPLINGS = strategies.builds(
  drawing.Sampling,
  max_tokens=strategies.just(1),
  temperature=strategies.sampled_from([0.5, 1.0, 2.0]),
  top_p=strategies.sampled_from([0.1234, 0.5678, 0.8765, 1.0]),
  top_k=strategies.sampled_from([0, 1, 2, 6, 14]),
  min_p=strategies.sampled_from([0.0, 0.0321, 0.321, 1.0]),
)


@hypothesis.settings(max_examples=50, deadline=None, derandomize=True)
@hypothesis.given(LOGITS, SAMPLINGS)
def test_the_filters_keep_what_sorting_keeps(logits, sampling):
  expected = oracle(logits, sampling)
  found = _found(logits, sampling)
  np.testing.assert_array_equal(found > 0, expected > 0)
  np.testing.assert_allclose(found, expected, atol=1e-6)


def test_each_filter_sees_what_the_one_before_it_left():
  p = np.array([0.4, 0.3, 0.2, 0.1])

  def kept(**filters):
    return (_found(np.log(p), drawing.Sampling(1, **filters)) > 0).sum()

  # Of the whole, 0.6 is two tokens; of 0.4 and 0.3 alone, 0.57 is one.
  assert kept(top_p=0.57) == 2
  assert kept(top_k=2, top_p=0.57) == 1
  # A share of the most likely one, at the temperature.
  assert (kept(min_p=0.3), kept(min_p=0.2)) == (3, 4)
  assert kept(min_p=0.3, temperature=2.0) == 4


@pytest.mark.parametrize("V", [5_119, 5_120, 9_000])
@pytest.mark.parametrize("top_k", [1, 5, 20, 21])
def test_top_k_of_blocks_is_that_of_a_whole_sort(V, top_k):
  random = np.random.default_rng(V + top_k)
  normal = random.normal(size=(4, V))
  # All different; many ties; all large ones in a block; nearly all excluded.
  rows = np.stack([normal[0], np.round(normal[1]), normal[2], normal[3]])
  rows[2, 300:400] += 10
  rows[3, random.random(V) < 0.999] = -np.inf
  rows = rows.astype(np.float32)
  kept = np.isfinite(drawing.most_likely(jnp.asarray(rows), top_k))
  last = np.sort(rows, axis=-1)[:, -top_k][:, None]
  np.testing.assert_array_equal(kept, (rows >= last) & (rows > -np.inf))


def test_top_k_keeps_ties_and_more_than_there_are_is_all():
  logits = jnp.asarray([[1.0, 3.0, 2.0, 2.0], [-jnp.inf, 0.0, -jnp.inf, 0.0]])
  for top_k, expected in (
    (1, [[0, 1, 0, 0], [0, 1, 0, 1]]),
    (2, [[0, 1, 1, 1], [0, 1, 0, 1]]),
    (3, [[0, 1, 1, 1], [0, 1, 0, 1]]),
    (9, [[1, 1, 1, 1], [0, 1, 0, 1]]),
  ):
    kept = np.isfinite(drawing.most_likely(logits, top_k))
    np.testing.assert_array_equal(kept, expected)


# --- Draws ------------------------------------------------------------------


@pytest.mark.parametrize(
  "sampling",
  [
    drawing.Sampling(1),
    drawing.Sampling(1, 0.7),
    drawing.Sampling(1, 1.5, top_k=9),
    drawing.Sampling(1, top_p=0.7),
    drawing.Sampling(1, 1.3, min_p=0.15),
    drawing.Sampling(1, 1.3, 0.8, top_k=12, min_p=0.1),
  ],
  ids=str,
)
def test_tokens_are_drawn_as_often_as_the_filtered_softmax_says(sampling):
  num, V = 20_000, 40
  logits = np.random.default_rng(1).normal(scale=1.5, size=V)
  logits[[3, 7]] = -np.inf
  logits[11] = logits[5]
  logits = logits.astype(np.float32)
  keys = jax.random.split(jax.random.key(2), (1, num))
  tokens, log_probs = jax.jit(drawing.draw, static_argnames="sampling")(
    jnp.broadcast_to(jnp.asarray(logits), (1, num, V)), keys, sampling=sampling
  )
  counts = np.bincount(tokens[0], minlength=V)
  p = oracle(logits, sampling)
  assert counts[p == 0].sum() == 0
  assert (p > 0).sum() > 4
  expected = num * p[p > 0]
  rare = expected < 5  # the test's condition
  observed = [*counts[p > 0][~rare], counts[p > 0][rare].sum()]
  expected = [*expected[~rare], expected[rare].sum()]
  if not rare.any():
    observed, expected = observed[:-1], expected[:-1]
  assert stats.chisquare(observed, expected).pvalue > 1e-3
  # Those of the whole distribution, at temperature 1.
  whole = np.log(oracle(logits, drawing.Sampling(1)) + 1e-300)
  np.testing.assert_allclose(log_probs[0], whole[tokens[0]], atol=1e-5)


@pytest.mark.parametrize("V", [1, 128, 129, 1_000])
def test_blocks_draw_what_one_sum_over_all_draws(V, monkeypatch):
  random = np.random.default_rng(V)
  p = random.dirichlet(np.full(V, 0.3), (4, 300)).astype(np.float32)
  p[random.random(p.shape) < 0.5] = 0
  p[..., -1] = np.where(p.sum(-1) == 0, 1, p[..., -1])
  uniform = random.random((4, 300)).astype(np.float32)
  uniform[:, 0], uniform[:, 1] = 0, np.nextafter(np.float32(1), np.float32(0))
  one_sum = np.asarray(
    drawing.inverse_cumulative(*map(jnp.asarray, (p, uniform)))
  )
  monkeypatch.setattr(drawing, "ONE_SUM", 0)
  found = np.asarray(
    drawing.inverse_cumulative(*map(jnp.asarray, (p, uniform)))
  )
  drawn = np.take_along_axis(p, found[..., None], -1)
  assert (drawn > 0).all()
  # Another order of summing rounds otherwise at a token's edge.
  mass = np.cumsum(p, axis=-1, dtype=np.float64)
  reach = uniform * mass[..., -1]
  edge = np.abs(mass - reach[..., None]).min(-1) < 1e-6
  assert ((found == one_sum) | edge).all()
  assert edge.mean() < 0.1


# One sum over 1,000 tokens, and the sums of 1,000 blocks.
@pytest.mark.parametrize("apart", [1, drawing.BLOCK])
def test_rounding_of_a_sum_draws_nothing_of_probability_zero(
  apart, monkeypatch
):
  # The j-th of the sums is more than the one before it, though it adds nothing.
  random = np.random.default_rng(0)
  p = random.random((20, 1_000)).astype(np.float32)
  p[random.random(p.shape) < 0.5] = 0
  p /= p.sum(-1, keepdims=True)
  sums = np.asarray(jnp.cumsum(jnp.asarray(p), axis=-1))
  rises = (p[:, 1:] == 0) & (sums[:, 1:] > sums[:, :-1])
  row, before = (
    x[:16] for x in np.nonzero(rises & (sums.max(-1) == 1)[:, None])
  )
  assert len(row) == 16
  wide = np.zeros((*p[row].shape, apart), np.float32)
  wide[..., 0] = p[row]
  wide = wide.reshape(len(row), 1, -1)
  uniform = jnp.asarray(sums[row, before][:, None])
  monkeypatch.setattr(drawing, "ONE_SUM", 1_000)
  found = np.asarray(drawing.inverse_cumulative(jnp.asarray(wide), uniform))
  assert (np.take_along_axis(wide, found[..., None], -1) > 0).all()


def test_tempered_log_probabilities_ignore_the_filters():
  logits = jnp.asarray(np.random.default_rng(0).normal(size=(1, 5, 9)))
  keys = jax.random.split(jax.random.key(0), (1, 5))
  sampling = drawing.Sampling(1, 0.5, 0.5, True, top_k=3, min_p=0.2)
  tokens, log_probs = drawing.draw(logits, keys, sampling)
  expected = jax.nn.log_softmax(logits / 0.5, axis=-1)
  expected = jnp.take_along_axis(expected, tokens[..., None], -1)[..., 0]
  np.testing.assert_array_equal(log_probs, expected)


def test_a_filter_that_keeps_all_changes_no_draw():
  logits = jnp.asarray(np.random.default_rng(0).normal(size=(1, 200, 9)))
  keys = jax.random.split(jax.random.key(0), (1, 200))
  plain = drawing.draw(logits, keys, drawing.Sampling(1))
  all_of_9 = drawing.draw(logits, keys, drawing.Sampling(1, top_k=9))
  for a, b in zip(plain, all_of_9, strict=True):
    np.testing.assert_array_equal(a, b)


# --- How to sample, as data -------------------------------------------------

of = functools.partial(drawing.sampling_of, max_tokens=5)


def test_what_is_asked_comes_before_the_checkpoints_and_that_before_ours():
  assert of({}) == drawing.Sampling(5)
  theirs = dict(temperature=0.7, top_p=0.8, top_k=20, min_p=0.1)
  assert of(theirs) == drawing.Sampling(5, **theirs)
  assert of(dict(top_k=20)) == drawing.Sampling(5, top_k=20)
  assert of(theirs, top_k=0, temperature=0.0) == drawing.Sampling(
    5, 0.0, top_p=0.8, top_k=0, min_p=0.1
  )
  assert isinstance(of(dict(top_k=20.0)).top_k, int)
  with pytest.raises(errors.InputError, match="give a whole number"):
    of(dict(top_k=2.5))
  with pytest.raises(errors.InputError, match="has typical_p, which"):
    of(theirs | dict(typical_p=0.9))


def test_a_record_has_no_unset_filter_so_older_journals_stay_valid():
  plain = drawing.Sampling(5, 0.7, 0.9)
  assert plain.record() == dict(
    max_tokens=5, temperature=0.7, top_p=0.9, tempered=False
  )
  more = dataclasses.replace(plain, top_k=3, min_p=0.1)
  assert more.record() == plain.record() | dict(top_k=3, min_p=0.1)


@pytest.mark.parametrize("vocabulary", [7, 384, 1000])
def test_the_most_likely_token_is_the_first_maximum_with_its_probability(
  vocabulary,
):
  # Few values: the maximum comes several times.
  values = np.random.default_rng(0).integers(0, 9, (5, 2, vocabulary))
  logits = jnp.asarray(values, jnp.float32)
  tokens, log_probs = drawing.most_likely_token(logits)
  np.testing.assert_array_equal(tokens, values.argmax(-1))
  wanted = jax.nn.log_softmax(logits, axis=-1).max(-1)
  np.testing.assert_allclose(log_probs, wanted, rtol=1e-6)
  certain = jnp.full(vocabulary, -jnp.inf).at[-1].set(2.0)
  token, log_prob = jax.jit(drawing.most_likely_token)(certain)
  assert token == vocabulary - 1
  assert str(float(log_prob)) == "0.0"
