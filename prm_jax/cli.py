"""`prm-jax`: the one door; commands.py does what is asked for.

Exit codes: 0 done; 1 the user's input can't be used (one line says why);
130 interrupted.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
import importlib
import os
import pathlib
import sys
from typing import Any

from prm_jax import schema
from prm_jax.grading import pool
from prm_jax.labelling import consensus
from prm_jax.labelling import judge
from prm_jax.labelling import verdicts


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


def _local(text: str) -> pathlib.Path:
  """Returns a path on this machine."""
  try:
    return schema.local_path(text)
  except schema.InputError as e:
    raise argparse.ArgumentTypeError(str(e)) from None


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

  add = command(
    "demo", _lazily("run_demo"), "run the main job on the arithmetic testbed"
  )
  add.add_argument("--workdir", default="runs/demo", type=_local)
  add.add_argument("--seed", default=0, type=_natural)
  add.add_argument("--config", default="experiments/arithmetic.py")
  add.add_argument("--fresh", action="store_true", help="start over")

  add = command(
    "train", _lazily("train"), "train a policy (sft), a PRM or an ORM"
  )
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

  add = command(
    "import", _lazily("import_model"), "make a checkpoint of a Hugging Face one"
  )
  add.add_argument(
    "--from", required=True, type=_local, dest="source", help="its folder"
  )
  add.add_argument("--to", required=True, type=_local, help="a new folder")
  add.add_argument(
    "--dialect",
    help="how a language model is read as a PRM: math_shepherd, rlhflow;"
    " recognised for other PRMs",
  )
  add.add_argument("--system", help="another system turn, where it is a chat")

  add = command(
    "export", _lazily("export_model"), "make a Hugging Face folder, with a card"
  )
  add.add_argument("--checkpoint", required=True, type=_local)
  add.add_argument("--to", required=True, type=_local, help="a new folder")
  add.add_argument(
    "--dialect", help="the one that it was trained to be read in, or native"
  )
  add.add_argument("--dtype", help="float32, bfloat16 or float16")
  add_step(add)

  add = command("sample", _lazily("sample"), "sample solutions of problems")
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
  add.add_argument(
    "--grader",
    choices=pool.GRADERS,
    default="rules",
    help="of the answers: exact rules, or what pip install 'prm_jax[verify]'"
    " brings (docs/answers.md)",
  )
  add_step(add)

  add = command("score", _lazily("score"), "score the steps of solutions")
  add.add_argument("--checkpoint", required=True, type=_local)
  add.add_argument("--input", required=True, help="solutions.jsonl")
  add.add_argument("--format", default="jsonl", help="of the input")
  add.add_argument("--output", required=True, type=_local, help="scores.jsonl")
  add_step(add)

  _add_label(command, add_step)

  evaluations = command("eval", None, "evaluate a reward model")
  kinds = evaluations.add_subparsers(
    metavar="KIND", parser_class=_Parser, required=True
  )
  texts = dict(
    best_of_n="accuracy of the best of N solutions, by score and by vote",
    steps="step AUROC, calibration and first errors against labels",
    processbench="ProcessBench F1 per subset, with both thresholds",
    prmbench="PRMScore of PRMBench's nine classes and three categories",
  )
  for kind, text in texts.items():
    add = command(kind, _lazily("evaluate"), text, kinds)
    add.set_defaults(kind=kind)
    add.add_argument("--checkpoint", type=_local, help="scores by this")
    add_step(add)
    add.add_argument("--scores", help="scores.jsonl, instead of --checkpoint")
    add.add_argument(
      "--output",
      type=_local,
      default=pathlib.Path("results.json"),
      help="results.json in the current folder by default",
    )
    add.add_argument(
      "--samples",
      type=_local,
      help="a line per solution; samples.jsonl beside results.json by default",
    )
    add.add_argument("--seed", type=_natural, default=0, help="of bootstrap")
    if kind == "best_of_n":
      add.add_argument(
        "--aggregate",
        choices=("product", "min", "last", "mean"),
        help="of step scores; the checkpoint's own, or product, by default",
      )
      add.add_argument(
        "--grader",
        choices=pool.GRADERS,
        help="find the outcomes anew, from reference_answer (docs/answers.md)",
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
    elif kind == "prmbench":
      add.add_argument(
        "--input", required=True, action="append", help="once per file"
      )
      add.add_argument("--format", default="prmbench", help="of the input")
    else:
      add.add_argument("--input", required=True, help="solutions.jsonl")
      add.add_argument("--format", default="jsonl", help="of the input")
    if kind == "steps":
      add.add_argument("--neutral", default="good", help="PRM800K's rating 0")

  def add_set(to: argparse.ArgumentParser) -> None:
    to.add_argument("file", metavar="FILE")
    to.add_argument("--format", default="jsonl", help="of FILE")

  def add_against(to: argparse.ArgumentParser) -> None:
    to.add_argument(
      "--against",
      action="append",
      default=[],
      metavar="FORMAT:FILE",
      help="a test set whose problems must not be trained on",
    )

  data = command("data", None, "look at data, convert and split it")
  kinds = data.add_subparsers(
    metavar="WHAT", parser_class=_Parser, required=True
  )
  for what, text in dict(
    inspect="print tokens, read positions and labels, line by line",
    stats="count solutions, steps, labels and lengths",
  ).items():
    add = command(what, _lazily("look_at_data"), text, kinds)
    add.set_defaults(what=what)
    add_set(add)
    add.add_argument(
      "--checkpoint", type=_local, help="tokenizer and reading of this"
    )
    add.add_argument("--limit", type=_natural, default=3, help="print so many")
    add.add_argument("--place", default="last_token", help="where it is read")
    add.add_argument("--neutral", default="good", help="label policy")
    add.add_argument("--after_first_error", default="ignore")
  add = command(
    "build",
    _lazily("build", "data_commands"),
    "write ArrayRecord, which training reads by number",
    kinds,
  )
  add.add_argument("name", metavar="NAME", help="a published dataset, a format")
  add.add_argument(
    "--input",
    type=_local,
    help="a folder of the published files, which are downloaded otherwise; or"
    " one file in the format NAME",
  )
  add.add_argument("--output", required=True, type=_local, help="a folder")

  add = command(
    "convert",
    _lazily("convert", "data_commands"),
    "write a set in another form",
    kinds,
  )
  add_set(add)
  add.add_argument("--to", required=True, help="form to write")
  add.add_argument("--output", required=True, type=_local)
  add.add_argument(
    "--neutral", help="turn ratings into labels; what 0 is: good, bad, ignore"
  )
  add.add_argument(
    "--after_first_error", help="with --neutral; keep by default"
  )
  add.add_argument(
    "--fill",
    action="store_true",
    help="cut steps behind the last label; earlier ones without one are right",
  )
  add.add_argument(
    "--skip", action="store_true", help="leave out and count what can't be held"
  )

  add = command(
    "doctor",
    _lazily("examine", "data_commands"),
    "look for what corrupts training",
    kinds,
  )
  add_set(add)
  add_against(add)
  add.add_argument(
    "--checkpoint", type=_local, help="tokenizer and reading of this"
  )
  add.add_argument(
    "--max_tokens", type=_natural, help="of a solution; in bytes by default"
  )
  add.add_argument(
    "--too_long",
    help="what a longer one loses: drop_solution, drop_trailing_steps; the"
    " checkpoint's own, or the former, by default",
  )
  add.add_argument("--neutral", default="good", help="label policy")
  add.add_argument("--after_first_error", default="ignore")
  add.add_argument(
    "--allow", action="append", default=[], help="a check that may fail"
  )
  add.add_argument("--output", type=_local, help="results.json")

  add = command(
    "split",
    _lazily("split", "data_commands"),
    "split a set, no problem twice",
    kinds,
  )
  add_set(add)
  add_against(add)
  add.add_argument("--to", default="jsonl", help="form to write")
  add.add_argument("--train", required=True, type=_local, help="file to write")
  add.add_argument("--test", required=True, type=_local, help="file to write")
  add.add_argument(
    "--share", type=float, default=0.1, help="of problems to --test"
  )
  add.add_argument(
    "--skip", action="store_true", help="leave out problems of --against"
  )

  command(
    "doctor", _lazily("doctor"), "print versions, devices and missing extras"
  )
  return parser


def _add_label(command: Callable, add_step: Callable) -> None:
  """Adds `label` and its kinds."""
  label = command("label", None, "label steps without people, by machine")
  kinds = label.add_subparsers(
    metavar="KIND", parser_class=_Parser, required=True
  )

  def kind(name: str, text: str, **more: Any) -> argparse.ArgumentParser:
    add = command(name, _lazily(name, "label_commands"), text, kinds)
    add.set_defaults(kind=name)
    add.add_argument("--input", required=True, help="solutions.jsonl", **more)
    add.add_argument("--format", default="jsonl", help="of the input")
    add.add_argument(
      "--output", required=True, type=_local, help="labelled.jsonl"
    )
    return add

  def add_part(to: argparse.ArgumentParser) -> None:
    to.add_argument("--seed", type=_natural, default=0)
    to.add_argument(
      "--shard", default="0/1", metavar="I/N", help="the I-th part of N"
    )

  def add_run(to: argparse.ArgumentParser) -> None:
    add_part(to)
    to.add_argument(
      "--policy",
      required=True,
      help="what writes: a checkpoint folder, or http://HOST:PORT/v1",
    )
    add_step(to)
    to.add_argument("--model", help="its name behind an http address")
    to.add_argument("--chat", action="store_true", help="... is a chat's")
    to.add_argument(
      "--prompt", default="{problem}", help="... what it is asked"
    )
    to.add_argument(
      "--concurrency", type=int, default=16, help="... requests at a time"
    )
    to.add_argument(
      "--key_variable", help="... environment variable with its key"
    )
    to.add_argument("--temperature", type=float, default=1.0)
    to.add_argument("--top_p", type=float, default=1.0)
    to.add_argument("--max_tokens", type=int, default=512)
    to.add_argument(
      "--batch",
      type=int,
      default=64,
      help="solutions, of whole problems, to a line of the journal",
    )
    to.add_argument(
      "--fresh", action="store_true", help="start over: empty the journal"
    )

  def add_answers(to: argparse.ArgumentParser) -> None:
    to.add_argument(
      "--problems",
      help="problems.jsonl with answers; reference_answer in the input without",
    )
    to.add_argument(
      "--grader", choices=pool.GRADERS, default="rules", help="docs/answers.md"
    )

  add = kind("monte_carlo", "how many of K rollouts of each step end right")
  add_run(add)
  add_answers(add)
  add.add_argument("--completions", type=int, default=8, help="K, of a step")
  add.add_argument(
    "--hard", action="store_true", help="labels are 1[value > threshold]"
  )
  add.add_argument("--threshold", type=float, default=0.0, help="with --hard")
  add.add_argument(
    "--stop_early",
    action="store_true",
    help="with --hard: no more rollouts once the label can't change",
  )
  add.add_argument(
    "--max_width",
    type=float,
    help="no more rollouts once the value's interval is as narrow as this",
  )
  add.add_argument(
    "--confidence", type=float, default=0.95, help="of that interval"
  )
  add.add_argument(
    "--stop_at_zero",
    action="store_true",
    help="no labels behind a step that no rollout came back from",
  )

  add = kind("omega_prm", "the first errors of rollouts, by a tree search")
  add_run(add)
  add_answers(add)
  add.add_argument("--completions", type=int, default=8, help="k, of a state")
  add.add_argument(
    "--root_rollouts", type=int, default=32, help="of a problem alone"
  )
  add.add_argument(
    "--searches", type=int, default=100, help="the most of a problem"
  )
  add.add_argument(
    "--max_rollouts", type=int, help="no search begins after so many"
  )
  add.add_argument(
    "--pieces",
    type=int,
    default=0,
    help="search down to a solution's length / PIECES; 0: to single steps",
  )
  add.add_argument(
    "--hard", action="store_true", help="1 before the first error, 0 there"
  )

  add = kind("judge", "what a language model makes of each step")
  add_run(add)
  add.add_argument(
    "--template",
    choices=sorted(verdicts.TEMPLATES),
    default="processbench",
    help="how it is asked and read",
  )
  add.add_argument("--votes", type=int, default=1, help="of each solution")
  add.add_argument(
    "--min_votes", type=int, default=1, help="fewer readable ones: no label"
  )
  add.add_argument(
    "--vote",
    choices=judge.VOTES,
    default="share",
    help="how votes become labels; weight: by probabilities of words",
  )
  add.add_argument(
    "--keep_texts", action="store_true", help="keep what it wrote"
  )

  add = kind("consensus", "keep what two labellers agree on", action="append")
  add.add_argument(
    "--above_a",
    type=float,
    required=True,
    help="a step of the first --input is right above this: 0, say, for Monte-Carlo",
  )
  add.add_argument(
    "--above_b",
    type=float,
    required=True,
    help="of the second: 0.5, say, for a judge",
  )
  add.add_argument(
    "--labels",
    choices=consensus.LABELS,
    default="hard",
    help="of what is kept: 1 up to the error and 0 there, or those of a or b",
  )

  add = kind("select", "choose what to label next: the convincing wrong ones")
  add_part(add)
  add.add_argument("--checkpoint", type=_local, help="scores by this")
  add_step(add)
  add.add_argument("--scores", help="scores.jsonl, instead of --checkpoint")
  add.add_argument("--budget", type=int, help="solutions in all")
  add.add_argument("--per_problem", type=int, help="solutions of each problem")
  add.add_argument(
    "--wrong_share", type=float, default=0.8, help="of those with wrong answers"
  )
  add.add_argument(
    "--aggregate",
    choices=("product", "min", "last", "mean"),
    help="of step scores; the checkpoint's own, or product, by default",
  )
  add.add_argument(
    "--labelled",
    action="append",
    default=[],
    metavar="FILE",
    help="solutions not to choose again; once per file",
  )
  add.add_argument(
    "--random", action="store_true", help="any, for comparison: no scores"
  )


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
  from prm_jax import commands

  finder = _Parser(prog="prm-jax", add_help=False, allow_abbrev=False)
  finder.add_argument("--config")
  path = finder.parse_known_args(arguments)[0].config
  commands.print_config(arguments[0], path, overrides)


def _lazily(
  name: str, module: str = "commands"
) -> Callable[[argparse.Namespace], None]:
  """Returns a function of that module; jax and the rest load when it runs."""

  def run(args: argparse.Namespace) -> None:
    getattr(importlib.import_module(f"prm_jax.{module}"), name)(args)

  return run
