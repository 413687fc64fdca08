"""Rollouts per hard label: Monte-Carlo in its variants, and OmegaPRM.

  python benchmarks/label_rollouts.py --output=label_rollouts.json

Work counts, not times: they follow from the seeds and depend on no machine. On
dial problems an annotator who makes errors gives OmegaPRM its first rollouts;
what it searched is then labelled by Monte-Carlo, with other random numbers.
Labels are those of distinct prefixes up to the first one that is called wrong.
Agreement is with the exact verifier.

Two completers: `exact` ends right if and only if the prefix is right;
`slipping` gets every further line wrong with probability --slip, and may be
right by luck.
"""

from __future__ import annotations

import argparse
import collections
from collections.abc import Sequence
import dataclasses
import functools
import hashlib
import pathlib

import numpy as np
import results

from prm_jax import schema
from prm_jax.labelling import monte_carlo
from prm_jax.labelling import omega_prm
from prm_jax.testbed import arithmetic

COMPLETIONS = 8
VARIANTS = {
  "monte_carlo": dict(),
  "monte_carlo stop_early": dict(stop_early=True),
  "monte_carlo stop_at_zero": dict(stop_at_zero=True),
  "monte_carlo stop_early stop_at_zero": dict(
    stop_early=True, stop_at_zero=True
  ),
}


def complete(
  prefix: schema.Solution, random: np.random.Generator, slip: float
) -> schema.Solution:
  """Returns the prefix carried on from the value that it ends in."""
  value, turns = arithmetic.parse(prefix.problem)
  steps = list(prefix.steps)
  if steps:
    value = int(steps[-1][-1])
  for sign, n in turns[len(steps) :]:
    result = arithmetic.turn(value, sign, n)
    if random.random() < slip:
      result = int(random.integers(arithmetic.POSITIONS))
    steps.append(f"so {value} {sign} {n} = {result}")
    value = result
  if len(steps) == len(turns):
    steps.append(f"answer {value}")
  extra = dict(num_tokens=8 * (len(steps) - len(prefix.steps)), ended=True)
  return dataclasses.replace(prefix, steps=tuple(steps), extra=extra)


def slipping(
  prefixes: Sequence[schema.Solution], n: int, *, seed: int, slip: float
) -> list[list[schema.Solution]]:
  """A Generate whose random numbers follow from seed, id and sample index."""

  def random(prefix, j):
    text = f"{seed} {prefix.id} {j}"
    digest = hashlib.sha256(text.encode()).digest()
    return np.random.default_rng(list(digest[:8]))

  return [[complete(p, random(p, j), slip) for j in range(n)] for p in prefixes]


def exact(
  prefixes: Sequence[schema.Solution], n: int
) -> list[list[schema.Solution]]:
  """A Generate that never repairs an error, and makes none."""
  rows = slipping(prefixes, 1, seed=0, slip=0.0)
  for prefix, row in zip(prefixes, rows, strict=True):
    sound = all(arithmetic.check(prefix.problem, prefix.steps))
    if arithmetic.verify(row)[0] and not sound:
      wrong = (int(row[0].steps[-1][-1]) + 1) % arithmetic.POSITIONS
      steps = (*row[0].steps[:-1], f"answer {wrong}")
      row[0] = dataclasses.replace(row[0], steps=steps)
  return [row * n for row in rows]


def annotated(
  seed: int, turns: tuple[int, int], num_problems: int
) -> list[schema.Solution]:
  """Returns eight solutions of each problem by the testbed's annotator."""
  task = arithmetic.Task(min_turns=turns[0], max_turns=turns[1])
  random = np.random.default_rng(seed)
  solutions = []
  for p in arithmetic.problems(num_problems, "train", task, random):
    for j in range(COMPLETIONS):
      s = arithmetic.solve(p, random, task)
      extra = dict(num_tokens=8 * len(s.steps))
      solutions.append(dataclasses.replace(s, id=f"{p.id}-{j}", extra=extra))
  return solutions


def count(
  labelled: Sequence[schema.Solution], rollouts: int
) -> dict[str, float]:
  """Returns rollouts, labels up to the first wrong one, and agreement."""
  agreements = {}
  for s in labelled:
    truth = arithmetic.check(s.problem, s.steps)
    for n, (label, right) in enumerate(zip(s.labels or (), truth), 1):
      if label is not None:
        agreements[s.problem, s.steps[:n]] = label == right
      if label == 0:
        break
  return dict(
    rollouts=rollouts, labels=len(agreements), agreeing=sum(agreements.values())
  )


def measure(
  seed: int, turns: tuple[int, int], num_problems: int, slip: float | None
) -> dict[str, dict[str, float]]:
  """Returns the counts of every labeller; slip None is the exact completer."""

  def generate(with_seed):
    if slip is None:
      return exact
    return functools.partial(slipping, seed=with_seed, slip=slip)

  searched, work = omega_prm.label(
    annotated(seed, turns, num_problems),
    generate(seed),
    arithmetic.verify,
    omega_prm.Options(COMPLETIONS, root_rollouts=COMPLETIONS, hard=True),
  )
  counts = {"omega_prm": count(searched, work["rollouts"])}
  for name, fields in VARIANTS.items():
    labelled, work = monte_carlo.label(
      searched,
      generate(seed + 1_000),
      arithmetic.verify,
      monte_carlo.Options(COMPLETIONS, hard=True, **fields),
    )
    counts[name] = count(labelled, work["rollouts"])
  return counts


def arguments() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--problems", type=int, default=40)
  parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
  parser.add_argument("--slip", type=float, default=0.25)
  parser.add_argument("--output", type=pathlib.Path, help="JSON file")
  return parser


def main() -> None:
  args = arguments().parse_args()
  points = []
  for name, turns, slip in (
    ("exact, 4 to 8 turns", (4, 8), None),
    ("exact, 16 turns", (16, 16), None),
    ("slipping, 4 to 8 turns", (4, 8), args.slip),
  ):
    total: dict[str, collections.Counter] = collections.defaultdict(
      collections.Counter
    )
    for seed in args.seeds:
      by_labeller = measure(seed, turns, args.problems, slip)
      for labeller, counts in by_labeller.items():
        total[labeller].update(counts)
        points.append(
          dict(completer=name, seed=seed, labeller=labeller, **counts)
        )
    print(f"\n{name}: rollouts, labels, rollouts per label, agreement")
    for labeller, n in total.items():
      print(
        f"  {labeller:36}{n['rollouts']:9,}{n['labels']:8,}"
        f"{n['rollouts'] / n['labels']:7.2f}"
        f"{100 * n['agreeing'] / n['labels']:7.1f} %"
      )
  results.finish(
    results.provenance("label_rollouts.py", args) | dict(points=points),
    args.output,
  )


if __name__ == "__main__":
  main()
