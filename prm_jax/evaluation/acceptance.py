"""Which answers to accept: a threshold for a wanted precision, and its price.

`prm-jax verify run` draws solutions until one's score is at least a threshold,
or the attempts are used up (search.rules.AcceptFirst). What that gives on problems
with known answers is computed here exactly, over all orders in which the
samples of a problem could have been drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import math

from jax.scipy import special
from jaxtyping import Float
import numpy as np

from prm_jax import errors
from prm_jax.evaluation import bootstrap

# More thresholds than these say no more.
_MOST_THRESHOLDS = 200


@dataclasses.dataclass(frozen=True)
class Point:
  """What a threshold gives.

  Args:
    threshold: The score from which a solution is accepted.
    coverage: The expected share of problems with an accepted solution.
    precision: The expected share of right answers among those accepted; None if
      nothing is.
    lower: The lower bound of the precision, over problems; None as before.
    samples: The expected number of samples that a problem takes.
  """

  threshold: float
  coverage: float
  precision: float | None
  lower: float | None
  samples: float


def curve(
  scores: Sequence[Sequence[float]],
  right: Sequence[Sequence[bool]],
  attempts: int,
  *,
  confidence: float = 0.9,
  seed: int = 0,
) -> list[Point]:
  """Returns what each threshold gives: the risk-coverage curve.

  Args:
    scores: The scores of each problem's samples, in [0, 1]; -1 for one that
      can't be accepted, because it states no answer.
    right: Whether each sample's answer is right.
    attempts: The most samples that are drawn of a problem, at most as many as each
      has.
    confidence: In (0, 1), the level of the precision's lower bound, one-sided:
      the lower one of a bootstrap over problems, and of the exact binomial bound
      (Clopper and Pearson) of as many problems as are accepted on average. The bootstrap
      alone would be 1 if all that is accepted is right, even in one problem.
    seed: The seed of the bootstrap.

  Returns:
    A point for each score that occurs, at most 200, from the highest on.

  Raises:
    InputError: There is no problem, or one has fewer samples than attempts.
  """
  if not scores:
    raise errors.InputError("no problem to choose a threshold by; give some")
  fewest = min(map(len, scores))
  if not 1 <= attempts <= fewest:
    raise errors.InputError(
      f"`attempts={attempts}`: a problem has {fewest} samples; give 1 to as many"
    )
  draws = bootstrap.counts(len(scores), 2_000, seed)
  points = []
  level = 1 - confidence
  for threshold in _thresholds(scores):
    rows = [
      _of_problem(np.asarray(s), np.asarray(r, bool), threshold, attempts)
      for s, r in zip(scores, right, strict=True)
    ]
    accepted, correct, samples = np.asarray(rows).T
    points.append(
      Point(
        threshold,
        float(accepted.mean()),
        _ratio(correct.sum(), accepted.sum()),
        _lower(correct, accepted, draws, level),
        float(samples.mean()),
      )
    )
  return points


def choose(points: Sequence[Point], precision: float) -> Point | None:
  """Returns the point of the highest coverage with a wanted precision.

  Args:
    points: What `curve` returned.
    precision: The precision that the lower bound must reach, in (0, 1].

  Returns:
    The point; None if no threshold reaches it.
  """
  good = [p for p in points if p.lower is not None and p.lower >= precision]
  return max(good, key=lambda p: p.coverage, default=None)


def _thresholds(scores: Sequence[Sequence[float]]) -> list[float]:
  """Returns the scores that occur, from the highest on; quantiles of many."""
  unique = np.unique(np.concatenate([np.asarray(row) for row in scores]))
  unique = unique[unique >= 0]
  if len(unique) > _MOST_THRESHOLDS:
    places = np.linspace(0, len(unique) - 1, _MOST_THRESHOLDS).round()
    unique = unique[places.astype(int)]
  return unique[::-1].tolist()


def _of_problem(
  scores: Float[np.ndarray, " N"],
  right: np.ndarray,
  threshold: float,
  attempts: int,
) -> tuple[float, float, float]:
  """Returns P(a sample is accepted), P(a right one is), and E(samples).

  Of the k samples that reach the threshold each is the first one drawn equally
  often.
  """
  num = len(scores)
  good = scores >= threshold
  k = int(good.sum())
  # P(none of the first j samples is good), for j = 0 to attempts.
  none = [
    math.comb(num - k, j) / math.comb(num, j) for j in range(attempts + 1)
  ]
  accepted = 1 - none[-1]
  share = float(right[good].mean()) if k else 0.0
  return accepted, accepted * share, math.fsum(none[:-1])


def _ratio(top: float, bottom: float) -> float | None:
  return float(top / bottom) if bottom > 0 else None


def _lower(correct, accepted, draws, level: float) -> float | None:
  """Returns a quantile of the precision over resampled problems."""
  bottom = draws @ accepted
  if not (bottom > 0).any():
    return None
  top = (draws @ correct)[bottom > 0]
  resampled = float(np.quantile(top / bottom[bottom > 0], level))
  return min(resampled, _binomial_lower(correct.sum(), accepted.sum(), level))


def _binomial_lower(right: float, num: float, level: float) -> float:
  """Returns the share below which so many right ones have a chance of `level`.

  Args:
    right: The number of right ones, perhaps not a whole number.
    num: The number of all.
    level: The chance.
  """
  if right <= 0:
    return 0.0
  low, high = 0.0, 1.0
  for _ in range(30):
    middle = (low + high) / 2
    # P(at least `right` of `num`), if each is right with this share.
    chance = special.betainc(right, max(num - right, 0.0) + 1, middle)
    low, high = (middle, high) if chance < level else (low, middle)
  return low
