"""The answer of a search, chosen among its candidates."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import get_args, Literal

from prm_jax import schema
from prm_jax.grading import equality
from prm_jax.search import tree as tree_lib
from prm_jax.text import answers as answers_lib

# best: that of the highest score. weighted: the answer whose candidates' scores
# have the highest sum. majority: the most frequent answer.
Selection = Literal["best", "weighted", "majority"]
SELECTIONS: tuple[str, ...] = get_args(Selection)


@dataclasses.dataclass(frozen=True)
class Choice:
  """An answer, and the node that stands for it.

  Args:
    answer: The answer; None if no candidate that could win has one.
    node: The number of the best-scored candidate with this answer; None if
      there is no candidate.
  """

  answer: str | None = None
  node: int | None = None


def choose(
  tree: tree_lib.Tree,
  find_answer: schema.FindAnswer = answers_lib.of_solution,
) -> dict[str, Choice]:
  """Returns the answer of a search by each of SELECTIONS.

  The best candidate may state no answer; votes ignore such candidates.

  Args:
    tree: The tree.
    find_answer: Returns the answer that a solution states.

  Returns:
    A choice for each way to select.
  """
  from prm_jax import voting

  nodes = [tree.nodes[n] for n in tree.candidates]
  if not nodes:
    return dict.fromkeys(SELECTIONS, Choice())
  found = [find_answer(node.solution) for node in nodes]
  keys = [equality.canonical(answer) for answer in found]
  log_odds = [node.log_odds for node in nodes]
  best = voting.best(log_odds)

  def voted(weights: Sequence[float]) -> Choice:
    key = voting.weighted_vote(keys, weights)
    same = [i for i, other in enumerate(keys) if other == key]
    if key is None:
      return Choice(None, nodes[best].id)
    first = max(same, key=log_odds.__getitem__)
    return Choice(found[first], nodes[first].id)

  return dict(
    best=Choice(found[best], nodes[best].id),
    weighted=voted([node.score for node in nodes]),
    majority=voted([1.0] * len(nodes)),
  )
