"""Tokenizers of folders that may come from anyone, tried before they are used.

A tokenizer's file has patterns and rules of replacement: one of a few hundred
bytes may multiply a text by millions, or never end. So it is read and used first
in a process with limits, once for each file: on the texts that an import itself
encodes, and others. Of a tokenizer.json the rules of replacement are read, too,
so what they make of any other text is bounded.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import pathlib

from prm_jax import errors
from prm_jax.runtime import files
from prm_jax.runtime import limited_process
from prm_jax.text import trial_texts

# The largest published ones need less than 1 GiB and, on a busy machine, 10 s.
TIME_S = 60
MEMORY_MIB = 2048
# Ids and characters for each character of a text; a byte is an id at most, and
# no form of Unicode's makes more than 18 characters of one.
MOST_PER_CHARACTER = 64
_WORKER = pathlib.Path(__file__).with_name("tokenizer_worker.py")
_ASCII = "".join(map(chr, range(32, 127)))
TEXTS = (
  "Let $x^2 = 16$.\n\nSo $x = 4$\nor $x = -4$: \\boxed{4}",
  f"{_ASCII}\t\r\n\u00a0\u00e9\u03c0\u2212\u2003 \U0001f600 \u4e2d\u6587\u3002",
  # What patterns with several ways to match are slow with.
  *(f"{x * 200}!" for x in "a1 \n-.\\A"),
  *trial_texts.ALL,
)


@dataclasses.dataclass(frozen=True)
class _File:
  """A file, known by its content."""

  sha256: str
  path: pathlib.Path = dataclasses.field(compare=False)


def check(path: pathlib.Path) -> None:
  """Refuses a tokenizer's file that ordinary texts would be stopped by.

  A file that isn't a tokenizer's at all is left to its reader.

  Args:
    path: A tokenizer.json or a SentencePiece model, a regular file.

  Raises:
    InputError: It takes too much time or memory, panics, or multiplies texts.
  """
  digest = hashlib.sha256(files.read_bytes(path)).hexdigest()
  error = _error_of(_File(digest, path))
  if error:
    raise errors.InputError(
      f"{path}: a tokenizer that {error}; fetch the model's own again, from a"
      " source that you trust"
    )


@functools.lru_cache(maxsize=64)
def _error_of(file: _File) -> str:
  """Returns what is wrong with a tokenizer; "" if nothing is."""
  reply = limited_process.run(
    _WORKER,
    dict(path=str(file.path), texts=TEXTS, most=MOST_PER_CHARACTER),
    time_s=TIME_S,
    memory_mib=MEMORY_MIB,
  )
  if reply is None:
    return f"can't be used in {TIME_S} s and {MEMORY_MIB:,} MiB"
  return " ".join(reply["error"].split())[:200]
