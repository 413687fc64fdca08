"""What the experiments on labelling share: base, policy, pool, test, points.

Not a command. The experiments on Monte-Carlo labels, their budget, OmegaPRM and
active selection run on it, with one config and one --workdir: whichever comes
first trains a seed's base and policy, and draws its pool and its test samples,
for all. Two processes may work on different seeds at a time; their points join
in one output.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import fcntl
import functools
import inspect
import json
import pathlib
import sys
import time
from typing import Any

import jax
import ml_collections
import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax import voting
from prm_jax.demo import demo_config
from prm_jax.demo import demo_run
from prm_jax.demo import demo_run_config
from prm_jax.evaluation import processbench_metrics
from prm_jax.evaluation import step_metrics
from prm_jax.labelling import judge_prompts
from prm_jax.labelling import llm_judge
from prm_jax.policy import rollout_engine
from prm_jax.policy import sampler as sampler_lib
from prm_jax.records import jsonl
from prm_jax.runtime import config_files
from prm_jax.runtime import environment
from prm_jax.runtime import files
from prm_jax.runtime import outputs
from prm_jax.scoring import scorer as scorer_lib
from prm_jax.testbed import arithmetic
from prm_jax.testbed import judge
from prm_jax.text import tokenizer_files
from prm_jax.training import train_config
from prm_jax.training import train_run
from prm_jax.training import train_run_config

WORKDIR = pathlib.Path("runs/labelling")
# Drawn on validation problems, to choose each threshold.
VALIDATION_PROBLEMS, VALIDATION_SAMPLES = 50, 8
AGGREGATES = ("min", "last", "product")
# A judge reads a problem and a whole solution, and writes about as much.
VERIFIER_ROW_TOKENS, MAX_CHAIN_TOKENS = 192, 128

Point = Mapping[str, Any]


def settings(small: bool = False) -> ml_collections.ConfigDict:
  """Returns the demo's config with a smaller pool and shorter runs.

  pool_problems, verifier_problems: the training problems whose solutions are
  labelled, and those after them that a verifier learns from.
  """
  c = config_files.load(pathlib.Path(__file__).parent / "arithmetic.py")
  with c.unlocked():
    # Room for a verifier's words.
    c.vocabulary = 96
    c.test_problems, c.num_samples = 100, 64
    c.pool_problems, c.verifier_problems = 2_000, 60
    c.runs.prm.fit.steps = c.runs.prm.fit.checkpoint_every = 200
    verifier = ml_collections.ConfigDict(c.runs.prm.to_dict())
    verifier.program, verifier.objective = "sft", ml_collections.ConfigDict()
    verifier.segmenter = ""
    verifier.packing.batch_size = 32
    verifier.packing.sequence_length = VERIFIER_ROW_TOKENS
    verifier.encoding.max_tokens = VERIFIER_ROW_TOKENS
    verifier.fit.steps = verifier.fit.checkpoint_every = 300
    c.verifier = verifier
    if small:
      c.base_problems, c.annotated_problems = 3_000, 500
      c.train_problems = 100
      c.pool_problems = 60
      c.test_problems, c.num_samples = 10, 8
      for run in (*c.runs.values(), verifier):
        run.fit.steps = 20
        run.optimizer.warmup_steps = 10
      # A policy that is never right leaves nothing to measure, and chains that
      # can't be read no consensus.
      c.runs.base.fit.steps = 250
      c.verifier_problems = 30
      verifier.fit.steps = verifier.fit.checkpoint_every = 150
  return c


@dataclasses.dataclass(frozen=True)
class Testbed:
  """All that a seed's labels and reward models are made of."""

  c: ml_collections.ConfigDict
  config: demo_config.DemoConfig
  seed: int
  workdir: pathlib.Path
  inputs: demo_run.Inputs
  base: Any
  policy: sampler_lib.Sampler

  def key(self, number: int) -> jax.Array:
    return jax.random.fold_in(jax.random.key(self.seed), number)

  @functools.cached_property
  def pool(self) -> Sequence[schema.Solution]:
    """Distinct solutions of the policy, judged; half of them drawn hot."""
    problems = self.inputs.train[: self.c.pool_problems]
    return self.kept(
      "pool",
      lambda: demo_run.training_solutions(
        self.config, self.policy, problems, self.key(1)
      ),
    )

  @functools.cached_property
  def test(self) -> list[list[schema.Solution]]:
    """The num_samples judged samples of each test problem."""
    samples = self.kept(
      "test",
      lambda: _flat(
        demo_run.test_samples(
          self.config, self.policy, self.inputs.test, self.key(3)
        )
      ),
    )
    return _rows(samples, self.config.num_samples)

  @functools.cached_property
  def validation(self) -> Sequence[schema.Solution]:
    """Judged samples of validation problems, to choose a threshold on."""
    problems = arithmetic.problems(
      VALIDATION_PROBLEMS,
      "validation",
      task=self.config.task,
      random=np.random.default_rng([self.seed, 1]),
    )
    return self.kept(
      "validation",
      lambda: [
        s
        for s in _flat(
          demo_run.sample(
            self.config,
            self.policy,
            problems,
            VALIDATION_SAMPLES,
            self.config.temperature,
            self.key(4),
          )
        )
        if s.steps
      ],
    )

  @functools.cached_property
  def verifier_solutions(self) -> Sequence[schema.Solution]:
    """Judged solutions of problems after the pool's."""
    return solutions_of(
      self,
      "verifier_solutions",
      self.c.pool_problems,
      self.c.verifier_problems,
    )

  @functools.cached_property
  def verifier(self) -> sampler_lib.Sampler:
    """A generative verifier, trained on chains of verifier_solutions.

    They are about 1 % of what the demo labels.
    """
    chains, counts = judge.chains(self.verifier_solutions)
    print("    " + described(counts))
    run = train_run_config.from_config(self.c.verifier)
    model, params = train_run.train(
      dataclasses.replace(run, seed=run.seed + self.seed),
      chains,
      self.inputs.tokenizer,
      self.workdir / "verifier",
      init_from=self.base,
    )
    return sampler_lib.Sampler(model, params, self.inputs.tokenizer)

  def kept(
    self, name: str, make: Callable[[], Iterable[schema.Solution]]
  ) -> list[schema.Solution]:
    """Returns the solutions in a file, which is made if it isn't there."""
    path = self.workdir / f"{name}.jsonl"
    if not path.exists():
      jsonl.write_solutions(path, make())
    return jsonl.read_solutions(path)


def build(
  c: ml_collections.ConfigDict, workdir: pathlib.Path, seed: int
) -> Testbed:
  """Returns a seed's testbed; what its workdir holds isn't trained again.

  A config with a verifier has a tokenizer that knows its words, too.
  """
  config = demo_run_config.from_config(c, seed)
  inputs = demo_run.draw_inputs(config, seed)
  if c.verifier_problems:
    texts = [x for s in inputs.base[:2_000] for x in (s.problem, *s.steps)]
    inputs = dataclasses.replace(
      inputs,
      tokenizer=tokenizer_files.train_sentencepiece(
        [*texts, " ".join(judge_prompts.DIAL_WORDS)],
        config.vocabulary,
        model_type="word",
      ),
    )
  workdir.mkdir(parents=True, exist_ok=True)
  phase = demo_run.Phases(workdir / "seconds.json")
  base, policy = demo_run.train_policy(config, inputs, workdir, phase)
  return Testbed(c, config, seed, workdir, inputs, base, policy)


def solutions_of(
  bed: Testbed, name: str, first: int, count: int
) -> list[schema.Solution]:
  """Returns judged solutions of training problems, kept in a file."""
  problems = bed.inputs.train[first : first + count]
  return bed.kept(
    name,
    lambda: demo_run.training_solutions(
      bed.config, bed.policy, problems, bed.key(6)
    ),
  )


# --- Rollouts ---------------------------------------------------------------


class Completer:
  """The rollout engine as a Generate that remembers what it has drawn.

  Labellers that ask for the same prefix under the same id share its rollouts,
  as they would if each ran alone: a completion depends on the id alone. So
  their own counts are those of a run of their own, and the engine's work isn't
  done twice.
  """

  def __init__(
    self,
    engine: rollout_engine.Engine,
    sampling: sampler_lib.Sampling,
    key: jax.Array,
  ):
    self.engine, self.sampling, self.key = engine, sampling, key
    self.drawn: dict[str, list[schema.Solution]] = {}
    self.work = rollout_engine.Work()
    self.seconds = 0.0

  def __call__(
    self, prefixes: Sequence[schema.Solution], n: int
  ) -> list[list[schema.Solution]]:
    new = [p for p in prefixes if len(self.drawn.get(p.id, ())) < n]
    start = time.perf_counter()
    rows, work = self.engine.generate(new, n, self.sampling, self.key)
    self.seconds += time.perf_counter() - start
    self.work += work
    self.drawn |= zip((p.id for p in new), rows, strict=True)
    return [self.drawn[p.id][:n] for p in prefixes]

  def cost(self) -> dict[str, Any]:
    """Returns what the engine has done so far."""
    return dataclasses.asdict(self.work) | dict(
      slot_use=round(self.work.slot_use, 4),
      engine_s=round(self.seconds, 1),
      tokens_per_s=round(self.work.decoded / max(self.seconds, 1e-9)),
    )


def completer(bed: Testbed) -> Completer:
  """Returns the policy's rollouts, as test samples are drawn."""
  policy, config = bed.policy, bed.config
  return Completer(
    rollout_engine.of(policy),
    config.sampling(config.temperature),
    bed.key(2),
  )


def judged(
  bed: Testbed, solutions: Sequence[schema.Solution]
) -> tuple[list[schema.Solution], dict[str, int]]:
  """Returns the solutions with the verifier's labels, and its work.

  One greedy chain of each, by the log-likelihood of its verdict words.
  """
  sampling = sampler_lib.Sampling(MAX_CHAIN_TOKENS, temperature=0.0)
  return llm_judge.label(
    solutions,
    functools.partial(bed.verifier.generate, sampling=sampling, key=bed.key(5)),
    judge_prompts.DIAL,
    log_likelihoods=bed.verifier.log_likelihoods,
  )


# --- Reward models ----------------------------------------------------------


def train(
  bed: Testbed,
  name: str,
  solutions: Sequence[schema.Solution],
  *,
  soft: bool = False,
  times: int = 1,
  run: train_config.TrainConfig | None = None,
) -> scorer_lib.Scorer:
  """Returns a reward model of labelled solutions.

  soft: labels are values, and one below 1/2 is no error. times: how many times
    the run's updates it makes. run: the run, the config's prm run if it is
    None.
  """
  run = run or bed.config.runs["prm"]
  fit = dataclasses.replace(run.fit, steps=times * run.fit.steps)
  run = dataclasses.replace(run, fit=fit)
  if soft:
    labels = dataclasses.replace(run.objective.labels, after_first_error="keep")
    objective = dataclasses.replace(run.objective, labels=labels)
    run = dataclasses.replace(run, objective=objective)
  model, params = train_run.train(
    run,
    solutions,
    bed.inputs.tokenizer,
    bed.workdir / name,
    init_from=bed.base,
  )
  return scorer_lib.Scorer(
    *(run.program, model, params, bed.inputs.tokenizer, run.encoding),
    judged=run.objective.judged,
  )


def measure(bed: Testbed, scorer: scorer_lib.Scorer) -> dict[str, Any]:
  """Returns what measure_scores does, and the picks by problem.

  picks: P(the best of all samples is right) of each test problem, by the
  minimum over steps, as words of one text.
  """
  scores = scorer.score(_flat(bed.test))
  measures = measure_scores(
    scores,
    scorer.score(bed.validation),
    bed.test,
    bed.validation,
    "min",
  )
  shape = len(bed.test), len(bed.test[0])
  best = voting.best_of_n(
    np.array(voting.ranking_scores(scores, "min")).reshape(shape),
    np.array([s.outcome for s in _flat(bed.test)]).reshape(shape),
    [shape[1]],
  )
  return measures | dict(picks=" ".join(f"{x:.3g}" for x in best[:, 0]))


def measure_scores(
  step_scores: Sequence[schema.StepScores],
  tuning_scores: Sequence[schema.StepScores],
  rows: Sequence[Sequence[schema.Solution]],
  tuning: Sequence[schema.Solution],
  aggregate: str,
) -> dict[str, Any]:
  """Returns step AUROC, first-error accuracy and best-of-N of the samples.

  By the scores of all samples and of those that a threshold is tuned on.
  """
  samples = [s for row in rows for s in row]
  threshold = processbench_metrics.tune_threshold(
    [x.scores for x in tuning_scores], truth(tuning)
  )
  located = processbench_metrics.evaluate(
    [x.scores for x, s in zip(step_scores, samples) if s.steps],
    truth([s for s in samples if s.steps]),
    threshold=threshold,
    num_resamples=200,
  )
  problems = [i for i, row in enumerate(rows) for _ in row]
  steps = step_metrics.evaluate(
    [x.scores for x in step_scores],
    [s.labels or () for s in samples],
    problems=problems,
    num_resamples=200,
  )
  shape = len(rows), len(rows[0])
  correct = np.array([s.outcome for s in samples]).reshape(shape)
  ns = [2**k for k in range(shape[1].bit_length())]
  best = {}
  for how in AGGREGATES:
    ranking = np.array(voting.ranking_scores(step_scores, how))
    curve = voting.best_of_n(ranking.reshape(shape), correct, ns)
    best[how] = [float(x) for x in curve.mean(0)]
  num = located["num_err"] + located["num_cor"]
  hits = (
    located["acc_err"] * located["num_err"]
    + located["acc_cor"] * located["num_cor"]
  )
  return dict(
    aggregate=aggregate,
    n=ns,
    best_of_n=best,
    step_auroc=steps["auroc"],
    first_error_accuracy=hits / num,
    first_error_f1=located["f1"],
    threshold=threshold,
    policy_accuracy=float(correct.mean()),
    majority=float(
      voting.vote_accuracy(
        [[s.answer for s in row] for row in rows], correct, None, ns[-1:]
      ).mean()
    ),
  )


def truth(solutions: Sequence[schema.Solution]) -> list[int]:
  return [schema.first_error(s.labels or ()) for s in solutions]


# --- Points -----------------------------------------------------------------


@contextlib.contextmanager
def exit_on_input_error() -> Iterator[None]:
  """Ends the program with one line if its input is refused inside."""
  try:
    yield
  except errors.InputError as e:
    sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {e}")


@exit_on_input_error()
def run(
  description: str,
  output: str,
  names: Sequence[str],
  points_of_seed: Callable[[Testbed, Sequence[str]], Iterator[Point]],
  table: Callable[[Sequence[Point]], str],
  *,
  make: Callable[..., ml_collections.ConfigDict] = settings,
  workdir: pathlib.Path = WORKDIR,
  pictures: Callable[[Sequence[Point], pathlib.Path], None] | None = None,
  name_of: Callable[[Point], str] = lambda point: point["name"],
) -> None:
  """Runs the command line of an experiment on this testbed.

  points_of_seed: yields the points of the names that are still to do. make,
  workdir: other settings, of a test of the path if they can be small, and where
  they are run. pictures: draws all points
  next to the output, whenever there is one more and at the end. name_of:
  returns the name of a point.
  """
  parser = parser_of(description, output, workdir, "0,1,2")
  parser.add_argument("--only", default=",".join(names))
  has_small = bool(inspect.signature(make).parameters)
  if has_small:
    parser.add_argument("--small", action="store_true")
  args = parser.parse_args()
  wanted = names_of(args.only, names)
  seeds = numbers(args.seeds)

  def command(points: Sequence[Point]) -> str:
    return command_of(points, names, args, parser, name_of)

  c = make(args.small) if has_small else make()
  details = environment.describe(c)
  if args.table:
    # Whatever config they are of: nothing is added to them.
    saved = files.read_json(args.output) if args.output.exists() else {}
    points = saved.get("points", [])
    if pictures is not None:
      pictures(points, args.output)
    print(table(points))
    return
  outputs.check(dict(output=args.output))
  for seed in seeds:
    workdir = args.workdir / str(seed)
    saved = read_points(args.output, details["config"])
    done = {name_of(p) for p in saved if p["seed"] == seed}
    todo = [name for name in wanted if name not in done]
    if not todo:
      continue
    environment.check_workdir(workdir, details["config"])
    bed = build(c, workdir, seed)
    for point in points_of_seed(bed, todo):
      point = dict(seed=seed) | point
      add_point(args.output, args.workdir, point, details, command)
      if pictures is not None:
        pictures(read_points(args.output, details["config"]), args.output)
  points = read_points(args.output, details["config"])
  if pictures is not None:
    pictures(points, args.output)
  print(table(points))


def parser_of(
  description: str, output: files.PathLike, workdir: pathlib.Path, seeds: str
) -> argparse.ArgumentParser:
  """Returns the parser of what all experiments over seeds take."""
  parser = argparse.ArgumentParser(description=description)
  parser.add_argument("--output", type=pathlib.Path, default=output)
  parser.add_argument("--workdir", type=pathlib.Path, default=workdir)
  parser.add_argument("--seeds", default=seeds)
  parser.add_argument("--table", action="store_true")
  return parser


def command_of(
  points: Sequence[Point],
  names: Sequence[str],
  args: argparse.Namespace,
  parser: argparse.ArgumentParser,
  name_of: Callable[[Point], str] = lambda point: point["name"],
) -> str:
  """Returns the one command that makes all the points.

  They may be of several commands, each with some of the seeds or names. Points
  of an experiment without names are told apart by their seed alone.
  """
  seeds = sorted({p["seed"] for p in points})
  given = dict(vars(args), seeds=",".join(map(str, seeds)))
  if names:
    made = {name_of(p) for p in points}
    given["only"] = ",".join(name for name in names if name in made)
  words = ["python", sys.argv[0]]
  for name, value in given.items():
    if name == "seeds" or str(value) != str(parser.get_default(name)):
      words.append(f"--{name}" if value is True else f"--{name}={value}")
  return " ".join(words)


def described(counts: Mapping[str, int]) -> str:
  return ", ".join(f"{n:,} {what}" for what, n in counts.items())


def mean(values: Sequence[float], scale: float = 1, digits: int = 1) -> str:
  """Returns "mean [least, most]"."""
  low, middle, high = (
    f"{scale * x:,.{digits}f}"
    for x in (min(values), np.mean(values), max(values))
  )
  return f"{middle} [{low}, {high}]"


def reached(at: Sequence[float], curve: Sequence[float], level: float) -> float:
  """Returns where a curve that never falls first has a level, in between too.

  at: where the curve's values are. The level is none above its last.
  """
  i = int(np.argmax(np.asarray(curve) >= level))
  if i == 0:
    return float(at[0])
  share = (level - curve[i - 1]) / (curve[i] - curve[i - 1])
  return float(at[i - 1] + share * (at[i] - at[i - 1]))


def markdown(rows: Sequence[Sequence[str]]) -> str:
  """Returns a Markdown table; the first row is its head."""
  head, *body = [f"| {' | '.join(row)} |" for row in rows]
  return "\n".join([head, "|---" * len(rows[0]) + "|", *body])


def names_of(text: str, known: Iterable[str]) -> list[str]:
  """Returns the names of an argument --only, all of which are known."""
  wanted = text.split(",")
  if unknown := {*wanted} - {*known}:
    raise errors.InputError(
      f"--only={','.join(sorted(unknown))}: expected {', '.join(known)}"
    )
  return wanted


def numbers(text: str) -> list[int]:
  """Returns the seeds of an argument."""
  try:
    return [int(x) for x in text.split(",")]
  except ValueError:
    raise errors.InputError(
      f"--seeds={text}: expected numbers, such as 0,1,2"
    ) from None


def read_points(output: pathlib.Path, config: Mapping[str, Any]) -> list[Point]:
  """Returns the points of an output, if any, which must be of the config."""
  if not output.exists():
    return []
  saved = files.read_json(output)
  if saved["config"] != config:
    raise errors.InputError(
      f"{output}: holds points of another config; give another --output"
    )
  return saved["points"]


def add_point(
  output: pathlib.Path,
  workdir: pathlib.Path,
  point: Point,
  details: Mapping[str, Any],
  command: Callable[[Sequence[Point]], str],
) -> None:
  """Adds a point to the output, which other processes may add to as well."""
  with _locked(workdir / "lock"):
    points = read_points(output, details["config"])
    points = [*points, json.loads(json.dumps(point))]
    files.write_json(
      output,
      dict(
        points=points,
        command=command(points),
        versions=details["versions"],
        machine=details["machine"],
        config=details["config"],
      ),
    )


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[None]:
  with path.open("w") as f:
    fcntl.flock(f, fcntl.LOCK_EX)
    yield


def _flat(rows: Iterable[Iterable[schema.Solution]]) -> list[schema.Solution]:
  return [s for row in rows for s in row]


def _rows(
  samples: Sequence[schema.Solution], width: int
) -> list[list[schema.Solution]]:
  return [list(samples[i : i + width]) for i in range(0, len(samples), width)]
