"""What the metrics of an RL run are called on pages, and how they are written."""

from __future__ import annotations

from typing import NamedTuple

# A curve has no more points: means of successive updates, if needed.
MAX_POINTS = 40


class Metric(NamedTuple):
  """How a metric is called and written; shares are in percent."""

  label: str
  unit: str = ""
  digits: str = ".4g"

  @property
  def axis(self) -> str:
    return f"{self.label}, {self.unit}" if self.unit else self.label

  @property
  def is_share(self) -> bool:
    return self.unit == "%"

  def text(self, value: float) -> str:
    if self.is_share:
      return f"{100 * value:{self.digits}} %"
    return f"{value:{self.digits}}"


METRICS = dict(
  accuracy=Metric("right answers", "%", ".1f"),
  all_steps_correct=Metric("all steps correct", "%", ".1f"),
  prm_score=Metric("PRM's mean score of a step", digits=".3f"),
  heldout_prm=Metric("held-out PRM's mean score of a step", digits=".3f"),
  prm_return=Metric("return of step rewards"),
  total_return=Metric("return of all rewards"),
  kl_nats=Metric("KL to the reference", "nats per token"),
  entropy_nats=Metric("entropy", "nats per token"),
  clipped=Metric("tokens that the clip stopped", "%"),
  explained_variance=Metric("variance that the critic explains", "%"),
  tokens=Metric("tokens per solution"),
  steps=Metric("steps per solution"),
  repetition=Metric("repeated 4-grams of words", "%"),
  distinct=Metric("different solutions to a problem", "%"),
  without_answer=Metric("solutions without an answer", "%"),
  cut=Metric("solutions that the budget cut", "%"),
)
