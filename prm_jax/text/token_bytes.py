"""What each id of a tokenizer adds to a text, as bytes.

The bytes come from the raw vocabulary: an id may hold half a character, which
`decode([id])` doesn't show. A text is the bytes of its ids, decoded at once
with Python's "replace"; the libraries count U+FFFD in other ways. At the
beginning of a text decoders leave out a space that their encoders add.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import hashlib
import json
import re
from typing import Any

from jaxtyping import Int
import numpy as np

from prm_jax import errors
from prm_jax.text import token_memory
from prm_jax.text import token_offsets
from prm_jax.text import tokenizer as tokenizer_lib
from prm_jax.text import tokenizer_files

# SentencePiece's sign for a space.
_SPACE = "\u2581"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclasses.dataclass(frozen=True)
class TokenBytes:
  """The bytes of each id; other ids add nothing.

  Args:
    of: What each id adds, b"" for a control id.
    first: What each adds at the beginning of a text; `of` itself if that is
      like the rest.
    squeezes: Whether the beginning lasts until the text has a byte; otherwise
      it is the first id that isn't b"" in `of`.
  """

  of: tuple[bytes, ...]
  first: tuple[bytes, ...]
  squeezes: bool = False

  def __post_init__(self):
    assert len(self.first) == len(self.of)

  @functools.cached_property
  def digest(self) -> str:
    """A digest of what the ids stand for, after "sha256:"."""
    digest = hashlib.sha256(str(self.squeezes).encode())
    for each in (self.of, self.first):
      sizes = np.asarray([len(x) for x in each], "<u4")
      digest.update(sizes.tobytes() + b"".join(each))
    return f"sha256:{digest.hexdigest()}"

  def parts(self, ids: tokenizer_lib.Ids) -> list[bytes]:
    """Returns what each of the ids adds to their text."""
    out, begun = [], False
    for i in map(int, ids):
      own = self.of[i] if 0 <= i < len(self.of) else b""
      part = own if begun or not own else self.first[i]
      begun = begun or bool(part if self.squeezes else own)
      out.append(part)
    return out

  def text(self, ids: tokenizer_lib.Ids) -> str:
    """Returns the text of ids; bytes that are no character become U+FFFD."""
    return b"".join(self.parts(ids)).decode("utf-8", "replace")

  def ends(self, ids: tokenizer_lib.Ids) -> Int[np.ndarray, " T"]:
    """Returns how many characters of the text are complete after each id, int32.

    It is token_offsets.of_ids of `text`, and faster for whole characters.
    """
    parts = self.parts(ids)
    raw = b"".join(parts)
    try:
      raw.decode()
    except UnicodeDecodeError:
      return np.asarray(token_offsets.of_ids(ids, self.text), np.int32)
    begins = np.frombuffer(raw, np.uint8) & 0xC0 != 0x80
    sizes = np.asarray([len(part) for part in parts], np.int64)
    complete = np.cumsum(np.append(begins, True)) - 1
    return complete[np.cumsum(sizes)].astype(np.int32)


def token_bytes(
  tokenizer: tokenizer_lib.Tokenizer, visible: Sequence[str] = ()
) -> TokenBytes:
  """Returns what each of a tokenizer's ids adds to a text.

  Args:
    tokenizer: Bytes, SentencePiece or HuggingFace.
    visible: The names of control tokens that a text shows by their names, such
      as `<think>`; others add nothing.

  Raises:
    InputError: The tokenizer's file has a decoder that joins tokens in another
      way, it is of another kind, or it has no control token of such a name.
  """
  of, first, squeezes = _raw(tokenizer)
  own = [b""] * (tokenizer.vocab_size - len(of))
  begins_alike = first == of
  of, first = of + own, first + own
  for name in visible:
    token = tokenizer.control(name)
    if token is None:
      raise errors.InputError(
        f"the tokenizer has no control token {name!r}; name one it has"
      )
    of[token] = first[token] = name.encode("utf-8", "replace")
  everywhere = tuple(of)
  at_first = everywhere if begins_alike else tuple(first)
  return TokenBytes(everywhere, at_first, squeezes)


# The bytes of each id, those at the beginning, and whether that is squeezed.
_Raw = tuple[list[bytes], list[bytes], bool]


def _raw(tokenizer: tokenizer_lib.Tokenizer) -> _Raw:
  """Returns the bytes of the ids of a tokenizer's file."""
  if isinstance(tokenizer, token_memory.Remembering):
    return _raw(tokenizer.inner)
  if isinstance(tokenizer, tokenizer_lib.Bytes):
    of = [bytes([i]) for i in range(tokenizer.text_ids)]
    return of, list(of), False
  if isinstance(tokenizer, tokenizer_files.SentencePiece):
    return _sentencepiece(tokenizer.processor)
  if isinstance(tokenizer, tokenizer_files.HuggingFace):
    return _hugging_face(tokenizer)
  raise errors.InputError(
    f"a {type(tokenizer).__name__} has no vocabulary of bytes; give a"
    " tokenizer of bytes, SentencePiece or a tokenizer.json"
  )


# --- SentencePiece ----------------------------------------------------------


def _sentencepiece(processor: Any) -> _Raw:
  of = []
  for i in range(processor.vocab_size()):
    piece = processor.id_to_piece(i)
    if processor.is_control(i):
      of.append(b"")
    elif processor.is_byte(i):
      of.append(_piece_byte(piece))
    elif processor.is_unknown(i):
      # Its text is a field of the model, which only decoding shows.
      of.append(processor.decode([i]).encode())
    else:
      of.append(piece.replace(_SPACE, " ").encode())
  spaced = [
    i
    for i in range(len(of))
    if processor.id_to_piece(i).startswith(_SPACE)
    and not processor.is_control(i)
    and not processor.is_unknown(i)
  ]
  first = list(of)
  # Decoding leaves it out if encoding adds it (add_dummy_prefix) or drops it
  # (remove_extra_whitespaces), fields that only decoding shows.
  if spaced and processor.decode(spaced[:1]).encode() != of[spaced[0]]:
    for i in spaced:
      first[i] = of[i].removeprefix(b" ")
  space = processor.piece_to_id(_SPACE)
  return of, first, not processor.decode([space, space])


def _piece_byte(piece: str) -> bytes:
  """Returns the byte of a piece `<0xNN>`."""
  return bytes([int(piece[3:5], 16)])


# --- tokenizer.json ---------------------------------------------------------

# What a decoder does to a token: text or bytes, and whether it is the first.
_Step = Callable[[str | bytes, bool], str | bytes]


def _hugging_face(tokenizer: tokenizer_files.HuggingFace) -> _Raw:
  processor = tokenizer.processor
  decoder = processor.decoder
  record = json.loads(decoder.__getstate__()) if decoder is not None else None
  steps = _decoder_steps(record, tokenizer.path)
  added = processor.get_added_tokens_decoder().values()
  special = {token.content for token in added if token.special}
  of, first = [b""] * tokenizer.text_ids, [b""] * tokenizer.text_ids
  # Most decoders don't ask whether a token is the first.
  alike = all(step in _ALIKE for step in steps)
  for token, i in processor.get_vocab(with_added_tokens=True).items():
    if i in tokenizer.controls or token in special:
      continue
    of[i] = _decoded(token, steps, False)
    first[i] = of[i] if alike else _decoded(token, steps, True)
  return of, first, False


def _decoded(token: str, steps: Sequence[_Step], is_first: bool) -> bytes:
  """Returns the bytes that a decoder's steps make of a token."""
  value: str | bytes = token
  for step in steps:
    value = step(value, is_first)
  return value.encode() if isinstance(value, str) else value


def _decoder_steps(record: Mapping[str, Any] | None, path: Any) -> list[_Step]:
  """Returns what a tokenizer.json's decoder does to each token, in order.

  Raises:
    InputError: A token's text depends on more than whether it is the first.
  """
  record = record or dict(type="no decoder")
  is_sequence = record["type"] == "Sequence"
  parts = record["decoders"] if is_sequence else [record]
  kinds = [part["type"] for part in parts]
  steps: list[_Step] = []
  joined = False
  for part in parts:
    step = _decoder_step(part, joined)
    if step is None:
      raise errors.InputError(
        f"{path}: its decoder ({', '.join(kinds)}) doesn't say which bytes each"
        " token adds to a text; give a tokenizer.json with ByteLevel,"
        " Metaspace, or Replace, ByteFallback and Fuse"
      )
    steps.append(step)
    joined = joined or part["type"] in ("ByteLevel", "Fuse")
  return steps


def _decoder_step(part: Mapping[str, Any], joined: bool) -> _Step | None:
  """Returns one part of a decoder as a function, None if it isn't one.

  Args:
    part: Its description.
    joined: Whether the parts before it have joined the tokens to one text.
  """
  match part:
    case {"type": "Fuse"}:
      return _as_it_is
    case {"type": "Strip", "content": " ", "start": 1, "stop": 0} if joined:
      return lambda x, first: _stripped(x) if first else x
    case _ if joined:
      return None
    case {"type": "ByteLevel"}:
      return _by_byte_level
    case {"type": "Metaspace", "replacement": sign, "prepend_scheme": scheme}:
      # As `tokenizers` does: the first token loses each of them.
      at_first = " " if scheme == "never" else ""
      return lambda x, first: _replaced(x, sign, at_first if first else " ")
    case {"type": "Replace", "pattern": {"String": old}, "content": new}:
      return lambda x, first: _replaced(x, old, new)
    case {"type": "ByteFallback"}:
      return _by_byte_fallback
  return None


def _as_it_is(token: str | bytes, first: bool) -> str | bytes:
  del first
  return token


def _replaced(token: str | bytes, old: str, new: str) -> str | bytes:
  return token.replace(old, new) if isinstance(token, str) else token


def _stripped(token: str | bytes) -> bytes:
  own = token.encode() if isinstance(token, str) else token
  return own.removeprefix(b" ")


def _by_byte_fallback(token: str | bytes, first: bool) -> str | bytes:
  del first
  if isinstance(token, str) and _BYTE.fullmatch(token):
    return _piece_byte(token)
  return token


def _by_byte_level(token: str | bytes, first: bool) -> str | bytes:
  del first
  if isinstance(token, str) and _SIGNS.issuperset(token):
    return token.translate(_BYTE_LEVEL).encode("latin-1")
  return token  # an added token, as it is written


def _byte_level() -> dict[int, int]:
  """Returns the byte of each sign, a code point, in byte-level BPE.

  GPT-2 writes the bytes that Latin-1 shows as themselves, the others as the
  characters from 256 on (Radford et al. 2019, bytes_to_unicode).
  """
  shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
  hidden = [byte for byte in range(256) if byte not in shown]
  signs = {byte: byte for byte in shown}
  return signs | {256 + n: byte for n, byte in enumerate(hidden)}


_BYTE_LEVEL = _byte_level()
_SIGNS = frozenset(map(chr, _BYTE_LEVEL))
# Steps that do the same to the first token of a text as to the others.
_ALIKE = (_as_it_is, _by_byte_fallback, _by_byte_level)
