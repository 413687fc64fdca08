"""Whatever the requests and the room, every token sees its path and no other.

A fake device stands for the compiled program: it keeps ids in the pages instead
of keys and values, and its score of a token is a digest of the ids it sees.
"""

import dataclasses
import random

import numpy as np
import pytest

from prm_jax import schema
from prm_jax.models import model_config as model_config
from prm_jax.scoring import cached_scorer
from prm_jax.scoring import prefix_programs
from prm_jax.scoring import prefix_rows
from prm_jax.scoring import scorer as scorer_lib
from prm_jax.text import encoding
from prm_jax.text import tokenizer as tokenizer_lib


def _digest(ids):
  return hash(tuple(ids)) % 1_000_003 / 1_000_003


class Device:
  """Stands for prefix_programs; it checks every row that it is given."""

  def __init__(self):
    self.calls = 0
    self.shapes = set()

  def empty_pages(self, config, *, pages, page_tokens):
    del config
    return np.full((pages, page_tokens), -1)

  def extend(self, params, pages, rows, *, config, program):
    del params, config, program
    self.calls += 1
    self.shapes.add((*rows.tokens.shape, rows.pages.shape[1]))
    scores = np.zeros((2, *rows.tokens.shape))
    real = rows.places < pages.size
    assert len({*rows.places[real].tolist()}) == real.sum()
    for b, t in zip(*np.nonzero(real)):
      seen = {}
      for j, page in enumerate(rows.pages[b]):
        for slot in range(rows.seen[b, t, j]):
          seen.setdefault(rows.first[b, j] + slot, []).append(pages[page, slot])
      for u in range(t + 1):
        if t < rows.visible_until[b, u]:
          seen.setdefault(rows.positions[b, u], []).append(rows.tokens[b, u])
      path = [seen.pop(i) for i in range(rows.positions[b, t] + 1)]
      assert not seen and all(len(x) == 1 and x[0] >= 0 for x in path)
      scores[:, b, t] = _digest(int(x) for (x,) in path)
    return rows.tokens, scores

  def put(self, pages, new, places):
    pages = pages.copy()
    real = places < pages.size
    pages.reshape(-1)[places[real]] = new[real]
    return pages


class Letters(scorer_lib.Scorer):
  """Stands for a Scorer: an id for each letter, and one after each step.

  With `merges` that id is another one if a further step follows.
  """

  merges = False

  def __init__(self):
    model = model_config.ModelConfig(300, 16, 1, 2, 1, 8, 16)
    super().__init__(
      *("prm", model, None, tokenizer_lib.Bytes()), encoding.EncodingConfig()
    )

  def encode(self, solution):
    ids, ends = [0, *map(ord, solution.problem)], []
    for step in solution.steps:
      ids += [*map(ord, step), 1]
      ends.append(len(ids) - 1)
    if self.merges:
      for end in ends[:-1]:
        ids[end] = 2
    return encoding.EncodedSolution(
      np.asarray(ids, np.int32), np.asarray(ends, np.int32), 1
    )

  def step_scores(self, solution, row):
    return schema.StepScores(
      tuple(map(float, row[0])), logits=tuple(map(float, row[1]))
    )

  def score(self, solutions):
    rows = []
    for solution in solutions:
      encoded = self.encode(solution)
      ids = encoded.tokens.tolist()
      row = [_digest(ids[: end + 1]) for end in encoded.step_end]
      rows.append(self.step_scores(solution, [row, row]))
    return rows

  def score_encoded(self, solutions, encoded, progress=None, groups=None):
    assert len(set(groups)) == len(solutions)  # none shares with another
    return self.score(solutions)


class Merging(Letters):
  merges = True


@pytest.fixture
def device(monkeypatch):
  fake = Device()
  for name in ("empty_pages", "extend", "put"):
    monkeypatch.setattr(prefix_programs, name, getattr(fake, name))
  return fake


def _ids(scorer, solution):
  encoded = scorer.encode(solution)
  return encoded.tokens[: [-1, *encoded.step_end][-1] + 1].tolist()


def _batches(order):
  """Yields some calls' solutions: begun, grown, shortened and repeated ones."""
  problem = ["p" * order.choice([1, 3, 20]), "q", "pq"]
  known = [schema.Solution("x", x, ()) for x in problem]
  for _ in range(order.randrange(1, 6)):
    batch = []
    for _ in range(order.randrange(1, order.choice([3, 12]))):
      solution = order.choice(known + batch)
      if order.random() < 0.7:
        text = "".join(order.choices("ab", k=order.choice([0, 1, 2, 5, 30])))
        steps = (*solution.steps, text)
        solution = dataclasses.replace(solution, steps=steps)
      elif solution.steps:
        solution = schema.first_steps(solution, len(solution.steps) - 1)
      batch.append(solution)
    known += batch
    yield batch


def test_every_token_sees_its_path_and_counts_add_up(device, monkeypatch):
  whole, full, few = 0, 0, 0
  for seed in range(150):
    order = random.Random(seed)
    monkeypatch.setattr(
      prefix_rows, "SQUARE", order.choice([64, 2_000, 1 << 22])
    )
    scorer = order.choice([Letters, Merging])()
    S, pages = (
      order.choice([1, 2, 3, 7, 16]),
      order.choice([1, 2, 3, 8, 20, 99]),
    )
    row_tokens = order.choice([1, 2, 4, 16, 64])
    most_tokens = order.choice([0, 0, 5, 30])
    owners = order.choice([[""], ["", "a"]])
    cached = cached_scorer.CachedScorer(
      scorer,
      cache_tokens=pages * S,
      page_tokens=S,
      row_tokens=row_tokens,
      most_tokens=most_tokens,
    )
    device.shapes = set()
    prefixes = set()
    for batch in _batches(order):
      before, evicted = cached.work, cached._cache.evicted
      of = [order.choice(owners) for _ in batch]
      found = cached.score_encoded(batch, list(map(scorer.encode, batch)), of)
      expected = scorer.score(batch)
      for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.scores.scores, other.scores, atol=1e-6)
      work = cached.work - before
      assert sum(one.reused for one in found) == work.reused
      ids = [_ids(scorer, x) for x in batch]
      assert work.tokens == work.computed + work.reused
      assert work.tokens == sum(map(len, ids)) or most_tokens
      assert min(dataclasses.astuple(work)) >= 0
      assert work.changed <= work.computed
      assert scorer.merges or not work.changed
      assert work.evicted == cached._cache.evicted - evicted
      full += bool(work.evicted)
      assert cached._num_ids == sum(map(len, cached._ids.values()))
      assert cached._num_ids <= cached.cache_tokens
      if most_tokens:
        assert all(
          one.reused == 0
          for one, x in zip(found, ids, strict=True)
          if len(x) > S * cached.shapes.most_pages
        )
        continue  # what is read without the cache depends on how it is filled
      fit = [i for i, x in enumerate(ids) if len(x) <= pages * S]
      new = {
        (of[i], *ids[i][:n]) for i in fit for n in range(1, len(ids[i]) + 1)
      } - prefixes
      prefixes |= new
      whole += len(ids) - len(fit)
      if not cached._cache.evicted:
        longer = sum(map(len, ids)) - sum(len(ids[i]) for i in fit)
        assert work.computed == len(new) + longer
    if most_tokens:
      assert device.shapes <= set(cached.shapes.all())
      few += bool(device.shapes)
    else:
      assert all(T <= 64 or T == 32 for _, T, _ in device.shapes)
  assert whole > 20 and full > 50 and few > 20


def test_a_path_that_others_leave_at_every_token_is_read_whole(device):
  """Each takes a page of it, after the call has begun."""
  scorer = Letters()
  stem = "".join(random.Random(0).choices("bcdefgh", k=60))
  solutions = [
    schema.Solution("x", "p", (stem[:i] + "a" + "z" * 9,)) for i in range(60)
  ]
  cached = cached_scorer.CachedScorer(
    *(scorer,), page_tokens=4, row_tokens=16, most_tokens=72
  )
  for _ in range(2):
    encoded = list(map(scorer.encode, solutions))
    found = cached.score_encoded(solutions, encoded, [""] * 60)
    for one, other in zip(found, scorer.score(solutions), strict=True):
      np.testing.assert_allclose(one.scores.scores, other.scores, atol=1e-6)
  assert device.shapes <= set(cached.shapes.all())
  work = cached.work
  assert work.tokens == work.computed + work.reused
  assert work.reused > 0


def test_nothing_that_a_call_needs_is_computed_twice_however_large_it_is(
  device,
):
  scorer = Letters()
  cached = cached_scorer.CachedScorer(
    scorer, cache_tokens=64, page_tokens=4, row_tokens=4
  )
  solutions = [schema.Solution("x", p, ("a" * 25,)) for p in "pqrstu"]
  cached.score([x for x in solutions for _ in range(2)])
  tokens = sum(len(_ids(scorer, x)) for x in solutions)
  assert cached.work.computed == tokens - 5  # the first id is the same
  assert cached.work.tokens == 2 * tokens
  assert device.calls > 6


def test_a_solution_as_long_as_the_cache_is_kept(device):
  scorer = Letters()
  cached = cached_scorer.CachedScorer(scorer, cache_tokens=64, page_tokens=4)
  cached.score([schema.Solution("x", "p", ("a",))])
  long = schema.Solution("x", "q", ("b" * 61,))
  assert len(_ids(scorer, long)) == 64
  cached.score([long])
  before = cached.work
  cached.score([long])
  assert (cached.work - before).computed == 0


def test_a_row_is_cut_where_its_attention_would_be_large(device, monkeypatch):
  monkeypatch.setattr(prefix_rows, "SQUARE", 10_000)
  cached = cached_scorer.CachedScorer(Letters(), cache_tokens=4096)
  cached.score([schema.Solution("x", "p", ("a" * 900,))])
  assert max(B * T * (T + NP * 16) for B, T, NP in device.shapes) < 60_000
  assert cached.work.calls > 900 // 64
  assert {T for _, T, _ in device.shapes} == {32, 64}


def test_siblings_are_one_row_and_strangers_are_rows_of_one_batch(device):
  cached = cached_scorer.CachedScorer(Letters(), page_tokens=4)
  parents = [schema.Solution("x", c * 40, ("a" * 40,)) for c in "pqrs"]
  cached.score(parents)
  grown = [
    dataclasses.replace(x, steps=(*x.steps, c * 5))
    for x in parents
    for c in "abc"
  ]
  before, device.shapes = device.calls, set()
  cached.score(grown)
  assert device.calls - before == cached.work.calls - before == 1
  assert {shape[:2] for shape in device.shapes} == {(4, 32)}


def test_a_failed_call_counts_nothing(device, monkeypatch):
  cached = cached_scorer.CachedScorer(Letters(), page_tokens=4, row_tokens=4)
  cached.score([schema.Solution("x", "p", ("a",))])
  before = cached.work
  calls = iter(range(9))

  def interrupted(*args, **how):
    if next(calls) == 2:
      raise KeyboardInterrupt
    return device.extend(*args, **how)

  with monkeypatch.context() as patch:
    patch.setattr(prefix_programs, "extend", interrupted)
    with pytest.raises(KeyboardInterrupt):
      cached.score([schema.Solution("x", "q", ("a" * 30,))])
  assert cached.work == before
  (scores,) = cached.score([schema.Solution("x", "q", ("a" * 30,))])
  assert scores.scores == pytest.approx(
    Letters().score([schema.Solution("x", "q", ("a" * 30,))])[0].scores
  )


def test_changes_are_counted_against_earlier_calls_alone(device):
  scorer = Merging()
  one, two = (
    schema.Solution("x", "p", steps) for steps in (("a",), ("a", "b"))
  )
  for batch in ([one, two], [two, one]):
    cached = cached_scorer.CachedScorer(scorer, page_tokens=4)
    cached.score(batch)
    assert cached.work.changed == 0
  cached = cached_scorer.CachedScorer(scorer, cache_tokens=4, page_tokens=4)
  cached.score([one])
  cached.score([two])  # longer than the cache
  assert cached.work.changed == 1


def test_a_change_is_one_against_the_longest_part_that_is_remembered(device):
  one, two, three, other = (
    schema.Solution("x", problem, tuple(steps))
    for problem, steps in (("p", "a"), ("p", "ab"), ("p", "abc"), ("q", "dd"))
  )
  cached = cached_scorer.CachedScorer(Merging(), cache_tokens=16, page_tokens=4)
  cached.score([one])
  cached.score([two])
  cached.score([three])
  assert cached.work.changed == 2
  cached = cached_scorer.CachedScorer(Merging(), cache_tokens=12, page_tokens=4)
  cached.score([one])
  cached.score([other])
  cached.score([two])  # one is used, so that other is forgotten first
  assert [steps for _, _, steps in cached._ids] == [("a",), ("a", "b")]
