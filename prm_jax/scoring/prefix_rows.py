"""Rows of new tokens: what of some requests is computed in one set of batches.

A row is a tree in depth-first order, as rows/packing.py has them, whose
branches continue paths in the pages of a prefix cache.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import sys
from typing import NamedTuple

import numpy as np

from prm_jax.scoring import prefix_cache
from prm_jax.scoring import prefix_programs

# The most elements of a batch's attention for a head: rows times new tokens
# times keys; and the fewest new tokens for which a row is cut to keep it.
SQUARE, LEAST_CUT = 1 << 22, 16


@dataclasses.dataclass(eq=False)
class Row:
  """New tokens behind one path, or behind paths with most pages in common.

  Args:
    tokens: The ids, as the further lists one for each token.
    positions: The number of tokens before each on its path.
    visible_until: See batch.Batch.
    places: Where keys and values go.
    branch: The number of the token's entry in `attached`.
    attached: How many tokens of which pages come before a branch.
    pages: The pages that the row reads, with their numbers in it.
    open: The indices of the tokens on the path that was added last.
  """

  tokens: list[int] = dataclasses.field(default_factory=list)
  positions: list[int] = dataclasses.field(default_factory=list)
  visible_until: list[int] = dataclasses.field(default_factory=list)
  places: list[prefix_cache.Place] = dataclasses.field(default_factory=list)
  branch: list[int] = dataclasses.field(default_factory=list)
  attached: list[prefix_cache.Path] = dataclasses.field(default_factory=list)
  pages: dict[prefix_cache.Page, int] = dataclasses.field(default_factory=dict)
  open: list[int] = dataclasses.field(default_factory=list)

  def is_near(self, path: prefix_cache.Path, most_pages: int) -> bool:
    """Returns whether the row reads most pages of a path already.

    Each token of a row is compared with all pages that the row reads, so a page
    that one branch needs costs all of them.

    Args:
      path: The path.
      most_pages: The most pages that the row may read.
    """
    more = sum(page not in self.pages for page, _ in path)
    if len(self.pages) + more > most_pages:
      return False
    return more <= 1 + (len(path) - more) // 4

  def append(
    self,
    path: prefix_cache.Path,
    depth: int,
    places: Sequence[prefix_cache.Place],
  ) -> None:
    """Appends a branch.

    Args:
      path: The computed tokens before it.
      depth: How many open tokens of the row come after these and before it.
      places: Its new tokens, at least one.
    """
    self.close(depth)
    if depth:
      branch = self.branch[self.open[-1]]
    else:
      branch = len(self.attached)
      self.attached.append(path)
      for page, _ in path:
        self.pages.setdefault(page, len(self.pages))
    start, num = len(self.tokens), len(places)
    self.tokens += (page.tokens[slot] for page, slot in places)
    self.positions += (page.position + slot for page, slot in places)
    self.visible_until += [0] * num
    self.places += places
    self.branch += [branch] * num
    self.open += range(start, start + num)

  def close(self, depth: int = 0) -> None:
    """Ends the path that was added last after its first `depth` tokens."""
    for i in self.open[depth:]:
      self.visible_until[i] = len(self.tokens)
    del self.open[depth:]


class Placed(NamedTuple):
  """The path of a request's first ids, and how many at its end are new."""

  path: prefix_cache.Path
  new: int


class Plan:
  """Rows for some requests, each token of which is computed once.

  Args:
    cache: The pages, with room for the requests. `commit` them when the rows
      are computed.
    row_tokens: The most tokens of a row.
    row_pages: The most pages that a row reads, if its branches could be in
      several rows.
  """

  def __init__(
    self,
    cache: prefix_cache.PrefixCache,
    row_tokens: int,
    row_pages: int = sys.maxsize,
  ):
    self.rows: list[Row] = []
    self._cache = cache
    self._row_tokens = row_tokens
    self._row_pages = row_pages
    self._index: dict[prefix_cache.Place, tuple[Row, int]] = {}

  def place(
    self, ids: Sequence[int], path: prefix_cache.Path, *, owner: str = ""
  ) -> Placed | None:
    """Returns where the first ids are; those that are new are in a row now.

    Args:
      ids: The request's ids. Those of an owner come one after another in their
        lexicographic order, so that what a row computes of them is on the path
        that it added last.
      path: A path of its first ids.
      owner: Whose they are.

    Returns:
      A path of fewer ids if the rest comes with the next plan; None if all of
      it does, because a row without room computes a part of it.
    """
    path = self._cache.match(ids, path, owner=owner)
    matched = prefix_cache.length(path)
    rest = len(ids) - matched
    if not rest:
      return Placed(path, 0)
    fresh = self._fresh(path)
    row = self.rows[-1] if self.rows else Row()
    most = self._most(matched)
    fits = len(row.tokens) + rest <= most
    depth = len(fresh)
    assert fresh == [(row, i) for i in row.open[:depth]]
    if fresh and not fits:
      return None
    if not fresh and not (fits and row.is_near(path, self._row_pages)):
      row = Row()
    if not self.rows or row is not self.rows[-1]:
      self.rows.append(row)
    added = self._cache.add(path, ids[matched : matched + most], owner=owner)
    computed = [(page, min(n, page.computed)) for page, n in path]
    row.append([(page, n) for page, n in computed if n], depth, added)
    for i, place in enumerate(added, len(row.tokens) - len(added)):
      self._index[place] = row, i
    return Placed(self._cache.match(ids, path, owner=owner), len(added))

  def _fresh(self, path: prefix_cache.Path) -> list[tuple[Row, int]]:
    """Returns the rows, and the indices in them, of what rows compute of it."""
    fresh: list[tuple[Row, int]] = []
    for page, count in reversed(path):
      if count <= page.computed:
        break
      slots = range(page.computed, count)
      fresh = [*(self._index[page, i] for i in slots), *fresh]
    return fresh

  def _most(self, before: int) -> int:
    """Returns the most tokens of a row behind so many."""
    most = self._row_tokens
    while most > LEAST_CUT and most * (before + most) > SQUARE:
      most //= 2
    return most


def fill(
  rows: Sequence[Row],
  cache: prefix_cache.PrefixCache,
  *,
  size: int,
  tokens: int,
  pages: int,
) -> prefix_programs.Rows:
  """Returns rows as arrays, padded.

  Args:
    rows: The rows; they are closed.
    cache: The pages.
    size: B, the number of rows with padding.
    tokens: T, the number of tokens of a row with padding.
    pages: NP, the number of pages that a row reads, with padding.
  """
  nowhere = cache.num_pages * cache.page_tokens
  index = np.broadcast_to(np.arange(tokens, dtype=np.int32), (size, tokens))
  out = prefix_programs.Rows(
    tokens=np.zeros((size, tokens), np.int32),
    positions=index.copy(),
    visible_until=index + 1,  # padding sees itself
    pages=np.zeros((size, pages), np.int32),
    first=np.zeros((size, pages), np.int32),
    seen=np.zeros((size, tokens, pages), np.int32),
    places=np.full((size, tokens), nowhere, np.int32),
  )
  for b, row in enumerate(rows):
    row.close()
    n = len(row.tokens)
    out.tokens[b, :n] = row.tokens
    out.positions[b, :n] = row.positions
    out.visible_until[b, :n] = row.visible_until
    out.pages[b, : len(row.pages)] = [page.number for page in row.pages]
    out.first[b, : len(row.pages)] = [page.position for page in row.pages]
    seen = np.zeros((len(row.attached), pages), np.int32)
    for branch, path in enumerate(row.attached):
      for page, count in path:
        seen[branch, row.pages[page]] = count
    out.seen[b, :n] = seen[row.branch]
    out.places[b, :n] = numbers_of(row.places, cache.page_tokens)
  return out


def numbers_of(
  places: Sequence[prefix_cache.Place], page_tokens: int
) -> list[int]:
  """Returns the number of each place among all pages' tokens."""
  return [page.number * page_tokens + slot for page, slot in places]
