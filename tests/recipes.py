"""The public scoring recipes of each template, from their own descriptions.

As a user of the published code would run them: the text is put together, the
whole of it is encoded with added tokens found in it, and steps are looked for
by their separator's id. They are the oracles of text/templates.py for ordinary
text, and show what goes wrong where a text contains a separator.
"""

from collections.abc import Sequence
import functools
import json

import tokenizers
from tokenizers import decoders
from tokenizers import models
from tokenizers import normalizers
from tokenizers import pre_tokenizers
from tokenizers import trainers

from prm_jax.text import tokenizer_files

LESSONS = [
  "Janet has 3 eggs and buys 12 more. How many eggs has she now?\n",
  "Step 1: She buys 12 eggs, so she has 3 + 12 = 15 eggs. ки\n",
  "Step 2: The answer is: 15 ки\nStep 3: так - нет ки\n",
  "system\nPlease reason step by step, and put your final answer within",
  "user\nassistant\n\n+ - Cutting Knowledge Date: December 2023",
  "Therefore $x^2 = 16$, and\n\nx = 4 or x = -4.",
]
QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<extra_0>")
LLAMA = (
  *("<|begin_of_text|>", "<|eot_id|>"),
  *("<|start_header_id|>", "<|end_header_id|>"),
)


def _byte_level(controls: Sequence[str], pattern: str) -> str:
  """A tokenizer.json in the manner of Qwen and Llama 3."""
  model = tokenizers.Tokenizer(models.BPE())
  split = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
  level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
  model.pre_tokenizer = pre_tokenizers.Sequence([split, level])
  model.decoder = decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
    vocab_size=400,
    initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    show_progress=False,
  )
  model.train_from_iterator(LESSONS * 4, trainer)
  model.add_special_tokens(list(controls))
  return model.to_str()


# What Qwen2 and Llama 3 split text by, without their contractions.
_WORDS = (
  r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
  r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _llama_2() -> str:
  """A tokenizer.json in the manner of Llama 2 and Mistral: one long word."""
  model = tokenizers.Tokenizer(
    models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True)
  )
  model.normalizer = normalizers.Sequence(
    [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
  )
  model.decoder = decoders.Sequence(
    [
      decoders.Replace("▁", " "),
      decoders.ByteFallback(),
      decoders.Fuse(),
      decoders.Strip(" ", 1, 0),
    ]
  )
  trainer = trainers.BpeTrainer(
    vocab_size=520,
    special_tokens=["<unk>", "<s>", "</s>"]
    + [f"<0x{i:02X}>" for i in range(256)],
    show_progress=False,
  )
  # Words alone, so that no merge spans a space or a line break.
  words = [f"{word}" for x in LESSONS for word in x.split()] * 9
  model.train_from_iterator(words, trainer)
  spec = json.loads(model.to_str())
  # Its bytes are no controls there, which a decoder would skip.
  spec["added_tokens"] = [
    token
    for token in spec["added_tokens"]
    if not token["content"].startswith("<0x")
  ]
  return json.dumps(spec)


@functools.cache
def json_of(name: str) -> str:
  """Returns a tiny tokenizer.json of "qwen", "llama_3" or "llama_2"."""
  if name == "llama_2":
    return _llama_2()
  return _byte_level(QWEN if name == "qwen" else LLAMA, _WORDS)


@functools.cache
def tokenizer(name: str) -> tokenizer_files.HuggingFace:
  """Returns our tokenizer of that text."""
  names = dict(
    qwen=dict(eos="<|im_end|>"),
    llama_3=dict(bos="<|begin_of_text|>", eos="<|eot_id|>"),
    llama_2=dict(bos="<s>", eos="</s>"),
  )
  return tokenizer_files.HuggingFace(json_of(name), **names[name])


@functools.cache
def public(name: str) -> tokenizers.Tokenizer:
  """Returns the tokenizer as published code has it: names are controls."""
  return tokenizers.Tokenizer.from_str(json_of(name))


def _encode(name: str, text: str) -> list[int]:
  return public(name).encode(text, add_special_tokens=False).ids


Found = tuple[list[int], list[int]]


def qwen_prm(problem: str, steps: Sequence[str]) -> Found:
  """Returns the ids, and where they are <extra_0>."""
  system = "Please reason step by step, and put your final answer within"
  text = (
    f"<|im_start|>system\n{system} \\boxed{{}}.<|im_end|>\n"
    f"<|im_start|>user\n{problem}<|im_end|>\n"
    f"<|im_start|>assistant\n{'<extra_0>'.join(steps)}<extra_0><|im_end|>\n"
  )
  ids = _encode("qwen", text)
  separator = public("qwen").token_to_id("<extra_0>")
  return ids, [i for i, x in enumerate(ids) if x == separator]


def math_shepherd(problem: str, steps: Sequence[str]) -> Found:
  """Returns the ids, and where they are the last id of " ки"."""
  text = f"{problem} " + "".join(f"{step} ки\n" for step in steps)
  ids = [public("llama_2").token_to_id("<s>"), *_encode("llama_2", text)]
  tag = _encode("llama_2", "ки")[-1]
  return ids, [i for i, x in enumerate(ids) if x == tag]


def rlhflow(problem: str, steps: Sequence[str]) -> Found:
  """Returns the last conversation's ids, and the places before each "+".

  The public code runs the model once for each step, on the turns so far, and
  reads the third id from the end: ids before +, + and <|eot_id|>.
  """

  def said(role: str, text: str) -> str:
    header = f"<|start_header_id|>{role}<|end_header_id|>"
    return f"{header}\n\n{text}<|eot_id|>"

  text = "<|begin_of_text|>" + said(
    "system",
    "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n",
  )
  places = []
  for k, step in enumerate(steps):
    text += said("user", step if k else f"{problem} {step}")
    text += said("assistant", "+")
    places.append(len(_encode("llama_3", text)) - 3)
  return _encode("llama_3", text), places


def token_classification(problem: str, steps: Sequence[str]) -> Found:
  """Returns TRL's ids: texts on their own; the last id of each separator."""
  ids, places = _encode("qwen", problem), []
  for step in steps:
    ids += _encode("qwen", step) + _encode("qwen", "\n")
    places.append(len(ids) - 1)
  return ids, places


def skywork(problem: str, steps: Sequence[str]) -> Found:
  r"""Returns the ids line by line, and the places of each line's "\n"."""
  ids, places = _encode("qwen", problem + "\n"), []
  for line in "\n".join(steps).split("\n"):
    ids += [*_encode("qwen", line), _encode("qwen", "\n")[-1]]
    places.append(len(ids) - 1)
  return ids, places


def _linked(problem: str, steps: Sequence[str]) -> list[list[int]]:
  """Returns the ids of ContextPRM's text of each step."""
  return [
    _encode("llama_3", f"[CONTEXT]: {a}\n\n[CURRENT STEP]: {b} \n\n\n\n")
    for a, b in zip([problem, *steps], steps)
  ]


def context_prm(problem: str, steps: Sequence[str]) -> Found:
  """Returns the question's ids and each step's after it; their last places."""
  ids = _encode("llama_3", f"<|begin_of_text|>{problem} \n\n")
  places = []
  for step in _linked(problem, steps):
    ids += step
    places.append(len(ids) - 1)
  return ids, places


def step_pairs(problem: str, steps: Sequence[str]) -> Found:
  """Returns a text of each step one after another; their last places."""
  ids, places = [], []
  for step in _linked(problem, steps):
    ids += [public("llama_3").token_to_id("<|begin_of_text|>"), *step]
    places.append(len(ids) - 1)
  return ids, places


RECIPES = dict(
  qwen_prm=("qwen", qwen_prm),
  math_shepherd=("llama_2", math_shepherd),
  rlhflow=("llama_3", rlhflow),
  token_classification=("qwen", token_classification),
  skywork=("qwen", skywork),
  context_prm=("llama_3", context_prm),
  step_pairs=("llama_3", step_pairs),
)
