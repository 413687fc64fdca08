"""How many rows, new tokens and pages a batch of the cached scorer has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import dataclasses
import itertools
from typing import NamedTuple

from prm_jax.rows import packing
from prm_jax.scoring import prefix_rows

# A batch's rows, and its least tokens and pages: few shapes are compiled.
_ROWS = (64, 16, 4, 1)
_LEAST_TOKENS, _LEAST_PAGES = 32, 16
# Rows of batches all of whose programs are compiled before.
_FEW_ROWS = (16, 4, 1)


class Shape(NamedTuple):
  """The shape of a batch.

  Args:
    size: B, the number of its rows.
    tokens: T, the number of new tokens of a row.
    pages: NP, the number of pages that a row reads.
  """

  size: int
  tokens: int
  pages: int


@dataclasses.dataclass(frozen=True)
class Shapes:
  """The shapes of batches.

  Args:
    row_tokens: The most new tokens of a row.
    page_tokens: The number of tokens of a page.
    most_pages: The most pages that a row reads; the shapes are then those of
      `all`. 0 is no limit, and more shapes, with less padding.
  """

  row_tokens: int
  page_tokens: int
  most_pages: int = 0

  def all(self) -> list[Shape]:
    """Returns every shape, if there is a limit of pages."""
    return [
      Shape(size, tokens, pages)
      for tokens, pages in itertools.product(
        self._row_lengths(), self._page_numbers()
      )
      for size in self._sizes(tokens, pages)
    ]

  def batches(
    self, rows: Sequence[prefix_rows.Row]
  ) -> Iterator[tuple[Sequence[prefix_rows.Row], Shape]]:
    """Yields rows in batches of like length, with the shape of each.

    Args:
      rows: The rows.
    """
    by_tokens: dict[int, list[prefix_rows.Row]] = {}
    for row in rows:
      by_tokens.setdefault(self._tokens(len(row.tokens)), []).append(row)
    for tokens, members in by_tokens.items():
      members.sort(key=lambda row: len(row.pages))
      while members:
        # The last one reads the most pages.
        pages = self._pages(len(members[-1].pages))
        sizes = self._sizes(tokens, pages)
        num = min(sizes[0], len(members))
        # The most rows that leave at most a third of the batch as padding.
        size = next(x for x in sizes if x == 1 or 2 * x <= 3 * num)
        members, chosen = members[:-size], members[-size:]
        yield chosen, Shape(size, tokens, pages)

  def _tokens(self, num: int) -> int:
    if self.most_pages:
      return next(x for x in self._row_lengths() if x >= num)
    return _padded(max(num, _LEAST_TOKENS))

  def _pages(self, num: int) -> int:
    if self.most_pages:
      return next(x for x in self._page_numbers() if x >= num)
    return packing.power_of_two(max(num, _LEAST_PAGES))

  def _sizes(self, tokens: int, pages: int) -> list[int]:
    """Returns the numbers of rows that a batch may have, the most first."""
    every = _FEW_ROWS if self.most_pages else _ROWS
    keys = tokens + pages * self.page_tokens
    most = prefix_rows.SQUARE // (tokens * keys)
    return [num for num in every if num == 1 or num <= most]

  def _row_lengths(self) -> list[int]:
    return [max(1, self.row_tokens // 4), self.row_tokens]

  def _page_numbers(self) -> list[int]:
    return [-(-self.most_pages // 4), self.most_pages]


def _padded(num: int) -> int:
  """Returns the least power of 2, or 3 times one, that isn't below num."""
  power = packing.power_of_two(num)
  return power * 3 // 4 if num <= power * 3 // 4 else power
