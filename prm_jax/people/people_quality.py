"""How well people judge: on gold items, among each other, and over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import math
import statistics
from typing import Any, NamedTuple

from prm_jax.evaluation import agreement
from prm_jax.evaluation import tables
from prm_jax.people import judged_solutions
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
    values: P(correct so far) of each step, as the person says.
    is_right: Whether the first error is that of the gold item; None if it isn't
      gold.
    seconds: How long it took.
    number: The place of its last event among all.
    why: What it was given for; see work_queue. Empty if that isn't known.
  """

  annotator: str
  item: str
  values: tuple[float | None, ...]
  is_right: bool | None
  seconds: float
  number: int
  why: str


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


def share(right: int, num: int) -> dict[str, Any] | None:
  """Returns a share with its interval; None of nothing.

  Args:
    right: How often it was so.
    num: How often it could be.
  """
  if not num:
    return None
  return dict(value=right / num, interval=list(wilson(right, num)), of=num)


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
    name = said[0].annotator
    for solution in judged_solutions.solutions(item, state, name, {}):
      values = agreement.values_of(solution)
      is_right = None
      if item.id in gold:
        is_right = agreement.first_error(values) == gold[item.id]
      found.append(
        Judged(
          *(name, item.id, values, is_right),
          *(sum(x.seconds for x in said), said[-1].number),
          given.get((name, item.id), ""),
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
    `people`: of each person the items and steps, the median seconds of a step,
    the share of gold items with the right first error and its interval
    (Wilson), the same of the first and of the last half of the gold items, and
    the share of steps that are rated right; `agreement`: agreement.measured of
    the items that several people judged, None without such.
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
    if x.item in problems and x.why != work_queue.ADJUDICATION
  ]
  names = dict.fromkeys(x.annotator for x in found)
  return dict(
    task=folder.task,
    people={
      name: of_person([x for x in found if x.annotator == name])
      for name in names
    },
    agreement=agreement.measured(
      shared, num_resamples=num_resamples, seed=seed
    ),
  )


def of_person(found: Sequence[Judged]) -> dict[str, Any]:
  """Returns what is known of a person; see report.

  Args:
    found: The items that the person ended, in their order.
  """
  gold = [x.is_right for x in found if x.is_right is not None]
  half = len(gold) // 2
  rated = [v for x in found for v in x.values if v is not None]
  paces = [
    x.seconds / num
    for x in found
    if (num := sum(v is not None for v in x.values))
  ]
  middle = len(paces) // 2
  return dict(
    items=len(found),
    steps=len(rated),
    seconds_a_step=_median(paces),
    seconds_a_step_first_half=_median(paces[:middle]),
    seconds_a_step_last_half=_median(paces[middle:]),
    rated_right=share(sum(v == 1 for v in rated), len(rated)),
    gold=share(sum(gold), len(gold)),
    gold_first_half=share(sum(gold[:half]), half),
    gold_last_half=share(sum(gold[half:]), len(gold) - half),
  )


def table(told: Mapping[str, Any]) -> tables.Table:
  """Returns what is known of each person and each pair, as a table.

  Args:
    told: What `report` returned.
  """
  shares = dict(
    gold="gold right",
    gold_first_half="its first half",
    gold_last_half="its last half",
    rated_right="steps rated right",
  )
  columns = {
    "items": tables.Column("items", is_share=False),
    "steps": tables.Column("steps", is_share=False),
    "seconds_a_step": tables.Column("s a step", is_share=False, digits=1),
    **{name: tables.Column(label) for name, label in shares.items()},
    "same": tables.Column("same first error"),
  }
  rows = []
  for name, of in told["people"].items():
    counted = ("items", "steps", "seconds_a_step")
    numbers = {key: tables.Number(of[key]) for key in counted}
    for key in shares:
      if of[key] is not None:
        numbers[key] = tables.Number(of[key]["value"], *of[key]["interval"])
    rows.append((name, numbers))
  for pair in (told["agreement"] or {}).get("pairs", ()):
    same = pair["first_error_same"]
    number = tables.Number(same["value"], *(same["interval"] or ()))
    num = tables.Number(pair["solutions"])
    rows.append((f"{pair['a']} and {pair['b']}", dict(items=num, same=number)))
  return tables.Table(columns, rows)


def _median(values: Sequence[float]) -> float | None:
  return statistics.median(values) if values else None
