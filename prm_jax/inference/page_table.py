"""Which slot's tokens are in which page: the host's book of the engine."""

from __future__ import annotations

from jaxtyping import Bool, Int
import numpy as np

from prm_jax.inference import engine_programs


def empty(num_pages: int) -> engine_programs.Pages:
  """Returns so many pages, none of them anybody's."""
  return engine_programs.Pages(
    np.full(num_pages, -1, np.int32), np.zeros(num_pages, np.int32)
  )


def released(pages: engine_programs.Pages, slot: int) -> engine_programs.Pages:
  """Returns the book without the slot, whose completion has ended."""
  return pages._replace(owner=np.where(pages.owner == slot, -1, pages.owner))


def turned(
  pages: engine_programs.Pages,
  running: Bool[np.ndarray, " GN"],
  drawn: Int[np.ndarray, " GN"],
  page_tokens: int,
) -> tuple[engine_programs.Pages, Int[np.ndarray, " GN"]]:
  """Returns the book after all tails were full, and each slot's new page.

  M, a page that isn't there, for a slot that isn't running: nobody looks back
  on its tail. Where pages are too few there are half as many again, or what
  is missing: in few sizes, since decode_chunk is compiled for each.
  """
  who = np.flatnonzero(running)
  owner, first = np.array(pages.owner), np.array(pages.first)
  missing = len(who) - int((owner < 0).sum())
  if missing > 0:
    unit = max(len(running) // 2, 1)
    more = -(-max(missing, len(owner) // 2) // unit) * unit
    owner = np.pad(owner, (0, more), constant_values=-1)
    first = np.pad(first, (0, more))
  free = np.flatnonzero(owner < 0)[: len(who)]
  owner[free], first[free] = who, drawn[who] - page_tokens
  page = np.full(len(running), len(owner), np.int32)
  page[who] = free
  return engine_programs.Pages(owner, first), page
