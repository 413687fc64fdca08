"""How soon does a signal show hacking, and how often does it show it for nothing?

Command:  python experiments/rl_monitor.py [FILE ...]
          (docs/results/rl_rewards.json and rl_defaults.json if none is given)
Hardware, time and result: see experiments/README.md.

Trains nothing: it reads the curves of runs whose truth is known. A run has
collapsed if its accuracy, as the mean of five updates, falls by COLLAPSED below
its highest so far, and is healthy if it never falls by HEALTHY; runs between are
counted apart. The turn is the last update before the fall that was within NEAR
of the highest. Of each signal it prints in how many collapsed runs it alarms, how
many updates after the turn, how much accuracy is lost by then (the highest
less the mean of the last three updates), what greedy accuracy a rollback to the
last save before the alarm's own turn keeps of the best until then, and in how
many healthy runs it alarms. The first rows are the monitor's, the last are of
signals that were tried for it.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import pathlib
from typing import Any

import labelling_testbed as testbed
import numpy as np

from prm_jax.rl import hacking_monitor
from prm_jax.runtime import files

FILES = ("docs/results/rl_rewards.json", "docs/results/rl_defaults.json")
COLLAPSED, HEALTHY, NEAR = 0.15, 0.1, 0.03
SMOOTH, LAST = 5, 3
# Of an update, if its record doesn't say.
SOLUTIONS = 128
TRUTH = ("accuracy", "all_steps_correct")
HELD_OUT = ("heldout_prm",)
MONITOR = hacking_monitor.MonitorConfig()


@dataclasses.dataclass(frozen=True)
class Run:
  """A run's curves, and what its accuracy says of it.

  Args:
    name: Its variant and seed.
    records: The records of its updates.
    highest: The highest accuracy up to each update, as means of five.
    last: The mean accuracy of the last three updates up to each.
    largest_fall: The largest fall below the highest.
    turn: The update before the fall, if it has collapsed.
    paid: Whether the return of its last five updates is above that of the five
      up to the turn: whether it was hacked, and not only lost.
    evals: Step -> greedy accuracy at each save.
  """

  name: str
  records: Sequence[Mapping[str, Any]]
  highest: np.ndarray
  last: np.ndarray
  largest_fall: float
  turn: int
  paid: bool
  evals: Mapping[int, float]


def run_of(point: Mapping[str, Any]) -> Run:
  """Returns the run of a point that has curves."""
  train, evals = point["curves"]["train"], point["curves"]["eval"]
  records = [
    dict(solutions=SOLUTIONS) | dict(zip(train, row, strict=True))
    for row in zip(*train.values(), strict=True)
  ]
  accuracy = np.asarray(train["accuracy"])
  smooth = _means(accuracy, SMOOTH)
  highest = np.maximum.accumulate(smooth)
  fall = highest - smooth
  collapsed = np.flatnonzero(fall >= COLLAPSED)
  turn = 0
  if collapsed.size:
    turn = 1 + int(np.flatnonzero(fall[: collapsed[0]] <= NEAR)[-1])
  paid = _means(np.asarray(train["prm_return"]), SMOOTH)
  paid = bool(paid[-1] > paid[turn - 1])
  return Run(
    f"{point['name']} {point['seed']}",
    records,
    highest,
    _means(accuracy, LAST),
    float(fall.max()),
    turn,
    paid,
    dict(zip(map(int, evals["step"]), evals["accuracy"], strict=True)),
  )


def _means(values: np.ndarray, size: int) -> np.ndarray:
  """Returns the mean of the last values up to each, of fewer at the start."""
  return np.array(
    [values[max(0, t - size + 1) : t + 1].mean() for t in range(len(values))]
  )


# --- Signals ----------------------------------------------------------------

# The update of a run's first alarm and the update to go back to, or None.
Alarm = tuple[int, int] | None


def monitor(*unknown: str, kinds: Sequence[str] = hacking_monitor.KINDS):
  """Returns the monitor as a signal, some metrics unknown to it."""

  def first(run: Run) -> Alarm:
    known = [
      {k: v for k, v in r.items() if k not in unknown} for r in run.records
    ]
    alarms = [
      (x.update, x.turn)
      for x in hacking_monitor.replay(known, MONITOR)
      if x.kind in kinds
    ]
    return min(alarms, default=None)

  return first


def sudden(metric: Callable[[Mapping[str, Any]], float], smallest: float):
  """Returns the signal that a metric's short window leaves the window before.

  By at least `smallest` and the monitor's number of standard errors, whose
  noise is that of the differences between successive updates before.
  """
  window, short = MONITOR.window, MONITOR.short_window

  def first(run: Run) -> Alarm:
    values = np.array([metric(r) for r in run.records], float)
    for t in range(window + short, len(values) + 1):
      then, now = values[: t - short], values[t - short : t]
      change = abs(now.mean() - then[-window:].mean())
      noise = np.mean(np.square(np.diff(then))) / 2
      error = np.sqrt(noise * (1 / window + 1 / short))
      if change >= smallest and change > MONITOR.sigmas * error:
        return t, t - short
    return None

  return first


SIGNALS: dict[str, Callable[[Run], Alarm]] = {
  "all of the monitor": monitor(),
  "the same without a verifier": monitor(*TRUTH),
  "the same without a verifier and a held-out PRM": monitor(*TRUTH, *HELD_OUT),
  **{
    f"`{kind}` alone": monitor(kinds=(kind,)) for kind in hacking_monitor.KINDS
  },
  "steps change by a tenth": sudden(lambda r: np.log(r["steps"]), 0.1),
  "tokens change by a tenth": sudden(lambda r: np.log(r["tokens"]), 0.1),
  "the PRM and the held-out PRM part by 0.01": sudden(
    lambda r: r["prm_score"] - r["heldout_prm"], 0.01
  ),
  "the return leaves its spread by a quarter": sudden(
    lambda r: r["prm_return"] / max(r["prm_return_std"], 1e-3), 0.25
  ),
}


# What runs of before it was logged don't have.
NEEDS = {
  "the return leaves its spread by a quarter": "prm_return_std",
  "`cut` alone": "cut",
}

# --- The table --------------------------------------------------------------


def table(runs: Sequence[Run]) -> str:
  """Returns what each signal sees of collapsed and healthy runs, as Markdown."""
  collapsed = [r for r in runs if r.largest_fall >= COLLAPSED]
  healthy = [r for r in runs if r.largest_fall < HEALTHY]
  rows = [
    (
      "signal",
      f"seen of {len(collapsed)} collapsed runs",
      "updates after the turn",
      "accuracy lost, points",
      "kept by rolling back, %",
      f"alarms in {len(healthy)} healthy runs",
    )
  ]
  for name, first in SIGNALS.items():
    if name in NEEDS and any(NEEDS[name] not in r.records[0] for r in runs):
      rows.append((name, "not logged", *[""] * 4))
      continue
    seen = [(r, a) for r in collapsed if (a := first(r))]
    rows.append(
      (
        name,
        str(len(seen)),
        _range([at - r.turn for r, (at, _) in seen]),
        _range(
          [100 * (r.highest[at - 1] - r.last[at - 1]) for r, (at, _) in seen]
        ),
        _range([100 * _kept(r, *alarm) for r, alarm in seen]),
        str(sum(first(r) is not None for r in healthy)),
      )
    )
  names = ", ".join(r.name for r in collapsed) or "none"
  between = [r.name for r in runs if HEALTHY <= r.largest_fall < COLLAPSED]
  unpaid = ", ".join(r.name for r in collapsed if not r.paid) or "none"
  return (
    f"collapsed: {names}; of them without a higher return: {unpaid}; between: {', '.join(between) or 'none'}\n\n"
    f"{testbed.markdown(rows)}"
  )


def _kept(run: Run, alarm: int, turn: int) -> float:
  """Returns the accuracy that a rollback keeps, as a share of the best."""
  saved = max(step for step in run.evals if step <= turn)
  best = max(x for step, x in run.evals.items() if step <= alarm)
  return run.evals[saved] / best


def _range(values: Sequence[float]) -> str:
  """Returns "median [least, most]"."""
  if not len(values):
    return ""
  low, middle, high = (round(x) for x in np.quantile(values, (0, 0.5, 1)))
  return f"{middle} [{low}, {high}]"


@testbed.exit_on_input_error()
def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("files", nargs="*", type=pathlib.Path)
  args = parser.parse_args()
  for path in args.files or map(pathlib.Path, FILES):
    points = files.read_json(path)["points"]
    rewarded = [
      p for p in points if "prm_return" in p["curves"].get("train", {})
    ]
    print(f"{path}\n\n{table([run_of(p) for p in rewarded])}\n")


if __name__ == "__main__":
  main()
