"""Judges the scores that real_prm.py stored, by the rules of README.md.

Command:  PRM_JAX_DATA=... python experiments/real_prm_results.py
          [--results=runs/real_prm] [--output=docs/results/real_prm.json]

It runs no model. Each final run is measured on ProcessBench's gsm8k and math
and on the held-out problems of PRM800K's phase 1, beside baselines that read no
mathematics and beside the same run without the question.
"""

import argparse
from collections.abc import Mapping, Sequence
import gzip
import json
import pathlib
from typing import Any

import labelling_testbed as testbed
import numpy as np
import real_prm

from prm_jax import schema
from prm_jax.evaluation import processbench_metrics
from prm_jax.evaluation import step_metrics
from prm_jax.runtime import files

SUBSETS = ("gsm8k", "math")


def scores_of(logits: Sequence[Sequence[float]]) -> list[list[float]]:
  """Returns P(correct so far) of each step."""
  return [(1 / (1 + np.exp(-np.asarray(x)))).tolist() for x in logits]


def whole_errors(
  solutions: Sequence[schema.Solution],
) -> tuple[list[int], list[int]]:
  """Returns the solutions that are labelled up to their first error, and it.

  Of PRM800K's alternatives the path before them counts as it was rated.
  """
  numbers, errors = [], []
  for i, (s, own) in enumerate(
    zip(solutions, real_prm.labels_of(solutions), strict=True)
  ):
    path = s.extra.get("path_ratings")
    known = list(own)
    if s.ratings is not None:
      first = next(
        (k for k, x in enumerate(s.ratings) if x is not None), len(s.steps)
      )
      before = [1] * first if path is None else path[:first]
      known[:first] = [None if x is None else float(x >= 0) for x in before]
    error = schema.first_error(known)
    judged = known if error < 0 else known[: error + 1]
    if None not in judged:
      numbers.append(i)
      errors.append(error)
  return numbers, errors


def process_bench(
  scores: Mapping[str, list[list[float]]],
  data: Mapping[str, Sequence[schema.Solution]],
  threshold: float | None,
) -> dict[str, Any]:
  """Returns F1 on both subsets at each kind of threshold.

  Args:
    scores: The scores of each subset.
    data: The solutions of each subset.
    threshold: The one that was tuned on PRM800K's held-out problems.
  """
  truth = {
    name: [schema.first_error(s.labels or ()) for s in data[name]]
    for name in SUBSETS
  }
  out: dict[str, Any] = {}
  for name in SUBSETS:
    (other,) = set(SUBSETS) - {name}
    thresholds = dict(
      fixed=0.5,
      held_out=threshold,
      other=processbench_metrics.tune_threshold(scores[other], truth[other]),
      itself=processbench_metrics.tune_threshold(scores[name], truth[name]),
    )
    out[name] = {
      kind: processbench_metrics.evaluate(
        scores[name],
        truth[name],
        threshold=value,
        problems=[s.problem for s in data[name]],
      )
      for kind, value in thresholds.items()
      if value is not None
    }
  return out


def on_steps(
  scores: list[list[float]], solutions: Sequence[schema.Solution]
) -> dict[str, Any]:
  """Returns AUROC with its interval, and balanced accuracy at 0.5."""
  labels = real_prm.labels_of(solutions)
  problems = [s.problem for s in solutions]
  found = step_metrics.evaluate(scores, labels, problems=problems)
  steps = step_metrics.judged_steps(scores, labels)
  right = steps.scores >= schema.THRESHOLD
  shares = [
    float((right == is_right)[steps.correct == is_right].mean())
    for is_right in (True, False)
  ]
  names = ("num_steps", "base_rate", "auroc", "auroc_interval", "ece")
  return {name: found[name] for name in names} | dict(
    mean_problem_auroc=found["mean_problem_auroc"],
    balanced_accuracy=sum(shares) / 2,
  )


def judged(
  logits: Mapping[str, Sequence[Sequence[float]]], data: real_prm.Data
) -> dict[str, Any]:
  """Returns every measure of one run."""
  scores = {name: scores_of(x) for name, x in logits.items()}
  held_out = data.tests[real_prm.HELD_OUT]
  numbers, errors = whole_errors(held_out)
  threshold = processbench_metrics.tune_threshold(
    [scores[real_prm.HELD_OUT][i] for i in numbers], errors
  )
  blind = {name: scores[name + real_prm.NO_QUESTION] for name in SUBSETS}
  return dict(
    phase1_test=on_steps(scores["phase1_test"], data.tests["phase1_test"]),
    phase1_test_no_question=on_steps(
      scores["phase1_test" + real_prm.NO_QUESTION], data.tests["phase1_test"]
    ),
    processbench=process_bench(scores, data.tests, threshold),
    processbench_no_question=process_bench(blind, data.tests, threshold),
  )


def baselines(data: real_prm.Data) -> dict[str, Any]:
  """Returns the same of scores that read no mathematics."""
  out = {}
  for name, score in processbench_metrics.BASELINES.items():
    scores = {k: score(v) for k, v in data.tests.items()}
    numbers, errors = whole_errors(data.tests[real_prm.HELD_OUT])
    threshold = processbench_metrics.tune_threshold(
      [scores[real_prm.HELD_OUT][i] for i in numbers], errors
    )
    out[name] = dict(
      phase1_test=on_steps(scores["phase1_test"], data.tests["phase1_test"]),
      processbench=process_bench(scores, data.tests, threshold),
    )
  return out


def check_tuned(results: pathlib.Path) -> None:
  """Refuses results that lack a run by which an arm's rate is chosen."""
  for name, arm in real_prm.ARMS.items():
    for rate in arm.rates:
      path = results / f"{real_prm.Run(name, rate, 0).name}.json"
      if not path.exists():
        raise SystemExit(f"{path}: isn't there; run real_prm.py first")


def main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument("--results", type=pathlib.Path, default="runs/real_prm")
  parser.add_argument(
    "--output", type=pathlib.Path, default="docs/results/real_prm.json"
  )
  args = parser.parse_args()
  c = real_prm.get_config()
  data = real_prm.read_data(c)
  bench = real_prm.Bench(c, data, args.results, args.results, args.results)
  check_tuned(args.results)
  runs = []
  for name in real_prm.ARMS:
    best = real_prm.best_rate(bench, name)
    for path in sorted(args.results.glob(f"{name.replace('/', '-')}-*.json")):
      point = files.read_json(path)
      # Its paths are another machine's; the rest is a curve of single batches.
      del point["command"]
      logged = [x["loss_nats"] for x in point.pop("training")]
      point["training_loss_nats_last_100"] = sum(logged[-5:]) / 5
      scored = path.with_name(f"{path.stem}.scores.json.gz")
      point["is_final"] = point["rate"] == best
      if point["is_final"]:
        logits = json.loads(gzip.decompress(scored.read_bytes()))
        point |= judged(logits, data)
      runs.append(point)
  result = dict(
    command="python experiments/real_prm.py; python experiments/real_prm_results.py",
    runs=runs,
    baselines=baselines(data),
  )
  files.write_json(args.output, result)
  print(table(result))


def table(result: Mapping[str, Any]) -> str:
  """Returns the means over seeds, and their range, as Markdown tables."""

  def f1(found: Mapping[str, Any], subset: str, kind: str) -> float:
    return 100 * found[subset][kind]["f1"]

  kinds = ("fixed", "held_out", "other", "itself")
  rows = [
    (
      "",
      *(f"{subset}, {kind}" for subset in SUBSETS for kind in kinds),
      *("gsm8k without the question", "math without it"),
      *("AUROC, phase-1 test", "without the question", "balanced accuracy, %"),
      *("rate", "seeds"),
    )
  ]
  finals = [p for p in result["runs"] if p["is_final"]]
  for arm in [
    name for name in real_prm.ARMS if any(p["arm"] == name for p in finals)
  ]:
    own = [p for p in finals if p["arm"] == arm]
    bench = [p["processbench"] for p in own]
    blind = [p["processbench_no_question"] for p in own]
    rows.append(
      (
        f"`{arm}`",
        *(
          testbed.mean([f1(x, subset, kind) for x in bench])
          for subset in SUBSETS
          for kind in kinds
        ),
        *(
          testbed.mean([f1(x, subset, "other") for x in blind])
          for subset in SUBSETS
        ),
        testbed.mean([p["phase1_test"]["auroc"] for p in own], digits=3),
        testbed.mean(
          [p["phase1_test_no_question"]["auroc"] for p in own], digits=3
        ),
        testbed.mean(
          [100 * p["phase1_test"]["balanced_accuracy"] for p in own]
        ),
        f"{own[0]['rate']:g}",
        str(len(own)),
      )
    )
  for name, found in result["baselines"].items():
    rows.append(
      (
        name.replace("_", " "),
        *(
          f"{f1(found['processbench'], subset, kind):.1f}"
          for subset in SUBSETS
          for kind in kinds
        ),
        *("", ""),
        f"{found['phase1_test']['auroc']:.3f}",
        *("", "", "", ""),
      )
    )
  return testbed.markdown(rows)


if __name__ == "__main__":
  main()
