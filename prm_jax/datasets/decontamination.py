"""Finds training problems that equal, or nearly equal, those of a test set.

Two problems are equal if they have the same letters and digits. They are nearly
equal if the runs of 13 words that both have (Brown et al. 2020, arXiv
2005.14165, appendix C) cover .6 of the shorter problem. The share follows the
rule that Qwen2's report applies to its training data (Yang et al. 2024, arXiv
2407.10671): a common subsequence of at least 13 tokens and of .6 of the shorter
text. A word is a run of letters and digits, so x^2 is two words. Problems of
fewer than 13 words can only be equal.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
import dataclasses
import re
import unicodedata

from prm_jax import schema
from prm_jax.records import sources

NUM_WORDS = 13
MIN_SHARE = 0.6

_WORD = re.compile(r"[^\W_]+")


@dataclasses.dataclass(frozen=True)
class Index:
  """An index of a test set's problems.

  Args:
    ids: The id of a solution of each problem.
    num_words: The number of words of each problem.
    by_key: The number of the problem with these letters and digits.
    by_run: The numbers of the problems with this run of NUM_WORDS words.
  """

  ids: list[str]
  num_words: list[int]
  by_key: dict[str, int]
  by_run: dict[tuple[str, ...], list[int]]


@dataclasses.dataclass(frozen=True)
class Overlap:
  """A test problem that overlaps with a problem.

  Args:
    id: The id of a test solution of the problem.
    share: The share of the shorter problem that both have; 1 if they are equal.
    is_equal: Whether they are equal.
  """

  id: str
  share: float
  is_equal: bool


def index(solutions: Iterable[schema.Solution]) -> Index:
  """Returns the index of the problems of a test set."""
  tests = Index([], [], {}, {})
  for solution in solutions:
    key = sources.problem_key(solution.problem)
    if key in tests.by_key:
      continue
    number = tests.by_key[key] = len(tests.ids)
    words = _words(solution.problem)
    tests.ids.append(solution.id)
    tests.num_words.append(len(words))
    for run in set(_runs(words)):
      tests.by_run.setdefault(run, []).append(number)
  return tests


def find(problem: str, tests: Index) -> Overlap | None:
  """Returns the test problem that overlaps most with a problem, or None."""
  number = tests.by_key.get(sources.problem_key(problem))
  if number is not None:
    return Overlap(tests.ids[number], 1.0, is_equal=True)
  words = _words(problem)
  covered: dict[int, set[int]] = collections.defaultdict(set)
  for start, run in enumerate(_runs(words)):
    for number in tests.by_run.get(run, ()):
      covered[number].update(range(start, start + NUM_WORDS))
  shares = {
    number: len(places) / min(len(words), tests.num_words[number])
    for number, places in covered.items()
  }
  if not shares:
    return None
  best = max(shares, key=lambda number: (shares[number], -number))
  if shares[best] < MIN_SHARE:
    return None
  # A run that one text repeats would count for more than all of the other.
  return Overlap(tests.ids[best], min(1.0, shares[best]), is_equal=False)


def _words(text: str) -> list[str]:
  return _WORD.findall(unicodedata.normalize("NFKC", text).lower())


def _runs(words: list[str]) -> list[tuple[str, ...]]:
  return list(zip(*(words[i:] for i in range(NUM_WORDS))))
