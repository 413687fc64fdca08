"""Does a generative PRM need fewer labels than a discriminative one?

Command:  python experiments/labelling_judge.py
          [--output=docs/results/labelling_judge.json] [--seeds=0,1,2]
          [--models=prm,prm_1_percent,...] [--small] [--table]
Hardware, time and result: see experiments/README.md.

On the arithmetic testbed: a discriminative PRM from all exact labels, one from
every hundredth solution, and a generative verifier from the same hundredth.
That one is trained by `sft` on chains in ThinkPRM's form (docs/judge.md): each
step done over and said again, then its verdict. What a language model can do
before it judges, doing over and quoting, the testbed's base first learns from
exercises on all solutions, without labels; one verifier starts from the base
itself. All are measured on the same samples; a chain's verdicts are weighed.
Exercises and chains tell what a wrong step should have been, which labels
alone don't: count that when you read the table. What the
output already holds is not computed again; results of another config are
refused. --small is a test of the path, some minutes long, whose numbers
mean nothing. --table prints the means over seeds as Markdown.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
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

from prm_jax import arithmetic
from prm_jax import configs
from prm_jax import demo
from prm_jax import environment
from prm_jax import sampler as sampler_lib
from prm_jax import schema
from prm_jax import scorer as scorer_lib
from prm_jax import tokenizer as tokenizer_lib
from prm_jax import voting
from prm_jax.labelling import dial
from prm_jax.labelling import judge
from prm_jax.train import experiment
from prm_jax.train import run_config

# Name -> every how manieth solution it learns from, and how many chains the
# generative ones write about a solution, at which temperature. start: what a
# verifier starts from, the base or the base after exercises.
MODELS: dict[str, dict[str, Any]] = dict(
  prm=dict(every=1),
  prm_1_percent=dict(every=100),
  verifier_1_percent=dict(
    every=100, start="exercised", chains=1, temperature=0.0
  ),
  verifier_1_percent_4_chains=dict(
    every=100, start="exercised", chains=4, temperature=0.6
  ),
  verifier_1_percent_from_base=dict(
    every=100, start="base", chains=1, temperature=0.0
  ),
)
OUTPUT = pathlib.Path("docs/results/labelling_judge.json")
# A judge reads a problem and a whole solution, and writes about as much.
ROW_TOKENS, MAX_CHAIN_TOKENS = 192, 128
EXERCISE_STEPS, VERIFIER_STEPS = 600, 300


def get_config(small: bool = False) -> ml_collections.ConfigDict:
  """Returns the demo's config and, beside its runs, that of the verifier."""
  here = pathlib.Path(__file__).parent
  c = configs.load(here / "arithmetic.py")
  with c.unlocked():
    c.vocabulary = 96
    c.test_problems, c.num_samples = 100, 64
    verifier = ml_collections.ConfigDict(c.runs.prm.to_dict())
    verifier.program = "sft"
    verifier.rows, verifier.row_tokens = 32, ROW_TOKENS
    verifier.reading.max_tokens = ROW_TOKENS
    verifier.fit.steps = VERIFIER_STEPS
    c.verifier = verifier
    c.exercised = ml_collections.ConfigDict(verifier.to_dict())
    c.exercised.fit.steps = EXERCISE_STEPS
    if small:
      c.train_problems, c.test_problems, c.num_samples = 1_000, 10, 8
      for run in (*c.runs.values(), c.verifier, c.exercised):
        run.fit.steps = 40
        run.optimizer.warmup_steps = 10
      # A policy that is never right leaves nothing to measure.
      c.runs.base.fit.steps = 300
  return c


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--output", type=pathlib.Path, default=OUTPUT)
  parser.add_argument(
    "--workdir", type=pathlib.Path, default=pathlib.Path("runs/judge")
  )
  parser.add_argument("--seeds", default="0,1,2")
  parser.add_argument("--models", default=",".join(MODELS))
  parser.add_argument("--small", action="store_true")
  parser.add_argument("--table", action="store_true")
  args = parser.parse_args()
  wanted = args.models.split(",")
  if unknown := {*wanted} - {*MODELS}:
    raise schema.InputError(
      f"--models={','.join(unknown)}: expected {', '.join(MODELS)}"
    )
  c = get_config(args.small)
  details = environment.describe(c)
  points = []
  if args.output.exists():
    saved = json.loads(args.output.read_text())
    if saved["config"] != details["config"]:
      raise schema.InputError(
        f"{args.output}: holds points of another config; give another --output"
      )
    points = saved["points"]
  if args.table:
    print(table(points))
    return
  environment.check_output(args.output)
  environment.check_workdir(args.workdir, details["config"])
  for seed in map(int, args.seeds.split(",")):
    done = {p["model"] for p in points if p["seed"] == seed}
    todo = [name for name in wanted if name not in done]
    if not todo:
      continue
    for point in _points_of_seed(c, args.workdir / str(seed), seed, todo):
      points.append(point)
      schema.write_json(
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
  """Yields one model's measures after another."""
  # It stands beside this script; whoever reads the config alone lacks it.
  import objectives_arithmetic

  config = demo.from_config(c, seed)
  inputs = with_verdict_words(config, demo.draw_inputs(config, seed))
  phase = demo.Phases(workdir / "seconds.json")
  base, policy = demo.train_policy(config, inputs, workdir, phase)
  key = functools.partial(jax.random.fold_in, jax.random.key(seed))
  solutions = _kept(
    workdir / "solutions.jsonl",
    lambda: demo.training_solutions(config, policy, inputs.train, key(1)),
  )
  rows = demo.test_samples(config, policy, inputs.test, key(3))
  held_out = demo.sample(
    config,
    policy,
    arithmetic.problems(
      objectives_arithmetic.VALIDATION_PROBLEMS,
      "validation",
      task=config.task,
      random=np.random.default_rng([seed, 1]),
    ),
    objectives_arithmetic.VALIDATION_SAMPLES,
    config.temperature,
    key(4),
  )
  tuning = [s for row in held_out for s in row if s.steps]
  for name in todo:
    how = MODELS[name]
    used = solutions[:: how["every"]]
    start = time.perf_counter()
    if "chains" in how:
      start_from = base
      if how["start"] == "exercised":
        start_from = train_exercised(
          c, solutions, inputs.tokenizer, workdir, base, seed
        )
      verifier = train_verifier(
        c,
        used,
        inputs.tokenizer,
        workdir / f"verifier_{how['start']}",
        start_from,
        seed,
      )
      train_s = time.perf_counter() - start
      found = measure_verifier(verifier, how, rows, tuning, key(5))
    else:
      run = config.runs["prm"]
      model, params = experiment.train(
        run, used, inputs.tokenizer, workdir / name, start_from=base
      )
      train_s = time.perf_counter() - start
      scorer = scorer_lib.Scorer(
        run.program, model, params, inputs.tokenizer, run.reading
      )
      found = objectives_arithmetic.measure(scorer, rows, held_out, "min")
    all_s = time.perf_counter() - start
    point = dict(
      seed=seed,
      model=name,
      solutions=len(used),
      labels=dial.chains(used)[1]["labels"],
      train_s=round(train_s, 1),
      judge_s=round(all_s - train_s, 1),
      **found,
    )
    print(f"{seed} {name}: AUROC {point['step_auroc']:.4f}", flush=True)
    yield point


def with_verdict_words(
  config: demo.DemoConfig, inputs: demo.Inputs
) -> demo.Inputs:
  """Returns the inputs with a tokenizer that has a verifier's words too.

  So that base, policy and judges share their tokens.
  """
  texts = [x for s in inputs.base[:2_000] for x in (s.problem, *s.steps)]
  return dataclasses.replace(
    inputs,
    tokenizer=tokenizer_lib.train_sentencepiece(
      [*texts, " ".join(dial.WORDS)], config.vocabulary, model_type="word"
    ),
  )


def train_exercised(
  c: ml_collections.ConfigDict,
  solutions: Sequence[schema.Solution],
  tokenizer: tokenizer_lib.Tokenizer,
  workdir: pathlib.Path,
  base: Any,
  seed: int,
) -> Any:
  """Returns the base after exercises on solutions without their labels."""
  run = run_config.from_config(c.exercised)
  run = dataclasses.replace(run, seed=run.seed + seed)
  exercises = dial.exercises(solutions)
  _, params = experiment.train(
    run, exercises, tokenizer, workdir / "exercised", start_from=base
  )
  return params


def train_verifier(
  c: ml_collections.ConfigDict,
  solutions: Sequence[schema.Solution],
  tokenizer: tokenizer_lib.Tokenizer,
  folder: pathlib.Path,
  start_from: Any,
  seed: int,
) -> sampler_lib.Sampler:
  """Returns a generative verifier, trained on chains from exact labels."""
  chains, counts = dial.chains(solutions)
  print("    " + ", ".join(f"{n:,} {what}" for what, n in counts.items()))
  run = run_config.from_config(c.verifier)
  run = dataclasses.replace(run, seed=run.seed + seed)
  model, params = experiment.train(
    run, chains, tokenizer, folder, start_from=start_from
  )
  return sampler_lib.Sampler(model, params, tokenizer)


def measure_verifier(
  verifier: sampler_lib.Sampler,
  how: Mapping[str, Any],
  rows: Sequence[Sequence[schema.Solution]],
  tuning: Sequence[schema.Solution],
  key: jax.Array,
) -> dict[str, Any]:
  """Returns its measures, and with them best-of-N by P(yes) and the work."""
  import objectives_arithmetic

  sampling = sampler_lib.Sampling(MAX_CHAIN_TOKENS, how["temperature"])
  generate = functools.partial(verifier.generate, sampling=sampling, key=key)
  samples = [s for row in rows for s in row]
  judged, work = judge.label(
    [*samples, *tuning],
    generate,
    dial.TEMPLATE,
    votes=how["chains"],
    weigh=verifier.weigh,
  )
  print("    " + ", ".join(f"{n:,} {what}" for what, n in work.items()))
  scores = [[0.5 if x is None else x for x in s.labels or ()] for s in judged]
  found = objectives_arithmetic.measure_scores(
    scores[: len(samples)], scores[len(samples) :], rows, tuning, "min"
  )
  shape = len(rows), len(rows[0])
  p_yes = [s.extra.get("p_yes", 0.5) for s in judged[: len(samples)]]
  curve = voting.best_of_n(
    np.array(p_yes).reshape(shape),
    np.array([s.outcome for s in samples]).reshape(shape),
    found["n"],
  )
  found["best_of_n"]["p_yes"] = [float(x) for x in curve.mean(0)]
  return found | dict(work=work)


def _kept(path, make) -> Sequence[schema.Solution]:
  """Returns the solutions in a file, which is made first if it isn't there."""
  if not path.exists():
    schema.write_solutions(path, make())
  return schema.read_solutions(path)


def table(points: Sequence[Mapping[str, Any]]) -> str:
  """Returns the means over seeds, and their range, as a Markdown table."""
  lines = [
    "| model | labels | step AUROC | first-error accuracy, % |"
    " best of 64 by the minimum, % | by P(yes), % | seeds |",
    "|---|---|---|---|---|---|---|",
  ]
  for name in MODELS:
    own = [p for p in points if p["model"] == name]
    if not own:
      continue
    best = [p["best_of_n"] for p in own]
    cells = (
      _mean([p["labels"] for p in own], 1, 0),
      _mean([p["step_auroc"] for p in own], 1, 3),
      _mean([p["first_error_accuracy"] for p in own], 100, 1),
      _mean([x["min"][-1] for x in best], 100, 1),
      _mean([x["p_yes"][-1] for x in best], 100, 1)
      if all("p_yes" in x for x in best)
      else "",
    )
    lines.append(f"| {name} | {' | '.join(cells)} | {len(own)} |")
  votes = {p["seed"]: p["majority"] for p in points}
  if votes:
    cell = _mean(list(votes.values()), 100, 1)
    lines.append(f"| majority vote | 0 | | | {cell} | | {len(votes)} |")
  return "\n".join(lines)


def _mean(values: Sequence[float], scale: float, digits: int) -> str:
  low, middle, high = (
    f"{scale * x:,.{digits}f}"
    for x in (min(values), np.mean(values), max(values))
  )
  return f"{middle} [{low}, {high}]"


if __name__ == "__main__":
  try:
    main()
  except schema.InputError as e:
    sys.exit(f"labelling_judge.py: {e}")
