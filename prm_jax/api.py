"""What a Python user calls: load, best_of_n, label and train.

Each ties together what the command line's commands do; the types are those of
`schema`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import copy
import pathlib
import tempfile
from typing import Any

import jax
import ml_collections

from prm_jax import errors
from prm_jax import schema
from prm_jax import voting
from prm_jax.checkpoints import model_json
from prm_jax.cli import config_files
from prm_jax.cli import environment
from prm_jax.cli import train as train_command
from prm_jax.data import sources
from prm_jax.grading import pool
from prm_jax.huggingface import import_model
from prm_jax.inference import engine as engine_lib
from prm_jax.inference import sampler
from prm_jax.inference import scorer
from prm_jax.labelling import monte_carlo
from prm_jax.runtime import files
from prm_jax.training import programs
from prm_jax.training import run as training_run


def load(
  folder: files.PathLike, *, step: int | None = None
) -> scorer.Scorer | sampler.Sampler:
  """Returns the model of a checkpoint folder, or of a Hugging Face one.

  Args:
    folder: a training run's or import's folder, or the folder of a published
      reward model (config.json, tokenizer and safetensors). The latter is
      converted in a temporary folder first; `prm-jax import` keeps the result.
    step: a saved step; the latest by default. A Hugging Face folder has none.

  Returns:
    A Scorer of a PRM or ORM, a Sampler of a policy.

  Raises:
    InputError: the folder can't be read or lacks the step, or it is a Hugging
      Face folder of a language model without a score head.
  """
  folder = pathlib.Path(folder)
  is_ours = (folder / model_json.DESCRIPTION).exists()
  if not is_ours and (folder / "config.json").exists():
    return _load_published(folder, step)
  description = model_json.read_description(folder)
  kind = programs.named(description.program, folder / model_json.DESCRIPTION)
  if kind.writes:
    return sampler.load(folder, step)
  return scorer.load(folder, step)


def _load_published(folder: pathlib.Path, step: int | None) -> scorer.Scorer:
  """Returns the scorer of a Hugging Face folder."""
  if step is not None:
    raise errors.InputError(
      f"step={step}: {folder} is a Hugging Face folder, which has no steps"
    )
  with tempfile.TemporaryDirectory() as temporary:
    target = pathlib.Path(temporary) / "model"
    imported = import_model.import_folder(folder, target)
    if programs.KINDS[imported.description.program].writes:
      raise errors.InputError(
        f"{folder}: holds a language model without a score head; policies of"
        " others can't be sampled yet, and `prm-jax import --template=` reads"
        " one as a PRM"
      )
    return scorer.load(target)


def best_of_n(
  solutions: Iterable[schema.Solution],
  score: scorer.Scorer | schema.Score,
  *,
  aggregate: str | None = None,
) -> schema.Solution:
  """Returns the solution that scores best; of equal ones, the first.

  Args:
    solutions: of one problem.
    score: a Scorer, or a function as schema.Score.
    aggregate: how a solution's step scores become one: product, min, last or
      mean. By default what the Scorer's checkpoint names, else product.

  Raises:
    InputError: there is no solution, there are several problems, the
      aggregate isn't known, or a score is NaN.
  """
  solutions = list(solutions)
  problems = {s.problem for s in solutions}
  if len(problems) != 1:
    raise errors.InputError(
      f"{len(solutions)} solutions of {len(problems)} problems: give those of"
      " one problem"
    )
  if isinstance(score, scorer.Scorer):
    aggregate = aggregate or score.aggregate
    rows = score.score(solutions)
  else:
    rows = score(solutions)
  totals = [
    voting.aggregate(row.scores, aggregate or "product") for row in rows
  ]
  return solutions[voting.best(totals)]


def label(
  solutions: Sequence[schema.Solution],
  policy: sampler.Sampler | schema.Generate,
  sampling: sampler.Sampling | None = None,
  *,
  completions: int = 8,
  hard: bool = False,
  grader: str = "rules",
  seed: int = 0,
) -> list[schema.Solution]:
  """Returns the solutions with Monte-Carlo labels of their steps.

  A step's label is the share of the policy's completions from behind it that
  end in the right answer (Math-Shepherd, arXiv 2312.08935). `prm-jax label`
  has all options, other methods, and resumes where it was stopped.

  Args:
    solutions: what to label; extra["reference_answer"] has the right answer.
    policy: completes prefixes: a Sampler, or a function as schema.Generate.
    sampling: of a Sampler; by default 512 tokens at temperature 1.
    completions: how many of each prefix.
    hard: the label is 1 if any completion is right, else 0.
    grader: rules, math_verify, prm800k or both.
    seed: of the completions.

  Raises:
    InputError: a solution has no reference answer, or the grader isn't known.
  """
  lacking = [s.id for s in solutions if s.extra.get(schema.REFERENCE) is None]
  if lacking:
    raise errors.InputError(
      f"solution {lacking[0]!r}: extra has no {schema.REFERENCE!r}; give the"
      " right answer of its problem"
    )
  options = monte_carlo.Options(completions=completions, hard=hard)
  generate = (
    _generate(policy, sampling or sampler.Sampling(512), seed)
    if isinstance(policy, sampler.Sampler)
    else policy
  )
  pool.check(grader)
  with pool.Grader(grader) as answers:

    def verify(whole: Sequence[schema.Solution]) -> list[bool | None]:
      references = [s.extra[schema.REFERENCE] for s in whole]
      return pool.outcomes(pool.grade_solutions(answers, whole, references))

    labelled, _ = monte_carlo.label(solutions, generate, verify, options)
  return labelled


def _generate(
  policy: sampler.Sampler, sampling: sampler.Sampling, seed: int
) -> schema.Generate:
  """Returns the policy as a Generate, by the engine that labelling uses."""
  engine = engine_lib.Engine(policy.config, policy.params, policy.tokenizer)
  key = jax.random.key(seed)
  return lambda prefixes, n: engine.generate(prefixes, n, sampling, key)[0]


def _fill_defaults(config: ml_collections.ConfigDict) -> None:
  """Gives the fields that a config file has to name, but for those of the run.

  What is left out is `program`, `model`, `packing`, `optimizer` and `fit`.
  """
  defaults: dict[str, Any] = dict(seed=0, init_from="", microbatches=1)
  defaults |= dict(eval_rows=256, aggregate="product", mesh=(-1, 1, 1))
  for name in ("tokenizer", "encoding", "objective"):
    defaults[name] = ml_collections.ConfigDict()
  for name, value in defaults.items():
    if name not in config:
      config[name] = value


def train(
  config: files.PathLike | Mapping[str, Any],
  solutions: Sequence[schema.Solution],
  workdir: files.PathLike,
  *,
  evaluation: Sequence[schema.Solution] = (),
  fresh: bool = False,
) -> scorer.Scorer | sampler.Sampler:
  """Returns the model that a config trains on the solutions.

  A run that was stopped resumes from its last save in the workdir.

  Args:
    config: a config file's path, or what its get_config() returns, as a
      mapping: program (prm, orm, sft or implicit), objective, model, fit, ...
      (`prm-jax train --config=FILE --help_config` lists all fields). Its
      `data` isn't read: `solutions` take its place.
    solutions: what to learn from.
    workdir: where checkpoints and metrics.jsonl are written.
    evaluation: what to evaluate on.
    fresh: replace the run that the workdir holds.

  Raises:
    InputError: a field isn't known or doesn't fit, or the workdir holds a run
      of another config or other data.
  """
  workdir = pathlib.Path(workdir)
  if isinstance(config, Mapping):
    source = "config"
    given = ml_collections.ConfigDict(copy.deepcopy(dict(config)))
  else:
    source, given = str(config), config_files.read(config)
  _fill_defaults(given)
  given.data = ml_collections.ConfigDict(dict(train=()))
  if train_command.names_rl(given):
    raise errors.InputError(
      f"{source}: program='rl' samples its own solutions; run `prm-jax train`"
    )
  complete = train_command.supervised(given, source, ())
  run = train_command.from_config(complete)
  details = environment.describe(complete)
  environment.check_workdir(
    workdir, details["config"], fresh=fresh, may_change=training_run.MAY_CHANGE
  )
  start = files.local_path(complete.init_from) if complete.init_from else None
  if start is None:
    tokenizer_config = sources.TokenizerConfig(**complete.tokenizer)
    tokenizer = sources.make_tokenizer(tokenizer_config, solutions)
    vocab_size = params = None
  else:
    described = model_json.read_description(start)
    tokenizer = model_json.read_tokenizer(start, described)
    vocab_size = described.model.vocab_size
    params = training_run.read_init(run, start)

  def on_start():
    files.write_json(workdir / "config.json", details["config"])
    files.write_json(workdir / "environment.json", details)

  training_run.train(
    run,
    solutions,
    tokenizer,
    workdir,
    eval_solutions=evaluation,
    init_from=params,
    vocab_size=vocab_size,
    fresh=fresh,
    on_start=on_start,
  )
  return load(workdir)
