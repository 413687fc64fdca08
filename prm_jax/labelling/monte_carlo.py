"""Monte-Carlo step labels (Math-Shepherd, Wang et al. 2024).

The value of a step is the share of K completions, sampled after it, that end
in the right answer. It estimates how promising the prefix is, not whether it
is right: a wrong prefix that is often lucky gets a value above 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses

from prm_jax import schema


def label(
  solutions: Sequence[schema.Solution],
  generate: schema.Generate,
  is_right: Callable[[schema.Solution], bool],
  completions: int,
  *,
  stop_at_zero: bool = False,
  progress: Callable[[int], None] = lambda done: None,
) -> tuple[list[schema.Solution], dict[str, int]]:
  """Returns the solutions with soft labels, and the work that it took.

  The last step is judged by the outcome itself. Equal prefixes of a problem
  are rolled out once. Ratings are taken off, since they would hide the labels.

  Args:
    solutions: what to label.
    generate: completes prefixes.
    is_right: does a whole solution end in the right answer.
    completions: K, how many of each prefix.
    stop_at_zero: leave the steps behind a step of value 0 without labels, and
      don't roll out from there: they would be ignored by a label policy that
      ends at the first error.
    progress: is told how many of the num_prefixes are settled by now.
  """
  longest = max((len(s.steps) for s in solutions), default=0)
  lengths = range(1, longest)
  rounds = [[k] for k in lengths] if stop_at_zero else [lengths]
  keys = _keys(solutions)
  values: dict[tuple[str, ...], float] = {}
  for ks in rounds:
    prefixes = {
      key: s
      for k in ks
      for s in solutions
      if k < len(s.steps)
      and (key := _key(s, k)) not in values
      and not (stop_at_zero and _has_zero(s, k, values))
    }
    if prefixes:
      values |= _values(prefixes, generate, is_right, completions)
    settled = max(ks, default=0)
    progress(sum(len(key) - 1 <= settled for key in keys))
  labelled = []
  for s in solutions:
    labels = [values.get(_key(s, k)) for k in range(1, len(s.steps))]
    if s.steps:
      labels.append(None if None in labels else float(is_right(s)))
    if stop_at_zero and 0.0 in labels:
      end = labels.index(0.0) + 1
      labels = labels[:end] + [None] * (len(labels) - end)
    labelled.append(
      dataclasses.replace(
        s, labels=tuple(labels), ratings=None, source="monte_carlo"
      )
    )
  work = dict(
    prefixes=sum(max(len(s.steps) - 1, 0) for s in solutions),
    distinct_prefixes=len(keys),
    rollouts=len(values) * completions,
  )
  return labelled, work


def num_prefixes(solutions: Sequence[schema.Solution]) -> int:
  """Returns how many distinct prefixes there are to roll out from."""
  return len(_keys(solutions))


def _keys(solutions: Sequence[schema.Solution]) -> set[tuple[str, ...]]:
  return {_key(s, k) for s in solutions for k in range(1, len(s.steps))}


def _key(solution: schema.Solution, k: int) -> tuple[str, ...]:
  return (solution.problem, *solution.steps[:k])


def _has_zero(solution, k, values) -> bool:
  """Returns whether a shorter prefix than k steps is worth nothing."""
  return any(values.get(_key(solution, j)) == 0 for j in range(1, k))


def _values(prefixes, generate, is_right, completions):
  """Returns the value of each prefix; prefixes: key -> a solution with it."""
  # What is known of the whole solution isn't known of its beginning.
  starts = [
    dataclasses.replace(
      s,
      steps=s.steps[: len(key) - 1],
      labels=None,
      ratings=None,
      answer=None,
      outcome=None,
    )
    for key, s in prefixes.items()
  ]
  values = {}
  for key, start, row in zip(
    prefixes, starts, generate(starts, completions), strict=True
  ):
    if len(row) != completions:
      raise ValueError(
        f"{start.id}: {len(row)} completions instead of {completions}"
      )
    values[key] = sum(map(is_right, row)) / completions
  return values
