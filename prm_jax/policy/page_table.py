"""The engine's page table on the host: which slot's tokens are in which page."""

from __future__ import annotations

from jaxtyping import Bool, Int
import numpy as np

from prm_jax.policy import engine_programs


def empty(num_pages: int) -> engine_programs.Pages:
  """Returns a table of so many pages without owners."""
  return engine_programs.Pages(
    np.full(num_pages, -1, np.int32), np.zeros(num_pages, np.int32)
  )


def release(pages: engine_programs.Pages, slot: int) -> engine_programs.Pages:
  """Returns the table without the slot, whose completion has ended."""
  return pages._replace(owner=np.where(pages.owner == slot, -1, pages.owner))


def keep(
  pages: engine_programs.Pages, slots: Int[np.ndarray, " kept"]
) -> tuple[engine_programs.Pages, Int[np.ndarray, " M"]]:
  """Returns the table of some slots, and the pages that it keeps.

  Args:
    pages: The table; no other slot owns a page.
    slots: The slots, in their new order.
  """
  owned = np.flatnonzero(pages.owner >= 0)
  num_pages = len(slots)
  while num_pages < len(owned):
    num_pages += _growth(num_pages, len(slots), 0)
  new = np.full(max(pages.owner.max(), slots.max()) + 1, -1, np.int32)
  new[slots] = np.arange(len(slots))
  owner, first = np.zeros((2, num_pages), np.int32)
  owner[: len(owned)] = new[pages.owner[owned]]
  owner[len(owned) :] = -1
  first[: len(owned)] = pages.first[owned]
  kept = np.zeros(num_pages, np.int32)
  kept[: len(owned)] = owned
  return engine_programs.Pages(owner, first), kept


def _growth(num_pages: int, num_slots: int, missing: int) -> int:
  """Returns how many pages are added to some, in few sizes."""
  unit = max(num_slots // 2, 1)
  return -(-max(missing, num_pages // 2, 1) // unit) * unit


def allocate(
  pages: engine_programs.Pages,
  running: Bool[np.ndarray, " GN"],
  drawn: Int[np.ndarray, " GN"],
  page_tokens: int,
) -> tuple[engine_programs.Pages, Int[np.ndarray, " GN"]]:
  """Returns the table with a page for each running slot's full tail.

  The second result is each slot's new page; M, a page that doesn't exist, for
  a slot that isn't running. If pages are too few, half as many are added, or
  as many as are missing: in few sizes, since decode_chunk is compiled for each.
  """
  slots = np.flatnonzero(running)
  owner, first = np.array(pages.owner), np.array(pages.first)
  missing = len(slots) - int((owner < 0).sum())
  if missing > 0:
    more = _growth(len(owner), len(running), missing)
    owner = np.pad(owner, (0, more), constant_values=-1)
    first = np.pad(first, (0, more))
  free = np.flatnonzero(owner < 0)[: len(slots)]
  owner[free], first[free] = slots, drawn[slots] - page_tokens
  page = np.full(len(running), len(owner), np.int32)
  page[slots] = free
  return engine_programs.Pages(owner, first), page
