"""What each command of `prm-jax` does with its parsed arguments.

Here and in cli/data.py the parts meet. cli imports these only when a
command runs: `--help` and a typing error answer at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
import dataclasses
import pathlib
import sys
from typing import Any

import jax
import ml_collections

from prm_jax import errors
from prm_jax import schema
from prm_jax import voting
from prm_jax.checkpoints import manager
from prm_jax.cli import config_files
from prm_jax.cli import environment
from prm_jax.cli import rl
from prm_jax.data import encoding
from prm_jax.data import preview
from prm_jax.data import sources as sources_lib
from prm_jax.data import tokenizer as tokenizer_lib
from prm_jax.data.formats import fields
from prm_jax.data.formats import jsonl
from prm_jax.demo import comparison
from prm_jax.demo import run as demo_run
from prm_jax.evaluation import results as outputs
from prm_jax.evaluation import run as evaluation_run
from prm_jax.evaluation import tables
from prm_jax.grading import answers
from prm_jax.grading import pool
from prm_jax.huggingface import export_model as export_model_lib
from prm_jax.huggingface import import_model as import_model_lib
from prm_jax.inference import sampler
from prm_jax.inference import scorer as scorer_lib
from prm_jax.labelling import journal
from prm_jax.models import config as model_config
from prm_jax.runtime import checks
from prm_jax.runtime import distributed
from prm_jax.runtime import files
from prm_jax.runtime import progress
from prm_jax.runtime import storage
from prm_jax.testbed import arithmetic
from prm_jax.training import batches
from prm_jax.training import config as training_config
from prm_jax.training import loop
from prm_jax.training import optimizer
from prm_jax.training import run as training_run


def print_config(
  command: str, path: files.PathLike, overrides: Sequence[str]
) -> None:
  """Prints a config's fields and values, as they would be overridden."""
  forms = dict(demo=_demo_form, train=_train_form, rl=rl.form)
  fill = dict(train=_complete_model, rl=rl.prepare)
  read = config_files.read(path)
  if command == "plan":
    command = "train"
  if command == "train" and names_rl(read):
    command = "rl"
    rl.refuse_old_names(read, path, overrides)
  expected = forms[command]() if command in forms else None
  prepare = fill.get(command)
  config = config_files.filled(read, path, overrides, expected, prepare)
  print(f"Fields of {path}; override one with --config.FIELD=VALUE:\n")
  for name, value in config_files.fields(config).items():
    print(f"  --config.{name}={value}")


def _run_form(**more: Any) -> Any:
  """Returns the form of a training run's config, with more groups in it."""
  groups = dict(
    model=config_files.form(model_config.ModelConfig, without=["vocab_size"]),
    reading=config_files.form(encoding.Reading),
    labels=config_files.form(encoding.LabelPolicy),
    optimizer=config_files.form(optimizer.OptimizerConfig),
    fit=config_files.form(loop.FitConfig),
  )
  return config_files.form(
    training_config.TrainConfig,
    complete=True,
    optional=training_config.OPTIONAL,
    nested=groups | more,
  )


def _train_form() -> Any:
  # What the model's fields default to depends on start_from.
  model = config_files.form(model_config.ModelConfig, without=["vocab_size"])
  return _run_form(
    model=dataclasses.replace(model, required=frozenset(), defaults={}),
    data=config_files.form(sources_lib.CorpusConfig),
    tokenizer=config_files.form(sources_lib.TokenizerConfig),
    start_from=str,
  )


def _complete_model(
  config: ml_collections.ConfigDict, path: pathlib.Path
) -> None:
  """Gives the model's fields that are left out those of start_from's model.

  Raises:
    InputError: start_from can't be read; or there is none, and a field that
      every model needs is missing.
  """
  form = config_files.form(model_config.ModelConfig, without=["vocab_size"])
  if config.start_from:
    start = manager.read_description(files.local_path(config.start_from))
    known = dataclasses.asdict(start.model).items()
    defaults = {
      k: form.types[k] if v is None else v
      for k, v in known
      if k != "vocab_size"
    }
    form = dataclasses.replace(form, defaults=defaults)
  else:
    missing = sorted(form.required - set(config.model))
    if missing:
      raise errors.InputError(
        f"{path}: missing field model.{missing[0]}; add it, or start_from,"
        " whose model it then is"
      )
  config_files.complete(config.model, form)


def _demo_form() -> Any:
  runs = {name: _run_form() for name in demo_run.RUNS}
  groups = dict(
    task=config_files.form(arithmetic.Task),
    runs=config_files.Form(runs, frozenset(runs)),
  )
  return config_files.form(demo_run.DemoConfig, nested=groups)


def run_demo(args: argparse.Namespace) -> None:
  config = config_files.load(args.config, args.overrides, _demo_form())
  checked = demo_run.from_config(config)
  details = environment.describe(config)
  claim = details["config"] | dict(seed=args.seed)
  with environment.unless_refused(args.workdir):
    environment.check_workdir(args.workdir, claim, fresh=args.fresh)
    if args.fresh:
      demo_run.check(checked, args.seed)
      demo_run.clear(args.workdir)
      files.write_json(args.workdir / "config.json", claim)
    results = demo_run.run(config, args.workdir, args.seed, details)
  print("\n" + comparison.table(results))
  print(f"\nreport: {args.workdir / 'report.html'}")


def supervised(
  read: ml_collections.ConfigDict,
  path: files.PathLike,
  overrides: Sequence[str],
) -> ml_collections.ConfigDict:
  """Returns the config of a run on stored data, complete and overridden."""
  return config_files.filled(
    read, path, overrides, _train_form(), _complete_model
  )


def names_rl(config: ml_collections.ConfigDict) -> bool:
  return config.get("program") == "rl"


def train(args: argparse.Namespace) -> None:
  with distributed.joined():
    read = distributed.together(lambda: config_files.read(args.config))
    if not names_rl(read):
      _train_on_data(args, read)
      return
    if distributed.number() > 1:
      raise errors.InputError(
        f"{args.config}: reinforcement learning runs in one process; start one"
      )
    args.workdir = files.local_path(str(args.workdir))
    rl.train(args, read)


def _train_on_data(
  args: argparse.Namespace, read: ml_collections.ConfigDict
) -> None:
  def check():
    config = supervised(read, args.config, args.overrides)
    words = sources_lib.TokenizerConfig(**config.tokenizer)
    sources = sources_lib.from_config(config.data)
    return config, training_config.from_config(config), sources, words

  config, run, sources, words = distributed.together(check)
  details = environment.describe(config)
  # The revision asks git, which not every host may have.
  versions = {k: v for k, v in details["versions"].items() if k != "revision"}
  distributed.check_same(dict(details["config"], versions=versions))
  fresh = args.fresh

  def claim():
    folder = storage.of_saves(workdir, bucket)
    environment.check_resume(folder, resume=args.resume, fresh=fresh)
    environment.check_workdir(
      workdir,
      details["config"],
      fresh=fresh,
      may_change=training_run.MAY_CHANGE,
    )

  with (
    storage.opened(args.workdir) as (workdir, bucket),
    environment.unless_refused(workdir),
  ):
    distributed.on_first(claim)
    start = files.local_path(config.start_from) if config.start_from else None
    data, tokenizer, vocab_size = distributed.together(
      lambda: _read_inputs(args.config, sources, words, start)
    )
    parts, eval_parts = _sources(data)
    params = None if start is None else training_run.read_start(run, start)

    def begin():
      files.write_json(workdir / "config.json", details["config"])
      files.write_json(workdir / "environment.json", details)
      if data.held_out:
        # So that `eval` can be run on what the model hasn't seen.
        path = workdir / "held_out.jsonl"
        jsonl.write_solutions(path, data.held_out)
      if start is not None:
        import_model_lib.pass_origin_on(start, workdir)

    training_run.train(
      run,
      data.train,
      tokenizer,
      workdir,
      eval_solutions=data.evaluation,
      sources=parts,
      eval_sources=eval_parts,
      start_from=params,
      vocab_size=vocab_size,
      fresh=fresh,
      begin=begin,
      bucket=bucket,
    )
  print(f"checkpoint: {args.workdir}")


def _read_inputs(
  path: files.PathLike,
  sources: sources_lib.CorpusConfig,
  words: sources_lib.TokenizerConfig,
  start: pathlib.Path | None,
) -> tuple[sources_lib.Corpus, tokenizer_lib.Tokenizer, int | None]:
  """Returns data, tokenizer, and how many ids the model to start from has."""
  tokenizer = vocab_size = None
  if start is not None:
    described = manager.read_description(start)
    vocab_size = described.model.vocab_size
    tokenizer = manager.read_tokenizer(start, described)
  data = sources_lib.load(sources)
  if not data.train:
    raise errors.InputError(
      f"{path}: data.train: no solution is left to train on"
    )
  return (
    data,
    tokenizer or sources_lib.make_tokenizer(words, data.train),
    vocab_size,
  )


def _sources(
  data: sources_lib.Corpus,
) -> tuple[batches.Sources | None, batches.Sources | None]:
  """Returns the sources of training and of evaluation, where it has several."""
  train, evaluation = (
    batches.Sources(data.names, numbers, weights)
    if len(weights) > 1 or len(set(numbers.tolist())) > 1
    else None
    for numbers, weights in (
      (data.train_sources, data.weights),
      (data.evaluation_sources, ()),
    )
  )
  return train, evaluation


def import_model(args: argparse.Namespace) -> None:
  with environment.unless_refused(args.to):
    found = import_model_lib.import_folder(
      args.source, args.to, dialect=args.dialect, system=args.system
    )
  described = found.description
  reading = described.reading["dialect"]
  said = "a policy, or what a training run starts from"
  if described.program not in manager.POLICIES:
    dialect = "native" if reading is None else reading["name"]
    said = f"a {described.program}, read as {dialect}"
  print(f"{args.to}: {found.family}, {said}")
  for name in found.left_out:
    print(f"left out: {name}, which nothing reads")


def export_model(args: argparse.Namespace) -> None:
  with environment.unless_refused(args.to):
    facts = export_model_lib.export_folder(
      args.checkpoint,
      args.to,
      dialect=args.dialect,
      dtype=args.dtype,
      step=args.step,
    )
  print(
    f"{args.to}: {facts.architecture}, {facts.dtype}, read as {facts.dialect};"
    " README.md says how"
  )


def sample(args: argparse.Namespace) -> None:
  environment.check_output(args.output)
  pool.check(args.grader)
  problems = []
  seen: dict[str, str] = {}
  own = {f.name for f in dataclasses.fields(schema.Solution)} - {"extra"}
  for where, record in files.read_records(args.input):
    problem = jsonl.problem_from_record(record, where)
    clash = problem.extra.keys() & {*own, *schema.STATISTICS, schema.REFERENCE}
    if clash:
      raise errors.InputError(
        f"{where}: {', '.join(sorted(clash))}: a sampled solution has such a"
        " field of its own; give the problem's another name"
      )
    fields.claim(seen, problem.id, where)
    problems.append(problem)
  sampling = sampler.Sampling(args.max_tokens, args.temperature, args.top_p)
  if args.n < 1:
    raise errors.InputError(f"--n={args.n}: give 1 or more")
  policy = sampler.load(args.checkpoint, args.step)
  starts = [
    schema.Solution(p.id, p.problem, (), extra=dict(p.extra)) for p in problems
  ]
  key = jax.random.key(args.seed)
  with progress.showing("sample", args.n * len(starts)) as update:
    rows = policy.generate(starts, args.n, sampling, key, update)
  references = [p.answer for p in problems for _ in range(args.n)]
  solutions, grades = _graded(
    [s for row in rows for s in row], references, args.grader
  )
  count = jsonl.write_solutions(args.output, solutions)
  ended = sum(s.extra["ended"] for s in solutions)
  print(f"{args.output}: {count} solutions, {ended} ended by themselves")
  if grades:
    print(tables.graded(dict(grader=args.grader) | pool.count(grades)))


def _graded(
  solutions: Sequence[schema.Solution],
  references: Sequence[str | None],
  grader: str,
) -> tuple[list[schema.Solution], list[pool.Grade]]:
  """Returns the solutions with answer, reference and outcome where known."""
  given = [answers.extract(list(s.steps)) for s in solutions]
  known = [i for i, reference in enumerate(references) if reference is not None]
  with (
    pool.Grader(grader) as of_answers,
    progress.showing("grade", len(known)) as update,
  ):
    grades = of_answers.grade(
      [(given[i], str(references[i])) for i in known], update
    )
  found = [
    dataclasses.replace(s, answer=answer) for s, answer in zip(solutions, given)
  ]
  for i, grade in zip(known, grades, strict=True):
    found[i] = dataclasses.replace(
      found[i],
      outcome=pool.outcome(grade),
      extra={**found[i].extra, schema.REFERENCE: references[i]},
    )
  return found, grades


def score(args: argparse.Namespace) -> None:
  checks.check_choice("--layout", args.layout, scorer_lib.LAYOUTS)
  environment.check_output(args.output)
  shard = journal.parse_shard(args.shard)
  solutions, left_out = sources_lib.read(args.format, args.input)
  solutions = [s for s in solutions if shard.holds(s.problem)]
  scorer = scorer_lib.load(args.checkpoint, args.step, layout=args.layout)
  longer = scorer.longer_than_trained(solutions)
  if longer:
    print(
      f"{longer} solutions are longer than the {scorer.reading.max_tokens}"
      " tokens that the model was trained with; they are scored whole",
      file=sys.stderr,
    )
  with progress.showing("score", len(solutions)) as update:
    scores = scorer.score(solutions, update)
  count = files.write_records(
    args.output,
    (
      dict(
        id=solution.id,
        step_scores=steps,
        **{how: voting.aggregate(steps, how) for how in voting.AGGREGATES},
      )
      for solution, steps in zip(solutions, scores, strict=True)
    ),
  )
  print(f"{args.output}: {count} solutions")
  _print_left_out(left_out)


def _print_left_out(left_out: Mapping[str, int]) -> None:
  for reason, count in sorted(left_out.items()):
    print(f"left out: {count:,} {reason.replace('_', ' ')}")


def evaluate(args: argparse.Namespace) -> None:
  samples = args.samples or outputs.samples_path(args.output)
  inputs = args.input if isinstance(args.input, list) else [args.input]
  if args.kind == "processbench":
    inputs = [item.partition("=")[2] for item in inputs]
  for path in (args.output, samples):
    environment.check_output(path)
  read = [sources_lib.find(path) for path in inputs]
  outputs.check(args.output, samples, [*read, args.scores])
  by = (args.checkpoint, args.scores)
  if args.kind == "processbench":
    found = evaluation_run.processbench_subsets(
      args.input, *by, args.tune_on, args.seed, args.step
    )
    text = tables.processbench_table(found.results)
  elif args.kind == "prmbench":
    found = evaluation_run.prmbench_files(
      args.format, args.input, *by, args.seed, args.step
    )
    text = tables.prmbench_table(found.results)
  elif args.kind == "steps":
    policy = encoding.LabelPolicy(neutral=args.neutral)
    found = evaluation_run.steps(
      args.format, args.input, policy, *by, args.seed, args.step
    )
    text = tables.plain_table(found.results)
  else:
    found = evaluation_run.best_of_n_pool(
      *(args.format, args.input, *by, args.seed, args.aggregate, args.step),
      grader=args.grader,
    )
    text = tables.best_of_n_table(found.results)
  print(text)
  said = ", ".join(
    f"{k} {v}" for k, v in found.results["scored_by"].items() if k != "program"
  )
  print(f"\nscored by: {said}")
  details = dict(
    command=environment.command(),
    versions=environment.versions(),
    machine=environment.machine(),
  )
  files.write_records(samples, found.samples)
  files.write_json(args.output, found.results | dict(run=details))
  print(f"samples: {samples}\nresults: {args.output}")


def look_at_data(args: argparse.Namespace) -> None:
  policy = encoding.LabelPolicy(args.neutral, args.after_first_error)
  tokenizer: tokenizer_lib.Tokenizer = tokenizer_lib.Bytes()
  reading = encoding.Reading(place=args.place, max_tokens=1 << 20)
  if args.checkpoint is not None:
    description = manager.read_description(args.checkpoint)
    tokenizer = manager.read_tokenizer(args.checkpoint, description)
    where = args.checkpoint / manager.DESCRIPTION
    reading = encoding.saved_reading(description.reading, where)
  solutions, left_out = sources_lib.read(args.format, args.file)
  if args.what == "inspect":
    for solution in solutions[: args.limit]:
      print(preview.show(solution, tokenizer, reading, policy))
    rest = len(solutions) - args.limit
    if rest > 0:
      print(f"({rest} more solutions; --limit shows more)")
  else:
    print(preview.stats(solutions, tokenizer, reading, policy))
  _print_left_out(left_out)


def doctor(args: argparse.Namespace) -> None:
  print(environment.doctor())
