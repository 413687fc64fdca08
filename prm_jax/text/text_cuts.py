r"""Where a text can be cut so that its parts have the ids of the whole.

A tokenizer joins letters to tokens, so the ids of a beginning aren't always
those that it has in a longer text. But the common tokenizers never join what is
before a space to the space: their patterns match white space only at the
beginning of a piece (or line breaks at its end), and look no further than one
character after it. So a text may be cut in front of a space that follows a
visible ASCII character:

  Let $x =| 3$.\n\nThen $x +| 1 =| 4$

Which patterns are known is listed here; a tokenizer with any other is never cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import re
import string
from typing import Any

# The characters of a part, at least. Shorter ones are found again more often,
# and cost more to join.
CHARS = 64
_PART = re.compile(rf"(?s).{{{CHARS - 1}}}.*?[0-9A-Za-z](?= )|.+")
_SPACE = "\u2581"  # what tokenizers without patterns write for a space
_JOINED = re.compile(rf"[0-9A-Za-z]{_SPACE}")

_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# Of GPT-2 and those that took it over; Qwen; Llama 3.
_PATTERNS = (
  r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
  rf"{_ENDINGS}|{_WORD}|\p{{N}}|{_REST}",
  rf"{_ENDINGS}|{_WORD}|\p{{N}}{{1,3}}|{_REST}",
)


def are_known(spec: Mapping[str, Any]) -> bool:
  """Returns whether `parts` is right for a tokenizer.

  Args:
    spec: Its tokenizer.json, with all tokens marked special that no text may
      yield.
  """
  model = spec["model"]
  if model.get("type", "BPE") != "BPE" or model.get("dropout"):
    return False
  # They mark the end, or the inside, of a word, which a cut would move.
  if model.get("end_of_word_suffix") or model.get("continuing_subword_prefix"):
    return False
  # Those that a text yields: white space. They are found wherever they are.
  added = [t for t in spec.get("added_tokens", ()) if not t["special"]]
  flags = ("lstrip", "rstrip", "single_word")
  if any(t["content"].strip() or any(map(t.get, flags)) for t in added):
    return False
  normalizer, splitter = spec.get("normalizer"), spec.get("pre_tokenizer")
  if not all(isinstance(x, Mapping | None) for x in (normalizer, splitter)):
    return False
  splits = _all(splitter, "pretokenizers")
  if normalizer is None or normalizer.get("type") == "NFC":
    return _are_patterns(splits)
  return _are_pieces(normalizer, splits, model["vocab"])


def _all(part: Mapping[str, Any] | None, name: str) -> Sequence[Any]:
  if part is None:
    return ()
  return part.get(name, ()) if part.get("type") == "Sequence" else (part,)


def _are_patterns(splits: Sequence[Mapping[str, Any]]) -> bool:
  """Returns whether a text is divided by known patterns, into bytes."""
  *before, last = splits or ({},)
  if last.get("type") != "ByteLevel" or last.get("add_prefix_space", True):
    return False
  patterns = 0 + last.get("use_regex", True)
  for split in before:
    if split.get("type") == "Digits":
      continue
    pattern = split.get("pattern") or {}
    if (
      split.get("type") != "Split"
      or split.get("behavior") != "Isolated"
      or split.get("invert")
      or pattern.get("Regex") not in _PATTERNS
    ):
      return False
    patterns += 1
  return patterns > 0


def _are_pieces(
  normalizer: Mapping[str, Any],
  splits: Sequence[Mapping[str, Any]],
  vocabulary: Mapping[str, int],
) -> bool:
  """Returns whether no piece has a space after another character.

  A text is then one word, in which a space is another character.
  """
  if normalizer.get("type") != "Replace" or normalizer.get("pattern") != dict(
    String=" "
  ):
    return False
  # A split at spaces finds none.
  if any(
    x.get("type") != "Split" or x.get("pattern") != dict(String=" ")
    for x in splits
  ):
    return False
  return (
    normalizer.get("content") == _SPACE
    and {*string.ascii_letters, *string.digits, _SPACE} <= vocabulary.keys()
    and not any(map(_JOINED.search, vocabulary))
  )


def parts(text: str) -> list[str]:
  """Returns a text's parts, cut as above; equal beginnings have equal ones.

  That is: two texts with the same first characters have the same parts but for
  the last one of these characters.
  """
  return _PART.findall(text)
