"""Particle filtering and particle Gibbs over steps.

Puri et al. 2025 (arXiv 2502.01618). Every round, a population of solutions is
drawn anew from itself, with weights that are a softmax of the log-odds of their
scores, as in the authors' code; at temperature 1 these are the odds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
import dataclasses
from typing import Literal

from prm_jax.runtime import verbs
from prm_jax.search.rules import ids
from prm_jax.search.rules import Rule
from prm_jax.search.tree import Expansion
from prm_jax.search.tree import Node
from prm_jax.search.tree import Round
from prm_jax.search.tree import Tree


@dataclasses.dataclass(frozen=True)
class ParticleFilter(Rule):
  """Resamples all solutions by the odds of their scores after each step.

  Every round, as many as there are particles are drawn from the population, by
  the odds of their scores; those that have ended stay in it and may be drawn
  again or lost. The filter ends when all have ended.

  With particle Gibbs, one solution of the last population is drawn as the
  reference, and another iteration begins with new solutions in all other
  places. The reference stays whatever is drawn, and what it was after as many
  rounds can be drawn too, with the weight that it had there. The last
  iteration's population has the candidates.

  Args:
    num: The number of particles.
    softmax_temperature: The temperature of the softmax over the log-odds of
      scores; a high one draws evenly.
    resampling: How particles are drawn: multinomial (each by itself, as the
      authors do) or systematic (one random number for all, so that equal scores
      keep every particle).
    iterations: The number of iterations of particle Gibbs; 1 is the filter
      alone.

  Raises:
    InputError: There are several iterations of one particle.

  Example:
    prm-jax search particle_filter --policy=runs/demo/policy \\
      --scorer=runs/demo/prm --input=problems.jsonl --output=found.jsonl
  """

  name = "particle_filter"

  num: verbs.Count = 16
  softmax_temperature: verbs.Positive = 1.0
  resampling: Literal["multinomial", "systematic"] = "multinomial"
  iterations: verbs.Count = 1

  def _faults(self) -> Iterator[str]:
    if self.iterations > 1 and self.num < 2:
      yield (
        f"`num={self.num}` with `iterations={self.iterations}`: the reference"
        " takes one place; give 2 or more"
      )

  def next(self, tree: Tree) -> Round:
    """Returns what to continue; see Rule.next."""
    if not tree.rounds:
      return Round((Expansion(0, self.num),))
    starts = [i for i, r in enumerate(tree.rounds) if r.expansions[0].node == 0]
    carried = [tree.nodes[n] for n in tree.rounds[-1].carried]
    kept = [carried.pop(0)] if len(starts) > 1 else []
    population = [*tree.newest, *carried]
    if any(node.is_open for node in population):
      depth = len(tree.rounds) - starts[-1]
      drawn = self._resampled(tree, kept, population, depth)
      if any(node.is_open for node in drawn):
        return _continued(drawn, kept, population)
      population = drawn
    return self._ended(tree, [*population, *kept], len(starts))

  def _resampled(
    self,
    tree: Tree,
    kept: Sequence[Node],
    population: Sequence[Node],
    depth: int,
  ) -> list[Node]:
    """Returns what is drawn from the population and the reference's prefix."""
    from prm_jax.search import resampling

    pool = list(population)
    for reference in kept:
      path = [*tree.ancestors(reference.id)][::-1]
      pool.append(tree.nodes[path[min(depth, len(path)) - 1]])
    shares = resampling.weights(pool, self.softmax_temperature)
    num = self.num - len(kept)
    drawn = resampling.resample(shares, num, tree.random(), self.resampling)
    return [pool[i] for i in drawn]

  def _ended(
    self, tree: Tree, population: Sequence[Node], iterations: int
  ) -> Round:
    """Returns the round after an iteration: the next one's first, or the end."""
    from prm_jax.search import resampling

    if iterations == self.iterations:
      return Round(candidates=ids(population))
    shares = resampling.weights(population, self.softmax_temperature)
    (drawn,) = resampling.resample(shares, 1, tree.random(), "multinomial")
    return Round(
      (Expansion(0, self.num - 1),),
      carried=(population[drawn].id,),
      candidates=ids(population),
    )


def _continued(
  drawn: Sequence[Node], kept: Sequence[Node], population: Sequence[Node]
) -> Round:
  """Returns a round that goes on with what was drawn."""
  counts = Counter(node.id for node in drawn if node.is_open)
  closed = [node for node in population if not node.is_open]
  return Round(
    tuple(Expansion(node, times) for node, times in counts.items()),
    carried=ids([*kept, *(node for node in drawn if not node.is_open)]),
    candidates=ids([*closed, *kept]),
  )
