"""What do adapters, or a head alone, learn compared with full training?

Command:  python experiments/arithmetic_lora.py
          [--output=docs/results/lora.json] [--seeds=0,1,2] [--workdir=runs/lora]
          [--table]
Hardware, time and result: see experiments/README.md.

The testbed's PRM, trained from one language model at equal data and updates:
all parameters, adapters (LoRA) at three rates, the head alone, and the head for
half of the updates before all parameters (the two stages of PURE, Cheng et al.
2025, arXiv 2504.15275). Frozen parameters must be given, so the PRM has the
depth of the language model here, and not two layers more as in the demo. What
the output already holds is not computed again. --table prints Markdown.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
import json
import pathlib
from typing import Any

from flax.core import meta
import jax
import labelling_testbed as testbed
import ml_collections

from prm_jax.demo import demo_run as demo_run
from prm_jax.demo import demo_run_config as demo_run_config
from prm_jax.evaluation import step_metrics
from prm_jax.models import model_config as model_config
from prm_jax.runtime import config_files
from prm_jax.runtime import environment
from prm_jax.runtime import files
from prm_jax.runtime import outputs
from prm_jax.scoring import scorer
from prm_jax.training import train_config
from prm_jax.training import train_run
from prm_jax.training import trainable as trainable_lib

OUTPUT = pathlib.Path("docs/results/lora.json")
WORKDIR = pathlib.Path("runs/lora")


def get_config() -> ml_collections.ConfigDict:
  """Returns the demo's config, smaller, and how each part is trained."""
  here = pathlib.Path(__file__).parent
  c = config_files.load(here / "arithmetic.py")
  with c.unlocked():
    c.train_problems, c.test_problems, c.num_samples = 1_000, 60, 16
    for run in c.runs.values():
      run.model.num_layers = 3
    c.runs.base.fit.steps = 300
    c.runs.policy.fit.steps = 100
    c.runs.prm.fit.steps = 200
    c.peak_lr = dict(all=1e-3, head=1e-2)
    # Ten times the rate of full training, as for large models (Schulman et al.
    # 2025, LoRA Without Regret), and less.
    c.adapter_rates = (1e-2, 3e-3, 1e-3)
    c.adapters = dict(lora_rank=8, lora_alpha=32.0)
  return c


def ways(
  c: ml_collections.ConfigDict, prm: train_config.TrainConfig
) -> dict[str, list[train_config.TrainConfig]]:
  """Returns the stages of each way to train, of equal updates in all."""

  def stage(trainable: str, peak_lr: float, share: float = 1.0, **model: Any):
    return dataclasses.replace(
      prm,
      trainable=trainable,
      model=prm.model | model,
      optimizer=dataclasses.replace(prm.optimizer, peak_lr=peak_lr),
      fit=dataclasses.replace(prm.fit, steps=int(prm.fit.steps * share)),
    )

  full, head = c.peak_lr["all"], c.peak_lr["head"]
  return dict(
    all=[stage("all", full)],
    **{
      f"lora_{rate:g}": [stage("lora", rate, **c.adapters)]
      for rate in c.adapter_rates
    },
    head=[stage("head", head)],
    head_then_all=[stage("head", head, 0.5), stage("all", full, 0.5)],
  )


@testbed.exit_on_input_error()
def main() -> None:
  description = __doc__.splitlines()[0]
  parser = testbed.parser_of(description, OUTPUT, WORKDIR, "0,1,2")
  args = parser.parse_args()
  if args.table:
    print(table(files.read_json(args.output)["points"]))
    return
  outputs.check(dict(output=args.output))
  c = get_config()
  details = environment.describe(c)
  names = ways(c, demo_run_config.from_config(c, 0).runs["prm"])
  for seed in testbed.numbers(args.seeds):
    saved = testbed.read_points(args.output, details["config"])
    done = {p["trained"] for p in saved if p["seed"] == seed}
    todo = [name for name in names if name not in done]
    if not todo:
      continue
    workdir = args.workdir / str(seed)
    environment.check_workdir(workdir, details["config"])
    for point in _points(c, workdir, seed, todo):
      print(json.dumps(point), flush=True)
      testbed.add_point(
        *(args.output, args.workdir, point, details),
        lambda points: testbed.command_of(points, (), args, parser),
      )
  print(table(testbed.read_points(args.output, details["config"])))


def table(points: Sequence[Mapping[str, Any]]) -> str:
  """Returns the means over seeds, and their range, as a Markdown table."""
  rows = [
    (
      *("trained", "share of the parameters, %", "optimizer state, bytes"),
      *("step AUROC", "s", "seeds"),
    )
  ]
  for name in dict.fromkeys(p["trained"] for p in points):
    own = [p for p in points if p["trained"] == name]
    stages = own[0]["stages"]
    rows.append(
      (
        name,
        ", then ".join(f"{100 * x['trained_share']:.3g}" for x in stages),
        ", then ".join(f"{x['optimizer_bytes']:,}" for x in stages),
        testbed.mean([p["step_auroc"] for p in own], digits=3),
        testbed.mean([p["seconds"] for p in own], digits=0),
        str(len(own)),
      )
    )
  return testbed.markdown(rows) if rows[1:] else "no points yet"


def _points(
  c: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  seed: int,
  todo: Sequence[str],
) -> Iterator[dict[str, Any]]:
  """Yields the result of one way to train after another."""
  config = demo_run_config.from_config(c, seed)
  inputs = demo_run.draw_inputs(config, seed)
  workdir.mkdir(parents=True, exist_ok=True)
  phase = demo_run.Phases(workdir / "seconds.json")
  base, policy = demo_run.train_policy(config, inputs, workdir, phase)
  key = functools.partial(jax.random.fold_in, jax.random.key(seed))
  solutions = demo_run.training_solutions(config, policy, inputs.train, key(1))
  rows = demo_run.test_samples(config, policy, inputs.test, key(3))
  samples = [s for row in rows for s in row]
  problems = [i for i, row in enumerate(rows) for _ in row]
  stages_of = ways(c, config.runs["prm"])
  for name in todo:
    stages = stages_of[name]
    params, costs = base, []
    with phase(name, resumes=True):
      for k, run in enumerate(stages):
        model, params = train_run.train(
          run,
          solutions,
          inputs.tokenizer,
          workdir / f"{name}_{k}",
          init_from=params,
        )
        costs.append(_cost(run, model))
    scores = scorer.Scorer(
      "prm", model, params, inputs.tokenizer, run.encoding
    ).score(samples)
    measured = step_metrics.evaluate(
      [x.scores for x in scores],
      [s.labels or () for s in samples],
      problems=problems,
    )
    yield dict(
      seed=seed,
      trained=name,
      solutions=len(solutions),
      test_samples=len(samples),
      step_auroc=measured["auroc"],
      step_auroc_interval=measured["auroc_interval"],
      stages=costs,
      seconds=phase.seconds()[name],
    )


def _cost(
  run: train_config.TrainConfig, model: model_config.ModelConfig
) -> dict[str, Any]:
  """Returns what a stage trains, and the bytes of its optimizer's state."""
  program = train_config.make_program(run, model)
  state = meta.unbox(jax.eval_shape(program.init, jax.random.key(0)))
  trained, _ = trainable_lib.split(state.params, program.trains)
  counts = [
    sum(x.size for x in jax.tree.leaves(t)) for t in (trained, state.params)
  ]
  moments = jax.tree.leaves(state.opt_state)
  return dict(
    trainable=run.trainable,
    updates=run.fit.steps,
    trained_parameters=counts[0],
    trained_share=counts[0] / counts[1],
    optimizer_bytes=sum(x.size * x.dtype.itemsize for x in moments),
  )


if __name__ == "__main__":
  main()
