"""A tokenizer that doesn't encode again what it has encoded lately.

Solutions of one problem begin alike, and alternatives to a step share all steps
before it. So a text is encoded part by part (text_cuts.py), and the ids of the
last parts are kept. The ids and places are those of the whole text.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
import pathlib
from typing import Any, TypeVar

from prm_jax.text import tokenizer as tokenizer_lib

# More than any problem's solutions have, some 40 MB with ids and places.
MOST_PARTS = 8_192
# Of more characters, a part isn't kept: texts that have no cuts are long.
MOST_CHARACTERS = 128


_Read = TypeVar("_Read")


def _remembering(read: Callable[[str], _Read]) -> Callable[[str], _Read]:
  """Returns a function of a part that keeps what it gave for short ones."""
  kept = functools.lru_cache(MOST_PARTS)(read)
  return lambda part: (kept if len(part) <= MOST_CHARACTERS else read)(part)


class Remembering:
  """A tokenizer.Tokenizer that gives what another does, and keeps most of it.

  Args:
    inner: The other one.
  """

  def __init__(self, inner: tokenizer_lib.Tokenizer):
    self.inner = inner
    self.vocab_size, self.text_ids = inner.vocab_size, inner.text_ids
    self.bos, self.eos, self.separator = inner.bos, inner.eos, inner.separator
    self.bos_name = inner.bos_name
    self._read = _remembering(self._read_anew)

  def encode(self, text: str) -> list[int]:
    ids: list[int] = []
    for part in self._parts(text):
      ids += self._read(part)[0]
    return ids

  def encode_with_spans(
    self, text: str
  ) -> tuple[list[int], list[tokenizer_lib.Span]]:
    ids: list[int] = []
    spans: list[tokenizer_lib.Span] = []
    start = 0
    for part in self._parts(text):
      more, places, _ = self._read(part)
      ids += more
      spans += [(start + a, start + b) for a, b in places]
      start += len(part)
    return ids, spans

  def encode_with_ends(self, text: str) -> tuple[list[int], list[int]]:
    """Returns the ids of a text, and the end of each: half of the spans."""
    ids: list[int] = []
    ends: list[int] = []
    start = 0
    for part in self._parts(text):
      more, _, lasts = self._read(part)
      ids += more
      ends += [start + last for last in lasts]
      start += len(part)
    return ids, ends

  def _read_anew(
    self, part: str
  ) -> tuple[list[int], list[tokenizer_lib.Span], list[int]]:
    """Returns the ids of a part, their places, and the end of each."""
    ids, spans = self.inner.encode_with_spans(part)
    return ids, spans, [last for _, last in spans]

  def _parts(self, text: str) -> list[str]:
    if isinstance(self.inner, tokenizer_lib.HuggingFace):
      return self.inner.parts(text)
    return [text]

  def control(self, name: str) -> int | None:
    return self.inner.control(name)

  def decode(self, ids: tokenizer_lib.Ids) -> str:
    return self.inner.decode(ids)

  def save(self, folder: pathlib.Path) -> dict[str, Any]:
    return self.inner.save(folder)
