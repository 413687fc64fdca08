"""A long job over the solutions of a file: batch by batch, in a journal.

A job that was killed goes on after its last batch and writes the same bytes;
see jobs/journal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import logging
from typing import Any

from prm_jax import schema
from prm_jax.jobs import journal
from prm_jax.jobs import shards
from prm_jax.runtime import files
from prm_jax.runtime import progress
from prm_jax.runtime import verbs

_logger = logging.getLogger(__name__)

# Shows in words what the batch at hand has done so far.
Tell = Callable[[str], None]
# Does the work of a batch; see journal.Label.
Batch = Callable[
  [Sequence[schema.Solution], Tell],
  tuple[Sequence[schema.Solution], Mapping[str, int]],
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job(shards.Sharded):
  """What of the work this process does, and how it is saved.

  Args:
    batch: The most solutions that are worked on together and saved together;
      those of one problem stay together, however many they are.
    fresh: Discard what an earlier run saved in OUTPUT.journal and replace
      --output, instead of resuming.
  """

  batch: verbs.Count = 64
  fresh: bool = False


@dataclasses.dataclass(frozen=True)
class Done:
  """A job that is finished.

  Args:
    solutions: What it wrote.
    work: What all its runs did, as counts.
    before: What the runs before this one did of it.
  """

  solutions: list[schema.Solution]
  work: Mapping[str, int]
  before: Mapping[str, int]


def run(
  job: Job,
  output: files.PathLike,
  solutions: Sequence[schema.Solution],
  depends_on: Mapping[str, Any],
  work_on: Batch,
  *,
  doing: str,
  unit: str = "solution",
  first: str,
  so_far: Callable[[Mapping[str, int]], str],
  are_new: bool = False,
  on_new: Callable[[], None] = lambda: None,
  finished: Callable[
    [list[schema.Solution]], list[schema.Solution]
  ] = lambda solutions: solutions,
) -> Done:
  """Does what the journal of an output lacks, and writes the output.

  Args:
    job: How it is saved.
    output: The file of solutions to write.
    solutions: What is worked on.
    depends_on: See journal.opened.
    work_on: Does the work of a batch.
    doing: What is done, in a word, for the progress bar.
    unit: What there is one of in `solutions`.
    first: What the bar says before the first batch is done.
    so_far: Returns what was done so far, in a few words.
    are_new: Whether the solutions that are written are new ones.
    on_new: Is called if no earlier run did any of it.
    finished: Returns what is written of the solutions of all batches.
  """
  with journal.opened(output, solutions, depends_on, fresh=job.fresh) as log:
    if log.ids:
      _logger.info(f"{log.path}: resumes after {len(log.ids):,} {unit}s")
    else:
      on_new()
    left = len(solutions) - len(log.ids)
    done, words = 0, so_far(log.work)
    with progress.showing(doing, left, unit, first=first) as update:

      def after_batch(num: int, work: Mapping[str, int]) -> None:
        nonlocal done, words
        done, words = num, so_far(work)
        update(done, words)

      def tell(more: str) -> None:
        update(done, f"{words} + {more}" if words else more)

      work = journal.run(
        *(log, solutions),
        lambda batch: work_on(batch, tell),
        batch_size=job.batch,
        are_new=are_new,
        progress=after_batch,
      )
    written = journal.finish(log, solutions, output, finished)
  return Done(written, work, log.work)
