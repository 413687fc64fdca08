"""Particle filtering and particle Gibbs over steps.

Puri et al. 2025 (arXiv 2502.01618). Every round, a population of solutions is
drawn anew from itself, with weights that are a softmax of the log-odds of their
scores, as in the authors' code; at temperature 1 these are the odds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
import dataclasses

from jaxtyping import Float
import numpy as np

from prm_jax import errors
from prm_jax.runtime import checks
from prm_jax.search.rules import ids
from prm_jax.search.tree import Expansion
from prm_jax.search.tree import Node
from prm_jax.search.tree import Round
from prm_jax.search.tree import Tree

# multinomial: each is drawn independently, as the authors do. systematic: one
# random number for all, so that equal weights keep every solution.
RESAMPLING = ("multinomial", "systematic")


def weights(nodes: Sequence[Node], temperature: float) -> Float[np.ndarray, N]:
  """Returns the share of each node: softmax(log-odds / temperature).

  Args:
    nodes: The nodes.
    temperature: A high one gives equal shares.

  Returns:
    Shares that sum up to 1.
  """
  log_odds = np.asarray([node.log_odds for node in nodes])
  with np.errstate(over="ignore"):  # e^-inf is a share of 0
    shares = np.exp((log_odds - log_odds.max()) / temperature)
  return shares / shares.sum()


def resample(
  shares: Float[np.ndarray, N],
  num: int,
  random: np.random.Generator,
  how: str,
) -> list[int]:
  """Returns which nodes are drawn, in ascending order.

  Args:
    shares: The share of each node.
    num: The number of draws.
    random: The random numbers.
    how: One of RESAMPLING.

  Returns:
    num indices, some of them several times.
  """
  if how == "systematic":
    points = (random.random() + np.arange(num)) / num
  else:
    points = np.sort(random.random(num))
  ends = np.cumsum(shares)
  # Rounding may leave the last end below 1.
  drawn = np.searchsorted(ends, points, side="right")
  return np.minimum(drawn, len(shares) - 1).tolist()


@dataclasses.dataclass(frozen=True)
class ParticleFilter:
  """Particle filtering, and with several iterations particle Gibbs.

  Every round, `num` are drawn from the population; those that have ended stay
  in it and may be drawn again or lost. The filter ends when all have ended.

  With particle Gibbs, one solution of the last population is drawn as the
  reference, and another iteration begins with num - 1 new solutions. The
  reference stays whatever is drawn, and what it was after as many rounds can be
  drawn too, with the weight that it had there. The last iteration's population
  has the candidates.

  Args:
    num: The number of particles.
    softmax_temperature: That of the softmax over log-odds.
    resampling: How to draw; see RESAMPLING.
    iterations: The number of iterations; 1 is the filter alone.

  Raises:
    InputError: A number is out of range, `resampling` is unknown, or there are
      several iterations of one particle.
  """

  num: int = 16
  softmax_temperature: float = 1.0
  resampling: str = "multinomial"
  iterations: int = 1

  def __post_init__(self):
    checks.check_counts(self, ("num", "iterations"))
    checks.check_positive(self, ("softmax_temperature",))
    checks.check_choice("resampling", self.resampling, RESAMPLING)
    if self.iterations > 1 and self.num < 2:
      raise errors.InputError(
        f"num={self.num} with iterations={self.iterations}: the reference takes"
        " one place; give 2 or more"
      )

  def next(self, tree: Tree) -> Round:
    """Returns what to continue; see engine.Rule."""
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
    pool = list(population)
    for reference in kept:
      path = [*tree.ancestors(reference.id)][::-1]
      pool.append(tree.nodes[path[min(depth, len(path)) - 1]])
    shares = weights(pool, self.softmax_temperature)
    num = self.num - len(kept)
    drawn = resample(shares, num, tree.random(), self.resampling)
    return [pool[i] for i in drawn]

  def _ended(
    self, tree: Tree, population: Sequence[Node], iterations: int
  ) -> Round:
    """Returns the round after an iteration: the next one's first, or the end."""
    if iterations == self.iterations:
      return Round(candidates=ids(population))
    shares = weights(population, self.softmax_temperature)
    (drawn,) = resample(shares, 1, tree.random(), "multinomial")
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
