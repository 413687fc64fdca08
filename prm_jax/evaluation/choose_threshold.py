"""`prm_jax.ChooseThreshold`: from which score on an answer is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import logging
from typing import Any, TYPE_CHECKING

from prm_jax import errors
from prm_jax import schema
from prm_jax.runtime import files
from prm_jax.runtime import outputs
from prm_jax.runtime import verbs

if TYPE_CHECKING:
  from prm_jax.evaluation import acceptance
  from prm_jax.search import thresholds

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ChooseThresholdJob(verbs.Value):
  """By which samples the threshold is chosen, and where it is written.

  Args:
    input: What `prm-jax search best_of_n` wrote for validation problems with
      answers; - is the standard input.
    output: The JSON file to write: the threshold, and the risk-coverage curve.
  """

  input: verbs.Input
  output: verbs.Output


@dataclasses.dataclass(frozen=True)
class ChooseThreshold(verbs.Verb):
  """Chooses a threshold for a wanted precision, on problems with answers.

  Args:
    precision: The share of right answers that is wanted among those accepted,
      above 0 and at most 1.
    attempts: The most solutions of a problem.
    confidence: The confidence, above 0 and less than 1, of the precision's lower
      bound, which must reach --precision.
    seed: The seed of the bootstrap.

  Example:
    prm-jax verify choose --precision=0.9 --input=samples.jsonl \\
      --output=threshold.json
  """

  precision: verbs.ShareAbove0
  attempts: int = 8
  confidence: verbs.ShareInside = 0.9
  seed: verbs.Seed = 0

  def __call__(
    self, samples: Sequence[schema.Solution]
  ) -> thresholds.Threshold:
    """Chooses the threshold with the highest coverage.

    Args:
      samples: What a best-of-n search of problems with answers returned.

    Returns:
      The threshold, which knows the types that its models computed in.

    Raises:
      InputError: No threshold reaches the precision, or the samples are too few
        or of another search.
    """
    return self._threshold(samples, self._curve(samples), None)

  def run(self, job: ChooseThresholdJob) -> None:
    """Chooses a threshold by the samples of a file.

    Args:
      job: The files.
    """
    from prm_jax.jobs import journal
    from prm_jax.runtime import environment
    from prm_jax.search import search_results

    outputs.check(dict(output=job.output), [job.input])
    samples = search_results.read(job.input)
    points = self._curve(samples)
    # The journal beside the samples knows more of the models than their types.
    claim = journal.claim_of(job.input, samples, "tree") or {}
    is_known = claim.keys() >= {"policies", "scorer", "aggregate"}
    found = self._threshold(samples, points, claim if is_known else None)
    if not is_known:
      _logger.info(
        f"{job.input}: no journal of these samples is beside it: only the types"
        " of models are compared by verify run"
      )
    chosen = next(p for p in points if p.threshold == found.value)
    record = dict(
      threshold=found.value,
      attempts=self.attempts,
      precision=self.precision,
      confidence=self.confidence,
      problems=len(samples),
      models=found.models,
      chosen=dataclasses.asdict(chosen),
      curve=[dataclasses.asdict(point) for point in points],
      run=dict(command=environment.command()),
    )
    files.write_json(job.output, record)
    _say(points, chosen)
    _logger.info(f"results: {job.output}")

  def _curve(
    self, samples: Sequence[schema.Solution]
  ) -> list[acceptance.Point]:
    """Returns what each threshold gives."""
    from prm_jax.evaluation import acceptance
    from prm_jax.search import independent_samples

    scores, right = independent_samples.independent(
      samples, "score", needs_answer=True
    )
    return acceptance.curve(
      *(scores, right, self.attempts),
      confidence=self.confidence,
      seed=self.seed,
    )

  def _threshold(
    self,
    samples: Sequence[schema.Solution],
    points: Sequence[acceptance.Point],
    claim: Mapping[str, Any] | None,
  ) -> thresholds.Threshold:
    """Returns the threshold of the highest coverage with the precision."""
    from prm_jax.evaluation import acceptance
    from prm_jax.search import thresholds

    chosen = acceptance.choose(points, self.precision)
    if chosen is None:
      best = max((p.lower for p in points if p.lower is not None), default=0.0)
      raise errors.InputError(
        f"`precision={self.precision:g}`: no threshold reaches it with a"
        f" confidence of {self.confidence:g} on {len(samples):,} problems (the"
        f" best lower bound is {best:.3f}); give a lower one, more problems, or"
        " a better scorer"
      )
    types = [s.extra["bill"]["compute_dtype"] for s in samples]
    if any(x != types[0] for x in types):
      raise errors.InputError(
        "the samples are of models that computed in different types; give those"
        " of one search"
      )
    models = thresholds.models_of(types[0], claim)
    return thresholds.Threshold(chosen.threshold, self.attempts, models)


def _say(points: Sequence[acceptance.Point], chosen: acceptance.Point) -> None:
  """Logs some of the points, and the one that was chosen."""
  _logger.info(
    f"{'threshold':>10}{'coverage':>10}{'precision':>11}{'lower':>8}{'samples':>9}"
  )
  step = max(1, len(points) // 12)
  for point in dict.fromkeys([*points[::step], points[-1], chosen]):
    mark = "  <- chosen" if point is chosen else ""
    lower = 0.0 if point.lower is None else point.lower
    _logger.info(
      f"{point.threshold:>10.4f}{point.coverage:>10.1%}"
      f"{point.precision or 0:>11.1%}{lower:>8.1%}{point.samples:>9.2f}{mark}"
    )
