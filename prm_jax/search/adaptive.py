"""Best-of-n whose n is chosen for each problem, by its chance of success."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
import math
from typing import Any, TYPE_CHECKING

from prm_jax import errors
from prm_jax.runtime import checks
from prm_jax.runtime import files
from prm_jax.runtime import verbs
from prm_jax.search.rules import ids
from prm_jax.search.rules import OF_STEPS
from prm_jax.search.rules import Rule
from prm_jax.search.tree import Expansion
from prm_jax.search.tree import Round
from prm_jax.search.tree import Tree

if TYPE_CHECKING:
  import numpy as np

# As in the authors' code, so that n stays finite.
_LEAST_CHANCE = 1e-4


@dataclasses.dataclass(frozen=True)
class Calibration:
  """The chance that a sample is right, from the scores of a few.

  The chance is the sigmoid of intercept + slope * (the mean log-odds of the
  problem's pilot samples, each limited to +-10).

  Args:
    intercept: The intercept, in nats.
    slope: The slope.
    quantile: Which quantile of the chance it is of problems with such scores.
  """

  intercept: float = 0.0
  slope: float = 1.0
  quantile: float = 0.1

  def chance(self, log_odds: Sequence[float]) -> float:
    """Returns the chance of success.

    Args:
      log_odds: Those of the pilot samples' scores, in nats.

    Returns:
      The chance, in [0, 1].
    """
    logit = self.intercept + self.slope * _feature(log_odds)
    return 1 / (1 + math.exp(-min(max(logit, -50.0), 50.0)))


def _feature(log_odds: Sequence[float]) -> float:
  """Returns what the chance is predicted from."""
  import numpy as np

  return float(np.clip(log_odds, -10, 10).mean())


def fit(
  pilots: Sequence[Sequence[float]],
  success: Sequence[float],
  *,
  quantile: float = 0.1,
  updates: int = 4000,
) -> Calibration:
  """Returns a calibration that was fitted by quantile regression.

  The pinball loss of the chance is minimised, as in arXiv 2506.09338, which
  fits a head of the model instead: the quantile of 0.1 is a chance that the
  true one is below in one problem of ten.

  Args:
    pilots: The log-odds of each problem's pilot samples, in nats.
    success: The share of right samples of each problem, from other samples.
    quantile: The quantile, in (0, 1).
    updates: The number of subgradient steps.

  Returns:
    The calibration; its slope isn't negative.

  Raises:
    InputError: There are fewer than 2 problems.
  """
  import numpy as np

  if len(pilots) < 2 or len(pilots) != len(success):
    raise errors.InputError(
      f"{len(pilots)} problems with pilots and {len(success)} shares of right"
      " samples; give 2 or more of each"
    )
  x = np.asarray([_feature(row) for row in pilots])
  y = np.asarray(success, np.float64)
  # Scaled, so that one step size suits all models.
  mean, spread = x.mean(), max(float(x.std()), 1e-6)
  features = np.stack([np.ones_like(x), (x - mean) / spread])
  weights = np.zeros(2)
  best, best_loss = weights, math.inf
  for i in range(updates):
    chance = 1 / (1 + np.exp(-np.clip(weights @ features, -50, 50)))
    loss = _pinball(y - chance, quantile)
    if loss < best_loss:
      best, best_loss = weights, loss
    side = np.where(y > chance, -quantile, 1 - quantile)
    gradient = features @ (side * chance * (1 - chance)) / len(y)
    weights = weights - 4 / math.sqrt(1 + i) * gradient
    weights[1] = max(weights[1], 0.0)
  slope = float(best[1]) / spread
  return Calibration(float(best[0]) - slope * float(mean), slope, quantile)


def _pinball(error: np.ndarray, quantile: float) -> float:
  import numpy as np

  return float(np.maximum(quantile * error, (quantile - 1) * error).mean())


def read(path: files.PathLike) -> Calibration:
  """Reads what `prm-jax search calibrate` wrote.

  Args:
    path: The file.

  Returns:
    The calibration.

  Raises:
    InputError: It isn't such a file.
  """
  values = files.read_json(path).get("calibration")
  names = {field.name for field in dataclasses.fields(Calibration)}
  if (
    not isinstance(values, Mapping)
    or set(values) != names
    or not all(checks.is_a(x, float) for x in values.values())
  ):
    raise errors.InputError(
      f"{path}: holds no calibration; give a file that `prm-jax search"
      " calibrate` wrote"
    )
  return Calibration(**values)


@dataclasses.dataclass(frozen=True)
class AdaptiveBestOfN(Rule):
  """Best-of-n with as many samples as a problem needs, by its calibrated chance.

  After the pilot samples the chance p of success of one is estimated, and the
  problem gets ceil(ln(1 - confidence) / ln(1 - p)) in all: so many that with
  this confidence one of them is right (arXiv 2506.09338).

  Args:
    pilot: The number of samples from which the chance is estimated.
    most: The most samples of a problem.
    confidence: The wanted chance that one of the samples is right, above 0 and
      less than 1.
    calibration: The file that `prm-jax search calibrate` wrote; in Python also
      what it fitted.

  Raises:
    InputError: A number is out of range.

  Example:
    prm-jax search adaptive_best_of_n --calibration=chance.json \\
      --policy=runs/demo/policy --scorer=runs/demo/prm \\
      --input=problems.jsonl --output=found.jsonl
  """

  name = "adaptive_best_of_n"
  ignores = OF_STEPS

  pilot: verbs.Count = 4
  most: verbs.Count = 64
  confidence: verbs.ShareInside = 0.99
  calibration: Calibration | files.PathLike = dataclasses.field(
    default=Calibration(), metadata=dict(is_required=True)
  )

  def _faults(self) -> Iterator[str]:
    if self.pilot > self.most:
      yield f"`pilot={self.pilot}`: more than `most={self.most}`; give fewer"

  @functools.cached_property
  def fitted(self) -> Calibration:
    """The calibration, read if a file holds it."""
    if isinstance(self.calibration, Calibration):
      return self.calibration
    return read(self.calibration)

  @property
  def reads(self) -> tuple[files.PathLike, ...]:
    """The file, if one holds the calibration."""
    if isinstance(self.calibration, Calibration):
      return ()
    return (self.calibration,)

  def record(self) -> dict[str, Any]:
    """Returns its options, with what the file holds; see Rule.record."""
    return super().record() | dict(calibration=dataclasses.asdict(self.fitted))

  def num_samples(self, log_odds: Sequence[float]) -> int:
    """Returns how many samples a problem gets in all.

    Args:
      log_odds: Those of the pilot samples' scores, in nats.

    Returns:
      The number, from pilot to most.
    """
    chance = self.fitted.chance(log_odds)
    chance = min(max(chance, _LEAST_CHANCE), 1 - _LEAST_CHANCE)
    needed = math.ceil(math.log1p(-self.confidence) / math.log1p(-chance))
    return min(max(needed, self.pilot), self.most)

  def next(self, tree: Tree) -> Round:
    """Returns what to continue; see Rule.next."""
    if not tree.rounds:
      return Round((Expansion(0, self.pilot, whole=True),))
    drawn = tree.nodes[1:]
    if len(tree.rounds) == 1:
      num = self.num_samples([node.log_odds for node in drawn])
      if num > len(drawn):
        more = Expansion(0, num - len(drawn), whole=True)
        return Round((more,), candidates=ids(drawn))
    return Round(candidates=ids(drawn))
