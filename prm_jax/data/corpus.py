"""Named files to solutions: the part of a config that says what to train on.

A source is written "FORMAT:PATH". A relative path that isn't there is looked
for below the folder that the environment variable PRM_JAX_DATA names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
import difflib
import hashlib
import os
import pathlib
import re

import ml_collections

from prm_jax import formats
from prm_jax import schema
from prm_jax import tokenizer as tokenizer_lib
from prm_jax.formats import gsm8k
from prm_jax.formats import math_shepherd
from prm_jax.formats import prm800k
from prm_jax.formats import prmbench
from prm_jax.formats import rlhflow

Reader = Callable[[pathlib.Path, Counter[str]], Iterable[schema.Solution]]

# These count what they can't represent; the others refuse it.
_COUNTING: dict[str, Reader] = {
  "prm800k": lambda path, out: prm800k.read(path, left_out=out),
  "math_shepherd": lambda path, out: math_shepherd.read(path, left_out=out),
  "prmbench": lambda path, out: prmbench.read(path, left_out=out),
  "rlhflow": lambda path, out: rlhflow.read(path, left_out=out),
  "gsm8k_pool": lambda path, out: gsm8k.read_pool(path),
}


@dataclasses.dataclass(frozen=True)
class CorpusConfig:
  """What to train and evaluate on.

  train, evaluation, exclude: sources; problems of `exclude` are taken out of
  training. holdout: share of the training problems that is evaluated on
  instead, chosen by a hash of the problem. deduplicate: equal rows count once.
  """

  train: tuple[str, ...]
  evaluation: tuple[str, ...] = ()
  exclude: tuple[str, ...] = ()
  holdout: float = 0.0
  deduplicate: bool = True

  def __post_init__(self):
    if not 0 <= self.holdout < 1:
      raise schema.InputError(
        f"data.holdout={self.holdout}: expected a share in [0, 1)"
      )


def from_config(c: ml_collections.ConfigDict) -> CorpusConfig:
  """Returns the sources that a config's `data` names."""
  plain = dict(c)
  for name in ("train", "evaluation", "exclude"):
    sources = plain.get(name, ())
    # A text is a sequence too: of letters.
    if not isinstance(sources, list | tuple) or not all(
      isinstance(source, str) for source in sources
    ):
      raise schema.InputError(
        f"data.{name}={sources!r}: expected a tuple of sources, as in"
        ' ("jsonl:solutions.jsonl",)'
      )
    plain[name] = tuple(sources)
  return CorpusConfig(**plain)


@dataclasses.dataclass(frozen=True)
class Corpus:
  """evaluation: what was held out of the training problems, then files."""

  train: list[schema.Solution]
  held_out: list[schema.Solution]
  evaluation: list[schema.Solution]


def format_names() -> list[str]:
  return sorted({*formats.FORMATS, *_COUNTING})


def read(
  format_name: str, path: schema.PathLike
) -> tuple[list[schema.Solution], Counter[str]]:
  """Returns the solutions of a file, and what was left out, by reason.

  Raises:
    InputError: an unknown format, no such file, or a bad row.
  """
  left_out: Counter[str] = Counter()
  return list(stream(format_name, path, left_out)), left_out


def stream(
  format_name: str, path: schema.PathLike, left_out: Counter[str]
) -> Iterator[schema.Solution]:
  """Returns the solutions of a file one by one; counts as `read` does."""
  return iter(reader(format_name)(find(path), left_out))


def reader(format_name: str) -> Reader:
  """Returns what reads a file of a format row by row and counts what's left.

  Raises:
    InputError: an unknown format.
  """
  known = format_names()
  if format_name not in known:
    near = difflib.get_close_matches(format_name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise schema.InputError(
      f"format {format_name!r}: expected one of {', '.join(known)}{hint}"
    )
  if format_name in _COUNTING:
    return _COUNTING[format_name]
  return lambda path, left_out: formats.FORMATS[format_name].read(path)


def left_out_texts(left_out: Mapping[str, int]) -> list[str]:
  """Returns a line for each reason to leave something out."""
  return [
    f"left out: {count:,} {reason.replace('_', ' ')}"
    for reason, count in sorted(left_out.items())
  ]


def find(path: schema.PathLike) -> pathlib.Path:
  """Returns the path, or the one of that name below PRM_JAX_DATA."""
  path = pathlib.Path(path)
  root = os.environ.get("PRM_JAX_DATA")
  if path.is_absolute() or path.exists() or not root:
    return path
  return pathlib.Path(root) / path


def read_sources(sources: Sequence[str]) -> list[schema.Solution]:
  """Returns the solutions of "FORMAT:PATH" sources; prints what is left out."""
  solutions: list[schema.Solution] = []
  for source in sources:
    format_name, colon, path = source.partition(":")
    if not colon:
      raise schema.InputError(
        f"data source {source!r}: write it FORMAT:PATH, as in"
        " jsonl:solutions.jsonl"
      )
    read_, left_out = read(format_name, path)
    solutions += read_
    said = ", ".join(f"{n:,} {why}" for why, n in sorted(left_out.items()))
    print(
      f"{source}: {len(read_):,} solutions" + f"; left out: {said}" * bool(said)
    )
  return solutions


def load(config: CorpusConfig) -> Corpus:
  """Returns what a config asks for; prints what it took out."""
  train = read_sources(config.train)
  if config.deduplicate:
    distinct = {
      (s.problem, s.steps, s.labels, s.ratings, s.outcome): s for s in train
    }
    _say(len(train) - len(distinct), "equal solutions")
    train = list(distinct.values())
  banned = {problem_key(s.problem) for s in read_sources(config.exclude)}
  kept = [s for s in train if problem_key(s.problem) not in banned]
  _say(len(train) - len(kept), "solutions of excluded problems")
  held_out = [s for s in kept if share(s.problem) < config.holdout]
  train = [s for s in kept if share(s.problem) >= config.holdout]
  return Corpus(train, held_out, held_out + read_sources(config.evaluation))


def _say(count: int, what: str) -> None:
  if count:
    print(f"taken out of training: {count:,} {what}")


def problem_key(problem: str) -> str:
  """Returns a problem's letters and digits alone: equal but for layout."""
  return re.sub(r"[\W_]+", "", problem).lower()


def share(problem: str) -> float:
  """Returns a number in [0, 1) that the problem's letters and digits decide."""
  digest = hashlib.sha256(problem_key(problem).encode()).digest()
  return int.from_bytes(digest[:4], "big") / 2**32


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
  """kind: sentencepiece (trained on the training text), bytes, or file.

  file: `path` is a SentencePiece model or a Hugging Face tokenizer.json.
  """

  kind: str = "sentencepiece"
  vocab_size: int = 4096
  model_type: str = "bpe"
  path: str = ""

  def __post_init__(self):
    if self.kind not in ("sentencepiece", "bytes", "file"):
      raise schema.InputError(
        f"tokenizer.kind={self.kind!r}: expected sentencepiece, bytes or file"
      )


def make_tokenizer(
  config: TokenizerConfig, solutions: Sequence[schema.Solution]
) -> tokenizer_lib.Tokenizer:
  """Returns the tokenizer that a config asks for."""
  if config.kind == "bytes":
    return tokenizer_lib.Bytes()
  if config.kind == "sentencepiece":
    texts = dict.fromkeys(t for s in solutions for t in (s.problem, *s.steps))
    if not texts:
      raise schema.InputError("tokenizer: there is no training text to learn")
    return tokenizer_lib.train_sentencepiece(
      texts, config.vocab_size, model_type=config.model_type
    )
  path = find(config.path)
  if path.suffix == ".json":
    return tokenizer_lib.HuggingFace(schema.read_text(path), path=path)
  try:
    return tokenizer_lib.SentencePiece(path.read_bytes(), path=path)
  except OSError as e:
    raise schema.InputError(
      f"tokenizer.path={path}: can't be read: {e.strerror}"
    ) from None
