"""What an evaluation prints: its numbers in per cent, with their intervals."""

from __future__ import annotations

from typing import Any

from prm_jax.grading import pool


def plain_table(results: dict[str, Any]) -> str:
  """Returns one line per single number."""
  lines = []
  for name, value in results.items():
    if isinstance(value, float):
      lines.append(f"{name:32} {value:.4f}")
    elif isinstance(value, int):
      lines.append(f"{name:32} {value}")
    elif value is None:
      lines.append(f"{name:32} undefined")
    elif name in ("baselines", "sources"):
      # Of another judge, or on a part of the solutions.
      word = "of" if name == "baselines" else "on"
      for key, x in value.items():
        if x["auroc"] is None:
          lines.append(f"{f'auroc {word} {key}':32} undefined")
        elif None not in x["auroc_interval"]:
          low, high = x["auroc_interval"]
          lines.append(
            f"{f'auroc {word} {key}':32} {x['auroc']:.4f}"
            f" [{low:.4f}, {high:.4f}]"
          )
    elif name == "auroc_interval" and None not in value:
      lines.append(f"{name:32} [{value[0]:.4f}, {value[1]:.4f}]")
  return "\n".join(lines)


def processbench_table(results: dict[str, Any]) -> str:
  """Returns a row per subset for each model and threshold rule."""
  lines = [
    f"{'in %':<16}{'F1':>22}{'acc_err':>9}{'acc_cor':>9}{'n':>10}"
    "   right answer, wrong process: located, detected"
  ]
  for model, result in results.items():
    if model == "scored_by":
      continue
    for rule in ("fixed", "tuned"):
      if result[rule] is None:
        continue
      subsets = result[rule]["subsets"]
      threshold = next(iter(subsets.values()))["threshold"]
      origin = f" (tuned on {result['tuned_on']})" * (rule == "tuned")
      lines.append(f"{model}, threshold {threshold:.3f}{origin}")
      for name, x in subsets.items():
        interval = (x["interval"] or {}).get("f1")
        counts = f"{x['num_err']}+{x['num_cor']}"
        lines.append(
          f"  {name:<14}{_percent(x['f1'], interval):>22}"
          f"{_percent(x['acc_err']):>9}{_percent(x['acc_cor']):>9}{counts:>10}"
          f"   {_lucky(x.get('right_answer_wrong_process'))}"
        )
      mean = _percent(result[rule]["mean_f1"], result[rule]["mean_f1_interval"])
      without = ", ".join(result["missing"])
      note = f"   without {without}: not the headline" if without else ""
      lines.append(f"  {'mean F1':<14}{mean:>22}{note}")
  of_model = results["model"]
  if of_model["tuned"] is None:
    counts = of_model["fixed"]["subsets"][of_model["tuned_on"]]
    lines.append(
      f"no threshold is tuned on {of_model['tuned_on']}: solutions with an"
      f" error {counts['num_err']}, without {counts['num_cor']}"
    )
  return "\n".join(lines)


def _lucky(x: dict[str, Any] | None) -> str:
  if x is None or not x["num"]:
    return "-"
  interval = x["interval"] or {}
  shares = (
    _percent(x[name], interval.get(name)) for name in ("located", "detected")
  )
  return f"{', '.join(shares)} of {x['num']}"


def prmbench_table(results: dict[str, Any]) -> str:
  """Returns a row per class, category and the whole, and the baselines'."""
  lines = [
    f"{'in %':<26}{'PRMScore':>22}{'F1':>7}{'neg. F1':>9}"
    f"{'right':>8}{'wrong':>8}{'solutions':>11}{'steps':>8}"
  ]

  def row(name, x):
    numbers = [
      f"{_percent(x.get(key)):>{width}}"
      for key, width in (
        ("f1", 7),
        ("negative_f1", 9),
        ("right_step_accuracy", 8),
        ("wrong_step_accuracy", 8),
      )
    ]
    counts = [
      f"{x[key]:>{width},}" if key in x else " " * width
      for key, width in (("num_solutions", 11), ("num_steps", 8))
    ]
    score = _percent(x.get("prm_score"), x.get("interval"))
    lines.append(f"{name:<26}{score:>22}{''.join((*numbers, *counts))}")

  for name, x in results["classes"].items():
    row(f"{x['short']:<4}{name}", x)
  if results["control"] is not None:
    row("    correct (controls)", results["control"])
  for name, x in results["categories"].items():
    score = _percent(x["prm_score"], x["interval"])
    lines.append(f"{name:<26}{score:>22}")
  row("overall", results["overall"])
  for name, x in results["baselines"].items():
    row(f"  of {name}", x["overall"])
  if results["missing"]:
    lines.append(f"without {', '.join(results['missing'])}")
  judged = results["steps_judged"]
  if judged["num"] < judged["of"]:
    lines.append(
      f"{judged['of'] - judged['num']:,} of {judged['of']:,} steps count though"
      " the model wasn't trained to judge them: they are after its own first"
      " score below 0.5"
    )
  return "\n".join(lines)


def turns_table(results: dict[str, Any]) -> str:
  """Returns a row for the model, each baseline and source, and the pairs."""
  lines = [
    f"{'in %':<26}{'StepAcc':>21}{'0 as right':>12}{'balanced':>10}"
    f"{'FirstErrAcc':>21}{'AUROC':>21}"
  ]

  def row(name, x):
    whole = {k: _percent(x[k], x["interval"][k]) for k in x["interval"]}
    lines.append(
      f"{name:<26}{whole['step_acc']:>21}"
      f"{_percent(x['step_acc_neutral_good']):>12}"
      f"{_percent(x['balanced_acc']):>10}{whole['first_err_acc']:>21}"
      f"{whole['auroc']:>21}"
    )

  row(f"model, threshold {results['threshold']:g}", results)
  for name, x in results["baselines"].items():
    row(f"  of {name}", x)
  for name, x in results.get("sources", {}).items():
    row(f"  on {name}", x)
  lines.append(
    f"{results['num_trajectories']:,} trajectories; turns rated 1, 0, -1 and"
    f" unrated: {results['num_turns_right']:,},"
    f" {results['num_turns_neutral']:,}, {results['num_turns_wrong']:,},"
    f" {results['num_turns_unrated']:,}"
  )
  if results["pairs"] is not None:
    lines += _pair_lines(results)
  judged = results["turns_judged"]
  if judged["num"] < judged["of"]:
    lines.append(
      f"{judged['of'] - judged['num']:,} of {judged['of']:,} turns count though"
      " the model wasn't trained to judge them"
    )
  return "\n".join(lines)


def _pair_lines(results: dict[str, Any]) -> list[str]:
  """Returns a row for each subset of pairs, and their mean."""
  pairs = results["pairs"]
  lines = [f"{'the chosen action, in %':<26}{'accuracy':>21}{'pairs':>8}"]
  for name, x in pairs["subsets"].items():
    accuracy = _percent(x["accuracy"], x["interval"])
    lines.append(f"  {name:<24}{accuracy:>21}{x['num']:>8,}")
  mean = _percent(pairs["mean"], pairs["mean_interval"])
  lines.append(f"{'mean of the subsets':<26}{mean:>21}")
  for name, x in results["baselines"].items():
    mean = _percent(x["pairs"]["mean"], x["pairs"]["mean_interval"])
    lines.append(f"  of {name:<21}{mean:>21}")
  if pairs["num_incomplete"]:
    lines.append(f"left out: {pairs['num_incomplete']:,} of incomplete pairs")
  return lines


def best_of_n_table(results: dict[str, Any]) -> str:
  """Returns the accuracies of every way to choose, a row each, in %."""
  lines = [f"{'accuracy in %':>22}" + "".join(f"{n:>8}" for n in results["n"])]
  for name, curve in results["accuracy"].items():
    cells = "".join(f"{_percent(x):>8}" for x in curve)
    lines.append(f"{name:>22}{cells}")
  grading = results.get("grading") or {}
  if grading.get("grader"):
    lines.append(pool.told(grading))
  for name, x in results["paired"].items():
    lines.append(
      f"{name}: {100 * x['mean']:+.1f}"
      f" [{100 * x['low']:+.1f}, {100 * x['high']:+.1f}]"
    )
  return "\n".join(lines)


def _percent(x: float | None, interval: Any = None) -> str:
  if x is None:
    return "-"
  if not interval or None in interval:
    return f"{100 * x:.1f}"
  low, high = interval
  return f"{100 * x:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
