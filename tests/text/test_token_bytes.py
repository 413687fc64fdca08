"""The bytes of ids are the text that the tokenizer's own decoder gives."""

import json

import hostile_text
from hypothesis import example
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest
import recipes
import test_read_places
from tokenizers import decoders

from prm_jax import errors
from prm_jax.text import token_bytes
from prm_jax.text import tokenizer_files

# Its decoder joins words with spaces.
_REFUSED = "hostile/word_level"
NAMES = (
  *test_read_places.NAMES,
  *(f"hostile/{x}" for x in hostile_text.TOKENIZERS),
  *(f"recipes/{x}" for x in ("qwen", "llama_2", "llama_3")),
)
_INCOMPLETE = "\ufffd"


def tokenizer(name):
  library, _, kind = name.partition("/")
  if library == "hostile":
    return hostile_text.tokenizer(kind)
  if library == "recipes":
    return recipes.tokenizer(kind)
  return test_read_places._tokenizer(name)


_MADE = {}


def tokens_of(name):
  if name not in _MADE:
    _MADE[name] = token_bytes.token_bytes(tokenizer(name))
  return _MADE[name]


ALL = [name for name in NAMES if name != _REFUSED]


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=10)
@given(text=hostile_text.TEXT | st.text(" \n\tab1é€😀½", max_size=9))
@example(text="  so 3\n\n ки</s>é€😀")
@example(text="xyzzy so")
@example(text="\u2581\u2581</s>")
def test_the_text_of_encoded_ids_is_what_the_decoder_gives(name, text):
  ids = tokenizer(name).encode(text)
  expected = tokenizer(name).decode(ids)
  if _INCOMPLETE not in expected:
    assert tokens_of(name).text(ids) == expected


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=15)
@given(ids=st.lists(st.integers(0, 700), max_size=8))
def test_the_text_of_any_ids_is_what_the_decoder_gives(name, ids):
  expected = tokenizer(name).decode(ids)
  if _INCOMPLETE not in expected:
    assert tokens_of(name).text(ids) == expected


@pytest.mark.parametrize(
  "name", ["recipes/qwen", "recipes/llama_2", "hostile/bytes"]
)
@given(text=st.text("ab €é😀\n", min_size=1, max_size=8), data=st.data())
def test_ends_count_the_characters_that_are_whole(name, text, data):
  ids = tokenizer(name).encode(text)
  extra = st.sampled_from([-1, 10**6, tokenizer(name).eos])
  for place in data.draw(st.lists(st.integers(0, len(ids)), max_size=2)):
    ids.insert(place, data.draw(extra))
  tokens = tokens_of(name)
  whole, ends = tokens.text(ids), tokens.ends(ids)
  assert ends[-1] == len(whole) and (np.diff(ends) >= 0).all()
  for k, end in enumerate(ends, 1):
    assert whole[:end] == tokens.text(ids[:k]).rstrip(_INCOMPLETE)


@given(st.lists(st.binary(max_size=4), max_size=12))
def test_ends_of_any_bytes_are_those_of_whole_characters(parts):
  tokens = token_bytes.TokenBytes(tuple(parts), tuple(parts))
  ids = [*range(len(parts))]
  ends, whole = tokens.ends(ids), tokens.text(ids)
  assert whole == b"".join(parts).decode("utf-8", "replace")
  assert ends.dtype == np.int32 and ends.shape == (len(parts),)
  assert (np.diff(ends, prepend=0) >= 0).all()
  assert (ends[-1] if parts else 0) == len(whole)
  for k in ids:
    # What follows changes no end before that of the last id with bytes.
    settled = max((i for i in ids[:k] if parts[i]), default=0)
    np.testing.assert_array_equal(
      tokens.ends(ids[:k])[:settled], ends[:settled]
    )


def test_a_character_of_three_bytes_ends_with_its_last():
  tokens = tokens_of("hostile/bytes")
  assert tokens.ends([*"a€b".encode()]).tolist() == [1, 1, 1, 2, 3]
  # Half a character is complete with its own last byte.
  assert tokens.ends([0xE2, 0x82, 97]).tolist() == [0, 1, 2]
  assert tokens.ends([97, 0xE2, 0x82]).tolist() == [1, 1, 2]


def test_half_characters_are_not_lost():
  """`decode([id])` gives the same U+FFFD for each of them."""
  tokens, qwen = tokens_of("recipes/qwen"), tokenizer("recipes/qwen")
  ids = qwen.encode("€")
  assert len(ids) > 1
  assert b"".join(tokens.of[i] for i in ids) == "€".encode()


def test_controls_and_ids_beyond_the_vocabulary_add_nothing():
  for name in ALL:
    own, tokens = tokenizer(name), tokens_of(name)
    assert len(tokens.of) == own.vocab_size
    for i in (own.bos, own.eos, own.separator):
      assert tokens.of[i] == b""
    ids = own.encode("so 3")
    around = [-1, own.bos, *ids, own.vocab_size, 10**9, own.eos]
    assert tokens.text(around) == tokens.text(ids)


def test_named_controls_show_by_their_name_alone():
  qwen = tokenizer("recipes/qwen")
  tokens = token_bytes.token_bytes(qwen, ["<extra_0>"])
  ids = [qwen.control("<|im_start|>"), qwen.control("<extra_0>")]
  assert tokens.text([*ids, *qwen.encode(" so")]) == "<extra_0> so"
  with pytest.raises(errors.InputError, match="no control token 'so'"):
    token_bytes.token_bytes(qwen, ["so"])


@pytest.mark.parametrize(
  "name, strips",
  [
    *(("hostile/bytes", False), ("recipes/qwen", False)),
    *(("recipes/llama_2", True), ("hostile/unigram", True)),
    *(("hostile/sentencepiece_bpe", True), ("huggingface/prepend", False)),
  ],
)
def test_a_space_that_a_decoder_leaves_out_is_known(name, strips):
  tokens = tokens_of(name)
  assert (tokens.first is not tokens.of) == strips


@pytest.mark.parametrize(
  "decoder",
  [
    None,
    decoders.WordPiece(),
    decoders.CTC(),
    decoders.BPEDecoder(),
    decoders.Sequence([decoders.Strip(" ", 1, 0), decoders.Fuse()]),
    decoders.Sequence([decoders.Fuse(), decoders.ByteFallback()]),
    decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
  ],
)
def test_a_decoder_that_joins_tokens_otherwise_is_refused(decoder):
  spec = json.loads(recipes.json_of("llama_2"))
  spec["decoder"] = decoder and json.loads(decoder.__getstate__())
  other = tokenizer_files.HuggingFace(json.dumps(spec), path="my.json")
  with pytest.raises(
    errors.InputError, match=r"^my\.json: its decoder \("
  ) as e:
    token_bytes.token_bytes(other)
  assert "\n" not in str(e.value)


class Words:
  """A tokenizer of a user's own."""

  vocab_size = text_ids = bos = eos = separator = 3
  bos_name = None
  encode = encode_with_spans = control = decode = save = len


def test_another_kind_of_tokenizer_is_refused():
  with pytest.raises(errors.InputError, match="a Words has no vocabulary"):
    token_bytes.token_bytes(Words())
