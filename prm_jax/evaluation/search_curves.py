"""Searches of the same problems, compared at what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.evaluation import best_of_n
from prm_jax.search import bill as bill_lib
from prm_jax.search import choice


def compare(
  searches: Mapping[str, Sequence[schema.Solution]], *, seed: int = 0
) -> dict[str, Any]:
  """Returns the accuracy and the cost of each search, and paired differences.

  Args:
    searches: The results of each search, by its name (search.solutions.results).
      All have the same problems, with known outcomes.
    seed: The seed of the bootstrap.

  Returns:
    `problems`, their number; `searches`, of each the accuracy by each way to
    choose an answer with its 95 % interval over problems, the oracle's (some
    candidate is right), the means of the bill, and the numbers of problems
    without an answer and ended by a budget; `differences`, of the accuracy of
    each but the first to the first's, paired by problem; and `curves`, of each
    search with several candidates of every problem, see `sampling_curve`.

  Raises:
    InputError: A search has other problems, or unknown outcomes.
  """
  names = list(searches)
  order = [s.id for s in searches[names[0]]]
  rows: dict[str, dict[str, np.ndarray]] = {}
  summary: dict[str, Any] = {}
  curves: dict[str, Any] = {}
  for name, found in searches.items():
    by_id = {s.id: s for s in found}
    if set(by_id) != set(order) or len(found) != len(order):
      raise errors.InputError(
        f"{name}: has other problems than {names[0]}; compare searches of the"
        " same problems"
      )
    ordered = [by_id[id_] for id_ in order]
    rows[name] = _outcomes(ordered, name)
    intervals = best_of_n.intervals(
      {how: column[:, None] for how, column in rows[name].items()}, seed=seed
    )
    summary[name] = dict(
      accuracy={
        how: dict(
          mean=float(column.mean()),
          low=intervals[how][0][0],
          high=intervals[how][0][1],
        )
        for how, column in rows[name].items()
      },
      cost=_cost(ordered),
      without_answer=sum(s.answer is None for s in ordered),
      ended_by_budget=sum(
        s.extra["tree"]["stopped"] == "budget" for s in ordered
      ),
    )
    curve = sampling_curve(ordered, seed=seed)
    if curve is not None:
      curves[name] = curve
  first = names[0]
  differences = {
    name: {
      how: best_of_n.paired_difference(column, rows[first][how], seed=seed)
      for how, column in rows[name].items()
    }
    for name in names[1:]
  }
  return dict(
    problems=len(order),
    searches=summary,
    differences=differences,
    curves=curves,
  )


def sampling_curve(
  found: Sequence[schema.Solution], *, seed: int = 0
) -> dict[str, Any] | None:
  """Returns the accuracy against n of a search that drew whole solutions.

  Args:
    found: The results of best_of_n.
    seed: The seed of the subsets.

  Returns:
    `n`, the mean `tokens` that n solutions took, and the accuracy of `best`,
    `weighted`, `majority` and `oracle` at each n; None if the results are of
    another strategy, the problems have different numbers of candidates, or an
    outcome isn't known.
  """
  sizes = {len(s.extra["candidates"]) for s in found}
  rounds = {len(s.extra["tree"]["rounds"]) for s in found}
  is_whole = all(
    all(node["parent"] == 0 for node in s.extra["tree"]["nodes"]) for s in found
  )
  if len(sizes) != 1 or rounds != {2} or not is_whole or not min(sizes):
    return None
  if any(c["outcome"] is None for s in found for c in s.extra["candidates"]):
    return None
  (num,) = sizes
  ns = sorted({*(2**i for i in range(num.bit_length()) if 2**i < num), num})

  def column(field: str) -> list[list[Any]]:
    return [[c[field] for c in s.extra["candidates"]] for s in found]

  log_odds = [
    [
      s.extra["tree"]["nodes"][c["node"] - 1]["log_odds"]
      for c in s.extra["candidates"]
    ]
    for s in found
  ]
  curves = best_of_n.curves(
    dict(best=np.asarray(log_odds)),
    np.asarray(column("outcome"), bool),
    column("answer"),
    ns,
    weights=dict(best=np.asarray(column("score"))),
    seed=seed,
  )
  tokens = np.mean([_sampled(s) for s in found]) / num
  names = dict(
    best="best", weighted="weighted_best", majority="majority", oracle="oracle"
  )
  return dict(n=ns, tokens=[float(tokens * n) for n in ns]) | {
    how: curves[name].mean(0).tolist() for how, name in names.items()
  }


def table(compared: Mapping[str, Any]) -> str:
  """Returns what `compare` returned as a table of text.

  Args:
    compared: The comparison.

  Returns:
    One line for each search, and one for each difference.
  """
  lines = [
    f"{'in %':<22}{'best':>8}{'weighted':>10}{'majority':>10}{'oracle':>8}"
    f"{'sampled':>10}{'PRM reads':>11}{'once':>9}{'GFLOPs':>10}"
  ]
  for name, x in compared["searches"].items():
    means = [
      x["accuracy"][how]["mean"] for how in (*choice.SELECTIONS, "oracle")
    ]
    cost = x["cost"]
    flops = cost["flops"]
    lines.append(
      f"{name[:21]:<22}{100 * means[0]:>8.1f}{100 * means[1]:>10.1f}"
      f"{100 * means[2]:>10.1f}{100 * means[3]:>8.1f}{cost['sampled']:>10,.0f}"
      f"{_number(cost['scorer_read']):>11}{_number(cost['scorer_read_once']):>9}"
      f"{'-' if flops is None else format(flops / 1e9, ',.1f'):>10}"
    )
  lines.append("tokens and FLOPs are means over problems; 95 % intervals:")
  first = next(iter(compared["searches"]))
  for name, x in compared["differences"].items():
    for how in choice.SELECTIONS:
      d = x[how]
      lines.append(
        f"  {name} - {first}, {how}: {100 * d['mean']:+.1f}"
        f" [{100 * d['low']:+.1f}, {100 * d['high']:+.1f}] points"
      )
  return "\n".join(lines)


def _number(value: float | None) -> str:
  return "-" if value is None else f"{value:,.0f}"


def _outcomes(
  found: Sequence[schema.Solution], name: str
) -> dict[str, np.ndarray]:
  """Returns whether each problem is right, by each way to choose."""
  columns: dict[str, list[bool]] = {
    how: [] for how in (*choice.SELECTIONS, "oracle")
  }
  for s in found:
    outcomes = {how: x["outcome"] for how, x in s.extra["answers"].items()}
    outcomes["oracle"] = _any_right(
      [c["outcome"] for c in s.extra["candidates"]]
    )
    for how, column in columns.items():
      if outcomes[how] is None:
        raise errors.InputError(
          f"{name}: problem {s.id!r} has no known outcome; search problems with"
          " answers, with a grader that ends"
        )
      column.append(outcomes[how])
  return {how: np.asarray(column, float) for how, column in columns.items()}


def _any_right(outcomes: Sequence[bool | None]) -> bool | None:
  """Returns whether one is right; None if those that are known don't say it."""
  if True in outcomes:
    return True
  return None if None in outcomes else False


def _sampled(solution: schema.Solution) -> int:
  """Returns the tokens that policies sampled for a problem."""
  models = solution.extra["bill"]["models"]
  return sum(spent["sampled"] for spent in models.values())


def _cost(found: Sequence[schema.Solution]) -> dict[str, float | None]:
  """Returns the means of the bills; None where one isn't known."""
  bills = [s.extra["bill"] for s in found]
  scorers = [b["models"].get(bill_lib.SCORER, {}) for b in bills]
  return dict(
    sampled=float(np.mean([_sampled(s) for s in found])),
    scorer_calls=_mean([x.get("calls", 0) for x in scorers]),
    scorer_read=_mean([x.get("read", 0) for x in scorers]),
    scorer_read_once=_mean([x.get("read_once", 0) for x in scorers]),
    flops=_mean([b["flops"] for b in bills]),
  )


def _mean(values: Sequence[float | None]) -> float | None:
  known = [x for x in values if x is not None]
  return float(np.mean(known)) if len(known) == len(values) else None
