"""How many characters of a text are complete after each of its ids.

A decoder alone is enough: no vocabulary is read, so the ids may be those of any
program's tokenizer. text/token_bytes.py, which knows the bytes of ours, gives
the same for whole characters, also while ids are still coming.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import itertools

import numpy as np

Ids = Sequence[int] | np.ndarray
# Ids -> their text. Special tokens add nothing to it.
Decode = Callable[[Ids], str]
# What decoders give for bytes that are no whole character: one for all of them,
# or one for each. A text may hold it as a character of its own.
_NO_CHARACTER = "\ufffd"
# Ids that are read to tell these apart; more don't follow each other in texts.
_MOST_AHEAD = 24


def of_ids(ids: Ids, decode: Decode) -> list[int]:
  """Returns how many characters of the text are complete after each token.

  A character of several tokens is complete after the last of them. So is a
  U+FFFD, whether it is a character of the text or stands for bytes that are
  none.

  Ids are decoded a few at a time. If the parts together aren't the whole text,
  because the decoder joins tokens in another way, each prefix of the ids is
  decoded instead, in quadratic time.

  Args:
    ids: The ids that the policy sampled, special tokens included.
    decode: Returns the text of ids, `decode(ids)` the response.

  Returns:
    One offset for each id. They never decrease, a special token's is that of
    the token before it, and the last is the length of the text.
  """
  whole = decode(ids)
  offsets = _by_windows(ids, decode, whole)
  return _by_prefixes(ids, decode, whole) if offsets is None else offsets


def _by_windows(ids: Ids, decode: Decode, whole: str) -> list[int] | None:
  """Returns the offsets of ids that are decoded after a few earlier ones.

  Returns None if the texts of the parts aren't the text of the whole.
  """
  offsets: list[int] = []
  # The ids of the last part with text, and those after it; their texts.
  window: list[int] = []
  num_read, context, tail, done = 0, "", "", 0
  for k, token in enumerate(map(int, ids), 1):
    text = decode([*window, token])
    before = offsets[-1] if offsets else 0
    if text == context and not tail and not decode([token, token]):
      offsets.append(before)  # a special token; so far there may be many
      continue
    window.append(token)
    if not text.startswith(context):
      return None
    new = text[len(context) :]
    offset, is_whole = _complete(ids, k, new, done, whole, before, decode)
    offsets.append(offset)
    if is_whole and not whole.startswith(new, done):
      return None
    tail = "" if is_whole else new
    if new and is_whole:
      done += len(new)
      # A decoder may treat the first token of a text in its own way, so the
      # ids of the last part are decoded again before the next one's.
      window = window[num_read:]
      num_read, context = len(window), decode(window)
  if whole[done:] != tail or offsets != sorted(offsets):
    return None
  # What is no character at the end of the text stays so.
  return offsets[:-1] + [len(whole)] * bool(offsets)


def _by_prefixes(ids: Ids, decode: Decode, whole: str) -> list[int]:
  """Returns the offsets of ids of which each prefix is decoded."""
  offsets: list[int] = []
  for k in range(1, len(ids)):
    text = decode(ids[:k])
    before = offsets[-1] if offsets else 0
    offset, _ = _complete(ids, k, text, 0, whole, before, decode)
    same = itertools.takewhile(lambda ab: ab[0] == ab[1], zip(text, whole))
    offsets.append(max(before, min(offset, sum(1 for _ in same))))
  return offsets + [len(whole)] * bool(len(ids))


def _complete(
  ids: Ids,
  k: int,
  text: str,
  start: int,
  whole: str,
  before: int,
  decode: Decode,
) -> tuple[int, bool]:
  """Returns the offset of a token, and whether a character ends with it.

  Args:
    ids: The ids.
    k: The number of ids up to the token and with it.
    text: What the decoder gives for the last of them.
    start: Where this text begins in the whole one.
    whole: The whole text.
    before: The offset of the token before it.
    decode: Returns the text of ids.
  """
  end = start + len(text)
  if not text.endswith(_NO_CHARACTER):
    return end, True
  if whole.startswith(text, start) and _begins(ids, k, whole[end:], decode):
    return end, True
  # A token whose own text is one U+FFFD has no other character that it could
  # complete; of more, the last isn't complete.
  is_part = len(decode(ids[k - 1 : k])) <= 1
  return (before if is_part else max(before, end - 1)), False


def _begins(ids: Ids, k: int, rest: str, decode: Decode) -> bool:
  """Returns whether a character begins with ids[k], if `rest` may follow.

  If one is cut there, its later bytes alone are no character, so they have a
  text of their own in front of the rest. Decoders leave out a space at the
  beginning of a text.
  """
  last = min(len(ids), k + _MOST_AHEAD)
  for stop in range(k + 1, last + 1):
    text = decode(ids[k:stop])
    if text.strip(" ") and not text.endswith(_NO_CHARACTER):
      break
  else:
    text = decode(ids[k:last])
  return rest.startswith(text) or rest.removeprefix(" ").startswith(text)
