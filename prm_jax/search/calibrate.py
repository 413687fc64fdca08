"""`prm_jax.Calibrate`: the chance of success that adaptive_best_of_n needs."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import logging
from typing import TYPE_CHECKING

from prm_jax import errors
from prm_jax import schema
from prm_jax.runtime import files
from prm_jax.runtime import outputs
from prm_jax.runtime import verbs

if TYPE_CHECKING:
  from prm_jax.search import adaptive

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class CalibrateJob(verbs.Value):
  """Of which samples the chance is told, and where it is written.

  Args:
    input: What `prm-jax search best_of_n` wrote for problems with answers, which
      aren't those to be searched; - is the standard input.
    output: The JSON file to write.
  """

  input: verbs.Input
  output: verbs.Output


@dataclasses.dataclass(frozen=True)
class Calibrate(verbs.Verb):
  """Fits the chance of success that adaptive_best_of_n needs.

  Args:
    pilot: The number of samples of each problem from which the chance is
      estimated; the others say how often it is right.
    quantile: The quantile of the chance to fit, above 0 and less than 1; a lower
      one is more careful.

  Example:
    prm-jax search calibrate --input=samples.jsonl --output=chance.json
  """

  pilot: int = 4
  quantile: verbs.ShareInside = 0.1

  def __call__(
    self, samples: Sequence[schema.Solution]
  ) -> adaptive.Calibration:
    """Fits the chance of success.

    Args:
      samples: What a best-of-n search of problems with answers returned.

    Returns:
      The chance, as a function of a problem's pilot samples.

    Raises:
      InputError: A problem has too few samples, or they are of another search.
    """
    from prm_jax.search import adaptive
    from prm_jax.search import independent_samples

    scores, right = independent_samples.independent(samples, "log_odds")
    fewest = min(map(len, scores), default=0)
    if not 1 <= self.pilot < fewest:
      raise errors.InputError(
        f"`pilot={self.pilot}`: a problem has {fewest} samples; give 1 or more,"
        " and fewer than that"
      )
    rest = [row[self.pilot :] for row in right]
    return adaptive.fit(
      [row[: self.pilot] for row in scores],
      [sum(row) / len(row) for row in rest],
      quantile=self.quantile,
    )

  def run(self, job: CalibrateJob) -> None:
    """Fits the chance of success to the samples of a file.

    Args:
      job: The files.
    """
    from prm_jax.runtime import environment
    from prm_jax.search import search_results

    outputs.check(dict(output=job.output), [job.input])
    samples = search_results.read(job.input)
    fitted = self(samples)
    record = dict(
      calibration=dataclasses.asdict(fitted),
      problems=len(samples),
      pilot=self.pilot,
      run=dict(command=environment.command()),
    )
    files.write_json(job.output, record)
    _logger.info(
      f"{job.output}: chance of success = sigmoid({fitted.intercept:.3f} +"
      f" {fitted.slope:.3f} * mean log-odds), the {fitted.quantile:g} quantile"
      f" of {len(samples):,} problems"
    )
