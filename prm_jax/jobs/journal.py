"""A long labelling run or search, on disk: saved, resumed, each batch once.

A labeller is given batches of whole problems. Its labels of a batch are one
line of the journal, OUTPUT.journal, which is on disk before the next batch
begins. At the end the output is written from the journal alone, in the order of
the input, and put in place by one rename. New solutions of a problem (OmegaPRM)
come at the place of its first solution. So a run that is killed and started
again writes the same bytes as one that wasn't.

Each line ends in its digest. A damaged line stays in the file and isn't used:
its batch is labelled again, and no other. Of equal lines one is used.

The lock is that of runtime/locks.py, on the journal itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import hashlib
import logging
import os
import pathlib
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.jobs import journal_head
from prm_jax.records import jsonl
from prm_jax.runtime import checked_lines
from prm_jax.runtime import checks
from prm_jax.runtime import files
from prm_jax.runtime import inputs
from prm_jax.runtime import locks
from prm_jax.runtime import preemption

_logger = logging.getLogger(__name__)

# Solutions of whole problems -> the same in the same order, labelled, or new
# ones of these problems, or a record of each; and the work, as counts.
Label = Callable[
  [Sequence[schema.Solution]], tuple[Sequence[Any], Mapping[str, int]]
]

_BATCH = ("ids", "work", "solutions")


@dataclasses.dataclass(frozen=True)
class Finished:
  """A batch whose work is done.

  Args:
    batch: What was worked on.
    results: What came of it.
    work: What it took, as counts.
  """

  batch: Sequence[schema.Solution]
  results: Sequence[Any]
  work: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class Failed:
  """Solutions on which no work can be done.

  Args:
    batch: The solutions: one, or all of a problem.
    reason: Why, in a line.
  """

  batch: Sequence[schema.Solution]
  reason: str


# Batches, each taken when there is room for it -> each as soon as it is done, in
# any order; or, in its place, its parts.
Work = Callable[[Iterator[list[schema.Solution]]], Iterator[Finished | Failed]]


def in_turn(label: Label) -> Work:
  """Returns the work that does one batch after the other, in this process.

  Args:
    label: Does the work of a batch.
  """

  def work(
    batches: Iterator[list[schema.Solution]],
  ) -> Iterator[Finished | Failed]:
    for batch in batches:
      yield Finished(batch, *label(batch))

  return work


@dataclasses.dataclass(frozen=True)
class Form:
  """How results stand in a journal and in the output.

  Args:
    to_record: Returns a result as a record.
    from_record: Returns a record's result; it is given the record's place, too.
    id_of: Returns the id of a result.
    problem_of: Returns the text of its problem; None if the id is a solution's
      of the input.
    write: Writes results into a file.
  """

  to_record: Callable[[Any], dict[str, Any]]
  from_record: Callable[[dict[str, Any], str], Any]
  id_of: Callable[[Any], str]
  problem_of: Callable[[Any], str | None]
  write: Callable[[files.PathLike, Sequence[Any]], Any]


SOLUTIONS = Form(
  jsonl.record_from_solution,
  jsonl.solution_from_record,
  lambda s: s.id,
  lambda s: s.problem,
  jsonl.write_solutions,
)
RECORDS = Form(
  dict,
  lambda record, where: record,
  lambda record: record["id"],
  lambda record: None,
  files.write_records,
)


@dataclasses.dataclass(frozen=True)
class Journal:
  """The labels so far, in a file that this process has locked.

  Args:
    path: The file.
    fd: Its descriptor.
    ids: The solutions that were in it when it was opened.
    work: The counts of their work.
    torn_bytes: The length of a last line that a killed process left unfinished;
      it is cut off, and its batch is labelled again.
    damaged: The numbers of damaged lines; their batches are labelled again.
    fresh: Whether it was emptied when it was opened.
  """

  path: pathlib.Path
  fd: int
  ids: frozenset[str]
  work: Mapping[str, int]
  torn_bytes: int
  damaged: tuple[int, ...] = ()
  fresh: bool = False

  @property
  def again(self) -> str:
    """Returns how to go on later, in words."""
    without = ", without `fresh=True`," if self.fresh else ""
    return f"give the same command again{without}"


def path_of(output: files.PathLike) -> pathlib.Path:
  """Returns the journal's path, in the folder of the output."""
  output = pathlib.Path(output)
  return output.with_name(f"{output.name}.journal")


def check(
  output: files.PathLike,
  solutions: Sequence[schema.Solution],
  depends_on: Mapping[str, Any],
) -> None:
  """Refuses an output without a journal, or whose journal isn't this run's.

  So a long start, such as the loading of a model, isn't in vain.

  Args:
    output: See opened.
    solutions: See opened.
    depends_on: What is known of it already; other fields aren't compared. None
      is a field that must be missing.

  Raises:
    InputError: See opened.
  """
  path = path_of(output)
  _check_has_journal(output)
  # What is no file is refused when it is opened.
  if not path.is_file():
    return
  known = dict(depends_on) | journal_head.fingerprint(solutions)
  with _locked(path) as fd:
    journal_head.check(path, _lines(path, fd), known, partly=True)


def claim_of(
  output: files.PathLike, solutions: Sequence[schema.Solution], field: str
) -> dict[str, Any] | None:
  """Returns what an output's solutions depend on; None if that isn't known.

  It is if a journal of them is there: another file may be in the output's place.

  Args:
    output: See opened.
    solutions: What the output holds.
    field: A field of theirs that is the same in the journal.
  """
  path = path_of(output)
  if not path.is_file():
    return None
  with open(path, "rb") as f:
    claim = journal_head.read(_lines(path, f.fileno()))
    kept = {
      record.get("id"): record.get(field)
      for _, _, batch, _ in _batches_of(path, f.fileno())
      for record in (batch or {}).get("solutions", ())
    }
  same = all(kept.get(s.id) == s.extra.get(field) for s in solutions)
  return claim if same else None


def ids_of(output: files.PathLike) -> frozenset[str]:
  """Returns the ids of what the journal of an output holds; it isn't locked.

  Args:
    output: See opened; without a journal there are none.
  """
  path = path_of(output)
  if not path.is_file():
    return frozenset()
  with open(path, "rb") as f:
    batches = [x for _, _, x, _ in _batches_of(path, f.fileno())]
  return frozenset(id_ for x in batches if x for id_ in x["ids"])


@contextlib.contextmanager
def opened(
  output: files.PathLike,
  solutions: Sequence[schema.Solution],
  depends_on: Mapping[str, Any],
  *,
  fresh: bool = False,
) -> Iterator[Journal]:
  """Yields the journal of an output: a new one, or the one to resume.

  Args:
    output: Where the labelled solutions will be written.
    solutions: The solutions to label, each with an id of its own.
    depends_on: What the labels depend on, as plain data: kind, options, seed,
      the policy's fingerprint. The solutions themselves are added to it.
    fresh: Whether an existing journal is emptied, whatever it depends on.

  Raises:
    InputError: Another process uses it; its first line is damaged, it isn't a
      journal, or depends on something else; or the output exists without a
      journal.
  """
  path = path_of(output)
  depends_on = dict(depends_on) | journal_head.fingerprint(solutions)
  if not fresh:
    _check_has_journal(output)
  known = frozenset(s.id for s in solutions)
  if len(known) < len(solutions):
    twice = Counter(s.id for s in solutions).most_common(1)[0][0]
    raise errors.InputError(
      f"{output}: two solutions have the id {twice!r}; give each its own"
    )
  with _locked(path) as fd:
    journal_head.check(path, _lines(path, fd), depends_on, fresh=fresh)
    if fresh:
      os.ftruncate(fd, 0)
    ids, work, end, damaged = _scan(path, fd, known)
    torn_bytes = os.fstat(fd).st_size - end
    os.ftruncate(fd, end)
    if torn_bytes:
      _logger.warning(
        f"{path}: cut off an unfinished last line of {torn_bytes:,} bytes; what"
        " it held is done again"
      )
    if damaged:
      _logger.warning(
        f"{path}:{checked_lines.named(damaged)}: WARNING: damaged and not used;"
        " what these lines held is done again"
      )
    if end == 0:
      _write(path, fd, journal_head.text_of(depends_on))
      _sync_folder(path.parent)
    yield Journal(path, fd, ids, work, torn_bytes, damaged, fresh)


def _check_has_journal(output: files.PathLike) -> None:
  if os.path.exists(output) and not path_of(output).exists():
    raise errors.InputError(
      f"{output}: is there already, without a journal to resume; give"
      " another `output`, or `fresh=True` to replace it"
    )


def batches(
  solutions: Sequence[schema.Solution], batch_size: int
) -> Iterator[list[schema.Solution]]:
  """Yields all solutions, with those of a problem in one batch.

  The problems come in the order of their first solutions. A batch has at most
  batch_size solutions, except for a problem that has more.
  """
  problems: dict[str, list[schema.Solution]] = {}
  for s in solutions:
    problems.setdefault(s.problem, []).append(s)
  batch: list[schema.Solution] = []
  for group in problems.values():
    if batch and len(batch) + len(group) > batch_size:
      yield batch
      batch = []
    batch += group
  if batch:
    yield batch


@dataclasses.dataclass(frozen=True)
class Ran:
  """What a run did.

  Args:
    work: The counts of the work, of earlier runs too.
    failed: What isn't done.
  """

  work: Mapping[str, int]
  failed: Sequence[Failed]


def run(
  journal: Journal,
  solutions: Sequence[schema.Solution],
  work: Work,
  *,
  batch_size: int,
  are_new: bool = False,
  form: Form = SOLUTIONS,
  unit: str = "solution",
  progress: Callable[[int, Mapping[str, int]], None] = lambda done, work: None,
) -> Ran:
  """Does what the journal lacks.

  Args:
    journal: The journal.
    solutions: The solutions to label.
    work: Does the work of batches.
    batch_size: The number of solutions of a batch.
    are_new: Whether new solutions of the problems come of it, instead of those
      that were given.
    form: How results stand in the journal.
    unit: What `solutions` are, for messages.
    progress: Called after each batch with the number of solutions that this
      process has worked on, and the work of the whole run so far.

  Raises:
    DiskFullError: The disk is full. The journal keeps what it has.
    PreemptedError: SIGTERM came. The journal keeps what it has.
  """
  done, counts = 0, Counter(journal.work)
  failed: list[Failed] = []

  def left() -> Iterator[list[schema.Solution]]:
    for whole in batches(solutions, batch_size):
      # Those of an uninterrupted run, whatever the journal lacks: what a model
      # computes together changes the last digits.
      if batch := [s for s in whole if s.id not in journal.ids]:
        preemption.check()
        yield batch

  with preemption.noticed():
    try:
      for part in work(left()):
        done += len(part.batch)
        if isinstance(part, Failed):
          failed.append(part)
        else:
          _check_results(part, are_new, form)
          value = dict(
            ids=[s.id for s in part.batch],
            work=dict(part.work),
            solutions=list(map(form.to_record, part.results)),
          )
          text = files.dump_json(value, str(journal.path))
          _write(journal.path, journal.fd, text)
          counts.update(part.work)
        progress(done, counts)
    except preemption.PreemptedError:
      kept = len(journal.ids) + done - sum(len(x.batch) for x in failed)
      _logger.warning(
        f"{journal.path}: SIGTERM: keeps {kept:,} of {len(solutions):,}"
        f" {unit}s, those of finished batches; {journal.again} to do the rest"
        if kept
        else f"{journal.path}: SIGTERM: no batch was finished yet;"
        f" {journal.again} to do all {len(solutions):,} {unit}s"
      )
      raise
  return Ran(dict(counts), failed)


def finish(
  journal: Journal,
  solutions: Sequence[schema.Solution],
  output: files.PathLike,
  finished: Callable[[list[Any]], list[Any]] = lambda results: results,
  form: Form = SOLUTIONS,
) -> list[Any]:
  """Writes the output from the journal alone; returns what it holds.

  Args:
    journal: The journal.
    solutions: The solutions of the input, without those that failed.
    output: The file to write.
    finished: Returns what is written of what the journal holds.
    form: How results stand in the journal and in the output.

  Raises:
    InputError: the disk is full, or a batch is no longer in the journal, which
      stays as it is.
  """
  results, ids = [], set[str]()
  for number, _, batch, is_again in _batches_of(journal.path, journal.fd):
    if batch is not None and not is_again:
      ids.update(batch["ids"])
      results += [
        form.from_record(record, f"{journal.path}:{number}")
        for record in batch["solutions"]
      ]
  lost = {s.id for s in solutions} - ids
  if lost:
    raise errors.InputError(
      f"{journal.path}: was damaged during the run and lacks {len(lost):,}"
      f" solutions; {journal.again} to do these"
    )
  places = {s.id: i for i, s in enumerate(solutions)}
  first: dict[str | None, int] = {}
  for i, s in enumerate(solutions):
    first.setdefault(s.problem, i)
  for x in results:
    if form.id_of(x) not in places and form.problem_of(x) not in first:
      raise errors.InputError(
        f"{journal.path}: solution {form.id_of(x)!r} is of a problem that isn't"
        " in the input; give `fresh=True` to start over"
      )
  # All solutions of a problem are in one line, in the labeller's order.
  results.sort(
    key=lambda x: places.get(form.id_of(x), first.get(form.problem_of(x), 0))
  )
  results = finished(results)
  try:
    form.write(output, results)
  except errors.InputError as e:
    raise type(e)(
      f"{e}; {journal.path.name} holds all of them: fix that, and"
      f" {journal.again.rstrip(',')}"
    ) from None
  return results


def _check_results(part: Finished, are_new: bool, form: Form) -> None:
  given, found = part.batch, part.results
  if are_new:
    problems = {form.problem_of(x) for x in found}
    if problems - {s.problem for s in given}:
      raise ValueError("a labeller returned solutions of other problems")
  elif [form.id_of(x) for x in found] != [s.id for s in given]:
    raise ValueError("a labeller returned other solutions than it was given")


# --- The file ---------------------------------------------------------------


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[int]:
  """Yields the descriptor of a journal that no other process writes into."""
  with locks.opened(path, path, "give another `output`") as fd:
    if not locks.taken(fd):
      raise errors.BusyError(
        f"{path}: another process is writing into it; wait for that one, or"
        " give another `output`"
      )
    yield fd


def _write(path: pathlib.Path, fd: int, text: str) -> None:
  """Appends an object's line, on disk when this returns; all or nothing."""
  try:
    checked_lines.append(fd, text, sync=True)
  except OSError as e:
    fix = "what it holds is kept: make room, and give the same command again"
    raise files.unwritable(path, e, fix) from None


def _sync_folder(folder: pathlib.Path) -> None:
  """Puts the name of a new file on disk."""
  fd = os.open(folder, os.O_RDONLY)
  try:
    os.fsync(fd)
  finally:
    os.close(fd)


def _lines(path: pathlib.Path, fd: int) -> Iterator[bytes]:
  with open(fd, "rb", closefd=False) as f:
    f.seek(0)
    yield from inputs.lines(f, path)


def _batches_of(
  path: pathlib.Path, fd: int
) -> Iterator[tuple[int, int, dict[str, Any] | None, bool]]:
  """Yields line number, where the line ends, batch, whether it came before.

  The batch of a damaged line is None. A torn last line is left out: each is on
  disk before the next one begins.
  """
  end = 0
  seen: set[bytes] = set()
  for line in checked_lines.scan(_lines(path, fd)):
    if line.is_torn:
      return
    end += len(line.content)
    if line.number > 1:
      batch = line.record
      whole = batch is not None and _is_batch(batch)
      content = hashlib.sha256(line.content).digest()
      yield line.number, end, batch if whole else None, content in seen
      seen.add(content)


def _is_batch(record: Mapping[str, Any]) -> bool:
  """Returns whether a record has what `run` writes, of these types."""
  ids, work, solutions = (record.get(name) for name in _BATCH)
  return (
    isinstance(ids, list)
    and isinstance(work, dict)
    and isinstance(solutions, list)
    and all(isinstance(x, str) for x in ids)
    and all(checks.is_a(x, int) for x in work.values())
    and all(isinstance(x, dict) for x in solutions)
  )


def _scan(
  path: pathlib.Path, fd: int, known: frozenset[str]
) -> tuple[frozenset[str], dict[str, int], int, tuple[int, ...]]:
  """Returns ids, work, the end of the last line, and the damaged lines."""
  head = next(checked_lines.scan(_lines(path, fd)), None)
  end = len(head.content) if head and not head.is_torn else 0
  ids: set[str] = set()
  work: Counter[str] = Counter()
  damaged, again = [], []
  for number, batch_end, batch, is_again in _batches_of(path, fd):
    end = batch_end
    if batch is None:
      damaged.append(number)
      continue
    if is_again:
      again.append(number)
      continue
    work.update(batch["work"])
    for id_ in batch["ids"]:
      if id_ in ids or id_ not in known:
        raise errors.InputError(
          f"{path}:{number}: solution {id_!r} is there twice or isn't of the"
          " input; take this line out, or give `fresh=True` to start over"
        )
      ids.add(id_)
  if again:
    _logger.warning(
      f"{path}:{checked_lines.named(again)}: WARNING: there twice, word for"
      " word, and used once"
    )
  return frozenset(ids), dict(work), end, tuple(damaged)


# --- The head ---------------------------------------------------------------
