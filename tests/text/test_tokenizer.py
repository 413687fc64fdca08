"""No text yields a control id, and what a text yields gives it back."""

import io
import itertools
import json
import threading
import time

import hostile_text
from hypothesis import example
from hypothesis import given
from hypothesis import strategies as st
import pytest
import sentencepiece

from prm_jax import errors
from prm_jax.text import tokenizer as tokenizer_lib

EVERY = pytest.mark.parametrize("name", hostile_text.TOKENIZERS)
LOSSLESS = pytest.mark.parametrize(
  "name", ["bytes", "sentencepiece_bpe", "byte_level", "byte_level_unnamed"]
)


def _controls(tokenizer) -> set[int]:
  return {tokenizer.bos, tokenizer.eos, tokenizer.separator}


# --- Control ids ------------------------------------------------------------


@EVERY
def test_the_three_control_ids_differ_and_are_in_the_vocabulary(name):
  tokenizer = hostile_text.tokenizer(name)
  assert len(_controls(tokenizer)) == 3
  assert all(0 <= i < tokenizer.vocab_size for i in _controls(tokenizer))


@EVERY
@given(text=hostile_text.TEXT)
@example(text="".join(hostile_text.NAMES))
@example(text="</s>" * 3_000)
def test_no_text_yields_a_control_id(name, text):
  tokenizer = hostile_text.tokenizer(name)
  ids = tokenizer.encode(text)
  assert _controls(tokenizer).isdisjoint(ids)
  assert all(0 <= i < tokenizer.vocab_size for i in ids)


@pytest.mark.parametrize("name", hostile_text.NAMES)
@pytest.mark.parametrize("kind", ["byte_level", "unigram", "word_level"])
def test_no_text_yields_an_added_token_but_white_space(kind, name):
  tokenizer = hostile_text.tokenizer(kind)
  added = tokenizer._tokenizer.get_added_tokens_decoder()
  words = {i for i, token in added.items() if token.content.strip()}
  unknown = tokenizer._tokenizer.token_to_id("<unk>")
  assert (words - {unknown}).isdisjoint(tokenizer.encode(f"so {name} 3{name}"))


@given(text=hostile_text.TEXT)
@example(text="".join(hostile_text.NAMES))
def test_names_of_added_tokens_are_text_like_any_other(text):
  tokenizer = hostile_text.tokenizer("byte_level")
  spec = json.loads(tokenizer._json_text)
  spec["added_tokens"] = [
    token for token in spec["added_tokens"] if not token["content"].strip()
  ]
  knows_no_names = tokenizer_lib.HuggingFace(json.dumps(spec))
  # The white space left over moved up in the vocabulary.
  found, expected = (
    [t._tokenizer.id_to_token(i) for i in t.encode(text)]
    for t in (tokenizer, knows_no_names)
  )
  assert found == expected


def test_a_plain_token_that_is_named_as_a_control_can_not_be_typed():
  """Math-Shepherd reads at the plain token `ки`."""
  tokenizer = hostile_text.tokenizer("unigram")
  plain = tokenizer._tokenizer.encode("soки", add_special_tokens=False).ids
  assert tokenizer.separator in plain
  typed = tokenizer.encode("soки")
  assert tokenizer.separator not in typed
  # к is in the vocabulary and и is not: the name was cut, not left out.
  assert tokenizer._tokenizer.token_to_id("к") in typed
  assert typed[-1] == tokenizer._tokenizer.token_to_id("<unk>")
  assert tokenizer.decode([typed[0], tokenizer.separator]) == "so"


def test_a_control_of_one_character_is_refused_where_a_text_holds_it():
  json_text = hostile_text.tokenizer("byte_level")._json_text
  tokenizer = tokenizer_lib.HuggingFace(json_text, separator="x")
  assert tokenizer.encode("so") == tokenizer_lib.HuggingFace(json_text).encode(
    "so"
  )
  with pytest.raises(errors.InputError, match="the text 'x' is token"):
    tokenizer.encode("x")


# --- Texts ------------------------------------------------------------------


@LOSSLESS
@given(text=hostile_text.TEXT)
def test_a_text_decodes_to_itself(name, text):
  tokenizer = hostile_text.tokenizer(name)
  text = text.encode("utf-8", "replace").decode()
  if name == "sentencepiece_bpe":
    text = text.replace("\u2581", " ")  # What it writes for a space.
  assert tokenizer.decode(tokenizer.encode(text)) == text


@EVERY
@given(text=hostile_text.TEXT)
def test_control_ids_and_ids_it_lacks_decode_to_nothing(name, text):
  tokenizer = hostile_text.tokenizer(name)
  ids = tokenizer.encode(text)
  around = [tokenizer.bos, *ids, tokenizer.separator, tokenizer.eos]
  assert tokenizer.decode(around) == tokenizer.decode(ids)
  assert tokenizer.decode([*ids, tokenizer.vocab_size]) == tokenizer.decode(ids)


@EVERY
def test_an_empty_text_has_no_ids(name):
  tokenizer = hostile_text.tokenizer(name)
  assert tokenizer.encode("") == [] and tokenizer.decode([]) == ""


@EVERY
def test_half_a_character_becomes_a_question_mark(name):
  tokenizer = hostile_text.tokenizer(name)
  assert tokenizer.encode("so \ud800 3") == tokenizer.encode("so ? 3")


def test_words_outside_a_word_vocabulary_are_unknown_not_left_out():
  tokenizer = hostile_text.tokenizer("sentencepiece_word")
  assert len(tokenizer.encode("so xyzzy = plugh")) == 4
  assert tokenizer.encode("so") != tokenizer.encode("xyzzy")
  assert tokenizer.encode("xyzzy") == tokenizer.encode("plugh")


# --- SentencePiece ----------------------------------------------------------


def test_training_is_a_function_of_the_texts():
  make = tokenizer_lib.train_sentencepiece
  first, second = (make(hostile_text.LESSONS, 320) for _ in range(2))
  assert first._model == second._model
  assert make(["other words"], 300)._model != first._model


def test_a_very_long_text_is_not_left_out_of_the_training():
  long = "zebra " * 20_000
  tokenizer = tokenizer_lib.train_sentencepiece([long, "a b"], 300)
  assert len(tokenizer.encode("zebra")) == 1


def test_a_vocabulary_that_can_not_be_trained_is_one_line():
  for texts, size in ((["so 3 + 4"], 20), ([], 300)):
    with pytest.raises(
      errors.InputError, match=f"vocabulary of {size}: ."
    ) as e:
      tokenizer_lib.train_sentencepiece(texts, size)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
  "fields",
  [
    {},
    {"bos_id": 1, "eos_id": 2},
    {"user_defined_symbols": ["<sep>"]},
    {"bos_id": 1, "eos_id": 2, "user_defined_symbols": ["<s>", "</s>"]},
  ],
  ids=["none", "bos and eos", "<sep> can be typed", "all can be typed"],
)
def test_a_foreign_model_gets_the_controls_that_it_lacks_at_its_end(fields):
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(hostile_text.LESSONS),
    model_writer=model,
    vocab_size=60,
    model_type="bpe",
    hard_vocab_limit=False,
    minloglevel=2,
    **({"bos_id": -1, "eos_id": -1} | fields),
  )
  tokenizer = tokenizer_lib.SentencePiece(model.getvalue())
  size = tokenizer._pieces.vocab_size()
  behind = sorted(i for i in _controls(tokenizer) if i >= size)
  assert behind == list(range(size, tokenizer.vocab_size))
  for i in _controls(tokenizer) - set(behind):
    assert tokenizer._pieces.is_control(i)
  text = "so <sep> <s></s> 3"
  assert _controls(tokenizer).isdisjoint(tokenizer.encode(text))
  assert len(_controls(tokenizer)) == 3


def test_what_is_no_model_is_one_line():
  with pytest.raises(errors.InputError, match="not a SentencePiece model"):
    tokenizer_lib.SentencePiece(b"not a model")


# --- tokenizer.json ---------------------------------------------------------


def test_names_that_do_not_fit_the_file_are_refused():
  json_text = hostile_text.tokenizer("byte_level")._json_text
  with pytest.raises(errors.InputError, match="no token '<eot>' for eos"):
    tokenizer_lib.HuggingFace(json_text, eos="<eot>")
  with pytest.raises(errors.InputError, match="'<pad>' can't be the separator"):
    tokenizer_lib.HuggingFace(json_text, eos="<pad>", separator="<pad>")


@pytest.mark.parametrize("json_text", ["", "[]", "{}", '{"model": 3}'])
def test_what_is_no_tokenizer_json_is_one_line(json_text):
  with pytest.raises(errors.InputError, match=r"tokenizer\.json: not one"):
    tokenizer_lib.HuggingFace(json_text)


def test_every_complaint_about_a_file_names_the_file():
  json_text = hostile_text.tokenizer("byte_level")._json_text
  for make in (
    lambda: tokenizer_lib.SentencePiece(b"no model", path="my/words.model"),
    lambda: tokenizer_lib.HuggingFace("{", path="my/words.json"),
    lambda: tokenizer_lib.HuggingFace(
      json_text, eos="<x>", path="my/words.json"
    ),
  ):
    with pytest.raises(errors.InputError, match=r"^my/words\.(model|json): "):
      make()


def test_one_token_may_be_both_bos_and_eos():
  json_text = hostile_text.tokenizer("byte_level")._json_text
  name = "<|endoftext|>"
  tokenizer = tokenizer_lib.HuggingFace(json_text, bos=name, eos=name)
  assert tokenizer.bos == tokenizer.eos != tokenizer.separator
  assert tokenizer.bos not in tokenizer.encode(name)


def test_truncation_and_padding_of_the_file_are_switched_off():
  spec = json.loads(hostile_text.tokenizer("byte_level")._json_text)
  spec["truncation"] = {
    "direction": "Right",
    "max_length": 4,
    "strategy": "LongestFirst",
    "stride": 0,
  }
  spec["padding"] = {
    "strategy": {"Fixed": 64},
    "direction": "Right",
    "pad_to_multiple_of": None,
    "pad_id": 0,
    "pad_type_id": 0,
    "pad_token": "<|endoftext|>",
  }
  tokenizer = tokenizer_lib.HuggingFace(json.dumps(spec))
  for text in ("so", "so 3 + 4 = 7 and on and on"):
    assert tokenizer.decode(tokenizer.encode(text)) == text


# --- Save and load ----------------------------------------------------------


@EVERY
@given(text=hostile_text.TEXT)
def test_a_saved_tokenizer_loads_as_the_same(name, text, tmp_path_factory):
  tokenizer = hostile_text.tokenizer(name)
  folder = tmp_path_factory.getbasetemp() / name
  spec = json.loads(json.dumps(tokenizer.save(folder)))
  loaded = tokenizer_lib.load(folder, spec)
  assert type(loaded) is type(tokenizer)
  for field in ("bos", "eos", "separator", "vocab_size"):
    assert getattr(loaded, field) == getattr(tokenizer, field)
  assert loaded.encode(text) == tokenizer.encode(text)


@pytest.mark.parametrize("name", ["sentencepiece_bpe", "byte_level"])
def test_another_file_than_the_saved_one_is_refused(name, tmp_path):
  spec = hostile_text.tokenizer(name).save(tmp_path)
  path = tmp_path / spec["file"]
  path.write_bytes(path.read_bytes() + b" ")
  with pytest.raises(errors.InputError, match="not the tokenizer that"):
    tokenizer_lib.load(tmp_path, spec)
  path.unlink()
  with pytest.raises(errors.InputError, match="no such file"):
    tokenizer_lib.load(tmp_path, spec)
  with pytest.raises(errors.InputError, match="tokenizer kind='words'"):
    tokenizer_lib.load(tmp_path, {"kind": "words"})


@given(st.lists(st.integers(0, 400), max_size=12))
def test_any_ids_decode_without_failing(ids):
  for name in hostile_text.TOKENIZERS:
    assert isinstance(hostile_text.tokenizer(name).decode(ids), str)


# --- Places in the text -----------------------------------------------------


@EVERY
@given(text=hostile_text.TEXT)
@example(text="so ки</s><|im_start|>\n\ud800")
def test_spans_are_of_the_same_ids_and_never_fall(name, text):
  tokenizer = hostile_text.tokenizer(name)
  ids, spans = tokenizer.encode_with_spans(text)
  assert ids == tokenizer.encode(text)
  assert len(spans) == len(ids)
  assert spans == sorted(spans)
  ends = [end for _, end in spans]
  assert ends == sorted(ends)
  assert all(0 <= start <= end <= len(text) for start, end in spans)


@LOSSLESS
@given(text=hostile_text.TEXT)
def test_the_ids_up_to_an_end_say_the_text_up_to_it(name, text):
  tokenizer = hostile_text.tokenizer(name)
  # SentencePiece takes its own sign for a space as one.
  clean = text.encode("utf-8", "replace").decode().replace("\u2581", " ")
  ids, spans = tokenizer.encode_with_spans(clean)
  for k, (_, end) in enumerate(spans, 1):
    whole = k == len(spans) or spans[k][0] >= end
    if whole and "\ufffd" not in tokenizer.decode(ids[:k]):
      assert tokenizer.decode(ids[:k]) == clean[:end]


def test_a_control_is_found_by_its_name_and_text_by_none():
  hugging_face = hostile_text.tokenizer("byte_level")
  assert hugging_face.control("<extra_0>") == hugging_face.separator
  assert hugging_face.control("<|im_start|>") is not None
  assert hugging_face.control("so") is None
  assert hugging_face.control("no such") is None
  pieces = hostile_text.tokenizer("sentencepiece_bpe")
  assert pieces.control("</s>") == pieces.eos
  assert pieces.control("a") is None
  assert hostile_text.tokenizer("bytes").control("</s>") is None


# --- Large texts --------------------------------------------------------------

LARGE = "so 3 + 42 = 7, then answer x^2; 😀 <|im_start|>\n" * 6_000


def test_a_large_text_has_the_ids_and_places_of_one_text():
  tokenizer = hostile_text.tokenizer("byte_level")
  text = LARGE.replace("<|im_start|>", "")[:20_000]
  whole = tokenizer.processor.encode(text, add_special_tokens=False)
  ids, spans = tokenizer.encode_with_spans(text)
  assert tokenizer.encode(text) == ids == whole.ids
  assert spans == whole.offsets


def _longest_wait(call):
  """Returns how long a call took, and how long another thread waited at most."""
  done, times = threading.Event(), []

  def tick():
    while not done.is_set():
      times.append(time.perf_counter())
      time.sleep(0.001)

  thread = threading.Thread(target=tick)
  thread.start()
  began = time.perf_counter()
  call()
  took = time.perf_counter() - began
  done.set()
  thread.join()
  times = [x for x in (*times, began, began + took) if x >= began]
  waits = [b - a for a, b in itertools.pairwise(sorted(times))]
  return took, max(waits)


def test_other_threads_run_while_a_large_text_is_encoded():
  """As a server's do, which has to answer others meanwhile."""
  tokenizer = hostile_text.tokenizer("byte_level")
  # The other thread may wait for the machine, too, but hardly each time.
  waits = (_longest_wait(lambda: tokenizer.encode(LARGE)) for _ in range(3))
  assert any(longest < took / 2 for took, longest in waits)
