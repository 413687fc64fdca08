"""Does a small model that grades by a rubric find the errors that people find?

Command:  prm-jax import --role=policy
          --from=Qwen/Qwen2.5-Coder-0.5B-Instruct --to=runs/bases/qwen_policy
          PRM_JAX_DATA=... python experiments/judge_rubric.py sample
          --num=64 --output=runs/judge_rubric/sample.jsonl
          prm-jax label judge --policy=runs/bases/qwen_policy --dtype=float32
          --rubric=experiments/judge_rubric.toml --temperature=0 --keep_texts
          --max_tokens=640 --slots=8 --input=runs/judge_rubric/sample.jsonl
          --shard=0/4 --output=runs/judge_rubric/judged.0.jsonl
          PRM_JAX_DATA=... python experiments/judge_rubric.py measure
          --judged runs/judge_rubric/judged.*.jsonl
          [--output=docs/results/judge_rubric.json]
Rule, hardware, time and result: see experiments/README.md.

The solutions are the first of ProcessBench's subset in the order of a hash; the
baseline, which always names one step, is chosen on all others.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
import hashlib
import logging
import pathlib
import sys
from typing import Any

import labelling_testbed as testbed
import numpy as np

from prm_jax import schema
from prm_jax.evaluation import agreement
from prm_jax.evaluation import bootstrap
from prm_jax.labelling import judge_prompts
from prm_jax.labelling import principle_agreement
from prm_jax.labelling import rubrics
from prm_jax.records import jsonl
from prm_jax.records import sources as sources_lib
from prm_jax.runtime import environment
from prm_jax.runtime import files

SOURCE = "processbench:processbench/{subset}.json.gz"
RUBRIC = pathlib.Path(__file__).with_name("judge_rubric.toml")
RESULTS = "docs/results/judge_rubric.json"
RESAMPLES, SEED = 10_000, 0


def ordered(subset: str) -> list[schema.Solution]:
  """Returns the subset's solutions in the order of a hash."""

  def key(s: schema.Solution) -> str:
    return hashlib.sha256(f"judge_rubric {s.id}".encode()).hexdigest()

  source = SOURCE.format(subset=subset)
  return sorted(sources_lib.read_sources([source]), key=key)


def measured(
  judged: Sequence[schema.Solution],
  people: Sequence[schema.Solution],
  others: Sequence[schema.Solution],
  rubric: rubrics.Rubric,
) -> dict[str, Any]:
  """Returns what the rule of judgement is about.

  Args:
    judged: The solutions as the judge labels them, with its texts.
    people: The same with people's first errors.
    others: Further solutions with people's first errors, on which the baseline
      is chosen.
    rubric: The rubric.

  Returns:
    `unusable`: the share of answers that can't be read, and `reasons`, their
    counts. `always`: the baseline's step, from 0. `scores`: how many steps
    have each score. By the name of a principle
    `located`: of readable solutions with an error the share whose first error
    is the judge's, `over_always`: the same less that of the baseline,
    `found_in_wrong` and `found_in_right`: the shares in which the judge finds
    any error, `detected`: their difference. Each a value with its interval of
    95 % over solutions, None without any.
  """
  by_id = {s.id: s for s in judged}
  labelled_by = principle_agreement.labelled_by
  pairs = [(by_id[s.id], _first(s)) for s in people]
  always = Counter(x for x in map(_first, others) if x >= 0).most_common(1)[0][
    0
  ]
  is_read = [judge_prompts.GRADED in s.extra for s, _ in pairs]
  read = rubrics.template(rubric).read
  reasons = Counter(
    x if isinstance(x := read(*_answer(s)), str) else "unended"
    for (s, _), readable in zip(pairs, is_read)
    if not readable
  )
  readable = [x for x, is_one in zip(pairs, is_read) if is_one]
  people_first = np.array([error for _, error in readable], int)
  is_wrong = people_first >= 0
  names = [*(x.name for x in rubric.principles), rubrics.OVERALL]
  by_name = {}
  for name in (*names, principle_agreement.LABEL):
    first = np.array([_first(labelled_by(name, s)) for s, _ in readable], int)
    same, constant = first == people_first, people_first == always
    found = first >= 0
    by_name[name] = dict(
      located=_share(same, is_wrong),
      over_always=_share(same.astype(float) - constant, is_wrong),
      found_in_wrong=_share(found, is_wrong),
      found_in_right=_share(found, ~is_wrong),
      detected=_difference(found, is_wrong),
    )
  return dict(
    solutions=len(pairs),
    with_an_error=sum(error >= 0 for _, error in pairs),
    readable=len(readable),
    readable_with_an_error=int(is_wrong.sum()),
    unusable=_share(~np.array(is_read), np.ones(len(pairs), bool)),
    reasons=dict(sorted(reasons.items())),
    always=always,
    scores=_scores([s for s, _ in readable], names),
    by_principle=by_name,
    agreement=principle_agreement.measured(judged, people),
  )


def _first(solution: schema.Solution) -> int:
  error = agreement.first_error(agreement.values_of(solution))
  assert error is not None, solution.id
  return error


def _scores(
  solutions: Sequence[schema.Solution], names: Sequence[str]
) -> dict[str, dict[str, int]]:
  """Returns by name how many steps have each score."""
  graded = [s.extra[judge_prompts.GRADED]["principles"] for s in solutions]
  return {
    name: dict(
      sorted(Counter(str(x) for g in graded for x in g[name]["scores"]).items())
    )
    for name in names
  }


def _answer(solution: schema.Solution) -> tuple[str, int]:
  return solution.extra["critiques"][0], len(solution.steps)


def _share(values: np.ndarray, among: np.ndarray) -> dict[str, Any] | None:
  """Returns the mean among some solutions."""
  if not among.any():
    return None
  of = values[among].astype(float)
  drawn = bootstrap.sums(of[:, None], RESAMPLES, SEED)[:, 0] / len(of)
  return dict(value=float(of.mean()), interval=bootstrap.interval(drawn))


def _difference(values: np.ndarray, among: np.ndarray) -> dict[str, Any] | None:
  """Returns the mean among some solutions less that among all others."""
  if not among.any() or among.all():
    return None
  columns = [among, ~among, values & among, values & ~among]
  rows = np.stack(columns, axis=1).astype(float)

  def difference(sums: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
      return sums[:, 2] / sums[:, 0] - sums[:, 3] / sums[:, 1]

  value = difference(rows.sum(axis=0, keepdims=True))[0]
  drawn = difference(bootstrap.sums(rows, RESAMPLES, SEED))
  return dict(value=float(value), interval=bootstrap.interval(drawn))


def table(result: dict[str, Any]) -> str:
  """Returns the shares by principle as a Markdown table."""

  def cell(x: dict[str, Any] | None) -> str:
    if x is None:
      return "-"
    low, high = x["interval"]
    return f"{100 * x['value']:.0f} [{100 * low:.0f}, {100 * high:.0f}]"

  rows = [
    (k, *map(cell, x.values())) for k, x in result["by_principle"].items()
  ]
  heads = ("%", *next(iter(result["by_principle"].values())))
  unusable = f"unusable: {cell(result['unusable'])}, {result['reasons']}"
  return f"{unusable}\n\n{testbed.markdown([heads, *rows])}"


def main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument("what", choices=("sample", "measure"))
  parser.add_argument("--subset", default="gsm8k")
  parser.add_argument("--num", type=int, default=64)
  parser.add_argument("--judged", type=pathlib.Path, nargs="+")
  parser.add_argument("--output", type=pathlib.Path, default=RESULTS)
  args = parser.parse_args()
  logging.basicConfig(level=logging.INFO, format="%(message)s")
  solutions = ordered(args.subset)
  if args.what == "sample":
    args.output.parent.mkdir(parents=True, exist_ok=True)
    jsonl.write_solutions(args.output, solutions[: args.num])
    return
  if args.judged is None:
    parser.error("measure: give --judged, the files that label judge wrote")
  judged = [s for path in args.judged for s in jsonl.read_solutions(path)]
  ids = {s.id for s in judged}
  result = measured(
    judged,
    [s for s in solutions if s.id in ids],
    [s for s in solutions if s.id not in ids],
    rubrics.read(RUBRIC),
  )
  about = dict(command=f"python {' '.join(sys.argv)}", subset=args.subset)
  files.write_json(
    args.output, about | result | dict(machine=environment.machine())
  )
  print(table(result))


if __name__ == "__main__":
  main()
