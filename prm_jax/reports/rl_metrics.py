"""How metrics of reinforcement learning are called and drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
import math
from typing import Any

from prm_jax.reports import plot

# A curve has no more points: means of successive updates, where needed.
MOST_POINTS = 40


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


def _share(label: str) -> Metric:
  return Metric(label, "%", 100)


METRICS = dict(
  accuracy=_share("right answers"),
  faithful=_share("all steps right"),
  prm_score=Metric("PRM's mean score of a step"),
  heldout_prm=Metric("held-out PRM's mean score of a step"),
  prm_return=Metric("return of step rewards"),
  total_return=Metric("return of all rewards"),
  kl_nats=Metric("KL to the reference", "nats per token"),
  entropy_nats=Metric("entropy", "nats per token"),
  clipped=_share("tokens that the clip stopped"),
  explained_variance=_share("variance that the critic explains"),
  tokens=Metric("tokens per solution"),
  steps=Metric("steps per solution"),
  repetition=_share("repeated 4-grams of words"),
  distinct=_share("different solutions to a problem"),
  without_answer=_share("solutions without an answer"),
  cut=_share("solutions that the budget cut"),
)
CIRCLE = "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z"
DIAMOND = "M0-5L5 0L0 5L-5 0z"
TRIANGLE = "M0-5L4.6 3.4H-4.6z"
SQUARE = "M-3.5-3.5h7v7h-7z"
CROSS = "M-4-4L4 4M-4 4L4-4"


def bin_size(num: int) -> int:
  """Returns how many of a curve's points are drawn as one."""
  return max(1, math.ceil(num / MOST_POINTS))


def picture(
  curves: Sequence[Mapping[str, Any]], *, zero: bool = True, **words: Any
) -> dict[str, Any] | None:
  """Returns curves on axes that hold them and their bands; None for none.

  zero: the axis of y has 0, also where no value is near it. words: what
  plot.lay_out takes besides.
  """
  if not curves:
    return None
  values = [v for c in curves for v in (*c["y"], *itertools.chain(*c["band"]))]
  low, high = min(values), max(values)
  # A change of a few percent would fill the picture and look like a great one.
  if zero or high - low < 0.05 * max(abs(low), abs(high)):
    low, high = min(0, low), max(0, high)
  last = math.ceil(max(v for c in curves for v in c["x"]))
  x_ticks = [(t, text) for t, text in plot.axis(0, last) if t == int(t)]
  return plot.lay_out(
    curves, x_ticks=x_ticks, y_ticks=plot.axis(low, high), **words
  )
