"""What a reward model says of a step lands on the token that closes it."""

import itertools
import re

import hostile_text
from hypothesis import example
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest
import recipes

from prm_jax import errors
from prm_jax.text import alignment
from prm_jax.text import encoding
from prm_jax.text import token_bytes
from prm_jax.text import tokenizer as tokenizer_lib

TOKENIZERS = (*hostile_text.TOKENIZERS, "qwen", "llama_2", "llama_3")
LOSSLESS = ("bytes", "sentencepiece_bpe", "byte_level", "qwen", "llama_3")

# Characters of one to four bytes, more than a tiny vocabulary has pieces for.
TEXT = hostile_text.TEXT | st.text("aé€😀 ", max_size=8)
# A step as a policy writes it: on one line, without space around it, and
# without what is a space, or half a character, to a tokenizer.
STEP = (
  TEXT.map(lambda x: re.sub("[\n\u2581\ufffd\ud800-\udfff]", " ", x))
  .map(str.strip)
  .filter(bool)
)


def _tokenizer(name: str) -> tokenizer_lib.Tokenizer:
  if name in hostile_text.TOKENIZERS:
    return hostile_text.tokenizer(name)
  return recipes.tokenizer(name)


def _completion(steps, tokenizer) -> list[int]:
  """Returns the steps as a policy that ends itself emits them."""
  closed = [[*tokenizer.encode(x), tokenizer.separator] for x in steps]
  return [*itertools.chain(*closed), tokenizer.eos]


# --- Where tokens end -------------------------------------------------------


def test_the_bytes_of_a_character_end_with_the_last_of_them():
  tokenizer = tokenizer_lib.Bytes()
  ids = _completion(["a€", "", "é😀"], tokenizer)
  # a € € € sep; sep; é é four of 😀 sep eos: a€\n\né😀
  expected = [1, 1, 1, 2, 3, 4, 4, 5, 5, 5, 5, 6, 6, 6]
  assert alignment.completion_text(ids, tokenizer) == "a€\n\né😀"
  assert alignment.token_ends(ids, tokenizer).tolist() == expected
  wide = alignment.token_ends(ids, tokenizer, between="\n\n").tolist()
  assert wide == [1, 1, 1, 2, 4, 6, 6, 7, 7, 7, 7, 8, 8, 8]


@pytest.mark.parametrize("name", LOSSLESS)
@settings(max_examples=25)
@given(parts=st.lists(STEP, max_size=5))
@example(parts=["a", "\ufffd", "b"])
@example(parts=["e\u0301", "😀😀", "€"])
def test_ends_are_those_of_the_tokens_bytes(name, parts):
  """Also where a policy's tokens aren't those of encoding its text."""
  tokenizer = _tokenizer(name)
  ids = [x for part in parts for x in tokenizer.encode(part)]
  expected = token_bytes.token_bytes(tokenizer).ends(ids).tolist()
  assert alignment.token_ends(ids, tokenizer).tolist() == expected


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=25)
@given(data=st.data())
def test_ends_of_any_ids_never_fall_and_reach_the_end_of_the_text(name, data):
  tokenizer = _tokenizer(name)
  controls = st.sampled_from(
    [tokenizer.separator, tokenizer.eos, tokenizer.bos, 10_000]
  )
  token = st.integers(0, tokenizer.vocab_size - 1) | controls
  ids = data.draw(st.lists(token, max_size=12))
  ends = alignment.token_ends(ids, tokenizer)
  assert ends.dtype == np.int32 and len(ends) == len(ids)
  assert (np.diff(ends) >= 0).all() and (ends >= 0).all()
  if ids:
    assert ends[-1] == len(alignment.completion_text(ids, tokenizer))


def test_a_decoder_that_looks_at_the_whole_text_loses_none_of_it():
  class Closing(tokenizer_lib.Bytes):
    def decode(self, ids):
      return super().decode(ids) + "." * (len(ids) > 3)

  ends = alignment.token_ends(list(b"abcd"), Closing())
  assert ends.tolist() == [1, 2, 3, 5]


def test_what_follows_spaces_at_the_beginning_ends_where_it_is():
  """Decoders leave out the first of them only."""
  tokenizer = recipes.tokenizer("llama_2")
  space, a = tokenizer.encode("a")
  ids = [tokenizer.bos, space, space, tokenizer.bos, a, a]
  assert alignment.completion_text(ids, tokenizer) == " aa"
  ends = alignment.token_ends(ids, tokenizer).tolist()
  assert ends[:2] == [0, 0] and ends[4:] == [2, 3]


@pytest.mark.parametrize("name", ["bytes", "sentencepiece_bpe", "qwen"])
@pytest.mark.parametrize("text", ["so 3 + 4 = 7. ", "€😀", "no words: \ufffd"])
def test_the_cost_of_one_giant_step_is_linear(name, text, monkeypatch):
  tokenizer = _tokenizer(name)
  ids = [tokenizer.bos] * 300 + tokenizer.encode(text * 60)
  decode, decoded = tokenizer.decode, []

  def counting(ids):
    decoded.append(len(ids))
    return decode(ids)

  # The text itself, which is decoded once a step, isn't what is counted.
  monkeypatch.setattr(tokenizer, "decode", counting)
  alignment.token_ends(ids, tokenizer)
  assert sum(decoded) < 16 * len(ids)


# --- The reward model's steps -----------------------------------------------


def test_lines_paragraphs_and_spans_are_cut_where_they_end():
  text = "\n so 3 \nthen 4\r\n\n \nanswer 7\n"
  steps, ends = alignment.segments(text, "line")
  assert steps == ["so 3", "then 4", "answer 7"]
  assert [text[:e].split()[-1] for e in ends] == ["3", "4", "7"]
  steps, ends = alignment.segments(text, "paragraph")
  assert steps == ["so 3 \nthen 4", "answer 7"]
  assert [text[e - 1] for e in ends] == ["4", "7"]
  steps, ends = alignment.segments(text, [(2, 7), (8, 9), (9, 16)])
  assert steps == ["so 3", "t", "hen 4"] and ends.tolist() == [6, 9, 14]


@pytest.mark.parametrize("how", [*alignment.CUTS, []])
@pytest.mark.parametrize("text", ["", " \n\n \t"])
def test_a_blank_text_has_no_steps(text, how):
  steps, ends = alignment.segments(text, how)
  assert steps == [] and ends.shape == (0,)
  for tokens in (np.zeros(0, np.int32), np.zeros(2, np.int32)):
    assert alignment.closing_tokens(tokens, ends).shape == (0,)


@pytest.mark.parametrize(
  ("how", "reason"),
  [
    ("word", "steps='word': expected one of paragraph, line,"),
    ([(0, 2), (1, 3)], r"span 1 \(from 0\), characters 1-3, isn't in order"),
    ([(2, 1)], "characters 2-1, isn't in order within 0-5"),
    ([(0, 6)], "characters 0-6, isn't in order within 0-5"),
    ([(-1, 2)], "characters -1-2, isn't in order"),
    ([(0, 2), (2, 3)], "span 1 .*, characters 2-3, is blank"),
  ],
)
def test_a_cut_that_can_not_be_is_one_line(how, reason):
  with pytest.raises(errors.InputError, match=reason) as e:
    alignment.segments("so 34", how)
  assert "\n" not in str(e.value)


def test_steps_of_another_text_are_refused():
  ends = np.array([1, 2], np.int32)
  with pytest.raises(errors.InputError, match=r"step 1 \(from 0\) ends at"):
    alignment.closing_tokens(ends, np.array([2, 3], np.int32))
  with pytest.raises(errors.InputError, match="of a completion of 0"):
    alignment.closing_tokens(ends[:0], ends)


# --- Where rewards land -----------------------------------------------------


@pytest.mark.parametrize("place", encoding.SCORE_POSITIONS)
@pytest.mark.parametrize("name", LOSSLESS)
@settings(max_examples=25)
@given(steps=st.lists(STEP, min_size=1, max_size=4))
def test_the_same_tokenizer_and_cut_give_the_ledgers_places(name, place, steps):
  tokenizer = _tokenizer(name)
  encoding_config = encoding.EncodingConfig(score_position=place)
  encoded = encoding.encode("p", steps, tokenizer, encoding_config, end=True)
  ids = encoded.tokens[encoded.prompt_tokens :]
  text = alignment.completion_text(ids, tokenizer)
  found, step_ends = alignment.segments(text, "line")
  assert found == steps
  at_separators = place == "separator"
  closing = alignment.closing_tokens(
    alignment.token_ends(ids, tokenizer),
    step_ends,
    ids == tokenizer.separator if at_separators else None,
  )
  np.testing.assert_array_equal(
    closing, encoded.step_end - encoded.prompt_tokens
  )


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=25)
@given(data=st.data())
def test_nothing_is_lost_and_nothing_lands_outside_the_completion(name, data):
  """Random steps, budgets and padding, and a random cut of the text."""
  tokenizer = _tokenizer(name)
  steps = data.draw(st.lists(TEXT, max_size=4))
  ids = _completion(steps, tokenizer)
  ids = ids[: data.draw(st.integers(0, len(ids)))]
  padded = ids + [tokenizer.eos] * data.draw(st.integers(0, 3))
  text = alignment.completion_text(padded, tokenizer)
  cut = st.lists(st.integers(0, len(text)), max_size=6).map(sorted)
  how = data.draw(
    st.sampled_from(alignment.CUTS)
    | cut.map(lambda x: [(a, b) for a, b in itertools.pairwise(x)])
  )
  if not isinstance(how, str):
    how = [(a, b) for a, b in how if text[a:b].strip()]
  found, step_ends = alignment.segments(text, how)
  token_ends = alignment.token_ends(padded, tokenizer)
  separators = np.array(padded) == tokenizer.separator
  for given_ in (None, separators if padded else np.zeros(0, bool)):
    closing = alignment.closing_tokens(token_ends, step_ends, given_)
    assert len(closing) == len(found) and (np.diff(closing) >= 0).all()
    rewards = np.array([2.0**k for k in range(len(found))])
    placed = np.zeros(len(padded))
    np.add.at(placed, closing, rewards)
    assert placed.sum() == rewards.sum()
    # Never on eos, nor behind it.
    assert not placed[
      [i for i, x in enumerate(padded) if x == tokenizer.eos]
    ].any()
    if given_ is None:
      assert not placed[separators].any() if padded else True
      # The first token that reaches the end, and no earlier one does.
      before = np.where(closing > 0, token_ends[closing - 1], 0)
      assert (before < step_ends).all()
      assert (token_ends[closing] >= step_ends).all()


def test_steps_that_one_token_closes_add_up_there():
  token_ends = np.array([2, 9, 10], np.int32)
  closing = alignment.closing_tokens(token_ends, np.array([1, 4, 9], np.int32))
  assert closing.tolist() == [0, 1, 1]
  separators = np.array([False, False, True])
  closing = alignment.closing_tokens(
    token_ends, np.array([1, 4, 10], np.int32), separators
  )
  assert closing.tolist() == [0, 2, 2]
