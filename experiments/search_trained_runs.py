"""What search_trained.py runs: strategies by trained models, with their costs.

Not a command. As in search_runs.py a run keeps a few numbers for each problem,
and no trees.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses

import numpy as np
import search_runs
import search_trained_models

from prm_jax import schema
from prm_jax.search import bill as bill_lib
from prm_jax.search import choice
from prm_jax.search import engine
from prm_jax.search import rules
from prm_jax.search import search_limits as limits_lib
from prm_jax.search import tree as tree_lib
from prm_jax.testbed import arithmetic

# Problems that are searched at a time.
_CHUNK = 100
# Steps of a solution whose scores are kept; a right one has at most 7.
MOST_STEPS = 10

Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Run:
  """One strategy with one PRM.

  Args:
    name: Its name, of which there is one.
    rule: The strategy; None are the whole samples that all curves come from.
    prm: The PRM, one of search_trained_models.PRMS.
    aggregate: How step scores become a solution's score.
    lookahead: The greedy steps before a node is scored.
    problems: Only the first so many problems of a seed.
    repeats: How often each problem is searched, with other random numbers.
  """

  name: str
  rule: rules.Rule | None
  prm: str = "full"
  aggregate: str = "min"
  lookahead: int = 0
  problems: int | None = None
  repeats: int = 1


def measure(
  run: Run,
  of_seed: search_trained_models.Models,
  seed: int,
  num: int,
  num_samples: int,
) -> Arrays:
  """Returns a run's numbers for each problem of a seed.

  Args:
    run: The run.
    of_seed: The seed's models and problems.
    seed: The seed of what is drawn.
    num: The number of problems.
    num_samples: The number of independent samples of a problem.

  Returns:
    Arrays whose first axis is the problem; see `of_tree` and `of_samples`.
  """
  chosen = [
    schema.Solution(f"{p.id}#{r}" if run.repeats > 1 else p.id, p.problem, ())
    for p in of_seed.problems[:num][: run.problems]
    for r in range(run.repeats)
  ]
  policy = of_seed.policy
  verifier = of_seed.verifier(run.prm, run.aggregate)
  limits = limits_lib.Limits(
    max_tokens=of_seed.max_tokens, lookahead=run.lookahead
  )
  costs = {tree_lib.POLICY: policy.cost, bill_lib.SCORER: verifier.cost}
  rows = []
  for i in range(0, len(chosen), _CHUNK):
    trees = engine.search(
      chosen[i : i + _CHUNK],
      run.rule or rules.BestOfN(num_samples),
      {tree_lib.POLICY: policy},
      verifier,
      limits,
      seed=seed,
    )
    if run.rule is None:
      rows += of_samples(trees, of_seed, costs)
    else:
      rows += [of_tree(tree, costs) for tree in trees]
  arrays = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
  if run.repeats > 1:
    arrays = {
      k: v.reshape(-1, run.repeats, *v.shape[1:]).mean(1)
      for k, v in arrays.items()
    }
  return arrays


# --- Independent samples ----------------------------------------------------


def of_samples(
  trees: Sequence[tree_lib.Tree],
  of_seed: search_trained_models.Models,
  costs: dict[str, bill_lib.Cost | None],
) -> list[Arrays]:
  """Returns the numbers of each problem's independent samples.

  Of each sample: whether its answer is right, whether all steps are, the answer
  (-1 without one), and of its steps the labels and each PRM's log-odds. What the
  first n cost is their sum up to n; `policy_flops` is without a scorer.
  """
  drawn = [[n.solution for n in tree.nodes[1:]] for tree in trees]
  flat = [s for row in drawn for s in row]
  logits = {
    name: iter([_padded(x.logits or ()) for x in score(flat)])
    for name, score in of_seed.scorers.items()
  }
  rows = []
  for tree, solutions in zip(trees, drawn, strict=True):
    found = [arithmetic.final_answer(s) for s in solutions]
    arrays: Arrays = dict(
      right=np.asarray(arithmetic.verify(solutions), float),
      steps=np.asarray([_has_right_steps(s) for s in solutions]),
      answer=np.asarray([-1 if a is None else int(a) for a in found], float),
      labels=np.stack([_padded(_labels(s)) for s in solutions]),
    )
    for name, of_scorer in logits.items():
      arrays[f"{name}.logits"] = np.stack([next(of_scorer) for _ in solutions])
    bills = [dict(n.cost) for n in tree.nodes[1:]]
    for name in search_runs.costs(bills[0]):
      arrays[name] = np.cumsum([search_runs.costs(b)[name] for b in bills])
    arrays["flops"] = np.cumsum([bill_lib.flops(b, costs) for b in bills])
    alone = [{tree_lib.POLICY: b[tree_lib.POLICY]} for b in bills]
    arrays["policy_flops"] = np.cumsum(
      [bill_lib.flops(b, costs) for b in alone]
    )
    rows.append({k: v.astype(np.float64) for k, v in arrays.items()})
  return rows


def _padded(values: Sequence[float]) -> np.ndarray:
  """Returns the values of the first steps, with NaN behind them."""
  row = np.full(MOST_STEPS, np.nan)
  kept = values[:MOST_STEPS]
  row[: len(kept)] = kept
  return row


def _labels(solution: schema.Solution) -> list[float]:
  return arithmetic.check(solution.problem, solution.steps)


def _has_right_steps(solution: schema.Solution) -> float:
  """Returns 1 if a solution's answer and all of its steps are right."""
  right = arithmetic.verify([solution])[0]
  return float(bool(right) and _labels(solution)[-1] == 1)


# --- Searches ---------------------------------------------------------------

# How the first wrong step of a solution is wrong.
ERRORS = ("copied", "slip", "other", "unfinished")


def of_tree(
  tree: tree_lib.Tree, costs: dict[str, bill_lib.Cost | None]
) -> Arrays:
  """Returns the numbers of a finished search: outcomes, costs and diagnosis."""
  numbers = {"flops": float(bill_lib.flops(tree.bill, costs) or 0)}
  numbers |= diagnosis(tree)
  arrays = {name: np.asarray(x, np.float64) for name, x in numbers.items()}
  return search_runs.of_tree(tree) | arrays


def diagnosis(tree: tree_lib.Tree) -> dict[str, float]:
  """Returns where a search lost its last right path, and how its choice errs.

  end: what became of the deepest node whose steps are all right: it is a
  candidate (0), it wasn't continued (1), or none of its children is right (2).
  depth: its number of steps. Of the solution that the weighted vote chose, if a
  step of it is wrong: first, the number of right steps before; error, its place
  in ERRORS; log_odds, those that the PRM gives this step; shared, whether all
  candidates have the same wrong step after the same steps, whatever words open
  them. NaN where there is no such step.
  """
  labels = [_labels(n.solution) for n in tree.nodes]
  is_right = [not x or x[-1] == 1 for x in labels]
  deepest = max(
    (n for n in tree.nodes if is_right[n.id]), key=lambda n: n.num_steps
  )
  ended_right = any(is_right[c] and labels[c] for c in tree.candidates)
  end = 2.0 if tree.children[deepest.id] else 1.0
  numbers = dict(
    end=0.0 if ended_right else end,
    depth=float(deepest.num_steps),
    first=np.nan,
    error=np.nan,
    first_log_odds=np.nan,
    shared=np.nan,
  )
  chosen = choice.choose(tree, arithmetic.final_answer)["weighted"].node
  if chosen is None:
    return numbers
  node = tree.nodes[chosen]
  first = first_wrong(labels[chosen])
  if first is None:
    if not arithmetic.verify([node.solution])[0]:
      numbers["error"] = float(ERRORS.index("unfinished"))
    return numbers
  score = min(max(node.step_scores[first], 1e-12), 1 - 1e-12)
  openings = {
    _without_words(tree.nodes[c].solution.steps[: first + 1])
    for c in tree.candidates
  }
  return numbers | dict(
    first=float(first),
    error=float(ERRORS.index(kind_of_error(node.solution, first))),
    first_log_odds=float(np.log(score / (1 - score))),
    shared=float(len(openings) == 1),
  )


def first_wrong(labels: Sequence[float]) -> int | None:
  """Returns the index of the first wrong step; None if all are right."""
  return next((k for k, label in enumerate(labels) if label != 1), None)


def kind_of_error(solution: schema.Solution, first: int) -> str:
  """Returns how the first wrong step of a solution is wrong.

  copied: it begins with another value, sign or number than the problem and the
  step before say. slip: its result is wrong. other: all else.
  """
  value, turns = arithmetic.parse(solution.problem)
  for sign, n in turns[:first]:
    value = arithmetic.turn(value, sign, n)
  words = solution.steps[first].split()
  if first >= len(turns) or len(words) != 6 or words[4] != "=":
    return "other"
  sign, n = turns[first]
  given = words[1:4] == [str(value), sign, str(n)]
  return "slip" if given else "copied"


def _without_words(steps: Sequence[str]) -> tuple[str, ...]:
  """Returns steps without the connectives that open them."""
  return tuple(step.partition(" ")[2] for step in steps)
