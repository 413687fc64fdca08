"""Text to ids and back, with control ids that no text can produce.

`encode` never yields a control id, so a solution that contains `</s>`, `<sep>`
or `<|im_start|>` is plain text. Here are the protocol and plain bytes;
tokenizer_files.py has those of other libraries.
"""

from __future__ import annotations

from collections.abc import Sequence
import pathlib
from typing import Any, Protocol, runtime_checkable

import numpy as np

Ids = Sequence[int] | np.ndarray
Span = tuple[int, int]


@runtime_checkable
class Tokenizer(Protocol):
  """Text to ids and back.

  vocab_size counts all ids, among them bos, eos and separator. text_ids counts
  the ids that a text can yield: 0 to text_ids - 1. bos_name is None if bos is
  an id that we added.
  """

  vocab_size: int
  text_ids: int
  bos_name: str | None
  bos: int
  eos: int
  separator: int

  def __hash__(self) -> int: ...

  def encode(self, text: str) -> list[int]:
    """Returns the ids of a text; none of them is a control id."""
    ...

  def encode_with_spans(self, text: str) -> tuple[list[int], list[Span]]:
    """Returns the ids, and the characters of each: (first, one after the last).

    So a place in the text becomes a place among the ids, whatever the ids are.
    All ids of a character have that character. An id without one, such as a
    space that the tokenizer adds, has the next character. No id has a character
    that the tokenizer drops; of characters that it joins to one, it may have
    the first alone. Neither number ever decreases.
    """
    ...

  def control(self, name: str) -> int | None:
    """Returns the id of a control or added token by its name, or None.

    A name that a text can yield isn't one.
    """
    ...

  def decode(self, ids: Ids) -> str:
    """Returns the text of ids; control ids and unknown ids add nothing."""
    ...

  def save(self, folder: pathlib.Path) -> dict[str, Any]:
    """Writes its file, if any; returns the description that `load` takes."""
    ...


class Bytes:
  """One id per UTF-8 byte; the controls are 256, 257 and 258."""

  vocab_size, bos, eos, separator = 259, 256, 257, 258
  text_ids = 256
  bos_name: str | None = None

  def encode(self, text: str) -> list[int]:
    # A lone surrogate has no UTF-8 form; it becomes "?", one byte.
    return list(text.encode("utf-8", "replace"))

  def encode_with_spans(self, text: str) -> tuple[list[int], list[Span]]:
    sizes = [len(character.encode("utf-8", "replace")) for character in text]
    spans = [(i, i + 1) for i, size in enumerate(sizes) for _ in range(size)]
    return self.encode(text), spans

  def control(self, name: str) -> int | None:
    del name
    return None

  def decode(self, ids: Ids) -> str:
    return bytes(i for i in ids if i < 256).decode("utf-8", "replace")

  def save(self, folder: pathlib.Path) -> dict[str, Any]:
    del folder
    return dict(kind="bytes")


def same_ids(a: Tokenizer, b: Tokenizer) -> bool:
  """Returns whether two tokenizers have the same ids for the same texts."""
  controls = [(x.vocab_size, x.bos, x.eos, x.separator) for x in (a, b)]
  ids = range(a.text_ids)
  return controls[0] == controls[1] and all(
    a.decode([i]) == b.decode([i]) for i in ids
  )
