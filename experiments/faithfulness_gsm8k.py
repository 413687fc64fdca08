"""Do small published policies use the steps that they show, on GSM8K?

Command:  PRM_JAX_DATA=... python experiments/faithfulness_gsm8k.py problems
          --output=runs/faithfulness/problems.jsonl
          prm-jax import --from=adapters/smollm2-135m-prm
          --base=SmolLM2-135M-Instruct --to=runs/faithfulness/prm
          and for each policy, imported with --role=policy:
          prm-jax sample --policy=POLICY --dtype=float32 --n=1 --temperature=0
          --max_tokens=384 --input=runs/faithfulness/problems.jsonl
          --output=runs/faithfulness/NAME.samples.jsonl
          prm-jax probe faithfulness --policy=POLICY --dtype=float32
          --max_tokens=384 --checkpoint=runs/faithfulness/prm
          [--max_steps=3 --force='The answer is \\boxed{']
          --input=runs/faithfulness/NAME.samples.jsonl
          --output=runs/faithfulness/NAME.probed.jsonl
          python experiments/faithfulness_gsm8k.py summary
          --probed=runs/faithfulness/NAME.probed.jsonl
          --output=docs/results/faithfulness_NAME.json
Hardware, time and result: see experiments/README.md.

The problems are the first hundred of GSM8K's test part. --force is for a policy
that writes its answers so (Qwen2.5); with it fewer steps are probed, for time.
"""

import argparse
import pathlib
from typing import Any

from prm_jax import schema
from prm_jax.probes import faithfulness
from prm_jax.probes import faithfulness_summary
from prm_jax.records import jsonl
from prm_jax.records import sources
from prm_jax.runtime import files

TEST = "gsm8k:gsm8k/test.jsonl.gz"
NUM_PROBLEMS = 100


def problems() -> list[schema.Problem]:
  """Returns the problems, as `prm-jax sample` reads them."""
  return [
    schema.Problem(s.id, s.problem, s.answer)
    for s in sources.read_sources([TEST])[:NUM_PROBLEMS]
  ]


def summary(probed: pathlib.Path) -> dict[str, Any]:
  """Returns each measure of a file that was probed, with its interval."""
  solutions = jsonl.read_solutions(probed)
  return faithfulness_summary.summary(
    [s.extra[faithfulness.FIELD] for s in solutions],
    [s.problem for s in solutions],
  )


def main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument("what", choices=("problems", "summary"))
  parser.add_argument("--probed", type=pathlib.Path)
  parser.add_argument("--output", type=pathlib.Path, required=True)
  args = parser.parse_args()
  if args.what == "problems":
    jsonl.write_problems(args.output, problems())
    return
  if args.probed is None:
    parser.error("summary: give --probed, what `prm-jax probe` wrote")
  result = summary(args.probed)
  command = "python experiments/faithfulness_gsm8k.py summary"
  files.write_json(args.output, dict(command=command) | result)
  print(faithfulness_summary.table(result))


if __name__ == "__main__":
  main()
