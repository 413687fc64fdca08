"""`prm-jax`: the one door. Here the parts meet, and nowhere else.

Exit codes: 0 done; 1 the user's input can't be used (one line says why);
130 interrupted.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
import os
import pathlib
import sys
from typing import Any

from prm_jax import schema

# What only some commands need (jax above all) is imported by those: `--help`
# and a user's typing error should answer at once.


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the command line; returns the exit code."""
  arguments = list(sys.argv[1:] if arguments is None else arguments)
  parser = _parser()
  arguments, overrides = _split_overrides(arguments)
  try:
    if _asks_for_config_help(arguments):
      _print_config(arguments, overrides)
      return 0
    parsed = parser.parse_args(arguments)
    if overrides and not hasattr(parsed, "config"):
      raise schema.InputError(
        f"--config.{overrides[0]}: {parsed.command} takes no config"
      )
    parsed.overrides = overrides
    parsed.run(parsed)
  except schema.InputError as e:
    if "--debug" in arguments:
      raise
    print(f"prm-jax: {e}", file=sys.stderr)
    return 1
  except KeyboardInterrupt:
    print("prm-jax: interrupted", file=sys.stderr)
    return 130
  except BrokenPipeError:
    # The reader of our output (head, less) has seen enough.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
  return 0


class _Parser(argparse.ArgumentParser):
  """argparse, but a wrong word is the user's error: exit code 1."""

  def error(self, message: str) -> Any:
    raise schema.InputError(f"{message}; see {self.prog} --help")


def _natural(text: str) -> int:
  """Returns a number that isn't negative."""
  try:
    value = int(text)
  except ValueError:
    value = -1
  if value < 0:
    raise argparse.ArgumentTypeError(f"{text!r} isn't 0, 1, 2, ...")
  return value


_REMOTE = "remote paths aren't supported yet; give a local one"


def _local(text: str) -> pathlib.Path:
  """Returns a path on this machine."""
  if "://" in text:
    # As a path it would be a local folder named after the scheme.
    raise argparse.ArgumentTypeError(f"{text}: {_REMOTE}")
  return pathlib.Path(text)


def _split_overrides(arguments: list[str]) -> tuple[list[str], list[str]]:
  """Returns the arguments without `--config.field=value`, and those fields."""
  rest, overrides = [], []
  queue = list(arguments)
  while queue:
    word = queue.pop(0)
    if not word.startswith("--config."):
      rest.append(word)
      continue
    field = word.removeprefix("--config.")
    if "=" not in field and queue and not queue[0].startswith("--"):
      field += "=" + queue.pop(0)
    overrides.append(field)
  return rest, overrides


def _parser() -> argparse.ArgumentParser:
  parser = _Parser(
    prog="prm-jax",
    description="Process supervision in JAX: train, use and evaluate process"
    " and outcome reward models.",
  )
  parser.add_argument(
    "--version", action="store_true", help="print the version and stop"
  )
  parser.set_defaults(run=lambda args: _version(args, parser))
  parser.set_defaults(command="prm-jax")
  commands = parser.add_subparsers(metavar="COMMAND", parser_class=_Parser)

  def command(name: str, run: Callable | None, text: str, to=commands):
    added = to.add_parser(name, help=text, description=text)
    added.set_defaults(run=run, command=name)
    added.add_argument(
      "--debug", action="store_true", help="show a traceback on errors"
    )
    return added

  def add_step(to: argparse.ArgumentParser) -> None:
    to.add_argument(
      "--step", type=_natural, help="saved step to use; the latest by default"
    )

  add = command("demo", _demo, "run the main job on the arithmetic testbed")
  add.add_argument("--workdir", default="runs/demo", type=_local)
  add.add_argument("--seed", default=0, type=_natural)
  add.add_argument("--config", default="experiments/arithmetic.py")
  add.add_argument("--fresh", action="store_true", help="start over")

  add = command("train", _train, "train a policy (sft), a PRM or an ORM")
  add.add_argument("--config", required=True, help="a config file, see below")
  add.add_argument("--workdir", required=True, type=_local)
  add.add_argument(
    "--resume",
    action=argparse.BooleanOptionalAction,
    default=True,
    help="go on from the workdir's last checkpoint (the default)",
  )
  add.add_argument("--fresh", action="store_true", help="start over")
  add.epilog = "Fields: --config.FIELD=VALUE; --config=FILE --help lists them."

  add = command("sample", _sample, "sample solutions of problems")
  add.add_argument("--checkpoint", required=True, type=_local)
  add.add_argument("--input", required=True, help="problems.jsonl")
  add.add_argument(
    "--output", required=True, type=_local, help="solutions.jsonl"
  )
  add.add_argument("--n", type=int, default=16, help="samples of each problem")
  add.add_argument("--temperature", type=float, default=1.0)
  add.add_argument("--top_p", type=float, default=1.0)
  add.add_argument("--max_tokens", type=int, default=512)
  add.add_argument("--seed", type=_natural, default=0)
  add_step(add)

  add = command("score", _score, "score the steps of solutions")
  add.add_argument("--checkpoint", required=True, type=_local)
  add.add_argument("--input", required=True, help="solutions.jsonl")
  add.add_argument("--format", default="jsonl", help="of the input")
  add.add_argument("--output", required=True, type=_local, help="scores.jsonl")
  add_step(add)

  evaluations = command("eval", None, "evaluate a reward model")
  kinds = evaluations.add_subparsers(
    metavar="KIND", parser_class=_Parser, required=True
  )
  texts = dict(
    best_of_n="accuracy of the best of N solutions, by score and by vote",
    steps="step AUROC, calibration and first errors against labels",
    processbench="ProcessBench F1 per subset, with both thresholds",
  )
  for kind, text in texts.items():
    add = command(kind, _eval, text, kinds)
    add.set_defaults(kind=kind)
    add.add_argument("--checkpoint", type=_local, help="scores by this")
    add_step(add)
    add.add_argument("--scores", help="scores.jsonl, instead of --checkpoint")
    add.add_argument(
      "--output",
      type=_local,
      default="results.json",
      help="results.json in the current folder by default",
    )
    add.add_argument("--seed", type=_natural, default=0, help="of bootstrap")
    if kind == "best_of_n":
      add.add_argument(
        "--aggregate",
        choices=("product", "min", "last", "mean"),
        help="of step scores; the checkpoint's own, or product, by default",
      )
    if kind == "processbench":
      add.add_argument(
        "--input",
        required=True,
        action="append",
        metavar="SUBSET=FILE",
        help="once per subset: gsm8k=gsm8k.json",
      )
      add.add_argument("--tune_on", default="gsm8k", help="threshold's subset")
    else:
      add.add_argument("--input", required=True, help="solutions.jsonl")
      add.add_argument("--format", default="jsonl", help="of the input")
      add.add_argument("--neutral", default="good", help="PRM800K's rating 0")

  data = command("data", None, "look at data")
  kinds = data.add_subparsers(
    metavar="WHAT", parser_class=_Parser, required=True
  )
  for what, text in dict(
    inspect="print tokens, read positions and labels, line by line",
    stats="count solutions, steps, labels and lengths",
  ).items():
    add = command(what, _data, text, kinds)
    add.set_defaults(what=what)
    add.add_argument("file", metavar="FILE")
    add.add_argument("--format", default="jsonl", help="of FILE")
    add.add_argument(
      "--checkpoint", type=_local, help="tokenizer and reading of this"
    )
    add.add_argument("--limit", type=_natural, default=3, help="print so many")
    add.add_argument("--place", default="last_token", help="where it is read")
    add.add_argument("--neutral", default="good", help="label policy")
    add.add_argument("--after_first_error", default="ignore")

  command("doctor", _doctor, "print versions, devices and missing extras")
  return parser


def _version(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
  import prm_jax

  if args.version:
    print(f"prm_jax {prm_jax.__version__}")
  else:
    parser.print_help()


# --- Configs ----------------------------------------------------------------


def _asks_for_config_help(arguments: Sequence[str]) -> bool:
  asks = "--help" in arguments or "-h" in arguments
  return asks and any(
    a == "--config" or a.startswith("--config=") for a in arguments
  )


def _print_config(arguments: list[str], overrides: list[str]) -> None:
  """Prints a config's fields and values, as they would be overridden."""
  from prm_jax import configs

  finder = _Parser(prog="prm-jax", add_help=False, allow_abbrev=False)
  finder.add_argument("--config")
  path = finder.parse_known_args(arguments)[0].config
  forms = dict(demo=_demo_form, train=_train_form)
  expected = forms[arguments[0]]() if arguments[0] in forms else None
  config = configs.load(path, overrides, expected)
  print(f"Fields of {path}; override one with --config.FIELD=VALUE:\n")
  for name, value in configs.fields(config).items():
    print(f"  --config.{name}={value}")


def _run_form(**more: Any) -> Any:
  """Returns the form of a training run's config, with more groups in it."""
  from prm_jax import configs
  from prm_jax import optimizers
  from prm_jax.data import encode
  from prm_jax.models import config as config_lib
  from prm_jax.train import experiment
  from prm_jax.train import loop

  groups = dict(
    model=configs.form(config_lib.ModelConfig, without=["vocab_size"]),
    reading=configs.form(encode.Reading),
    labels=configs.form(encode.LabelPolicy),
    optimizer=configs.form(optimizers.OptimizerConfig),
    fit=configs.form(loop.FitConfig),
  )
  return configs.form(
    experiment.TrainConfig, complete=True, nested=groups | more
  )


def _train_form() -> Any:
  from prm_jax import configs
  from prm_jax.data import corpus

  return _run_form(
    data=configs.form(corpus.CorpusConfig),
    tokenizer=configs.form(corpus.TokenizerConfig),
    start_from=str,
  )


def _demo_form() -> Any:
  from prm_jax import arithmetic
  from prm_jax import configs
  from prm_jax import demo

  runs = {name: _run_form() for name in demo.RUNS}
  groups = dict(
    task=configs.form(arithmetic.Task),
    runs=configs.Form(runs, frozenset(runs)),
  )
  return configs.form(demo.DemoConfig, nested=groups)


# --- Commands ---------------------------------------------------------------


def _demo(args: argparse.Namespace) -> None:
  from prm_jax import comparison
  from prm_jax import configs
  from prm_jax import demo
  from prm_jax import environment

  config = configs.load(args.config, args.overrides, _demo_form())
  checked = demo.from_config(config)
  details = environment.describe(config)
  claim = details["config"] | dict(seed=args.seed)
  with environment.unless_refused(args.workdir):
    environment.check_workdir(args.workdir, claim, fresh=args.fresh)
    if args.fresh:
      demo.check(checked, args.seed)
      demo.clear(args.workdir)
      schema.write_json(args.workdir / "config.json", claim)
    results = demo.run(config, args.workdir, args.seed, details)
  print("\n" + comparison.table(results))
  print(f"\nreport: {args.workdir / 'report.html'}")


def _train(args: argparse.Namespace) -> None:
  from prm_jax import checkpoint
  from prm_jax import configs
  from prm_jax import environment
  from prm_jax.data import corpus
  from prm_jax.train import experiment

  config = configs.load(args.config, args.overrides, _train_form())
  run = experiment.from_config(config)
  sources = corpus.from_config(config.data)
  words = corpus.TokenizerConfig(**config.tokenizer)
  if "://" in config.start_from:
    raise schema.InputError(f"start_from={config.start_from}: {_REMOTE}")
  details = environment.describe(config)
  saved = (args.workdir / "checkpoints").is_dir()
  if saved and not args.resume and not args.fresh:
    raise schema.InputError(
      f"{args.workdir}: holds a run and --no-resume was given;"
      " add --fresh to replace it"
    )
  with environment.unless_refused(args.workdir):
    environment.check_workdir(args.workdir, details["config"], fresh=args.fresh)
    start = None
    if config.start_from:
      start = pathlib.Path(config.start_from)
      tokenizer = checkpoint.read_tokenizer(
        start, checkpoint.read_description(start)
      )
    data = corpus.load(sources)
    if not data.train:
      raise schema.InputError(
        f"{args.config}: data.train: no solution is left to train on"
      )
    if start is None:
      tokenizer = corpus.make_tokenizer(words, data.train)
    params = None if start is None else checkpoint.load_params(start)

    def begin():
      schema.write_json(args.workdir / "config.json", details["config"])
      schema.write_json(args.workdir / "environment.json", details)
      if data.held_out:
        # So that `eval` can be run on what the model hasn't seen.
        path = args.workdir / "held_out.jsonl"
        schema.write_solutions(path, data.held_out)

    experiment.train(
      run,
      data.train,
      tokenizer,
      args.workdir,
      eval_solutions=data.evaluation,
      start_from=params,
      fresh=args.fresh,
      begin=begin,
    )
  print(f"checkpoint: {args.workdir}")


def _sample(args: argparse.Namespace) -> None:
  import dataclasses

  import jax

  from prm_jax import checkpoint
  from prm_jax import environment
  from prm_jax import progress
  from prm_jax import sampler
  from prm_jax.formats import fields

  environment.check_output(args.output)
  problems = []
  seen: dict[str, str] = {}
  own = {f.name for f in dataclasses.fields(schema.Solution)} - {"extra"}
  for where, record in schema.read_records(args.input):
    problem = schema.problem_from_record(record, where)
    clash = problem.extra.keys() & {*own, *sampler.STATISTICS}
    if clash:
      raise schema.InputError(
        f"{where}: {', '.join(sorted(clash))}: a sampled solution has such a"
        " field of its own; give the problem's another name"
      )
    fields.claim(seen, problem.id, where)
    problems.append(problem)
  sampling = sampler.Sampling(args.max_tokens, args.temperature, args.top_p)
  if args.n < 1:
    raise schema.InputError(f"--n={args.n}: give 1 or more")
  description = checkpoint.read_description(args.checkpoint)
  if description.program != "sft":
    raise schema.InputError(
      f"{args.checkpoint}: holds a {description.program}, which doesn't write;"
      " give the folder of a policy (sft)"
    )
  policy = sampler.Sampler(
    description.model,
    checkpoint.load_params(args.checkpoint, description, step=args.step),
    checkpoint.read_tokenizer(args.checkpoint, description),
  )
  starts = [
    schema.Solution(p.id, p.problem, (), extra=dict(p.extra)) for p in problems
  ]
  key = jax.random.key(args.seed)
  with progress.showing("sample", args.n * len(starts)) as update:
    rows = policy.generate(starts, args.n, sampling, key, update)
  count = schema.write_solutions(
    args.output,
    [
      _with_answer(s, problem.answer)
      for problem, row in zip(problems, rows, strict=True)
      for s in row
    ],
  )
  ended = sum(s.extra["ended"] for row in rows for s in row)
  print(f"{args.output}: {count} solutions, {ended} ended by themselves")


def _with_answer(
  solution: schema.Solution, reference: str | None
) -> schema.Solution:
  """Returns the solution with its answer, and its outcome where known."""
  import dataclasses

  from prm_jax import answers

  given = answers.extract(list(solution.steps))
  outcome = None if reference is None else answers.equal(given, reference)
  return dataclasses.replace(solution, answer=given, outcome=outcome)


def _score(args: argparse.Namespace) -> None:
  from prm_jax import environment
  from prm_jax import progress
  from prm_jax import scorer as scorer_lib
  from prm_jax import voting
  from prm_jax.data import corpus

  environment.check_output(args.output)
  solutions, left_out = corpus.read(args.format, args.input)
  scorer = scorer_lib.load(args.checkpoint, args.step)
  longer = scorer.longer_than_trained(solutions)
  if longer:
    print(
      f"{longer} solutions are longer than the {scorer.reading.max_tokens}"
      " tokens that the model was trained with; they are scored whole",
      file=sys.stderr,
    )
  with progress.showing("score", len(solutions)) as update:
    scores = scorer.score(solutions, update)
  count = schema.write_records(
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


def _eval(args: argparse.Namespace) -> None:
  from prm_jax import environment
  from prm_jax.data import encode
  from prm_jax.evaluation import files

  environment.check_output(args.output)
  by = (args.checkpoint, args.scores)
  if args.kind == "processbench":
    results = files.processbench_subsets(
      args.input, *by, args.tune_on, args.seed, args.step
    )
    text = files.processbench_table(results)
  elif args.kind == "steps":
    policy = encode.LabelPolicy(neutral=args.neutral)
    results = files.steps(
      args.format, args.input, policy, *by, args.seed, args.step
    )
    text = files.plain_table(results)
  else:
    results = files.best_of_n_pool(
      args.format, args.input, *by, args.seed, args.aggregate, args.step
    )
    text = files.best_of_n_table(results)
  print(text)
  details = dict(
    command=environment.command(),
    versions=environment.versions(),
    machine=environment.machine(),
  )
  schema.write_json(args.output, results | dict(run=details))
  print(f"\nresults: {args.output}")


def _data(args: argparse.Namespace) -> None:
  from prm_jax import checkpoint
  from prm_jax import tokenizer as tokenizer_lib
  from prm_jax.data import corpus
  from prm_jax.data import encode
  from prm_jax.data import inspection

  policy = encode.LabelPolicy(args.neutral, args.after_first_error)
  tokenizer: tokenizer_lib.Tokenizer = tokenizer_lib.Bytes()
  reading = encode.Reading(place=args.place, max_tokens=1 << 20)
  if args.checkpoint is not None:
    description = checkpoint.read_description(args.checkpoint)
    tokenizer = checkpoint.read_tokenizer(args.checkpoint, description)
    where = args.checkpoint / checkpoint.DESCRIPTION
    reading = encode.saved_reading(description.reading, where)
  solutions, left_out = corpus.read(args.format, args.file)
  if args.what == "inspect":
    for solution in solutions[: args.limit]:
      print(inspection.show(solution, tokenizer, reading, policy))
    rest = len(solutions) - args.limit
    if rest > 0:
      print(f"({rest} more solutions; --limit shows more)")
  else:
    print(inspection.stats(solutions, tokenizer, reading, policy))
  _print_left_out(left_out)


def _doctor(args: argparse.Namespace) -> None:
  from prm_jax import environment

  print(environment.doctor())
