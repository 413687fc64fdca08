"""The arguments of the commands but `label` and `data`."""

from __future__ import annotations

import argparse
import pathlib

from prm_jax.cli import arguments
from prm_jax.grading import pool

FIELDS = "Fields: --config.FIELD=VALUE; --config=FILE --help lists them."


def add_training(commands: arguments.Parser) -> None:
  """Adds demo and train."""
  demo = commands.add_command(
    "demo", "run the main job on the arithmetic testbed", "demo.run_demo"
  )
  demo.add_path(
    "--workdir", "runs/demo by default, runs/demo_quick with --quick"
  )
  demo.add_natural("--seed", default=0)
  demo.add_option("--config", "a config file in place of the package's own")
  demo.add_switch("--quick", "small sizes: does everything run? (a minute)")
  demo.add_switch("--fresh", "start over")

  train = commands.add_command(
    "train", "train a policy (sft), a PRM or an ORM", "train.train"
  )
  train.add_option("--config", "a config file, see below", required=True)
  train.add_option(
    "--workdir",
    "a folder, or gs://BUCKET/FOLDER",
    required=True,
    type=arguments.workdir,
  )
  train.add_argument(
    "--resume",
    action=argparse.BooleanOptionalAction,
    default=True,
    help="resume from the workdir's last checkpoint (the default)",
  )
  train.add_switch("--fresh", "start over")
  train.epilog = FIELDS


def add_exchange(commands: arguments.Parser) -> None:
  """Adds import and export."""
  importing = commands.add_command(
    "import",
    "make a checkpoint of a Hugging Face one",
    "huggingface.import_model",
  )
  importing.add_path("--from", "its folder", required=True, dest="source")
  importing.add_path("--to", "a new folder", required=True)
  importing.add_option(
    "--template",
    "how a language model is read as a PRM: math_shepherd, rlhflow;"
    " recognised for other PRMs",
  )
  importing.add_option("--system", "another system turn, if it is a chat")

  export = commands.add_command(
    "export",
    "make a Hugging Face folder, with a card",
    "huggingface.export_model",
  )
  export.add_path("--checkpoint", required=True)
  export.add_path("--to", "a new folder", required=True)
  export.add_option(
    "--template", "the one that it was trained to be read in, or native"
  )
  export.add_option("--dtype", "float32, bfloat16 or float16")
  export.add_step()


def add_sample(commands: arguments.Parser) -> None:
  sample = commands.add_command(
    "sample", "sample solutions of problems", "infer.sample"
  )
  sample.add_path("--checkpoint", required=True)
  sample.add_option("--input", "problems.jsonl", required=True)
  sample.add_path("--output", "solutions.jsonl", required=True)
  sample.add_option("--n", "samples of each problem", default=16)
  sample.add_sampling()
  sample.add_natural("--seed", default=0)
  sample.add_option(
    "--grader",
    "of the answers: exact rules, or what pip install 'prm_jax[verify]'"
    " brings (docs/answers.md)",
    "rules",
    choices=pool.GRADERS,
  )
  sample.add_step()


def add_score(commands: arguments.Parser) -> None:
  score = commands.add_command(
    "score", "score the steps of solutions", "infer.score"
  )
  score.add_path("--checkpoint", required=True)
  score.add_solutions()
  score.add_path("--output", "scores.jsonl", required=True)
  score.add_option(
    "--shard", "problems of the I-th part", default="0/1", metavar="I/N"
  )
  score.add_option(
    "--layout",
    "padded; packed: full rows; tree: solutions of a problem share their"
    " prefixes (docs/evaluation.md)",
    default="padded",
  )
  score.add_step()


def add_evaluate(commands: arguments.Parser) -> None:
  """Adds `eval` and its kinds."""
  evaluate = commands.add_command("eval", "evaluate a reward model")
  evaluate.add_commands("KIND")

  best_of_n = _add_evaluation(
    evaluate,
    "best_of_n",
    "accuracy of the best of N solutions, by score and by vote",
  )
  best_of_n.add_aggregate()
  best_of_n.add_option(
    "--grader",
    "find the outcomes again, from reference_answer (docs/answers.md)",
    choices=pool.GRADERS,
  )
  best_of_n.add_solutions()

  steps = _add_evaluation(
    evaluate, "steps", "step AUROC, calibration and first errors against labels"
  )
  steps.add_solutions()
  steps.add_option("--neutral", "PRM800K's rating 0", default="good")

  processbench = _add_evaluation(
    evaluate, "processbench", "ProcessBench F1 per subset, with both thresholds"
  )
  processbench.add_option(
    "--input",
    "once per subset: gsm8k=gsm8k.json",
    required=True,
    action="append",
    metavar="SUBSET=FILE",
  )
  processbench.add_option("--tune_on", "threshold's subset", default="gsm8k")

  prmbench = _add_evaluation(
    evaluate,
    "prmbench",
    "PRMScore of PRMBench's nine classes and three categories",
  )
  prmbench.add_option(
    "--input", "once per file", required=True, action="append"
  )
  prmbench.add_option("--format", "of the input", default="prmbench")


def _add_evaluation(
  kinds: arguments.Parser, name: str, text: str
) -> arguments.Parser:
  """Returns the parser of a kind, with what all kinds take."""
  kind = kinds.add_command(name, text, "evaluate.evaluate")
  kind.set_defaults(kind=name)
  kind.add_scorer()
  kind.add_path(
    "--output",
    "results.json in the current folder by default",
    default=pathlib.Path("results.json"),
  )
  kind.add_path(
    "--samples",
    "a line per solution; samples.jsonl beside results.json by default",
  )
  kind.add_natural("--seed", "of bootstrap", default=0)
  return kind


def add_plan(commands: arguments.Parser) -> None:
  plan = commands.add_command(
    "plan",
    "compile a run's update for chips that aren't here: memory, FLOPs, sends",
    "plan.plan",
  )
  plan.add_option("--config", "a config file that `train` takes")
  plan.add_option(
    "--topology", "v5e:16x16, v6e:8x8, v5p:4x4x4, v4:4x4x4 or h200:8"
  )
  plan.add_option("--mesh", "data,fsdp,tensor; the config's by default")
  plan.add_natural(
    "--vocab_size", "that of init_from, or tokenizer.vocab_size, by default"
  )
  plan.add_argument(
    "--suggest",
    action=argparse.BooleanOptionalAction,
    default=True,
    help="if a run doesn't fit, look for what does (the default)",
  )
  plan.add_path("--output", "the plan as JSON")
  plan.add_path(
    "--check", "a file of budgets; each of its runs is compiled and compared"
  )
  plan.epilog = FIELDS


def add_check_device(commands: arguments.Parser) -> None:
  check = commands.add_command(
    "check-device",
    "is this machine right, and how fast: kernels, training, scoring, sampling",
    "check_device.check_device",
  )
  check.add_path(
    "--output",
    "results; what is missing in it is run (check.json by default)",
    default=pathlib.Path("check.json"),
  )
  check.add_option(
    "--only", "names of checks or groups: attention,model; all by default"
  )
  check.add_option(
    "--minutes",
    "after so many no further check begins (8 by default)",
    type=arguments.positive,
    default=8.0,
  )
  how = check.add_mutually_exclusive_group()
  how.add_argument(
    "--quick", action="store_true", help="few cases, small shapes"
  )
  how.add_argument(
    "--full", action="store_true", help="every case of attention"
  )
  check.add_path("--against", "an older result, to compare with")
