"""Which token ids are in which page: the host's half of a prefix cache.

A tree of pages, as in PagedAttention (Kwon et al. 2023) and RadixAttention
(Zheng et al. 2024): a page holds up to S successive tokens of a path, and
another page can continue it after any of them. So no token is ever copied; a
page that several paths leave early is read up to there by each.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
import dataclasses


@dataclasses.dataclass(eq=False)
class Page:
  """A page that is in use.

  Args:
    number: Its number among the pages; -1 is the root, which has no tokens.
    parent: The page that it continues; None for the root.
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


class PrefixCache:
  """A tree of pages, the least recently used of which make room.

  Args:
    num_pages: M, the most pages.
    page_tokens: S, the most tokens of a page.
  """

  def __init__(self, num_pages: int, page_tokens: int):
    self.num_pages = num_pages
    self.page_tokens = page_tokens
    self.evicted = 0
    self._root = Page(-1, None, 0, 0)
    self._free = list(range(num_pages))[::-1]
    # From the least to the most recently used. A page is used whenever one that
    # continues it is, and after that one: so the first page that isn't pinned
    # has none after it.
    self._used: OrderedDict[Page, None] = OrderedDict()
    self._pinned: set[Page] = set()

  @property
  def num_used(self) -> int:
    """The number of pages in use."""
    return len(self._used)

  @property
  def available(self) -> int:
    """The number of pages that are free or can be evicted now."""
    return self.num_pages - len(self._pinned)

  def match(self, ids: Sequence[int]) -> Path:
    """Returns the path of the longest prefix of ids that is in the pages."""
    path: Path = []
    page, count, at = self._root, 0, 0
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

  def pin(self, path: Path) -> None:
    """Marks pages as used, and keeps them until the next `commit`."""
    for page, _ in reversed(path):
      self._used.move_to_end(page)
      self._pinned.add(page)

  def pages_needed(self, path: Path, tokens: int) -> int:
    """Returns how many new pages a path needs for further tokens."""
    return -(-max(tokens - self._room(path), 0) // self.page_tokens)

  def _room(self, path: Path) -> int:
    """Returns how many tokens fit into the path's last page."""
    if not path:
      return 0
    page, count = path[-1]
    at_end = count == len(page.tokens)
    return self.page_tokens - count if at_end else 0

  def add(self, path: Path, ids: Sequence[int]) -> list[tuple[Page, int]]:
    """Adds tokens after a pinned path, and returns the page and slot of each.

    Args:
      path: The path of `match`; the tokens aren't in the pages yet.
      ids: The ids, for which there must be enough available pages.
    """
    page, count = path[-1] if path else (self._root, 0)
    room = self._room(path)
    places: list[tuple[Page, int]] = []
    added: list[Page] = []
    for token in ids:
      if not room:
        page, count = self._continue(page, count, token), 0
        added.append(page)
        room = self.page_tokens
      page.tokens.append(token)
      places.append((page, count))
      count, room = count + 1, room - 1
    # After those that continue them, as in `pin`.
    self.pin([*path, *((page, 0) for page in added)])
    return places

  def _continue(self, page: Page, count: int, token: int) -> Page:
    """Returns a new page that continues another one after `count` tokens."""
    if not self._free:
      oldest = next(x for x in self._used if x not in self._pinned)
      self._remove(oldest)
      self.evicted += 1
    new = Page(self._free.pop(), page, count, page.position + count)
    page.pages_after[count, token] = new
    self._used[new] = None
    self._pinned.add(new)
    return new

  def _remove(self, page: Page) -> None:
    assert not page.pages_after
    assert page.parent is not None
    del page.parent.pages_after[page.after, page.tokens[0]]
    del self._used[page]
    self._free.append(page.number)

  def commit(self) -> None:
    """Marks all tokens as computed, and unpins all pages."""
    for page in self._pinned:
      page.computed = len(page.tokens)
    self._pinned.clear()
