"""Do the labelling commands run on real text, and what do they count?

Command:  PRM_JAX_DATA=... python experiments/labelling_gsm8k.py
          [--workdir=runs/labelling_gsm8k] [--problems=40] [--updates=800]
          [--output=docs/results/labelling_gsm8k.json]
Hardware, time and result: see experiments/README.md.

This tests the path, not a method: the policy (gsm8k_policy_small.py) is
small and from scratch, and solves next to nothing. Every step is a `prm-jax`
command, printed as a user would give it; each one's output is in the output
file as soon as it has ended. What exists already is not made again, and the
same command's output for it is kept.
"""

import argparse
import os
import pathlib
import sys
from typing import Any

import commands

from prm_jax import errors
from prm_jax import schema
from prm_jax.records import jsonl
from prm_jax.records import sources
from prm_jax.runtime import environment
from prm_jax.runtime import files as files_lib

# As a user would name it: what is printed is a command to repeat.
HERE = pathlib.Path(os.path.relpath(pathlib.Path(__file__).parent))
TEST = "gsm8k:gsm8k/test.jsonl.gz"
OUTPUT = pathlib.Path("docs/results/labelling_gsm8k.json")


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--output", type=pathlib.Path, default=OUTPUT)
  parser.add_argument(
    "--workdir", type=pathlib.Path, default=pathlib.Path("runs/labelling_gsm8k")
  )
  parser.add_argument("--problems", type=int, default=40)
  parser.add_argument("--updates", type=int, default=800)
  args = parser.parse_args()
  workdir = args.workdir
  problems = workdir / "problems.jsonl"
  workdir.mkdir(parents=True, exist_ok=True)
  kind, _, path = TEST.partition(":")
  test, _ = sources.read(kind, sources.find(path))
  jsonl.write_problems(
    problems,
    [schema.Problem(s.id, s.problem, s.answer) for s in test[: args.problems]],
  )
  policy, prm = workdir / "policy", workdir / "prm"
  files = {
    name: workdir / f"{name}.jsonl"
    for name in (
      *("solutions", "monte_carlo", "hard", "omega", "judge", "kept"),
      "chosen",
    )
  }
  drawn = ("--max_tokens=256", "--top_p=0.95")
  label = ("label", f"--policy={policy}", *drawn)
  kept = {}
  if args.output.exists():
    kept = {
      r["command"]: r for r in files_lib.read_json(args.output)["reports"]
    }
  reports = []

  def run(*arguments: Any, makes: pathlib.Path) -> None:
    command = f"prm-jax {' '.join(map(str, arguments))}"
    if makes.exists():
      print(f"{makes}: is there")
      reports.extend([kept[command]] if command in kept else [])
      return
    reports.append(commands.run([*map(str, arguments)]))
    files_lib.write_json(
      args.output,
      dict(
        reports=reports,
        command=f"python {' '.join(sys.argv)}",
        versions=environment.versions() | dict(revision=environment.revision()),
        machine=environment.machine(),
      ),
    )

  config = HERE / "gsm8k_policy_small.py"
  updates = f"--config.fit.steps={args.updates}"
  run(
    *("train", f"--config={config}", f"--workdir={policy}", updates),
    makes=policy / "model.json",
  )
  run(
    *("sample", f"--checkpoint={policy}", f"--input={problems}", "--n=4"),
    *(f"--output={files['solutions']}", *drawn),
    makes=files["solutions"],
  )
  given = f"--input={files['solutions']}"
  run(
    *(label[0], "monte_carlo", *label[1:], given, "--completions=8"),
    f"--output={files['monte_carlo']}",
    makes=files["monte_carlo"],
  )
  run(
    *(label[0], "monte_carlo", *label[1:], given, "--completions=8"),
    *("--hard", "--stop_early", f"--output={files['hard']}"),
    makes=files["hard"],
  )
  run(
    *(label[0], "omega_prm", *label[1:], given, "--completions=4"),
    *("--root_rollouts=8", "--searches=8", f"--output={files['omega']}"),
    makes=files["omega"],
  )
  # A policy that was never shown a verdict: all are unparsable, and counted.
  run(
    *(label[0], "judge", *label[1:], given, "--template=first_error"),
    f"--output={files['judge']}",
    makes=files["judge"],
  )
  run(
    *("label", "consensus", f"--input={files['hard']}"),
    *(f"--input={files['monte_carlo']}", "--above_a=0", "--above_b=0"),
    f"--output={files['kept']}",
    makes=files["kept"],
  )
  run(
    *("train", f"--config={HERE / 'prm800k_small.py'}", f"--workdir={prm}"),
    f"--config.data.train=('jsonl:{files['monte_carlo']}',)",
    *("--config.data.evaluation=()", "--config.data.holdout=0.1"),
    *("--config.tokenizer.vocab_size=512", "--config.fit.steps=50"),
    "--config.segmenter=line",
    *(
      "--config.data.exclude=()",
      "--config.objective.labels.after_first_error=keep",
    ),
    makes=prm / "model.json",
  )
  run(
    *("label", "select", f"--checkpoint={prm}", given, "--budget=20"),
    f"--output={files['chosen']}",
    makes=files["chosen"],
  )


if __name__ == "__main__":
  try:
    main()
  except errors.InputError as e:
    sys.exit(f"labelling_gsm8k.py: {e}")
