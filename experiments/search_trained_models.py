"""The models of search_trained.py: the demo's, trained from scratch.

Not a command. A folder that holds a seed's finished models isn't trained
again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import pathlib
from typing import Any

import jax
import ml_collections

from prm_jax import schema
from prm_jax.demo import demo_run as demo_run
from prm_jax.demo import demo_run_config as demo_run_config
from prm_jax.records import jsonl
from prm_jax.runtime import config_files
from prm_jax.scoring import scorer as scorer_lib
from prm_jax.search import search_models
from prm_jax.training import train_run

# The PRMs: the demo's, and one that learned less.
PRMS = ("full", "few")


def settings(small: bool = False) -> ml_collections.ConfigDict:
  """Returns the demo's config, and how many problems are searched.

  few_solutions, few_updates: what the second PRM learns, as much as those of
  after_first_error.py. problems, some: of a
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


@dataclasses.dataclass(frozen=True)
class Models:
  """A seed's policy and PRMs, as a search uses them, and its unseen problems.

  Args:
    problems: The problems.
    policy: The policy.
    scorers: Each PRM.
    verifier: Returns a PRM as a search uses it, by its name and the aggregate.
    max_tokens: The most tokens of a solution.
  """

  problems: Sequence[schema.Problem]
  policy: search_models.Policy
  scorers: Mapping[str, schema.Score]
  verifier: Callable[[str, str], search_models.Verifier]
  max_tokens: int


def build(
  c: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  seed: int,
  prms: Sequence[str] = PRMS,
) -> Models:
  """Returns a seed's models, trained as the demo of that seed trains them.

  The policy, its training solutions with exact labels and the PRM ("full") are
  those of `prm-jax demo --seed=SEED`. The second PRM ("few") learns the first
  few_solutions of them in few_updates. The demo's other models aren't trained.

  Args:
    c: The settings.
    workdir: The folder of the seed.
    seed: The seed.
    prms: The PRMs that are wanted; the others aren't trained.
  """
  config = demo_run_config.from_config(c, seed)
  workdir.mkdir(parents=True, exist_ok=True)
  inputs = demo_run.draw_inputs(config, seed)
  phase = demo_run.Phases(workdir / "seconds.json")
  base, policy = demo_run.train_policy(config, inputs, workdir, phase)
  path = workdir / "solutions.jsonl"
  if not path.exists():
    with phase("sample training solutions"):
      key = jax.random.fold_in(jax.random.key(seed), 1)
      jsonl.write_solutions(
        path,
        demo_run.training_solutions(config, policy, inputs.train, key),
      )
  solutions = jsonl.read_solutions(path)

  def train(
    name: str, data: Sequence[schema.Solution], **fit: Any
  ) -> scorer_lib.Scorer:
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

  few = solutions[: c.few_solutions]
  scorers = {}
  if "few" in prms:
    scorers["few"] = train("prm_few", few, steps=c.few_updates)
  if "full" in prms:
    scorers["full"] = train("prm", solutions)
  return Models(
    problems=inputs.test,
    policy=search_models.of_sampler(
      policy, config.sampling(config.temperature), seed=seed, slots=256
    ),
    scorers={name: scorer.score for name, scorer in scorers.items()},
    verifier=lambda name, aggregate: search_models.of_scorer(
      scorers[name], aggregate=aggregate, cache_tokens=131_072
    ),
    max_tokens=config.max_new_tokens,
  )
