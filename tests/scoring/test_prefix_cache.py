"""Pages hold what was added, and what was used last stays longest."""

from hypothesis import given
from hypothesis import strategies as st

from prm_jax.scoring import prefix_cache


def _ids(path):
  return [x for page, count in path for x in page.tokens[:count]]


def _add(cache, ids):
  """Adds what is missing of some ids; returns how many were there."""
  cache.make_room(ids)
  path = cache.match(ids)
  there = prefix_cache.length(path)
  assert _ids(path) == ids[:there]
  cache.use(path)
  new = cache.add(path, ids[there:])
  assert [page.tokens[slot] for page, slot in new] == ids[there:]
  again = cache.match(ids, path)
  assert again == cache.match(ids)
  assert _ids(again) == ids
  assert prefix_cache.places(again, range(there, len(ids))) == new
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


@given(st.lists(IDS, max_size=40), st.integers(1, 4), st.integers(1, 6))
def test_whatever_fits_into_all_pages_is_added_and_no_page_is_lost(
  lists, S, pages
):
  cache = prefix_cache.PrefixCache(pages, S)
  for ids in lists:
    ids = ids[: pages * S]
    _add(cache, ids)
    assert _ids(cache.match(ids)) == ids
    assert len(cache._used) <= pages
    numbers = [page.number for page in cache._used] + cache._free
    assert sorted(numbers) == list(range(pages))
    for page in cache._used:
      assert page.parent is cache._roots[""] or page.parent in cache._used
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


def test_what_was_used_since_stays_while_it_fits_in_all_pages():
  cache = prefix_cache.PrefixCache(4, 1)
  _add(cache, [1, 1])
  _add(cache, [2, 2])
  old = cache.match([1, 1])
  cache.use(old)
  for token in (3, 4):
    cache.add([], [token])
  cache.commit()
  assert cache.match([1, 1]) == old
  assert cache.evicted == 2 and not cache.match([2])
  _add(cache, [5])
  assert cache.match([1, 1]) == old[:1]


def test_what_leaves_no_room_for_the_rest_of_a_path_makes_room():
  # Each path leaves page 0 after one of its four tokens.
  cache = prefix_cache.PrefixCache(3, 4)
  _add(cache, [1, 2, 2, 2])
  whole = [1] * 12
  assert _add(cache, whole) == 0
  assert len(cache._used) == 3
  assert _add(cache, whole) == 12
