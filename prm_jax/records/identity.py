"""When two problems are one, and two rows the same: digests of their texts."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from typing import Any
import unicodedata

import numpy as np

from prm_jax import schema
from prm_jax.text import messages


# Solutions of one problem come one after another.
@functools.lru_cache(maxsize=64)
def problem_digest(problem: str) -> bytes:
  """Returns a digest that is the same for texts of one problem (problem_key).

  Args:
    problem: The text.
  """
  return hashlib.sha256(problem_key(problem).encode()).digest()[:16]


def record_digest(s: schema.Solution) -> bytes:
  """Returns a digest that is the same for equal rows.

  Args:
    s: The row. Of a trajectory everything counts that a model may read.
  """
  # 1.0 and 1 are one label in a tuple, but not in a text.
  labels = s.labels and [None if x is None else float(x) for x in s.labels]
  row: list[Any] = [s.problem, s.steps, labels, s.ratings, s.outcome]
  if s.messages is not None:
    row.append(messages.heard(s))
  text = json.dumps(row)
  return hashlib.sha256(text.encode()).digest()[:16]


def share(problem: str) -> float:
  """Returns a number in [0, 1) from the problem's letters and digits."""
  return float(shares(np.asarray([problem_digest(problem)], "S16"))[0])


def shares(digests: np.ndarray) -> np.ndarray:
  """Returns numbers in [0, 1) that depend on the problems' texts."""
  whole = np.ascontiguousarray(digests).view(np.uint8).reshape(-1, 16)
  return whole[:, :4].copy().view(">u4")[:, 0] / 2**32


def problem_key(problem: str) -> str:
  """Returns a problem's letters and digits, without its layout and signs.

  Composed and decomposed, full-width and ordinary ones are the same (NFKC).

  Two texts are one problem if these are the same: in the counts of `data stats`
  and `data doctor`, in a split, in data.holdout and data.exclude, and in
  decontamination.
  """
  plain = unicodedata.normalize("NFKC", problem)
  return re.sub(r"[\W_]+", "", plain).lower()


def problems_text(num_problems: int, num_texts: int) -> str:
  """Returns the number of problems as text, and of their texts if it differs.

  Args:
    num_problems: The number of distinct problem_keys.
    num_texts: The number of distinct texts of problems.
  """
  text = f"{num_problems:,} problems"
  if num_texts == num_problems:
    return text
  return f"{text} ({num_texts:,} texts; some have the same letters and digits)"
