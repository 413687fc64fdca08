"""Chooses which solutions to label next: convincing wrong ones, or any.

A label is worth most if the current reward model is mistaken. In a pool with
known outcomes its mistakes are easy to find: solutions with a high score and a
wrong answer (Let's Verify Step by Step, Lightman et al. 2023, arXiv 2305.20050,
section 4.2). Of the N solutions chosen for a problem, 80 % are the most
convincing ones with a wrong answer, and the rest the most convincing remaining
ones, whatever their answer. `at_random` is the baseline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
import dataclasses
import hashlib
import math

from prm_jax import errors
from prm_jax import schema
from prm_jax import voting

# What is counted, in this order.
_COUNTS = (
  *("pool", "labelled_already", "no_steps", "outcome_unknown", "chosen"),
  *("convincing_wrong", "convincing_rest", "random"),
  *("answer_wrong", "answer_right", "answer_unknown", "problems"),
)


@dataclasses.dataclass(frozen=True)
class Budget:
  """How many solutions to choose.

  Args:
    total: The most solutions in all; None is no limit. With per_problem,
      problems are taken in an order that depends on the seed until the total is
      reached.
    per_problem: The most solutions of each problem; None is no limit, and all
      problems are one pool.
  """

  total: int | None = None
  per_problem: int | None = None

  def __post_init__(self):
    given = [n for n in (self.total, self.per_problem) if n is not None]
    if not given or min(given) < 1:
      raise errors.InputError(
        "give `total` (solutions in all), `per_problem` or both, 1 or more"
      )


def most_convincing(
  solutions: Sequence[schema.Solution],
  score: schema.Score,
  budget: Budget,
  *,
  wrong_share: float = 0.8,
  aggregate: str = "product",
  exclude: Collection[str] = (),
  seed: int = 0,
) -> tuple[list[schema.Solution], dict[str, int]]:
  """Returns the chosen solutions, in the pool's order, and counts by reason.

  Their extra gets `selected` (convincing_wrong or convincing_rest) and
  `selection_score`, the aggregate of its step scores; solutions are ranked by
  log-odds if there are any (voting.ranking_scores). A solution with an unknown
  outcome can only be one of the rest. Of equal scores the smaller id comes
  first. If too few are wrong, the rest is larger.

  Args:
    solutions: The pool, with outcomes.
    score: The current reward model.
    budget: How many to choose; of n, round(wrong_share n) are wrong.
    wrong_share: The share of solutions with a wrong answer, in [0, 1].
    aggregate: How step scores become a solution's score (voting.aggregate).
    exclude: The ids that aren't chosen, because they are labelled.
    seed: The seed of the order of problems, if the budget isn't enough for all.

  Raises:
    InputError: A score is NaN.
  """
  pool, counts = _pool(solutions, exclude)
  rows = score(pool)
  values = [voting.aggregate(x.scores, aggregate) for x in rows]
  voting.warn_of_unjudged(rows, aggregate)
  ranking = voting.ranking_scores(rows, aggregate)
  for s, value in zip(pool, ranking, strict=True):
    if math.isnan(value):
      raise errors.InputError(f"solution {s.id!r}: its score is NaN")
  order = sorted(range(len(pool)), key=lambda i: (-ranking[i], pool[i].id))

  def choose(group: Sequence[int], n: int) -> dict[int, dict]:
    wrong = [i for i in group if pool[i].outcome is False]
    wrong = wrong[: math.floor(wrong_share * n + 0.5)]
    taken = set(wrong)
    rest = [i for i in group if i not in taken][: n - len(wrong)]
    reasons = dict.fromkeys(rest, "convincing_rest")
    reasons |= dict.fromkeys(wrong, "convincing_wrong")
    return {
      i: dict(selected=reason, selection_score=values[i])
      for i, reason in reasons.items()
    }

  return _chosen(pool, order, budget, seed, choose, counts)


def at_random(
  solutions: Sequence[schema.Solution],
  budget: Budget,
  *,
  exclude: Collection[str] = (),
  seed: int = 0,
) -> tuple[list[schema.Solution], dict[str, int]]:
  """Returns as many solutions, chosen uniformly, as a baseline.

  With the same budget and seed they are of the same problems. The order depends
  on (seed, id), so a larger pool changes nothing else.
  """
  pool, counts = _pool(solutions, exclude)
  order = sorted(range(len(pool)), key=lambda i: _rng_words(seed, pool[i].id))

  def choose(group: Sequence[int], n: int) -> dict[int, dict]:
    return {i: dict(selected="random") for i in group[:n]}

  return _chosen(pool, order, budget, seed, choose, counts)


def _pool(
  solutions: Sequence[schema.Solution], exclude: Collection[str]
) -> tuple[list[schema.Solution], Counter[str]]:
  """Returns what may be chosen, and counts of what may not."""
  counts: Counter[str] = Counter(pool=len(solutions))
  labelled = frozenset(exclude)
  pool = []
  for s in solutions:
    if s.id in labelled:
      counts["labelled_already"] += 1
    elif not s.steps:
      counts["no_steps"] += 1
    else:
      pool.append(s)
      counts["outcome_unknown"] += s.outcome is None
  return pool, counts


def _chosen(
  pool: Sequence[schema.Solution],
  order: Sequence[int],
  budget: Budget,
  seed: int,
  choose: Callable[[Sequence[int], int], dict[int, dict]],
  counts: Counter[str],
) -> tuple[list[schema.Solution], dict[str, int]]:
  """Returns the solutions that `choose` takes of each group, and all counts."""
  details: dict[int, dict] = {}
  for group in _groups(pool, order, budget, seed):
    left = len(pool) if budget.total is None else budget.total - len(details)
    n = left if budget.per_problem is None else min(left, budget.per_problem)
    if n > 0:
      details |= choose(group, n)
  chosen = [
    dataclasses.replace(s, extra={**s.extra, **details[i]})
    for i, s in enumerate(pool)
    if i in details
  ]
  names = {False: "wrong", True: "right", None: "unknown"}
  for s in chosen:
    counts["chosen"] += 1
    counts[s.extra["selected"]] += 1
    counts[f"answer_{names[s.outcome]}"] += 1
  counts["problems"] = len({s.problem for s in chosen})
  return chosen, {name: counts[name] for name in _COUNTS if counts[name]}


def _groups(
  pool: Sequence[schema.Solution],
  order: Sequence[int],
  budget: Budget,
  seed: int,
) -> Iterator[list[int]]:
  """Yields the indices to choose among, each group in the given order."""
  if budget.per_problem is None:
    yield list(order)
    return
  groups: dict[str, list[int]] = {}
  for i in order:
    groups.setdefault(pool[i].problem, []).append(i)
  for problem in sorted(groups, key=lambda problem: _rng_words(seed, problem)):
    yield groups[problem]


def _rng_words(seed: int, text: str) -> tuple[bytes, str]:
  data = f"{seed}:{text}".encode("utf-8", "surrogatepass")
  return hashlib.sha256(data).digest(), text
