"""`prm_jax.PeopleRound`: trains on what people said, and ranks the queue anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
import dataclasses
import logging
import pathlib
from typing import Any, TYPE_CHECKING

from prm_jax import errors
from prm_jax import schema
from prm_jax.jobs import reward_models
from prm_jax.jobs import score as score_lib
from prm_jax.jobs import step_scores
from prm_jax.people import work_queue
from prm_jax.runtime import files
from prm_jax.runtime import outputs
from prm_jax.runtime import verbs

if TYPE_CHECKING:
  import ml_collections

  from prm_jax.people import people_folder
  from prm_jax.text import encoding
  from prm_jax.training import train_run_config

_logger = logging.getLogger(__name__)

# In the output: the labels, what was drawn at random, the model, and what is
# known of all. The last is there once the labels are whole.
TRAIN, HELD_OUT, MODEL = "train.jsonl", "held_out.jsonl", "model"
ROUND = "round.json"


@dataclasses.dataclass(frozen=True)
class RoundJob(verbs.Value):
  """Whose labels are learned, and where the model is kept.

  Args:
    input: The folder that `prm-jax label people` wrote, also while people work;
      it gets the new scores, which a running server takes.
    output: The folder of the round: its labels, the model in model/, and
      round.json. The same one goes on with the labels that it has.
  """

  input: verbs.Local
  output: verbs.Output


@dataclasses.dataclass(frozen=True)
class PeopleRound(verbs.Verb):
  """Trains a reward model on people's labels and ranks their queue anew.

  Several people's labels are merged by vote; gold items are never learned.

  Args:
    config: The training run of a process reward model. The labels take the place
      of its data.train, and its other files stay (--config.data.evaluation='()'
      for none); objective.labels.neutral says what a rating of 0 is.
    train_on_random: Learn the items that were drawn at random, too; then nothing
      unbiased is left to measure the model on (default: they are held out).
    seed: The seed of the intervals.

  Example:
    prm-jax label people_round --input=labels --output=runs/round1 \\
      --config=experiments/prm800k_small.py
  """

  config: verbs.AnyConfig
  train_on_random: bool = False
  seed: verbs.Seed = 0

  compiles = True

  def run(self, job: RoundJob) -> None:
    """Trains, measures the model and writes the scores, in this order.

    Args:
      job: The files.

    Raises:
      InputError: The config is of another program, people's labels can't be
        learned, or the output holds something else.
    """
    from prm_jax.people import people_folder
    from prm_jax.records import jsonl

    given = verbs.made(verbs.Config, self.config)
    outputs.check(
      dict(output=job.output), [job.input, given.path], are_folders=True
    )
    folder = people_folder.Folder(job.input)
    output = pathlib.Path(job.output)
    config, run, policy = _of_labels(given, output / TRAIN)
    of = dict(folder=folder.fingerprint, train_on_random=self.train_on_random)
    if (output / ROUND).exists():
      told = files.read_json(output / ROUND)
      if different := [k for k in of if told.get(k) != of[k]]:
        raise errors.InputError(
          f"{output / ROUND}: is a round of another {different[0]}; give the same,"
          " or another `output`"
        )
    if not (output / MODEL).exists():
      # Nothing was learned yet, so what was said since then is taken, too.
      errors.raise_first(_others(output))
      _keep_labels(folder, output, policy, of)
    told = files.read_json(output / ROUND)
    labels = told["labels"]
    _logger.info(
      f"labels: {labels['train']:,} solutions with {labels['right_steps']:,} right"
      f" and {labels['wrong_steps']:,} wrong steps, by {labels['people']}; held"
      f" out: {labels['held_out']:,}"
    )
    _train(given, config, run, output / MODEL)
    source = step_scores.Source(reward_models.RewardModel(output / MODEL))
    held_out = [*jsonl.read_solutions(output / HELD_OUT)]
    told |= dict(
      model=source.origin,
      seed=self.seed,
      held_out=_measured(source, held_out, policy, self.seed),
    )
    files.write_json(output / ROUND, told)
    _logger.info("%s", _text(told["held_out"]))
    _rank(folder, source)


def _of_labels(
  given: verbs.Config, train: pathlib.Path
) -> tuple[
  ml_collections.ConfigDict, train_run_config.Run, encoding.LabelPolicy
]:
  """Returns the config, whose data are the labels, its run and label policy."""
  from prm_jax.training import prm
  from prm_jax.training import train_run_config

  read = given.read()
  data = read.get("data")
  kept = dict(data.items()) if isinstance(data, verbs.ConfigFields) else {}
  with read.unlocked(), read.ignore_type():
    read.data = dict(kept, train=(f"jsonl:{train}",), weights=())
  config = given.filled(
    *(train_run_config.form, train_run_config.prepare, read)
  )
  run = train_run_config.run_of(config, given.name)
  if not isinstance(run.config.objective, prm.PRMConfig):
    raise errors.InputError(
      f"{given.name}: program={config.program!r} doesn't learn people's labels of"
      " steps; give the config of a process reward model"
    )
  return config, run, run.config.objective.labels


def _others(output: pathlib.Path) -> Iterator[str]:
  """Yields what an output holds that isn't the beginning of a round."""
  for path in output.iterdir() if output.is_dir() else ():
    if path.name not in (TRAIN, HELD_OUT, ROUND) and not path.name.startswith(
      "."
    ):
      yield f"{output}: holds something else, {path.name}; give a new folder"


def _keep_labels(
  folder: people_folder.Folder,
  output: pathlib.Path,
  policy: encoding.LabelPolicy,
  of: dict[str, Any],
) -> None:
  """Writes what people said up to now, and what it is."""
  from prm_jax.datasets import annotators
  from prm_jax.people import people_folder
  from prm_jax.records import jsonl

  said = [*people_folder.read(folder.path / people_folder.JUDGEMENTS)]
  drawn = {
    annotators.key(s)
    for s in said
    if s.extra[schema.GIVEN_FOR] == work_queue.RANDOM
    and not of["train_on_random"]
  }
  left_out = Counter[str]()
  train, held_out = list[schema.Solution](), list[schema.Solution]()
  for s in annotators.merged(said, "vote", left_out):
    (held_out if annotators.key(s) in drawn else train).append(s)
  errors.raise_first(_faults(train, held_out, policy), f"{folder.path}: ")
  problems = {s.problem for s in train}
  right, wrong = _num_labels(train, policy)
  labels = dict(
    judgements=len(said),
    given_for=dict(Counter(s.extra[schema.GIVEN_FOR] for s in said)),
    people=len({s.extra[schema.ANNOTATOR] for s in said}),
    train=len(train),
    right_steps=right,
    wrong_steps=wrong,
    held_out=len(held_out),
    held_out_of_problems_in_train=sum(s.problem in problems for s in held_out),
    left_out=dict(left_out),
  )
  output.mkdir(parents=True, exist_ok=True)
  jsonl.write_solutions(output / TRAIN, train)
  jsonl.write_solutions(output / HELD_OUT, held_out)
  files.write_json(output / ROUND, dict(of, task=folder.task, labels=labels))


def _num_labels(
  solutions: Sequence[schema.Solution], policy: encoding.LabelPolicy
) -> tuple[int, int]:
  """Returns how many steps count as right and as wrong."""
  from prm_jax.text import encoding

  labels = [
    x
    for s in solutions
    for x in encoding.step_labels(s, policy)
    if x is not None
  ]
  right = sum(x >= schema.THRESHOLD for x in labels)
  return right, len(labels) - right


def _faults(
  train: Sequence[schema.Solution],
  held_out: Sequence[schema.Solution],
  policy: encoding.LabelPolicy,
) -> Iterator[str]:
  """Yields why nothing can be learned."""
  right, wrong = _num_labels(train, policy)
  if right and wrong:
    return
  fix = "judge more items"
  if held_out:
    fix += ", or learn these, too, by `train_on_random=True`"
  yield (
    f"{right} right steps and {wrong} wrong ones are labelled so far, without"
    f" {len(held_out)} solutions drawn at random; training needs one of each:"
    f" {fix}"
  )


def _train(
  given: verbs.Config,
  config: ml_collections.ConfigDict,
  run: train_run_config.Run,
  workdir: pathlib.Path,
) -> None:
  """Trains the model, or resumes its training."""
  from prm_jax.huggingface import import_model
  from prm_jax.training import run_folder

  def begin(folder: pathlib.Path) -> None:
    if run.start is not None:
      import_model.pass_origin_on(run.start, folder)

  run_folder.train(workdir, config, run, path=given.path, on_begin=begin)


def _measured(
  source: step_scores.Source,
  solutions: Sequence[schema.Solution],
  policy: encoding.LabelPolicy,
  seed: int,
) -> dict[str, Any] | None:
  """Returns how well the model finds first errors; None without a solution."""
  from prm_jax.evaluation import processbench_metrics
  from prm_jax.evaluation import step_metrics
  from prm_jax.text import encoding

  if not solutions:
    return None
  scores = source.step_scores(solutions).step_scores
  labels = [encoding.step_labels(s, policy) for s in solutions]
  problems = [s.problem for s in solutions]
  steps = step_metrics.evaluate(scores, labels, problems=problems, seed=seed)
  truth = step_metrics.judged_steps(scores, labels).first_error
  known = [i for i, x in enumerate(truth) if x is not None]
  first_errors = None
  if known:
    first_errors = processbench_metrics.evaluate(
      [scores[i] for i in known],
      [x for x in truth if x is not None],
      problems=[problems[i] for i in known],
      seed=seed,
    )
  named = ("num_solutions", "num_steps", "auroc", "auroc_interval")
  return {k: steps[k] for k in named} | dict(first_errors=first_errors)


def _text(measured: dict[str, Any] | None) -> str:
  """Returns a line on what was measured."""
  if measured is None or measured["first_errors"] is None:
    return (
      "held out: no whole solution that was drawn at random and judged, so"
      " nothing unbiased was measured"
    )
  found = measured["first_errors"]
  parts = []
  for name, what in (
    ("acc_err", f"first error found in {found['num_err']:,} wrong"),
    ("acc_cor", f"none in {found['num_cor']:,} right"),
    ("f1", "F1"),
  ):
    if found[name] is not None:
      low, high = found["interval"][name] or (0.0, 1.0)
      parts.append(f"{what} {found[name]:.1%} [{low:.1%}, {high:.1%}]")
  return "held out, drawn at random: " + ", ".join(parts)


def _rank(folder: people_folder.Folder, source: step_scores.Source) -> None:
  """Writes the scores of pool and gold into the folder."""
  from prm_jax.people import people_folder

  if folder.task == "alternatives":
    _logger.info("no model ranks alternatives: the order stays as it is")
    return
  items = [*folder.items(), *people_folder.items_of(folder.task, folder.gold())]
  solutions = [x.solutions[0] for x in items]
  scored = source.step_scores(solutions)
  by = scored.by["fingerprint"]
  path = folder.path / people_folder.SCORES
  rows = zip(solutions, scored.rows, strict=True)
  count = files.write_records(
    path, (score_lib.record_of(s, row) | dict(model=by) for s, row in rows)
  )
  _logger.info(f"{path}: {count:,} solutions; a running server takes them")
