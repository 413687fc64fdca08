"""The tokenizer that a config asks for: trained on the data, bytes, or a file."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import logging

import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.records import array_record
from prm_jax.records import sources
from prm_jax.runtime import checks
from prm_jax.runtime import files
from prm_jax.text import tokenizer as tokenizer_lib
from prm_jax.text import tokenizer_files

_logger = logging.getLogger(__name__)

# A vocabulary is learnt in memory: of data that stays in its files, from this
# many solutions, evenly spaced.
WORDS_FROM = 100_000


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
  """Which tokenizer to use.

  Args:
    kind: sentencepiece (trained on the training text), bytes, or file.
    vocab_size: The number of ids of a trained tokenizer.
    model_type: The SentencePiece model to train: bpe, unigram or word.
    path: For file, a SentencePiece model or a Hugging Face tokenizer.json.
  """

  kind: str = "sentencepiece"
  vocab_size: int = 4096
  model_type: str = "bpe"
  path: str = ""

  def __post_init__(self):
    kinds = ("sentencepiece", "bytes", "file")
    checks.check_choice("tokenizer.kind", self.kind, kinds)


def make_tokenizer(
  config: TokenizerConfig, solutions: Sequence[schema.Solution]
) -> tokenizer_lib.Tokenizer:
  """Returns the tokenizer that a config asks for."""
  if config.kind == "bytes":
    return tokenizer_lib.Bytes()
  if config.kind == "sentencepiece":
    if (
      isinstance(solutions, array_record.Chosen) and len(solutions) > WORDS_FROM
    ):
      _logger.info(f"tokenizer: learns from {WORDS_FROM:,} of the solutions")
      every = np.linspace(0, len(solutions) - 1, WORDS_FROM).astype(np.int64)
      solutions = solutions.read(every.tolist())
    texts = dict.fromkeys(t for s in solutions for t in (s.problem, *s.steps))
    if not texts:
      raise errors.InputError("tokenizer: there is no training text to learn")
    return tokenizer_files.train_sentencepiece(
      texts, config.vocab_size, model_type=config.model_type
    )
  path = sources.find(config.path)
  if path.suffix == ".json":
    return tokenizer_files.HuggingFace(files.read_text(path), path=path)
  try:
    return tokenizer_files.SentencePiece(files.read_bytes(path), path=path)
  except errors.InputError as e:
    raise errors.InputError(f"tokenizer.path={e}") from None
