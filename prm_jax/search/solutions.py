"""What a search gives back for each problem: a solution, with tree and bill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

from prm_jax import schema
from prm_jax.search import answers
from prm_jax.search import bill as bill_lib
from prm_jax.search import records
from prm_jax.search import tree as tree_lib

# Fields of a result's `extra`.
FIELDS = ("answers", "bill", "tree")


def result(
  tree: tree_lib.Tree,
  costs: Mapping[str, bill_lib.Cost | None],
  *,
  select: str = "best",
  verify: schema.Verify | None = None,
  find_answer: answers.FindAnswer = answers.answers_lib.extract,
) -> schema.Solution:
  """Returns the solution that a search chose.

  Args:
    tree: The finished tree.
    costs: The cost of each model.
    select: How the answer is chosen; one of answers.SELECTIONS.
    verify: Whether solutions end in the right answer; None if that isn't asked.
    find_answer: Returns the answer in a solution's steps.

  Returns:
    The best-scored candidate with the chosen answer, under the problem's id.
    Without a candidate it has no steps. `extra` has the problem's, and
    `answers`, of each way to choose the answer, its node and its outcome;
    `bill`, see records.bill_record; and `tree`.
  """
  choices = answers.choose(tree, find_answer)
  outcomes = _outcomes(tree, choices, verify)
  chosen = choices[select]
  node = tree.root if chosen.node is None else tree.nodes[chosen.node]
  extra = dict(tree.problem.extra)
  extra["answers"] = {
    how: dict(answer=choice.answer, node=choice.node, outcome=outcomes[how])
    for how, choice in choices.items()
  }
  extra["bill"] = records.bill_record(tree.bill, costs)
  extra["tree"] = records.tree_record(tree)
  return dataclasses.replace(
    node.solution,
    id=tree.problem.id,
    answer=chosen.answer,
    outcome=outcomes[select],
    extra=extra,
  )


def _outcomes(
  tree: tree_lib.Tree,
  choices: Mapping[str, answers.Choice],
  verify: schema.Verify | None,
) -> dict[str, bool | None]:
  """Returns whether each choice is right; without an answer it is wrong."""
  known: dict[str, bool | None] = dict.fromkeys(choices)
  if verify is None:
    return known
  asked: Sequence[str] = [h for h, c in choices.items() if c.answer is not None]
  nodes = [choices[how].node for how in asked]
  verdicts = verify([tree.nodes[n].solution for n in nodes if n is not None])
  return dict.fromkeys(choices, False) | dict(zip(asked, verdicts, strict=True))


def totals(results: Sequence[schema.Solution]) -> dict[str, Any]:
  """Returns counts over results, for a summary.

  Args:
    results: What `result` returned.

  Returns:
    The number of problems, of those stopped by the budget, without a candidate
    and without an answer; of each model the sums of its counts.
  """
  counts: dict[str, Any] = dict(
    problems=len(results),
    stopped_by_budget=sum(
      s.extra["tree"]["stopped"] == "budget" for s in results
    ),
    without_candidate=sum(
      s.extra["answers"]["best"]["node"] is None for s in results
    ),
    without_answer=sum(s.answer is None for s in results),
  )
  for s in results:
    for name, spent in s.extra["bill"]["models"].items():
      for field, num in spent.items():
        key = f"{name}_{field}"
        counts[key] = counts.get(key, 0) + (num or 0)
  return counts
