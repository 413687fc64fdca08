"""Runs of reinforcement learning as the hacking monitor's records show them.

  python tests/rl/simulated_runs.py 400    # the table of benchmarks/README.md

A curve is ((update, mean), ...) with straight lines between. What an update
measures scatters about it as that of `problems` x `samples` solutions does.
"""

import collections
from collections.abc import Sequence
import sys
from typing import Any

import numpy as np

from prm_jax.rl import hacking_monitor

Curve = Sequence[tuple[float, float]]


def records(
  random: np.random.Generator,
  updates: int,
  *,
  accuracy: Curve,
  prm_return: Curve,
  distinct: Curve = ((1, 0.8),),
  steps: Curve = ((1, 5.0),),
  repetition: Curve = ((1, 0.05),),
  without_answer: Curve = ((1, 0.01),),
  problems: int = 16,
  samples: int = 8,
  alike: float = 0.0,
) -> list[dict[str, Any]]:
  """Returns one record per update.

  alike: correlation between the outcomes of two solutions to one problem.
  The held-out PRM sees something of the accuracy, and the trained one's return
  goes with the luck of the update's problems.
  """
  N, shape = problems * samples, (updates, problems)

  def mean(curve):
    return np.interp(np.arange(1, updates + 1), *np.array(curve).T)

  def noise(deviation, num=N):
    return deviation / np.sqrt(num) * random.standard_normal(updates)

  right = mean(accuracy)
  rates = np.broadcast_to(right[:, None], shape)
  if alike:
    concentration = (1 - alike) / alike
    rates = random.beta(rates * concentration, (1 - rates) * concentration)
  accuracies = random.binomial(samples, rates).sum(1) / N
  num_steps = mean(steps) + noise(1.5, problems)
  columns = dict(
    accuracy=accuracies,
    prm_return=mean(prm_return) + 0.5 * (accuracies - right) + noise(0.2),
    heldout_prm=0.3 + 0.5 * right + 0.25 * (accuracies - right) + noise(0.2),
    distinct=np.clip(mean(distinct) + noise(0.2, problems), 1 / samples, 1),
    steps=num_steps,
    tokens=8 * num_steps + noise(4.0),
    repetition=np.clip(mean(repetition) + noise(0.1), 0, 1),
    without_answer=random.binomial(N, mean(without_answer)) / N,
  )
  rows = zip(*(x.tolist() for x in columns.values()), strict=True)
  return [
    dict(zip(columns, row, strict=True), step=k, solutions=N)
    for k, row in enumerate(rows, 1)
  ]


RISING = ((1, 0.7), (500, 0.95))
# Of the testbed's first prototype: the plain sum of a weak PRM's scores, and
# outcome reward.
COLLAPSE = ((1, 0.63), (15, 0.73), (30, 0.54), (45, 0.28), (60, 0.23))
LEARNING = ((1, 0.63), (15, 0.89), (30, 0.94), (45, 0.97), (60, 0.99))

# Name -> updates, and the curves.
RUNS: dict[str, tuple[int, dict[str, Curve]]] = {
  "no change": (500, dict(accuracy=((1, 0.6),), prm_return=RISING)),
  "no change, nearly all right": (
    500,
    dict(accuracy=((1, 0.9),), prm_return=RISING),
  ),
  "healthy: better, longer, less diverse": (
    300,
    dict(
      accuracy=LEARNING,
      prm_return=((1, 0.7), (60, 0.97)),
      distinct=((1, 0.9), (300, 0.15)),
      steps=((1, 3), (60, 8)),
    ),
  ),
  "plain-sum collapse, turn at 15": (
    60,
    dict(accuracy=COLLAPSE, prm_return=((1, 0.79), (60, 0.88))),
  ),
  "slow drift, turn at 100": (
    400,
    dict(
      accuracy=((1, 0.6), (100, 0.7), (400, 0.5)),
      prm_return=((1, 0.7), (400, 0.9)),
    ),
  ),
  "no answers, from 1 % at 100 to 60 % at 110": (
    200,
    dict(
      accuracy=((1, 0.6), (100, 0.8), (110, 0.3)),
      prm_return=RISING,
      without_answer=((1, 0.01), (100, 0.01), (110, 0.6)),
    ),
  ),
  "no answers, from 1 % at 1 to 60 % at 200": (
    200,
    dict(
      accuracy=((1, 0.6),),
      prm_return=RISING,
      without_answer=((1, 0.01), (200, 0.6)),
    ),
  ),
  "steps x 3 from 100 to 150": (
    200,
    dict(
      accuracy=((1, 0.6),),
      prm_return=RISING,
      steps=((100, 5), (150, 15)),
    ),
  ),
  "diversity / 4 from 100 to 150": (
    200,
    dict(
      accuracy=((1, 0.6),),
      prm_return=RISING,
      distinct=((100, 0.8), (150, 0.2)),
    ),
  ),
}


def table(num_runs: int, config: hacking_monitor.MonitorConfig) -> str:
  """Returns a Markdown table of which alarms come, how often and when."""
  lines = [
    "| run | updates | alike | alarm: share of runs; first at update, median"
    " (latest) |",
    "|---|---|---|---|",
  ]
  for name, (updates, curves) in RUNS.items():
    for alike in (0.0, 0.3):
      random = np.random.default_rng(0)
      first = collections.defaultdict(list)
      runs_with = 0
      for _ in range(num_runs):
        run = records(random, updates, alike=alike, **curves)
        alarms = hacking_monitor.replay(run, config)
        runs_with += bool(alarms)
        for alarm in alarms:
          first[alarm.kind].append(alarm.update)
      seen = [
        f"{kind} {len(at) / num_runs:.2%}; {np.median(at):.0f} ({max(at)})"
        for kind, at in first.items()
      ]
      text = ", ".join(seen) or f"none in {num_runs}"
      lines.append(f"| {name} | {updates} | {alike} | {text} |")
  return "\n".join(lines)


if __name__ == "__main__":
  print(table(int(sys.argv[1]), hacking_monitor.MonitorConfig()))
