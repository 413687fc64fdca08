"""A beam search: ours, without its parts, and in search-and-learn's way.

  pip install -e '.[bench]'
  python benchmarks/search.py [--suite=NAME] [--problems=N] [--output=FILE.json]

  peer   ours, and search-and-learn's way by transformers
  parts  ours, without its cache of prefixes, and one problem at a time

A search of problems of PRM800K's phase-2 sample is recorded once. All ways then
replay it, alternating: from the same weights they sample the same ids at each
node and score the same candidates. The script stops if an id or a score
differs. Nothing here asserts a time. benchmarks/README.md says what each number
means.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import pathlib
import time
from typing import Any, NamedTuple

from flax.core import meta
import jax
import numpy as np
import peer
import recorded
import results
import search_and_learn
import train_step

from prm_jax import huggingface
from prm_jax import schema
from prm_jax.device_check import timing
from prm_jax.models import transformer
from prm_jax.policy import rollout_engine
from prm_jax.policy import sampler
from prm_jax.scoring import cached_scorer
from prm_jax.scoring import scorer
from prm_jax.search import bill as bill_lib
from prm_jax.search import engine as engine_lib
from prm_jax.search import search_limits
from prm_jax.search import search_models
from prm_jax.search import tree as tree_lib

TOLERANCE = 1e-4


class Way(NamedTuple):
  """How a search is made.

  Args:
    together: Whether all problems are searched together.
    scoring: cached, a layout of whole scoring, or the peer's.
  """

  together: bool
  scoring: str


OURS = "ours"
PEER = "search_and_learn"
WAYS = {
  OURS: Way(True, "cached"),
  "ours_alone": Way(False, "cached"),
  "ours_whole": Way(True, "padded"),
  "ours_whole_trees": Way(True, "tree"),
  "ours_alone_whole": Way(False, "padded"),
  PEER: Way(False, "peer"),
  "search_and_learn_together": Way(True, "peer"),
}

SUITES = dict(
  peer=[OURS, PEER, "search_and_learn_together"],
  parts=[name for name, way in WAYS.items() if way.scoring != "peer"],
)


class Policy(NamedTuple):
  """Both sides of the policy. folder: the peer's."""

  engine: rollout_engine.Engine
  codec: recorded.Noting
  sampling: sampler.Sampling
  key: jax.Array
  folder: pathlib.Path


def make_policy(
  model: peer.Model, args: argparse.Namespace, folder: pathlib.Path
) -> Policy:
  """Returns a random policy of the reward model's shape; writes the folder."""
  size = max(args.vocabulary, model.tokenizer.vocab_size)
  config = dataclasses.replace(model.config, vocab_size=size, step_classes=1)
  key = jax.random.key(args.seed + 1)
  params = meta.unbox(transformer.init(key, config, ("lm",)))
  folder.mkdir()
  tensors = huggingface.export_tensors("qwen2", config, params)
  huggingface.save(folder, "qwen2", config, tensors, dtype="float32")
  codec = recorded.Noting(model.tokenizer)
  engine = rollout_engine.Engine(
    *(config, params, model.tokenizer),
    chunk=args.chunk,
    stop_at_step=True,
    prompt_tokens=args.prompt_tokens,
    codec=codec,
  )
  sampling = sampler.Sampling(args.step_budget, temperature=args.temperature)
  return Policy(engine, codec, sampling, jax.random.key(args.seed), folder)


def make_scorer(
  layout: str, model: peer.Model, args: argparse.Namespace
) -> scorer.Scorer:
  """Returns our side of the reward model."""
  return scorer.Scorer(
    *("prm", model.config, model.params, model.tokenizer, model.encoding),
    batch_tokens=args.batch_tokens,
    sequence_length=args.sequence_length if layout == "tree" else 0,
    layout=layout,
  )


# --- Ways to search ---------------------------------------------------------


class Done(NamedTuple):
  """What our last search did: its trees, and the work of each call."""

  trees: list[tree_lib.Tree]
  engine: list[rollout_engine.Work]
  scorer: list[cached_scorer.Work]


def by_engine(
  way: Way,
  trees: Sequence[tree_lib.Tree],
  model: peer.Model,
  policy: Policy,
  args: argparse.Namespace,
  done: Done,
) -> Callable[[], recorded.Nodes]:
  """Returns a search by the engines of prm_jax; `done` has what it did last."""
  layout = "padded" if way.scoring == "cached" else way.scoring
  prm = make_scorer(layout, model, args)
  cached = None
  score: schema.Score = prm.score
  if way.scoring == "cached":
    cached = cached_scorer.CachedScorer(prm, cache_tokens=args.cache_tokens)
    score = cached.score
  at_once = len(trees) if way.together else 1
  slots = min(args.slots, at_once * args.keep * args.expand)
  engine = dataclasses.replace(policy.engine, slots=slots)

  def step(
    prefixes: Sequence[schema.Solution], num: int
  ) -> list[list[schema.Solution]]:
    rows, work = engine.generate(prefixes, num, policy.sampling, policy.key)
    done.engine.append(work)
    return rows

  def encode(solution: schema.Solution) -> np.ndarray:
    encoded = prm.encode(solution)
    return encoded.tokens[: encoded.step_end[-1] + 1]

  writer = search_models.Policy(
    *(step, step),
    encode=lambda prefix: policy.codec.prompt(prefix).tokens,
    cost=bill_lib.cost_of(engine.config, writes=True),
  )
  writers = {tree_lib.POLICY: writer}
  cost = bill_lib.cost_of(prm.config, writes=False)
  verifier = search_models.Verifier(score, encode=encode, cost=cost)
  rule = recorded.Replay({tree.problem.id: tree for tree in trees})
  limits = search_limits.Limits(max_steps=args.depth)

  def run() -> recorded.Nodes:
    for of in (*done, policy.codec.ids):
      of.clear()
    if cached is not None:
      cached.clear()
      before = cached.work
    for start in range(0, len(trees), at_once):
      problems = [tree.problem for tree in trees[start : start + at_once]]
      done.trees.extend(
        engine_lib.search(
          *(problems, rule, writers, verifier, limits), seed=args.seed
        )
      )
    if cached is not None:
      done.scorer.append(cached.work - before)
    scores = {
      recorded.node_id(tree, node): [*node.step_scores]
      for tree in done.trees
      for node in tree.nodes[1:]
    }
    return recorded.Nodes(dict(policy.codec.ids), scores)

  return run


def check_same(
  name: str, made: recorded.Nodes, wanted: recorded.Nodes
) -> float:
  """Returns the largest difference of a score.

  Raises:
    RuntimeError: Other ids were sampled, or a score is too different.
  """
  every = [*dict.fromkeys([*wanted.ids, *made.ids])]
  wrong = [x for x in every if made.ids.get(x) != wanted.ids.get(x)]
  if wrong:
    raise RuntimeError(
      f"{name}: nodes {wrong[:3]} have other ids than the record"
    )
  lengths = {node: len(of) for node, of in made.scores.items()}
  if lengths != {node: len(of) for node, of in wanted.scores.items()}:
    raise RuntimeError(f"{name}: not one score for each recorded step")
  gaps = [np.subtract(made.scores[x], of) for x, of in wanted.scores.items()]
  most = float(np.abs(np.concatenate(gaps)).max())
  if not most <= TOLERANCE:
    raise RuntimeError(
      f"{name}: a score differs by {most}, more than {TOLERANCE}"
    )
  return most


# --- What is measured -------------------------------------------------------


def measure(
  suite: str, args: argparse.Namespace, folder: pathlib.Path
) -> dict[str, Any]:
  """Returns counts, differences, problems/s and ratios."""
  return replay(SUITES[suite], args, peer.read(train_step.PHASE2), folder)


def replay(
  names: Sequence[str],
  args: argparse.Namespace,
  solutions: Sequence[schema.Solution],
  folder: pathlib.Path,
) -> dict[str, Any]:
  """Returns what these ways take, ours first, on problems of solutions."""
  model = peer.make(args, solutions, folder, 1 << 30)
  prm = make_scorer("padded", model, args)
  trees = recorded.record(solutions, model.tokenizer, prm.score, args)
  wanted = recorded.nodes(trees, model.tokenizer)
  policy = make_policy(model, args, folder / "policy")
  done = {name: Done([], [], []) for name in names}
  ways: dict[str, Callable[[], recorded.Nodes]] = {}
  for name in names:
    way = WAYS[name]
    if way.scoring == "peer":
      ways[name] = search_and_learn.searching(
        *(trees, wanted, model, policy.folder, args),
        at_once=len(trees) if way.together else 1,
      )
    else:
      ways[name] = by_engine(way, trees, model, policy, args, done[name])
  differences: dict[str, float] = {}

  def checked(name: str) -> timing.Cost:
    wall, cpu = time.perf_counter(), time.process_time()
    made = ways[name]()
    cost = timing.Cost(time.perf_counter() - wall, time.process_time() - cpu)
    differences[name] = check_same(name, made, wanted)
    return cost

  runs = {name: functools.partial(checked, name) for name in ways}
  with recorded.forced(wanted.ids, policy.key):
    for name, run in runs.items():
      print(f"  {name}: {run().wall:.1f} s with compiling", flush=True)
    costs = timing.alternate(runs, args.rounds)
  measured = {
    f"{name}: problems/s": timing.rate(len(trees), costs[name]) for name in ways
  }
  for name in names[1:]:
    measured[f"{OURS} / {name}"] = timing.ratio(costs[name], costs[OURS])
  return dict(
    model=dataclasses.asdict(model.config),
    policy=dataclasses.asdict(policy.engine.config),
    differences=differences,
    counts=count(trees, wanted, done),
    measured=measured,
  )


def count(
  trees: Sequence[tree_lib.Tree],
  wanted: recorded.Nodes,
  done: Mapping[str, Done],
) -> dict[str, dict[str, Any]]:
  """Returns the sizes of the search, and what its parts computed.

  Raises:
    RuntimeError: An engine sampled another number of tokens than was recorded.
  """
  sampled = sum(map(len, wanted.ids.values()))
  counts: dict[str, dict[str, Any]] = {
    "recorded": {
      "problems": len(trees),
      "steps": len(wanted.ids),
      "sampled tokens": sampled,
    }
  }
  for name, of in done.items():
    if not of.trees:
      continue
    work = sum(of.engine, rollout_engine.Work())
    if work.decoded != sampled:
      raise RuntimeError(
        f"{name}: sampled {work.decoded} tokens, not {sampled}"
      )
    bill = bill_lib.add(*(tree.bill for tree in of.trees))
    policy, prm = bill[tree_lib.POLICY], bill[bill_lib.SCORER]
    counts[name] = {
      "calls of the policy": len(of.engine),
      "slot use": work.slot_use,
      "prompt tokens, each step's": policy.read,
      "prompt tokens read": work.prefilled,
      "scored tokens, whole": prm.read,
    }
    if of.scorer:
      counts[name]["scored tokens read"] = sum(x.computed for x in of.scorer)
  return counts


def arguments() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add = parser.add_argument
  add("--suite", choices=SUITES, help="one; all by default")
  add("--output", type=pathlib.Path, help="results as JSON")
  add("--rounds", type=int, default=3)
  add("--problems", type=int, default=8)
  add("--keep", type=int, default=4)
  add("--expand", type=int, default=4)
  add("--depth", type=int, default=12, help="steps of a solution")
  add("--step_tokens", type=int, nargs=2, default=[20, 40], help="of a step")
  add("--step_budget", type=int, default=64, help="the most that are sampled")
  add("--temperature", type=float, default=0.8)
  peer.add_arguments(parser)
  parser.set_defaults(d_model=256, d_ff=704, num_layers=4)
  add("--slots", type=int, default=64, help="of our rollout engine")
  add("--chunk", type=int, default=8, help="of our rollout engine")
  add("--prompt_tokens", type=int, default=0, help="of our rollout engine")
  add("--cache_tokens", type=int, default=65_536, help="of CachedScorer")
  add("--batch", type=int, default=16, help="rows that transformers scores")
  add("--batch_tokens", type=int, default=8192, help="of whole scoring by us")
  add("--sequence_length", type=int, default=2048, help="of rows with trees")
  return parser


def main() -> None:
  peer.run_suites("search.py", arguments().parse_args(), SUITES, measure)


if __name__ == "__main__":
  results.run(main)
