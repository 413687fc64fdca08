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
) -> tuple[list[schema.Solution], dict[str, int]]:
  """Returns the solutions with soft labels, and the work that it took.

  The last step is judged by the outcome itself. Equal prefixes of a problem
  are rolled out once. Ratings are taken off, since they would hide the labels.
  is_right: does a whole solution end in the right answer.
  """
  prefixes: dict[tuple[str, ...], schema.Solution] = {}
  wanted = 0
  for s in solutions:
    for k in range(1, len(s.steps)):
      wanted += 1
      key = (s.problem, *s.steps[:k])
      if key not in prefixes:
        # What is known of the whole solution isn't known of its beginning.
        prefixes[key] = dataclasses.replace(
          s,
          steps=s.steps[:k],
          labels=None,
          ratings=None,
          answer=None,
          outcome=None,
        )
  rollouts = generate(list(prefixes.values()), completions)
  for prefix, row in zip(prefixes.values(), rollouts, strict=True):
    if len(row) != completions:
      raise ValueError(
        f"{prefix.id}: {len(row)} completions instead of {completions}"
      )
  values = {
    key: sum(map(is_right, row)) / completions
    for key, row in zip(prefixes, rollouts, strict=True)
  }
  labelled = []
  for s in solutions:
    labels = [values[(s.problem, *s.steps[:k])] for k in range(1, len(s.steps))]
    if s.steps:
      labels.append(float(is_right(s)))
    labelled.append(
      dataclasses.replace(
        s, labels=tuple(labels), ratings=None, source="monte_carlo"
      )
    )
  work = dict(
    prefixes=wanted,
    distinct_prefixes=len(prefixes),
    rollouts=len(prefixes) * completions,
  )
  return labelled, work
