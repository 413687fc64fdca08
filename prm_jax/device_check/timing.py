"""Costs of variants that take turns, their rates and their ratios."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
import statistics
import time
from typing import Any, NamedTuple


class Cost(NamedTuple):
  """Seconds on the clock, and of this process on all its cores."""

  wall: float
  cpu: float


def alternate(
  variants: Mapping[str, Callable[[], Any]], rounds: int
) -> dict[str, list[Cost]]:
  """Returns each variant's cost in every round. Compile them before.

  A variant that returns a Cost has measured itself.
  """
  costs: dict[str, list[Cost]] = {name: [] for name in variants}
  for _ in range(rounds):
    for name, run in variants.items():
      wall, cpu = time.perf_counter(), time.process_time()
      own = run()
      spent = Cost(time.perf_counter() - wall, time.process_time() - cpu)
      costs[name].append(own if isinstance(own, Cost) else spent)
  return costs


def spread(values: Iterable[float]) -> dict[str, float]:
  """Returns the least, the median and the greatest."""
  values = [float(f"{x:.4g}") for x in values]
  return dict(
    min=min(values), median=statistics.median(values), max=max(values)
  )


def rate(amount: float, costs: Sequence[Cost]) -> dict[str, dict[str, float]]:
  """Returns the spread over rounds of amount per second."""
  return {
    clock: spread(amount / getattr(cost, clock) for cost in costs)
    for clock in Cost._fields
  }


def seconds(costs: Sequence[Cost]) -> dict[str, dict[str, float]]:
  """Returns the spread over rounds of seconds."""
  return {
    clock: spread(getattr(cost, clock) for cost in costs)
    for clock in Cost._fields
  }


def wall_seconds(
  costs: Mapping[str, Sequence[Cost]],
) -> dict[str, dict[str, float]]:
  """Returns the spread over rounds of each variant's seconds on the clock."""
  return {name: seconds(rounds)["wall"] for name, rounds in costs.items()}


def ratio(
  slow: Sequence[Cost], fast: Sequence[Cost], work: float = 1.0
) -> dict[str, dict[str, float]]:
  """Returns how many times faster, round by round.

  Args:
    slow: the costs to compare with.
    fast: as many.
    work: what the fast one gets done in its time, over what the slow one does.
  """
  pairs = list(zip(slow, fast, strict=True))
  return {
    clock: spread(
      work * getattr(a, clock) / getattr(b, clock) for a, b in pairs
    )
    for clock in Cost._fields
  }
