"""Does the demo's PRM keep its best of N if it has seen more kinds of error?

Command:  python experiments/demo_kinds.py
          [--output=docs/results/demo_kinds.json] [--seeds=0,1,2]
          [--demos=runs/demo_seeds] [--workdir=runs/demo_kinds] [--table]
Hardware, time and result: see experiments/README.md.

A second PRM for each demo of demo_seeds.py: from the same base and policy, with
as many updates, on as many samples of the same problems, but a quarter of them
drawn at temperature 2 instead of 1, so that rare errors are less rare. Both
score the demo's test samples. What the output already holds is not computed
again. --table prints Markdown.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import pathlib
from typing import Any

import demo_seeds
import jax
import labelling_testbed as testbed
import numpy as np

from prm_jax import schema
from prm_jax import voting
from prm_jax.demo import default_config
from prm_jax.demo import demo_config as demo_config
from prm_jax.demo import demo_run as demo_run
from prm_jax.demo import demo_run_config as demo_run_config
from prm_jax.policy import sampler as sampler_lib
from prm_jax.records import jsonl
from prm_jax.runtime import environment
from prm_jax.runtime import files
from prm_jax.runtime import outputs
from prm_jax.scoring import scorer as scorer_lib
from prm_jax.testbed import arithmetic
from prm_jax.training import train_run

OUTPUT = pathlib.Path("docs/results/demo_kinds.json")
WORKDIR = pathlib.Path("runs/demo_kinds")
DEMOS = pathlib.Path("runs/demo_seeds")
# One sample of each problem at each; the demo has two at 1 and two at 1.4.
TEMPERATURES = (1.0, 1.4, 1.4, 2.0)
NS = (16, 64, 256)
SEEDS = "0,1,2"


def train(
  config: demo_config.DemoConfig,
  seed: int,
  demo: pathlib.Path,
  workdir: pathlib.Path,
) -> scorer_lib.Scorer:
  """Returns the PRM of more kinds of error."""
  inputs = demo_run.draw_inputs(config, seed)
  phase = demo_run.Phases(workdir / "seconds.json")
  workdir.mkdir(parents=True, exist_ok=True)
  policy = sampler_lib.load(demo / "policy")
  base, _ = demo_run.train_policy(config, inputs, demo, phase)
  solutions = demo_run.training_solutions(
    dataclasses.replace(config, train_temperatures=TEMPERATURES),
    policy,
    inputs.train,
    jax.random.fold_in(jax.random.key(seed), 1),
  )
  jsonl.write_solutions(workdir / "solutions.jsonl", solutions)
  run = config.runs["prm"]
  model, params = train_run.train(
    run, solutions, inputs.tokenizer, workdir / "prm", init_from=base
  )
  return scorer_lib.Scorer(
    *(run.program, model, params, inputs.tokenizer, run.encoding),
    judged=run.objective.judged,
  )


def measure(
  samples: Sequence[schema.Solution], scores: Sequence[schema.StepScores]
) -> dict[str, list[float]]:
  """Returns best of N and the weighted vote among N, of a demo's samples."""
  num_problems = len({s.problem for s in samples})
  shape = num_problems, len(samples) // num_problems
  right = np.array([bool(s.outcome) for s in samples]).reshape(shape)
  answers = np.array([s.answer for s in samples], object).reshape(shape)
  ranking = np.array(voting.ranking_scores(scores, "min")).reshape(shape)
  weights = np.array([min(x.scores) for x in scores]).reshape(shape)
  votes = voting.vote_accuracy(answers.tolist(), right, weights, NS)
  best = voting.best_of_n(ranking, right, NS)
  return dict(
    best_of_n=[round(float(x), 5) for x in best.mean(0)],
    weighted=[round(float(x), 5) for x in votes.mean(0)],
  )


def point(
  config: demo_config.DemoConfig,
  seed: int,
  demo: pathlib.Path,
  workdir: pathlib.Path,
) -> dict[str, Any]:
  """Returns what both PRMs of a seed come to on the demo's samples."""
  samples, own = [], []
  for _, record in files.read_records(demo / "samples.jsonl"):
    samples.append(
      arithmetic.judge(
        schema.Solution(record["id"], record["problem"], tuple(record["steps"]))
      )
    )
    own.append(
      schema.StepScores(
        tuple(record["step_scores"]["prm"]),
        tuple(record["step_logits"]["prm"]),
      )
    )
  scores = train(config, seed, demo, workdir).score(samples)
  called_right = demo_seeds.CALLED_RIGHT
  missed = {
    name: sum(
      min(x.scores) >= called_right and schema.first_error(s.labels or ()) >= 0
      for s, x in zip(samples, of_model, strict=True)
    )
    for name, of_model in (("demo", own), ("kinds", scores))
  }
  return dict(
    seed=seed,
    n=list(NS),
    demo=measure(samples, own) | dict(missed=missed["demo"]),
    kinds=measure(samples, scores) | dict(missed=missed["kinds"]),
  )


def table(points: Sequence[Mapping[str, Any]]) -> str:
  """Returns both PRMs' curves and misses over seeds, as Markdown."""
  rows = [
    (
      "PRM",
      *(f"best of {n}, %" for n in NS),
      "change from 64 to 256, points",
      *(f"weighted vote among {n}, %" for n in NS),
      "wrong samples called right",
      "seeds",
    )
  ]
  for key, name in (("demo", "the demo's"), ("kinds", "more kinds of error")):
    own = [p[key] for p in points]
    curves = np.array([p["best_of_n"] for p in own])
    votes = np.array([p["weighted"] for p in own])
    rows.append(
      (
        name,
        *(testbed.mean(x, 100) for x in curves.T),
        testbed.mean(curves[:, -1] - curves[:, -2], 100),
        *(testbed.mean(x, 100) for x in votes.T),
        testbed.mean([p["missed"] for p in own], digits=0),
        str(len(own)),
      )
    )
  return testbed.markdown(rows)


@testbed.exit_on_input_error()
def main() -> None:
  parser = testbed.parser_of(__doc__.splitlines()[0], OUTPUT, WORKDIR, SEEDS)
  parser.add_argument("--demos", type=pathlib.Path, default=DEMOS)
  args = parser.parse_args()
  if args.table:
    print(table(files.read_json(args.output)["points"]))
    return
  outputs.check(dict(output=args.output))
  c = default_config.get_config()
  details = environment.describe(c)
  points = list(testbed.read_points(args.output, details["config"]))
  done = {p["seed"] for p in points}
  for seed in testbed.numbers(args.seeds):
    if seed in done:
      continue
    name = str(seed)
    config = demo_run_config.from_config(c, seed)
    points.append(point(config, seed, args.demos / name, args.workdir / name))
    details["command"] = testbed.command_of(points, (), args, parser)
    files.write_json(args.output, dict(points=points, **details))
  print(table(points))


if __name__ == "__main__":
  main()
