"""Which objective makes the better judge, at equal data and compute?

Command:  python experiments/objectives_arithmetic.py
          [--output=docs/results/objectives.json] [--seeds=0,1,2] [--table]
Hardware, time and result: see experiments/README.md.

Every objective of docs/objectives.md on the arithmetic testbed: the same base
model to start from, the same solutions, as many updates of as many tokens, one
learning rate, nothing tuned. Of each problem one solution is drawn, and three
more from one of its right prefixes, so that there are alternatives to compare.
What the output already holds is not computed again; results of another config
are refused. --table prints the means over seeds as Markdown.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import functools
import json
import pathlib
import sys
import time
from typing import Any

import jax
import ml_collections
import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax import voting
from prm_jax.demo import demo_config as demo_config
from prm_jax.demo import demo_run as demo_run
from prm_jax.demo import demo_run_config as demo_run_config
from prm_jax.evaluation import processbench_metrics
from prm_jax.evaluation import step_metrics
from prm_jax.policy import sampler as sampler_lib
from prm_jax.records import jsonl
from prm_jax.runtime import config_files
from prm_jax.runtime import environment
from prm_jax.runtime import files
from prm_jax.runtime import outputs
from prm_jax.scoring import scorer as scorer_lib
from prm_jax.testbed import arithmetic
from prm_jax.training import train_run

# Name -> program, how its step scores become one, and its objective's fields.
OBJECTIVES = dict(
  bce=("prm", "min", dict(loss="bce")),
  mse=("prm", "min", dict(loss="mse")),
  soft_bce=("prm", "min", dict(loss="bce")),
  soft_mse=("prm", "min", dict(loss="mse")),
  pqm=("prm", "min", dict(loss="pqm")),
  bradley_terry=("prm", "min", dict(loss="bradley_terry")),
  bradley_terry_solutions=(
    *("prm", "last"),
    dict(loss="bradley_terry", pairs="solutions"),
  ),
  orm=("orm", "last", dict(loss="bce", outcome_target="last_step")),
  implicit_ce=("implicit", "last", dict(loss="implicit_ce")),
  implicit_dpo=("implicit", "last", dict(loss="implicit_dpo")),
)
# Labels by rollouts instead of exact ones.
SOFT = ("soft_bce", "soft_mse")
# Drawn on validation problems, to choose every objective's threshold.
VALIDATION_PROBLEMS, VALIDATION_SAMPLES = 50, 8


def get_config() -> ml_collections.ConfigDict:
  """Returns the demo's config, smaller, with one run per objective."""
  here = pathlib.Path(__file__).parent
  c = config_files.load(here / "arithmetic.py")
  with c.unlocked():
    c.train_problems = 1_200
    c.test_problems, c.num_samples = 100, 64
    prm = c.runs.prm.to_dict()
    runs = dict(base=c.runs.base, policy=c.runs.policy)
    runs["base"].fit.steps, runs["policy"].fit.steps = 300, 150
    for name, (program, aggregate, fields) in OBJECTIVES.items():
      run = ml_collections.ConfigDict(prm)
      # Rows that hold all solutions of a problem: rivals must share one.
      run.packing.batch_size, run.packing.sequence_length = 8, 256
      run.fit.steps = run.fit.checkpoint_every = 150
      if program != run.program:
        run.program, run.objective = program, ml_collections.ConfigDict()
      elif name in SOFT:
        run.objective.labels.after_first_error = "keep"
      run.objective.update(fields)
      run.aggregate = aggregate
      runs[name] = run
    c.runs = runs
  return c


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument(
    "--output",
    type=pathlib.Path,
    default=pathlib.Path("docs/results/objectives.json"),
  )
  parser.add_argument(
    "--workdir", type=pathlib.Path, default=pathlib.Path("runs/objectives")
  )
  parser.add_argument("--seeds", default="0,1,2")
  parser.add_argument("--table", action="store_true")
  args = parser.parse_args()
  c = get_config()
  details = environment.describe(c)
  points = []
  if args.output.exists():
    saved = json.loads(args.output.read_text())
    if saved["config"] != details["config"]:
      raise errors.InputError(
        f"{args.output}: holds points of another config; give another --output"
      )
    points = saved["points"]
  if args.table:
    print(table(points))
    return
  outputs.check(dict(output=args.output))
  environment.check_workdir(args.workdir, details["config"])
  for seed in map(int, args.seeds.split(",")):
    done = {p["objective"] for p in points if p["seed"] == seed}
    todo = [name for name in OBJECTIVES if name not in done]
    if not todo:
      continue
    for point in _points_of_seed(c, args.workdir / str(seed), seed, todo):
      points.append(point)
      files.write_json(
        args.output,
        dict(
          points=points,
          command=f"python {' '.join(sys.argv)}",
          versions=details["versions"],
          machine=details["machine"],
          config=details["config"],
        ),
      )
  print(table(points))


def _points_of_seed(
  c: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  seed: int,
  todo: Sequence[str],
) -> Iterator[dict[str, Any]]:
  """Yields one objective's measures after another."""
  config = demo_run_config.from_config(c, seed)
  inputs = demo_run.draw_inputs(config, seed)
  phase = demo_run.Phases(workdir / "seconds.json")
  base, policy = demo_run.train_policy(config, inputs, workdir, phase)
  key = functools.partial(jax.random.fold_in, jax.random.key(seed))
  exact = _kept(
    workdir / "solutions.jsonl",
    lambda: trees(config, policy, inputs.train, key(1), seed),
  )
  soft = _kept(
    workdir / "solutions_mc.jsonl",
    lambda: demo_run.monte_carlo_labels(config, policy, exact, key(2)),
  )
  rows = demo_run.test_samples(config, policy, inputs.test, key(3))
  held_out = demo_run.sample(
    config,
    policy,
    arithmetic.problems(
      VALIDATION_PROBLEMS,
      "validation",
      task=config.task,
      random=np.random.default_rng([seed, 1]),
    ),
    VALIDATION_SAMPLES,
    config.temperature,
    key(4),
  )
  for name in todo:
    start = time.perf_counter()
    run = config.runs[name]
    train_run.train(
      run,
      soft if name in SOFT else exact,
      inputs.tokenizer,
      workdir / name,
      init_from=base,
    )
    train_s = time.perf_counter() - start
    scorer = scorer_lib.load(workdir / name)
    point = dict(
      seed=seed,
      objective=name,
      solutions=len(exact),
      train_s=round(train_s, 1),
      **measure(scorer, rows, held_out, run.aggregate),
    )
    if "step_score" in scorer.scoring:
      increments = dict(scorer.scoring) | dict(step_score="increment")
      by_steps = dataclasses.replace(scorer, scoring=increments)
      point["by_increment"] = measure(by_steps, rows, held_out, "min")
    print(f"{seed} {name}: AUROC {point['step_auroc']:.4f}", flush=True)
    yield point


def _kept(
  path: pathlib.Path, make: Callable[[], Sequence[schema.Solution]]
) -> Sequence[schema.Solution]:
  """Returns the solutions in a file, which is made first if it isn't there."""
  if not path.exists():
    jsonl.write_solutions(path, make())
  return jsonl.read_solutions(path)


def trees(
  config: demo_config.DemoConfig,
  policy: sampler_lib.Sampler,
  problems: Sequence[schema.Problem],
  key: jax.Array,
  seed: int,
) -> list[schema.Solution]:
  """Returns judged solutions: of each problem one, and branches from it.

  The others continue from a prefix of the first before its first error, so that
  some step has alternatives. Half of the problems are sampled hot.
  """
  random = np.random.default_rng([seed, 0])
  solutions: list[schema.Solution] = []
  for k, temperature in enumerate(config.train_temperatures):
    part = problems[k :: len(config.train_temperatures)]
    key_k = functools.partial(jax.random.fold_in, jax.random.fold_in(key, k))
    firsts = [
      row[0]
      for row in demo_run.sample(config, policy, part, 1, temperature, key_k(0))
    ]
    starts = []
    for s in firsts:
      error = schema.first_error(s.labels or ())
      most = error if error >= 0 else max(len(s.steps) - 1, 0)
      cut = int(random.integers(most + 1))
      starts.append(
        schema.Solution(s.id.rpartition("/")[0], s.problem, s.steps[:cut])
      )
    sampling = config.sampling(temperature)
    branches = policy.generate(
      starts, config.train_samples - 1, sampling, key_k(1)
    )
    for first, row in zip(firsts, branches, strict=True):
      solutions += [
        dataclasses.replace(arithmetic.judge(s), id=f"{first.id}/{i}")
        for i, s in enumerate([first, *row])
      ]
  distinct = {(s.problem, *s.steps): s for s in solutions if s.steps}
  print(
    f"    {len(solutions):,} samples, {len(distinct):,} distinct", flush=True
  )
  return list(distinct.values())


def measure(
  scorer: scorer_lib.Scorer,
  rows: Sequence[Sequence[schema.Solution]],
  held_out: Sequence[Sequence[schema.Solution]],
  aggregate: str,
) -> dict[str, Any]:
  """Returns step AUROC, first-error accuracy and best-of-N of the samples."""
  samples = [s for row in rows for s in row]
  tuning = [s for row in held_out for s in row if s.steps]
  scores = [scorer.score(solutions) for solutions in (samples, tuning)]
  return measure_scores(*scores, rows, tuning, aggregate)


def measure_scores(
  step_scores: Sequence[schema.StepScores],
  tuning_scores: Sequence[schema.StepScores],
  rows: Sequence[Sequence[schema.Solution]],
  tuning: Sequence[schema.Solution],
  aggregate: str,
) -> dict[str, Any]:
  """Returns the same, of the scores of all samples and of those to tune on."""
  samples = [s for row in rows for s in row]
  threshold = processbench_metrics.tune_threshold(
    [x.scores for x in tuning_scores], truth(tuning)
  )
  located = processbench_metrics.evaluate(
    [x.scores for x, s in zip(step_scores, samples) if s.steps],
    truth([s for s in samples if s.steps]),
    threshold=threshold,
    num_resamples=200,
  )
  problems = [i for i, row in enumerate(rows) for _ in row]
  steps = step_metrics.evaluate(
    [x.scores for x in step_scores],
    [s.labels or () for s in samples],
    problems=problems,
    num_resamples=200,
  )
  shape = len(rows), len(rows[0])
  correct = np.array([s.outcome for s in samples]).reshape(shape)
  ns = [2**k for k in range(shape[1].bit_length())]
  best = {}
  for how in ("min", "last", "product"):
    ranking = np.array(voting.ranking_scores(step_scores, how))
    curve = voting.best_of_n(ranking.reshape(shape), correct, ns)
    best[how] = [float(x) for x in curve.mean(0)]
  num = located["num_err"] + located["num_cor"]
  hits = (
    located["acc_err"] * located["num_err"]
    + located["acc_cor"] * located["num_cor"]
  )
  return dict(
    aggregate=aggregate,
    n=ns,
    best_of_n=best,
    step_auroc=steps["auroc"],
    first_error_accuracy=hits / num,
    first_error_f1=located["f1"],
    threshold=threshold,
    policy_accuracy=float(correct.mean()),
    majority=float(
      voting.vote_accuracy(
        [[s.answer for s in row] for row in rows], correct, None, ns[-1:]
      ).mean()
    ),
  )


def truth(solutions: Sequence[schema.Solution]) -> list[int]:
  return [schema.first_error(s.labels or ()) for s in solutions]


def table(points: Sequence[Mapping[str, Any]]) -> str:
  """Returns the means over seeds, and their range, as a Markdown table."""
  lines = [
    "| objective | step AUROC | first-error accuracy, % | best of 64, % |"
    " seeds |",
    "|---|---|---|---|---|",
  ]
  for name in OBJECTIVES:
    own = [p for p in points if p["objective"] == name]
    lines += _line(name, own)
    inner = [p["by_increment"] for p in own if "by_increment" in p]
    lines += _line(f"{name}, by increments", inner)
  if points:
    votes = {p["seed"]: p["majority"] for p in points}
    lines.append(
      f"| majority vote | | | {_mean(list(votes.values()), 100, 1)} |"
      f" {len(votes)} |"
    )
  return "\n".join(lines)


def _line(name: str, points: Sequence[Mapping[str, Any]]) -> list[str]:
  if not points:
    return []
  how = points[0]["aggregate"]
  cells = (
    _mean([p["step_auroc"] for p in points], 1, 3),
    _mean([p["first_error_accuracy"] for p in points], 100, 1),
    _mean([p["best_of_n"][how][-1] for p in points], 100, 1) + f" ({how})",
  )
  return [f"| {name} | {' | '.join(cells)} | {len(points)} |"]


def _mean(values: Sequence[float], scale: float, digits: int) -> str:
  low, middle, high = (
    f"{scale * x:.{digits}f}"
    for x in (min(values), np.mean(values), max(values))
  )
  return f"{middle} [{low}, {high}]"


if __name__ == "__main__":
  try:
    main()
  except errors.InputError as e:
    sys.exit(f"objectives_arithmetic.py: {e}")
