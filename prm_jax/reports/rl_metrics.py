"""Metrics of reinforcement learning: their names, and curves of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import Any

Record = Mapping[str, Any]

# A curve has no more points: means of successive updates, if needed.
MAX_POINTS = 40


@dataclasses.dataclass(frozen=True)
class Metric:
  """How a metric is called and drawn: its values times `scale`, in `unit`."""

  label: str
  unit: str = ""
  scale: float = 1

  @property
  def axis(self) -> str:
    return f"{self.label}, {self.unit}" if self.unit else self.label

  def text(self, value: float) -> str:
    return f"{self.scale * value:.4g}{' %' if self.unit == '%' else ''}"


METRICS = dict(
  accuracy=Metric("right answers", "%", 100),
  all_steps_correct=Metric("all steps right", "%", 100),
  prm_score=Metric("PRM's mean score of a step"),
  heldout_prm=Metric("held-out PRM's mean score of a step"),
  prm_return=Metric("return of step rewards"),
  total_return=Metric("return of all rewards"),
  kl_nats=Metric("KL to the reference", "nats per token"),
  entropy_nats=Metric("entropy", "nats per token"),
  clipped=Metric("tokens that the clip stopped", "%", 100),
  explained_variance=Metric("variance that the critic explains", "%", 100),
  tokens=Metric("tokens per solution"),
  steps=Metric("steps per solution"),
  repetition=Metric("repeated 4-grams of words", "%", 100),
  distinct=Metric("different solutions to a problem", "%", 100),
  without_answer=Metric("solutions without an answer", "%", 100),
  cut=Metric("solutions that the budget cut", "%", 100),
)


def renamed(values: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a record, or columns, of any age with the names of METRICS."""
  return {new_name(k): v for k, v in values.items()} | dict(values)


def new_name(metric: str) -> str:
  return {"faithful": "all_steps_correct"}.get(metric, metric)


def bin_size(num: int) -> int:
  """Returns how many of a curve's points are drawn as one."""
  return max(1, math.ceil(num / MAX_POINTS))


def known(records: Sequence[Record], name: str) -> list[float]:
  """Returns a metric's values that are known: not null, and finite."""
  values = (r.get(name) for r in records)
  return [x for x in values if x is not None and math.isfinite(x)]


def ends(
  records: Sequence[Record], name: str, window: int = 10
) -> tuple[float, float] | None:
  """Returns a metric's mean over the first and the last records, if known.

  Of at most half of them each; None if fewer than two are known.
  """
  values = known(records, name)
  window = min(window, len(values) // 2)
  if not window:
    return None
  return sum(values[:window]) / window, sum(values[-window:]) / window
