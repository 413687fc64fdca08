"""What a search gives back for each problem: a solution, with tree and bill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses

from prm_jax import schema
from prm_jax.search import bill as bill_lib
from prm_jax.search import choice as choice_lib
from prm_jax.search import records
from prm_jax.search import tree as tree_lib
from prm_jax.text import answers as answers_lib

# Fields of a result's `extra`.
FIELDS = ("answers", "candidates", "select", "bill", "tree")


def results(
  trees: Sequence[tree_lib.Tree],
  costs: Mapping[str, bill_lib.Cost | None],
  *,
  select: str = "best",
  compute_dtype: Mapping[str, str | None] = {},
  verify: schema.Verify | None = None,
  find_answer: schema.FindAnswer = answers_lib.of_solution,
) -> list[schema.Solution]:
  """Returns the solutions that searches chose.

  Args:
    trees: The finished trees.
    costs: The cost of each model.
    select: How the answer is chosen; one of choice.SELECTIONS.
    compute_dtype: The type that each model computes in; None isn't known.
    verify: Whether solutions end in the right answer; None if that isn't known.
      It is called once.
    find_answer: Returns the answer that a solution states.

  Returns:
    For each tree the best-scored candidate with the chosen answer, under the
    problem's id; without a candidate it has no steps. `extra` has the problem's
    and FIELDS: `answers`, of each way to choose the answer, its node and its
    outcome; `candidates`, each node once, with answer and outcome; `select`;
    `bill`, see records.bill_record; and `tree`.
  """
  nodes = [(tree, n) for tree in trees for n in _distinct(tree.candidates)]
  solutions = [tree.nodes[n].solution for tree, n in nodes]
  verdicts: Sequence[bool | None] = [None] * len(nodes)
  if verify is not None and nodes:
    verdicts = verify(solutions)
  known: dict[str, dict[int, bool | None]] = {t.problem.id: {} for t in trees}
  for (tree, n), verdict in zip(nodes, verdicts, strict=True):
    known[tree.problem.id][n] = verdict
  return [
    _result(
      tree,
      records.bill_record(tree.bill, costs, compute_dtype),
      select,
      known[tree.problem.id],
      find_answer,
    )
    for tree in trees
  ]


def _distinct(nodes: Sequence[int]) -> list[int]:
  return list(dict.fromkeys(nodes))


def _result(
  tree: tree_lib.Tree,
  bill: records.Record,
  select: str,
  outcomes: Mapping[int, bool | None],
  find_answer: schema.FindAnswer,
) -> schema.Solution:
  """Returns the solution that a search chose.

  outcomes: Whether each candidate ends in the right answer.
  """
  choices = choice_lib.choose(tree, find_answer)

  def outcome(choice: choice_lib.Choice) -> bool | None:
    if choice.node is not None:
      return outcomes[choice.node]
    # No candidate is as wrong as one without an answer.
    return False if tree.problem.extra.get(schema.REFERENCE) else None

  chosen = choices[select]
  node = tree.root if chosen.node is None else tree.nodes[chosen.node]
  extra = dict(tree.problem.extra)
  extra["answers"] = {
    how: dict(dataclasses.asdict(choice), outcome=outcome(choice))
    for how, choice in choices.items()
  }
  extra["candidates"] = [
    dict(
      node=n,
      answer=find_answer(tree.nodes[n].solution),
      outcome=outcomes[n],
      score=tree.nodes[n].score,
    )
    for n in _distinct(tree.candidates)
  ]
  extra["select"] = select
  extra["bill"] = bill
  extra["tree"] = records.tree_record(tree)
  return dataclasses.replace(
    node.solution,
    id=tree.problem.id,
    answer=chosen.answer,
    outcome=outcome(chosen),
    extra=extra,
  )


def counts(found: Sequence[schema.Solution]) -> dict[str, int]:
  """Returns counts over results, which add up over parts of the problems.

  Args:
    found: What `results` returned.

  Returns:
    The number of problems; of those that the budget ended, without a candidate
    and without an answer; with a known outcome and right, by each way to
    choose; of each model the sums of its bill.
  """
  total: dict[str, int] = dict(
    problems=len(found),
    ended_by_budget=sum(s.extra["tree"]["stopped"] == "budget" for s in found),
    without_candidate=sum(not s.extra["candidates"] for s in found),
    without_answer=sum(s.answer is None for s in found),
    graded=sum(s.outcome is not None for s in found),
  )
  for how in choice_lib.SELECTIONS:
    outcomes = [s.extra["answers"][how]["outcome"] for s in found]
    total[f"right_{how}"] = sum(outcome is True for outcome in outcomes)
  for s in found:
    for name, spent in s.extra["bill"]["models"].items():
      for field, num in spent.items():
        key = f"{name}_{field}"
        if num is not None:
          total[key] = total.get(key, 0) + num
  return total
