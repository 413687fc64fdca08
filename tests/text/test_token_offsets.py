"""A character is complete after the last token that has a part of it."""

import functools

import hostile_text
from hypothesis import example
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest
import recipes

from prm_jax.text import token_bytes
from prm_jax.text import token_offsets

TOKENIZERS = {
  "byte_level": lambda: recipes.tokenizer("qwen"),
  "byte_fallback": lambda: recipes.tokenizer("llama_2"),
  "sentencepiece": lambda: hostile_text.tokenizer("sentencepiece_bpe"),
  "bytes": lambda: hostile_text.tokenizer("bytes"),
}
FAMILY = "\U0001f469\u200d\U0001f467"
LITERAL = "\ufffd"
# U+FFFC and U+FFFB share two bytes with U+FFFD.
CHARACTERS = [*"ab \n", LITERAL, "\ufffc", "\ufffb", "é", "e\u0301", "€"]
CHARACTERS += ["\u4e2d\u6587", "🙂", FAMILY, "क\u094d", "so 3", ".\n\n"]
TEXT = st.lists(st.sampled_from(CHARACTERS), max_size=8).map("".join)


@functools.cache
def tokenizer(name):
  return TOKENIZERS[name]()


@functools.cache
def tokens_of(name):
  return token_bytes.token_bytes(tokenizer(name))


def slow_offsets(parts):
  """The oracle: counts the characters whose last byte is in the first parts.

  Bytes that are no character are one for each that Python's decoder shows.
  """
  whole = b"".join(parts)
  ends, place = [], 0
  while place < len(whole):
    try:
      text, after = whole[place:].decode(), []
    except UnicodeDecodeError as e:
      text, after = whole[place : place + e.start].decode(), [place + e.end]
    for character in text:
      place += len(character.encode())
      ends.append(place)
    ends += after
    place = after[0] if after else place
  offsets, size = [], 0
  for part in parts:
    size += len(part)
    offsets.append(sum(end <= size for end in ends))
  return offsets


def offsets_of(parts):
  """The offsets of a byte-level tokenizer's tokens with these bytes."""

  def decode(ids):
    return b"".join(parts[i] for i in ids).decode("utf-8", "replace")

  return token_offsets.of_ids(range(len(parts)), decode)


@st.composite
def cut_bytes(draw, texts=TEXT):
  """A text's bytes, cut anywhere, with special tokens that add nothing."""
  raw = draw(texts)
  raw = raw if isinstance(raw, bytes) else raw.encode()
  places = draw(st.lists(st.integers(0, len(raw)), max_size=10).map(sorted))
  bounds = zip([0, *places], [*places, len(raw)])
  return [raw[a:b] for a, b in bounds]


@given(parts=cut_bytes())
@example(parts=[b"x = 5 ", b"\xef\xbf\xbd", b"\n", b"so y = 2"])
@example(parts=[b"x\xef", b"\xbf", b"", b"\xbd", b"\n"])
@example(parts=[b"\xef\xbf\xbd\xef", b"\xbf\xbd", b"\xef", b"\xbf\xbd\xf0"])
@settings(max_examples=120)
def test_offsets_of_bytes_cut_anywhere_are_those_of_the_oracle(parts):
  assert offsets_of(parts) == slow_offsets(parts)


BROKEN = st.lists(
  st.sampled_from([b"a", b"\n", b"\xe2\x82", b"\x80", b"\xf0\x9f", b"\xef\xbf"])
  | st.sampled_from(CHARACTERS).map(str.encode),
  max_size=6,
).map(b"".join)


@given(parts=cut_bytes(BROKEN))
@example(parts=[b"a", b"\xe2", b"\x82", b"b"])
@example(parts=[b"a", b"\xe2", b"\x82"])
@settings(max_examples=120)
def test_bytes_that_are_no_character_are_complete_with_the_last(parts):
  assert offsets_of(parts) == slow_offsets(parts)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=40)
@given(text=TEXT)
@example(text=f"x = 5 {LITERAL}\nso y = 2")
@example(text=f"{LITERAL}{LITERAL} 🙂{LITERAL}")
def test_offsets_are_those_of_the_raw_vocabulary(name, text):
  ids = tokenizer(name).encode(text)
  ids.append(tokenizer(name).eos)
  decode = tokenizer(name).decode
  offsets = token_offsets.of_ids(ids, decode)
  if decode(ids) == tokens_of(name).text(ids):
    assert offsets == tokens_of(name).ends(ids).tolist()
    assert offsets == slow_offsets(tokens_of(name).parts(ids))
  assert token_offsets._by_prefixes(ids, decode, decode(ids)) == offsets


@pytest.mark.parametrize("text", ["so 3 + 4 = 7 €\n\n", f"{LITERAL} a\n", "🙂"])
def test_ids_are_decoded_a_few_at_a_time(text):
  """Decoding each prefix of 4,096 ids would decode 8 million."""
  qwen, decoded = tokenizer("byte_level"), []

  def decode(ids):
    decoded.append(len(ids))
    return qwen.decode(ids)

  ids = qwen.encode(text * 40)
  assert token_offsets.of_ids(ids, decode)[-1] == len(text) * 40
  assert sum(decoded) < 24 * len(ids)


def test_a_decoder_that_joins_tokens_otherwise_is_asked_for_each_prefix():
  words = ["do", "n", "'t"]

  def decode(ids):
    return " ".join(words[i] for i in ids).replace(" n 't", "n't")

  assert token_offsets._by_windows([0, 1, 2], decode, "don't") is None
  assert token_offsets.of_ids([0, 1, 2], decode) == [2, 2, 5]
  assert token_offsets.of_ids([], decode) == []
