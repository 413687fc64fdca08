"""What do adapters, or a head alone, learn compared with full training?

Command:  python experiments/arithmetic_lora.py
          [--output=docs/results/lora.json] [--seeds=0,1,2] [--workdir=runs/lora]
          [--only=all,head,...] [--table]
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
import pathlib
import time
from typing import Any

from flax.core import meta
import jax
import labelling_testbed as testbed
import ml_collections

from prm_jax.evaluation import step_metrics
from prm_jax.models import model_config
from prm_jax.runtime import config_files
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
    c.train_problems = c.pool_problems = 1_000
    c.test_problems, c.num_samples = 60, 16
    c.verifier_problems = 0
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


NAMES = ("all", *(f"lora_{x:g}" for x in (1e-2, 3e-3, 1e-3)), "head")
NAMES += ("head_then_all",)


def points_of_seed(
  bed: testbed.Testbed, todo: Sequence[str]
) -> Iterator[dict[str, Any]]:
  """Yields the result of one way to train after another."""
  samples = [s for row in bed.test for s in row]
  stages_of = ways(bed.c, bed.config.runs["prm"])
  for name in todo:
    params, costs, start = bed.base, [], time.perf_counter()
    for k, run in enumerate(stages_of[name]):
      model, params = train_run.train(
        run,
        bed.pool,
        bed.inputs.tokenizer,
        bed.workdir / f"{name}_{k}",
        init_from=params,
      )
      costs.append(_cost(run, model))
    seconds = time.perf_counter() - start
    scores = scorer.Scorer(
      "prm", model, params, bed.inputs.tokenizer, run.encoding
    ).score(samples)
    measured = step_metrics.evaluate(
      [x.scores for x in scores],
      [s.labels or () for s in samples],
      problems=[i for i, row in enumerate(bed.test) for _ in row],
    )
    yield dict(
      trained=name,
      solutions=len(bed.pool),
      test_samples=len(samples),
      step_auroc=measured["auroc"],
      step_auroc_interval=measured["auroc_interval"],
      stages=costs,
      seconds=round(seconds, 1),
    )


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
  testbed.run(
    *(__doc__.splitlines()[0], OUTPUT, NAMES, points_of_seed, table),
    make=get_config,
    workdir=WORKDIR,
    name_of=lambda point: point["trained"],
  )
