"""Where does the gap between PRM and ORM close?

Command:  python experiments/arithmetic_sweep.py
          [--output=docs/results/arithmetic_sweep.json] [--seeds=0,1,2]
Hardware, time and result: see experiments/README.md.

The demo's comparison over the number of labelled solutions, for training
samples at the test temperature alone and at mixed temperatures. Each point
trains a PRM and an ORM from the same base, on the same solutions, with the
same compute. Points that the output already holds are not computed again.
"""

import argparse
import dataclasses
import functools
import json
import pathlib
import sys

import jax
import ml_collections

from prm_jax import configs
from prm_jax import demo
from prm_jax import environment
from prm_jax import schema
from prm_jax import scorer
from prm_jax.train import experiment

SIZES = (400, 1_600, 6_400, 25_600)
MODELS = ("prm", "orm")


def get_config() -> ml_collections.ConfigDict:
  """Returns the demo's config with training problems enough for all sizes."""
  here = pathlib.Path(__file__).parent
  c = configs.load(here / "arithmetic.py")
  with c.unlocked():
    c.train_problems = 4_400
    c.test_problems = 100
    c.num_samples = 256
  return c


def mixtures(c: ml_collections.ConfigDict) -> dict[str, tuple[float, ...]]:
  """Returns the temperatures of the training samples, by name."""
  return dict(pure=(c.test_temperature,), mixed=tuple(c.train_temperatures))


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument(
    "--output",
    type=pathlib.Path,
    default=pathlib.Path("docs/results/arithmetic_sweep.json"),
  )
  parser.add_argument("--workdir", type=pathlib.Path, default="runs/sweep")
  parser.add_argument("--seeds", default="0,1,2")
  parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
  args = parser.parse_args()
  c = get_config()
  details = environment.describe(c)
  points = []
  if args.output.exists():
    points = json.loads(args.output.read_text())["points"]
  done = {(p["seed"], p["mixture"], p["solutions"]) for p in points}
  sizes = [int(x) for x in args.sizes.split(",")]
  for seed in map(int, args.seeds.split(",")):
    todo = [
      (m, n) for m in mixtures(c) for n in sizes if (seed, m, n) not in done
    ]
    if not todo:
      continue
    for point in _points_of_seed(c, args.workdir / str(seed), seed, todo):
      points.append(point)
      result = dict(
        points=sorted(
          points, key=lambda p: (p["seed"], p["mixture"], p["solutions"])
        ),
        command=f"python {' '.join(sys.argv)}",
        versions=details["versions"],
        machine=details["machine"],
        config=details["config"],
      )
      schema.write_json(args.output, result)


def _points_of_seed(c, workdir, seed, todo):
  """Yields one finished point after another."""
  config = demo.from_config(c)
  inputs = demo.draw_inputs(config, seed)
  phase = demo.Phases(workdir / "seconds.json")
  base, policy = demo.train_policy(config, inputs, workdir, phase)
  key = functools.partial(jax.random.fold_in, jax.random.key(seed))
  rows = demo.sample(
    config,
    policy,
    inputs.test,
    config.num_samples,
    config.test_temperature,
    key(3),
  )
  samples = [s for row in rows for s in row]
  for mixture, temperatures in mixtures(c).items():
    wanted = [n for m, n in todo if m == mixture]
    if not wanted:
      continue
    drawn = demo.training_solutions(
      dataclasses.replace(config, train_temperatures=temperatures),
      policy,
      inputs.train,
      key(1),
    )
    for size in wanted:
      step_scores = {}
      for name in MODELS:
        run = config.runs[name]
        folder = workdir / f"{mixture}-{size}-{name}"
        model, params = experiment.train(
          run, drawn[:size], inputs.tokenizer, folder, start_from=base
        )
        step_scores[name] = scorer.Scorer(
          run.program, model, params, inputs.tokenizer, run.reading
        ).score(samples)
      aggregates = {n: config.runs[n].aggregate for n in MODELS}
      scores = demo.solution_scores(step_scores, aggregates, samples)
      results, _ = demo.evaluate(rows, step_scores, scores, seed)
      yield dict(
        seed=seed,
        mixture=mixture,
        solutions=min(size, len(drawn)),
        n=results["n"],
        accuracy=results["accuracy"],
        interval=results["interval"],
        paired=results["paired"],
        step_auroc=results["step_auroc"],
      )


if __name__ == "__main__":
  main()
