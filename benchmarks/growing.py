"""Solutions that grow step by step, scored after every step.

  beam  4 beams of a problem, each with 4 candidates for its next step
  set   64 solutions of a problem, all of the same number of steps

Steps are real ones of the same problem, numbered so that no two candidates are
the same. Which beams are kept is recorded: it is drawn once, by the seed, so
every way to score gets the same calls. score.py --suite=grow runs it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import itertools
import time
from typing import Any

import jax
import numpy as np
import peer

from prm_jax import schema
from prm_jax.device_check import timing
from prm_jax.scoring import cached_scorer
from prm_jax.scoring import scorer

KEPT, EXPANDED, SET = 4, 4, 64

Calls = list[list[schema.Solution]]
Scores = list[list[float]]


def record(
  solutions: Sequence[schema.Solution], args: argparse.Namespace
) -> dict[str, Calls]:
  """Returns the calls of each workload: one for each number of steps."""
  random = np.random.default_rng(args.seed)
  steps: dict[str, list[str]] = {}
  for s in solutions:
    steps.setdefault(s.problem, []).extend(s.steps)
  able = sorted(x for x, of in steps.items() if len(of) >= args.depth)
  chosen = random.choice(len(able), args.problems, replace=False)
  problems = [able[i] for i in chosen]

  def candidates(before: schema.Solution, num: int) -> list[schema.Solution]:
    texts = random.choice(steps[before.problem], num)
    grown = [(*before.steps, f"({k}) {text}") for k, text in enumerate(texts)]
    return [dataclasses.replace(before, steps=x) for x in grown]

  def beam(problem: str) -> Calls:
    calls: Calls = []
    beams = candidates(schema.Solution("", problem, ()), KEPT)
    for _ in range(args.depth):
      calls.append([c for b in beams for c in candidates(b, EXPANDED)])
      kept = random.choice(KEPT * EXPANDED, KEPT, replace=False)
      beams = [calls[-1][i] for i in kept]
    return calls

  def whole(problem: str) -> Calls:
    grown = candidates(schema.Solution("", problem, ()), SET)
    calls = [grown]
    for _ in range(args.depth - 1):
      grown = [c for b in grown for c in candidates(b, 1)]
      calls.append(grown)
    return calls

  def together(make: Callable[[str], Calls]) -> Calls:
    every = [make(problem) for problem in problems]
    return [[*itertools.chain(*calls)] for calls in zip(*every, strict=True)]

  return dict(beam=together(beam), set=together(whole))


def measure(
  args: argparse.Namespace,
  solutions: Sequence[schema.Solution],
  model: peer.Model,
  by_peer: Callable[[Sequence[schema.Solution]], Callable[[], Scores]],
  check_same: Callable[[dict[str, Scores]], dict[str, float]],
) -> dict[str, Any]:
  """Returns counts, differences, scorings/s and ratios.

  Args:
    args: The settings of score.py.
    solutions: Where problems and steps are from.
    model: The reward model.
    by_peer: Makes a function that scores one call's solutions.
    check_same: Refuses scores that differ.
  """
  tree, padded = (
    scorer.Scorer(
      *("prm", model.config, model.params, model.tokenizer, model.encoding),
      batch_tokens=args.batch_tokens,
      layout=layout,
    )
    for layout in ("tree", "padded")
  )
  cached = cached_scorer.CachedScorer(padded, cache_tokens=args.cache_tokens)
  counts: dict[str, Any] = {}
  measured: dict[str, Any] = {}
  differences: dict[str, Any] = {}
  for name, calls in record(solutions, args).items():
    ways: dict[str, list[Callable[[], Scores]]] = {
      "cached": [_scores(cached.score, call) for call in calls],
      "whole, tree": [_scores(tree.score, call) for call in calls],
      "whole, padded": [_scores(padded.score, call) for call in calls],
      "transformers": [by_peer(call) for call in calls],
    }
    counts[name], scores = _count(cached, calls)
    first = {
      way: [*itertools.chain(*(run() for run in runs))]
      for way, runs in ways.items()
    }
    differences[name] = check_same(dict(counted=scores) | first)
    costs = _alternate(ways, cached, args.rounds)
    for depth, text in ((None, "all steps"), (-1, f"step {len(calls)}")):
      amount = sum(map(len, calls[slice(depth, None)]))
      of = {
        way: [_total(cost[slice(depth, None)]) for cost in rounds]
        for way, rounds in costs.items()
      }
      for way in ways:
        measured[f"{name}, {text}: {way}, scorings/s"] = timing.rate(
          amount, of[way]
        )
      for way in [*ways][1:]:
        measured[f"{name}, {text}: cached / {way}"] = timing.ratio(
          of[way], of["cached"]
        )
  pages = jax.eval_shape(lambda: cached._pages)
  size = sum(x.size * x.dtype.itemsize for x in pages)
  counts["pages"] = dict(tokens=args.cache_tokens, bytes=size)
  return dict(
    model=dataclasses.asdict(model.config),
    differences=differences,
    counts=counts,
    measured=measured,
  )


def _scores(
  score: Callable[..., list[schema.StepScores]],
  call: Sequence[schema.Solution],
) -> Callable[[], Scores]:
  return lambda: [list(x.scores) for x in score(call)]


def _count(
  cached: cached_scorer.CachedScorer, calls: Calls
) -> tuple[dict[str, Any], Scores]:
  """Returns what is computed after each step, and all scores."""
  cached.clear()
  each, scores = [], []
  for call in calls:
    before = cached.work
    scores += [list(x.scores) for x in cached.score(call)]
    each.append(dataclasses.asdict(cached.work - before))
  counts = {
    "scorings": sum(map(len, calls)),
    "tokens, whole": [x["tokens"] for x in each],
    "tokens computed": [x["computed"] for x in each],
    "tokens changed": sum(x["changed"] for x in each),
    "calls of the model": [x["calls"] for x in each],
    "pages evicted": sum(x["evicted"] for x in each),
    "whole / computed": sum(x["tokens"] for x in each)
    / sum(x["computed"] for x in each),
  }
  return counts, scores


def _alternate(
  ways: Mapping[str, Sequence[Callable[[], Scores]]],
  cached: cached_scorer.CachedScorer,
  rounds: int,
) -> dict[str, list[list[timing.Cost]]]:
  """Returns the cost of each call of each way, in every round."""
  costs: dict[str, list[list[timing.Cost]]] = {name: [] for name in ways}
  for _ in range(rounds):
    for name, runs in ways.items():
      cached.clear()
      costs[name].append([_cost(run) for run in runs])
  return costs


def _cost(run: Callable[[], Any]) -> timing.Cost:
  wall, cpu = time.perf_counter(), time.process_time()
  run()
  return timing.Cost(time.perf_counter() - wall, time.process_time() - cpu)


def _total(costs: Sequence[timing.Cost]) -> timing.Cost:
  return timing.Cost(*map(sum, zip(*costs, strict=True)))
