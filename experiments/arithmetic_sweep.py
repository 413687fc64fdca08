"""Where does the gap between PRM and ORM close?

Command:  python experiments/arithmetic_sweep.py
          [--output=docs/results/arithmetic_sweep.json] [--seeds=0,1,2]
          [--sizes=400,1600,6400,25600] [--mixtures=mixed,pure]
Hardware, time and result: see experiments/README.md.

The demo's comparison over the number of labelled solutions, for training
samples at the test temperature alone and at mixed temperatures. Each point
trains a PRM and an ORM from the same base, on the same solutions, with the
same compute. Points that the output already holds are not computed again, and
those of another config are refused.
"""

import argparse
from collections.abc import Mapping, Sequence
import dataclasses
import functools
import json
import math
import pathlib
import sys
from typing import Any

import jax
import ml_collections

from prm_jax import errors
from prm_jax.demo import comparison
from prm_jax.demo import demo_run as demo_run
from prm_jax.demo import demo_run_config as demo_run_config
from prm_jax.reports import plot
from prm_jax.runtime import config_files
from prm_jax.runtime import environment
from prm_jax.runtime import files
from prm_jax.runtime import outputs
from prm_jax.scoring import scorer
from prm_jax.training import train_run

SIZES = (400, 1_600, 6_400, 25_600)
MODELS = ("prm", "orm")


def get_config() -> ml_collections.ConfigDict:
  """Returns the demo's config with training problems enough for all sizes."""
  here = pathlib.Path(__file__).parent
  c = config_files.load(here / "arithmetic.py")
  with c.unlocked():
    c.train_problems = 6_500
    c.test_problems = 100
    c.num_samples = 256
  return c


def mixtures(c: ml_collections.ConfigDict) -> dict[str, tuple[float, ...]]:
  """Returns the temperatures of the training samples, by name."""
  return dict(pure=(c.temperature,), mixed=tuple(c.train_temperatures))


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
  parser.add_argument("--mixtures", default="mixed,pure")
  args = parser.parse_args()
  c = get_config()
  unknown = {*args.mixtures.split(",")} - {*mixtures(c)}
  if unknown:
    raise errors.InputError(
      f"--mixtures={','.join(unknown)}: expected {', '.join(mixtures(c))}"
    )
  details = environment.describe(c)
  outputs.check(dict(output=args.output))
  environment.check_workdir(args.workdir, details["config"])
  points = []
  if args.output.exists():
    saved = json.loads(args.output.read_text())
    if saved["config"] != details["config"]:
      raise errors.InputError(
        f"{args.output}: holds points of another config; give another --output"
      )
    points = saved["points"]
  done = {(p["seed"], p["mixture"], p["solutions"]) for p in points}
  sizes = [int(x) for x in args.sizes.split(",")]
  for seed in map(int, args.seeds.split(",")):
    todo = [
      (m, n)
      for m in args.mixtures.split(",")
      for n in sizes
      if (seed, m, n) not in done
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
      files.write_json(args.output, result)
  with files.replacing(args.output.with_suffix(".svg"), "wb") as f:
    f.write(picture(points))


def picture(points: Sequence[Mapping[str, Any]]) -> bytes:
  """Returns accuracy at the largest N over labelled solutions as an SVG file.

  Means over the seeds, in bands of their range.
  """
  style, hollow = plot.LineStyle, plot.TRIANGLE._replace(filled=False)
  styles = {
    ("prm", "mixed"): style("PRM, mixed", "k0", width=3),
    ("prm", "pure"): style("PRM, pure", "k0", plot.RING, "6 4"),
    ("orm", "mixed"): style("ORM, mixed", "k2", plot.TRIANGLE, width=3),
    ("orm", "pure"): style("ORM, pure", "k2", hollow, "6 4"),
    ("majority", "mixed"): style("Majority vote", "k4", plot.Marker(""), "2 3"),
  }
  n, sizes = points[0]["n"][-1], sorted({p["solutions"] for p in points})
  curves = []
  for (model, mixture), style in styles.items():
    shares = {
      size: [
        p["accuracy"][model][-1]
        for p in points
        if p["mixture"] == mixture and p["solutions"] == size
      ]
      for size in sizes
    }
    shares = {size: seeds for size, seeds in shares.items() if seeds}
    drawn = [plot.point(math.log2(size), shares[size]) for size in shares]
    texts = [
      f"{size:,} solutions: {', '.join(f'{100 * v:.1f} %' for v in seeds)}"
      for size, seeds in shares.items()
    ]
    curves.append(plot.Curve(style, drawn, texts))
  axes = plot.Axes(
    title=f"Right answers of the best of {n} against labelled solutions",
    x_label="labelled solutions (log scale); bands reach over the seeds",
    y_label=f"best of {n}, right answers, %",
    x_ticks=[(math.log2(size), f"{size:,}") for size in sizes],
    holds=(0, 1),
    scale=100,
  )
  return plot.draw(curves, axes, (960, 470), "right").encode()


def _points_of_seed(c, workdir, seed, todo):
  """Yields one finished point after another."""
  config = demo_run_config.from_config(c, seed)
  inputs = demo_run.draw_inputs(config, seed)
  phase = demo_run.Phases(workdir / "seconds.json")
  base, policy = demo_run.train_policy(config, inputs, workdir, phase)
  key = functools.partial(jax.random.fold_in, jax.random.key(seed))
  rows = demo_run.test_samples(config, policy, inputs.test, key(3))
  samples = [s for row in rows for s in row]
  for mixture, temperatures in mixtures(c).items():
    wanted = [n for m, n in todo if m == mixture]
    if not wanted:
      continue
    drawn = demo_run.training_solutions(
      dataclasses.replace(config, train_temperatures=temperatures),
      policy,
      inputs.train,
      key(1),
    )
    if len(drawn) < max(wanted):
      raise errors.InputError(
        f"{len(drawn)} distinct solutions for --sizes up to {max(wanted)};"
        " raise train_problems in get_config()"
      )
    for size in wanted:
      step_scores = {}
      for name in MODELS:
        run = config.runs[name]
        folder = workdir / f"{mixture}-{size}-{name}"
        model, params = train_run.train(
          run, drawn[:size], inputs.tokenizer, folder, init_from=base
        )
        trained = scorer.Scorer(
          *(run.program, model, params, inputs.tokenizer, run.encoding),
          judged=run.objective.judged,
        )
        step_scores[name] = trained.score(samples)
      aggregates = {n: config.runs[n].aggregate for n in MODELS}
      scores = comparison.solution_scores(step_scores, aggregates, samples)
      ranking = comparison.rankings(step_scores, aggregates, scores)
      results, _ = comparison.evaluate(rows, step_scores, scores, ranking, seed)
      yield dict(
        seed=seed,
        mixture=mixture,
        solutions=size,
        n=results["n"],
        accuracy=results["accuracy"],
        interval=results["interval"],
        paired=results["paired"],
        step_auroc=results["step_auroc"],
      )


if __name__ == "__main__":
  try:
    main()
  except errors.InputError as e:
    sys.exit(f"arithmetic_sweep.py: {e}")
