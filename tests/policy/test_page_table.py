"""The book of pages: every running slot's tokens, each in one page."""

import numpy as np
import pytest

from prm_jax.policy import page_table


@pytest.mark.parametrize("seed", range(5))
def test_the_pages_of_a_slot_hold_every_token_that_left_its_tail(seed):
  random = np.random.default_rng(seed)
  num_slots, T = 7, 4
  pages = page_table.empty(num_slots)
  drawn, sizes = np.zeros(num_slots, int), set()
  running = np.ones(num_slots, bool)
  for step in range(1, 200):
    drawn += running
    for slot in np.flatnonzero(running & (random.random(num_slots) < 0.05)):
      running[slot] = False
      pages = page_table.release(pages, int(slot))
    if step % T == 0:
      before = np.flatnonzero(pages.owner >= 0)
      was = pages
      pages, page = page_table.allocate(pages, running, drawn, T)
      # What was in a page stays there, and no page is given to two slots.
      np.testing.assert_array_equal(pages.owner[before], was.owner[before])
      assert not set(page[running].tolist()) & set(before.tolist())
      assert (page[~running] == len(pages.owner)).all()
      sizes.add(len(pages.owner))
      for slot in np.flatnonzero(running):
        first = pages.first[pages.owner == slot]
        held = (first[:, None] + np.arange(T)).reshape(-1)
        held = np.sort(held[held >= 0])
        np.testing.assert_array_equal(held, np.arange(drawn[slot]))
    begins = ~running & (random.random(num_slots) < 0.5)
    running, drawn = running | begins, np.where(begins, 0, drawn)
  assert len(sizes) > 1


def test_pages_are_used_again_and_grow_by_half():
  pages = page_table.empty(4)
  everyone, drawn = np.ones(4, bool), np.full(4, 8)
  sizes = []
  for _ in range(8):
    pages, _ = page_table.allocate(pages, everyone, drawn, 8)
    sizes.append(len(pages.owner))
  assert sizes == [4, 8, 12, 18, 28, 28, 28, 42]
  for slot in range(4):
    pages = page_table.release(pages, slot)
  for _ in range(8):
    pages, _ = page_table.allocate(pages, everyone, drawn, 8)
  assert len(pages.owner) == sizes[-1]
