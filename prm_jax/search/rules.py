"""The strategies of a search: which nodes are continued next.

Each is a pure function of the tree, some 20 lines long. The engine draws, scores
and counts. mcts.py and particles.py have two that need more room.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import math

from prm_jax import errors
from prm_jax import schema
from prm_jax.grading import answers as answers_lib
from prm_jax.runtime import checks
from prm_jax.search import tree as tree_lib
from prm_jax.search.tree import Expansion
from prm_jax.search.tree import Node
from prm_jax.search.tree import Round
from prm_jax.search.tree import Tree


def ranked(nodes: Sequence[Node]) -> list[Node]:
  """Returns nodes from the highest score to the lowest; ties as they come.

  Args:
    nodes: The nodes.

  Returns:
    The nodes, in another order.
  """
  return sorted(nodes, key=lambda node: -node.log_odds)


def distinct(nodes: Sequence[Node]) -> list[Node]:
  """Returns nodes without those that repeat an earlier one's steps.

  Siblings that are equal add nothing to a search, and would take all of its
  places.

  Args:
    nodes: The nodes.

  Returns:
    The first of each kind.
  """
  kinds: dict[tuple[tuple[str, ...], bool, bool], Node] = {}
  for node in nodes:
    # One that was cut doesn't stand for one that can be continued.
    kind = (node.solution.steps, node.ended, node.is_open)
    kinds.setdefault(kind, node)
  return list(kinds.values())


def ids(nodes: Sequence[Node]) -> tuple[int, ...]:
  """Returns the numbers of nodes.

  Args:
    nodes: The nodes.

  Returns:
    Their numbers, in the same order.
  """
  return tuple(node.id for node in nodes)


@dataclasses.dataclass(frozen=True)
class BestOfN:
  """Whole solutions, drawn independently.

  Args:
    num: The number of solutions.

  Raises:
    InputError: num is less than 1.
  """

  num: int = 16

  def __post_init__(self):
    checks.check_counts(self, ("num",))

  def next(self, tree: Tree) -> Round:
    """Returns what to continue; see engine.Rule."""
    if tree.rounds:
      return Round(candidates=ids(tree.newest))
    return Round((Expansion(0, self.num, whole=True),))


@dataclasses.dataclass(frozen=True)
class Beam:
  """Beam search over steps: the best `keep` of all children go on.

  A solution that has ended and is among the best is a candidate for the answer
  and leaves. It takes its place with it: from then on one fewer is kept.

  Args:
    keep: The number of solutions that go on after each step.
    expand: The number of children of each. The first round has keep * expand.
    distinct: Whether children that repeat another's steps are left out.

  Raises:
    InputError: A number is less than 1.
  """

  keep: int = 4
  expand: int = 4
  distinct: bool = True

  def __post_init__(self):
    checks.check_counts(self, ("keep", "expand"))

  def next(self, tree: Tree) -> Round:
    """Returns what to continue; see engine.Rule."""
    if not tree.rounds:
      return Round((Expansion(0, self.keep * self.expand),))
    children = distinct(tree.newest) if self.distinct else list(tree.newest)
    left = self.keep - len(tree.candidates)
    best = ranked(children)[:left]
    closed = [node for node in best if not node.is_open]
    return Round(
      tuple(Expansion(node.id, self.expand) for node in best if node.is_open),
      candidates=(*tree.candidates, *ids(closed)),
    )


@dataclasses.dataclass(frozen=True)
class DiverseTrees:
  """Diverse verifier tree search (DVTS): beams that don't compete.

  In each of `trees` parts the best child goes on. When the best child of a part
  has ended, its siblings that have ended are candidates, too.

  Args:
    trees: The number of parts.
    expand: The number of children in each part and round.
    distinct: Whether children that repeat another's steps are left out.

  Raises:
    InputError: A number is less than 1.
  """

  trees: int = 4
  expand: int = 4
  distinct: bool = True

  def __post_init__(self):
    checks.check_counts(self, ("trees", "expand"))

  def next(self, tree: Tree) -> Round:
    """Returns what to continue; see engine.Rule."""
    if not tree.rounds:
      return Round((Expansion(0, self.trees * self.expand),))
    parts: dict[int, list[Node]] = {}
    for node in tree.newest:
      number = int(node.path.partition(".")[0])
      parts.setdefault(number // self.expand, []).append(node)
    expansions: list[Expansion] = []
    candidates: list[Node] = []
    for part in parts.values():
      children = distinct(part) if self.distinct else part
      best = ranked(children)[0]
      if best.is_open:
        expansions.append(Expansion(best.id, self.expand))
      else:
        candidates += [node for node in children if not node.is_open]
    return Round(
      tuple(expansions), candidates=(*tree.candidates, *ids(candidates))
    )


@dataclasses.dataclass(frozen=True)
class Rebase:
  """Reward-balanced search (REBASE; Wu et al. 2024, arXiv 2408.00724).

  A width W is shared among the open nodes of a round by a softmax of their
  scores. From the highest score on, a node gets W * e^(s / T) / sum children,
  rounded up, where the sum is over the nodes that are left; what it gets is
  taken off W. The paper rounds to the nearest number; its code rounds up, as
  here. A solution that has ended takes 1 off the width for good.

  Args:
    width: The number of children of the first round.
    balance_temperature: T of the softmax over scores in [0, 1]; the authors'
      code has 0.2. A high one shares evenly.

  Raises:
    InputError: A number is out of range.
  """

  width: int = 16
  balance_temperature: float = 0.2

  def __post_init__(self):
    checks.check_counts(self, ("width",))
    checks.check_positive(self, ("balance_temperature",))

  def next(self, tree: Tree) -> Round:
    """Returns what to continue; see engine.Rule."""
    if not tree.rounds:
      return Round((Expansion(0, self.width),))
    closed = [node for node in tree.newest if not node.is_open]
    nodes = ranked([node for node in tree.newest if node.is_open])
    width = self.width - len(tree.candidates) - len(closed)
    # Relative to the best: a low temperature has no larger e^x than 1.
    highest = max((node.score for node in nodes), default=0.0)
    weights = [
      math.exp((node.score - highest) / self.balance_temperature)
      for node in nodes
    ]
    expansions = []
    for i, node in enumerate(nodes):
      if width <= 0:
        break
      # Rounding errors of the sum must not ask for one child more.
      share = weights[i] / math.fsum(weights[i:])
      num = math.ceil(width * share - 1e-9)
      width -= num
      expansions.append(Expansion(node.id, num))
    return Round(tuple(expansions), candidates=(*tree.candidates, *ids(closed)))


@dataclasses.dataclass(frozen=True)
class RejectResample:
  """One solution, whose steps are drawn again while their score is too low.

  Each step has `attempts`, one after the other; the first whose score is at least
  the threshold is accepted. If none is, the best of them goes on. StepWiser
  (Xiong et al. 2025, arXiv 2508.19229) resets steps so, with a judge that says
  yes or no and up to 5 attempts; it doesn't say what follows after the last.

  Args:
    threshold: The score, in [0, 1], from which a step is accepted. 0 is plain
      sampling.
    attempts: The most attempts of a step.

  Raises:
    InputError: A number is out of range.
  """

  threshold: float = 0.5
  attempts: int = 5

  def __post_init__(self):
    checks.check_shares(self, ("threshold",))
    checks.check_counts(self, ("attempts",))

  def next(self, tree: Tree) -> Round:
    """Returns what to continue; see engine.Rule."""
    if not tree.rounds:
      return Round((Expansion(0),))
    (newest,) = tree.newest
    assert newest.parent is not None
    attempts = [tree.nodes[n] for n in tree.children[newest.parent]]
    if newest.score < self.threshold and len(attempts) < self.attempts:
      return Round((Expansion(newest.parent),))
    best = newest if newest.score >= self.threshold else ranked(attempts)[0]
    if best.is_open:
      return Round((Expansion(best.id),))
    return Round(candidates=(best.id,))


@dataclasses.dataclass(frozen=True)
class AcceptFirst:
  """Whole solutions, one after the other, until one is good enough.

  The first that states an answer and whose score is at least the threshold is
  the only candidate. If none of them is, there is no candidate: the problem
  stays without an answer.

  Args:
    threshold: The score, in [0, 1], from which a solution is accepted.
    attempts: The most solutions.
    find_answer: Returns the answer that a solution states.

  Raises:
    InputError: A number is out of range.
  """

  threshold: float = 0.5
  attempts: int = 8
  find_answer: schema.FindAnswer = answers_lib.of_solution

  def __post_init__(self):
    checks.check_shares(self, ("threshold",))
    checks.check_counts(self, ("attempts",))

  def next(self, tree: Tree) -> Round:
    """Returns what to continue; see engine.Rule."""
    if tree.newest:
      (newest,) = tree.newest
      answer = self.find_answer(newest.solution)
      if newest.score >= self.threshold and answer is not None:
        return Round(candidates=(newest.id,))
    if len(tree.rounds) == self.attempts:
      return Round()
    return Round((Expansion(0, whole=True),))


# The names of the two policies of speculative decoding.
DRAFT, TARGET = "draft", "target"


@dataclasses.dataclass(frozen=True)
class Speculate:
  """Reward-guided speculative decoding (RSD; Liao et al. 2025, arXiv 2501.19324).

  A cheap policy, "draft", writes each step. If its score is below the
  threshold, the expensive one, "target", writes that step instead, whatever its
  score. The authors' code compares the newest step's score, which is the
  aggregate `last`.

  Args:
    threshold: The score, in [0, 1], from which a draft is accepted; their
      code has 0.7.

  Raises:
    InputError: The threshold is out of range.
  """

  threshold: float = 0.7

  def __post_init__(self):
    checks.check_shares(self, ("threshold",))

  def next(self, tree: Tree) -> Round:
    """Returns what to continue; see engine.Rule."""
    if not tree.rounds:
      return Round((Expansion(0, writer=DRAFT),))
    (newest,) = tree.newest
    assert newest.parent is not None
    if newest.writer == DRAFT and newest.score < self.threshold:
      return Round((Expansion(newest.parent, writer=TARGET),))
    if newest.is_open:
      return Round((Expansion(newest.id, writer=DRAFT),))
    return Round(candidates=(newest.id,))


def check_policies(rule: object, given: Sequence[str]) -> None:
  """Refuses policies that don't fit a rule.

  Args:
    rule: The rule.
    given: The names of the policies.

  Raises:
    InputError: One is missing, or isn't used.
  """
  needed = (
    (DRAFT, TARGET) if isinstance(rule, Speculate) else (tree_lib.POLICY,)
  )
  if sorted(given) != sorted(needed):
    raise errors.InputError(
      f"{type(rule).__name__} has the policies {' and '.join(needed)}, and"
      f" {' and '.join(given) or 'none'} was given"
    )
