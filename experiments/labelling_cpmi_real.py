"""Do CPMI's labels see the errors that people found in real solutions?

Command:  prm-jax import --role=policy --from=SmolLM2-135M-Instruct
          --to=runs/bases/smol_policy
          PRM_JAX_DATA=... python experiments/labelling_cpmi_real.py
          --policy=runs/bases/smol_policy
          [--output=docs/results/labelling_cpmi_real.json] [--solutions=80]
          [--seed=0]
Hardware, time and result: see experiments/README.md.

A seeded sample of the problems of ProcessBench's gsm8k with all their solutions
(arXiv 2412.06559), whose right answers are those of GSM8K's test problems of the
same text. Steps up to the first wrong one, by people, against the reward of
each form of CPMI; the paper's form with four phrasings of our own.

The rule, written before any result: a form sees errors if the 95 % interval of
its AUROC (bootstrap over problems) is above 1/2 and its AUROC above that of the
step's place alone; it doesn't if the interval holds 1/2 or the AUROC is below
the place's.
"""

import argparse
import dataclasses
import json
import pathlib
import sys
import time
from typing import Any

import numpy as np

import prm_jax
from prm_jax import schema
from prm_jax.evaluation import processbench_metrics
from prm_jax.evaluation import step_metrics
from prm_jax.labelling import cpmi
from prm_jax.records import sources
from prm_jax.runtime import environment
from prm_jax.runtime import files

GSM8K = "gsm8k:gsm8k/test.jsonl.gz"
PROCESSBENCH = "processbench:processbench/gsm8k.json.gz"
OUTPUT = "docs/results/labelling_cpmi_real.json"
PHRASINGS = (
  "{problem}",
  "{problem}\n\nWork it out step by step.",
  "Here is a question of arithmetic. {problem} Explain each step.",
  "Question: {problem}\nThink about it in small steps, then answer.",
)
ARMS: dict[str, dict[str, Any]] = dict(
  alone=dict(form="alone"),
  increment=dict(form="increment"),
  cumulative=dict(form="cumulative"),
  alone_four_phrasings=dict(form="alone", phrasing=PHRASINGS),
)


def solutions_of(num: int, seed: int) -> list[schema.Solution]:
  """Returns labelled solutions of problems drawn at random, with answers."""
  right = {_plain(s.problem): s.answer for s in sources.read_sources([GSM8K])}
  by_problem: dict[str, list[schema.Solution]] = {}
  for s in sources.read_sources([PROCESSBENCH]):
    if answer := right.get(_plain(s.problem)):
      extra = {**s.extra, schema.REFERENCE: answer}
      s = dataclasses.replace(s, extra=extra)
      by_problem.setdefault(s.problem, []).append(s)
  print(f"{sum(map(len, by_problem.values()))} solutions have a right answer")
  order = np.random.default_rng(seed).permutation(len(by_problem)).tolist()
  groups, found = [*by_problem.values()], []
  for i in order:
    if len(found) < num:
      found += groups[i]
  return found


def _plain(text: str) -> str:
  return " ".join(text.split())


def measured(
  values: list[list[float]], exact: list[schema.Solution]
) -> dict[str, Any]:
  """Returns AUROC and interval of steps up to the first wrong one."""
  found = step_metrics.evaluate(
    values,
    [s.labels or () for s in exact],
    problems=[s.problem for s in exact],
    num_resamples=1_000,
  )
  return {x: found[x] for x in ("auroc", "auroc_interval")}


def main() -> None:
  parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
  parser.add_argument("--policy", required=True)
  parser.add_argument("--output", type=pathlib.Path, default=OUTPUT)
  parser.add_argument("--solutions", type=int, default=80)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--only", default=",".join(ARMS))
  args = parser.parse_args()
  exact = solutions_of(args.solutions, args.seed)
  plain = dict(
    position=processbench_metrics.step_index(exact),
    length=processbench_metrics.step_length(exact),
  )
  results: dict[str, Any] = dict(
    solutions=len(exact),
    problems=len({s.problem for s in exact}),
    with_error=sum(schema.first_error(s.labels or ()) >= 0 for s in exact),
    steps=sum(len(s.steps) for s in exact),
    **{name: measured(x, exact) for name, x in plain.items()},
  )
  for name in args.only.split(","):
    start = time.perf_counter()
    labelled = prm_jax.CPMI(args.policy, **ARMS[name])(exact)
    seconds = time.perf_counter() - start
    right = [
      [1 / (1 + np.exp(-x)) for x in s.extra[cpmi.FIELD]["right"]]
      for s in labelled
    ]
    results[name] = measured([list(s.labels or ()) for s in labelled], exact)
    results[name] |= dict(
      right_only=measured(right, exact), seconds=round(seconds, 1)
    )
    print(name, json.dumps(results[name]), flush=True)
    files.write_json(
      args.output,
      dict(
        results=results,
        command=" ".join(["python", *sys.argv]),
        versions=environment.versions(),
        machine=environment.machine(),
      ),
    )


if __name__ == "__main__":
  main()
