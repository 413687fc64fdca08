"""When does search help with a trained policy and a trained PRM? Three seeds.

Command:  python experiments/search_trained.py
          [--output=docs/results/search_trained.json] [--seeds=0,1,2]
          [--workdir=runs/search_trained] [--processes=2] [--small]
Hardware, time and result: see experiments/README.md and docs/search_evidence.md.

search_testbed.py asks the same of a synthetic policy and PRM. Here both are
trained, from scratch, on each seed: those of `prm-jax demo`, whose problems have
3 to 6 turns, and a second PRM that has seen few solutions. What --workdir
already holds isn't trained or run again. --small is a test of the path whose
numbers mean nothing. search_runs.py says how runs are compared.

- PRMs: "full" is the demo's; "few" learns the first 3,200 of the demo's
  labelled solutions in 250 updates, as in after_first_error.py. Both have no
  target after a first error, so a score is the minimum over steps, as in the
  demo. `beam_last` and `beam_product` are the beam by the others.
- Problems: the first 100 unseen ones of a seed, 30 at N = 64; 128 samples of
  each.
- Searches sample as the demo does (temperature 1, top_p .95). N is the number
  of samples, or the width of a search. `mcts` has N simulations of 4 children,
  `uniform` too, with a uniform prior; `reject` is reject and resample at
  threshold .5 with 5 tries, four times for each problem; `lookahead` is a beam
  that looks ahead one step, on 30 problems.

The fresh seeds are those of five claims about "few" that seed 0 suggested. The
committed result is of 2076ec39, which also has the rules by which the claims
were judged, and what became of the problems that a search lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import functools
import pathlib
from typing import Any

import jax
import ml_collections
import search_runs
from search_runs import Difference
from search_runs import Run

from prm_jax import schema
from prm_jax.demo import demo_run
from prm_jax.demo import demo_run_config
from prm_jax.records import jsonl
from prm_jax.runtime import config_files
from prm_jax.scoring import scorer as scorer_lib
from prm_jax.search import bill as bill_lib
from prm_jax.search import mcts
from prm_jax.search import own_models
from prm_jax.search import rules
from prm_jax.search import search_limits
from prm_jax.search import tree as tree_lib
from prm_jax.training import train_run

# The PRMs: the demo's, and one that learned less.
PRMS = ("full", "few")


def settings(small: bool = False) -> ml_collections.ConfigDict:
  """Returns the demo's config, and how many problems are searched.

  few_solutions, few_updates: what the second PRM learns. problems, some: of a
  seed, those searched at N <= 16, and at N = 64. num_samples: the independent
  samples of each.
  """
  c = config_files.load(pathlib.Path(__file__).parent / "arithmetic.py")
  with c.unlocked():
    c.few_solutions, c.few_updates = 3_200, 250
    c.problems, c.some, c.num_samples = 100, 30, 128
    if small:
      c.few_solutions, c.few_updates = 50, 20
      c.problems, c.some, c.num_samples = 6, 3, 64
      c.base_problems, c.annotated_problems = 3_000, 500
      c.train_problems, c.test_problems = 60, 6
      for run in c.runs.values():
        run.fit.steps = 20
        run.optimizer.warmup_steps = 10
      # A policy that never ends a solution leaves nothing to choose from.
      c.runs.base.fit.steps = 250
  return c


def build(
  c: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  seed: int,
  runs: Sequence[Run],
) -> Callable[[Run], search_runs.Arrays]:
  """Returns what measures a run with a seed's models, trained as in the demo.

  The policy, its training solutions with exact labels and the PRM ("full") are
  those of `prm-jax demo --seed=SEED`. The demo's other models, and a PRM that no
  run needs, aren't trained.
  """
  config = demo_run_config.from_config(c, seed)
  workdir.mkdir(parents=True, exist_ok=True)
  inputs = demo_run.draw_inputs(config, seed)
  phase = demo_run.Phases(workdir / "seconds.json")
  base, sampler = demo_run.train_policy(config, inputs, workdir, phase)
  path = workdir / "solutions.jsonl"
  if not path.exists():
    key = jax.random.fold_in(jax.random.key(seed), 1)
    drawn = demo_run.training_solutions(config, sampler, inputs.train, key)
    jsonl.write_solutions(path, drawn)
  solutions = jsonl.read_solutions(path)

  def train(name: str, data: Sequence[schema.Solution], **fit: Any):
    run = config.runs["prm"]
    run = dataclasses.replace(run, fit=dataclasses.replace(run.fit, **fit))
    with phase(f"train {name}", resumes=True):
      model, params = train_run.train(
        run, data, inputs.tokenizer, workdir / name, init_from=base
      )
    return scorer_lib.Scorer(
      *(run.program, model, params, inputs.tokenizer, run.encoding),
      judged=run.objective.judged,
    )

  scorers = {}
  if any(run.scorer == "few" for run in runs):
    few = solutions[: c.few_solutions]
    scorers["few"] = train("prm_few", few, steps=c.few_updates)
  if any(run.scorer == "full" for run in runs):
    scorers["full"] = train("prm", solutions)
  return functools.partial(
    measure,
    problems=inputs.test[: c.problems],
    policy=own_models.of_sampler(
      sampler, config.sampling(config.temperature), seed=seed, slots=256
    ),
    scorers={name: scorer.score for name, scorer in scorers.items()},
    verifier=lambda name, how: own_models.of_scorer(
      scorers[name], aggregate=how, cache_tokens=131_072
    ),
    seed=seed,
    num_samples=c.num_samples,
    limits=search_limits.Limits(max_tokens=config.max_new_tokens),
  )


def measure(run: Run, *, problems, policy, scorers, verifier, **how):
  """Returns a run's numbers for each problem of a seed."""
  verifies = verifier(run.scorer, run.aggregate)
  models = {tree_lib.POLICY: policy.cost, bill_lib.SCORER: verifies.cost}
  return search_runs.measure(
    run,
    problems,
    {tree_lib.POLICY: policy},
    verifies,
    lambda trees: search_runs.of_samples(trees, scorers, ("min",), models),
    **how,
  )


# --- Runs -------------------------------------------------------------------


def all_runs(c: ml_collections.ConfigDict, fresh: bool = False) -> list[Run]:
  """Returns the runs of a seed, in the order in which they are made."""
  runs = [
    Run("samples", None, "full"),
    *(run for prm in PRMS for run in _of_prm(c, prm)),
    *(_mcts("uniform", "few", num, prior="uniform") for num in (1, 4)),
  ]
  if fresh:
    wanted = {name for d in FRESH for name in (d.run, d.other)}
    runs = [run for run in runs if run.name in wanted]
    runs.insert(0, Run("samples", None, "few"))
  return runs


def _mcts(
  name: str, prm: str, num: int, problems: int | None = None, **how: Any
) -> Run:
  rule = mcts.MCTS(simulations=num, expand=4, **how)
  return Run(f"{name}.{prm}.{num}", rule, prm, problems=problems)


def _of_prm(c: ml_collections.ConfigDict, prm: str) -> Iterator[Run]:
  for num, most in ((4, None), (16, None), (64, c.some)):
    for name, rule in search_runs.strategies(num).items():
      yield Run(f"{name}.{prm}.{num}", rule, prm, problems=most)
  for num, most in ((1, None), (4, None), (16, c.some)):
    yield _mcts("mcts", prm, num, most)
  for num in (4, 16):
    yield Run(
      f"lookahead.{prm}.{num}",
      rules.Beam(num // 4, 4),
      prm,
      lookahead=1,
      problems=c.some,
    )
  for how in ("last", "product"):
    yield Run(f"beam_{how}.{prm}.16", rules.Beam(4, 4), prm, aggregate=how)
  rule = rules.RejectResample(0.5, 5)
  yield Run(f"reject.{prm}.1", rule, prm, repeats=4)


def _differences() -> Iterator[Difference]:
  """Yields what docs/search_evidence.md gives the differences of."""
  for prm in PRMS:
    samples = f"weighted.{prm}"
    for num in (4, 16):
      beam = f"beam.{prm}.{num}"
      yield Difference(beam, samples, "tokens")
      yield Difference(beam, f"best.min.{prm}", "tokens", "best")
      for other in search_runs.strategies(4):
        yield Difference(f"lookahead.{prm}.{num}", f"{other}.{prm}", "flops")
    for num in (4, 16, 64):
      yield Difference(f"rebase.{prm}.{num}", samples, "tokens")
    yield Difference(f"dvts.{prm}.64", f"beam.{prm}.64")
    yield Difference(f"particles.{prm}.16", f"beam.{prm}.16")
    yield Difference(f"reject.{prm}.1", samples, "tokens")
    yield Difference(f"mcts.{prm}.4", f"beam.{prm}", "flops")
  for num in (1, 4):
    yield Difference(f"uniform.few.{num}", "beam.few", "tokens")
    yield Difference(f"mcts.few.{num}", f"uniform.few.{num}")


FRESH = (
  Difference("beam.few.16", "weighted.few", "tokens"),
  Difference("dvts.few.16", "beam.few.16"),
  Difference("particles.few.16", "beam.few.16"),
  Difference("mcts.few.1", "beam.few.4"),
  Difference("mcts.few.1", "uniform.few.1"),
)
EXPERIMENT = search_runs.Experiment(
  "search_trained",
  settings,
  all_runs,
  build,
  differences=tuple(_differences()),
  fresh=FRESH,
  seeds=(0, 1, 2),
  fresh_seeds=(3, 4, 5),
  weigh_by="min",
)

if __name__ == "__main__":
  EXPERIMENT.main(__doc__)
