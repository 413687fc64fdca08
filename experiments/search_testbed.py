"""When does search help, and which? Twelve claims, on exact step truth.

Command:  python experiments/search_testbed.py
          [--output=docs/results/search_testbed.json] [--seeds=0,1,2,3,4]
          [--workdir=runs/search_testbed] [--processes=2] [--small] [--table]
Hardware, time and result: see experiments/README.md and docs/search_evidence.md.

The policy is the testbed's annotator, which slips; the PRM is the exact step
verifier with normal noise in its log-odds. Every search is one of
prm_jax.search, with its bill. A seed has problems, an annotator and a verifier
of its own. What --workdir already holds isn't run again. --small is a test of
the path whose numbers mean nothing. --table prints the verdicts as Markdown.

How it is measured
- Noise: gap 4 between right and wrong, deviation 2.5 ("good", step AUROC .87)
  and 5 ("poor", .71), drawn anew for each step; with persistence .8 for a few.
- Searches aggregate by `last`. An answer is chosen by weighted vote unless a
  rule says "best"; the JSON has best, weighted and majority of each.
- Best-of-N, weighted best-of-N and majority at every N come from the first 256
  of 320 independent samples of a problem; the last 64 give its difficulty
  (pass@1), by which all problems of all seeds are cut into fifths.
- At equal cost: a curve's values of each problem are interpolated linearly in
  the logarithm of the mean cost; beyond its ends the end counts.
- Cost is sampled tokens, or FLOPs: 2 for each parameter and token that is
  sampled, or read for the first time (a cache of all prefixes). `big`: policy
  1.5e9 and PRM 7e9 parameters; `equal`: 1.5e9 both; `uncached`: as big, and each
  call reads its whole prefix. Attention's products don't count: no solution
  has 100 tokens.
- Intervals: differences are taken problem by problem. Problems are drawn again
  2,000 times within each seed; each time the mean over all problems drawn. The
  interval is from the 2.5th to the 97.5th percentile. A difference is "seen"
  if this interval excludes 0. The mean of each seed is next to it.

How the claims are judged; written before any result, on no problem that counts
(sizes and noise were chosen on seed 100). confirmed: the claim's part is seen;
refuted: the contrary is seen; else "not seen". Verdicts are for each noise.
 1 a  beam > weighted best-of-N at equal tokens: at N = 4 on all problems.
   b  ... at N = 16 on the two hardest fifths.
   c  beam < weighted best-of-N at equal tokens: at the largest N on all
      problems. d  ... at N = 64 on the two easiest fifths.
 2 Lookahead (beam) is the worst at equal FLOPs (big): below the curve of each
   of beam, DVTS, REBASE and particle filter, at every N. Refuted if it is above
   or not seen below one of them at every N.
 3 DVTS > beam at the largest N (256, poor PRM; 64 else).
 4 REBASE >= weighted best-of-N at equal tokens: confirmed if seen above at one
   N and below at none; refuted if seen below at one N.
 5 Particle filter > beam with a noisy PRM: poor and worst PRM, at N = 16.
   Confirmed or refuted if seen for either and not the contrary for the other.
 6 The useful beam width: k x k beams, k in WIDTHS; the turning width is that of
   the highest accuracy of all steps (best). A turn is seen if the largest width
   is seen below it. Confirmed if a turn is seen at 3 or more noise levels and
   the slope of ln k on (gap / noise)^2 is above 0, its interval (turning widths
   found anew in each resample) holding 1/4: pool k^2 ~ exp(gap^2 / (2 noise^2)),
   arXiv 2603.15377 by its abstract and notes of others. Refuted if its interval
   excludes 0 from above, or if at the noisiest level the largest width is seen
   above width 2, where the formula has less than 2. Else not seen.
 7 The best strategy of each fifth (chosen on the other half of the problems)
   saves budget against the best single one (chosen likewise), at N = 16: the
   tokens at which the single one's curve has the same accuracy, divided by
   those of N = 16. Confirmed if 2 or more and the gain is seen; refuted if the
   gain's interval is below 1 point and the factor is below 2.
 8 RSD has the target's accuracy (no less than 1 point below) with fewer FLOPs
   than the target alone, PRM counted (1.5e9; 7e9 next to it), at some threshold.
 9 Reject and resample > plain sampling, and > weighted best-of-N at equal
   tokens, at threshold .5.
 10 Adaptive best-of-N, fitted on other problems: at most 1 point below best of
   64 (mean) with at most 65 % of the samples; for confidence .9 or .99.
 11 Chunk-level contrastive likelihood: not built, so not run.
 12 Search exploits a PRM: with a scorer that likes a word, and with one that is
   blind to systematic slips, the score of the chosen answer (best) is higher at
   the largest N than at 4 and the share with all steps right is seen lower; for
   best-of-N up to 256 and for beam up to 64.

Added after the results, and part of no verdict: the differences of strategies
with persistent noise at N = 16, the same at N = 64, and the particle filter at
the temperature that fits the noise. They suggested two claims, which were then
tested on five fresh seeds, 100 problems each, with a poor PRM of persistent
noise: 3', DVTS > beam at N = 64; 5', particle filter > beam at N = 16.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
import concurrent.futures
import math
import multiprocessing
import pathlib
import sys
import time
from typing import Any

import ml_collections
import numpy as np
import search_claims
import search_results
import search_runs

from prm_jax import errors
from prm_jax.runtime import environment
from prm_jax.runtime import files
from prm_jax.runtime import outputs
from prm_jax.search import adaptive
from prm_jax.search import particles
from prm_jax.search import rules
from prm_jax.testbed import arithmetic

OUTPUT = pathlib.Path("docs/results/search_testbed.json")
WORKDIR = pathlib.Path("runs/search_testbed")
Run = search_runs.Run
NOISES = dict(good=search_runs.GOOD, poor=search_runs.POOR)


def settings(small: bool = False) -> ml_collections.ConfigDict:
  """Returns the task and the sizes.

  problems, some, few: of a seed, those searched at N <= 16, at N = 64, and at
  N = 256 or by width.
  """
  c = ml_collections.ConfigDict()
  c.task = dict(
    min_turns=6,
    max_turns=10,
    slip_times_hard=0.75,
    slip_times_easy=0.35,
    slip_shift=0.2,
  )
  c.gap = 4.0
  c.target_slips = 0.4
  c.problems, c.some, c.few = (12, 6, 3) if small else (100, 40, 20)
  return c


def all_runs(c: ml_collections.ConfigDict) -> list[Run]:
  """Returns the runs of a seed, in the order in which they are made."""
  return [
    Run("samples", None),
    *_strategies(c),
    *_one_path(),
    *_hacks(c),
    *_widths(c),
    *_afterwards(c),
  ]


def strategies(num: int) -> dict[str, object]:
  """Returns the strategies that sample about as much as best of num."""
  return dict(
    beam=rules.Beam(num // 4, 4),
    dvts=rules.DiverseTrees(num // 4, 4),
    rebase=rules.Rebase(num),
    particles=particles.ParticleFilter(num),
  )


def _strategies(c) -> Iterator[Run]:
  for prm, noise in NOISES.items():
    for num, most in ((4, None), (16, None), (64, c.some)):
      for name, rule in strategies(num).items():
        yield Run(f"{name}.{prm}.{num}", rule, noise, problems=most)
    for num, ahead in ((4, 1), (16, 1), (4, 3)):
      yield Run(
        f"lookahead{ahead}.{prm}.{num}",
        rules.Beam(num // 4, 4),
        noise,
        lookahead=ahead,
        problems=c.some,
      )
    yield Run(
      f"beam_product.{prm}.16",
      rules.Beam(4, 4),
      noise,
      aggregate="product",
      problems=c.some,
    )
    for name, rule in strategies(16).items():
      yield Run(
        f"{name}.{prm}_persistent.16",
        rule,
        noise,
        search_runs.PERSISTENCE,
        problems=c.some,
      )
  for name in ("beam", "particles"):
    rule = strategies(16)[name]
    yield Run(f"{name}.worst.16", rule, search_runs.WORST)
  for name in ("beam", "dvts"):
    rule = strategies(256)[name]
    yield Run(f"{name}.poor.256", rule, search_runs.POOR, problems=c.few)


DELTAS = (0.0, 0.3, 0.5, 0.7, 0.9, 1.0)
THRESHOLDS = (0.3, 0.5, 0.7, 0.9)
CONFIDENCES = (0.9, 0.99)


def _one_path() -> Iterator[Run]:
  yield Run("target", rules.BestOfN(1), writer="target", repeats=2)
  for prm, noise in NOISES.items():
    for delta in DELTAS:
      rule = rules.Speculate(delta)
      name = f"rsd{delta:g}.{prm}"
      yield Run(name, rule, noise, writer="speculate", repeats=2)
    for least in THRESHOLDS:
      rule = rules.RejectResample(least, 5)
      yield Run(f"reject{least:g}.{prm}", rule, noise, repeats=2)
    for confidence in CONFIDENCES:
      rule = adaptive.AdaptiveBestOfN(4, 64)
      name = f"adaptive{confidence:g}.{prm}"
      yield Run(name, rule, noise, confidence=confidence)


def _hacks(c) -> Iterator[Run]:
  for name in ("word", "blind"):
    for num, most in ((4, c.some), (16, c.some), (64, c.few)):
      rule = rules.Beam(num // 4, 4)
      yield Run(f"beam.{name}.{num}", rule, scorer=name, problems=most)


WIDTHS = (1, 2, 3, 4, 6, 8)
# (gap / noise)^2.
RATIOS = (9.0, 6.0, 4.0, 2.5, 1.5, 0.75)


def _widths(c) -> Iterator[Run]:
  for persistence, ratios in ((0.0, RATIOS), (0.8, RATIOS[1::2])):
    for ratio in ratios:
      for width in WIDTHS:
        yield Run(
          f"width{width}.{ratio:g}.{persistence:g}",
          rules.Beam(width, width),
          c.gap / math.sqrt(ratio),
          persistence,
          problems=c.few,
        )


def _afterwards(c) -> Iterator[Run]:
  """Yields what was added after the results, and is part of no verdict.

  Persistent noise at N = 64, and particle filters at a fitting temperature: the log-odds of a step differ by gap between right and wrong, and what they
  tell by gap^2 / noise^2: weights are right at the temperature noise^2 / gap.
  """
  for prm, noise in (NOISES | dict(worst=search_runs.WORST)).items():
    rule = particles.ParticleFilter(16, softmax_temperature=noise**2 / c.gap)
    yield Run(f"calibrated.{prm}.16", rule, noise)
  for name, rule in strategies(64).items():
    yield Run(
      f"{name}.poor_persistent.64",
      rule,
      search_runs.POOR,
      search_runs.PERSISTENCE,
      problems=c.some,
    )


FRESH_SEEDS = (5, 6, 7, 8, 9)


def fresh_runs() -> list[Run]:
  """Returns the runs of the two claims that the results suggested."""
  pairs = (("beam", 16), ("particles", 16), ("beam", 64), ("dvts", 64))
  return [
    Run(
      f"{name}.fresh.{num}",
      strategies(num)[name],
      search_runs.POOR,
      search_runs.PERSISTENCE,
    )
    for name, num in pairs
  ]


# --- The command ------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--output", type=pathlib.Path, default=OUTPUT)
  parser.add_argument("--workdir", type=pathlib.Path, default=WORKDIR)
  parser.add_argument("--seeds", default="0,1,2,3,4")
  parser.add_argument("--processes", type=int, default=2)
  parser.add_argument("--small", action="store_true")
  parser.add_argument("--table", action="store_true")
  args = parser.parse_args(argv)
  if args.table:
    print(search_results.table(files.read_json(args.output)))
    return
  c = settings(args.small)
  details = environment.describe(c)
  outputs.check(dict(output=args.output))
  _claim(args.workdir, details["config"])
  seeds = [int(x) for x in args.seeds.split(",")]
  start = time.perf_counter()
  records, seconds = {}, {}
  for runs, of in ((all_runs(c), seeds), (fresh_runs(), FRESH_SEEDS)):
    seconds |= run_all(c, runs, args.workdir, of, args.processes)
    for run in runs:
      paths = [_path(args.workdir, seed, run) for seed in of]
      records[run.name] = [_read(path) for path in paths]
  result = search_claims.judge(records, c)
  result |= dict(
    seeds=seeds,
    seconds=dict(
      runs=round(sum(seconds.values())),
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
  for prm in NOISES:
    path = args.output.with_name(f"{args.output.stem}_{prm}.svg")
    with files.replacing(path, "wb") as f:
      f.write(search_results.picture(result, prm))
  print(search_results.table(result))


def _claim(workdir: pathlib.Path, config: Mapping[str, Any]) -> None:
  """Makes a workdir for a config, or refuses one of another config."""
  path = workdir / "config.json"
  if not path.exists():
    files.write_json(path, config)
  elif files.read_json(path) != config:
    raise errors.InputError(
      f"{workdir}: holds runs of another config; give another --workdir"
    )


def run_all(
  c: ml_collections.ConfigDict,
  runs: Sequence[Run],
  workdir: pathlib.Path,
  seeds: Sequence[int],
  processes: int,
) -> dict[str, float]:
  """Makes all runs that aren't made; returns the seconds of each made ever."""
  todo = [
    (run, seed, c.to_dict(), _path(workdir, seed, run))
    for run in runs
    for seed in seeds
  ]
  missing = [task for task in todo if not task[-1].exists()]
  if processes == 1:
    for task in missing:
      _make(task)
  elif missing:
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, spawn) as pool:
      for n, _ in enumerate(pool.map(_make, missing)):
        print(f"{n + 1} of {len(missing)}: {missing[n][-1].stem}", flush=True)
  return {str(p): float(_read(p)["seconds"]) for *_, p in todo}


def _path(workdir: pathlib.Path, seed: int, run: Run) -> pathlib.Path:
  return workdir / f"{seed}-{run.name}.npz"


def _make(task) -> None:
  run, seed, c, path = task
  start = time.perf_counter()
  arrays = search_runs.measure(
    run,
    arithmetic.Task(**c["task"]),
    seed,
    c["problems"],
    c["gap"],
    c["target_slips"],
  )
  seconds = np.asarray(time.perf_counter() - start)
  with files.replacing(path, "wb") as f:
    np.savez_compressed(f, seconds=seconds, **arrays)


def _read(path: pathlib.Path) -> search_runs.Arrays:
  with np.load(path) as arrays:
    return dict(arrays)


if __name__ == "__main__":
  try:
    main()
  except errors.InputError as e:
    sys.exit(f"search_testbed.py: {e}")
