"""A scoring server: its rate, its waiting times, and a plain one beside it.

  pip install -e '.[bench,serve]'
  python benchmarks/serve.py [--clients=64] [--solutions=N] [--output=FILE.json]

singles: clients that send one solution at a time. together: requests with 16
solutions of a problem. growing: as many clients as solutions, which are sent with
each of their steps anew, also to a server with --cache_tokens. Each is asked of `prm-jax serve`'s server and of FastAPI
before transformers, which scores one request at a time (http_load.py), on
loopback. `offline` is the same solutions given to each side's model at once, so
that the ratio of servers can be told from that of models: our scorer by its
default layout, padded, and in trees. The sides alternate;
the script stops if two scores of a step differ. Nothing here asserts a time.
benchmarks/README.md says what each number means.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Sequence
import concurrent.futures
import contextlib
import dataclasses
import json
import pathlib
import time
from typing import Any

import http_load
import numpy as np
import peer
import results
import score
import train_step

from prm_jax import errors
from prm_jax import schema
from prm_jax.device_check import timing
from prm_jax.runtime import listening
from prm_jax.scoring import cached_scorer
from prm_jax.scoring import scorer as scorer_lib
from prm_jax.serving import app as app_lib
from prm_jax.serving import models as models_lib
from prm_jax.serving import server as server_lib
from prm_jax.serving import server_limits as limits_lib

SUITES = ("singles", "together", "growing")
TOLERANCE = 1e-4
TOGETHER = 16
# Solutions that grow, and what the server keeps of them.
GROWING, CACHE_TOKENS = 16, 65_536


def choose(
  suite: str,
  solutions: Sequence[schema.Solution],
  scorer: scorer_lib.Scorer,
  args: argparse.Namespace,
) -> list[list[schema.Solution]]:
  """Returns the solutions of each request: those with about the wanted length.

  Raises:
    InputError: The data has too few.
  """
  low, high = args.tokens
  usable = [s for s in solutions if low <= len(scorer.encode(s).tokens) <= high]
  random = np.random.default_rng(args.seed)
  order = [usable[i] for i in random.permutation(len(usable))]
  if suite == "singles":
    requests = [[s] for s in order[: args.solutions]]
  elif suite == "growing":
    grown = [
      (num, i, schema.first_steps(s, num))
      for i, s in enumerate(order[:GROWING])
      for num in range(1, len(s.steps) + 1)
    ]
    # Every solution's first steps, then every one's second, ...
    grown.sort(key=lambda x: x[:2])
    return [[s] for _, _, s in grown[: args.solutions]]
  else:
    of: dict[str, list[schema.Solution]] = defaultdict(list)
    for s in order:
      of[s.problem].append(s)
    groups = sorted(of.values(), key=len, reverse=True)
    requests = [
      group[:TOGETHER] for group in groups[: args.solutions // TOGETHER]
    ]
  if sum(map(len, requests)) < args.solutions // 2 or not requests:
    raise errors.InputError(
      f"--solutions={args.solutions}: the data has {len(usable)} with {low} to"
      f" {high} tokens, too few; give fewer, or other --tokens"
    )
  return requests


def measure(
  suite: str, args: argparse.Namespace, folder: pathlib.Path
) -> dict[str, Any]:
  """Returns rates, waiting times and ratios."""
  solutions = peer.read(train_step.PHASE2)
  model = peer.make(args, solutions, folder, 1 << 30)
  limits = limits_lib.Limits(
    max_tokens=args.tokens[1],
    max_batch_tokens=args.batch_tokens,
    max_queue=4096,
    deadline_s=600,
  )
  offline = scorer_lib.Scorer(
    *("prm", model.config, model.params, model.tokenizer, model.encoding),
    batch_tokens=args.batch_tokens,
  )
  trees = dataclasses.replace(offline, layout="tree")
  served = models_lib.in_batches(offline, limits)
  requests = choose(suite, solutions, offline, args)
  flat = [s for request in requests for s in request]
  bodies = [
    json.dumps(
      dict(items=[dict(problem=s.problem, steps=s.steps) for s in request])
    )
    for request in requests
  ]
  # Of a search, each step waits for the score of the one before it.
  clients = GROWING if suite == "growing" else args.clients
  latencies: dict[str, list[float]] = defaultdict(list)
  scores: dict[str, list[list[float]]] = {}
  with contextlib.ExitStack() as stack:
    process = stack.enter_context(http_load.clients())
    urls = dict(
      ours=_serving(served, None, limits, stack),
      plain=stack.enter_context(http_load.plain_server(folder)),
    )
    cache = None
    if suite == "growing":
      keeping = dataclasses.replace(limits, cache_tokens=CACHE_TOKENS)
      cache = models_lib.cache_of(served, keeping)
      urls["cached"] = _serving(served, cache, limits, stack)

    def asked(name: str) -> timing.Cost:
      if cache is not None:
        cache.clear()
      done = _ask(process, urls[name], bodies, clients)
      latencies[name] += done.latencies
      scores[name] = [row for rows in done.scores for row in rows]
      return timing.Cost(done.seconds, done.seconds)

    by_transformers = score.by_transformers(
      [offline.encode(s) for s in flat], model, args, by_length=True
    )

    def ours_offline() -> None:
      scores["offline"] = [[*row.scores] for row in offline.score(flat)]

    def trees_offline() -> None:
      scores["offline_trees"] = [[*row.scores] for row in trees.score(flat)]

    def theirs_offline() -> None:
      scores["transformers"] = by_transformers()

    runs: dict[str, Callable[[], Any]] = {
      **({"cached": lambda: asked("cached")} if "cached" in urls else {}),
      "ours": lambda: asked("ours"),
      "offline": ours_offline,
      "offline_trees": trees_offline,
      "plain": lambda: asked("plain"),
      "transformers": theirs_offline,
    }
    for name, run in runs.items():
      began = time.perf_counter()
      run()
      print(f"  {name}: {time.perf_counter() - began:.1f} s with compiling")
    latencies.clear()
    costs = timing.alternate(runs, args.rounds)
  # Clients measure themselves, so there is no CPU time.
  rates = {
    f"{name}: solutions/s": timing.rate(len(flat), cost)
    for name, cost in costs.items()
  } | {
    f"{fast} / {slow}": timing.ratio(costs[slow], costs[fast])
    for fast, slow in (
      ("ours", "offline"),
      ("ours", "offline_trees"),
      ("ours", "plain"),
      ("offline", "transformers"),
      ("cached", "ours"),
      ("cached", "plain"),
    )
    if {fast, slow} <= costs.keys()
  }
  return dict(
    model=dataclasses.asdict(model.config),
    differences=_differences(scores),
    counts=dict(
      asked=dict(
        requests=len(requests),
        solutions=len(flat),
        tokens=sum(len(offline.encode(s).tokens) for s in flat),
      )
    ),
    measured={name: dict(wall=found["wall"]) for name, found in rates.items()},
    seconds_of_a_request={
      name: _percentiles(waits) for name, waits in latencies.items()
    },
  )


def _serving(
  scorer: scorer_lib.Scorer,
  cache: cached_scorer.CachedScorer | None,
  limits: limits_lib.Limits,
  stack: contextlib.ExitStack,
) -> str:
  """Returns the address of our server, which is ready and ends with the stack."""
  model = models_lib.Model("prm", "", scorer, limits, cache=cache)
  server = app_lib.Server({"prm": model}, limits)
  listener = stack.enter_context(listening.listen("127.0.0.1", 0))
  stack.enter_context(server_lib.answering(server, listener))
  while not server.is_ready:
    time.sleep(0.1)
  return f"http://127.0.0.1:{listener.getsockname()[1]}"


def _ask(
  process: concurrent.futures.Executor,
  url: str,
  bodies: Sequence[str],
  clients: int,
) -> http_load.Asked:
  return process.submit(http_load.ask, url, bodies, clients).result()


def _differences(scores: dict[str, list[list[float]]]) -> dict[str, float]:
  """Returns each way's largest difference of a score to ours offline.

  Raises:
    RuntimeError: It is above TOLERANCE.
  """
  out = {}
  for name, rows in scores.items():
    pairs = zip(rows, scores["offline"], strict=True)
    out[name] = max(float(np.abs(np.subtract(a, b)).max()) for a, b in pairs)
    if not out[name] <= TOLERANCE:
      raise RuntimeError(f"{name}: a score differs by {out[name]}")
  return out


def _percentiles(waits: Sequence[float]) -> dict[str, float]:
  return {
    f"p{q}": round(float(np.percentile(waits, q)), 4) for q in (50, 95, 99)
  }


def arguments() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add = parser.add_argument
  add("--suite", choices=SUITES, help="one; all by default")
  add("--output", type=pathlib.Path, help="results as JSON")
  add("--rounds", type=int, default=3)
  add("--solutions", type=int, default=256, help="of a round")
  add("--clients", type=int, default=64, help="that ask at the same time")
  add("--tokens", type=int, nargs=2, default=[200, 400], help="of a solution")
  add("--batch_tokens", type=int, default=8192, help="of a call of our model")
  add("--batch", type=int, default=16, help="rows that transformers scores")
  peer.add_arguments(parser)
  return parser


def main() -> None:
  peer.run_suites("serve.py", arguments().parse_args(), SUITES, measure)


if __name__ == "__main__":
  results.run(main)
