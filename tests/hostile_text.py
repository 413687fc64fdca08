"""Text that could be taken for control tokens, and tokenizers to try it on."""

import functools
import io
import itertools

from hypothesis import strategies as st
import sentencepiece
import tokenizers
from tokenizers import decoders
from tokenizers import models
from tokenizers import normalizers
from tokenizers import pre_tokenizers
from tokenizers import trainers

from prm_jax.text import tokenizer as tokenizer_lib

NAMES = (
  *("<extra_0>", "ки", "<sep>", "<s>", "</s>", "<unk>", "<pad>"),
  *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<0x0A>", "Ċ"),
  *("\u2581", "\u2581</s>", "\n", "\n\n", " ", "  ", "\t", "\r\n", "\x00"),
  *("\ud800", "\udfff", "\ufeff", "\u2028", "\U0001f600", "e\u0301"),
)
WORDS = ("so", "then", "3", "+", "42", "= 7", "answer", "x^2", "Zug")
# Any text: words, names of control tokens, and whatever hypothesis thinks of.
TEXT = st.lists(
  st.sampled_from(NAMES) | st.sampled_from(WORDS) | st.text(max_size=5),
  max_size=6,
).map("".join)

LESSONS = [
  "so 3 + 4 = 7\nthen 7 - 2 = 5",
  "We add  two numbers: the sum is 12.",
  "answer 42",
  "Let x^2 = 16, so x = 4 or x = -4.\n\nthe end",
]


def _byte_level() -> str:
  """A tokenizer.json as of Qwen: byte-level BPE with added tokens."""
  model = tokenizers.Tokenizer(models.BPE())
  model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  model.decoder = decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
    vocab_size=300,
    initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    special_tokens=["<|endoftext|>"],
    show_progress=False,
  )
  # Longer tokens from the names too, so that cutting one shows.
  names = ["extra_0 im_start im_end endoftext pad"] * 20
  model.train_from_iterator([*LESSONS, *names], trainer)
  model.add_special_tokens(["<|im_start|>", "<|im_end|>"])
  not_special = [
    tokenizers.AddedToken("<extra_0>", normalized=False),
    tokenizers.AddedToken("ки", lstrip=True, rstrip=True),
    tokenizers.AddedToken("<pad>", single_word=True),
    tokenizers.AddedToken("  "),
  ]
  model.add_tokens(not_special)
  return model.to_str()


def _unigram() -> str:
  """A tokenizer.json as of T5: its vocabulary itself holds the names."""
  names = ["<unk>", "<s>", "</s>", "<sep>", "ки"]
  segments = [*"\u2581abcdefghijklmnopqrstuvwxyz<>/0123456789+-=к", "\u2581so"]
  scores = [(name, 0.0) for name in names] + [(x, -3.0) for x in segments]
  model = tokenizers.Tokenizer(models.Unigram(scores, unk_id=0))
  model.pre_tokenizer = pre_tokenizers.Metaspace()
  model.decoder = decoders.Metaspace()
  model.add_special_tokens(["<unk>", "<s>", "</s>"])
  return model.to_str()


def _word_level() -> str:
  pieces = ["<unk>", "</s>", "<|im_start|>", *WORDS]
  vocabulary = {word: i for i, word in enumerate(pieces)}
  model = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
  model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
  model.add_special_tokens(["<unk>", "</s>"])
  model.add_tokens(["<|im_start|>"])
  return model.to_str()


# The control tokens of all published templates.
CONTROLS = (
  *("<|im_start|>", "<|im_end|>", "<extra_0>", "<|begin_of_text|>"),
  *("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
)
RULES = ("identity", "nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf")
# Normalizer, whether white space at the ends and between is left out, and
# whether the vocabulary ends each word with a space instead of beginning it.
SENTENCEPIECE = {
  f"{rule}{'_squeezed' * squeezes}{'_suffix' * suffix}": (
    *(rule, squeezes, suffix),
  )
  for rule, squeezes, suffix in itertools.product(RULES, *[(False, True)] * 2)
}


@functools.cache
def sentencepiece_model(name: str) -> bytes:
  """Returns a model of one of SENTENCEPIECE, with all templates' controls."""
  rule, squeezes, suffix = SENTENCEPIECE[name]
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter([*LESSONS, "ки ки"] * 3),
    model_writer=model,
    vocab_size=330,
    model_type="unigram",
    byte_fallback=True,
    normalization_rule_name=rule,
    remove_extra_whitespaces=squeezes,
    treat_whitespace_as_suffix=suffix,
    control_symbols=list(CONTROLS),
    hard_vocab_limit=False,
    num_threads=1,
    minloglevel=2,
  )
  return model.getvalue()


# What a tokenizer.json does to a text first, in the manner of Llama 2.
NORMALIZERS = {
  "prepend": ["prepend", "spaces"],
  "strip": ["strip", "spaces"],
  "strip_prepend": ["strip", "prepend", "spaces"],
  "lowercase_prepend": ["lowercase", "prepend", "spaces"],
}
_NORMALIZERS = dict(
  strip=normalizers.Strip(),
  prepend=normalizers.Prepend("\u2581"),
  lowercase=normalizers.Lowercase(),
  spaces=normalizers.Replace(" ", "\u2581"),
)


@functools.cache
def byte_fallback_json(name: str) -> str:
  """Returns a tokenizer.json of one of NORMALIZERS, with all the controls."""
  model = tokenizers.Tokenizer(
    models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True)
  )
  rows = [_NORMALIZERS[x] for x in NORMALIZERS[name]]
  model.decoder = decoders.Sequence(
    [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
  )
  trainer = trainers.BpeTrainer(
    vocab_size=330,
    special_tokens=["<unk>", "<s>", "</s>"]
    + [f"<0x{i:02X}>" for i in range(256)],
    show_progress=False,
  )
  words = [f"\u2581{word}" for x in [*LESSONS, "ки"] for word in x.split()]
  model.train_from_iterator(words * 9, trainer)
  # Afterwards: the trainer would apply it to the words.
  model.normalizer = normalizers.Sequence(rows)
  model.add_special_tokens(list(CONTROLS))
  return model.to_str()


_MAKE = {
  "bytes": tokenizer_lib.Bytes,
  "sentencepiece_bpe": lambda: tokenizer_lib.train_sentencepiece(LESSONS, 320),
  "sentencepiece_word": lambda: tokenizer_lib.train_sentencepiece(
    LESSONS, 64, model_type="word"
  ),
  "byte_level": lambda: tokenizer_lib.HuggingFace(
    _byte_level(),
    bos="<|endoftext|>",
    eos="<|im_end|>",
    separator="<extra_0>",
  ),
  "byte_level_unnamed": lambda: tokenizer_lib.HuggingFace(_byte_level()),
  "unigram": lambda: tokenizer_lib.HuggingFace(
    _unigram(), bos="<s>", eos="</s>", separator="ки"
  ),
  "word_level": lambda: tokenizer_lib.HuggingFace(_word_level(), eos="</s>"),
}
TOKENIZERS = tuple(_MAKE)


@functools.cache
def tokenizer(name: str) -> tokenizer_lib.Tokenizer:
  """Returns a tiny tokenizer of one of TOKENIZERS."""
  return _MAKE[name]()
