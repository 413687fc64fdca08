"""Can a larger policy's likelihood of chunks take the place of a PRM?

Command:  python experiments/search_chunks.py
          [--output=docs/results/search_chunks.json] [--seeds=0,1,2]
          [--workdir=runs/search_chunks] [--small]
Hardware, time and result: see experiments/README.md and docs/search_evidence.md.

This is claim 11 of search_testbed.py (arXiv 2606.01682, of which we read the
abstract). Chunk guidance needs policies with a template, so they are made as in
labelling_published.py: Qwen2's shape with random weights, tuned on dial problems
of 2 to 4 turns in its chat template. Both learn the same right solutions: the
small policy has 2 layers of 64 and the large one 2 of 128. The PRM begins as
the large policy, and learns exact step labels of the small policy's samples; so
both guides cost about the same. What exists is not made again.

That PRM stays weak (`auroc` in the results), so the exact verifier with normal
noise stands beside it as a good PRM: log-odds of +2 or -2, deviation 2.5, as in
search_testbed.py, with the PRM's cost. It was added when seed 0 had been seen
with the trained PRM; its rules were written before it ran.

How it is measured
- 100 unseen problems of a seed; temperature 1 and the whole distribution.
- Guidance: chunks of 8 tokens (a step has about 12), W drawn and the best goes
  on, W = 4 and 8, by `contrast` and by `likelihood`. PRM: beam (1, W) by steps;
  scores are products.
- Samples of the small policy: 32 of a problem; best-of-N and weighted best-of-N
  by each PRM, and majority; of the large policy: 8.
- Cost is sampled tokens, and FLOPs of the models as they are, with caches
  (`flops`). Curves at equal cost and intervals are as in search_testbed.py.
- The sizes were chosen on seed 100, which doesn't count, so that the small
  policy is right in less than two thirds and the large one more often.

How the claim is judged; written before any result, for each W.
 a  `contrast` is no worse than a beam by the PRM at equal W, trained or good:
    confirmed if the difference's interval is above -5 points; else refuted if it
    is below 0; else not seen.
 b  `contrast` > best-of-N by the PRM, trained or good, at equal tokens.
 c  `contrast` > majority of the small policy, which needs no other model either,
    at equal FLOPs.
 d  `contrast` > majority of the large policy at equal FLOPs.
 e  `contrast` > `likelihood` at equal W.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
import dataclasses
import pathlib
import sys
import time
from typing import Any

import commands
import labelling_published
import numpy as np
import search_statistics as stats
from search_statistics import Point

from prm_jax import errors
from prm_jax import schema
from prm_jax import voting
from prm_jax.evaluation import step_metrics
from prm_jax.policy import sampler as sampler_lib
from prm_jax.records import jsonl
from prm_jax.runtime import environment
from prm_jax.runtime import files
from prm_jax.scoring import scorer as scorer_lib
from prm_jax.search import bill as bill_lib
from prm_jax.search import chunks
from prm_jax.search import engine
from prm_jax.search import rules
from prm_jax.search import search_limits as limits_lib
from prm_jax.search import search_models
from prm_jax.search import tree as tree_lib
from prm_jax.testbed import arithmetic
from prm_jax.testbed import arithmetic_policy as policy_lib
from prm_jax.text import answers as grading

OUTPUT = pathlib.Path("docs/results/search_chunks.json")
WORKDIR = pathlib.Path("runs/search_chunks")
HERE = labelling_published.HERE
SAMPLING = sampler_lib.Sampling(64)
CHUNK_TOKENS = 8
WIDTHS = (4, 8)
# Runs of independent samples; the others are searches.
SAMPLES = ("small", "small_good", "large")
# See search_runs.py, whose task is another one.
NOISE, GAP = 2.5, 4.0
VOTE_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Sizes:
  """How much is made, trained and searched, of a seed."""

  taught: int = 4_000
  small_updates: int = 300
  large_updates: int = 350
  prm_problems: int = 400
  prm_updates: int = 300
  problems: int = 100
  samples: int = 32
  large_samples: int = 8


SMALL = Sizes(200, 4, 4, 40, 2, 3, 4, 2)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--output", type=pathlib.Path, default=OUTPUT)
  parser.add_argument("--workdir", type=pathlib.Path, default=WORKDIR)
  parser.add_argument("--seeds", default="0,1,2")
  parser.add_argument("--small", action="store_true")
  args = parser.parse_args()
  sizes = SMALL if args.small else Sizes()
  start = time.perf_counter()
  seeds = [int(x) for x in args.seeds.split(",")]
  by_seed = [of_seed(args.workdir / str(s), s, sizes) for s in seeds]
  runs = {
    name: stats.stacked([x[name] for x in by_seed], sizes.problems)
    for name in by_seed[0]
  }
  result = judge(runs) | dict(
    auroc={
      prm: [round(float(x[name]["auroc"]), 3) for x in by_seed]
      for prm, name in (("prm", "small"), ("good", "small_good"))
    },
    seeds=seeds,
    seconds=dict(
      runs=round(sum(float(a["seconds"]) for x in by_seed for a in x.values())),
      this_call=round(time.perf_counter() - start),
    ),
    sizes=dataclasses.asdict(sizes),
    command=f"python {' '.join(sys.argv)}",
    versions=environment.versions() | dict(revision=environment.revision()),
    machine=environment.machine(),
  )
  with files.replacing(args.output) as f:
    f.write(files.dump_json(result, str(args.output)))
  for name, row in result["accuracy"].items():
    print(name, row)
  print(result["verdicts"])


# --- Models -----------------------------------------------------------------


def make_models(folder: pathlib.Path, seed: int, sizes: Sizes) -> None:
  """Makes a seed's small and large policy, and the PRM, in a folder."""
  random = np.random.default_rng(seed)
  task = labelling_published.TASK
  taught = arithmetic.problems(sizes.taught, "train", task, random)
  if not (folder / "taught.jsonl").exists():
    folder.mkdir(parents=True, exist_ok=True)
    solutions = [
      labelling_published.in_words(arithmetic.solve(p, random)) for p in taught
    ]
    jsonl.write_solutions(folder / "taught.jsonl", solutions)
    jsonl.write_problems(
      folder / "prm_problems.jsonl", taught[: sizes.prm_problems]
    )
  for name, d_model, updates in (
    ("small", 64, sizes.small_updates),
    ("large", 128, sizes.large_updates),
  ):
    theirs, ours = folder / f"hf_{name}", folder / f"imported_{name}"
    if not (theirs / "config.json").exists():
      labelling_published.write_published(theirs, seed, d_model)
    _run(
      *("import", f"--from={theirs}", f"--to={ours}", "--role=policy"),
      makes=ours / "model.json",
    )
    _run(
      *("train", f"--config={HERE / 'published_policy_small.py'}"),
      *(f"--workdir={folder / name}", f"--config.init_from={ours}"),
      f"--config.data.train=('jsonl:{folder / 'taught.jsonl'}',)",
      f"--config.fit.steps={updates}",
      f"--config.seed={seed}",
    )
  _run(
    *("sample", f"--policy={folder / 'small'}", "--n=8", f"--seed={seed}"),
    *("--max_tokens=64", "--temperature=1.0", "--top_p=1.0"),
    f"--input={folder / 'prm_problems.jsonl'}",
    f"--output={folder / 'samples.jsonl'}",
    makes=folder / "samples.jsonl",
  )
  labelled = [
    dataclasses.replace(s, labels=tuple(labels_of(s)))
    for s in jsonl.read_solutions(folder / "samples.jsonl")
    if s.steps
  ]
  jsonl.write_solutions(folder / "labelled.jsonl", labelled)
  _run(
    *("train", f"--config={HERE / 'published_prm_small.py'}"),
    *(f"--workdir={folder / 'prm'}", f"--config.init_from={folder / 'large'}"),
    f"--config.data.train=('jsonl:{folder / 'labelled.jsonl'}',)",
    f"--config.fit.steps={sizes.prm_updates}",
    f"--config.seed={seed}",
  )


def _run(*arguments: str, makes: pathlib.Path | None = None) -> None:
  """Runs a command, unless what it makes is there.

  A training is always run: it resumes, and one that is finished ends at once.
  """
  if makes is None or not makes.exists():
    commands.run(arguments)


def in_testbed(solution: schema.Solution) -> schema.Solution:
  """Returns a solution that boxes its answer as the testbed writes it."""
  steps = tuple(
    f"answer {grading.extract([step])}" if "boxed" in step else step.strip()
    for step in solution.steps
  )
  return schema.Solution(solution.id, solution.problem, steps)


def labels_of(solution: schema.Solution) -> list[float]:
  """Returns the exact labels of a solution that boxes its answer."""
  return arithmetic.check(solution.problem, in_testbed(solution).steps)


def noisy(prm: search_models.Verifier, seed: int) -> search_models.Verifier:
  """Returns the exact verifier with noise, at the cost of a PRM."""
  verifier = policy_lib.NoisyVerifier(NOISE, GAP, seed)

  def score(solutions: Sequence[schema.Solution]) -> list[schema.StepScores]:
    return verifier([in_testbed(s) for s in solutions])

  return dataclasses.replace(prm, score=score)


# --- Runs -------------------------------------------------------------------


def of_seed(folder: pathlib.Path, seed: int, sizes: Sizes) -> dict[str, Arrays]:
  """Returns a seed's runs by name, whose arrays have the problem's axis."""
  make_models(folder, seed, sizes)
  small, large = (
    sampler_lib.load(folder / name) for name in ("small", "large")
  )
  by_step = search_models.of_sampler(
    small, SAMPLING, max_step_tokens=24, seed=seed, slots=128
  )
  by_chunk = chunks.of_sampler(
    small, SAMPLING, chunk_tokens=CHUNK_TOKENS, seed=seed, slots=128
  )
  of_large = search_models.of_sampler(large, SAMPLING, seed=seed, slots=128)
  prm = search_models.of_scorer(
    scorer_lib.load(folder / "prm"), aggregate="product"
  )
  good = noisy(prm, seed)
  nothing = search_models.Verifier(
    lambda rows: [schema.StepScores((0.5,) * len(s.steps)) for s in rows]
  )
  runs = dict(
    small=(rules.BestOfN(sizes.samples), by_step, prm),
    small_good=(rules.BestOfN(sizes.samples), by_step, good),
    large=(rules.BestOfN(sizes.large_samples), of_large, nothing),
  )
  for width in WIDTHS:
    runs[f"prm.{width}"] = (rules.Beam(1, width), by_step, prm)
    runs[f"good.{width}"] = (rules.Beam(1, width), by_step, good)
    for how in chunks.GUIDANCE:
      guide = chunks.of_policy(large, guidance=how)
      runs[f"{how}.{width}"] = (rules.Beam(1, width), by_chunk, guide)
  drawn = arithmetic.problems(
    sizes.problems,
    "test",
    labelling_published.TASK,
    np.random.default_rng([seed, 1]),
  )
  problems = [schema.Solution(p.id, p.problem, ()) for p in drawn]
  found = {}
  for name, (rule, policy, verifier) in runs.items():
    path = folder / f"{name}.npz"
    if not path.exists():
      start = time.perf_counter()
      arrays = measure(problems, rule, policy, verifier, seed)
      seconds = np.asarray(time.perf_counter() - start)
      with files.replacing(path, "wb") as f:
        np.savez_compressed(f, seconds=seconds, **arrays)
      print(f"seed {seed}, {name}: {seconds:.0f} s", flush=True)
    with np.load(path) as arrays:
      found[name] = dict(arrays)
  return found


def measure(
  problems: Sequence[schema.Solution],
  rule: rules.Rule,
  policy: search_models.Policy,
  verifier: search_models.Verifier,
  seed: int,
) -> Arrays:
  """Returns the numbers of each problem, and of its candidates as they come.

  right, answer, score (log-odds) and weight have an axis of candidates.
  tokens, flops: what the candidates up to there took, if they are samples; of a
  search what it took. policy_flops are without the scorer.
  """
  limits = limits_lib.Limits(max_tokens=SAMPLING.max_tokens)
  policies = {tree_lib.POLICY: policy}
  trees = engine.search(problems, rule, policies, verifier, limits, seed=seed)
  costs = {tree_lib.POLICY: policy.cost, bill_lib.SCORER: verifier.cost}
  rows = []
  for tree in trees:
    nodes = [tree.nodes[n] for n in tree.candidates]
    bills: list[bill_lib.Bill] = [tree.bill]
    if isinstance(rule, rules.BestOfN):
      bills = [n.cost for n in nodes]
    rows.append(
      dict(
        right=[float(labelling_published.is_right(n.solution)) for n in nodes],
        answer=[_answer(n.solution) for n in nodes],
        score=[n.log_odds for n in nodes],
        weight=[n.score for n in nodes],
        tokens=np.cumsum([bill_lib.sampled(b) for b in bills]),
        flops=np.cumsum([_flops(b, costs) for b in bills]),
        policy_flops=np.cumsum(
          [
            _flops({k: v for k, v in b.items() if k in policies}, costs)
            for b in bills
          ]
        ),
      )
    )
  arrays = {k: np.asarray([row[k] for row in rows], float) for k in rows[0]}
  if isinstance(rule, rules.BestOfN):
    nodes = [tree.nodes[n] for tree in trees for n in tree.candidates]
    arrays["auroc"] = np.asarray(
      step_metrics.auroc(
        np.concatenate([n.step_scores for n in nodes]),
        np.concatenate([labels_of(n.solution) for n in nodes]) > 0.5,
      )
    )
  return arrays


def _answer(solution: schema.Solution) -> float:
  """Returns the digit that a solution gives as its answer, -1 without one."""
  given = grading.extract(list(solution.steps)) or ""
  return float(given) if given.isdecimal() else -1.0


def _flops(
  bill: bill_lib.Bill, costs: Mapping[str, bill_lib.Cost | None]
) -> float:
  # A scorer of unknown cost is the one that does nothing.
  known = {k: v for k, v in bill.items() if costs[k] is not None}
  return float(bill_lib.flops(known, costs) or 0)


# --- Verdicts ---------------------------------------------------------------


def judge(runs: Mapping[str, Arrays]) -> dict[str, Any]:
  """Returns accuracies, differences and verdicts."""
  found = {
    name: Point(
      arrays["right"][..., 0],
      {kind: arrays[kind][..., 0] for kind in ("tokens", "flops")},
    )
    for name, arrays in runs.items()
    if name not in SAMPLES
  }
  curves = {
    "majority": _curve(runs["small"], "majority"),
    "best": _curve(runs["small"], "best"),
    "weighted": _curve(runs["small"], "weighted"),
    "best by good": _curve(runs["small_good"], "best"),
    "weighted by good": _curve(runs["small_good"], "weighted"),
    "large": _curve(runs["large"], "majority"),
  }
  differences: dict[str, Any] = {}
  for width in WIDTHS:
    contrast = found[f"contrast.{width}"]
    for kind in ("tokens", "flops"):
      for how, curve in curves.items():
        cost = float(contrast.costs[kind].mean())
        everywhere = np.ones(contrast.values.shape, bool)
        other = stats.at_cost(curve, kind, cost, everywhere)
        name = f"contrast.{width} minus {how}, equal {kind}"
        differences[name] = stats.interval(contrast.values - other)
    for other in ("prm", "good", "likelihood"):
      differences[f"contrast.{width} minus {other}.{width}"] = stats.interval(
        contrast.values - found[f"{other}.{width}"].values
      )
  accuracy = {
    name: dict(
      right=stats.interval(p.values),
      cost={k: stats.rounded(v.mean()) for k, v in p.costs.items()},
    )
    for name, p in found.items()
  }
  for name, curve in curves.items():
    for n, p in zip(VOTE_SIZES, curve, strict=False):
      accuracy[f"{name}.{n}"] = dict(
        right=stats.interval(p.values),
        cost={k: stats.rounded(v.mean()) for k, v in p.costs.items()},
      )
  return dict(
    verdicts={str(w): _verdicts(differences, w) for w in WIDTHS},
    differences=differences,
    accuracy=accuracy,
  )


def _curve(samples: Arrays, how: str) -> list[Point]:
  """Returns what independent samples give at VOTE_SIZES, by way to choose."""
  shape, num = samples["right"].shape[:2], samples["right"].shape[-1]
  ns = [n for n in VOTE_SIZES if n <= num]
  right, answer, score, weight = (
    samples[k].reshape(-1, num) for k in ("right", "answer", "score", "weight")
  )
  rows = [[None if a < 0 else a for a in row] for row in answer.tolist()]
  if how == "best":
    values = voting.best_of_n(score, right, ns)
  else:
    weights = weight if how == "weighted" else None
    values = voting.vote_accuracy(rows, right, weights, ns)
  flops = "policy_flops" if how == "majority" else "flops"
  return [
    Point(
      values[:, i].reshape(shape),
      dict(
        tokens=samples["tokens"][..., n - 1], flops=samples[flops][..., n - 1]
      ),
    )
    for i, n in enumerate(ns)
  ]


def _verdicts(differences: Mapping[str, Any], width: int) -> dict[str, str]:
  head = f"contrast.{width} minus "
  return dict(
    a_prm=_no_worse(differences[f"{head}prm.{width}"]),
    a_good=_no_worse(differences[f"{head}good.{width}"]),
    b_best_of_n=stats.verdict(differences[f"{head}best, equal tokens"]),
    b_good=stats.verdict(differences[f"{head}best by good, equal tokens"]),
    c_majority=stats.verdict(differences[f"{head}majority, equal flops"]),
    d_large=stats.verdict(differences[f"{head}large, equal flops"]),
    e_likelihood=stats.verdict(differences[f"{head}likelihood.{width}"]),
  )


def _no_worse(difference: Mapping[str, Any]) -> str:
  if difference["low"] > -0.05:
    return "confirmed"
  return "refuted" if difference["high"] < 0 else "not seen"


if __name__ == "__main__":
  try:
    main()
  except errors.InputError as e:
    sys.exit(f"search_chunks.py: {e}")
