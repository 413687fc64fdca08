"""When does search help with a trained policy and a trained PRM? Three seeds.

Command:  python experiments/search_trained.py
          [--output=docs/results/search_trained.json] [--seeds=0,1,2]
          [--workdir=runs/search_trained] [--processes=1] [--small] [--table]
Hardware, time and result: see experiments/README.md and docs/search_evidence.md.

search_testbed.py asks the same of a synthetic policy and PRM. Here both are
trained, from scratch, on each seed: those of `prm-jax demo`, whose problems have
3 to 6 turns, and a second PRM that has seen few solutions. What --workdir
already holds isn't trained or run again. --small is a test of the path whose
numbers mean nothing. --table prints the verdicts as Markdown.

How it is measured
- PRMs: "full" is the demo's; "few" learns the first 3,200 of the demo's
  labelled solutions in 250 updates, as in after_first_error.py, whose published
  result (step AUROC .97) is why this size was taken. Both have no target after a
  first error, so a score is the minimum over steps, as in the demo. `beam_last`
  and `beam_product` are the beam by the others.
- Problems: the first 100 unseen ones of a seed, 30 at N = 64.
- Best-of-N, weighted best-of-N and majority at every N are exact or means over
  subsets of 128 independent samples of a problem.
- Searches sample as the demo does (temperature 1, top_p .95). N is the number
  of samples, or the width of a search: beam and DVTS (N / 4, 4), REBASE and
  particle filter N. `mcts.S` has S simulations of 4 children; `reject` is
  reject and resample at threshold .5 with 5 tries, four times for each problem;
  `lookahead` is a beam that looks ahead one step, on 30 problems.
- An answer is chosen by weighted vote; the JSON has the best score's, too, and
  how often all steps are right.
- Cost is sampled tokens; FLOPs of the models as they are, from the bill, with
  caches (`flops`); or as if they had 1.5e9 and 7e9 parameters (`big`).
- Curves at equal cost, intervals over problems within seeds, and "seen" are as
  in search_testbed.py: problems are drawn again within each seed, so that an
  interval holds for these three trainings and not for others.

How the claims are judged; written before any search was run. confirmed: the
claim's part is seen; refuted: the contrary is seen; else "not seen". Verdicts
are for each PRM.
 1 beam > weighted best-of-N, and beam (best) > best-of-N, at equal tokens, at
   N = 4 and at N = 16: four parts.
 2 DVTS > beam at N = 64.
 3 REBASE >= weighted best-of-N at equal tokens: confirmed if seen above at one
   N and below at none; refuted if seen below at one N.
 4 Particle filter > beam at N = 16.
 5 Lookahead is the worst at equal FLOPs: below the curve of each of beam, DVTS,
   REBASE and particle filter, at N = 4 and 16. Refuted if it is not seen below
   one of them at any N.
 6 Reject and resample > one sample; > weighted best-of-N and > best-of-N at
   equal tokens.
 7 MCTS of 4 simulations > beam at equal FLOPs.
A prediction: search_evidence.md says that DVTS (claim 2) and the particle
filter (claim 4) beat a beam if a poor PRM's errors persist along a path. If the
persistence of "few" is .5 or more, measured as in
search_trained_claims.prm_quality, it predicts both; it holds if both are
confirmed.
What is in `losses` and `prms` is a diagnosis, and part of no verdict.

Added after the results of seed 0 and before those of seeds 1 and 2 were read:
MCTS with a uniform prior (`uniform.S`), because MCTS of one simulation was far
above a beam of equal tokens, and the policy's prior is what they differ in; and
five claims about "few" that these results suggested, tested on the fresh seeds
3, 4 and 5, 100 problems each, weighted vote, with the rule written before:
 1' beam < weighted best-of-N at equal tokens, N = 16.
 2' DVTS > beam at N = 16.
 4' Particle filter > beam at N = 16.
 7' MCTS of one simulation > beam at N = 4, at equal tokens.
 8' MCTS of one simulation with the policy's prior > with a uniform one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
import concurrent.futures
import multiprocessing
import pathlib
import sys
import time

import ml_collections
import numpy as np
import search_testbed
import search_trained_claims
import search_trained_models
import search_trained_runs

from prm_jax import errors
from prm_jax.runtime import environment
from prm_jax.runtime import files
from prm_jax.runtime import outputs
from prm_jax.search import mcts
from prm_jax.search import rules

OUTPUT = pathlib.Path("docs/results/search_trained.json")
WORKDIR = pathlib.Path("runs/search_trained")
Run = search_trained_runs.Run


def all_runs(c: ml_collections.ConfigDict) -> list[Run]:
  """Returns the runs of a seed, in the order in which they are made."""
  return [
    Run("samples", None),
    *(run for prm in search_trained_models.PRMS for run in _of_prm(c, prm)),
    *(_uniform(num) for num in (1, 4)),
  ]


def _uniform(num: int) -> Run:
  rule = mcts.MCTS(simulations=num, expand=4, prior="uniform")
  return Run(f"uniform.few.{num}", rule, "few")


FRESH_SEEDS = (3, 4, 5)


def fresh_runs(c: ml_collections.ConfigDict) -> list[Run]:
  """Returns the runs of the claims that the results suggested."""
  names = ("beam.few.4", "beam.few.16", "dvts.few.16", "particles.few.16")
  wanted = {*names, "mcts.few.1", "uniform.few.1"}
  return [
    Run("samples", None, "few"),
    *(run for run in all_runs(c) if run.name in wanted),
  ]


def _of_prm(c: ml_collections.ConfigDict, prm: str) -> Iterator[Run]:
  for num, most in ((4, None), (16, None), (64, c.some)):
    for name, rule in search_testbed.strategies(num).items():
      yield Run(f"{name}.{prm}.{num}", rule, prm, problems=most)
  for num, most in ((1, None), (4, None), (16, c.some)):
    rule = mcts.MCTS(simulations=num, expand=4)
    yield Run(f"mcts.{prm}.{num}", rule, prm, problems=most)
  for num in (4, 16):
    yield Run(
      f"lookahead.{prm}.{num}",
      rules.Beam(num // 4, 4),
      prm,
      lookahead=1,
      problems=c.some,
    )
  for how in ("last", "product"):
    yield Run(f"beam_{how}.{prm}.16", rules.Beam(4, 4), prm, aggregate=how)
  rule = rules.RejectResample(0.5, 5)
  yield Run(f"reject.{prm}.1", rule, prm, repeats=4)


# --- The command ------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--output", type=pathlib.Path, default=OUTPUT)
  parser.add_argument("--workdir", type=pathlib.Path, default=WORKDIR)
  parser.add_argument("--seeds", default="0,1,2")
  parser.add_argument("--processes", type=int, default=1)
  parser.add_argument("--small", action="store_true")
  parser.add_argument("--table", action="store_true")
  args = parser.parse_args(argv)
  if args.table:
    print(search_trained_claims.table(files.read_json(args.output)))
    return
  c = search_trained_models.settings(args.small)
  details = environment.describe(c)
  outputs.check(dict(output=args.output))
  environment.check_workdir(args.workdir, details["config"])
  seeds = [int(x) for x in args.seeds.split(",")]
  start = time.perf_counter()
  tasks = [(args.workdir, s, args.small) for s in (*seeds, *FRESH_SEEDS)]
  if args.processes == 1:
    for task in tasks:
      make(*task)
  else:
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(args.processes, spawn) as pool:
      list(pool.map(make, *zip(*tasks, strict=True)))
  records, fresh = (
    {
      run.name: [_read(_path(args.workdir, seed, run)) for seed in of]
      for run in runs
    }
    for runs, of in ((all_runs(c), seeds), (fresh_runs(c), FRESH_SEEDS))
  )
  trained = {
    str(s): files.read_json(args.workdir / str(s) / "seconds.json")
    for s in (*seeds, *FRESH_SEEDS)
  }
  made = [x for row in (*records.values(), *fresh.values()) for x in row]
  result = search_trained_claims.judge(records, fresh, c.problems)
  result |= dict(
    seeds=seeds,
    seconds=dict(
      trainings=trained,
      searches=round(sum(float(x["seconds"]) for x in made)),
      this_call=round(time.perf_counter() - start),
    ),
    command=f"python {' '.join(sys.argv)}",
    versions=details["versions"],
    machine=details["machine"],
    config=details["config"],
  )
  # In one line: a number of an interval on each would be four times as large.
  with files.replacing(args.output) as f:
    f.write(files.dump_json(result, str(args.output)))
  print(search_trained_claims.table(result))


def make(workdir: pathlib.Path, seed: int, small: bool) -> None:
  """Trains a seed's models and makes its runs, unless they are there."""
  settings = search_trained_models.settings(small)
  runs, prms = all_runs(settings), search_trained_models.PRMS
  if seed in FRESH_SEEDS:
    runs, prms = fresh_runs(settings), ("few",)
  folder = workdir / str(seed)
  of_seed = search_trained_models.build(settings, folder, seed, prms)
  for run in runs:
    path = _path(workdir, seed, run)
    if path.exists():
      continue
    start = time.perf_counter()
    arrays = search_trained_runs.measure(
      run, of_seed, seed, settings.problems, settings.num_samples
    )
    seconds = np.asarray(time.perf_counter() - start)
    with files.replacing(path, "wb") as f:
      np.savez_compressed(f, seconds=seconds, **arrays)
    print(f"seed {seed}, {run.name}: {seconds:.0f} s", flush=True)


def _path(workdir: pathlib.Path, seed: int, run: Run) -> pathlib.Path:
  return workdir / str(seed) / "runs" / f"{run.name}.npz"


def _read(path: pathlib.Path) -> search_trained_runs.Arrays:
  with np.load(path) as arrays:
    return dict(arrays)


if __name__ == "__main__":
  try:
    main()
  except errors.InputError as e:
    sys.exit(f"search_trained.py: {e}")
