"""The engine against the sampler of whole batches, and what it shares."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
import test_sampler

from prm_jax import errors
from prm_jax.policy import codecs
from prm_jax.policy import engine_programs
from prm_jax.policy import rollout_engine
from prm_jax.policy import sampler
from prm_jax.text import own_form

CONFIGS, GREEDY, WARM = (
  test_sampler.CONFIGS,
  test_sampler.GREEDY,
  test_sampler.WARM,
)
KEY = jax.random.key(3)
LONG = [10, *[1, 4, 7] * 9, 12]
# Some begin others, as the steps of a solution do.
PROMPTS = [*test_sampler.PROMPTS, LONG, LONG[:5], LONG[:20], [10, 2], [10]]


def _engine(config=test_sampler.PLAIN, tokenizer=None, scale=0.4, **options):
  # One size, which is compiled once, where a test is of no other.
  sizes = dict(slots=16, chunk=4)
  return rollout_engine.Engine(
    config,
    test_sampler._params(config, scale),
    tokenizer or test_sampler.Digits(),
    **sizes | options,
  )


def _requests(prompts=PROMPTS, num_samples=3, **options):
  return [
    rollout_engine.Request(f"r{i}", prompt, num_samples, **options)
    for i, prompt in enumerate(prompts)
  ]


def _same(found, expected):
  for a, b in zip(found, expected, strict=True):
    test_sampler._same(a, b)


# --- Against the sampler of whole batches -----------------------------------


class NeverEnds(test_sampler.Digits):
  """Digits whose eos is an id that no model draws."""

  eos = 99


def _by_batches(config, requests, sampling, ends=(test_sampler.Digits.eos,)):
  """Returns what the static sampler draws with each request's own random numbers."""
  prompts = [np.asarray(r.prompt, np.int32) for r in requests]
  out = []
  for r, prompt in zip(requests, prompts, strict=True):
    key = KEY
    for word in rollout_engine._rng_words(r.id):
      key = jax.random.fold_in(key, word)
    keys = jax.vmap(functools.partial(jax.random.fold_in, key))(
      np.arange(r.num_samples)
    )[None]
    tokens = np.zeros((1, 32), np.int32)
    tokens[0, : len(prompt)] = prompt
    found = sampler.decode(
      test_sampler._params(config),
      tokens,
      np.asarray([len(prompt)], np.int32),
      keys,
      config=config,
      sampling=sampling,
      ends=ends,
    )
    policy = test_sampler._sampler(config)
    out.append(policy._completions(*(np.asarray(x[0]) for x in found)))
  return out


# The plain model's are in the next test.
@pytest.mark.parametrize("name", ["every_option", "as_gemma"])
def test_completions_are_those_of_the_sampler_of_whole_batches(name):
  config = CONFIGS[name]
  sampling = dataclasses.replace(WARM, temperature=1.3, top_p=0.9)
  requests = _requests()
  found, _ = _engine(config, slots=8, chunk=5).complete(requests, sampling, KEY)
  _same(found, _by_batches(config, requests, sampling))


@pytest.mark.parametrize("reserve", [False, True])
def test_completions_of_many_pages_are_those_of_whole_batches(reserve):
  """Their lengths differ, and there are more pages than slots.

  With pages for every slot's whole budget no more are ever made.
  """
  sampling = dataclasses.replace(WARM, max_tokens=60)
  requests = [
    dataclasses.replace(r, max_tokens=n)
    for r, n in zip(_requests(num_samples=1), (60, 5, 17, 50, 33), strict=False)
  ]
  engine = _engine(test_sampler.PLAIN, NeverEnds(), slots=4, chunk=4)
  engine = dataclasses.replace(engine, reserve=reserve)
  run = rollout_engine._Run(
    engine,
    rollout_engine.shared_prompts(requests, sampling.max_tokens),
    sampling,
    KEY,
  )
  found, most, first = {}, 0, len(run.pages.owner)
  while len(found) < len(requests):
    for request, _, completion in run.advance():
      found[request] = completion
    most = max(most, int((run.pages.owner >= 0).sum()))
  assert most > engine.slots
  assert (run.pages.owner < 0).all()
  assert (len(run.pages.owner) == first) == reserve
  expected = _by_batches(
    test_sampler.PLAIN, requests, sampling, (NeverEnds.eos,)
  )
  for number, r in enumerate(requests):
    whole = expected[number][0]
    np.testing.assert_array_equal(
      found[number].tokens, whole.tokens[: r.max_tokens]
    )
    np.testing.assert_allclose(
      found[number].log_probs, whole.log_probs[: r.max_tokens], atol=1e-4
    )


def test_bfloat16_caches_agree_with_the_batches_log_probabilities():
  config = dataclasses.replace(
    CONFIGS["every_option"], compute_dtype="bfloat16"
  )
  requests = _requests(num_samples=1)
  found, _ = _engine(config).complete(requests, GREEDY, KEY)
  for row, expected in zip(
    found, _by_batches(config, requests, GREEDY), strict=True
  ):
    assert row[0].log_probs.dtype == np.float32
    np.testing.assert_allclose(
      row[0].log_probs[0], expected[0].log_probs[0], atol=0.1
    )


# --- What a completion depends on -------------------------------------------


@pytest.fixture(scope="module")
def completions():
  return _engine(slots=16, chunk=4).complete(_requests(), WARM, KEY)[0]


@pytest.mark.parametrize(("slots", "chunk"), [(1, 1), (5, 7), (64, 3)], ids=str)
def test_the_same_text_at_any_number_of_slots(completions, slots, chunk):
  found, work = _engine(slots=slots, chunk=chunk).complete(
    _requests(), WARM, KEY
  )
  _same(found, completions)
  assert work.decoded == sum(len(c.tokens) for row in found for c in row)


@pytest.mark.parametrize("num_samples", [1, 3])
def test_a_call_has_no_more_slots_than_the_next_power_of_two(num_samples):
  requests = _requests(PROMPTS[:3], num_samples)
  queue = rollout_engine.shared_prompts(requests, WARM.max_tokens)
  for most, expected in ((2, 2), (64, 4 if num_samples == 1 else 16)):
    run = rollout_engine._Run(_engine(slots=most), queue, WARM, KEY)
    assert run.slots.token.size == expected


def test_slots_become_fewer_as_completions_end_and_no_text_changes(
  monkeypatch,
):
  config = dataclasses.replace(test_sampler.PLAIN, compute_dtype="bfloat16")
  budgets = [40, 5, 17, 8, 3, 38, 7, 6]
  prompts = [[10, i, *[3] * (i % 5), 12] for i in range(len(budgets))]
  requests = [
    dataclasses.replace(r, max_tokens=n)
    for r, n in zip(_requests(prompts, 1), budgets, strict=True)
  ]
  sampling = dataclasses.replace(WARM, max_tokens=40)
  engine = _engine(config, NeverEnds(), slots=8, chunk=4)
  whole, before = engine.complete(requests, sampling, KEY)
  monkeypatch.setattr(rollout_engine._Run, "SHRINKS_FROM", 0)
  monkeypatch.setattr(rollout_engine._Run, "FEWEST_ROWS", 2)
  found, after = engine.complete(requests, sampling, KEY)
  assert after.decoded == before.decoded == sum(budgets)
  assert after.slot_steps < 0.7 * before.slot_steps
  for a, b in zip(found, whole, strict=True):
    np.testing.assert_array_equal(a[0].tokens, b[0].tokens)
    np.testing.assert_allclose(a[0].log_probs, b[0].log_probs, atol=0.03)


def test_a_prefill_takes_later_prompts_that_fit_where_the_next_one_does_not():
  prompts = [[10, i, *[3] * n, 12] for i, n in enumerate((90, 90, 150, 150))]
  requests = _requests(prompts, 1)
  queue = rollout_engine.shared_prompts(requests, 4)
  run = rollout_engine._Run(_engine(slots=4), queue, WARM, KEY)
  lengths = []
  original = engine_programs.prefill

  def prefill(params, caches, tokens, *args, **options):
    lengths.append(int((tokens != 0).sum()))
    return original(params, caches, tokens, *args, **options)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(engine_programs, "prefill", prefill)
    run.advance()
  assert len(lengths) == 2


def test_progress_tells_that_programs_are_compiled_and_then_of_tokens():
  told = []
  _, work = _engine(scale=0.0, chunk=4).complete(
    _requests(num_samples=2),
    sampler.Sampling(max_tokens=12, temperature=0.0),
    KEY,
    lambda *now: told.append(now),
  )
  tokens = [num for _, num in told]
  assert told[0][0] == 0 < tokens[0]
  assert tokens == sorted(tokens)
  assert told[-1] == (work.completions, work.decoded)


def test_order_and_batch_mates_change_nothing(completions):
  requests = _requests()
  found, _ = _engine().complete(requests[::-1], WARM, KEY)
  _same(found[::-1], completions)
  alone, _ = _engine().complete(requests[4:5], WARM, KEY)
  _same(alone, completions[4:5])


def test_further_samples_change_no_sample(completions):
  found, _ = _engine().complete(_requests(num_samples=7), WARM, KEY)
  _same([row[:3] for row in found], completions)


def test_another_id_or_key_draws_other_tokens(completions):
  renamed = [
    dataclasses.replace(r, id=r.id + "#2") for r in _requests(PROMPTS[:3])
  ]
  others = [
    _engine().complete(renamed, WARM, KEY)[0],
    _engine().complete(_requests(PROMPTS[:3]), WARM, jax.random.key(4))[0],
  ]
  for other in others:
    for a, b in zip(other, completions[:3], strict=True):
      assert [c.tokens.tolist() for c in a] != [c.tokens.tolist() for c in b]


def test_a_requests_own_budget_cuts_it_alone(completions):
  requests = _requests()
  requests[1] = dataclasses.replace(requests[1], max_tokens=2)
  found, _ = _engine().complete(requests, WARM, KEY)
  for a, b in zip(found[1], completions[1], strict=True):
    assert a.tokens.tolist() == b.tokens[:2].tolist()
    assert a.stopped == ("end" if a.tokens[-1] == 11 else "length")
  _same(found[:1] + found[2:], completions[:1] + completions[2:])


# --- How a completion ends --------------------------------------------------


def test_a_step_end_stops_where_it_is_asked_for(completions):
  found, _ = _engine(stop_at_step=True).complete(_requests(), WARM, KEY)
  stops = set()
  for row, whole in zip(found, completions, strict=True):
    for a, b in zip(row, whole, strict=True):
      n = len(a.tokens)
      assert a.tokens.tolist() == b.tokens[:n].tolist()
      separators = np.flatnonzero(b.tokens == 12)
      if separators.size:
        assert (a.stopped, n) == ("step", separators[0] + 1)
      else:
        assert (a.stopped, n) == (b.stopped, len(b.tokens))
      stops.add(a.stopped)
  assert stops == {"step", "end", "length"}


def test_a_policy_that_never_ends_stops_at_its_budget():
  rows, work = _engine(scale=0.0).complete(_requests(), GREEDY, KEY)
  for row in rows:
    for c in row:
      assert c.tokens.tolist() == [0] * 12 and c.stopped == "length"
  assert work.decoded == 12 * 3 * len(PROMPTS)


def test_nothing_asked_is_nothing_answered():
  assert _engine().complete([], WARM, KEY) == ([], rollout_engine.Work())
  found, work = _engine().complete(_requests(num_samples=0), WARM, KEY)
  assert found == [[] for _ in PROMPTS] and work == rollout_engine.Work()


# --- What is shared ---------------------------------------------------------


def test_one_prefill_of_a_solution_serves_all_its_prefixes():
  prefixes = [LONG[:n] for n in range(2, len(LONG) + 1)]
  found, work = _engine(slots=4).complete(_requests(prefixes, 2), WARM, KEY)
  assert work.prefilled == len(LONG) - 1
  alone = [
    _engine().complete([request], WARM, KEY)[0][0]
    for request in _requests(prefixes, 2)[::9]
  ]
  _same(found[::9], alone)


def test_a_prompt_that_begins_two_others_is_prefilled_with_one_of_them():
  a, b = [10, 1, 2, 3, 4], [10, 1, 2, 9, 9, 9]
  requests = _requests([a, [10, 1, 2], b, b], 1)
  (first, second) = rollout_engine.shared_prompts(requests, 9)
  assert first.tokens.tolist() == b and second.tokens.tolist() == a
  for prompt, branches in (
    (first, [(3, 6), (2, 6)]),
    (second, [(0, 5), (1, 3)]),
  ):
    assert [(b.request, b.length) for b, _ in prompt.pending] == branches


def test_two_programs_serve_all_calls_of_one_shape():
  """A run is many chunks and several prefills, and compiles each once."""
  engine = _engine(slots=8, chunk=3)
  prompts = [[10, i % 10, *[3] * (4 + i % 9), 12] for i in range(90)]
  engine.complete(_requests(prompts, 2), WARM, KEY)
  before = (
    engine_programs.prefill._cache_size(),
    engine_programs.decode_chunk._cache_size(),
  )
  # Other prompts, each about as long and of as many samples.
  other = [[10, *[i % 7] * 3, i % 10, *[5] * (i % 9), 12] for i in range(70)]
  engine.complete(_requests(other, 3), WARM, jax.random.key(5))
  assert before == (
    engine_programs.prefill._cache_size(),
    engine_programs.decode_chunk._cache_size(),
  )


def test_full_tails_need_no_other_program_where_the_device_is_chosen():
  engine = _engine(slots=4, reserve=True)
  on = jax.device_put(engine.params, jax.devices()[0])
  engine = dataclasses.replace(engine, params=on)
  # Of a budget that no other test has, and of more than a page.
  sampling = dataclasses.replace(WARM, max_tokens=37)
  before = engine_programs.decode_chunk._cache_size()
  found, _ = engine.complete(_requests(), sampling, KEY)
  assert max(len(x.tokens) for row in found for x in row) > 16
  assert engine_programs.decode_chunk._cache_size() == before + 1


def test_memory_is_of_slots_whatever_is_asked():
  engine = _engine(slots=4, prompt_tokens=16, reserve=True)
  sampling = sampler.Sampling(8, temperature=1.0)

  def held(requests):
    queue = rollout_engine.shared_prompts(requests, sampling.max_tokens)
    run = rollout_engine._Run(engine, queue, sampling, jax.random.key(0))
    return sum(x.nbytes for x in jax.tree.leaves((run.caches, run.slots)))

  prompts = [[10, a, b] for a in range(8) for b in range(8)]
  few = held(_requests(prompts[:4], num_samples=4))
  assert held(_requests(prompts, num_samples=4)) == few
  assert held(_requests(prompts[:4], num_samples=256)) <= few


def test_slots_stay_in_use_while_there_is_work():
  random = np.random.default_rng(0)
  lengths = np.clip(random.lognormal(3.0, 0.47, 400), 2, 90).astype(int)
  requests = [
    rollout_engine.Request(f"r{i}", [10, i % 10, 12], 1, int(n))
    for i, n in enumerate(lengths)
  ]
  budget = sampler.Sampling(max_tokens=90, temperature=0.0)
  _, work = _engine(scale=0.0, slots=16, chunk=2).complete(
    requests, budget, KEY
  )
  assert work.decoded == lengths.sum()
  assert work.slot_use > 0.85
  at_once = [lengths[i : i + 16] for i in range(0, 400, 16)]
  static = lengths.sum() / sum(16 * batch.max() for batch in at_once)
  assert work.slot_use > 1.5 * static


@pytest.mark.parametrize("num_samples", [2, 8])
def test_what_fits_into_the_slots_begins_at_once_and_is_computed_once(
  num_samples,
):
  """As the children of a search's nodes do, which are few and of one length."""
  budget = sampler.Sampling(max_tokens=12, temperature=0.0)
  prompts = [[10, n, *[3] * n, 12] for n in range(16 // num_samples)]
  requests = _requests(prompts, num_samples)
  _, work = _engine(scale=0.0, slots=16, chunk=4).complete(
    requests, budget, KEY
  )
  assert work.slot_use == 1
  assert work.prefilled == sum(len(prompt) - 1 for prompt in prompts)


def test_groups_fit_into_the_slots_and_hold_what_begins_at_once():
  random = np.random.default_rng(0)
  for _ in range(300):
    samples = random.integers(1, 20, random.integers(1, 30)).tolist()
    num = int(random.integers(1, 100))
    size, buffers = rollout_engine.grouping(samples, num)
    assert 1 <= size <= num and buffers <= 2
    groups = sum(-(-n // size) for n in samples)
    assert buffers == 2 or size == 1 or groups <= num // size


def test_idle_slots_share_the_work_of_one_prompt():
  budget = sampler.Sampling(max_tokens=40, temperature=0.0)
  request = rollout_engine.Request("a", PROMPTS[0], 64)
  engine = _engine(scale=0.0, slots=64, chunk=4)
  (row,), work = engine.complete([request], budget, KEY)
  assert [len(c.tokens) for c in row] == [40] * 64
  assert work.slot_steps == 64 * 40


# --- Solutions --------------------------------------------------------------


def test_generate_gives_whole_solutions_that_tell_of_their_new_tokens():
  prefixes = [test_sampler._prefix(k) for k in (0, 1, 3)]
  rows, work = _engine().generate(prefixes, 2, WARM, KEY)
  codec = codecs.SeparatorCodec(test_sampler.Digits())
  prompts = [codec.prompt(prefix).tokens for prefix in prefixes]
  requests = [
    rollout_engine.Request(p.id, prompt, 2)
    for p, prompt in zip(prefixes, prompts, strict=True)
  ]
  expected, _ = _engine().complete(requests, WARM, KEY)
  for prefix, row, found in zip(prefixes, rows, expected, strict=True):
    for solution, c in zip(row, found, strict=True):
      steps = own_form.split_steps(c.tokens, test_sampler.Digits())
      assert solution.steps == (*prefix.steps, *steps)
      assert solution.extra["num_tokens"] == len(c.tokens)
      assert solution.extra["stopped"] == c.stopped
  assert work.completions == 6


def test_a_prompt_that_is_empty_is_refused():
  with pytest.raises(errors.InputError, match="r0: an empty prompt"):
    _engine().complete(_requests([[]]), WARM, KEY)


def test_ids_that_come_twice_are_refused():
  request = _requests()[0]
  with pytest.raises(errors.InputError, match=r"r0.*twice"):
    _engine().complete([request, request], WARM, KEY)
