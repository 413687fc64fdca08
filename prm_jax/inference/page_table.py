"""The engine's page table on the host: which slot's tokens are in which page."""

from __future__ import annotations

from jaxtyping import Bool, Int
import numpy as np

from prm_jax.inference import engine_programs


def empty(num_pages: int) -> engine_programs.Pages:
  """Returns a table of so many pages without owners."""
  return engine_programs.Pages(
    np.full(num_pages, -1, np.int32), np.zeros(num_pages, np.int32)
  )


def release(pages: engine_programs.Pages, slot: int) -> engine_programs.Pages:
  """Returns the table without the slot, whose completion has ended."""
  return pages._replace(owner=np.where(pages.owner == slot, -1, pages.owner))


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
    unit = max(len(running) // 2, 1)
    more = -(-max(missing, len(owner) // 2) // unit) * unit
    owner = np.pad(owner, (0, more), constant_values=-1)
    first = np.pad(first, (0, more))
  free = np.flatnonzero(owner < 0)[: len(slots)]
  owner[free], first[free] = slots, drawn[slots] - page_tokens
  page = np.full(len(running), len(owner), np.int32)
  page[slots] = free
  return engine_programs.Pages(owner, first), page
