"""A long job over the solutions of a file: batch by batch, in a journal.

A job that was killed goes on after its last batch and writes the same bytes;
see jobs/journal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import logging
import pathlib
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.jobs import journal
from prm_jax.jobs import shards
from prm_jax.jobs import workers
from prm_jax.runtime import files
from prm_jax.runtime import outputs
from prm_jax.runtime import progress
from prm_jax.runtime import verbs

_logger = logging.getLogger(__name__)


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineJob(Job):
  """A job that a cluster may do.

  Args:
    engine: What does the work.
  """

  engine: workers.Engine = dataclasses.field(default_factory=workers.Engine)

  @contextlib.contextmanager
  def opened(
    self,
    verb: workers.Works,
    here: contextlib.AbstractContextManager[workers.Worker] | None = None,
  ) -> Iterator[workers.Worker]:
    """Yields what does the work of a verb.

    Models are loaded when something is first asked of it: so an input is read
    before. On a cluster workers begin at once, and load them meanwhile.

    Args:
      verb: The verb.
      here: What does it in this process; None is `verb.working()`.

    Raises:
      InputError: There is no such cluster, or its processes can't do it.
    """
    if not self.engine.is_ray:
      with workers.when_asked(here or verb.working()) as worker:
        yield worker
      return
    from prm_jax.jobs import ray_workers

    with ray_workers.opened(self.engine, verb) as worker:
      yield worker


@dataclasses.dataclass(frozen=True, kw_only=True)
class MappedJob(EngineJob):
  """A job that is saved only if a cluster does it; see mapped.

  Args:
    fresh: With --engine=ray, discard what an earlier run saved in
      OUTPUT.journal, instead of resuming.
  """

  @property
  def written(self) -> Any:
    """The output, a field of each such job, which stands after its input."""
    return self.output  # type: ignore[attr-defined]

  def _faults(self) -> Iterator[str]:
    if not self.engine.is_ray and self.fresh:
      yield "`fresh` is for `engine=ray`; without a cluster `output` is replaced"
    if self.engine.is_ray and self.written == verbs.STDOUT:
      yield "`output=-`: give a file, beside which a journal can be kept"

  def check(self, read: Sequence[files.PathLike]) -> None:
    """Refuses an output or a journal that would replace an input.

    Args:
      read: The inputs.
    """
    outputs.check(dict(output=self.written), read)
    if self.engine.is_ray:
      outputs.check(dict(output=journal.path_of(self.written)), read)


@dataclasses.dataclass(frozen=True)
class Done:
  """A job that is finished.

  Args:
    solutions: What it wrote: solutions, or what else the form says.
    work: What all its runs did, as counts.
    before: What the runs before this one did of it.
  """

  solutions: list[Any]
  work: Mapping[str, int]
  before: Mapping[str, int]


def run(
  job: Job,
  output: files.PathLike,
  solutions: Sequence[schema.Solution],
  depends_on: Mapping[str, Any],
  worker: workers.Worker,
  *,
  doing: str,
  unit: str = "solution",
  first: str,
  so_far: Callable[[Mapping[str, int]], str],
  are_new: bool = False,
  form: journal.Form = journal.SOLUTIONS,
  on_new: Callable[[], None] = lambda: None,
  finished: Callable[[list[Any]], list[Any]] = lambda results: results,
) -> Done:
  """Does what the journal of an output lacks, and writes the output.

  Args:
    job: How it is saved.
    output: The file of solutions to write.
    solutions: What is worked on.
    depends_on: What the results depend on besides the worker; see
      journal.opened.
    worker: Does the work.
    doing: What is done, in a word, for the progress bar.
    unit: What there is one of in `solutions`.
    first: What the bar says before the first batch is done.
    so_far: Returns what was done so far, in a few words.
    are_new: Whether the solutions that are written are new ones.
    form: How what is written stands in the journal and in the output.
    on_new: Is called if no earlier run did any of it.
    finished: Returns what is written of the results of all batches.

  Raises:
    InputError: Some solutions failed. The others are written.
  """
  depends_on = dict(depends_on) | dict(worker.depends_on())
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

      def tell(more: str, part: int = 0) -> None:
        told = f"{words} + {more}" if words and more else words or more
        update(done + part, told)

      ran = journal.run(
        *(log, solutions, worker.work(tell)),
        batch_size=job.batch,
        are_new=are_new,
        form=form,
        unit=unit,
        progress=after_batch,
      )
    failed = {s.id for x in ran.failed for s in x.batch}
    whole = [s for s in solutions if s.id not in failed]
    written = journal.finish(log, whole, output, finished, form)
    _set_aside(
      output, ran.failed, f"{len(failed):,} of {len(solutions):,}", unit
    )
  return Done(written, ran.work, log.work)


def mapped(
  job: MappedJob,
  solutions: Sequence[schema.Solution],
  depends_on: Mapping[str, Any],
  worker: workers.Worker,
  *,
  doing: str,
  unit: str = "solution",
  first: str,
  are_new: bool = False,
  form: journal.Form,
) -> Done:
  """Does the work, and writes the output: in this process without a journal.

  On a cluster it is `run`. Both work on the same batches.

  Args:
    job: What does it, and where it is written.
    solutions: What is worked on.
    depends_on: See run.
    worker: Does the work.
    doing: See run.
    unit: See run.
    first: See run.
    are_new: See run.
    form: See run.
  """
  if job.engine.is_ray:
    return run(
      *(job, job.written, solutions, depends_on, worker),
      doing=doing,
      unit=unit,
      first=first,
      so_far=lambda work: "",
      are_new=are_new,
      form=form,
    )
  results: list[Any] = []
  counts: Counter[str] = Counter()
  done = 0
  with progress.showing(doing, len(solutions), unit, first=first) as update:

    def tell(words: str, part: int = 0) -> None:
      if done + part < len(solutions):  # the end is said once
        update(done + part, words)

    work = worker.work(tell)
    for batch in work(journal.batches(solutions, job.batch)):
      assert isinstance(batch, journal.Finished)
      results += batch.results
      counts.update(batch.work)
      done += len(batch.batch)
      update(done)
  places = {s.id: i for i, s in enumerate(solutions)}
  results.sort(key=lambda x: places[form.id_of(x)])
  form.write(job.written, results)
  return Done(results, counts, {})


def _set_aside(
  output: files.PathLike,
  failed: Sequence[journal.Failed],
  count: str,
  unit: str,
) -> None:
  """Writes a file of what failed, and raises; deletes it if nothing failed."""
  output = pathlib.Path(output)
  path = output.with_name(f"{output.name}.set_aside.jsonl")
  if not failed:
    path.unlink(missing_ok=True)
    return
  records = (dict(id=s.id, reason=x.reason) for x in failed for s in x.batch)
  files.write_records(path, records)
  raise errors.InputError(
    f"{output}: {count} {unit}s failed and aren't in it; {path.name} has the"
    f" reason of each, the first one's is: {failed[0].reason}; mend that, and"
    " give the same command again, which does these alone"
  )
