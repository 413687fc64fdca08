"""What does a PRM lose or gain by learning the steps after a first error?

Command:  python experiments/after_first_error.py
          [--output=docs/results/after_first_error.json] [--seeds=0,1,2]
          [--table]
Hardware, time and result: see experiments/README.md.

Two PRMs of each seed start from the same base and learn the same solutions with
the same compute. They differ in objective.labels.after_first_error: `ignore`
has no target after the first wrong step, `bad` has 0 there. The sizes are
smaller than the demo's, so that three seeds take minutes. Seeds that the output
already holds are not run again.
"""

import argparse
from collections.abc import Mapping, Sequence
import dataclasses
import functools
import json
import pathlib
import sys
from typing import Any

import jax
import ml_collections
import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax import voting
from prm_jax.demo import demo_run as demo_run
from prm_jax.demo import demo_run_config as demo_run_config
from prm_jax.evaluation import step_metrics
from prm_jax.runtime import config_files
from prm_jax.runtime import environment
from prm_jax.runtime import files
from prm_jax.scoring import scorer
from prm_jax.training import train_run

WAYS = ("ignore", "bad")


def get_config() -> ml_collections.ConfigDict:
  """Returns the demo's config at smaller sizes."""
  here = pathlib.Path(__file__).parent
  c = config_files.load(here / "arithmetic.py")
  with c.unlocked():
    c.base_problems = 10_000
    c.train_problems = 800
    c.test_problems = 100
    c.num_samples = 16
    c.runs.base.fit.steps = 250
    c.runs.policy.fit.steps = 120
    c.runs.prm.fit.steps = 250
  return c


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument(
    "--output",
    type=pathlib.Path,
    default=pathlib.Path("docs/results/after_first_error.json"),
  )
  parser.add_argument(
    "--workdir", type=pathlib.Path, default="runs/after_first_error"
  )
  parser.add_argument("--seeds", default="0,1,2")
  parser.add_argument("--table", action="store_true", help="print, run nothing")
  args = parser.parse_args()
  if args.table:
    print(table(files.read_json(args.output)["points"]))
    return
  c = get_config()
  details = environment.describe(c)
  environment.check_output(args.output)
  environment.check_workdir(args.workdir, details["config"])
  points = []
  if args.output.exists():
    saved = files.read_json(args.output)
    if saved["config"] != details["config"]:
      raise errors.InputError(
        f"{args.output}: holds points of another config; give another --output"
      )
    points = saved["points"]
  for seed in map(int, args.seeds.split(",")):
    if any(p["seed"] == seed for p in points):
      continue
    points += points_of_seed(c, args.workdir / str(seed), seed)
    result = dict(
      points=points,
      command=f"python {' '.join(sys.argv)}",
      versions=details["versions"],
      machine=details["machine"],
      config=details["config"],
    )
    files.write_json(args.output, result)
  print(table(points))


def points_of_seed(
  c: ml_collections.ConfigDict, workdir: pathlib.Path, seed: int
) -> list[dict[str, Any]]:
  """Returns the measures of one seed's PRMs, one for each of WAYS."""
  config = demo_run_config.from_config(c, seed)
  inputs = demo_run.draw_inputs(config, seed)
  workdir.mkdir(parents=True, exist_ok=True)
  phase = demo_run.Phases(workdir / "seconds.json")
  base, policy = demo_run.train_policy(config, inputs, workdir, phase)
  key = functools.partial(jax.random.fold_in, jax.random.key(seed))
  solutions = demo_run.training_solutions(config, policy, inputs.train, key(1))
  rows = demo_run.test_samples(config, policy, inputs.test, key(3))
  points = []
  for way in WAYS:
    run = config.runs["prm"]
    labels = dataclasses.replace(run.objective.labels, after_first_error=way)
    objective = dataclasses.replace(run.objective, labels=labels)
    run = dataclasses.replace(run, objective=objective)
    with phase(way, resumes=True):
      model, params = train_run.train(
        run, solutions, inputs.tokenizer, workdir / way, init_from=base
      )
    prm = scorer.Scorer(
      *(run.program, model, params, inputs.tokenizer, run.encoding),
      judged=run.objective.judged,
    )
    scores = prm.score([s for row in rows for s in row])
    points.append(
      dict(
        seed=seed,
        after_first_error=way,
        train_solutions=len(solutions),
        **measure(scores, rows),
      )
    )
    print(json.dumps(points[-1]), flush=True)
  return points


def measure(
  scores: Sequence[schema.StepScores],
  rows: Sequence[Sequence[schema.Solution]],
) -> dict[str, Any]:
  """Returns best-of-N by each aggregate, and what the step scores are like.

  Args:
    scores: The step scores of all samples, in the order of the rows.
    rows: The samples of each problem, with exact labels.
  """
  samples = [s for row in rows for s in row]
  shape = len(rows), len(rows[0])
  right = np.array([bool(s.outcome) for s in samples]).reshape(shape)
  best = {}
  for how in voting.AGGREGATES:
    ranking = np.array(voting.ranking_scores(scores, how)).reshape(shape)
    (accuracy,) = voting.best_of_n(ranking, right, [shape[1]]).mean(0)
    best[how] = float(accuracy)
  steps = step_metrics.evaluate(
    [x.scores for x in scores],
    [s.labels or () for s in samples],
    judged=[x.judged for x in scores],
    problems=[i for i, row in enumerate(rows) for _ in row],
    num_resamples=0,
  )
  # The steps after a first wrong one, none of which is correct so far.
  later = [
    score
    for x, s in zip(scores, samples, strict=True)
    for i, score in enumerate(x.scores)
    if 0 <= schema.first_error(s.labels or ()) < i
  ]
  return dict(
    n=shape[1],
    test_problems=shape[0],
    policy_accuracy=float(right.mean()),
    best_of_n=best,
    step_auroc=steps["auroc"],
    step_ece=steps["ece"],
    first_error_exact=steps["first_error_exact"],
    no_false_alarm=steps["first_error_none"],
    steps_after_error=len(later),
    above_half_after_error=float(np.mean(np.array(later) >= 0.5)),
    mean_score_after_error=float(np.mean(later)),
  )


def table(points: Sequence[Mapping[str, Any]]) -> str:
  """Returns means over seeds and their range, a row for each of WAYS."""
  columns = {
    **{
      f"best of {points[0]['n']} by {how}, %": (
        lambda p, how=how: 100 * p["best_of_n"][how]
      )
      for how in voting.AGGREGATES
    },
    "first error found, %": lambda p: 100 * p["first_error_exact"],
    "no false alarm, %": lambda p: 100 * p["no_false_alarm"],
    "steps after an error scored 0.5 or more, %": lambda p: (
      100 * p["above_half_after_error"]
    ),
    "step AUROC": lambda p: p["step_auroc"],
  }
  lines = [
    "| after_first_error | " + " | ".join(columns) + " | seeds |",
    "|---" * (len(columns) + 2) + "|",
  ]
  for way in WAYS:
    of_way = [p for p in points if p["after_first_error"] == way]
    cells = []
    for name, value in columns.items():
      values = [value(p) for p in of_way]
      digits = 1 if "%" in name else 4
      mean, low, high = (f"{f(values):.{digits}f}" for f in (np.mean, min, max))
      cells.append(f"{mean} [{low}, {high}]")
    lines.append(f"| `{way}` | {' | '.join(cells)} | {len(of_way)} |")
  return "\n".join(lines)


if __name__ == "__main__":
  try:
    main()
  except errors.InputError as e:
    sys.exit(f"after_first_error.py: {e}")
