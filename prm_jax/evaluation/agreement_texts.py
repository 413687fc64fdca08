"""The agreement of several raters, as lines of text."""

from __future__ import annotations

from typing import Any

from prm_jax.evaluation import agreement
from prm_jax.evaluation import rater_coefficients

_SHOWN_PAIRS = 10


def texts(results: dict[str, Any], noun: str = "annotators") -> list[str]:
  """Returns the lines that report how far raters agree.

  Args:
    results: What agreement.measured returns.
    noun: What the raters are called.
  """
  lines = [
    f"agreement of {results['raters']:,} {noun} on {results['solutions']:,}"
    f" solutions of {results['problems']:,} problems",
    "",
    f"{'':<16}{'until the first error':>26}{'all steps':>26}",
  ]
  alphas = {
    f"alpha, {level}": [
      _text(results["alpha"][x][level]) for x in agreement.SCOPES
    ]
    for level in rater_coefficients.LEVELS
  }
  if len({*map(tuple, alphas.values())}) == 1:  # Of two values they are equal.
    alphas = dict(alpha=alphas.popitem()[1])
  for name, cells in alphas.items():
    lines.append(f"{name:<16}" + "".join(f"{x:>26}" for x in cells))
  steps = (
    results["alpha"][scope]["nominal"]["steps"] for scope in agreement.SCOPES
  )
  lines.append(f"{'steps':<16}" + "".join(f"{n:>26,}" for n in steps))
  lines.append("")
  width = max(len(x["rater"]) for x in results["by_rater"]) + 2
  width = max(width, len(noun) + 1)
  lines.append(
    f"{noun[:-1]:<{width}}{'solutions':>9}{'steps':>10}{'wrong':>8}"
    f"{'with an error':>15}"
  )
  for x in results["by_rater"]:
    wrong = f"{x['wrong'] / x['steps']:.1%}" if x["steps"] else "-"
    lines.append(
      f"{x['rater']:<{width}}{x['solutions']:>9,}{x['steps']:>10,}{wrong:>8}"
      f"{x['with_an_error']:>15,}"
    )
  for x in results["pairs"][:_SHOWN_PAIRS]:
    lines += [
      "",
      f"{x['a']} and {x['b']}: {x['solutions']:,} solutions",
      f"  kappa until the first error  {_text(x['kappa'][agreement.SCOPES[0]])}",
      f"  first error at the same step {_text(x['first_error_same'])}",
      f"  at most one step apart       {_text(x['first_error_within_one'])}",
    ]
  if len(results["pairs"]) > _SHOWN_PAIRS:
    more = len(results["pairs"]) - _SHOWN_PAIRS
    lines += ["", f"and {more:,} more pairs, with fewer solutions"]
  if results["judged_twice"]:
    lines += [
      "",
      f"left out: {results['judged_twice']:,} second judgements of a solution"
      " by one rater",
    ]
  return lines


def _text(estimate: dict[str, Any]) -> str:
  if estimate["value"] is None:
    return "-"
  if estimate["interval"] is None:
    return f"{estimate['value']:.3f}"
  low, high = estimate["interval"]
  return f"{estimate['value']:.3f} [{low:.3f}, {high:.3f}]"
