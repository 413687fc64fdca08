"""`prm_jax.Verify`: answers only if a reward model is sure enough."""

from __future__ import annotations

import dataclasses
import functools
import logging

from prm_jax.runtime import files
from prm_jax.runtime import verbs
from prm_jax.search import rules
from prm_jax.search import search
from prm_jax.search import thresholds

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verify(search.Searching):
  """Draws solutions of each problem until one is accepted, or says that none is.

  A problem of which none is accepted has no answer: it is not verified.

  Args:
    threshold: The score, 0 to 1, from which a solution is accepted, or the file
      that `prm-jax verify choose` wrote.
    attempts: The most solutions of a problem (default: those of the file of
      --threshold, else 8).

  Example:
    prm-jax verify run --threshold=threshold.json --policy=runs/demo/policy \\
      --scorer=runs/demo/prm --input=problems.jsonl --output=verified.jsonl
  """

  threshold: float | files.PathLike
  attempts: verbs.Count | None = None

  without = rules.AcceptFirst.ignores

  @functools.cached_property
  def _threshold(self) -> thresholds.Threshold:
    return thresholds.read_threshold(str(self.threshold))

  @property
  def _rule(self) -> rules.Rule:
    chosen = self._threshold
    attempts = self.attempts or chosen.attempts or rules.AcceptFirst.attempts
    return rules.AcceptFirst(chosen.value, attempts)

  def _reads(self) -> list[files.PathLike]:
    return [*super()._reads(), str(self.threshold)]

  def _check_models(self, found: search.Models) -> None:
    thresholds.check_models(
      self._threshold,
      str(self.threshold),
      found.compute_dtype,
      found.depends_on,
    )

  def run(self, job: search.SearchJob) -> None:
    """Verifies what the journal of a file lacks, and writes the results.

    Args:
      job: The files.
    """
    found = self._run(job)
    accepted = [s for s in found if s.extra["candidates"]]
    _logger.info(
      f"verified: {len(accepted):,} of {len(found):,} problems; not verified:"
      f" {len(found) - len(accepted):,}, whose answer is null"
    )
    known = [s.outcome for s in accepted if s.outcome is not None]
    if known:
      _logger.info(
        f"right among those verified: {sum(known):,} of {len(known):,}"
        f" ({sum(known) / len(known):.1%})"
      )
