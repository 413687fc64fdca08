"""Where does the gap between PRM and ORM close?

Command:  python experiments/arithmetic_sweep.py
          [--output=docs/results/arithmetic_sweep.json] [--seeds=0,1,2]
          [--workdir=runs/sweep] [--only=mixed_400,pure_400,...] [--table]
Hardware, time and result: see experiments/README.md.

The demo's comparison over the number of labelled solutions, for training
samples at the test temperature alone and at mixed temperatures. Each point
trains a PRM and an ORM from the same base, on the same solutions, with the
same compute. Points that the output already holds are not computed again.
"""

import collections
from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import itertools
import pathlib
from typing import Any

import labelling_testbed as testbed
import ml_collections
import numpy as np

from prm_jax import errors
from prm_jax.demo import comparison
from prm_jax.demo import demo_run
from prm_jax.evaluation import figures
from prm_jax.reports import figure_files
from prm_jax.runtime import config_files

OUTPUT = pathlib.Path("docs/results/arithmetic_sweep.json")
WORKDIR = pathlib.Path("runs/sweep")
SIZES = (400, 1_600, 6_400, 25_600)
MIXTURES = ("mixed", "pure")
MODELS = ("prm", "orm")
LABELS = dict(prm="PRM, {}", orm="ORM, {}", majority="majority vote")
NAMES = tuple(f"{mixture}_{size}" for mixture in MIXTURES for size in SIZES)


def get_config() -> ml_collections.ConfigDict:
  """Returns the demo's config with training problems enough for all sizes."""
  here = pathlib.Path(__file__).parent
  c = config_files.load(here / "arithmetic.py")
  with c.unlocked():
    c.train_problems = 6_500
    c.verifier_problems = 0
    c.test_problems = 100
    c.num_samples = 256
  return c


def name_of(point: testbed.Point) -> str:
  return f"{point['mixture']}_{point['solutions']}"


def points_of_seed(
  bed: testbed.Testbed, todo: Sequence[str]
) -> Iterator[dict[str, Any]]:
  """Yields one finished point after another."""
  samples = [s for row in bed.test for s in row]
  for mixture in MIXTURES:
    sizes = [n for n in SIZES if f"{mixture}_{n}" in todo]
    if not sizes:
      continue
    config = bed.config
    if mixture == "pure":
      one = (config.temperature,)
      config = dataclasses.replace(config, train_temperatures=one)
    drawn = demo_run.training_solutions(
      config, bed.policy, bed.inputs.train, bed.key(1)
    )
    if len(drawn) < max(sizes):
      raise errors.InputError(
        f"{len(drawn)} distinct solutions for {max(sizes)}; raise"
        " train_problems in get_config()"
      )
    for size in sizes:
      step_scores = {
        name: testbed.train(
          bed,
          f"{mixture}-{size}-{name}",
          drawn[:size],
          run=config.runs[name],
        ).score(samples)
        for name in MODELS
      }
      aggregates = dict.fromkeys(MODELS, config.aggregate)
      scores = comparison.solution_scores(step_scores, aggregates, samples)
      ranking = comparison.rankings(step_scores, aggregates, scores)
      results, _ = comparison.evaluate(
        bed.test, step_scores, scores, ranking, bed.seed
      )
      names = ("n", "accuracy", "interval", "paired", "step_auroc")
      yield dict(mixture=mixture, solutions=size) | {
        n: results[n] for n in names
      }


def table(points: Sequence[Mapping[str, Any]]) -> str:
  """Returns best of the largest N, over seeds, as a Markdown table."""
  rows = [("labelled solutions", *(f"{n:,}" for n in SIZES))]
  for mixture in MIXTURES:
    for model in (*MODELS, "majority"):
      own = [
        [
          p["accuracy"][model][-1]
          for p in points
          if name_of(p) == f"{mixture}_{size}"
        ]
        for size in SIZES
      ]
      cells = (testbed.mean(x, 100) if x else "" for x in own)
      rows.append((f"{model}, {mixture}", *cells))
  return testbed.markdown(rows)


def figure(points: Sequence[Mapping[str, Any]]) -> figures.Figure:
  """Returns accuracy at the largest N over labelled solutions.

  Means over the seeds, in bands of their range.
  """
  n, sizes = points[0]["n"][-1], sorted({p["solutions"] for p in points})
  of = collections.defaultdict(list)
  for p in points:
    for model in (*MODELS, "majority"):
      shares = p["accuracy"][model]
      of[model, p["mixture"], p["solutions"]].append(shares[-1])
  # The vote needs no labels, so it is the same for both mixtures.
  curves = itertools.product(MODELS, MIXTURES)
  lines = []
  for model, mixture in (*curves, ("majority", MIXTURES[0])):
    own = [size for size in sizes if (model, mixture, size) in of]
    seeds = [of[model, mixture, size] for size in own]
    if own:
      ends = ([f(x) for x in seeds] for f in (np.mean, min, max))
      lines.append(figures.Line(LABELS[model].format(mixture), own, *ends))
  panel = figures.Panel(
    "bands reach over the seeds",
    "labelled solutions (log scale)",
    f"best of {n}, right answers, %",
    lines,
    x_ticks=sizes,
    x_is_log=True,
    holds=(0, 1),
  )
  title = f"Right answers of the best of {n} against labelled solutions"
  return figures.Figure(title, [panel])


def pictures(points: Sequence[testbed.Point], output: pathlib.Path) -> None:
  """Draws the picture next to the output."""
  if points:
    figure_files.write(output.with_suffix(".svg"), figure(points))


if __name__ == "__main__":
  testbed.run(
    *(__doc__.splitlines()[0], OUTPUT, NAMES, points_of_seed, table),
    make=get_config,
    workdir=WORKDIR,
    pictures=pictures,
    name_of=name_of,
  )
