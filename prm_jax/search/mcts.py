"""Monte-Carlo tree search over steps.

As in AlphaMath (Chen et al. 2024, arXiv 2405.03553) a child is chosen by PUCT,
and nothing is selected again that has ended; the reward model takes the place
of the value head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import Literal

from prm_jax.runtime import verbs
from prm_jax.search.rules import ids
from prm_jax.search.rules import Rule
from prm_jax.search.tree import Expansion
from prm_jax.search.tree import Node
from prm_jax.search.tree import Round
from prm_jax.search.tree import Tree


@dataclasses.dataclass(frozen=True)
class MCTS(Rule):
  """Monte-Carlo tree search over steps, with PUCT.

  A simulation goes down from the problem: at each node to the child with the
  highest Q + c * P * sqrt(N of the node) / (1 + N of the child). A node without
  children gets some, in a round of its own, and the simulation goes on to the
  best of them, until that has ended. N counts the nodes at and below one, Q is
  the mean of their scores. Where all below has ended, no simulation goes.

  Args:
    simulations: The number of simulations, each down to the end of a solution;
      4 of 4 children sample about as many tokens as 16 solutions.
    expand: The number of children that a solution gets when a simulation comes
      to it.
    exploration: The constant c of PUCT, 0 or more.
    prior: The prior P of PUCT: policy (the geometric mean of the probabilities
      of the step's tokens, 1 if they aren't known) or uniform (1).

  Raises:
    InputError: A number is out of range.

  Example:
    prm-jax search mcts --policy=runs/demo/policy --scorer=runs/demo/prm \\
      --input=problems.jsonl --output=found.jsonl
  """

  name = "mcts"

  simulations: verbs.Count = 4
  expand: verbs.Count = 4
  exploration: verbs.NotNegative = 1.25
  prior: Literal["policy", "uniform"] = "policy"

  def next(self, tree: Tree) -> Round:
    """Returns what to continue; see Rule.next."""
    candidates = ids([n for n in tree.nodes[1:] if not n.is_open])
    visits, total, is_live = _statistics(tree)

    def best(node: int, children: Sequence[int]) -> int:
      explore = self.exploration * math.sqrt(visits[node])
      return max(
        children,
        key=lambda child: (
          total[child] / visits[child]
          + explore * self._prior(tree.nodes[child]) / (1 + visits[child])
        ),
      )

    if tree.rounds:
      (last,) = tree.rounds[-1].expansions
      at = best(last.node, tree.children[last.node])
      if tree.nodes[at].is_open:
        return Round((Expansion(at, self.expand),), candidates=candidates)
    # The first round of a simulation carries the problem.
    begun = sum(bool(round_.carried) for round_ in tree.rounds)
    if begun == self.simulations or not is_live[0]:
      return Round(candidates=candidates)
    at = 0
    while tree.children[at]:
      at = best(at, [c for c in tree.children[at] if is_live[c]])
    return Round(
      (Expansion(at, self.expand),), carried=(0,), candidates=candidates
    )

  def _prior(self, node: Node) -> float:
    log_prob = node.solution.extra.get("log_prob_mean")
    if self.prior == "uniform" or log_prob is None:
      return 1.0
    return math.exp(log_prob)


def _statistics(
  tree: Tree,
) -> tuple[Mapping[int, int], Mapping[int, float], Mapping[int, bool]]:
  """Returns of each node the visits, the sum of scores, and whether it is live.

  A node is live if it, or one below it, can be continued.
  """
  visits = {node.id: 1 for node in tree.nodes}
  total = {node.id: node.score for node in tree.nodes}
  is_live = {
    node.id: node.is_open and not tree.children[node.id] for node in tree.nodes
  }
  for node in reversed(tree.nodes):  # children come after their parents
    if node.parent is not None:
      visits[node.parent] += visits[node.id]
      total[node.parent] += total[node.id]
      is_live[node.parent] |= is_live[node.id]
  return visits, total, is_live
