"""A process that tries a tokenizer's file: `foreign_tokenizers` starts it.

It reads one JSON object {"path", "texts": [...], "most"} from stdin, and writes
one to stdout: {"error"}, what is wrong, "" if nothing is. It imports nothing of
prm_jax, so that it starts at once and needs little memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
import functools
import json
import math
import pathlib
import re
import sys
from typing import Any

Use = Callable[[str], int]
# A regular expression of characters and classes that must each be there.
_ATOM = r"(?:\\[sSdDwWnrt]|\\p\{\w+\}|\\\W|\[[^\[\]\\]+\]|[^\\\[\](){}.*+?|^$])"
_NEVER_EMPTY = re.compile(rf"(?:{_ATOM}(?:\+|\{{[1-9]\d*(?:,\d*)?\}})?)+")


def main() -> None:
  """Tries the tokenizer that stdin names."""
  job = json.load(sys.stdin)
  json.dump(dict(error=error_of(job)), sys.stdout)


def error_of(job: Mapping[str, Any]) -> str:
  """Returns what is wrong with a tokenizer; "" if nothing is.

  What can't be loaded at all is for its reader to refuse. What raises an
  ordinary error on a text, as without a token for its letters, does so again on
  such a text.
  """
  path = pathlib.Path(job["path"])
  load = _sentencepiece if path.suffix == ".model" else _hugging_face
  use = _tried(functools.partial(load, path))
  if not callable(use):
    return ""
  for text in job["texts"]:
    size = _tried(functools.partial(use, text))
    if isinstance(size, str):
      return f"fails on {text[:20]!a}: {size}"
    if size > job["most"] * len(text):
      return f"makes {size:,} of the {len(text):,} characters of a text"
  if path.suffix == ".model":
    return ""
  spec = json.loads(path.read_text(encoding="utf-8"))
  for part in ("normalizer", "decoder"):
    size = growth(spec.get(part))
    if size > job["most"]:
      return f"may make {size:,} of a character: see its {part}'s Replace"
  return ""


def growth(spec: Any) -> int:
  """Returns the most characters that rules of replacement make of one.

  A rule works on what an earlier one wrote, if that has a character of its
  pattern. Prepend and the forms of Unicode's are for the texts to try.

  Args:
    spec: A normalizer or a decoder, as a tokenizer.json has it.
  """
  most: list[float] = []
  written: list[Set[str] | None] = []
  for pattern, content, own in _rules(spec):
    # None: it isn't known what the rule looks for, or writes.
    before = [
      size
      for size, text in zip(most, written, strict=True)
      if pattern is None or text is None or not pattern.isdisjoint(text)
    ]
    most.append(own * max(before, default=1.0))
    written.append(content)
  return math.ceil(min(max(most, default=1.0), sys.maxsize))


def _rules(
  spec: Any,
) -> Iterator[tuple[Set[str] | None, Set[str] | None, float]]:
  """Yields what each rule looks for, what it writes, and how it multiplies."""
  if not isinstance(spec, dict):
    return
  if spec.get("type") == "Sequence":
    for part in spec.get("normalizers") or spec.get("decoders") or ():
      yield from _rules(part)
  elif spec.get("type") == "Replace":
    content = spec["content"]
    text = spec["pattern"].get("String")
    if text:
      own = len(content) / len(text)
      yield frozenset(text), frozenset(content), max(1.0, own)
    else:
      regex = str(spec["pattern"].get("Regex", ""))
      # One that matches nothing does so beside each character.
      never = _NEVER_EMPTY.fullmatch(regex)
      own = len(content) if never else len(content) + 1
      yield None, frozenset(content), max(1.0, own)
  else:
    yield None, None, 1.0


def _tried(function: Callable[[], Any]) -> Any:
  """Returns what a function does, 0 for an error, or a panic's first line."""
  try:
    return function()
  except MemoryError:
    raise
  except Exception:
    return 0
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
