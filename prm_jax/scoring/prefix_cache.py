"""Which token ids are in which page: the host's half of a prefix cache.

A tree of pages, as in PagedAttention (Kwon et al. 2023) and RadixAttention
(Zheng et al. 2024): a page holds up to S successive tokens of a path, and
another page can continue it after any of them. So no token is ever copied; a
page that several paths leave early is read up to there by each.
"""

from __future__ import annotations

import bisect
from collections import OrderedDict
from collections.abc import Sequence
import dataclasses


@dataclasses.dataclass(eq=False)
class Page:
  """A page that is in use.

  Args:
    number: Its number among the pages; -1 is a root, which has no tokens.
    parent: The page that it continues; None for a root.
    after: How many tokens of the parent come before its first one.
    position: The number of tokens before its first one on its path.
    tokens: Its ids.
    pages_after: The pages that continue it, by how many of its tokens come
      before them, and their first id.
    computed: How many of its tokens have keys and values; the others were added
      since the last `PrefixCache.commit`.
  """

  number: int
  parent: Page | None
  after: int
  position: int
  tokens: list[int] = dataclasses.field(default_factory=list)
  pages_after: dict[tuple[int, int], Page] = dataclasses.field(
    default_factory=dict
  )
  computed: int = 0


# A path from the root: pages, and how many tokens of each are on it.
Path = list[tuple[Page, int]]
# A token's page, and its number in it.
Place = tuple[Page, int]


def length(path: Path) -> int:
  """Returns the number of tokens of a path."""
  return path[-1][0].position + path[-1][1] if path else 0


def places(path: Path, positions: Sequence[int]) -> list[Place]:
  """Returns where the tokens at some positions of a path are."""
  firsts = [page.position for page, _ in path]
  on_path = [bisect.bisect_right(firsts, at) - 1 for at in positions]
  return [
    (path[i][0], at - firsts[i])
    for i, at in zip(on_path, positions, strict=True)
  ]


class PrefixCache:
  """Trees of pages, the least recently used of which make room.

  Each owner has a tree of its own, in which nothing of another's is found.

  Args:
    num_pages: M, the most pages.
    page_tokens: S, the most tokens of a page.
  """

  def __init__(self, num_pages: int, page_tokens: int):
    self.num_pages = num_pages
    self.page_tokens = page_tokens
    self.evicted = 0
    self._roots: dict[str, Page] = {}
    self._free = list(range(num_pages))[::-1]
    # From the least to the most recently used. A page is used whenever one that
    # continues it is, and after that one: so no page continues the first one.
    self._used: OrderedDict[Page, None] = OrderedDict()
    # The pages with tokens that aren't computed.
    self._added: set[Page] = set()

  def match(
    self, ids: Sequence[int], path: Path | None = None, *, owner: str = ""
  ) -> Path:
    """Returns the path of the longest prefix of ids that is in the pages.

    Args:
      ids: The ids.
      path: A path of their first ids that is known.
      owner: Whose pages.
    """
    path = [*(path or ())[:-1]]
    page, count = path[-1] if path else (self._root(owner), 0)
    at = length(path)
    while at < len(ids):
      after = page.pages_after.get((count, ids[at]))
      if after is None:
        break
      page = after
      most = min(len(page.tokens), len(ids) - at)
      count = next(
        (i for i in range(1, most) if page.tokens[i] != ids[at + i]), most
      )
      path.append((page, count))
      at += count
    return path

  def make_room(self, ids: Sequence[int], *, owner: str = "") -> None:
    """Evicts what is in the way of ids that fit into all pages.

    Pages of their own path that other paths leave early can be so many that the
    rest finds no room.

    Args:
      ids: The ids, at most as many as all pages hold.
      owner: Whose they are.
    """
    path, in_the_way = self.match(ids, owner=owner), None
    while path and self.num_pages < len(path) + self.pages_of(
      len(ids) - length(path)
    ):
      in_the_way, _ = path.pop()
    waiting = [] if in_the_way is None else [in_the_way]
    order = []
    while waiting:
      page = waiting.pop()
      order.append(page)
      waiting += page.pages_after.values()
    for page in reversed(order):  # the last ones of each path first
      self._evict(page)

  def pages_of(self, tokens: int) -> int:
    """Returns how many pages hold so many tokens."""
    return -(-tokens // self.page_tokens)

  def use(self, path: Path) -> None:
    """Marks pages as used now."""
    for page, _ in reversed(path):
      self._used.move_to_end(page)

  def add(
    self, path: Path, ids: Sequence[int], *, owner: str = ""
  ) -> list[Place]:
    """Adds tokens after a path, and returns the place of each.

    The least recently used pages make room. What was used or added since some
    moment stays if all of it fits into the pages.

    Args:
      path: The path of `match`; the tokens aren't in the pages yet.
      ids: The ids.
      owner: Whose they are.
    """
    page, count = path[-1] if path else (self._root(owner), 0)
    is_end = path and count == len(page.tokens)
    room = self.page_tokens - count if is_end else 0
    new: list[Place] = []
    pages = [page] if room else []
    for token in ids:
      if not room:
        page, count = self._continue(page, count, token), 0
        pages.append(page)
        room = self.page_tokens
      page.tokens.append(token)
      new.append((page, count))
      count, room = count + 1, room - 1
    self._added.update(pages)
    # After those that continue them, as in `use`.
    self.use([*path, *((page, 0) for page in pages)])
    return new

  def _root(self, owner: str) -> Page:
    return self._roots.setdefault(owner, Page(-1, None, 0, 0))

  def _continue(self, page: Page, count: int, token: int) -> Page:
    """Returns a new page that continues another one after `count` tokens."""
    if not self._free:
      self._evict(next(iter(self._used)))
    new = Page(self._free.pop(), page, count, page.position + count)
    page.pages_after[count, token] = new
    self._used[new] = None
    return new

  def _evict(self, page: Page) -> None:
    assert not page.pages_after
    assert page.parent is not None
    del page.parent.pages_after[page.after, page.tokens[0]]
    del self._used[page]
    self._free.append(page.number)
    self.evicted += 1

  def commit(self) -> None:
    """Marks all tokens as computed."""
    for page in self._added:
      page.computed = len(page.tokens)
    self._added.clear()
