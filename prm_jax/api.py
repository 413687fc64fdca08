"""The functions that a Python user calls: load, best_of_n, label and train.

Each does the work of a command; their types are those of `schema`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
import pathlib
import tempfile

import jax

from prm_jax import errors
from prm_jax import schema
from prm_jax import trainer
from prm_jax import voting
from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import saves
from prm_jax.grading import pool
from prm_jax.huggingface import hub
from prm_jax.huggingface import import_model
from prm_jax.jobs import references
from prm_jax.labelling import monte_carlo
from prm_jax.models import kinds
from prm_jax.policy import rollout_engine
from prm_jax.policy import sampler
from prm_jax.policy import sampling as sampling_lib
from prm_jax.runtime import arguments
from prm_jax.runtime import files
from prm_jax.runtime import forks
from prm_jax.runtime import verbs
from prm_jax.scoring import saved
from prm_jax.scoring import scorer


@arguments.checked
def load(
  folder: files.PathLike,
  *,
  step: saves.Step = None,
  revision: str | None = None,
  compute_dtype: str | None = None,
) -> scorer.Scorer | sampler.Sampler:
  """Returns the model of a checkpoint folder, or of a Hugging Face folder.

  Args:
    folder: The folder of a training run or of an imported model, or the folder
      of a published reward model (config.json, tokenizer and safetensors), or
      its name on the Hugging Face Hub, ORG/NAME, which huggingface_hub
      downloads into its cache. A published model is converted in a temporary
      folder each time; `prm-jax import` keeps the result.
    step: The training step whose parameters are loaded; None is the latest
      one that was saved, "best" that of the run's fit.best_metric. A Hugging
      Face folder has no steps.
    revision: A branch, tag or commit of a model on the Hub; None is its main
      branch.
    compute_dtype: The type of matmuls and activations, float32, bfloat16 or
      float16; None is that of the checkpoint, which of a published model is
      that of its weights.

  Returns:
    A Scorer if the model is a PRM or an ORM, a Sampler if it is a policy.

  Raises:
    InputError: The folder can't be read or lacks the step, or it is a Hugging
      Face folder of a language model without a score head; or a model on the
      Hub can't be fetched.
  """
  forks.check()
  folder = hub.local_folder(folder, revision)
  is_ours = (folder / model_json.DESCRIPTION).exists()
  if not is_ours and (folder / "config.json").exists():
    return _load_published(folder, step, compute_dtype)
  description = model_json.read_description(folder)
  kind = kinds.named(description.program, folder / model_json.DESCRIPTION)
  if kind.writes:
    return sampler.load(folder, step, compute_dtype=compute_dtype)
  return saved.load(folder, step, compute_dtype=compute_dtype)


def _load_published(
  folder: pathlib.Path, step: saves.Step, compute_dtype: str | None
) -> scorer.Scorer:
  """Returns the scorer of a Hugging Face folder."""
  if step is not None:
    raise errors.InputError(
      f"step={step}: {folder} is a Hugging Face folder, which has no steps"
    )
  with tempfile.TemporaryDirectory() as temporary:
    target = pathlib.Path(temporary) / "model"
    imported = import_model.import_folder(folder, target)
    if kinds.KINDS[imported.description.program].writes:
      raise errors.InputError(
        f"{folder}: holds a language model without a score head; sampling"
        " from it isn't supported yet; `prm-jax import --template=NAME` reads"
        " one as a PRM"
      )
    return saved.load(target, compute_dtype=compute_dtype)


@arguments.checked
def best_of_n(
  solutions: Iterable[schema.Solution],
  score: scorer.Scorer | schema.Score,
  *,
  aggregate: str | None = None,
) -> schema.Solution:
  """Returns the solution with the highest score; of equal scores, the first.

  Solutions are ranked by log-odds if the scorer gives them, because
  probabilities near 1 round to 1 (voting.ranking_scores). A warning is logged
  if the aggregate reads steps that the model wasn't trained to judge.

  Args:
    solutions: The solutions of one problem.
    score: A Scorer, or a function that is a schema.Score.
    aggregate: How the scores of a solution's steps become one score: product,
      min, last or mean. None is what the Scorer's checkpoint names, or product
      for a function.

  Returns:
    One of the solutions.

  Raises:
    InputError: There is no solution, the solutions are of several problems, the
      aggregate is unknown, or a score is NaN.
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
  voting.warn_of_unjudged(rows, aggregate or "product")
  ranking = voting.ranking_scores(rows, aggregate or "product")
  return solutions[voting.best(ranking)]


@arguments.checked
def label(
  solutions: Iterable[schema.Solution],
  policy: sampler.Sampler | schema.Generate,
  sampling: sampling_lib.Sampling = sampling_lib.Sampling(),
  *,
  completions: int = 8,
  hard: bool = False,
  grader: str = "rules",
  seed: int = 0,
) -> list[schema.Solution]:
  """Returns the solutions with Monte-Carlo labels of their steps.

  The label of a step is the share of completions, sampled by the policy after
  that step, that end in the right answer (Math-Shepherd, arXiv 2312.08935).
  `prm-jax label` has all options and the other methods, and it resumes a run
  that was stopped.

  Args:
    solutions: The solutions to label. extra["reference_answer"] of each has the
      right answer.
    policy: The model that completes solutions: a Sampler, or a function that is
      a schema.Generate.
    sampling: How a Sampler samples; what it doesn't say is as the Sampler's
      `defaults` say, else at temperature 1. A function ignores it.
    completions: The number of completions after each step.
    hard: Whether the label is 1 if any completion is right and 0 otherwise,
      instead of the share.
    grader: What compares answers: rules, math_verify, prm800k or both.
    seed: The seed of the completions. A function ignores it.

  Returns:
    The solutions in the order given, with labels in [0, 1]. A label is None if
    no completion after the step could be graded.

  Raises:
    InputError: A solution has no reference answer, or the grader is unknown or
      not installed.
  """
  solutions = list(solutions)
  options = monte_carlo.Options(completions=completions, hard=hard)
  generate = (
    _generate(policy, sampling, seed)
    if isinstance(policy, sampler.Sampler)
    else policy
  )
  pool.check(grader)
  known = references.of_all(solutions)
  with pool.Grader(grader) as answers:
    verify = pool.verifier(answers, known, Counter())
    labelled, _ = monte_carlo.label(solutions, generate, verify, options)
  return labelled


def _generate(
  policy: sampler.Sampler, sampling: sampling_lib.Sampling, seed: int
) -> schema.Generate:
  """Returns the policy as a Generate, by the engine that labelling uses."""
  engine = rollout_engine.of(policy)
  forks.check()
  key, chosen = jax.random.key(seed), sampling.with_defaults(policy.defaults)
  return lambda prefixes, n: engine.generate(prefixes, n, chosen, key)[0]


@arguments.checked
def train(
  config: verbs.AnyConfig,
  solutions: Sequence[schema.Solution],
  workdir: files.PathLike,
  *,
  evaluation: Sequence[schema.Solution] = (),
  fresh: bool = False,
) -> scorer.Scorer | sampler.Sampler:
  """Returns the model that is trained on the solutions, as a config describes.

  A run that was stopped resumes from its last checkpoint in the workdir.

  Args:
    config: The path of a config file, what its get_config() returns, or a dict
      of its fields: program (prm, orm, sft or implicit), objective, model, fit,
      ... `prm-jax train --config=FILE --help` lists all fields. Its `data`
      isn't read, because `solutions` take its place.
    solutions: The solutions to train on.
    workdir: The folder in which checkpoints and metrics.jsonl are written.
    evaluation: The solutions to evaluate on; none if it is empty.
    fresh: Whether to replace the run that the workdir holds.

  Returns:
    The trained model: a Scorer, or a Sampler if the program is sft.

  Raises:
    InputError: A field of the config is unknown or out of range, the program is
      rl, or the workdir holds a run of another config or of other data.
  """
  verb = trainer.Train(config, workdir, fresh=fresh)
  return verb(solutions, evaluation)
