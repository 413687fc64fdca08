"""What the table of an evaluation holds: --table of `prm-jax eval`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prm_jax.evaluation import processbench_metrics
from prm_jax.evaluation import tables

Numbers = dict[str, tables.Number]

_STEPS = dict(
  auroc=tables.Column("AUROC", False),
  auprc_error=tables.Column("AUPRC of errors", False),
  brier=tables.Column("Brier", False),
  ece=tables.Column("ECE", False),
  base_rate=tables.Column("right steps"),
  first_error_exact=tables.Column("first error exact"),
  first_error_within_one=tables.Column("within one"),
  first_error_none=tables.Column("none found in right ones"),
  num_steps=tables.Column("steps", False),
  num_solutions=tables.Column("solutions", False),
)
_PROCESSBENCH = dict(
  threshold=tables.Column("threshold", False),
  f1=tables.Column("F1"),
  acc_err=tables.Column("acc_err"),
  acc_cor=tables.Column("acc_cor"),
  num_err=tables.Column("with an error", False),
  num_cor=tables.Column("without", False),
  located=tables.Column("right answer, wrong process: located"),
  detected=tables.Column("detected"),
  num=tables.Column("of", False),
)
_PRMBENCH = dict(
  prm_score=tables.Column("PRMScore"),
  f1=tables.Column("F1"),
  negative_f1=tables.Column("negative F1"),
  right_step_accuracy=tables.Column("right steps"),
  wrong_step_accuracy=tables.Column("wrong steps"),
  num_solutions=tables.Column("solutions", False),
  num_steps=tables.Column("steps", False),
)
_TURNS = dict(
  step_acc=tables.Column("StepAcc"),
  step_acc_neutral_good=tables.Column("0 as right"),
  balanced_acc=tables.Column("balanced"),
  first_err_acc=tables.Column("FirstErrAcc"),
  auroc=tables.Column("AUROC", False),
  pairs=tables.Column("pairs"),
)


def of_steps(results: Mapping[str, Any]) -> tables.Table:
  """Returns the measures of the model, and of each baseline and source."""
  return tables.Table(
    _STEPS,
    [
      (name, _numbers(x, _STEPS, dict(auroc=x["auroc_interval"])))
      for name, x in _judges(results)
    ],
  )


def of_processbench(results: Mapping[str, Any]) -> tables.Table:
  """Returns the measures of each subset, by judge and threshold."""
  rows: list[tuple[str, Numbers]] = []
  judges = ("model", *processbench_metrics.BASELINES)
  for judge, result in ((x, results[x]) for x in judges if x in results):
    for rule in ("fixed", "tuned"):
      measured = result[rule]
      if measured is None:
        continue
      for name, x in measured["subsets"].items():
        numbers = _numbers(x, _PROCESSBENCH, x["interval"])
        lucky = x.get("right_answer_wrong_process") or {}
        numbers |= _numbers(lucky, _PROCESSBENCH, lucky.get("interval"))
        rows.append((f"{judge}, {rule}: {name}", numbers))
      mean = _number(measured["mean_f1"], measured["mean_f1_interval"])
      rows.append((f"{judge}, {rule}: mean", dict(f1=mean)))
  return tables.Table(_PROCESSBENCH, rows)


def of_prmbench(results: Mapping[str, Any]) -> tables.Table:
  """Returns the measures of each class, category, all steps and baseline."""
  rows = [*results["classes"].items()]
  if results["control"] is not None:
    rows.append(("correct (controls)", results["control"]))
  rows += [*results["categories"].items(), ("overall", results["overall"])]
  rows += [
    (f"{name}, overall", x["overall"])
    for name, x in results["baselines"].items()
  ]
  return tables.Table(
    _PRMBENCH,
    [
      (name, _numbers(x, _PRMBENCH, dict(prm_score=x.get("interval"))))
      for name, x in rows
    ],
  )


def of_turns(results: Mapping[str, Any]) -> tables.Table:
  """Returns the measures of the model, and of each baseline and source."""
  rows = []
  for name, x in _judges(results):
    own = {k: value for k, value in x.items() if k != "pairs"}
    numbers = _numbers(own, _TURNS, x["interval"])
    if pairs := x.get("pairs"):
      numbers["pairs"] = _number(pairs["mean"], pairs["mean_interval"])
    rows.append((name, numbers))
  subsets = (results["pairs"] or {}).get("subsets", {})
  for name, x in subsets.items():
    pairs = dict(pairs=_number(x["accuracy"], x["interval"]))
    rows.append((f"pairs of {name}", pairs))
  return tables.Table(_TURNS, rows)


def of_best_of_n(results: Mapping[str, Any]) -> tables.Table:
  """Returns the accuracy of each way to choose by N, and paired differences."""
  columns = {
    f"accuracy_at_{n}": tables.Column(f"N = {n}") for n in results["n"]
  }
  rows = [
    (name, dict(zip(columns, map(_number, curve, results["interval"][name]))))
    for name, curve in results["accuracy"].items()
  ]
  last = [*columns][-1]
  for name, x in results["paired"].items():
    difference = tables.Number(x["mean"], x["low"], x["high"])
    rows.append((name, {last: difference}))
  return tables.Table(columns, rows)


def _judges(results: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
  """Yields the model, the baselines, and the model on each source."""
  yield "model", results
  yield from results["baselines"].items()
  for name, x in results.get("sources", {}).items():
    yield f"model on {name}", x


def _numbers(
  measured: Mapping[str, Any],
  columns: Iterable[str],
  intervals: Mapping[str, Any] | None = None,
) -> Numbers:
  """Returns those of the columns that were measured."""
  return {
    name: _number(measured[name], (intervals or {}).get(name))
    for name in columns
    if name in measured
  }


def _number(value: float | None, interval: Any = None) -> tables.Number:
  return tables.Number(value, *(interval or ()))
