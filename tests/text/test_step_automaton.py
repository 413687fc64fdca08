r"""A table over a vocabulary stops where the host cuts, at the same token.

The oracle decodes all bytes after every token and asks the segmenter. A step
of a text is closed if a letter that follows the text belongs to another one.
"""

import functools
import re

import hostile_text
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest
import test_token_bytes

from prm_jax import errors
from prm_jax.text import segmenters
from prm_jax.text import step_automaton
from prm_jax.text import token_bytes
from prm_jax.text import tokenizer as tokenizer_lib

NONE, STEP, STOP = range(3)
EVENTS = step_automaton.EVENTS
KINDS = (segmenters.PARAGRAPH, segmenters.LINE)
SEPARATORS = ("\n\n", "\n", " ки\n", "aba", "\n \n", "é", "aaab", "\t")
STOPS = ("\n\nProblem:", "ab", "é", "a\n", "aaba", "ки", "\n\n\n", "blem")
# 10,000 more were run once by hand: see the module's commit.
NUM_CASES = 300
# What opens and closes blocks, and blank lines, in any order.
BLOCKS = st.lists(
  st.sampled_from(
    (
      *("```", "```py\n", "\n```\n", "~~~", "````\n", "`", "  ```", "$", "$$"),
      *("\n$$\n", "\\[", "\\]\n", "\\", "\\\\[2pt]", "\\begin{align}", "$x$"),
      *("\\end{align}", "\\begin{cases}", "\\end{cases}", "[asy]", "[/asy]"),
      *("\n\n", "\n\n", "\r\n\r\n", "\n \n", "\n", "x", "So we ", "I see", "é"),
    )
  ),
  max_size=14,
).map("".join)


def _walk(stops, ids, state=0):
  """Returns the state after each id, and its event."""
  out = []
  for i in ids:
    state, event = stops.entry(state, int(i))
    out.append((state, event))
  return out


def _entries(stops, num_ids=0):
  """Returns what a device looks up of at least so many ids, id by id."""
  table, kinds = stops.for_ids(num_ids)
  return np.asarray(table)[:, kinds]


def _num_closed(text, steps):
  """Returns how many steps of a text are complete."""
  if steps is None:
    return 0
  if isinstance(steps, segmenters.Segmenter):
    return len(segmenters.spans(text + "x", steps)) - 1
  parts = re.split(re.escape(steps), text)[:-1]
  return sum(part.strip(f"{segmenters.BLANK}\n") != "" for part in parts)


def _expected(parts, prefix, steps, stop):
  """Returns the event of each token, from all bytes up to it."""
  so_far, out = prefix.encode(), []
  for part in parts:
    before, so_far = so_far, so_far + part
    old, new = (x.decode("utf-8", "replace") for x in (before, so_far))
    event = NONE
    if _num_closed(new, steps) > _num_closed(old, steps):
      event = STEP
    if any(new.count(x) > old.count(x) for x in stop if x in new):
      event = STOP
    out.append(event)
  return out


# --- Random vocabularies ----------------------------------------------------

_LETTERS = [*"ab", "\n", "\n", " ", "\r", "\t", "é", "к", "и", "€", "."]
_LETTERS += [*"`$", "```\n", "\n```", "~~~\n", "$$", "\\", "\\[", "\\]"]
_TOKENS = (
  *(b"\n\n", b".\n\n", b"\n\n\n", b" \n", b"\r\n", b"", b"\xe2", b"\x82\xac"),
  *(b"\n``", b"`\n", b"$", b"$\n", b"\\", b"[", b"]\n\n", b"~~~", b"\n~~~\n"),
  *(b"a", b"Problem:", b"\xd0", b"\xba\xd0", b"\xb8\n", b"\n\nPro", b"blem"),
)


def _vocabulary(random, texts):
  """Returns bytes of ids: of real vocabularies, halves, parts of texts."""
  chosen = random.permutation(len(_TOKENS))[: random.integers(4, 18)]
  of = [_TOKENS[i] for i in chosen]
  for _ in range(random.integers(2, 12)):
    text = "".join(random.choice(_LETTERS, random.integers(1, 6))).encode()
    start = random.integers(0, 2)
    of.append(text[start : len(text) - random.integers(0, 2)])
  for text in texts:
    own = text.encode()
    for _ in range(4):
      start, end = sorted(random.integers(0, len(own) + 1, 2))
      of.append(own[start:end])
  return tuple(of)


def _check(seed):
  random = np.random.default_rng(seed)
  steps = (None, *KINDS, *SEPARATORS)[random.integers(3 + len(SEPARATORS))]
  stop = tuple(random.choice(STOPS, random.integers(0, 3), replace=False))
  texts = [*stop, steps] if isinstance(steps, str) else stop
  of = _vocabulary(random, texts)
  tokens = token_bytes.TokenBytes(of, of)
  prefix = "".join(random.choice(_LETTERS, random.integers(0, 5)))
  ids = random.integers(0, len(of), 12)
  stops = step_automaton.make(tokens, steps, stop)
  found = [e for _, e in _walk(stops, ids, stops.state_after(prefix))]
  expected = _expected([of[i] for i in ids], prefix, steps, stop)
  if stop:
    # str.count finds no text that overlaps another one.
    first = next((k for k, e in enumerate(expected) if e == STOP), len(ids))
    found, expected = found[: first + 1], expected[: first + 1]
  assert found == expected, (seed, of, steps, stop, prefix, ids)
  return {*found}


def test_events_are_those_of_the_decoded_bytes_in_random_vocabularies():
  seen = set()
  for seed in range(NUM_CASES):
    seen |= _check(seed)
  assert seen == {NONE, STEP, STOP}


# --- Tokenizers -------------------------------------------------------------


@pytest.mark.parametrize("steps", KINDS, ids=lambda x: x.kind)
@pytest.mark.parametrize("name", test_token_bytes.ALL)
@settings(max_examples=5)
@given(
  prefix=st.text("a \n", max_size=4),
  text=hostile_text.TEXT | st.text(" \n\tab1é€😀½", max_size=12) | BLOCKS,
)
def test_events_are_those_of_the_decoded_ids(name, steps, prefix, text):
  tokens = test_token_bytes.tokens_of(name)
  ids = test_token_bytes.tokenizer(name).encode(text)
  stop = ("3 +", "b\n")
  stops = step_automaton.make(tokens, steps, stop)
  found = [e for _, e in _walk(stops, ids, stops.state_after(prefix))]
  expected = _expected([tokens.of[i] for i in ids], prefix, steps, stop)
  first = next((k for k, e in enumerate(expected) if e == STOP), len(ids))
  assert found[: first + 1] == expected[: first + 1]


def test_the_prefix_leaves_the_state_that_its_ids_leave():
  tokens = test_token_bytes.tokens_of("recipes/qwen")
  qwen = test_token_bytes.tokenizer("recipes/qwen")
  stops = step_automaton.make(tokens, segmenters.PARAGRAPH, ("\n\nX", "é"))
  for text in ("", "\n", "a", "a\n", "a\n \n", "a\n\n\n", "a\n\nX", "é\n"):
    walked = [0, *(state for state, _ in _walk(stops, qwen.encode(text)))]
    assert stops.state_after(text) == walked[-1]


# --- One law each -----------------------------------------------------------


def _events(of, ids, steps, stop=(), prefix=""):
  tokens = token_bytes.TokenBytes(tuple(of), tuple(of))
  stops = step_automaton.make(tokens, steps, stop)
  return [e for _, e in _walk(stops, ids, stops.state_after(prefix))]


@pytest.mark.parametrize("end", [b"\n\n", b".\n\n", b"\n\n\n", b"\n \r\nX"])
def test_a_blank_line_inside_one_token_ends_a_step(end):
  of = [b"a", end]
  assert _events(of, [0, 1], segmenters.PARAGRAPH) == [NONE, STEP]


def test_a_blank_line_that_begins_a_text_ends_no_step():
  of = [b"\n\n", b" ", b"a", b"\n"]
  paragraph = _events(of, [0, 0, 1, 2, 3, 3, 3, 3], segmenters.PARAGRAPH)
  assert paragraph == [NONE] * 5 + [STEP, NONE, NONE]
  line = _events(of, [0, 3, 1, 2, 3, 3], segmenters.LINE)
  assert line == [NONE] * 4 + [STEP, NONE]


def test_a_prefix_that_stands_in_a_break_is_closed_by_one_line_break():
  of = [b"\n", b"a"]
  assert _events(of, [0], segmenters.PARAGRAPH, prefix="a\n ") == [STEP]
  assert _events(of, [0], segmenters.PARAGRAPH, prefix="a\n\n") == [NONE]


def test_a_stop_text_in_the_token_that_ends_a_step_is_a_stop():
  of = [b"a", b"\n\nX", b"\n\n", b"X"]
  found = _events(of, [0, 1], segmenters.PARAGRAPH, ["\n\nX"])
  assert found == [NONE, STOP]
  found = _events(of, [0, 2, 3], segmenters.PARAGRAPH, ["\n\nX"])
  assert found == [NONE, STEP, STOP]


def test_stop_texts_that_hold_each_other_are_all_found():
  of = [b"h", b"e", b"r", b"s", b"i"]
  stop = ["hers", "he", "his", "she"]
  assert _events(of, [0, 4, 3, 0, 1, 2, 3], None, stop) == [
    *(NONE, NONE, STOP, NONE, STOP, NONE, STOP)
  ]


def test_a_stop_text_inside_the_beginning_of_another_is_found():
  of = [b"s", b"h", b"e"]
  assert _events(of, [0, 1, 2], None, ["shes", "he"]) == [NONE, NONE, STOP]


def test_a_separator_that_begins_a_text_ends_no_step():
  of = [b"+", b"-", b" "]
  found = _events(of, [0, 1, 2, 0, 1, 0, 0, 1], "+-")
  assert found == [NONE] * 7 + [STEP]
  assert _events(of, [0, 0, 1, 0, 1], "++-") == [NONE] * 5
  assert _events(of, [0, 0, 0, 1], "++-") == [NONE] * 3 + [STEP]


def test_an_id_that_ends_a_step_is_one_state_and_needs_no_bytes():
  stops = step_automaton.at_id(12, 13)
  assert _entries(stops).shape == (1, 13)
  assert [e for _, e in _walk(stops, [12, 0, 11, 12])] == [STEP, 0, 0, STEP]
  with pytest.raises(errors.InputError, match="id 13 can't end a step"):
    step_automaton.at_id(13, 13)


@pytest.mark.parametrize("steps", KINDS, ids=lambda x: x.kind)
@settings(max_examples=25)
@given(texts=st.lists(BLOCKS | st.text("a \n", max_size=6), max_size=4))
def test_a_text_begins_anew_after_an_id_that_ends_its_step(steps, texts):
  of = (*(bytes([i]) for i in range(256)), b"")
  tokens = token_bytes.TokenBytes(of, of)
  stop = ("Problem", "\n\nx")
  stops = step_automaton.make(tokens, steps, stop, [256])
  ids, expected = [], []
  for text in texts:
    parts = [bytes([i]) for i in text.encode()]
    ids += [*text.encode(), 256]
    expected += _expected(parts, "", steps, stop)
    begun = len(segmenters.spans(text, steps)) > _num_closed(text, steps)
    expected.append(STEP if begun else NONE)
  assert [e for _, e in _walk(stops, ids)] == expected
  alone = step_automaton.make(tokens, None, stop, [256])
  found = [e for (_, e), i in zip(_walk(alone, ids), ids) if i == 256]
  assert not any(found)


def test_further_ids_add_nothing():
  of = (b"a", b"\n\n")
  tokens = token_bytes.TokenBytes(of, of)
  stops = step_automaton.make(tokens, segmenters.PARAGRAPH, ["zz"])
  table = _entries(stops, 5)
  assert table.shape[1] == 5 and table.dtype == stops.table.dtype
  np.testing.assert_array_equal(table[:, :2], _entries(stops))
  entries = [stops.entry(0, i) for i in range(2)]
  assert [divmod(int(x), EVENTS) for x in table[0, :2]] == entries
  states = np.arange(len(table)) * EVENTS
  np.testing.assert_array_equal(table[:, 2:], np.stack([states] * 3, 1))
  assert _entries(stops, 1).shape[1] == 2


def test_a_table_of_many_states_has_wider_entries_and_too_many_are_refused():
  of = (b"a", b"b")
  tokens = token_bytes.TokenBytes(of, of)
  long = "a" * 100 + "b"
  stops = step_automaton.make(tokens, stop=[long])
  assert stops.table.dtype == np.uint16
  assert [e for _, e in _walk(stops, [0] * 130 + [1])] == [NONE] * 130 + [STOP]
  short = step_automaton.make(tokens, stop=["ab"])
  assert short.table.dtype == np.uint8
  with pytest.raises(errors.InputError, match="stop texts make 20,001 states"):
    step_automaton.make(tokens, stop=["a" * 20_000])


@pytest.mark.real_weights
@settings(deadline=None, max_examples=40)
@given(texts=st.lists(BLOCKS, min_size=1, max_size=4))
def test_blocks_are_followed_over_a_published_vocabulary(texts, real_weights):
  tokenizer, tokens = _published(real_weights)
  stops = step_automaton.make(tokens, segmenters.PARAGRAPH)
  for text in texts:
    ids = tokenizer.encode(text)
    found = [e for _, e in _walk(stops, ids)]
    parts = [tokens.of[i] for i in ids]
    assert found == _expected(parts, "", segmenters.PARAGRAPH, ())


@functools.cache
def _published(folder):
  tokenizer = tokenizer_lib.from_folder(folder / "smollm2-135m")
  return tokenizer, token_bytes.token_bytes(tokenizer)


def test_few_kinds_of_ids_are_kept_and_no_entry_is_lost():
  tokens = test_token_bytes.tokens_of("recipes/qwen")
  stops = step_automaton.make(tokens, segmenters.PARAGRAPH, ("\n\nProblem:",))
  assert stops.table.shape[1] < 250
  assert len(np.unique(stops.table, axis=1).T) == stops.table.shape[1]
  own, table = stops.automaton, _entries(stops)
  for i, part in enumerate(tokens.of):
    state, event = np.arange(len(table)), np.zeros(len(table), int)
    for byte in part:
      event = np.maximum(event, own.event[state, byte])
      state = own.next[state, byte]
    np.testing.assert_array_equal(table[:, i], state * EVENTS + event)


def test_texts_without_a_character_are_refused():
  for options in (dict(steps=""), dict(stop=["a", ""])):
    with pytest.raises(errors.InputError, match="is empty"):
      step_automaton.make(token_bytes.TokenBytes((), ()), **options)
