"""What search_testbed.py and search_trained.py share: runs and comparisons.

Not a command. A run is one strategy with one scorer over a seed's problems;
what is kept of it are a few numbers for each problem, and no trees. An
experiment makes the runs of all seeds and compares them:

- Curves of independent samples (best-of-N, weighted best-of-N, majority) are
  exact or means over subsets of a problem's samples.
- At equal cost a curve's values of each problem are interpolated linearly in
  the logarithm of the mean cost; beyond its ends the end counts.
- Cost is sampled tokens, or FLOPs: 2 for each parameter and token that is
  sampled, or read for the first time. `big`: policy of 1.5e9 and PRM of 7e9
  parameters; `equal`: 1.5e9 both; `uncached`: as big, and each call reads its
  whole prefix; `flops`: of the models as they are, where their size is known.
- Intervals: differences are taken problem by problem. Problems are drawn again
  2,000 times within each seed; each time the mean over all problems drawn. The
  interval is from the 2.5th to the 97.5th percentile, and a difference is seen
  (above, below) if it excludes 0.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
import concurrent.futures
import dataclasses
import functools
import multiprocessing
import pathlib
import sys
import time
from typing import Any, NamedTuple

import ml_collections
import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax import voting
from prm_jax.runtime import environment
from prm_jax.runtime import files
from prm_jax.runtime import outputs
from prm_jax.search import bill as bill_lib
from prm_jax.search import choice as choice_lib
from prm_jax.search import engine
from prm_jax.search import particles
from prm_jax.search import rules
from prm_jax.search import search_limits
from prm_jax.search import search_models
from prm_jax.search import tree as tree_lib
from prm_jax.testbed import arithmetic

Arrays = dict[str, np.ndarray]
Record = dict[str, Any]
# Where the curves of samples are computed; in between they are interpolated.
VOTE_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
# Problems that are searched at a time.
_CHUNK = 100
RESAMPLES = 2_000
FIFTHS = 5
# 1e9 parameters of each model, and whether prefixes are cached.
POLICIES = dict(policy=1.5, draft=1.5, target=7.0)
FLOPS = dict(big=(7.0, True), equal=(1.5, True), uncached=(7.0, False))


@dataclasses.dataclass(frozen=True)
class Run:
  """One strategy with one scorer.

  Args:
    name: Its name, of which there is one: STRATEGY.SCORER.N.
    rule: The strategy; None are the whole samples that all curves come from.
    scorer: The scorer, by a name or as a value of the experiment.
    aggregate: How step scores become a solution's score.
    lookahead: The greedy steps before a node is scored.
    problems: Only the first so many problems of a seed.
    repeats: How often each problem is searched, with other random numbers.
    writer: policy, or target, or draft and target for speculation.
  """

  name: str
  rule: rules.Rule | None
  scorer: Any = None
  aggregate: schema.Aggregate = "min"
  lookahead: int = 0
  problems: int | None = None
  repeats: int = 1
  writer: str = "policy"


def strategies(num: int) -> dict[str, rules.Rule]:
  """Returns the strategies that sample about as much as best of num."""
  return dict(
    beam=rules.Beam(num // 4, 4),
    dvts=rules.DiverseTrees(num // 4, 4),
    rebase=rules.Rebase(num),
    particles=particles.ParticleFilter(num),
  )


# --- Runs -------------------------------------------------------------------


def measure(
  run: Run,
  problems: Sequence[schema.Problem | schema.Solution],
  policies: Mapping[str, search_models.Policy],
  verifier: search_models.Verifier,
  of_samples: Callable[[Sequence[tree_lib.Tree]], Sequence[Arrays]],
  *,
  seed: int,
  num_samples: int,
  limits: search_limits.Limits,
) -> Arrays:
  """Returns a run's numbers for each problem, the arrays' first axis.

  Args:
    run: The run.
    problems: The problems.
    policies: What writes, by name.
    verifier: What scores.
    of_samples: Returns what is kept of each problem's samples: of_samples.
    seed: The seed of what is drawn.
    num_samples: The independent samples of a problem.
    limits: The limits, but for the run's lookahead.
  """
  chosen = [
    schema.Solution(f"{p.id}#{r}" if run.repeats > 1 else p.id, p.problem, ())
    for p in problems[: run.problems]
    for r in range(run.repeats)
  ]
  limits = dataclasses.replace(limits, lookahead=run.lookahead)
  models = {k: p.cost for k, p in policies.items()}
  models[bill_lib.SCORER] = verifier.cost
  rows: list[Arrays] = []
  for i in range(0, len(chosen), _CHUNK):
    trees = engine.search(
      chosen[i : i + _CHUNK],
      run.rule or rules.BestOfN(num_samples),
      policies,
      verifier,
      limits,
      seed=seed,
    )
    if run.rule is None:
      rows += of_samples(trees)
    else:
      rows += [of_tree(tree, models) for tree in trees]
  # A tree's bill names the models that did something.
  names = {name: None for row in rows for name in row}
  arrays = {n: np.stack([r.get(n, np.zeros(())) for r in rows]) for n in names}
  if run.repeats > 1:
    arrays = {
      k: v.reshape(-1, run.repeats, *v.shape[1:]).mean(1)
      for k, v in arrays.items()
    }
  return arrays


def of_tree(
  tree: tree_lib.Tree, models: Mapping[str, bill_lib.Cost | None]
) -> Arrays:
  """Returns the numbers of a finished search.

  Of each way to choose the answer, whether it is right, and whether all steps
  of the solution that stands for it are. oracle: whether some candidate is
  right. candidates: how many there are. rejected: the share of tokens in nodes
  that no candidate has among its ancestors.
  """
  numbers = costs_of(tree.bill, models)
  for how, choice in choice_lib.choose(tree, arithmetic.final_answer).items():
    node = tree.nodes[choice.node or 0]
    numbers[f"{how}_right"] = is_right(node.solution)
    numbers[f"{how}_steps"] = has_right_steps(node.solution)
  kept = {a for c in tree.candidates for a in tree.ancestors(c)}
  sampled = [bill_lib.sampled(n.cost) for n in tree.nodes]
  numbers |= dict(
    oracle=max(
      (is_right(tree.nodes[c].solution) for c in tree.candidates), default=0.0
    ),
    candidates=len(tree.candidates),
    rejected=1 - sum(sampled[n] for n in kept) / max(sum(sampled), 1),
  )
  return {name: np.asarray(x, np.float64) for name, x in numbers.items()}


def of_samples(
  trees: Sequence[tree_lib.Tree],
  scorers: Mapping[str, schema.Score],
  ways: Sequence[schema.Aggregate],
  models: Mapping[str, bill_lib.Cost | None],
  num_scored: int | None = None,
) -> list[Arrays]:
  """Returns the numbers of each problem's independent samples.

  Of each sample: whether its answer is right, whether all steps are, and the
  answer (-1 without one). Of the first num_scored: `NAME.HOW`, what ranks them
  by each scorer, and what the first n cost, their sum up to n.
  """
  rows = []
  for tree in trees:
    drawn = [n.solution for n in tree.nodes[1:]]
    answers = [arithmetic.final_answer(s) for s in drawn]
    arrays = dict(
      right=np.asarray([is_right(s) for s in drawn]),
      steps=np.asarray([has_right_steps(s) for s in drawn]),
      answer=np.asarray([-1.0 if a is None else int(a) for a in answers]),
    )
    bills = [costs_of(n.cost, models) for n in tree.nodes[1:][:num_scored]]
    arrays |= {n: np.cumsum([b.get(n, 0.0) for b in bills]) for n in bills[0]}
    for name, score in scorers.items():
      scores = score(drawn[:num_scored])
      for how in ways:
        ranking = voting.ranking_scores(scores, how)
        arrays[f"{name}.{how}"] = np.asarray(ranking)
    rows.append(arrays)
  return rows


def costs_of(
  bill: bill_lib.Bill, models: Mapping[str, bill_lib.Cost | None]
) -> dict[str, float]:
  """Returns the tokens of a bill by model and kind, and its FLOPs if known."""
  numbers = {"sampled": float(bill_lib.sampled(bill))}
  for name, spent in bill.items():
    for field in ("sampled", "read", "read_once"):
      numbers[f"{name}.{field}"] = float(getattr(spent, field))
  for name, spent in (
    ("flops", bill),
    ("policy_flops", {k: v for k, v in bill.items() if k != bill_lib.SCORER}),
  ):
    flops = bill_lib.flops(spent, models)
    if flops is not None:
      numbers[name] = float(flops)
  return numbers


def is_right(solution: schema.Solution) -> float:
  return float(arithmetic.verify([solution])[0] or False)


def has_right_steps(solution: schema.Solution) -> float:
  """Returns 1 if a solution's answer and all of its steps are right."""
  labels = arithmetic.check(solution.problem, solution.steps)
  return labels[-1] * is_right(solution) if labels else 0.0


# --- Statistics -------------------------------------------------------------

# Axes are the seed and the problem; NaN is a problem that wasn't searched.
Values = np.ndarray


class Point(NamedTuple):
  """What is compared of a strategy at one size, and its cost by kind."""

  values: Values
  costs: Mapping[str, Values]


def stacked(seeds: Sequence[Arrays], num: int) -> Arrays:
  """Returns a run's arrays of all seeds as one, with NaN up to num problems."""
  arrays = {}
  for name in seeds[0]:
    if seeds[0][name].ndim:
      shape = (len(seeds), num, *seeds[0][name].shape[1:])
      arrays[name] = np.full(shape, np.nan)
      for row, seed in zip(arrays[name], seeds, strict=True):
        row[: len(seed[name])] = seed[name]
  return arrays


def costs(arrays: Arrays, *, scored: bool = True) -> dict[str, Values]:
  """Returns the sampled tokens, and FLOPs by kind; `big` and such in 1e9."""
  by_kind = dict(tokens=arrays["sampled"])
  for kind, (prm, cached) in FLOPS.items():
    read = "read_once" if cached else "read"
    total = np.zeros_like(arrays["sampled"])
    for name, size in POLICIES.items():
      if f"{name}.{read}" in arrays:
        tokens = arrays[f"{name}.sampled"] + arrays[f"{name}.{read}"]
        total = total + 2 * size * tokens
    if scored:
      total = total + 2 * prm * arrays[f"scorer.{read}"]
    by_kind[kind] = total
  flops = "flops" if scored else "policy_flops"
  return by_kind | ({"flops": arrays[flops]} if flops in arrays else {})


def at_cost(
  points: Sequence[Point], kind: str, cost: float, keep: Values
) -> Values:
  """Returns a strategy's values at a cost, between its two nearest sizes."""
  points = [p for p in points if not np.isnan(p.values[keep]).any()]
  logs = [float(np.log(p.costs[kind][keep].mean())) for p in points]
  order = np.argsort(logs)
  place = np.interp(np.log(cost), np.sort(logs), np.arange(len(logs)))
  low = int(np.floor(place))
  high = min(low + 1, len(points) - 1)
  share = place - low
  a, b = points[order[low]].values, points[order[high]].values
  return (1 - share) * a + share * b


def interval(values: Values, keep: Values | None = None) -> Record:
  """Returns a mean with its 95 % interval over problems, and each seed's mean.

  Problems are drawn again within each seed; the mean is over all of them.
  """
  known = ~np.isnan(values)
  if keep is not None:
    known &= keep
  totals = np.zeros(RESAMPLES)
  random = np.random.default_rng(0)
  for row, mask in zip(values, known, strict=True):
    pool = row[mask]
    if len(pool):
      drawn = random.integers(len(pool), size=(RESAMPLES, len(pool)))
      totals += pool[drawn].sum(axis=1)
  low, high = np.percentile(totals / known.sum(), [2.5, 97.5])
  return dict(
    mean=rounded(values[known].mean()),
    low=rounded(low),
    high=rounded(high),
    seeds=[
      rounded(row[mask].mean()) if mask.any() else None
      for row, mask in zip(values, known, strict=True)
    ],
    problems=int(known.sum()),
  )


def rounded(number: float) -> float:
  return float(f"{float(number):.4g}")


def seen(difference: Mapping[str, Any]) -> str:
  """Returns whether a difference's interval excludes 0, and on which side."""
  if difference["low"] > 0:
    return "above"
  return "below" if difference["high"] < 0 else "not seen"


# --- Comparisons ------------------------------------------------------------


class Difference(NamedTuple):
  """A run minus another of the same N, or minus a curve at equal cost.

  Args:
    run: The run's name.
    other: A run's name; or a curve: of samples (majority, weighted.SCORER,
      best.HOW.SCORER), or of a strategy at all N (STRATEGY.SCORER).
    cost: The kind of cost that a curve is read at; empty for a run.
    how: How the runs' answers are chosen.
    fifths: Only the problems of these fifths; 0 is the hardest.
  """

  run: str
  other: str
  cost: str = ""
  how: str = "weighted"
  fifths: tuple[int, ...] = tuple(range(FIFTHS))

  def __str__(self) -> str:
    words = [self.run, "minus", self.other, f"by {self.how}"]
    words += [f"at equal {self.cost}"] if self.cost else []
    words += [] if len(self.fifths) == FIFTHS else [f"fifths {self.fifths}"]
    return " ".join(words)


class Results:
  """The measurements of all runs and seeds, as arrays.

  Args:
    records: The arrays of each run and seed.
    num: The number of problems of a seed.
    weigh_by: The aggregate whose chance weighs a sample's vote.
  """

  def __init__(
    self,
    records: Mapping[str, Sequence[Arrays]],
    num: int,
    weigh_by: str,
  ):
    self.runs = {n: stacked(r, num) for n, r in records.items()}
    self.samples: dict[str, list[Point]] = {}
    self.fifths = np.zeros((len(next(iter(records.values()))), num), int)
    if "samples" in self.runs:
      samples = self.runs["samples"]
      num_scored = samples["sampled"].shape[-1]
      rest = samples["right"][..., num_scored:]
      rate = (rest if rest.shape[-1] else samples["right"]).mean(-1)
      self.fifths = fifths(rate)
      self.samples = sample_curves(samples, num_scored, weigh_by)

  def point(self, name: str, how: str = "weighted") -> Point:
    run = self.runs[name]
    return Point(run[f"{how}_right"], costs(run))

  def curve(self, head: str, how: str = "weighted") -> list[Point]:
    """Returns the points of a strategy and a scorer, by their N."""
    names = [n for n in self.runs if n.rpartition(".")[0] == head]
    names.sort(key=lambda n: float(n.rpartition(".")[2]))
    return [self.point(n, how) for n in names]

  def difference(self, d: Difference) -> Record:
    point = self.point(d.run, d.how)
    known = ~np.isnan(point.values) & np.isin(self.fifths, d.fifths)
    if not d.cost:
      other = self.point(d.other, d.how).values
    else:
      curve = self.samples.get(d.other) or self.curve(d.other, d.how)
      cost = float(point.costs[d.cost][known].mean())
      other = at_cost(curve, d.cost, cost, known)
    return interval(point.values - other, known)

  def compared(self, differences: Sequence[Difference]) -> Record:
    """Returns each difference whose runs are there, with what is seen."""
    rows = {}
    for d in differences:
      if d.run in self.runs:
        row = self.difference(d)
        rows[str(d)] = dict(seen=seen(row)) | row
    return rows

  def accuracies(self) -> Record:
    """Returns each search's accuracy, by fifth and by way to choose, and cost."""
    rows = {}
    for name, run in self.runs.items():
      if name == "samples":
        continue
      point = self.point(name)
      known = ~np.isnan(point.values)
      rows[name] = dict(
        weighted=interval(point.values),
        **{
          field: rounded(run[field][known].mean())
          for field in (
            *("best_right", "majority_right", "best_steps", "weighted_steps"),
            *("oracle", "candidates", "rejected"),
          )
        },
        by_fifth=[
          _mean(point.values[known & (self.fifths == k)]) for k in range(FIFTHS)
        ],
        cost={k: rounded(v[known].mean()) for k, v in point.costs.items()},
      )
    return rows

  def of_samples(self) -> Record:
    """Returns the accuracy of independent samples, by way to choose and N."""
    return {
      name: {
        str(n): dict(
          right=interval(p.values),
          cost={k: rounded(v.mean()) for k, v in p.costs.items()},
        )
        for n, p in zip(VOTE_SIZES, points, strict=False)
        if n in (1, 4, 16, 64, 256)
      }
      for name, points in self.samples.items()
    }


def _mean(values: Values) -> float | None:
  return rounded(values.mean()) if len(values) else None


def fifths(pass_rate: Values) -> Values:
  """Returns the fifth of each problem: 0 is the hardest, 4 the easiest."""
  order = np.argsort(pass_rate.ravel(), kind="stable")
  ranks = np.empty(len(order), int)
  ranks[order] = np.arange(len(order))
  return (ranks * FIFTHS // len(order)).reshape(pass_rate.shape)


def sample_curves(
  samples: Arrays, num: int, weigh_by: str
) -> dict[str, list[Point]]:
  """Returns what the first num samples give at VOTE_SIZES, by way to choose.

  best.HOW.SCORER: by the highest score; weighted.SCORER; majority, without a
  PRM; pass: one of them is right.
  """
  ns = [n for n in VOTE_SIZES if n <= num]
  shape = samples["right"].shape[:2]
  right = samples["right"][..., :num].reshape(-1, num)
  answers = samples["answer"][..., :num].reshape(-1, num).astype(int)
  rows = [[None if a < 0 else a for a in row] for row in answers.tolist()]
  curves = dict(
    majority=voting.vote_accuracy(rows, right, None, ns),
    **{"pass": voting.pass_at_n(right, ns)},
  )
  for name in samples:
    scorer, _, how = name.rpartition(".")
    if how in voting.AGGREGATES:
      rank = samples[name].reshape(-1, num)
      curves[f"best.{how}.{scorer}"] = voting.best_of_n(rank, right, ns)
      if how == weigh_by:
        weights = 1 / (1 + np.exp(-np.clip(rank, -500, 500)))
        curves[f"weighted.{scorer}"] = voting.vote_accuracy(
          rows, right, weights, ns
        )
  return {
    name: [
      Point(
        values[:, i].reshape(shape),
        {
          k: v[..., n - 1]
          for k, v in costs(samples, scored="." in name).items()
        },
      )
      for i, n in enumerate(ns)
    ]
    for name, values in curves.items()
  }


def table(result: Mapping[str, Any]) -> str:
  """Returns accuracies and differences as Markdown."""
  lines = ["| search | weighted, % | tokens |", "|---|---|---|"]
  lines += [
    f"| {name} | {_percent(row['weighted'])} | {row['cost']['tokens']:,.0f} |"
    for name, row in result["accuracy"].items()
  ]
  lines += ["", "| difference | points | |", "|---|---|---|"]
  lines += [
    f"| {name}{where} | {_percent(row)} | {row['seen']} |"
    for where, rows in (
      ("", result["differences"]),
      (", fresh seeds", result["fresh_seeds"]["differences"]),
    )
    for name, row in rows.items()
  ]
  return "\n".join(lines)


def _percent(row: Mapping[str, float]) -> str:
  mean, low, high = (100 * row[k] for k in ("mean", "low", "high"))
  return f"{mean:.1f} [{low:.1f}, {high:.1f}]"


# --- The command ------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Experiment:
  """What a command over seeds runs.

  Args:
    name: Of its output and workdir.
    settings: Returns the config; of a test of the path if it is given True.
    runs: Returns the runs of a seed; of the fresh seeds if it is given True.
    build: Returns what measures a run, from the config, a folder that keeps
      what is trained, the seed and the runs.
    differences: What is compared; `fresh`: on the fresh seeds.
    fresh: See differences.
    seeds: The seeds.
    fresh_seeds: Those on which what the others suggested was tested.
    weigh_by: See Results.
  """

  name: str
  settings: Callable[[bool], ml_collections.ConfigDict]
  runs: Callable[[ml_collections.ConfigDict, bool], list[Run]]
  build: Callable[..., Callable[[Run], Arrays]]
  differences: Sequence[Difference]
  fresh: Sequence[Difference]
  seeds: tuple[int, ...]
  fresh_seeds: tuple[int, ...]
  weigh_by: str

  def main(self, doc: str, argv: Sequence[str] | None = None) -> None:
    """Runs the command line; an input that is refused ends it in one line."""
    try:
      self._main(doc, argv)
    except errors.InputError as e:
      sys.exit(f"{self.name}.py: {e}")

  def _main(self, doc: str, argv: Sequence[str] | None) -> None:
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    output = pathlib.Path(f"docs/results/{self.name}.json")
    parser.add_argument("--output", type=pathlib.Path, default=output)
    parser.add_argument(
      "--workdir", type=pathlib.Path, default=f"runs/{self.name}"
    )
    parser.add_argument("--seeds", default=",".join(map(str, self.seeds)))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args(argv)
    c = self.settings(args.small)
    details = environment.describe(c)
    outputs.check(dict(output=args.output))
    _claim(args.workdir, details["config"])
    seeds = [int(x) for x in args.seeds.split(",")]
    start = time.perf_counter()
    make = functools.partial(self.make, args.workdir, args.small)
    if args.processes == 1:
      found = [make(s) for s in (*seeds, *self.fresh_seeds)]
    else:
      spawn = multiprocessing.get_context("spawn")
      with concurrent.futures.ProcessPoolExecutor(
        args.processes, spawn
      ) as pool:
        found = list(pool.map(make, (*seeds, *self.fresh_seeds)))
    r, fresh = (
      Results(_by_run(of), c.problems, self.weigh_by)
      for of in (found[: len(seeds)], found[len(seeds) :])
    )
    result = dict(
      accuracy=r.accuracies(),
      samples=r.of_samples(),
      differences=r.compared(self.differences),
      fresh_seeds=dict(
        accuracy=fresh.accuracies(), differences=fresh.compared(self.fresh)
      ),
      seeds=seeds,
      seconds=dict(
        runs=round(sum(float(a["seconds"]) for x in found for a in x.values())),
        this_call=round(time.perf_counter() - start),
      ),
      **details,
    )
    # In one line: a number of an interval on each would be four times as large.
    with files.replacing(args.output) as f:
      f.write(files.dump_json(result, str(args.output)))
    print(table(result))

  def make(
    self, workdir: pathlib.Path, small: bool, seed: int
  ) -> dict[str, Arrays]:
    """Returns a seed's runs; what the workdir holds isn't made again."""
    c = self.settings(small)
    runs = self.runs(c, seed in self.fresh_seeds)
    folder = workdir / str(seed)
    measured = self.build(c, folder, seed, runs)
    found = {}
    for run in runs:
      path = folder / "runs" / f"{run.name}.npz"
      if not path.exists():
        start = time.perf_counter()
        arrays = measured(run)
        seconds = np.asarray(time.perf_counter() - start)
        with files.replacing(path, "wb") as f:
          np.savez_compressed(f, seconds=seconds, **arrays)
        print(f"seed {seed}, {run.name}: {seconds:.0f} s", flush=True)
      with np.load(path) as arrays:
        found[run.name] = dict(arrays)
    return found


def _by_run(seeds: Sequence[Mapping[str, Arrays]]) -> dict[str, list[Arrays]]:
  return {name: [of[name] for of in seeds] for name in seeds[0]}


def _claim(workdir: pathlib.Path, config: Mapping[str, Any]) -> None:
  """Makes a workdir for a config, or refuses one of another config."""
  path = workdir / "config.json"
  if not path.exists():
    files.write_json(path, config)
  elif files.read_json(path) != config:
    raise errors.InputError(
      f"{workdir}: holds runs of another config; give another --workdir"
    )
