"""Does a PRM from a published base choose better among a real policy's answers?

Command:  prm-jax import --role=policy
          --from=Qwen/Qwen2.5-Coder-0.5B-Instruct --to=runs/bases/qwen_policy
          --system='Please reason step by step, and put your final answer
          within \\boxed{}.'
          PRM_JAX_DATA=... python experiments/real_best_of_n.py sample
          [--policy=runs/bases/qwen_policy]
          [--samples=docs/results/real_best_of_n_samples.jsonl.gz]
          python experiments/real_best_of_n.py judge --checkpoint=PRM
          [--read=docs/results/real_best_of_n_read.json]
          [--samples=...] [--output=docs/results/real_best_of_n.json]
          PRM_JAX_DATA=... python experiments/real_likelihood.py
          --base=qwen_policy --sets=paths,samples
          PRM_JAX_DATA=... python experiments/real_best_of_n.py judge
          --likelihood=runs/real_likelihood [--output=...]
Rules, hardware, time and result: see experiments/README.md.

The problems are GSM8K test problems that neither ProcessBench nor the pool of
real_prm_gsm8k.py has, so that no label or solution of them was trained on.
"""

import argparse
import dataclasses
import json
import logging
import pathlib
from typing import Any

import labelling_testbed as testbed
import numpy as np
import real_likelihood
import real_prm_gsm8k

import prm_jax
from prm_jax import schema
from prm_jax import voting
from prm_jax.evaluation import best_of_n
from prm_jax.evaluation import step_metrics
from prm_jax.records import jsonl
from prm_jax.records import sources as sources_lib
from prm_jax.runtime import files

TEST = "gsm8k:gsm8k/test.jsonl.gz"
NUM_PROBLEMS, SAMPLES, TOKENS, TEMPERATURE = 100, 8, 400, 0.7
# How the solutions of a problem are ranked, besides by the PRM.
LIKELIHOOD = "likelihood"
# The base whose log-probabilities judge steps: the policy itself.
BASE = "qwen_policy"


def problems() -> list[schema.Problem]:
  """Returns the problems, in the order of a hash."""
  words = real_prm_gsm8k.words
  taken = {words(s.problem) for s in real_prm_gsm8k.pool()}
  taken |= {
    words(s.problem) for s in sources_lib.read_sources([real_prm_gsm8k.TEST])
  }
  free = [
    s for s in sources_lib.read_sources([TEST]) if words(s.problem) not in taken
  ]
  free.sort(key=lambda s: real_prm_gsm8k.hashed("best_of_n", s.problem))
  return [
    schema.Problem(s.id, s.problem, s.answer) for s in free[:NUM_PROBLEMS]
  ]


def sample(policy: str, output: pathlib.Path) -> None:
  """Writes the policy's solutions of each problem, with outcomes."""
  verb = prm_jax.Sample(
    policy,
    n=SAMPLES,
    sampling=prm_jax.Sampling(temperature=TEMPERATURE, max_tokens=TOKENS),
  )
  output.parent.mkdir(parents=True, exist_ok=True)
  jsonl.write_solutions(output, map(short, verb(problems())))


def short(solution: schema.Solution) -> schema.Solution:
  """Returns a sample with what is judged alone: its steps, and counts."""
  names = (schema.REFERENCE, *schema.STATISTICS)
  extra = {k: v for k, v in solution.extra.items() if k in names}
  return dataclasses.replace(solution, raw_text=None, spans=None, extra=extra)


def judged(
  solutions: list[schema.Solution], rows: list[schema.StepScores]
) -> dict[str, Any]:
  """Returns how often each way to choose among N answers is right.

  Args:
    solutions: The samples, with outcomes.
    rows: The PRM's scores of their steps.
  """
  index, _ = best_of_n.groups(solutions, "samples")
  by_name = best_of_n.trivial_scores(solutions)
  by_name[LIKELIHOOD] = np.array([s.extra["log_prob_mean"] for s in solutions])
  weights = {}
  for how in ("min", "product", "last"):
    by_name[f"prm_{how}"] = np.array(voting.ranking_scores(rows, how))
    weights[f"prm_{how}"] = np.array(
      [voting.aggregate(x.scores, how) for x in rows]
    )
  ns = [1, 2, 4, 8]
  return best_of_n.evaluate(
    {name: x[index] for name, x in by_name.items()},
    np.array([bool(s.outcome) for s in solutions])[index],
    [[solutions[i].answer for i in row] for row in index],
    ns,
    pairs=[
      (name, other, ns[-1])
      for name in ("prm_min", "weighted_prm_min")
      for other in ("majority", LIKELIHOOD, "shortest_text")
    ],
    weights={name: x[index] for name, x in weights.items()},
  )


def lucky(
  solutions: list[schema.Solution],
  rows: list[schema.StepScores],
  read: list[dict[str, Any]],
) -> dict[str, Any]:
  """Returns how well the least step score tells sound from lucky solutions.

  Args:
    solutions: The samples.
    rows: The PRM's scores of their steps.
    read: What was read of some that have the right answer: its `id` and its
      `kind`, sound, lucky (a step is wrong) or slip (a word is, which is left
      out here).
  """
  of_id = {s.id: (s, row) for s, row in zip(solutions, rows, strict=True)}
  kinds = [x["kind"] for x in read]
  chosen = [of_id[x["id"]] for x in read if x["kind"] != "slip"]
  found = step_metrics.evaluate(
    [[min(row.scores)] for _, row in chosen],
    [[float(kind == "sound")] for kind in kinds if kind != "slip"],
    problems=[s.problem for s, _ in chosen],
  )
  names = ("auroc", "auroc_interval")
  counts = {kind: kinds.count(kind) for kind in ("sound", "lucky", "slip")}
  return counts | {name: found[name] for name in names}


def table(result: dict[str, Any]) -> str:
  """Returns the accuracies with their intervals as a Markdown table."""
  rows = [("right, %", *(f"N = {n}" for n in result["n"]))]
  for name, curve in result["accuracy"].items():
    cells = [
      f"{100 * x:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
      for x, (low, high) in zip(curve, result["interval"][name], strict=True)
    ]
    rows.append((name.replace("_", " "), *cells))
  return testbed.markdown(rows)


def main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument("what", choices=("sample", "judge"))
  parser.add_argument("--policy", default="runs/bases/qwen_policy")
  parser.add_argument("--checkpoint")
  parser.add_argument("--likelihood", type=pathlib.Path)
  parser.add_argument(
    "--samples",
    type=pathlib.Path,
    default=real_likelihood.SAMPLES,
  )
  parser.add_argument("--read", type=pathlib.Path)
  parser.add_argument(
    "--output", type=pathlib.Path, default="docs/results/real_best_of_n.json"
  )
  args = parser.parse_args()
  logging.basicConfig(level=logging.INFO, format="%(message)s")
  if args.what == "sample":
    sample(args.policy, args.samples)
    return
  if (args.checkpoint is None) == (args.likelihood is None):
    parser.error("judge: give --checkpoint, the PRM's folder, or --likelihood")
  solutions = jsonl.read_solutions(args.samples)
  if args.checkpoint is not None:
    rows = prm_jax.Score(args.checkpoint, layout="tree")(solutions)
  else:
    found = real_likelihood.fitted_scores(args.likelihood, BASE, "samples")
    rows = [schema.StepScores(tuple(x.tolist())) for x in found]
  result = judged(solutions, rows)
  if args.read is not None:
    result["lucky"] = lucky(solutions, rows, json.loads(args.read.read_text()))
  result["command"] = "python experiments/real_best_of_n.py judge"
  files.write_json(args.output, result)
  print(table(result))


if __name__ == "__main__":
  main()
