"""How well people judge: on gold items, among each other, and over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import math
import statistics
from typing import Any, NamedTuple

from jaxtyping import Float
import numpy as np

from prm_jax.evaluation import agreement
from prm_jax.evaluation import bootstrap
from prm_jax.evaluation import tables
from prm_jax.people import judged_solutions
from prm_jax.people import judgements
from prm_jax.people import people_folder
from prm_jax.people import work_queue
from prm_jax.records import identity

# Of the standard normal distribution: 95 % lie within as many deviations.
_Z = 1.959963984540054


class Judged(NamedTuple):
  """An item that a person ended.

  Args:
    annotator: The person.
    item: The id of the item.
    values: P(correct so far) of each step, as the person says; none of an item
      that wasn't judged.
    is_right: Whether the first error is that of the gold item; None if it isn't
      gold.
    seconds: How long it took.
    number: The place of its last event among all.
    why: What it was given for; see work_queue. Empty if that isn't known.
    reason: How it ended, one of judgements.REASONS.
  """

  annotator: str
  item: str
  values: tuple[float | None, ...]
  is_right: bool | None
  seconds: float
  number: int
  why: str
  reason: str

  @property
  def is_judged(self) -> bool:
    """Whether anything is said of its steps."""
    return self.reason not in judgements.NOT_JUDGED


def wilson(right: int, num: int) -> tuple[float, float]:
  """Returns the 95 % interval of a share (Wilson 1927).

  Args:
    right: How often it was so.
    num: How often it could be.
  """
  if not num:
    return 0.0, 1.0
  share, square = right / num, _Z * _Z / num
  middle = (share + square / 2) / (1 + square)
  half = (
    _Z
    * math.sqrt(share * (1 - share) / num + square / (4 * num))
    / (1 + square)
  )
  return max(0.0, middle - half), min(1.0, middle + half)


def ratio(
  counts: Float[np.ndarray, "N 2"], num_resamples: int, seed: int
) -> dict[str, Any] | None:
  """Returns a ratio of sums over items, with its interval.

  Args:
    counts: Of each item what is so, and what could be.
    num_resamples: The number of resamples of items for the interval.
    seed: The seed of their draws.

  Returns:
    value, interval and of, the number of what could be; None if that is 0. The
    interval of a single item is None.
  """
  right, num = counts.sum(axis=0)
  if not num:
    return None
  interval = None
  if len(counts) > 1:
    sums = bootstrap.sums(counts, num_resamples, seed)
    with np.errstate(invalid="ignore"):
      interval = bootstrap.interval(sums[:, 0] / sums[:, 1])
  return dict(value=right / num, interval=interval, of=int(num))


def judged(folder: people_folder.Folder) -> list[Judged]:
  """Returns the items that people ended, in the order in which they did.

  Args:
    folder: The folder of the work, of a task with one solution in an item.
  """
  gold = {
    s.id: agreement.first_error(agreement.values_of(s)) for s in folder.gold()
  }
  given = folder.given_for()
  found = []
  for item, state, said in folder.states():
    if state.reason is None:
      continue
    name = said[0].annotator
    values: tuple[float | None, ...] = ()
    is_right = None
    for solution in judged_solutions.solutions(item, state, name, {}):
      values = agreement.values_of(solution)
      if item.id in gold:
        is_right = agreement.first_error(values) == gold[item.id]
    found.append(
      Judged(
        *(name, item.id, values, is_right),
        *(sum(x.seconds for x in said), said[-1].number),
        *(given.get((name, item.id), ""), state.reason),
      )
    )
  return sorted(found, key=lambda x: x.number)


def report(
  folder: people_folder.Folder, *, num_resamples: int = 1_000, seed: int = 0
) -> dict[str, Any]:
  """Returns how well people judge, as JSON has it.

  Args:
    folder: The folder of the work, of a task with one solution in an item.
    num_resamples: The number of resamples of each interval of agreement.
    seed: The seed of their draws.

  Returns:
    `people`: of each person the items and steps that were judged, how many
    items were given up or have a bad problem, the median seconds of a step, the
    share of gold items with the right first error and its interval (Wilson) in
    the screening and after it, the same of the first and of the last half of
    what came after it, and the share of steps that are rated right (interval by
    a bootstrap over solutions); `agreement`: agreement.measured of the items
    that several people judged, None without such.
  """
  found = judged(folder)
  problems = {
    x.id: identity.problem_digest(x.solutions[0].problem)
    for x in folder.items()
  }
  shared = [
    agreement.Judgement(x.annotator, x.item, problems[x.item], x.values)
    for x in found
    # Who decides between others has seen what they said.
    if x.item in problems and x.is_judged and x.why != work_queue.ADJUDICATION
  ]
  names = dict.fromkeys(x.annotator for x in found)
  return dict(
    task=folder.task,
    people={
      name: _of_person(
        [x for x in found if x.annotator == name], num_resamples, seed
      )
      for name in names
    },
    agreement=agreement.measured(
      shared, num_resamples=num_resamples, seed=seed
    ),
  )


def _of_person(
  ended: Sequence[Judged], num_resamples: int, seed: int
) -> dict[str, Any]:
  """Returns what is known of a person by the items that ended, in order."""
  found = [x for x in ended if x.is_judged]
  reasons = [x.reason for x in ended]
  known = [x for x in found if x.is_right is not None]
  gold = [x.is_right for x in known if x.why != work_queue.SCREENING]
  screening = [x.is_right for x in known if x.why == work_queue.SCREENING]
  half = len(gold) // 2
  # Of each solution the steps that are rated right, and all that are rated.
  rated = np.array(
    [(x.values.count(1), len(x.values) - x.values.count(None)) for x in found],
    float,
  ).reshape(-1, 2)
  paces = [x.seconds / num for x, (_, num) in zip(found, rated) if num]
  middle = len(paces) // 2
  return dict(
    items=len(found),
    steps=int(rated[:, 1].sum()),
    gave_up=reasons.count(judgements.GIVE_UP),
    bad_problem=reasons.count(judgements.BAD_PROBLEM),
    seconds_a_step=_median(paces),
    seconds_a_step_first_half=_median(paces[:middle]),
    seconds_a_step_last_half=_median(paces[middle:]),
    rated_right=ratio(rated, num_resamples, seed),
    screening=_share(screening),
    gold=_share(gold),
    gold_first_half=_share(gold[:half]),
    gold_last_half=_share(gold[half:]),
  )


def table(told: Mapping[str, Any]) -> tables.Table:
  """Returns what is known of each person and each pair, as a table.

  Args:
    told: What `report` returned.
  """
  shares = dict(
    screening="screening right",
    gold="gold right",
    gold_first_half="its first half",
    gold_last_half="its last half",
    rated_right="steps rated right",
  )
  counted = dict(
    items="items", steps="steps", gave_up="given up", bad_problem="bad problem"
  )
  columns = {
    **{name: tables.Column(x, is_share=False) for name, x in counted.items()},
    "seconds_a_step": tables.Column("s a step", is_share=False, digits=1),
    **{name: tables.Column(label) for name, label in shares.items()},
    "same": tables.Column("same first error"),
  }
  return tables.Table(columns, rows(told, [*shares], shared="items"))


def rows(
  told: Mapping[str, Any], shares: Sequence[str], *, shared: str
) -> list[tuple[str, dict[str, tables.Number]]]:
  """Returns a row of a table for each person, and for each pair of them.

  Args:
    told: What a report returned.
    shares: Which of its numbers are shares with an interval, or None.
    shared: The column that has what both of a pair judged; `same` has how often
      they say the same.
  """
  found = []
  for name, of in told["people"].items():
    numbers = {
      key: _number(x) if key in shares else tables.Number(x)
      for key, x in of.items()
      if key not in shares or x is not None
    }
    found.append((name, numbers))
  for pair in (told["agreement"] or {}).get("pairs", ()):
    numbers = {
      shared: tables.Number(pair["solutions"]),
      "same": _number(pair["first_error_same"]),
    }
    found.append((f"{pair['a']} and {pair['b']}", numbers))
  return found


def _number(share: Mapping[str, Any]) -> tables.Number:
  return tables.Number(share["value"], *(share["interval"] or ()))


def _share(were: Sequence[bool | None]) -> dict[str, Any] | None:
  """Returns the share that was so, with its interval; None of nothing."""
  if not were:
    return None
  right, num = sum(map(bool, were)), len(were)
  return dict(value=right / num, interval=list(wilson(right, num)), of=num)


def _median(values: Sequence[float]) -> float | None:
  return statistics.median(values) if values else None
