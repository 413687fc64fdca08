"""A process that tries a tokenizer's file: `foreign_tokenizers` starts it.

It reads one JSON object {"path", "texts": [...], "most"} from stdin, and writes
one to stdout: {"error"}, what is wrong, "" if nothing is. It imports nothing of
prm_jax, so that it starts at once and needs little memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import functools
import json
import pathlib
import sys
from typing import Any

Use = Callable[[str], int]


def main() -> None:
  """Tries the tokenizer that stdin names."""
  job = json.load(sys.stdin)
  json.dump(dict(error=error_of(job)), sys.stdout)


def error_of(job: Mapping[str, Any]) -> str:
  """Returns what is wrong with a tokenizer; "" if nothing is.

  What can't be loaded at all is for its reader to refuse.
  """
  path = pathlib.Path(job["path"])
  load = _sentencepiece if path.suffix == ".model" else _hugging_face
  use = _tried(functools.partial(load, path))
  if isinstance(use, str):
    return ""
  for text in job["texts"]:
    size = _tried(functools.partial(use, text))
    if isinstance(size, str):
      return f"fails on {text[:20]!a}: {size}"
    if size > job["most"] * len(text):
      return f"makes {size:,} of the {len(text):,} characters of a text"
  return ""


def _tried(function: Callable[[], Any]) -> Any:
  """Returns what a function does, or the first line of its error."""
  try:
    return function()
  except MemoryError:
    raise
  except BaseException as e:  # a panic of Rust is no Exception
    return str(e).partition("\n")[0] or type(e).__name__


def _hugging_face(path: pathlib.Path) -> Use:
  """Returns a function to the most that a tokenizer.json makes of a text."""
  import tokenizers

  content = path.read_text(encoding="utf-8")
  json.loads(content)  # as its reader does: objects may fill the memory
  tokenizer = tokenizers.Tokenizer.from_str(content)
  tokenizer.no_truncation()
  tokenizer.no_padding()

  def use(text: str) -> int:
    normal = text
    if tokenizer.normalizer is not None:
      normal = tokenizer.normalizer.normalize_str(text)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    return max(len(normal), len(ids), len(tokenizer.decode(ids)))

  return use


def _sentencepiece(path: pathlib.Path) -> Use:
  """Returns a function to the most that a SentencePiece model makes of a text."""
  import sentencepiece

  model = path.read_bytes()
  pieces = sentencepiece.SentencePieceProcessor(model_proto=model)

  def use(text: str) -> int:
    ids = pieces.encode(text)
    return max(len(ids), len(pieces.decode(ids)))

  return use


if __name__ == "__main__":
  main()
