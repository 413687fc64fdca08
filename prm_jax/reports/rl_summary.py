"""What a run of reinforcement learning came to, in one plain sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import math
from typing import Any

from prm_jax.reports import html

Record = Mapping[str, Any]

# A change of so many standard errors is more than chance.
_SIGMAS = 2.0


def verdict(records: Sequence[Record], num_problems: int | None = None) -> str:
  """Returns one plain sentence: right answers and the PRM's score, from, to.

  By the evaluations; without two of them, by means over the first and the last
  ten updates. A change of right answers counts as chance up to two standard
  errors of a difference of independent shares. Where they fell by more, from
  the start or from a best between, and the score rose, the sentence says so.

  num_problems: of an evaluation; where unknown, no change is chance.
  """
  train, evals = split(records)
  points, what, num = evals, "right answers to held-out problems", num_problems
  if len(known(evals, "accuracy")) < 2:
    points, what, num = _windows(train), "right answers of its samples", None
    if train and (solutions := train[0].get("solutions")):
      num = int(solutions * min(10, len(train) // 2))
  points = [r for r in points if known([r], "accuracy")]
  score = ends(evals, "prm_score", 1) or ends(train, "prm_score")
  updates = int(train[-1]["step"]) if train else 0
  said = f"In {updates:,} update{'s' if updates != 1 else ''}"
  scored = ""
  if score is not None:
    scored = f"the PRM's mean score of a step {_change(*score, _score)}"
  if len(points) < 2:
    said += " nothing told how right answers changed"
    return f"{said}, and {scored}." if scored else f"{said}."
  first, last = points[0]["accuracy"], points[-1]["accuracy"]
  top = max(points, key=lambda r: r["accuracy"])
  said += f" {what} {_change(first, last, _percent)}"
  if 0 < abs(last - first) <= _SIGMAS * _error(first, last, num):
    said += " (no more than chance may do)"
  fall = top["accuracy"] - last
  fell = fall > _SIGMAS * _error(top["accuracy"], last, num)
  if fell and top["accuracy"] > first:
    said += f", after {_percent(top['accuracy'])} at update {top['step']:,}"
  if score is None:
    return f"{said}."
  since = ends([top, points[-1]], "prm_score", 1) or score
  if fell and since[1] > since[0]:
    return (
      f"{said}, while {scored}: what the PRM likes and what is right have"
      " parted."
    )
  return f"{said}, and {scored}."


def split(
  records: Sequence[Record],
) -> tuple[list[Record], list[Record]]:
  """Returns the records of updates, and those of evaluations."""
  train, evals = (
    [r for r in records if r.get("kind") == kind] for kind in ("train", "eval")
  )
  return train, evals


def _windows(train: Sequence[Record]) -> list[Record]:
  """Returns two records: means over the first and the last updates."""
  found = {name: ends(train, name) for name in ("accuracy", "prm_score")}
  return [
    {k: v[i] for k, v in found.items() if v is not None}
    | dict(step=train[-i]["step"])
    for i in range(2)
    if train
  ]


def _percent(share: float) -> str:
  return f"{html.percent(share)} %"


def _score(value: float) -> str:
  return f"{value:.3f}"


def _change(before: float, after: float, text: Callable[[float], str]) -> str:
  if text(before) == text(after):
    return f"stayed at {text(after)}"
  verb = "rose" if after > before else "fell"
  return f"{verb} from {text(before)} to {text(after)}"


def _error(a: float, b: float, num: int | None) -> float:
  """Returns the standard error of a difference of two shares of `num` each."""
  return math.sqrt((a * (1 - a) + b * (1 - b)) / num) if num else 0.0


def known(records: Sequence[Record], name: str) -> list[float]:
  """Returns a metric's values where it is known: not null, and finite."""
  values = (r.get(name) for r in records)
  return [x for x in values if x is not None and math.isfinite(x)]


def ends(
  records: Sequence[Record], name: str, window: int = 10
) -> tuple[float, float] | None:
  """Returns a metric's mean over the first and the last records, if known.

  From half of them each where they are few; None if fewer than two are known.
  """
  values = known(records, name)
  window = min(window, len(values) // 2)
  if not window:
    return None
  first, last = values[:window], values[-window:]
  return sum(first) / window, sum(last) / window
