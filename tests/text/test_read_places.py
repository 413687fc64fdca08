r"""Every step is read at its own end, whatever a tokenizer does to a text.

The oracle goes byte by byte: it follows each byte of the normalized text to the
character that it comes from, and each id to its bytes. The code under test
takes the places that the tokenizers' libraries report.
"""

import functools
import json
import unicodedata

import hostile_text
from hypothesis import assume
from hypothesis import example
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest
import recipes
import sentencepiece
import tokenizers
from tokenizers import processors

from prm_jax import errors
from prm_jax import schema
from prm_jax.text import encoding
from prm_jax.text import encoding_records
from prm_jax.text import templates
from prm_jax.text import tokenizer as tokenizer_lib
from prm_jax.text import tokenizer_files

BYTE_LEVEL = ("byte_level", "byte_level_trimmed", "byte_level_stripped")
NAMES = (
  *(f"sentencepiece/{name}" for name in hostile_text.SENTENCEPIECE),
  *(f"huggingface/{name}" for name in hostile_text.NORMALIZERS),
  *(f"huggingface/{name}" for name in BYTE_LEVEL),
)


def _byte_level(name: str) -> str:
  model = tokenizers.Tokenizer.from_str(recipes.json_of("qwen"))
  model.add_special_tokens(["<s>", "</s>", *hostile_text.CONTROLS])
  if name == "byte_level_trimmed":
    model.post_processor = processors.ByteLevel(trim_offsets=True)
  if name == "byte_level_stripped":
    model.normalizer = tokenizers.normalizers.Strip()
  return model.to_str()


@functools.cache
def _tokenizer(name: str) -> tokenizer_lib.Tokenizer:
  library, _, kind = name.partition("/")
  if library == "sentencepiece":
    return tokenizer_files.SentencePiece(hostile_text.sentencepiece_model(kind))
  is_byte_level = kind in BYTE_LEVEL
  make = _byte_level if is_byte_level else hostile_text.byte_fallback_json
  return tokenizer_files.HuggingFace(make(kind), bos="<s>", eos="</s>")


# --- The oracle -------------------------------------------------------------

# A byte, and the first and the last character that it comes from.
Bytes = list[tuple[int, int, int]]


def _bytes(texts) -> Bytes:
  """Returns the bytes of (text, index of its character) pairs."""
  return [(b, i, i) for text, i in texts for b in text.encode()]


def _is_white(character: str) -> bool:
  # To Unicode and Rust, the four separators of ASCII are no white space.
  return character.isspace() and not "\x1c" <= character <= "\x1f"


def _normalized(name: str, text: str) -> Bytes:
  library, _, kind = name.partition("/")
  if library == "sentencepiece":
    model = hostile_text.sentencepiece_model(kind)
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
    normal, places = pieces.normalize(text, with_offsets=True)
    last = len(text) - 1
    return [
      (b, min(i, last), min(i, last))
      for x, i in zip(normal, places, strict=False)
      for b in x.encode()
    ]
  characters = list(zip(text, range(len(text)), strict=True))
  strip = "strip" in hostile_text.NORMALIZERS.get(kind, kind)
  while strip and characters and _is_white(characters[0][0]):
    del characters[0]
  while strip and characters and _is_white(characters[-1][0]):
    del characters[-1]
  if kind in BYTE_LEVEL:
    return _bytes((unicodedata.normalize("NFC", x), i) for x, i in characters)
  steps = hostile_text.NORMALIZERS[kind]
  if "lowercase" in steps:
    characters = [(x.lower(), i) for x, i in characters]
  if "prepend" in steps and characters:
    characters.insert(0, ("\u2581", characters[0][1]))
  return _bytes((x.replace(" ", "\u2581"), i) for x, i in characters)


@functools.cache
def _alphabet() -> dict[str, int]:
  """Returns the byte of each sign of the byte-level alphabet (of GPT-2)."""
  shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
  hidden = [b for b in range(256) if b not in shown]
  signs = {chr(b): b for b in shown}
  return signs | {chr(256 + i): b for i, b in enumerate(hidden)}


def _own_bytes(name: str, token: str) -> bytes:
  if name.partition("/")[2] in BYTE_LEVEL:
    return bytes(_alphabet()[sign] for sign in token)
  if token.startswith("<0x") and token.endswith(">"):
    return bytes([int(token[3:5], 16)])
  return token.encode()


def _tokens(name: str, text: str) -> list[str]:
  tokenizer = _tokenizer(name)
  if isinstance(tokenizer, tokenizer_files.SentencePiece):
    return tokenizer._pieces.encode(text, out_type=str)
  return tokenizer._tokenizer.encode(text, add_special_tokens=False).tokens


def _characters(name: str, text: str) -> list[tuple[int, int]]:
  """Returns the first and the last character of each id of a text."""
  normal = _normalized(name, text)
  out, at = [], 0
  for token in _tokens(name, text):
    own = _own_bytes(name, token)
    part = normal[at : at + len(own)]
    assert bytes(b for b, _, _ in part) == own
    out.append((min(i for _, i, _ in part), max(i for _, _, i in part)))
    at += len(own)
  assert at == len(normal)
  return out


def _places(name, template, problem, steps) -> tuple[list[int], list[int]]:
  """Returns each step's first id and the id that it is read at."""
  number, starts, reads = 0, [], []
  text, marks = "", []
  parts = list(template._filled(problem, steps, False))
  for kind, content in [*parts, ("cut", "")]:
    if kind in ("control", "cut", "start"):
      spans = _characters(name, text)
      for place, out in marks:
        if out is starts:
          n = sum(last < place for _, last in spans)
        else:
          n = sum(first < place for first, _ in spans) - 1
        out.append(number + n)
      number += len(spans) + (kind == "control")
      text, marks = "", []
    elif kind == "read":
      marks.append((len(text), reads))
    else:
      if kind == "step":
        marks.append((len(text), starts))
      text += content
  return starts, reads


# --- The law ----------------------------------------------------------------

TEXT = hostile_text.TEXT | st.text(" \n\tab1é€😀½", max_size=5)


def _clean(name: str, text: str) -> str:
  text = text.encode("utf-8", "replace").decode()
  if name.startswith("huggingface"):
    # Names are cut and each side is encoded alone; a character that changes
    # with its neighbours has no place of its own.
    text = text.replace("<", "(").replace("ки", "k").replace("\u2581", "_")
    assume(unicodedata.normalize("NFC", text) == text)
    assume(all(len(x.lower()) == 1 for x in text))
    assume(text.lower() == "".join(x.lower() for x in text))
    assume(all(unicodedata.normalize("NFC", x) == x for x in text))
  return text


@pytest.mark.parametrize("template", templates.NAMES)
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=4)
@given(problem=TEXT, steps=st.lists(TEXT, min_size=1, max_size=4))
@example(problem="   so 3 + 4", steps=["  then 7", "", " ", "answer 7"])
@example(problem="", steps=["", "€", "\n"])
def test_every_step_is_read_at_its_own_end(name, template, problem, steps):
  tokenizer = _tokenizer(name)
  problem = _clean(name, problem)
  steps = [_clean(name, step) for step in steps]
  try:
    written = templates.published(template).fitted(tokenizer)
  except errors.InputError:
    assert name in REFUSED[template], "refused without a reason"
    return
  assert name not in REFUSED[template]
  found = written.write(schema.Solution("", problem, steps), tokenizer)
  starts, reads = _places(name, written, problem, steps)
  assert found.step_end.tolist() == reads
  assert found.prompt_tokens == starts[0]
  for k, (start, read) in enumerate(zip(starts, reads)):
    assert start <= read < [*starts[1:], len(found.tokens)][k]


# Those that leave out a line break that stands alone.
_NO_LINE_BREAK = frozenset(
  {
    *(f"sentencepiece/{x}_squeezed" for x in ("nmt_nfkc", "nmt_nfkc_cf")),
    *(
      f"sentencepiece/{x}_squeezed_suffix" for x in ("nmt_nfkc", "nmt_nfkc_cf")
    ),
    *("huggingface/strip", "huggingface/strip_prepend"),
    "huggingface/byte_level_stripped",
  }
)
REFUSED = dict(
  token_classification=_NO_LINE_BREAK,
  skywork=_NO_LINE_BREAK,
  qwen_prm=(),
  math_shepherd=(),
  rlhflow=(),
  context_prm=_NO_LINE_BREAK,
  step_pairs=_NO_LINE_BREAK,
)


@pytest.mark.parametrize("blanks", ["", " ", "   "])
def test_white_space_before_a_problem_moves_no_read_off_its_tag(blanks):
  tokenizer = _tokenizer("sentencepiece/nmt_nfkc_squeezed")
  config = encoding.EncodingConfig(
    template=templates.published("math_shepherd")
  )
  config = encoding_records.with_template(config, tokenizer)
  steps = ["so 3 + 4 = 7", "then 7 - 2 = 5"]
  found = encoding.encode(blanks + "3 + 4 - 2", steps, tokenizer, config)
  plain = encoding.encode("3 + 4 - 2", steps, tokenizer, config)
  assert found.tokens.tolist() == plain.tokens.tolist()
  assert found.step_end.tolist() == plain.step_end.tolist()
  for end in found.step_end:
    assert tokenizer.decode(found.tokens[: end + 1]).endswith("ки")


@pytest.mark.parametrize(
  "template", [templates.token_classification(), templates.skywork()]
)
def test_a_tokenizer_without_line_breaks_is_refused_when_the_model_is_made(
  template,
):
  tokenizer = _tokenizer("huggingface/strip")
  config = encoding.EncodingConfig(template=template)
  with pytest.raises(errors.InputError, match="no token at which step 0"):
    encoding_records.with_template(config, tokenizer)


def test_a_step_that_can_not_be_read_names_its_solution():
  tokenizer = _tokenizer("huggingface/strip")
  written = templates.token_classification()
  config = encoding.EncodingConfig(template=written)
  solution = schema.Solution("gsm8k/7", "p", ("so", "", "7"))
  with pytest.raises(errors.InputError, match=r"'gsm8k/7': .* step 1 .from 0."):
    encoding.encode_solution(solution, tokenizer, config)


# --- Characters without a token ---------------------------------------------


@functools.cache
def _lacking() -> tokenizer_files.HuggingFace:
  """A tokenizer like SmolLM2's: without tokens for bytes that nobody writes."""
  spec = json.loads(recipes.json_of("llama_3"))
  for symbol in "\u0104\u0106\u00f1":  # of the bytes 04, 06 and f1
    vocabulary = spec["model"]["vocab"]
    vocabulary[f"without {symbol}"] = vocabulary.pop(symbol)
  names = dict(bos="<|begin_of_text|>", eos="<|eot_id|>")
  return tokenizer_files.HuggingFace(json.dumps(spec), **names)


# qwen_prm's controls are another tokenizer's.
@pytest.mark.parametrize("template", sorted({*templates.NAMES} - {"qwen_prm"}))
def test_a_tokenizer_that_lacks_what_nobody_writes_reads_the_rest(template):
  written = templates.published(template)
  problem, steps = "Caf\u00e9 \U0001f600?", ("3 + 4 = 7,\x00\x05", "so \ufffd")
  whole, lacking = (
    written.write(schema.Solution("", problem, steps), x)
    for x in (recipes.tokenizer("llama_3"), _lacking())
  )
  assert whole.tokens.tolist() == lacking.tokens.tolist()
  assert whole.step_end.tolist() == lacking.step_end.tolist()


@pytest.mark.parametrize("character", ["\x04", "\x06", "\U00040000"])
def test_a_text_with_a_character_without_a_token_is_refused_by_its_record(
  character,
):
  config = encoding.EncodingConfig(
    template=templates.published("math_shepherd")
  )
  config = encoding_records.with_template(config, _lacking())
  solution = schema.Solution("gsm8k/7", "p", ("so", f"!{character}?"))
  with pytest.raises(errors.InputError) as e:
    encoding.encode_solution(solution, _lacking(), config)
  assert str(e.value).startswith("solution 'gsm8k/7': ")
  assert f"no token for {character!a}" in str(e.value)


@pytest.mark.parametrize("prefix, suffix", [("##", ""), ("", "</w>")])
def test_a_character_has_a_token_only_in_the_form_that_is_looked_up(
  prefix, suffix
):
  first, inside = f"a{suffix}", f"{prefix}a{suffix}"
  vocabulary = {name: i for i, name in enumerate({"a", first, inside, "b"})}
  model = tokenizers.models.BPE(
    vocab=vocabulary,
    merges=[],
    continuing_subword_prefix=prefix,
    end_of_word_suffix=suffix,
  )
  model = tokenizers.Tokenizer(model)
  tokenizer = tokenizer_files.HuggingFace(model.to_str())
  assert len(tokenizer.encode_with_spans("aa")[0]) == 2
  with pytest.raises(errors.InputError, match="no token for 'b'"):
    tokenizer.encode_with_spans("ab")


@pytest.mark.parametrize("num_bytes", [0, 255, 256])
def test_bytes_stand_for_characters_only_if_they_have_tokens(num_bytes):
  names = [*"ab1 ", *(f"<0x{x:02X}>" for x in range(num_bytes))]
  model = tokenizers.models.BPE(
    vocab={x: i for i, x in enumerate(names)}, merges=[], byte_fallback=True
  )
  tokenizer = tokenizer_files.HuggingFace(tokenizers.Tokenizer(model).to_str())
  assert tokenizer.encode_with_spans("ab 1")[1][1] == (1, 2)
  if num_bytes:
    ids, spans = tokenizer.encode_with_spans("azb 1")
    assert (ids[1], spans[2]) == (names.index("<0x7A>"), (2, 3))
    return
  with pytest.raises(errors.InputError, match="no token for 'z'"):
    tokenizer.encode_with_spans("azb 1")


def test_the_name_of_an_added_token_is_no_token_of_a_text():
  model = tokenizers.models.BPE(vocab=dict(a=0, b=1), merges=[])
  spec = json.loads(tokenizers.Tokenizer(model).to_str())
  token = dict(single_word=False, lstrip=False, rstrip=False, normalized=False)
  spec["added_tokens"] = [
    dict(token, id=2, content="\u20ac", special=True),
    dict(token, id=3, content=" ", special=False),
  ]
  tokenizer = tokenizer_files.HuggingFace(json.dumps(spec))
  assert tokenizer.encode_with_spans("a b")[1] == [(0, 1), (1, 2), (2, 3)]
  with pytest.raises(errors.InputError, match=r"no token for '\\u20ac'"):
    tokenizer.encode_with_spans("a\u20acb")


@pytest.mark.real_weights
def test_real_tokenizers_say_the_place_of_every_token(real_weights):
  text = (
    "Caf\u00e9 \U0001f600: let $x^2 = 16$.\n\nSo\tx = 4\r\nor \u2212\u200a4."
  )
  for path in sorted(real_weights.glob("*/tokenizer.json")):
    tokenizer = tokenizer_files.from_folder(path.parent)
    ids, places = tokenizer.encode_with_spans(text)
    assert ids == tokenizer.encode(text)
    for (first, last), i in zip(places, ids, strict=True):
      if "\ufffd" not in (part := tokenizer.decode([i])):
        assert part.strip() in text[first:last]
