"""The tree of a search: what was written from a problem, and its scores.

A tree is data. A rule (rules.py) reads it and says which nodes are continued
next; the engine (engine.py) adds the children. So a rule needs no state, and a
search continues from any tree.
"""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import functools
import hashlib
import json
from typing import TYPE_CHECKING

from prm_jax import schema
from prm_jax.search import bill as bill_lib

if TYPE_CHECKING:
  import numpy as np

# The name of the policy that a rule uses if it says no other.
POLICY = "policy"

# Why a node has no children yet: it is a step that can be continued, or the
# policy ended the solution by an id or a stop text. The others can't be
# continued: its step or solution reached the most tokens, it added nothing, or
# has the most steps.
OPEN = ("root", "step")
ENDED = ("end", "stop")
CUT = ("length", "empty", "steps")


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
  """A solution as far as it is written.

  Args:
    id: The number of the node, in the order in which nodes were made; the root
      is 0.
    parent: The number of the node that it continues; None for the root.
    path: The node's number among its parent's children, after that of the
      parent: "2.0" is the first child of the root's third child; "" is the
      root. With the problem's id it seeds what the policy writes.
    solution: All steps so far.
    stopped: Why the policy stopped there: one of OPEN, ENDED and CUT.
    writer: The name of the policy that wrote it.
    step_scores: The score of each step so far, in [0, 1].
    score: Their aggregate, in [0, 1]: the chance that all is right.
    log_odds: The log-odds of the score, in nats. They differ even if scores
      round to 1.
    ahead: Steps that were written after it only to score it, and that the
      scores include.
    cost: What it took to write and to score it.
  """

  id: int
  parent: int | None
  path: str
  solution: schema.Solution
  stopped: str = "root"
  writer: str = ""
  step_scores: tuple[float, ...] = ()
  score: float = 0.0
  log_odds: float = 0.0
  ahead: tuple[str, ...] = ()
  cost: bill_lib.Bill = dataclasses.field(default_factory=dict)

  @property
  def is_open(self) -> bool:
    """Whether the solution can be continued."""
    return self.stopped in OPEN

  @property
  def ended(self) -> bool:
    """Whether the policy ended the solution."""
    return self.stopped in ENDED

  @property
  def num_steps(self) -> int:
    """The number of steps so far."""
    return len(self.solution.steps)


@dataclasses.dataclass(frozen=True)
class Expansion:
  """A node to continue.

  Args:
    node: Its number.
    num: The number of children to add.
    whole: Whether each child is a whole solution, instead of one step more.
    writer: The name of the policy that writes them.
  """

  node: int
  num: int = 1
  whole: bool = False
  writer: str = POLICY


@dataclasses.dataclass(frozen=True)
class Round:
  """What a rule decided on a tree.

  Args:
    expansions: The nodes to continue. If there are none, the search is over.
    carried: Nodes that stay as they are, a node as often as it counts. What
      that means is the rule's matter; all others were pruned or rejected.
    candidates: The nodes that the answer would be chosen from if the search
      ended now, a node as often as it counts.
  """

  expansions: tuple[Expansion, ...] = ()
  carried: tuple[int, ...] = ()
  candidates: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Tree:
  """The search of one problem.

  Args:
    problem: The problem, as a solution without steps.
    nodes: The nodes, by their numbers; the first is the root.
    rounds: What the rule decided so far.
    sizes: The number of nodes at the end of each round.
    seed: The seed of the random numbers that rules draw.
    stopped: Why the search is over: rule (there was nothing to continue) or
      budget (the rule asked for more); "" before.
    unused: What was drawn in vain, because the budget was spent by nodes before
      it in the same call.
  """

  problem: schema.Solution
  nodes: tuple[Node, ...]
  rounds: tuple[Round, ...] = ()
  sizes: tuple[int, ...] = ()
  seed: int = 0
  stopped: str = ""
  unused: bill_lib.Bill = dataclasses.field(default_factory=dict)

  @property
  def root(self) -> Node:
    """The problem."""
    return self.nodes[0]

  @property
  def newest(self) -> tuple[Node, ...]:
    """The nodes of the last round, in the order of its expansions."""
    if not self.sizes:
      return ()
    before = self.sizes[-2] if len(self.sizes) > 1 else 1
    return self.nodes[before : self.sizes[-1]]

  @property
  def was_cut(self) -> bool:
    """Whether a budget left out children that the last round asked for."""
    asked = self.rounds[-1].expansions if self.rounds else ()
    return sum(e.num for e in asked) > len(self.newest)

  @functools.cached_property
  def children(self) -> tuple[tuple[int, ...], ...]:
    """The children of each node, in the order in which they were made."""
    rows: list[list[int]] = [[] for _ in self.nodes]
    for node in self.nodes[1:]:
      assert node.parent is not None
      rows[node.parent].append(node.id)
    return tuple(map(tuple, rows))

  @property
  def candidates(self) -> tuple[int, ...]:
    """The nodes that the answer is chosen from, a node as often as it counts."""
    return self.rounds[-1].candidates if self.rounds else ()

  @functools.cached_property
  def bill(self) -> dict[str, bill_lib.Spent]:
    """What the search cost so far, without what was drawn in vain."""
    return bill_lib.add(*(node.cost for node in self.nodes))

  def ancestors(self, node: int) -> Iterator[int]:
    """Yields a node, its parent and so on, without the root.

    Args:
      node: The number of the node.

    Yields:
      The numbers of the nodes.
    """
    at: int | None = node
    while at:
      yield at
      at = self.nodes[at].parent

  def random(self) -> np.random.Generator:
    """Returns the random numbers of the next round.

    They depend on the seed, the problem's id and the number of rounds so far.

    Returns:
      A new generator.
    """
    import numpy as np

    text = json.dumps([self.seed, self.problem.id, len(self.rounds)])
    digest = hashlib.sha256(text.encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16]))


def begin(problem: schema.Solution, seed: int = 0) -> Tree:
  """Returns the tree of a problem, with its root alone.

  Args:
    problem: The problem, as a solution without steps; its id seeds what is
      drawn.
    seed: The seed of the random numbers that rules draw.

  Returns:
    The tree.
  """
  return Tree(problem, (Node(0, None, "", problem),), seed=seed)


def grow(
  tree: Tree, round_: Round, nodes: tuple[Node, ...], unused: bill_lib.Bill
) -> Tree:
  """Returns a tree with one round more.

  Args:
    tree: The tree.
    round_: What the rule decided.
    nodes: The children that were added, numbered on from the tree's nodes.
    unused: What was drawn in vain.

  Returns:
    The tree.
  """
  all_nodes = tree.nodes + nodes
  return dataclasses.replace(
    tree,
    nodes=all_nodes,
    rounds=(*tree.rounds, round_),
    sizes=(*tree.sizes, len(all_nodes)),
    unused=bill_lib.add(tree.unused, unused),
  )


def child_path(tree: Tree, node: int, number: int) -> str:
  """Returns the path of a node's next children.

  Args:
    tree: The tree.
    node: The number of the parent.
    number: 0 for the next child, 1 for the one after it, and so on.

  Returns:
    The path.
  """
  path = tree.nodes[node].path
  own = len(tree.children[node]) + number
  return f"{path}.{own}" if path else str(own)
