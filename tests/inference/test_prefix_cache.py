"""Pages hold what was added last and used last, whatever the order."""

import random

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from prm_jax.inference import prefix_cache


def _ids(path):
  return [x for page, count in path for x in page.tokens[:count]]


def _add(cache, ids):
  """Adds what is missing of some ids; returns how many were there."""
  path = cache.match(ids)
  there = sum(count for _, count in path)
  assert _ids(path) == ids[:there]
  cache.pin(path)
  new = ids[there:]
  needed = cache.pages_needed(path, len(new))
  if needed > cache.available:
    cache.commit()
    return None
  before = cache.num_used + cache.evicted
  places = cache.add(path, new)
  assert [page.tokens[slot] for page, slot in places] == new
  assert [page.position + slot for page, slot in places] == [
    *range(there, len(ids))
  ]
  assert cache.num_used + cache.evicted - before <= needed + cache.num_pages
  assert _ids(cache.match(ids)) == ids
  cache.commit()
  return there


IDS = st.lists(st.integers(0, 2), min_size=1, max_size=12)


@given(st.lists(IDS, max_size=20), st.integers(1, 4))
def test_a_cache_with_room_has_every_prefix_of_what_was_added(lists, S):
  cache = prefix_cache.PrefixCache(500, S)
  prefixes = {()}
  for ids in lists:
    longest = max(n for n in range(len(ids) + 1) if tuple(ids[:n]) in prefixes)
    assert _add(cache, ids) == longest
    prefixes |= {tuple(ids[:n]) for n in range(len(ids) + 1)}
  tokens = sum(len(page.tokens) for page in cache._used)
  assert tokens == len(prefixes) - 1
  assert not cache.evicted


@settings(max_examples=50)
@given(st.lists(IDS, max_size=40), st.integers(1, 4), st.integers(1, 6))
def test_a_full_cache_keeps_what_it_says_and_no_more_pages(lists, S, pages):
  cache = prefix_cache.PrefixCache(pages, S)
  for ids in lists:
    added = _add(cache, ids) is not None
    assert cache.num_used <= pages
    assert not cache._pinned
    # Alone, with no path that branches in its pages, it always fits.
    assert added or -(-len(ids) // S) > pages or cache.match(ids)
    numbers = [page.number for page in cache._used] + cache._free
    assert sorted(numbers) == list(range(pages))
    for page in cache._used:
      assert page.parent is cache._root or page.parent in cache._used
      assert 0 < len(page.tokens) <= S
      assert page.computed == len(page.tokens)


def test_the_path_that_was_used_last_stays_longest():
  cache = prefix_cache.PrefixCache(6, 2)
  first, second, third = [1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]
  for ids in (first, second, third):
    _add(cache, ids)
  assert _add(cache, first) == 4
  _add(cache, [4, 4])
  assert _ids(cache.match(second)) == second[:2]  # its end goes first
  _add(cache, [5, 5])
  assert not cache.match(second)
  assert _ids(cache.match(first)) == first
  assert cache.evicted == 2


def test_a_pinned_page_is_never_evicted():
  order = random.Random(0)
  cache = prefix_cache.PrefixCache(4, 1)
  for _ in range(50):
    ids = [order.randrange(3) for _ in range(2)]
    path = cache.match(ids)
    cache.pin(path)
    if cache.pages_needed(path, 2 - len(path)) <= cache.available:
      cache.add(path, ids[len(path) :])
    else:
      before = set(cache._pinned)
      assert before <= set(cache._used)
      cache.commit()
    for page in cache._pinned:
      assert page in cache._used
