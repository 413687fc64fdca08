"""The strategies of a search: which nodes are continued next.

Each is a pure function of the tree, some 20 lines long. The engine draws, scores
and counts. mcts.py, particles.py and adaptive.py have those that need more room.
A rule is a value: its fields are options of the command that has its name.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import math
from typing import Any, ClassVar, Literal

from prm_jax import schema
from prm_jax.runtime import files
from prm_jax.runtime import verbs
from prm_jax.search.tree import Expansion
from prm_jax.search.tree import Node
from prm_jax.search.tree import Round
from prm_jax.search.tree import Tree
from prm_jax.text import answers as answers_lib

# Options of a search whose solutions are written step by step.
OF_STEPS = ("max_steps", "max_step_tokens", "lookahead")


class Rule(verbs.Value):
  """A strategy: a pure function of the tree; a base of frozen dataclasses.

  Attributes:
    name: The name of its command.
    aggregate: How step scores become a solution's score if nothing else is
      asked for; None is as the scorer says.
    ignores: The options of a search that change nothing with this rule.
  """

  first_is_whole = False
  name: ClassVar[str] = ""
  aggregate: ClassVar[schema.Aggregate | None] = None
  ignores: ClassVar[tuple[str, ...]] = ()

  def next(self, tree: Tree) -> Round:
    """Returns what to continue; without expansions the search is over.

    Args:
      tree: The tree so far.

    Returns:
      The expansions, and what else stays.
    """
    raise NotImplementedError

  @property
  def reads(self) -> tuple[files.PathLike, ...]:
    """Files and folders that it names."""
    return ()

  def record(self) -> dict[str, Any]:
    """Returns its options as plain data: what its trees depend on.

    Returns:
      The values, by their names.
    """
    kind: Any = type(self)
    return {
      field.name: getattr(self, field.name)
      for field in verbs.fields(kind)
      if field.metadata.get("is_option", True)
    }


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
class BestOfN(Rule):
  """Draws whole solutions, and chooses one.

  Args:
    num: The number of solutions.

  Example:
    prm-jax search best_of_n --policy=runs/demo/policy --scorer=runs/demo/prm \\
      --input=problems.jsonl --output=found.jsonl --num=16
  """

  name = "best_of_n"
  ignores = OF_STEPS

  num: verbs.Count = 16

  def next(self, tree: Tree) -> Round:
    """Returns what to continue; see Rule.next."""
    if tree.rounds:
      return Round(candidates=ids(tree.newest))
    return Round((Expansion(0, self.num, whole=True),))


@dataclasses.dataclass(frozen=True)
class Beam(Rule):
  """Beam search over steps: the best of all children go on.

  A solution that has ended and is among the best is a candidate for the answer
  and leaves. It takes its place with it: from then on one fewer is kept.

  Args:
    keep: The number of solutions that go on after each step.
    expand: The number of children that each of them has; the first step has
      --keep times as many.
    distinct: Whether children that repeat another's steps are left out.

  Example:
    prm-jax search beam --policy=runs/demo/policy --scorer=runs/demo/prm \\
      --input=problems.jsonl --output=found.jsonl --keep=4 --expand=4
  """

  name = "beam"

  keep: verbs.Count = 4
  expand: verbs.Count = 4
  distinct: bool = dataclasses.field(default=True, metadata=verbs.NO_OPTION)

  def next(self, tree: Tree) -> Round:
    """Returns what to continue; see Rule.next."""
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
class DiverseTrees(Rule):
  """Diverse verifier tree search (DVTS): beams that don't compete.

  In each beam the best child goes on. When it has ended, its siblings that have
  ended are candidates, too.

  Args:
    trees: The number of beams.
    expand: The number of children that each beam has after a step; it continues
      the best of them.
    distinct: Whether children that repeat another's steps are left out.

  Example:
    prm-jax search dvts --policy=runs/demo/policy --scorer=runs/demo/prm \\
      --input=problems.jsonl --output=found.jsonl --trees=4 --expand=4
  """

  name = "dvts"

  trees: verbs.Count = 4
  expand: verbs.Count = 4
  distinct: bool = dataclasses.field(default=True, metadata=verbs.NO_OPTION)

  def next(self, tree: Tree) -> Round:
    """Returns what to continue; see Rule.next."""
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
class Rebase(Rule):
  """Shares a width among the open solutions by a softmax of scores (REBASE).

  Wu et al. 2024, arXiv 2408.00724. A width W is shared among the open nodes of
  a round. From the highest score on, a node gets W * e^(s / T) / sum children,
  rounded up, where the sum is over the nodes that are left; what it gets is
  taken off W. The paper rounds to the nearest number; its code rounds up, as
  here. A solution that has ended takes 1 off the width for good.

  Args:
    width: The number of children of the first step.
    balance_temperature: The temperature T of the softmax over scores, in the
      authors' code 0.2; a high one shares evenly.

  Example:
    prm-jax search rebase --policy=runs/demo/policy --scorer=runs/demo/prm \\
      --input=problems.jsonl --output=found.jsonl --width=16
  """

  name = "rebase"

  width: verbs.Count = 16
  balance_temperature: verbs.Positive = 0.2

  def next(self, tree: Tree) -> Round:
    """Returns what to continue; see Rule.next."""
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


# contrast: the mean log-probability of a chunk's tokens under the large policy
# minus that under the small one. likelihood: the first alone.
Guidance = Literal["contrast", "likelihood"]


@dataclasses.dataclass(frozen=True)
class ChunkGuidance(Rule):
  """Draws chunks of tokens, and continues the one that a larger policy likes best.

  The larger policy stands in the scorer's place: a checkpoint folder, imported
  like the policy's and with the same tokenizer. See chunks.py.

  Args:
    expand: The number of chunks that are drawn; one of them is continued.
    chunk_tokens: The number of tokens of a chunk.
    guidance: What chunks are compared by: contrast (the mean log-probability of
      a chunk's tokens under the larger policy, --scorer, minus that under
      --policy) or likelihood (the first alone).

  Example:
    prm-jax search chunk_guidance --policy=runs/small --scorer=runs/large \\
      --input=problems.jsonl --output=found.jsonl --chunk_tokens=32
  """

  name = "chunk_guidance"
  ignores = ("aggregate", "cache_tokens", "max_step_tokens", "lookahead")

  expand: verbs.Count = 16
  chunk_tokens: verbs.Count = 32
  guidance: Guidance = "contrast"

  def next(self, tree: Tree) -> Round:
    """Returns what to continue; see Rule.next."""
    return Beam(1, self.expand).next(tree)


@dataclasses.dataclass(frozen=True)
class RejectResample(Rule):
  """Writes one solution; draws a step again while its score is too low.

  The attempts of a step come one after the other; the first whose score is at
  least the threshold is accepted. If none is, the best of them goes on.
  StepWiser (Xiong et al. 2025, arXiv 2508.19229) resets steps so, with a judge
  that says yes or no and up to 5 attempts; it doesn't say what follows after
  the last.

  Args:
    threshold: The score, 0 to 1, from which a step is accepted; 0 is plain
      sampling.
    attempts: The most attempts of a step; if none is accepted, the search
      continues the best of them.

  Example:
    prm-jax search reject_resample --policy=runs/demo/policy \\
      --scorer=runs/demo/prm --input=problems.jsonl --output=found.jsonl
  """

  name = "reject_resample"
  aggregate = "last"

  threshold: verbs.Share = 0.5
  attempts: verbs.Count = 5

  def next(self, tree: Tree) -> Round:
    """Returns what to continue; see Rule.next."""
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
class AcceptFirst(Rule):
  """Whole solutions, one after the other, until one is good enough.

  The first that states an answer and whose score is at least the threshold is
  the only candidate. If none of them is, there is no candidate: the problem
  stays without an answer.

  Args:
    threshold: The score, 0 to 1, from which a solution is accepted.
    attempts: The most solutions.
    find_answer: Returns the answer that a solution states.
  """

  name = "accept_first"
  ignores = OF_STEPS

  threshold: verbs.Share = 0.5
  attempts: verbs.Count = 8
  find_answer: schema.FindAnswer = dataclasses.field(
    default=answers_lib.of_solution, metadata=verbs.NO_OPTION
  )

  def next(self, tree: Tree) -> Round:
    """Returns what to continue; see Rule.next."""
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
class Speculate(Rule):
  """A draft policy writes each step, --policy those that score too low.

  Reward-guided speculative decoding (RSD; Liao et al. 2025, arXiv 2501.19324).
  If a draft's score is below the threshold, the expensive policy, the target,
  writes that step instead, whatever its score. The authors' code compares the
  newest step's score, which is the aggregate `last`.

  Args:
    threshold: The score, 0 to 1, from which a draft is accepted, in the
      authors' code 0.7.
    draft: The policy that writes drafts: a checkpoint folder, or with a
      server's --policy the address of a server; --replica is for --policy
      alone.
    draft_model: The name of the draft's model at its server.

  Example:
    prm-jax search speculate --draft=runs/small/policy \\
      --policy=runs/demo/policy --scorer=runs/demo/prm \\
      --input=problems.jsonl --output=found.jsonl
  """

  name = "speculate"
  aggregate = "last"

  threshold: verbs.Share = 0.7
  draft: verbs.Named | None = dataclasses.field(
    default=None, metadata=dict(is_required=True)
  )
  draft_model: str | None = None

  @property
  def reads(self) -> tuple[files.PathLike, ...]:
    """The draft's folder."""
    return () if self.draft is None else (self.draft,)

  def record(self) -> dict[str, Any]:
    """Returns the threshold, without the draft; see Rule.record."""
    return dict(threshold=self.threshold)

  def next(self, tree: Tree) -> Round:
    """Returns what to continue; see Rule.next."""
    if not tree.rounds:
      return Round((Expansion(0, writer=DRAFT),))
    (newest,) = tree.newest
    assert newest.parent is not None
    if newest.writer == DRAFT and newest.score < self.threshold:
      return Round((Expansion(newest.parent, writer=TARGET),))
    if newest.is_open:
      return Round((Expansion(newest.id, writer=DRAFT),))
    return Round(candidates=(newest.id,))
