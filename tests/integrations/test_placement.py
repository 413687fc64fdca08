"""A step's reward is on the token that completes it, and none is lost."""

import functools
import math

import hostile_text
from hypothesis import example
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import policy_folders
import pytest
import recipes
import tokenizers

from prm_jax import errors
from prm_jax.integrations import placement
from prm_jax.text import token_offsets

TOKENIZERS = {
  "byte_level": lambda: recipes.tokenizer("qwen"),
  "byte_fallback": lambda: recipes.tokenizer("llama_2"),
  "sentencepiece": lambda: hostile_text.tokenizer("sentencepiece_bpe"),
  "bytes": lambda: hostile_text.tokenizer("bytes"),
}
FAMILY = "\U0001f469\u200d\U0001f467"
PARTS = ("so 3", " + 4", "Step 1: ", "\r\n", "\n\n", "  ", "\t", ".")
TEXT = st.lists(
  st.sampled_from([*PARTS, "é", "€", "ки", "🙂", FAMILY, "\ufffd"]), max_size=7
).map("".join)


@functools.cache
def tokenizer(name):
  return TOKENIZERS[name]()


def slow_place(spans, scores, ids, decode):
  """The oracle: decodes each prefix of the ids, and what is left.

  U+FFFD is no half of a character if both together are the whole text.
  """
  whole, out = decode(ids), [0.0] * len(ids)
  for (_, end), score in zip(spans, scores):
    if score is None:
      continue
    for k in range(1, len(ids) + 1):
      text = decode(ids[:k])
      rest = decode(ids[k:]).lstrip(" ")
      is_settled = whole[len(text) :].lstrip(" ") == rest
      is_settled = is_settled or not text.endswith("\ufffd")
      if is_settled and text and len(text) >= end:
        assert whole.startswith(text)
        out[k - 1] += score
        break
    else:
      raise AssertionError("a step without a token")
  return out


@st.composite
def steps_of(draw, num_chars):
  """Spans within a text, some of them empty, and their scores."""
  places = draw(st.lists(st.integers(0, num_chars), max_size=8).map(sorted))
  spans = list(zip(places[::2], places[1::2]))
  score = st.none() | st.integers(-8, 8).map(lambda n: n / 8)
  return spans, [draw(score) for _ in spans]


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=40)
@given(text=TEXT, data=st.data())
@example(text="a€b\r\n🙂  ", data=None)
@example(text="x = 5 \ufffd\nso y = 2", data=None)
def test_placed_rewards_are_those_of_the_slow_oracle(name, text, data):
  own = tokenizer(name)
  ids = own.encode(text)
  if data is not None:
    for place in data.draw(st.lists(st.integers(0, len(ids)), max_size=2)):
      ids.insert(place, own.eos)
  whole = own.decode(ids)
  offsets = token_offsets.of_ids(ids, own.decode)
  assert len(offsets) == len(ids)
  if data is None:
    spans = [(i, i + 1) for i in range(len(whole))]
    scores = [1.0] * len(spans)
  else:
    spans, scores = data.draw(steps_of(len(whole)))
  if not whole:
    return
  placed = placement.place_step_rewards(spans, scores, offsets)
  assert placed == slow_place(spans, scores, ids, own.decode)
  assert math.fsum(placed) == math.fsum(s for s in scores if s is not None)
  assert not any(x for x, i in zip(placed, ids) if i == own.eos)


def test_half_a_character_completes_no_step():
  offsets = token_offsets.of_ids([*"a€b".encode()], _utf8)
  assert offsets == [1, 1, 1, 2, 3]
  placed = placement.place_step_rewards([(0, 2), (2, 3)], [0.5, 0.25], offsets)
  assert placed == [0, 0, 0, 0.5, 0.25]


def test_a_replacement_character_of_the_text_ends_its_step():
  text = "x = 5 \ufffd\nso y = 2"
  for name in TOKENIZERS:
    ids = tokenizer(name).encode(text)
    offsets = token_offsets.of_ids(ids, tokenizer(name).decode)
    placed = placement.place_step_rewards([(0, 7), (8, 16)], [0.5, 1], offsets)
    token = placed.index(0.5)
    assert tokenizer(name).decode(ids[: token + 1]) == text[:7]
    assert placed[-1] == 1


def _utf8(ids):
  return bytes(ids).decode("utf-8", "replace")


def test_the_reward_models_tokenizer_does_not_matter():
  """The spans are characters; a policy of other tokens finds its own."""
  text = "so 3 + 4 = 7\r\n\r\nanswer 🙂 7"
  spans, scores = [(0, 12), (16, len(text))], [0.75, 0.5]
  places = []
  for name in ("byte_level", "sentencepiece", "bytes"):
    ids = [*tokenizer(name).encode(text), tokenizer(name).eos]
    offsets = token_offsets.of_ids(ids, tokenizer(name).decode)
    placed = placement.place_step_rewards(spans, scores, offsets)
    assert math.fsum(placed) == 1.25 and placed[-1] == 0 and placed[-2] == 0.5
    places.append(placed.index(0.75))
    ends = tokenizer(name).decode(ids[: places[-1] + 1])
    assert ends.startswith(text[:12])
    before = tokenizer(name).decode(ids[: places[-1]])
    assert len(before) < 12
  assert len(set(places)) > 1


def test_steps_on_one_token_are_added_and_empty_steps_have_a_place():
  offsets = [0, 2, 5, 5]  # a special token first and last
  spans = [(0, 0), (0, 3), (3, 4), (5, 5)]
  placed = placement.place_step_rewards(spans, [8.0, 1.0, 2.0, 4.0], offsets)
  assert placed == [0.0, 8.0, 7.0, 0.0]
  thirds = placement.place_step_rewards([(0, 1), (1, 2)], [0.1, 0.2], [2])
  assert thirds == [math.fsum([0.1, 0.2])]
  assert placement.place_step_rewards([], [], []) == []
  assert placement.place_step_rewards([(0, 0)], [None], [0]) == [0.0]


@pytest.mark.parametrize(
  "spans, scores, offsets, message",
  [
    ([(0, 2)], [], [2], "0 scores for 1 spans"),
    ([(0, 3)], [1.0], [2], r"spans\[0\] ends at character 3, .* has 2;"),
    ([(2, 3), (0, 1)], [1, 1], [3], r"spans\[1\] is \(0, 1\) after .* at 3;"),
    ([(0, 2), (1, 3)], [1, 1], [3], r"spans\[1\] is \(1, 3\)"),
    ([(2, 1)], [1], [3], r"spans\[0\] is \(2, 1\)"),
    ([(-1, 1)], [1], [3], r"spans\[0\] is \(-1, 1\)"),
    ([(0, 1)], [math.nan], [3], r"scores\[0\] is nan; give a finite number"),
    ([(0, 1)], [math.inf], [3], r"scores\[0\] is inf"),
    ([(0, 1)], [1], [2, 1], "must not decrease"),
    ([(0, 1)], [1], [-1, 1], "must not decrease or be negative"),
    ([(0, 0)], [1], [0, 0], r"spans\[0\]: no token completes a character"),
  ],
)
def test_what_has_no_place_is_refused(spans, scores, offsets, message):
  with pytest.raises(errors.InputError, match=message) as e:
    placement.place_step_rewards(spans, scores, offsets)
  assert "\n" not in str(e.value)


def test_a_step_without_a_score_gets_no_reward():
  placed = placement.place_step_rewards([(0, 1), (1, 2)], [None, 0.5], [1, 2])
  assert placed == [0.0, 0.5]


# --- Offset mappings --------------------------------------------------------


@settings(max_examples=40)
@given(text=TEXT)
@example(text="a€b 🙂")
@example(text="\ufffd  \ufffd + 4")
def test_a_fast_tokenizers_mapping_gives_the_same_offsets(text):
  own = tokenizer("byte_level")
  fast = tokenizers.Tokenizer.from_str(recipes.json_of("qwen"))
  encoded = fast.encode(text, add_special_tokens=False)
  offsets = placement.mapping_offsets(encoded.offsets, len(text))
  assert offsets == token_offsets.of_ids(encoded.ids, own.decode)


def test_special_tokens_of_a_mapping_complete_nothing():
  mapping = [(0, 0), (0, 2), (0, 0), (2, 3), (2, 3), (0, 0)]
  assert placement.mapping_offsets(mapping, 3) == [0, 2, 2, 2, 3, 3]


def test_a_tokenizer_of_transformers_decodes_without_special_tokens():
  class Theirs:
    def decode(self, ids, **options):
      assert options.pop("skip_special_tokens")
      assert options == dict(clean_up_tokenization_spaces=False)
      assert all(type(i) is int for i in ids)
      return policy_folders.tokenizer("qwen2_5").decode(ids)

  ids = policy_folders.tokenizer("qwen2_5").encode("so 3")
  assert placement.decoder(Theirs())(np.asarray(ids)) == "so 3"


# --- Shapes -----------------------------------------------------------------


def test_rows_are_aligned_with_a_mask_on_either_side_and_between():
  mask = np.array([[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0], [0, 0, 0, 0]])
  out = placement.align([[1, 2], [3, 4], [5, 6], []], mask)
  assert out.dtype == np.float32
  assert out.tolist() == [[1, 2, 0, 0], [0, 0, 3, 4], [5, 0, 6, 0], [0] * 4]


@pytest.mark.parametrize(
  "rows, message",
  [([[1.0]], "row 0: 1 values for the mask's 2"), ([], "0 rows of values")],
)
def test_rows_that_do_not_fit_a_mask_are_refused(rows, message):
  with pytest.raises(errors.InputError, match=message):
    placement.align(rows, np.array([[True, True]]))


def test_a_value_stands_where_its_token_is_the_target():
  prompt, response, values = [7, 8, 9], [4, 5], [0.5, 0.25]
  targets = [*prompt, *response][1:]
  shifted = placement.for_targets(len(prompt), values)
  assert len(shifted) == len(targets)
  assert list(zip(targets, shifted))[2:] == [(4, 0.5), (5, 0.25)]
  assert shifted[:2] == [0.0, 0.0]
  with pytest.raises(errors.InputError, match="needs a token before it"):
    placement.for_targets(0, values)
