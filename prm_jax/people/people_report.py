"""`prm_jax.PeopleReport`: how well people judge, and what they prefer."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

from prm_jax import errors
from prm_jax.runtime import files
from prm_jax.runtime import outputs
from prm_jax.runtime import verbs

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class PeopleReportJob(verbs.Value):
  """Which folder of work is looked at, and what is written.

  Args:
    input: The folder that `prm-jax label people` wrote.
    output: The JSON file to write; it has people's names.
    preferences: Of the task pairs, the JSON Lines file of preferences to write:
      problem, chosen and rejected with their steps and ids, and the annotator.
  """

  input: verbs.Local
  output: verbs.Output | None = None
  preferences: verbs.Output | None = None


@dataclasses.dataclass(frozen=True)
class PeopleReport(verbs.Verb):
  """Says how well people judge: gold, pace, drift and agreement.

  Of alternatives: pace, ratings, steps of one's own and agreement.

  Args:
    seed: The seed of the intervals of agreement, which are bootstrapped.

  Example:
    prm-jax label people_report --input=labels --output=people.json
  """

  seed: verbs.Seed = 0

  def run(self, job: PeopleReportJob) -> None:
    """Looks at a folder of work, at any moment.

    Args:
      job: The files.

    Raises:
      InputError: It is no such folder, nobody has judged yet, or the task has
        no such output.
    """
    from prm_jax.evaluation import tables
    from prm_jax.people import alternatives_quality
    from prm_jax.people import people_folder
    from prm_jax.people import people_quality

    written = dict(output=job.output, preferences=job.preferences)
    outputs.check(written, [job.input])
    folder = people_folder.Folder(job.input)
    if folder.task == "pairs":
      self._prefer(folder, job)
      return
    if job.preferences is not None:
      raise errors.InputError(
        f"`preferences`: {job.input} is of the task {folder.task}; leave it out"
      )
    quality: Any = people_quality
    if folder.task == "alternatives":
      quality = alternatives_quality
    told = quality.report(folder, seed=self.seed)
    if not told["people"]:
      raise errors.InputError(f"{job.input}: nobody has ended an item yet")
    verbs.log_text(_logger, "\n".join(tables.lines(quality.table(told))))
    if job.output is not None:
      files.write_json(job.output, told)
      _logger.info(f"results: {job.output}")

  def _prefer(self, folder: Any, job: PeopleReportJob) -> None:
    """Writes preferences."""
    from prm_jax.people import people_folder

    if job.preferences is None or job.output is not None:
      raise errors.InputError(
        f"{job.input} is of the task pairs: give `preferences` alone"
      )
    found = [*people_folder.preferences(folder)]
    files.write_records(job.preferences, found)
    _logger.info(f"{job.preferences}: {len(found):,} preferences")
