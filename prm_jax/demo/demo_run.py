"""The main job on the embedded testbed, from nothing to a report.

base LM on right solutions -> imperfect policy -> sampled training solutions
-> exact and Monte-Carlo step labels -> PRM, Monte-Carlo PRM and ORM, from the
same base -> N samples of unseen problems -> scores -> best-of-N -> report.

Each phase leaves its files in the workdir; a demo that was stopped
resumes after the last whole phase, and its training after the last checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import contextlib
import dataclasses
import functools
import itertools
import logging
import pathlib
import resource
import shutil
import sys
import time
from typing import Any

import jax
import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.demo import comparison
from prm_jax.demo import demo_config
from prm_jax.labelling import monte_carlo
from prm_jax.models import sharding
from prm_jax.policy import sampler as sampler_lib
from prm_jax.records import jsonl
from prm_jax.reports import demo_page
from prm_jax.runtime import checks
from prm_jax.runtime import files
from prm_jax.runtime import progress as progress_lib
from prm_jax.scoring import scorer as scorer_lib
from prm_jax.testbed import arithmetic
from prm_jax.text import tokenizer as tokenizer_lib
from prm_jax.text import tokenizer_files
from prm_jax.training import train_run
from prm_jax.view import site
from prm_jax.view import view_inputs

_logger = logging.getLogger(__name__)

REWARD_MODELS = ("prm", "prm_mc", "orm")
RUNS = ("base", "policy", *REWARD_MODELS)
# What a demo writes besides the folders of its runs and of its report.
FILES = (
  *("problems.jsonl", "solutions.jsonl", "solutions_mc.jsonl", "samples.jsonl"),
  *("results.json", "seconds.json", "environment.json", "config.json"),
)
REPORT = "report"
# The report has all samples of the first problems, so many or a few more.
_REPORTED_SAMPLES = 2_000


def check(config: demo_config.DemoConfig, seed: int) -> None:
  """Refuses what can be refused before anything is drawn or trained.

  Raises:
    InputError: no such problems or vocabulary, runs that the devices don't fit
      or that can't begin with the base's parameters.
  """
  vocab_size = draw_inputs(config, seed).tokenizer.vocab_size
  for run in config.runs.values():
    sharding.mesh_for(run.mesh, run.packing.batch_size)
    train_run.check_init(run, config.runs["base"], vocab_size)


def clear(workdir: pathlib.Path) -> None:
  """Removes what a demo wrote, and nothing else."""
  for name in (*RUNS, REPORT):
    shutil.rmtree(workdir / name, ignore_errors=True)
  for name in FILES:
    (workdir / name).unlink(missing_ok=True)


@dataclasses.dataclass(frozen=True)
class Phases:
  """Runs each phase, keeps its seconds in a file, and logs its name.

  What a stopped phase took counts too. A phase that is run again from its
  beginning replaces its seconds; one that resumes adds to them.
  """

  path: pathlib.Path

  def seconds(self) -> dict[str, float]:
    if not self.path.exists():
      return {}
    seconds = files.read_json(self.path)
    if not all(checks.is_a(x, float) for x in seconds.values()):
      raise errors.InputError(
        f"{self.path}: expected the seconds of each phase; remove it"
      )
    return seconds

  @contextlib.contextmanager
  def __call__(self, name: str, *, resumes: bool = False):
    _logger.info(f"--- {name}")
    start = time.perf_counter()
    try:
      yield
    finally:
      seconds = self.seconds()
      took = time.perf_counter() - start
      before = seconds.get(name, 0.0) if resumes else 0.0
      files.write_json(self.path, seconds | {name: round(before + took, 1)})
    _logger.info(f"    {took:.1f} s")


@dataclasses.dataclass(frozen=True)
class Inputs:
  """What is drawn before anything is trained; a function of the seed alone."""

  base: list[schema.Solution]
  annotated: list[schema.Solution]
  train: list[schema.Problem]
  test: list[schema.Problem]
  tokenizer: tokenizer_lib.Tokenizer


def draw_inputs(config: demo_config.DemoConfig, seed: int) -> Inputs:
  """Returns problems of disjoint splits, solutions to imitate, a tokenizer.

  Each part has a generator of its own: the test problems of a seed are the
  same whatever the sizes of the others.
  """
  for_base, for_annotated, for_train, for_test = np.random.default_rng(
    seed
  ).spawn(4)
  problems = functools.partial(arithmetic.problems, task=config.task)
  base = [
    arithmetic.solve(p, for_base)
    for p in problems(config.base_problems, "train", random=for_base)
  ]
  annotated = [
    arithmetic.solve(p, for_annotated, config.task)
    for p in problems(config.annotated_problems, "train", random=for_annotated)
  ]
  texts = [text for s in base[:2_000] for text in (s.problem, *s.steps)]
  return Inputs(
    base=base,
    annotated=annotated,
    train=problems(config.train_problems, "train", random=for_train),
    test=problems(config.test_problems, config.test_split, random=for_test),
    tokenizer=tokenizer_files.train_sentencepiece(
      texts, config.vocabulary, model_type="word"
    ),
  )


def train_policy(
  config: demo_config.DemoConfig, inputs: Inputs, workdir: pathlib.Path, phase
) -> tuple[Any, sampler_lib.Sampler]:
  """Returns the base parameters and the policy made from them."""
  with phase("base", resumes=True):
    _, base = train_run.train(
      config.runs["base"], inputs.base, inputs.tokenizer, workdir / "base"
    )
  with phase("policy", resumes=True):
    model, params = train_run.train(
      config.runs["policy"],
      inputs.annotated,
      inputs.tokenizer,
      workdir / "policy",
      init_from=base,
    )
  return base, sampler_lib.Sampler(model, params, inputs.tokenizer)


def sample(
  config: demo_config.DemoConfig,
  policy: sampler_lib.Sampler,
  problems: Sequence[schema.Problem],
  num_samples: int,
  temperature: float,
  key: jax.Array,
  progress: Callable[[int], None] = lambda done: None,
) -> list[list[schema.Solution]]:
  """Returns graded samples of each problem.

  Args:
    config: The demo's config.
    policy: The policy.
    problems: The problems.
    num_samples: The number of samples of each problem.
    temperature: The temperature of sampling.
    key: The random key.
    progress: Called with the number of samples so far.
  """
  starts = [schema.Solution(p.id, p.problem, ()) for p in problems]
  rows = policy.generate(
    starts, num_samples, config.sampling(temperature), key, progress
  )
  return [[arithmetic.judge(s) for s in row] for row in rows]


def test_samples(
  config: demo_config.DemoConfig,
  policy: sampler_lib.Sampler,
  problems: Sequence[schema.Problem],
  key: jax.Array,
) -> list[list[schema.Solution]]:
  """Returns the num_samples judged samples of each test problem."""
  num, temperature = config.num_samples, config.temperature
  with progress_lib.showing("sample", len(problems) * num) as update:
    return sample(config, policy, problems, num, temperature, key, update)


def training_solutions(
  config: demo_config.DemoConfig,
  policy: sampler_lib.Sampler,
  problems: Sequence[schema.Problem],
  key: jax.Array,
) -> list[schema.Solution]:
  """Returns distinct labelled samples, the problems in turn.

  A prefix of the list holds all samples of fewer problems.
  """
  each = config.train_samples // len(config.train_temperatures)
  drawn = config.train_samples * len(problems)
  by_temperature = []
  with progress_lib.showing("sample", drawn) as update:
    for k, t in enumerate(config.train_temperatures):
      of_t = jax.random.fold_in(key, k)
      tell = _after(k * each * len(problems), update)
      by_temperature.append(
        sample(config, policy, problems, each, t, of_t, tell)
      )
  distinct: dict[tuple[str, ...], schema.Solution] = {}
  for rows in zip(*by_temperature, strict=True):
    for k, row in enumerate(rows):
      for s in row:
        new = dataclasses.replace(s, id=f"{s.id}/t{k}")
        distinct.setdefault((s.problem, *s.steps), new)
  kept = [s for s in distinct.values() if s.steps]
  _logger.info(f"    {drawn:,} samples, {len(kept):,} distinct ones with steps")
  return kept


def _after(count: int, update: Callable[[int], None]) -> Callable[[int], None]:
  """Returns the update of a part of the work, after `count` that are done."""
  return lambda done: update(count + done)


def monte_carlo_labels(
  config: demo_config.DemoConfig,
  policy: sampler_lib.Sampler,
  solutions: Sequence[schema.Solution],
  key: jax.Array,
) -> list[schema.Solution]:
  """Returns the solutions with labels from rollouts of the policy."""
  sampling, rounds = config.sampling(config.temperature), itertools.count()

  def generate(prefixes, n):
    # One key a round, or a prefix would draw the numbers of the one before.
    return policy.generate(
      prefixes, n, sampling, jax.random.fold_in(key, next(rounds))
    )

  total = monte_carlo.num_prefixes(solutions)
  with progress_lib.showing("roll out", total, "prefix") as update:
    labelled, work = monte_carlo.label(
      solutions,
      generate,
      arithmetic.verify,
      monte_carlo.Options(config.completions, stop_at_zero=True),
      find_answer=arithmetic.final_answer,
      progress=update,
    )
  _logger.info("    " + ", ".join(f"{n:,} {what}" for what, n in work.items()))
  return labelled


def score_all(
  scorers: Mapping[str, scorer_lib.Scorer], samples: Sequence[schema.Solution]
) -> dict[str, list[schema.StepScores]]:
  """Returns every model's scores of the samples' steps."""
  total = len(scorers) * len(samples)
  with progress_lib.showing("score", total) as update:
    return {
      name: scorer.score(samples, progress=_after(k * len(samples), update))
      for k, (name, scorer) in enumerate(scorers.items())
    }


def run(
  config: demo_config.DemoConfig,
  workdir: pathlib.Path,
  seed: int,
  details: Mapping[str, Any],
) -> dict[str, Any]:
  """Runs or finishes the demo and returns the content of results.json.

  Args:
    config: The demo's config.
    workdir: The folder of models, results and report.
    seed: What is added to the seed of every run.
    details: Config, versions, machine and command, for the report.
  """
  workdir.mkdir(parents=True, exist_ok=True)
  files.write_json(workdir / "environment.json", details)
  phase = Phases(workdir / "seconds.json")
  key = functools.partial(jax.random.fold_in, jax.random.key(seed))
  with phase("problems"):
    inputs = draw_inputs(config, seed)
    jsonl.write_problems(workdir / "problems.jsonl", inputs.test)
  base, policy = train_policy(config, inputs, workdir, phase)
  with phase("sample training solutions", resumes=True):
    solutions = _kept(
      workdir / "solutions.jsonl",
      lambda: training_solutions(config, policy, inputs.train, key(1)),
    )
  with phase("Monte-Carlo labels", resumes=True):
    by_rollouts = _kept(
      workdir / "solutions_mc.jsonl",
      lambda: monte_carlo_labels(
        config, policy, solutions[: config.monte_carlo_solutions], key(2)
      ),
    )
  labelled = dict(prm=solutions, prm_mc=by_rollouts, orm=solutions)
  scorers = {
    name: _train_scorer(config, name, data, inputs, base, workdir, phase)
    for name, data in labelled.items()
  }
  with phase("sample test solutions"):
    rows = test_samples(config, policy, inputs.test, key(3))
  with phase("score"):
    samples = [s for row in rows for s in row]
    step_scores = score_all(scorers, samples)
    aggregates = dict.fromkeys(REWARD_MODELS, config.aggregate)
    scores = comparison.solution_scores(step_scores, aggregates, samples)
    ranking = comparison.rankings(step_scores, aggregates, scores)
  with phase("evaluate"):
    results = comparison.evaluate(rows, step_scores, scores, ranking, seed)
  results = dict(
    seed=seed,
    **results,
    seconds=phase.seconds(),
    peak_rss_gib=peak_rss_gib(),
    run=dict(details, evaluated=dict(kind=demo_page.KIND)),
  )
  records = comparison.sample_records(samples, step_scores, scores)
  files.write_records(workdir / "samples.jsonl", records)
  files.write_json(workdir / "results.json", results)
  _write_report(workdir, samples, step_scores)
  return results


def _train_scorer(config, name, data, inputs, base, workdir, phase):
  """Returns the scorer of a reward model, trained from the base's parameters."""
  run = config.runs[name]
  with phase(f"train {name}", resumes=True):
    model, params = train_run.train(
      run, data, inputs.tokenizer, workdir / name, init_from=base
    )
    return scorer_lib.Scorer(
      *(run.program, model, params, inputs.tokenizer, run.encoding),
      judged=run.objective.judged,
    )


def _write_report(
  workdir: pathlib.Path,
  samples: Sequence[schema.Solution],
  step_scores: comparison.StepScores,
) -> None:
  """Writes results, runs and the first problems' samples as pages."""
  written = [workdir / "results.json"]
  written += [workdir / name / "metrics.jsonl" for name in RUNS]
  inputs = view_inputs.read(written)
  problems = [s.problem for s in samples]
  num = len(problems[:_REPORTED_SAMPLES])
  while 0 < num < len(problems) and problems[num] == problems[num - 1]:
    num += 1
  inputs.paths["samples"] = workdir / "samples.jsonl"
  inputs.solutions["samples"] = [
    view_inputs.Read(s, {name: x[i] for name, x in step_scores.items()})
    for i, s in enumerate(samples[:num])
  ]
  site.write(workdir / REPORT, site.pages(inputs))


def _kept(
  path: pathlib.Path, make: Callable[[], Sequence[schema.Solution]]
) -> Sequence[schema.Solution]:
  """Returns the solutions in a file, which is made first if it isn't there."""
  if not path.exists():
    jsonl.write_solutions(path, make())
  return jsonl.read_solutions(path)


def peak_rss_gib() -> float:
  """Returns the most memory this process ever held, in GiB."""
  # Linux counts in KiB, macOS in bytes.
  unit = 1 if sys.platform == "darwin" else 1024
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return round(peak * unit / 2**30, 2)
