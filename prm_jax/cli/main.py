"""`prm-jax`: parses the command line and runs a command of this folder.

Exit codes: 0 done; 1 the user's input can't be used (one line says why);
130 interrupted.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
import os
import pathlib
import sys

from prm_jax import errors
from prm_jax.cli import arguments
from prm_jax.cli import label_arguments
from prm_jax.grading import pool


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line; returns the exit code."""
  argv = list(sys.argv[1:] if argv is None else argv)
  parser = _parser()
  argv, overrides = _split_overrides(argv)
  try:
    if _asks_for_config_help(argv):
      _print_config(argv, overrides)
      return 0
    parsed = parser.parse_args(argv)
    if overrides and not hasattr(parsed, "config"):
      raise errors.InputError(
        f"--config.{overrides[0]}: {parsed.command} takes no config"
      )
    parsed.overrides = overrides
    parsed.run(parsed)
  except errors.InputError as e:
    if "--debug" in argv:
      raise
    print(f"prm-jax: {e}", file=sys.stderr)
    return e.exit_code
  except KeyboardInterrupt:
    print("prm-jax: interrupted", file=sys.stderr)
    return 130
  except BrokenPipeError:
    # The reader of our output (head, less) has seen enough.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
  return 0


def _split_overrides(argv: list[str]) -> tuple[list[str], list[str]]:
  """Returns the argv without `--config.field=value`, and those fields."""
  rest, overrides = [], []
  queue = list(argv)
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
  parser = arguments.Parser(
    prog="prm-jax",
    description="Process supervision in JAX: train, use and evaluate process"
    " and outcome reward models.",
  )
  parser.add_argument(
    "--version", action="store_true", help="print the version and stop"
  )
  parser.set_defaults(run=lambda args: _version(args, parser))
  parser.set_defaults(command="prm-jax")
  commands = parser.add_subparsers(
    metavar="COMMAND", parser_class=arguments.Parser
  )

  def command(name: str, run: Callable | None, text: str, to=commands):
    added = to.add_parser(name, help=text, description=text)
    added.set_defaults(run=run, command=name)
    added.add_argument(
      "--debug", action="store_true", help="show a traceback on errors"
    )
    return added

  def add_step(to: argparse.ArgumentParser) -> None:
    to.add_argument(
      "--step",
      type=arguments.natural,
      help="saved step to use; the latest by default",
    )

  add = command(
    "demo",
    arguments.lazily("run_demo", "demo"),
    "run the main job on the arithmetic testbed",
  )
  add.add_argument("--workdir", default="runs/demo", type=arguments.local)
  add.add_argument("--seed", default=0, type=arguments.natural)
  add.add_argument("--config", default="experiments/arithmetic.py")
  add.add_argument("--fresh", action="store_true", help="start over")

  add = command(
    "train",
    arguments.lazily("train", "train"),
    "train a policy (sft), a PRM or an ORM",
  )
  add.add_argument("--config", required=True, help="a config file, see below")
  add.add_argument(
    "--workdir",
    required=True,
    type=arguments.workdir,
    help="a folder, or gs://BUCKET/FOLDER",
  )
  add.add_argument(
    "--resume",
    action=argparse.BooleanOptionalAction,
    default=True,
    help="go on from the workdir's last checkpoint (the default)",
  )
  add.add_argument("--fresh", action="store_true", help="start over")
  add.epilog = "Fields: --config.FIELD=VALUE; --config=FILE --help lists them."

  add = command(
    "import",
    arguments.lazily("import_model", "huggingface"),
    "make a checkpoint of a Hugging Face one",
  )
  add.add_argument(
    "--from",
    required=True,
    type=arguments.local,
    dest="source",
    help="its folder",
  )
  add.add_argument(
    "--to", required=True, type=arguments.local, help="a new folder"
  )
  add.add_argument(
    "--template",
    help="how a language model is read as a PRM: math_shepherd, rlhflow;"
    " recognised for other PRMs",
  )
  add.add_argument("--system", help="another system turn, where it is a chat")

  add = command(
    "export",
    arguments.lazily("export_model", "huggingface"),
    "make a Hugging Face folder, with a card",
  )
  add.add_argument("--checkpoint", required=True, type=arguments.local)
  add.add_argument(
    "--to", required=True, type=arguments.local, help="a new folder"
  )
  add.add_argument(
    "--template", help="the one that it was trained to be read in, or native"
  )
  add.add_argument("--dtype", help="float32, bfloat16 or float16")
  add_step(add)

  add = command(
    "sample",
    arguments.lazily("sample", "infer"),
    "sample solutions of problems",
  )
  add.add_argument("--checkpoint", required=True, type=arguments.local)
  add.add_argument("--input", required=True, help="problems.jsonl")
  add.add_argument(
    "--output", required=True, type=arguments.local, help="solutions.jsonl"
  )
  add.add_argument("--n", type=int, default=16, help="samples of each problem")
  add.add_argument("--temperature", type=float, default=1.0)
  add.add_argument("--top_p", type=float, default=1.0)
  add.add_argument("--max_tokens", type=int, default=512)
  add.add_argument("--seed", type=arguments.natural, default=0)
  add.add_argument(
    "--grader",
    choices=pool.GRADERS,
    default="rules",
    help="of the answers: exact rules, or what pip install 'prm_jax[verify]'"
    " brings (docs/answers.md)",
  )
  add_step(add)

  add = command(
    "score", arguments.lazily("score", "infer"), "score the steps of solutions"
  )
  add.add_argument("--checkpoint", required=True, type=arguments.local)
  add.add_argument("--input", required=True, help="solutions.jsonl")
  add.add_argument("--format", default="jsonl", help="of the input")
  add.add_argument(
    "--output", required=True, type=arguments.local, help="scores.jsonl"
  )
  add.add_argument(
    "--shard", default="0/1", metavar="I/N", help="problems of the I-th part"
  )
  add.add_argument(
    "--layout",
    default="padded",
    help="padded; packed: full rows; forest: solutions of a problem share their"
    " prefixes (docs/evaluation.md)",
  )
  add_step(add)

  label_arguments.add(command, add_step)

  evaluations = command("eval", None, "evaluate a reward model")
  kinds = evaluations.add_subparsers(
    metavar="KIND", parser_class=arguments.Parser, required=True
  )
  texts = dict(
    best_of_n="accuracy of the best of N solutions, by score and by vote",
    steps="step AUROC, calibration and first errors against labels",
    processbench="ProcessBench F1 per subset, with both thresholds",
    prmbench="PRMScore of PRMBench's nine classes and three categories",
  )
  for kind, text in texts.items():
    add = command(kind, arguments.lazily("evaluate", "evaluate"), text, kinds)
    add.set_defaults(kind=kind)
    add.add_argument(
      "--checkpoint", type=arguments.local, help="scores by this"
    )
    add_step(add)
    add.add_argument("--scores", help="scores.jsonl, instead of --checkpoint")
    add.add_argument(
      "--output",
      type=arguments.local,
      default=pathlib.Path("results.json"),
      help="results.json in the current folder by default",
    )
    add.add_argument(
      "--samples",
      type=arguments.local,
      help="a line per solution; samples.jsonl beside results.json by default",
    )
    add.add_argument(
      "--seed", type=arguments.natural, default=0, help="of bootstrap"
    )
    if kind == "best_of_n":
      add.add_argument(
        "--aggregate",
        choices=arguments.AGGREGATES,
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
    metavar="WHAT", parser_class=arguments.Parser, required=True
  )
  for what, text in dict(
    inspect="print tokens, read positions and labels, line by line",
    stats="count solutions, steps, labels and lengths",
  ).items():
    add = command(what, arguments.lazily("look_at_data", "data"), text, kinds)
    add.set_defaults(what=what)
    add_set(add)
    add.add_argument(
      "--checkpoint",
      type=arguments.local,
      help="tokenizer and reading of this",
    )
    add.add_argument(
      "--limit", type=arguments.natural, default=3, help="print so many"
    )
    add.add_argument(
      "--score_position", default="last_token", help="where it is read"
    )
    add.add_argument("--neutral", default="good", help="label policy")
    add.add_argument("--after_first_error", default="ignore")
  add = command(
    "build",
    arguments.lazily("build", "data"),
    "write ArrayRecord, which training reads by number",
    kinds,
  )
  add.add_argument("name", metavar="NAME", help="a published dataset, a format")
  add.add_argument(
    "--input",
    type=arguments.local,
    help="a folder of the published files, which are downloaded otherwise; or"
    " one file in the format NAME",
  )
  add.add_argument(
    "--output", required=True, type=arguments.local, help="a folder"
  )

  add = command(
    "convert",
    arguments.lazily("convert", "data"),
    "write a set in another form",
    kinds,
  )
  add_set(add)
  add.add_argument("--to", required=True, help="form to write")
  add.add_argument("--output", required=True, type=arguments.local)
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
    arguments.lazily("examine", "data"),
    "look for what corrupts training",
    kinds,
  )
  add_set(add)
  add_against(add)
  add.add_argument(
    "--checkpoint",
    type=arguments.local,
    help="tokenizer and reading of this",
  )
  add.add_argument(
    "--max_tokens",
    type=arguments.natural,
    help="of a solution; in bytes by default",
  )
  add.add_argument(
    "--truncation",
    help="what a longer one loses: drop, truncate; the"
    " checkpoint's own, or the former, by default",
  )
  add.add_argument("--neutral", default="good", help="label policy")
  add.add_argument("--after_first_error", default="ignore")
  add.add_argument(
    "--allow", action="append", default=[], help="a check that may fail"
  )
  add.add_argument("--output", type=arguments.local, help="results.json")

  add = command(
    "split",
    arguments.lazily("split", "data"),
    "split a set, no problem twice",
    kinds,
  )
  add_set(add)
  add_against(add)
  add.add_argument("--to", default="jsonl", help="form to write")
  add.add_argument(
    "--train", required=True, type=arguments.local, help="file to write"
  )
  add.add_argument(
    "--test", required=True, type=arguments.local, help="file to write"
  )
  add.add_argument(
    "--share", type=float, default=0.1, help="of problems to --test"
  )
  add.add_argument(
    "--skip", action="store_true", help="leave out problems of --against"
  )

  add = command(
    "plan",
    arguments.lazily("plan", "plan"),
    "compile a run's update for chips that aren't here: memory, FLOPs, sends",
  )
  add.add_argument("--config", help="a config file that `train` takes")
  add.add_argument(
    "--topology", help="v5e:16x16, v6e:8x8, v5p:4x4x4, v4:4x4x4 or h200:8"
  )
  add.add_argument("--mesh", help="data,fsdp,tensor; the config's by default")
  add.add_argument(
    "--vocab_size",
    type=arguments.natural,
    help="that of init_from, or tokenizer.vocab_size, by default",
  )
  add.add_argument(
    "--suggest",
    action=argparse.BooleanOptionalAction,
    default=True,
    help="where a run doesn't fit, look for what does (the default)",
  )
  add.add_argument("--output", type=arguments.local, help="the plan as JSON")
  add.add_argument(
    "--check",
    type=arguments.local,
    help="a file of budgets; each of its runs is compiled and compared",
  )
  add.epilog = "Fields: --config.FIELD=VALUE; --config=FILE --help lists them."

  add = command(
    "check-device",
    arguments.lazily("check_device", "check_device"),
    "is this machine right, and how fast: kernels, training, scoring, sampling",
  )
  add.add_argument(
    "--output",
    type=arguments.local,
    default=pathlib.Path("check.json"),
    help="results; what is missing in it is run (check.json by default)",
  )
  add.add_argument(
    "--only", help="names of checks or groups: attention,model; all by default"
  )
  add.add_argument(
    "--minutes",
    type=arguments.positive,
    default=8.0,
    help="after so many no further check begins (8 by default)",
  )
  how = add.add_mutually_exclusive_group()
  how.add_argument(
    "--quick", action="store_true", help="few cases, small shapes"
  )
  how.add_argument(
    "--full", action="store_true", help="every case of attention"
  )
  add.add_argument(
    "--against",
    type=arguments.local,
    help="an older result, to compare with",
  )

  command(
    "doctor",
    arguments.lazily("print_doctor", "environment"),
    "print versions, devices and missing extras",
  )
  return parser


def _version(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
  import prm_jax

  if args.version:
    print(f"prm_jax {prm_jax.__version__}")
  else:
    parser.print_help()


# --- Configs ----------------------------------------------------------------


def _asks_for_config_help(argv: Sequence[str]) -> bool:
  asks = "--help" in argv or "-h" in argv
  return asks and any(
    a == "--config" or a.startswith("--config=") for a in argv
  )


def _print_config(argv: list[str], overrides: list[str]) -> None:
  from prm_jax.cli import config_help

  finder = arguments.Parser(prog="prm-jax", add_help=False, allow_abbrev=False)
  finder.add_argument("--config")
  path = finder.parse_known_args(argv)[0].config
  config_help.print_config(argv[0], path, overrides)
