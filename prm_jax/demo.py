"""The main job on the embedded testbed, from nothing to a report.

base LM on right solutions -> imperfect policy -> sampled training solutions
-> exact and Monte-Carlo step labels -> PRM, Monte-Carlo PRM and ORM, from the
same base -> N samples of unseen problems -> scores -> best-of-N -> report.

Each phase leaves its files in the workdir; a demo that was stopped goes on
behind the last whole phase, and its training behind the last checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import contextlib
import dataclasses
import functools
import json
import math
import pathlib
import resource
import sys
import time
from typing import Any

import jax
import ml_collections
import numpy as np

from prm_jax import arithmetic
from prm_jax import report
from prm_jax import sampler as sampler_lib
from prm_jax import schema
from prm_jax import scorer as scorer_lib
from prm_jax import tokenizer as tokenizer_lib
from prm_jax import voting
from prm_jax.evaluation import best_of_n
from prm_jax.evaluation import step_metrics
from prm_jax.labelling import monte_carlo
from prm_jax.train import experiment

REWARD_MODELS = ("prm", "prm_mc", "orm")
RUNS = ("base", "policy", *REWARD_MODELS)


@dataclasses.dataclass(frozen=True)
class DemoConfig:
  """The demo's sizes and its five training runs; see experiments/arithmetic.py.

  train_samples solutions are drawn of each training problem, as many at each
  of train_temperatures; the first monte_carlo_solutions of them are labelled
  by rollouts too, completions of each prefix.
  """

  task: arithmetic.Task
  vocabulary: int
  base_problems: int
  annotated_problems: int
  train_problems: int
  train_samples: int
  train_temperatures: tuple[float, ...]
  monte_carlo_solutions: int
  completions: int
  rollout_temperature: float
  test_split: str
  test_temperature: float
  test_problems: int
  num_samples: int
  max_new_tokens: int
  runs: Mapping[str, experiment.TrainConfig]

  def __post_init__(self):
    if self.train_samples % len(self.train_temperatures):
      raise schema.InputError(
        f"train_samples={self.train_samples} isn't a multiple of the"
        f" {len(self.train_temperatures)} train_temperatures"
      )


def from_config(c: ml_collections.ConfigDict) -> DemoConfig:
  names = [f.name for f in dataclasses.fields(DemoConfig)]
  plain = {k: c[k] for k in names if k not in ("task", "runs")}
  task: dict[str, Any] = {
    k: tuple(v) if isinstance(v, list | tuple) else v for k, v in c.task.items()
  }
  return DemoConfig(
    task=arithmetic.Task(**task),
    runs={name: experiment.from_config(run) for name, run in c.runs.items()},
    **plain | dict(train_temperatures=tuple(c.train_temperatures)),
  )


@dataclasses.dataclass(frozen=True)
class Phases:
  """Runs each phase, keeps its seconds in a file, and says what goes on."""

  path: pathlib.Path

  def seconds(self) -> dict[str, float]:
    return json.loads(self.path.read_text()) if self.path.exists() else {}

  @contextlib.contextmanager
  def __call__(self, name: str):
    print(f"--- {name}", flush=True)
    start = time.perf_counter()
    yield
    seconds = self.seconds()
    took = round(time.perf_counter() - start, 1)
    seconds[name] = round(seconds.get(name, 0.0) + took, 1)
    schema.write_json(self.path, seconds)
    print(f"    {took} s", flush=True)


@dataclasses.dataclass(frozen=True)
class Inputs:
  """What is drawn before anything is trained; a function of the seed alone."""

  base: list[schema.Solution]
  annotated: list[schema.Solution]
  train: list[schema.Problem]
  test: list[schema.Problem]
  tokenizer: tokenizer_lib.Tokenizer


def draw_inputs(config: DemoConfig, seed: int) -> Inputs:
  """Returns problems of disjoint splits, solutions to imitate, a tokenizer."""
  random = np.random.default_rng(seed)
  problems = functools.partial(
    arithmetic.problems, task=config.task, random=random
  )
  base = [
    arithmetic.solve(p, random) for p in problems(config.base_problems, "train")
  ]
  annotated = [
    arithmetic.solve(p, random, config.task)
    for p in problems(config.annotated_problems, "train")
  ]
  texts = [text for s in base[:2_000] for text in (s.problem, *s.steps)]
  return Inputs(
    base=base,
    annotated=annotated,
    train=problems(config.train_problems, "train"),
    test=problems(config.test_problems, config.test_split),
    tokenizer=tokenizer_lib.train_sentencepiece(
      texts, config.vocabulary, model_type="word"
    ),
  )


def train_policy(
  config: DemoConfig, inputs: Inputs, workdir: pathlib.Path, phase
) -> tuple[Any, sampler_lib.Sampler]:
  """Returns the base parameters and the policy made from them."""
  with phase("base"):
    _, base = experiment.train(
      config.runs["base"], inputs.base, inputs.tokenizer, workdir / "base"
    )
  with phase("policy"):
    model, params = experiment.train(
      config.runs["policy"],
      inputs.annotated,
      inputs.tokenizer,
      workdir / "policy",
      start_from=base,
    )
  return base, sampler_lib.Sampler(model, params, inputs.tokenizer)


def sample(
  config: DemoConfig,
  policy: sampler_lib.Sampler,
  problems: Sequence[schema.Problem],
  num_samples: int,
  temperature: float,
  key: jax.Array,
) -> list[list[schema.Solution]]:
  """Returns judged samples of each problem."""
  starts = [schema.Solution(p.id, p.problem, ()) for p in problems]
  rows = policy.generate(
    starts,
    num_samples,
    sampler_lib.Sampling(config.max_new_tokens, temperature),
    key,
  )
  return [[arithmetic.judge(s) for s in row] for row in rows]


def training_solutions(
  config: DemoConfig,
  policy: sampler_lib.Sampler,
  problems: Sequence[schema.Problem],
  key: jax.Array,
) -> list[schema.Solution]:
  """Returns distinct labelled samples, the problems in turn.

  A prefix of the list holds all samples of fewer problems.
  """
  each = config.train_samples // len(config.train_temperatures)
  by_temperature = [
    sample(config, policy, problems, each, t, jax.random.fold_in(key, k))
    for k, t in enumerate(config.train_temperatures)
  ]
  distinct: dict[tuple[str, ...], schema.Solution] = {}
  for rows in zip(*by_temperature, strict=True):
    for k, row in enumerate(rows):
      for s in row:
        new = dataclasses.replace(s, id=f"{s.id}/t{k}")
        distinct.setdefault((s.problem, *s.steps), new)
  kept = [s for s in distinct.values() if s.steps]
  drawn = config.train_samples * len(problems)
  print(f"    {drawn:,} samples, {len(kept):,} distinct ones with steps")
  return kept


def monte_carlo_labels(
  config: DemoConfig,
  policy: sampler_lib.Sampler,
  solutions: Sequence[schema.Solution],
  key: jax.Array,
) -> list[schema.Solution]:
  """Returns the solutions with labels from rollouts of the policy."""
  sampling = sampler_lib.Sampling(
    config.max_new_tokens, config.rollout_temperature
  )

  def generate(prefixes, n):
    return policy.generate(prefixes, n, sampling, key)

  def is_right(s):
    return arithmetic.final_answer(s.steps) == arithmetic.answer(s.problem)

  labelled, work = monte_carlo.label(
    solutions, generate, is_right, config.completions, stop_at_zero=True
  )
  print("    " + ", ".join(f"{n:,} {what}" for what, n in work.items()))
  return labelled


def run(
  c: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  seed: int,
  details: Mapping[str, Any],
) -> dict[str, Any]:
  """Runs or finishes the demo and returns the content of results.json.

  details: what the report says of config, versions, machine and command.
  """
  config = from_config(c)
  workdir.mkdir(parents=True, exist_ok=True)
  phase = Phases(workdir / "seconds.json")
  key = functools.partial(jax.random.fold_in, jax.random.key(seed))
  config = dataclasses.replace(
    config,
    runs={
      name: dataclasses.replace(run, seed=run.seed + seed)
      for name, run in config.runs.items()
    },
  )
  with phase("problems"):
    inputs = draw_inputs(config, seed)
    schema.write_problems(workdir / "problems.jsonl", inputs.test)
  base, policy = train_policy(config, inputs, workdir, phase)
  with phase("sample training solutions"):
    solutions = _kept(
      workdir / "solutions.jsonl",
      lambda: training_solutions(config, policy, inputs.train, key(1)),
    )
  with phase("Monte-Carlo labels"):
    by_rollouts = _kept(
      workdir / "solutions_mc.jsonl",
      lambda: monte_carlo_labels(
        config,
        policy,
        solutions[: config.monte_carlo_solutions],
        key(2),
      ),
    )
  scorers = {}
  for name in REWARD_MODELS:
    with phase(f"train {name}"):
      model, params = experiment.train(
        config.runs[name],
        by_rollouts if name == "prm_mc" else solutions,
        inputs.tokenizer,
        workdir / name,
        start_from=base,
      )
      scorers[name] = scorer_lib.Scorer(
        config.runs[name].program,
        model,
        params,
        inputs.tokenizer,
        config.runs[name].reading,
      )
  with phase("sample test solutions"):
    rows = sample(
      config,
      policy,
      inputs.test,
      config.num_samples,
      config.test_temperature,
      key(3),
    )
  with phase("score"):
    samples = [s for row in rows for s in row]
    step_scores = {
      name: scorer.score(samples) for name, scorer in scorers.items()
    }
    aggregates = {n: config.runs[n].aggregate for n in REWARD_MODELS}
    scores = solution_scores(step_scores, aggregates, samples)
  with phase("evaluate"):
    results, reliability = evaluate(rows, step_scores, scores, seed)
  results = dict(seed=seed) | results
  results["seconds"] = phase.seconds()
  results["peak_rss_gib"] = peak_rss_gib()
  schema.write_records(
    workdir / "samples.jsonl", _sample_records(samples, step_scores, scores)
  )
  schema.write_json(workdir / "results.json", results)
  curves = {n: learning_curve(workdir / n) for n in REWARD_MODELS}
  report.write(
    workdir / "report.html",
    results,
    showcase(inputs.test, rows, step_scores, scores),
    reliability,
    dict(details, train=curves),
  )
  with schema.replacing(workdir / "best_of_n.svg", "wb") as f:
    f.write(report.figure(results))
  return results


def _kept(
  path: pathlib.Path, make: Callable[[], Sequence[schema.Solution]]
) -> Sequence[schema.Solution]:
  """Returns the solutions in a file, which is made first if it isn't there."""
  if not path.exists():
    schema.write_solutions(path, make())
  return schema.read_solutions(path)


def solution_scores(
  step_scores: Mapping[str, Sequence[Sequence[float]]],
  aggregates: Mapping[str, str],
  samples: Sequence[schema.Solution],
) -> dict[str, np.ndarray]:
  """Returns one score per sample by each model, and the policy's own.

  log_prob_mean and log_prob_min over a sample's tokens know no arithmetic:
  what they reach is owed to the policy, not to labels.
  """
  scores = {
    name: np.array([voting.aggregate(s, aggregates[name]) for s in rows])
    for name, rows in step_scores.items()
  }
  scores["logprob"] = np.array([s.extra["log_prob_mean"] for s in samples])
  scores["logprob_min"] = np.array([s.extra["log_prob_min"] for s in samples])
  return scores


def evaluate(
  rows: Sequence[Sequence[schema.Solution]],
  step_scores: Mapping[str, Sequence[Sequence[float]]],
  scores: Mapping[str, np.ndarray],
  seed: int,
) -> tuple[dict[str, Any], dict[str, list]]:
  """Returns the results and the reliability curves."""
  shape = len(rows), len(rows[0])
  samples = [s for row in rows for s in row]
  correct = np.array([s.outcome for s in samples]).reshape(shape)
  flawed = np.array([not (s.labels or (0,))[-1] for s in samples])
  by_problem = {name: x.reshape(shape) for name, x in scores.items()}
  ns = [2**k for k in range(shape[1].bit_length())]
  last = ns[-1]
  pairs = [
    ("prm", "orm", last),
    ("prm", "majority", last),
    ("prm", "orm", min(4, last)),
    ("prm", "prm_mc", last),
    ("prm_mc", "orm", last),
  ]
  answers = [[s.answer for s in row] for row in rows]
  results = best_of_n.evaluate(
    by_problem,
    correct,
    answers,
    ns,
    pairs=[p for p in pairs if {p[0], p[1]} <= {*scores, "majority"}],
    weighted=[n for n in ("prm", "orm") if n in scores],
    seed=seed,
  )
  if last >= 64:
    curve = voting.best_of_n(by_problem["prm"], correct, [last, 64])
    results["paired"][f"prm_at_{last}_minus_prm_at_64"] = (
      best_of_n.paired_difference(curve[:, 0], curve[:, 1], seed=seed)
    )
  results["false_positive_share"] = {
    name: best_of_n.picked_false_positive_share(
      by_problem[name], correct, flawed.reshape(shape), [last]
    )[0]
    for name in step_scores
  }
  problems = [i for i, row in enumerate(rows) for _ in row]
  labels = [s.labels or () for s in samples]
  reliability = {}
  for name in step_scores:
    if name == "orm":
      continue
    measured = step_metrics.evaluate(
      step_scores[name], labels, problems=problems, num_resamples=200
    )
    reliability[name] = [
      dict(score=b["mean_score"], correct=b["share_correct"], count=b["count"])
      for b in measured["reliability"]
    ]
    for metric in ("auroc", "auprc_error", "brier", "ece"):
      by_model = results.setdefault(f"step_{metric}", {})
      by_model[name] = measured[metric]
    results.setdefault("min_on_last_share", {})[name] = measured[
      "min_on_last_share"
    ]
  results["policy"] = dict(
    outcome=float(correct.mean()),
    all_steps_right=float(1 - flawed.mean()),
    right_by_luck=float(correct.reshape(-1)[flawed].mean())
    if flawed.any()
    else None,
    distinct_samples=len({(s.problem, *s.steps) for s in samples}),
  )
  return results, reliability


def _sample_records(samples, step_scores, scores):
  for i, s in enumerate(samples):
    record = schema.record_from_solution(s)
    record["step_scores"] = {n: x[i] for n, x in step_scores.items()}
    record["scores"] = {n: float(x[i]) for n, x in scores.items()}
    yield record


def showcase(
  problems: Sequence[schema.Problem],
  rows: Sequence[Sequence[schema.Solution]],
  step_scores: Mapping[str, Sequence[Sequence[float]]],
  scores: Mapping[str, np.ndarray],
) -> list[dict[str, Any]]:
  """Returns ten solutions to look at, failures of the PRM first.

  The PRM's wrong picks, then the ORM's where the PRM is right, then lucky
  answers, then right ones; as many as there are, the earliest problems first.
  """
  num = len(rows[0])
  kinds: dict[str, list[tuple[str, int, int]]] = {
    "prm wrong": [],
    "orm wrong": [],
    "lucky": [],
    "right": [],
  }
  for i, row in enumerate(rows):
    picked = {
      name: int(scores[name][i * num : (i + 1) * num].argmax())
      for name in ("prm", "orm")
    }
    mine, other = row[picked["prm"]], row[picked["orm"]]
    if not mine.outcome:
      kinds["prm wrong"].append(("prm", i, picked["prm"]))
    elif not other.outcome:
      kinds["orm wrong"].append(("orm", i, picked["orm"]))
    elif other.labels and not other.labels[-1]:
      kinds["lucky"].append(("orm", i, picked["orm"]))
    else:
      kinds["right"].append(("prm", i, picked["prm"]))
  quota = {"prm wrong": 3, "orm wrong": 4, "lucky": 2, "right": 10}
  chosen: list[tuple[str, int, int]] = []
  for kind, found in kinds.items():
    chosen += found[: quota[kind]]
  out = []
  for by, i, j in chosen[:10]:
    s = rows[i][j]
    out.append(
      dict(
        problem=s.problem,
        answer=problems[i].answer,
        picked_by=by,
        steps=list(s.steps),
        labels=list(s.labels or ()),
        scores={n: list(x[i * num + j]) for n, x in step_scores.items()},
        outcome=s.outcome,
        solution_answer=s.answer,
      )
    )
  return out


def learning_curve(folder: pathlib.Path) -> list[list[float]]:
  """Returns [step, loss] as metrics.jsonl has them."""
  return [
    [r["step"], math.nan if r["loss_nats"] is None else r["loss_nats"]]
    for _, r in schema.read_records(folder / "metrics.jsonl")
    if r["kind"] == "train"
  ]


def peak_rss_gib() -> float:
  """Returns the most memory this process ever held, in GiB."""
  # Linux counts in KiB, macOS in bytes.
  unit = 1 if sys.platform == "darwin" else 1024
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return round(peak * unit / 2**30, 2)


def table(results: Mapping[str, Any]) -> str:
  """Returns the accuracies as plain text, one row a method."""
  ns = results["n"]
  lines = [
    f"{'best of N':>14}" + "".join(f"{n:>7}" for n in ns),
  ]
  for name, curve in results["accuracy"].items():
    lines.append(f"{name:>14}" + "".join(f"{x:7.3f}" for x in curve))
  lines.append("")
  for name, x in results["paired"].items():
    lines.append(
      f"{name}: {x['mean']:+.3f} [{x['low']:+.3f}, {x['high']:+.3f}]"
    )
  return "\n".join(lines)
