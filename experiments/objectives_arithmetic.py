"""Which objective makes the better judge, at equal data and compute?

Command:  python experiments/objectives_arithmetic.py
          [--output=docs/results/objectives.json] [--seeds=0,1,2]
          [--workdir=runs/objectives] [--only=bce,mse,...] [--table]
Hardware, time and result: see experiments/README.md.

Every objective of docs/objectives.md on the arithmetic testbed: the same base
model to start from, the same solutions, as many updates of as many tokens, one
learning rate, nothing tuned. Of each problem one solution is drawn, and three
more from one of its right prefixes, so that there are alternatives to compare.
What the output already holds is not computed again; results of another config
are refused. --table prints the means over seeds as Markdown.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
import pathlib
import time
from typing import Any

import jax
import labelling_testbed as testbed
import ml_collections
import numpy as np

from prm_jax import schema
from prm_jax.demo import demo_run
from prm_jax.runtime import config_files
from prm_jax.scoring import saved as saved_lib
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
OUTPUT = pathlib.Path("docs/results/objectives.json")


def get_config() -> ml_collections.ConfigDict:
  """Returns the demo's config, smaller, with one run per objective."""
  here = pathlib.Path(__file__).parent
  c = config_files.load(here / "arithmetic.py")
  with c.unlocked():
    c.train_problems = 1_200
    c.verifier_problems = 0
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


def points_of_seed(
  bed: testbed.Testbed, todo: Sequence[str]
) -> Iterator[dict[str, Any]]:
  """Yields one objective's measures after another."""
  exact = bed.kept("solutions", lambda: trees(bed))
  soft = bed.kept(
    "solutions_mc",
    lambda: demo_run.monte_carlo_labels(
      bed.config, bed.policy, exact, bed.key(2)
    ),
  )
  samples = [s for row in bed.test for s in row]
  for name in todo:
    start = time.perf_counter()
    run = bed.config.runs[name]
    train_run.train(
      run,
      soft if name in SOFT else exact,
      bed.inputs.tokenizer,
      bed.workdir / name,
      init_from=bed.base,
    )
    train_s = time.perf_counter() - start
    scorer = saved_lib.load(bed.workdir / name)

    def measure(scorer, aggregate):
      return testbed.measure_scores(
        *(scorer.score(samples), scorer.score(bed.validation)),
        *(bed.test, bed.validation, aggregate),
      )

    point = dict(
      objective=name,
      solutions=len(exact),
      train_s=round(train_s, 1),
      **measure(scorer, run.aggregate),
    )
    if "step_score" in scorer.scoring:
      increments = dict(scorer.scoring) | dict(step_score="increment")
      by_steps = dataclasses.replace(scorer, scoring=increments)
      point["by_increment"] = measure(by_steps, "min")
    print(f"{bed.seed} {name}: AUROC {point['step_auroc']:.4f}", flush=True)
    yield point


def trees(bed: testbed.Testbed) -> list[schema.Solution]:
  """Returns judged solutions: of each problem one, and branches from it.

  The others continue from a prefix of the first before its first error, so that
  some step has alternatives. Half of the problems are sampled hot.
  """
  config, policy, problems = bed.config, bed.policy, bed.inputs.train
  random, key = np.random.default_rng([bed.seed, 0]), bed.key(1)
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
      f"| majority vote | | | {testbed.mean(list(votes.values()), 100)} |"
      f" {len(votes)} |"
    )
  return "\n".join(lines)


def _line(name: str, points: Sequence[Mapping[str, Any]]) -> list[str]:
  if not points:
    return []
  how = points[0]["aggregate"]
  cells = (
    testbed.mean([p["step_auroc"] for p in points], digits=3),
    testbed.mean([p["first_error_accuracy"] for p in points], 100),
    testbed.mean([p["best_of_n"][how][-1] for p in points], 100) + f" ({how})",
  )
  return [f"| {name} | {' | '.join(cells)} | {len(points)} |"]


if __name__ == "__main__":
  testbed.run(
    *(__doc__.splitlines()[0], OUTPUT, tuple(OBJECTIVES)),
    *(points_of_seed, table),
    make=get_config,
    workdir=pathlib.Path("runs/objectives"),
    name_of=lambda point: point["objective"],
  )
