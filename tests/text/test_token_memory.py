"""What is encoded part by part is what is encoded whole."""

import functools
import json
import re

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.text import encoding
from prm_jax.text import encoding_records
from prm_jax.text import own_form
from prm_jax.text import policy_text
from prm_jax.text import templates
from prm_jax.text import text_cuts
from prm_jax.text import token_memory
from prm_jax.text import tokenizer as tokenizer_lib
from prm_jax.text import tokenizer_files

# What tokenizers treat in a way of its own: runs of spaces and line breaks,
# characters that are composed or longer normalized, halves of characters, names
# of tokens.
PIECES = (
  *("So ", "x = 3 ", "the next step 12 ", "don't I'll ", "a", "1", "9999 "),
  *(" ", "  ", "   ", "\n", "\n\n", " \n ", "\r\n", "\t", "\u00a0", "\u2003"),
  *(
    "e\u0301",
    "\u0301",
    " \u0308",
    "é",
    "ﬁ",
    "\ufb03 ",
    "Å ",
    "각",
    "ㅏ",
    "ᄀ",
  ),
  *("中文。", "ки", "🙂", "👩\u200d👩", "\ud800", "\x00", "\ufffd", "\u2581"),
  *(
    "<sep>",
    "<|im_start|>",
    "</s>",
    "a\u2581b",
    "$\\frac{1}{2}$ ",
    "'s ",
    "_ ",
  ),
)
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=60)
TEXTS = TEXTS.map("".join)
GPT2, QWEN, LLAMA = text_cuts._PATTERNS
DEEPSEEK = "[\u4e00-\u9fa5]+"


def _bytes_of(*before, **fields):
  last = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True)
  splits = [*before, last | dict(use_regex=not before) | fields]
  return dict(pre_tokenizer=dict(type="Sequence", pretokenizers=splits))


def _split(pattern, behavior="Isolated"):
  return dict(
    type="Split", pattern=dict(Regex=pattern), behavior=behavior, invert=False
  )


SPACES = dict(
  normalizer=dict(type="Replace", pattern=dict(String=" "), content="\u2581"),
  pre_tokenizer=dict(
    type="Split",
    pattern=dict(String=" "),
    behavior="MergedWithPrevious",
    invert=False,
  ),
)
# Those of GPT-2 and SmolLM2, of Qwen with and without its normalizer, of Llama
# 3, and of Gemma.
KNOWN = dict(
  gpt2=_bytes_of(),
  digits=_bytes_of(dict(type="Digits", individual_digits=True), use_regex=True),
  qwen=_bytes_of(_split(QWEN)),
  qwen_nfc=dict(normalizer=dict(type="NFC"), **_bytes_of(_split(QWEN))),
  llama=_bytes_of(_split(LLAMA)),
  gemma=SPACES,
)
UNKNOWN = dict(
  prefixed=_bytes_of(add_prefix_space=True),
  removed=_bytes_of(_split(QWEN, "Removed")),
  other=_bytes_of(_split(r"\S+ \S+")),
  none=dict(pre_tokenizer=None),
  lower=dict(normalizer=dict(type="Lowercase"), **_bytes_of()),
)


def _learnt_words():
  words = "So the next step is that don't x = 12 9999 I'll get a frac"
  return [*words.split(" "), "é", "中文", "\n\n", "  "]


@functools.cache
def _tokenizer(kind, joined=False):
  """Returns a tokenizer of a kind with merges of a few words."""
  fields = dict(normalizer=None) | (KNOWN | UNKNOWN)[kind]
  if kind in ("gemma", "none"):
    letters = sorted({*map(chr, range(33, 127)), "\u2581", "\n", "é"})
    of_bytes = [f"<0x{x:02X}>" for x in range(256)]
  else:
    from tokenizers import pre_tokenizers

    letters, of_bytes = sorted(pre_tokenizers.ByteLevel.alphabet()), []
  vocab = {x: i for i, x in enumerate(["<unk>", *letters, *of_bytes])}
  merges = []
  space = "\u2581" if kind in ("gemma", "none") else "Ġ"
  for word in _learnt_words():
    made = space if space in vocab else word[0]
    for x in word if made == space else word[1:]:
      if x not in vocab:
        break
      merges.append([made, x])
      made += x
      vocab.setdefault(made, len(vocab))
  if joined:
    merges.append(["a", space])
    vocab.setdefault(f"a{space}", len(vocab))
  unique = [list(x) for x in dict.fromkeys(map(tuple, merges))]
  added = [dict(id=len(vocab), content="<sep>", special=True)]
  if kind == "gemma":
    added.append(dict(id=len(vocab) + 1, content="\n\n", special=False))
  flags = dict(single_word=False, lstrip=False, rstrip=False, normalized=False)
  model = dict(type="BPE", vocab=vocab, merges=unique, dropout=None)
  if of_bytes:
    model |= dict(unk_token="<unk>", byte_fallback=True, fuse_unk=True)
  spec = dict(
    version="1.0",
    **fields,
    added_tokens=[flags | x for x in added],
    decoder=None,
    post_processor=None,
    model=model,
  )
  return tokenizer_files.HuggingFace(json.dumps(spec))


def _ends(spans):
  return [last for _, last in spans]


@pytest.mark.parametrize("kind", [*KNOWN, *UNKNOWN])
@settings(max_examples=25)
@given(begin=TEXTS, others=st.lists(TEXTS, min_size=1, max_size=3))
def test_ids_and_places_of_texts_that_begin_alike_are_those_of_each_alone(
  kind, begin, others
):
  inner = _tokenizer(kind)
  tokenizer = token_memory.Remembering(inner)
  for text in (begin, *(begin + other for other in others), begin):
    ids, spans = inner.encode_with_spans(text)
    assert tokenizer.encode(text) == inner.encode(text) == ids
    assert tokenizer.encode_with_spans(text) == (ids, spans)
    assert tokenizer.encode_with_ends(text) == (ids, _ends(spans))


@pytest.mark.parametrize("kind", KNOWN)
def test_ids_and_places_of_long_texts_are_those_of_the_whole(kind):
  inner = _tokenizer(kind)
  random = np.random.default_rng(0)
  for _ in range(40):
    text = "".join(PIECES[i] for i in random.integers(len(PIECES), size=200))
    tokenizer = token_memory.Remembering(inner)
    whole = inner.encode_with_spans(text)
    assert tokenizer.encode_with_spans(text) == whole
    assert len(inner.parts(text)) > 3


@pytest.mark.parametrize("kind", KNOWN)
@settings(max_examples=25)
@given(text=TEXTS)
def test_a_text_may_be_cut_at_every_place_that_parts_may_choose(kind, text):
  """The oracle of the rule itself, with parts of one character and more."""
  tokenizer = _tokenizer(kind)
  for match in re.finditer(r"[0-9A-Za-z](?= )", text):
    begin, rest = text[: match.end()], text[match.end() :]
    (a, first), (b, last) = map(tokenizer.encode_with_spans, (begin, rest))
    places = first + [(len(begin) + x, len(begin) + y) for x, y in last]
    assert (a + b, places) == tokenizer.encode_with_spans(text)


def test_texts_that_begin_alike_share_all_parts_but_their_last():
  for kind in KNOWN:
    tokenizer = _tokenizer(kind)
    begin = "So the next step is that x = 12 and I get 9999 of them. " * 8
    parts = [tokenizer.parts(begin + end) for end in ("So a = 1", "é", "")]
    assert ["".join(x) for x in parts] == [
      begin + x for x in ("So a = 1", "é", "")
    ]
    kept = len(begin) // (2 * text_cuts.CHARS)
    assert parts[0][:kept] == parts[1][:kept] == parts[2][:kept]
    assert kept > 2


@pytest.mark.parametrize("kind", UNKNOWN)
def test_a_tokenizer_of_unknown_pieces_encodes_texts_whole(kind):
  text = "So the next step is that x = 12 and I get 9999 of them. " * 8
  assert _tokenizer(kind).parts(text) == [text]


def test_a_tokenizer_that_joins_a_letter_to_a_space_encodes_texts_whole():
  text = "So the next step is that x = 12 and I get 9999 of them. " * 8
  assert _tokenizer("gemma").parts(text) != [text]
  assert _tokenizer("gemma", joined=True).parts(text) == [text]


@pytest.mark.parametrize(
  "change",
  [
    dict(normalizer=dict(type="NFKC")),
    dict(added_tokens=[dict(content=" a", special=False)]),
    dict(added_tokens=[dict(content="\n", special=False, lstrip=True)]),
    dict(model=dict(type="BPE", vocab={}, dropout=0.1)),
    dict(model=dict(type="Unigram", vocab=[])),
    _bytes_of(use_regex=False),
    dict(pre_tokenizer=_split(GPT2)),
  ],
)
def test_what_may_join_or_change_what_is_beside_a_cut_is_not_known(change):
  spec = dict(model=dict(type="BPE", vocab={}), normalizer=None, **_bytes_of())
  assert text_cuts.are_known(spec)
  assert not text_cuts.are_known(spec | change)


STEPS = st.lists(TEXTS.filter(str.strip), max_size=4)


@pytest.mark.parametrize("kind", ["gpt2", "qwen_nfc", "gemma"])
@pytest.mark.parametrize("form", ["own", "lines", "chat"])
@settings(max_examples=12)
@given(
  problem=TEXTS,
  path=STEPS,
  others=STEPS,
  limit=st.none() | st.integers(10, 300),
)
def test_solutions_that_share_steps_are_encoded_as_each_alone(
  kind, form, problem, path, others, limit
):
  """The slow oracle: each solution with a tokenizer that has read nothing."""
  inner = _tokenizer(kind)
  template = own_form.OWN
  if form == "lines":
    template = templates.skywork()
  elif form == "chat":
    template = policy_text.PolicyTemplate(
      "chat", (("text", "Q: "), ("problem", ""), ("text", "\nA:")), ("<sep>",)
    )
  config = encoding.EncodingConfig(
    max_tokens=limit, truncation="truncate", template=template
  )
  config = encoding_records.with_template(config, inner)
  tokenizer = token_memory.Remembering(inner)
  for k, steps in enumerate([path, *([*path, x] for x in others)]):
    solution = schema.Solution(str(k), problem, tuple(steps))
    policy_text.opening.cache_clear()
    results = []
    for one in (tokenizer, inner):
      try:
        results.append(encoding.encode_solution(solution, one, config))
      except errors.InputError as e:
        results.append(str(e).partition(" in ")[0])
    mine, alone = results
    if alone is None or isinstance(alone, str):
      assert mine == alone
      continue
    assert mine.prompt_tokens == alone.prompt_tokens
    for a, b in ((mine.tokens, alone.tokens), (mine.step_end, alone.step_end)):
      assert a.dtype == b.dtype
      np.testing.assert_array_equal(a, b)


def test_what_was_encoded_is_not_encoded_again():
  encoded = []

  class Counting(tokenizer_lib.Bytes):
    def encode(self, text):
      encoded.append(text)
      return super().encode(text)

  tokenizer = token_memory.Remembering(Counting())
  for _ in range(2):
    first = tokenizer.encode("a step")
    first.append(0)  # its caller's own list
  assert tokenizer.encode("a step") == [*b"a step"]
  assert encoded == ["a step"]
