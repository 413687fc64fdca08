"""How people judge alternatives: pace, ratings, steps of their own, agreement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import statistics
from typing import Any

import numpy as np

from prm_jax.evaluation import agreement
from prm_jax.evaluation import tables
from prm_jax.people import judgements
from prm_jax.people import people_folder
from prm_jax.people import people_quality
from prm_jax.records import identity

_RATED = {1: "rated_right", 0: "rated_neutral", -1: "rated_wrong"}
_SHARES = dict(
  rated_right="right",
  rated_neutral="neutral",
  rated_wrong="wrong",
  written="steps of their own",
)


def report(
  folder: people_folder.Folder, *, num_resamples: int = 1_000, seed: int = 0
) -> dict[str, Any]:
  """Returns how people judge alternatives, as JSON has it.

  Args:
    folder: The folder of the work, of the task `alternatives`.
    num_resamples: The number of resamples of each interval of agreement.
    seed: The seed of their draws.

  Returns:
    `people`: of each person the items that ended with ratings, the steps that
    were taken, the alternatives that were rated, the median seconds of a
    rating (of each item, all seconds over all ratings), the share of each
    rating, and the share of steps that the person wrote, with their intervals
    (by a bootstrap over items); `agreement`: agreement.measured of the alternatives that several
    people rated at the same path, None without such.
  """
  found = [
    (item, state, said)
    for item, state, said in folder.states()
    if state.reason not in (None, *judgements.NOT_JUDGED)
  ]
  names = dict.fromkeys(said[0].annotator for _, _, said in found)
  return dict(
    task=folder.task,
    people={
      name: _of_person(
        [
          (state, sum(x.seconds for x in said))
          for _, state, said in found
          if said[0].annotator == name
        ],
        *(num_resamples, seed),
      )
      for name in names
    },
    agreement=agreement.measured(
      (
        x
        for item, state, said in found
        for x in _rated(item, state, said[0].annotator)
      ),
      num_resamples=num_resamples,
      seed=seed,
    ),
  )


def table(told: Mapping[str, Any]) -> tables.Table:
  """Returns what is known of each person and each pair, as a table.

  Args:
    told: What `report` returned.
  """
  counts = dict(items="items", steps="steps taken", rated="rated")
  columns = {
    **{name: tables.Column(x, is_share=False) for name, x in counts.items()},
    "seconds_a_rating": tables.Column("s a rating", is_share=False, digits=1),
    **{name: tables.Column(label) for name, label in _SHARES.items()},
    "same": tables.Column("same side"),
  }
  rows = people_quality.rows(told, [*_SHARES], shared="rated")
  return tables.Table(columns, rows)


def _of_person(
  found: Sequence[tuple[judgements.State, float]],
  num_resamples: int,
  seed: int,
) -> dict[str, Any]:
  """Returns what is known of a person, given each item and its seconds."""
  ratings = [[*state.ratings.values()] for state, _ in found]
  steps = [len(state.path) for state, _ in found]
  written = [len(state.written) for state, _ in found]
  paces = [
    seconds / len(state.ratings) for state, seconds in found if state.ratings
  ]

  def ratio(right, of):
    counts = np.array([*zip(right, of, strict=True)], float)
    return people_quality.ratio(counts, num_resamples, seed)

  return dict(
    items=len(found),
    steps=sum(steps),
    rated=sum(map(len, ratings)),
    seconds_a_rating=statistics.median(paces) if paces else None,
    **{
      name: ratio([x.count(rating) for x in ratings], map(len, ratings))
      for rating, name in _RATED.items()
    },
    written=ratio(written, steps),
  )


def _rated(
  item: judgements.Item, state: judgements.State, name: str
) -> Iterator[agreement.Judgement]:
  """Yields each alternative that a person rated, named by its path."""
  problem = identity.problem_digest(item.solutions[0].problem)
  for (step, number), rating in state.ratings.items():
    before = state.path[:step]
    text = item.alternatives(before)[number]
    yield agreement.Judgement(
      *(name, (item.id, before, text), problem, ((rating + 1) / 2,))
    )
