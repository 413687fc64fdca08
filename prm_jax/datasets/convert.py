"""Converts one published format into another, and splits a data set in two.

Solutions are converted one by one. A set needn't fit into memory, except for
the writers of stepwise, which needs all labels first, and of processbench.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
import contextlib
import dataclasses
import itertools
import pathlib
import shutil
import tempfile
from types import ModuleType
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.datasets import annotators
from prm_jax.datasets import decontamination
from prm_jax.datasets.formats import prmbench
from prm_jax.labelling import rubrics
from prm_jax.records import fields
from prm_jax.records import formats
from prm_jax.records import identity
from prm_jax.records import sources
from prm_jax.runtime import files
from prm_jax.runtime import outputs
from prm_jax.runtime import progress
from prm_jax.text import encoding
from prm_jax.text import segmenters
from prm_jax.text import turn_cuts

_FIELDS = (
  *("id", "problem", "steps", "labels", "ratings"),
  *("answer", "outcome", "source", "messages", "tools"),
)
# What a record of a message says beyond the message.
_RECORDS = "fields_of_messages"
_WITH_CONTROLS = "prmbench"
_UNGRADED = "labels of solutions that no judge graded by a rubric"
# These hold people's ratings; the others labels.
_WITH_RATINGS = ("prm800k", "label_studio", *formats.OF_TRAJECTORIES)


@dataclasses.dataclass(frozen=True)
class Converted:
  """The counts of a conversion.

  Args:
    solutions: The number of solutions written.
    rows: The number of rows that they became.
    left_out: The number of solutions that the source's reader or the target's
      writer couldn't hold, by reason.
    changed: The number of solutions that read back with another value, by
      field; None if a solution becomes several, which can't be matched.
  """

  solutions: int
  rows: int
  left_out: Counter[str]
  changed: Counter[str] | None


def writer(name: str) -> ModuleType:
  """Returns the module that writes a format.

  Args:
    name: The format's name.

  Raises:
    InputError: There is no such format.
  """
  if name not in formats.FORMATS:
    raise errors.InputError(
      f"`to={name}`: expected one of {', '.join(sorted(formats.FORMATS))}"
    )
  return formats.FORMATS[name]


def check(solution: schema.Solution, to: str) -> None:
  """Refuses a solution that a format can't hold.

  Args:
    solution: The solution.
    to: The format.

  Raises:
    InputError: The format's own check refuses it, or it is a trajectory, whose
      context the format has no place for.
  """
  _check_context(solution, to)
  writer(to).check(solution)


def _check_context(solution: schema.Solution, to: str) -> None:
  if solution.messages is not None and to not in formats.OF_TRAJECTORIES:
    raise errors.InputError(
      f"solution {solution.id!r}: a trajectory, and {to} has no place for the"
      " messages between its steps; write one of"
      f" {', '.join(formats.OF_TRAJECTORIES)}"
    )


def convert(
  source: tuple[str, files.PathLike],
  to: str,
  output: files.PathLike,
  *,
  policy: encoding.LabelPolicy | None = None,
  fill: bool = False,
  skip: bool = False,
  controls: bool = False,
  segmenter: segmenters.Segmenter | None = None,
  merge: annotators.Merge = "each",
  principle: str | None = None,
) -> Converted:
  """Writes the solutions of (format, path) in another format; reads them back.

  Args:
    source: The format and the path to read.
    to: The format to write.
    output: The file to write.
    policy: Turns ratings into labels, and labels into targets; None keeps them.
    fill: Whether steps after the last label are cut off and earlier steps
      without a label count as right; see `filled`.
    skip: Whether solutions that the format can't hold are counted and left out,
      instead of refused.
    controls: Whether PRMBench's controls follow its rows; see
      prmbench.with_controls.
    segmenter: Cuts the turns of trajectories, which must be unlabelled; None
      leaves them whole.
    merge: What becomes of several annotators' labels; see annotators.merged.
    principle: The principle of a judge's rubric whose labels replace those
      there are; a solution without them has none.

  Raises:
    InputError: A row is bad, the format can't hold a solution, or the source
      has no controls.
  """
  form = writer(to)
  if controls and (source[0], to) != (_WITH_CONTROLS, "jsonl"):
    raise errors.InputError(
      f"`controls`: they are of format={_WITH_CONTROLS}, and only jsonl holds"
      f" the class of each solution; found format={source[0]}, to={to}"
    )
  outputs.check(dict(output=output), sources.files_of(*source))
  counts: Counter[str] = Counter()

  def ready(left_out: Counter[str]) -> Iterator[schema.Solution]:
    solutions: Iterable[schema.Solution] = sources.stream(*source, left_out)
    if controls:
      solutions = prmbench.with_controls(solutions)
    return prepared(
      *(solutions, to, left_out),
      policy=policy,
      fill=fill,
      skip=skip,
      segmenter=segmenter,
      merge=merge,
      principle=principle,
    )

  def counted(left_out: Counter[str]) -> Iterator[schema.Solution]:
    for solution in progress.through("write", ready(left_out)):
      counts["solutions"] += 1
      yield solution

  left_out: Counter[str] = Counter()
  with _readable(output) as path:
    rows = form.write(path, counted(left_out))
    try:
      read = sources.stream(to, path, Counter())
      changed = _changed(ready(Counter()), read)
    except errors.InputError:
      path.unlink()
      raise
  return Converted(counts["solutions"], rows, left_out, changed)


def prepared(
  solutions: Iterable[schema.Solution],
  to: str,
  left_out: Counter[str],
  *,
  policy: encoding.LabelPolicy | None = None,
  fill: bool = False,
  skip: bool = False,
  segmenter: segmenters.Segmenter | None = None,
  merge: annotators.Merge = "each",
  principle: str | None = None,
) -> Iterator[schema.Solution]:
  """Yields solutions as a format gets them.

  Args:
    solutions: The solutions.
    to: The format.
    left_out: Counts those that are left out, by reason.
    policy: See convert.
    fill: See convert.
    skip: See convert. Without it only what is no matter of the writer is
      refused.
    segmenter: See convert.
    merge: See convert.
    principle: See convert.

  Raises:
    InputError: A solution has ratings, the format labels, and there is no
      policy; or it is a trajectory, whose context the format can't hold; or
      annotators can't be merged.
  """

  def labelled() -> Iterator[schema.Solution]:
    for solution in solutions:
      if not skip:
        _check_context(solution, to)
      if principle is not None:
        graded = rubrics.of_principle(solution, principle)
        if graded is None:
          left_out[_UNGRADED] += 1
          graded = dataclasses.replace(solution, labels=None, ratings=None)
        solution = graded
      if segmenter is not None:
        solution = turn_cuts.cut(solution, segmenter)
      if policy is not None:
        solution = with_targets(solution, policy)
      elif solution.ratings is not None and to not in _WITH_RATINGS:
        raise errors.InputError(
          f"solution {solution.id!r}: has ratings, and {to} holds labels; say"
          " what a rating of 0 is: `neutral=good`, bad or ignore"
        )
      yield solution

  for solution in annotators.merged(labelled(), merge, left_out):
    if fill:
      solution = filled(solution, policy)
    if skip:
      try:
        check(solution, to)
      except errors.InputError as e:
        left_out[_reason(e, solution)] += 1
        continue
    yield solution


@contextlib.contextmanager
def _readable(output: files.PathLike) -> Iterator[pathlib.Path]:
  """Yields a file that can be read back; in the end it is the output."""
  if str(output) != files.STDOUT:
    yield pathlib.Path(output)
    return
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "output"
    yield path
    with files.replacing(output, "wb") as f, open(path, "rb") as written:
      shutil.copyfileobj(written, f)


def with_targets(
  solution: schema.Solution, policy: encoding.LabelPolicy
) -> schema.Solution:
  """Returns the solution with a policy's targets as labels, without ratings."""
  if solution.labels is None and solution.ratings is None:
    return solution
  labels = tuple(encoding.step_labels(solution, policy))
  return dataclasses.replace(solution, labels=labels, ratings=None)


def filled(
  solution: schema.Solution, policy: encoding.LabelPolicy | None = None
) -> schema.Solution:
  """Returns the solution up to its last label, with earlier labels completed.

  This is for formats that need every label. A step before the last label gets
  the label that it has on its row's path (PRM800K's alternatives), by the
  policy. If it has no rating, it counts as right, because people continued from
  it. So a label that several solutions share counts in each. A solution without
  labels is returned unchanged.
  """
  labels = solution.labels or ()
  end = max((i for i, x in enumerate(labels, 1) if x is not None), default=0)
  if not end:
    return solution
  known = dict(enumerate(_path_targets(solution, policy)))
  begun = solution
  if solution.messages is not None and end < len(solution.steps):
    begun = schema.first_steps(solution, end)
  return dataclasses.replace(
    solution,
    steps=solution.steps[:end],
    raw_text=begun.raw_text,
    spans=None if solution.spans is None else solution.spans[:end],
    messages=begun.messages,
    labels=tuple(
      next(x for x in (label, known.get(i), 1.0) if x is not None)
      for i, label in enumerate(labels[:end])
    ),
  )


def _path_targets(solution, policy) -> list[float | None]:
  ratings = solution.extra.get("path_ratings", ())
  if policy is None or not ratings:
    return []
  path = dataclasses.replace(
    solution,
    steps=solution.steps[: len(ratings)],
    spans=None,
    labels=None,
    ratings=tuple(ratings),
    extra={},
  )
  keep = dataclasses.replace(policy, after_first_error="keep")
  return encoding.step_labels(path, keep)


@dataclasses.dataclass(frozen=True)
class Split:
  """How many solutions and problems each part has, and what was left out."""

  train: tuple[int, int]
  test: tuple[int, int]
  left_out: Counter[str]


def split(
  source: tuple[str, files.PathLike],
  to: str,
  train: files.PathLike,
  test: files.PathLike,
  share: float,
  *,
  against: decontamination.Index | None = None,
  skip: bool = False,
) -> Split:
  """Writes `share` of the problems to test, the others to train.

  A hash of the problem's letters and digits decides, as data.holdout does: no
  problem is in both parts, and neither the order nor other problems matter.

  Args:
    source: The format and the path to read.
    to: The format to write.
    train: The file of the training part.
    test: The file of the test part.
    share: The share of the problems in test, in (0, 1).
    against: Problems that must not be in train. An equal problem is refused, or
      left out of train with `skip`.
    skip: See against.

  Raises:
    InputError: A part would be empty, train holds a problem of `against`, or
      the format can't hold a solution.
  """
  form = writer(to)
  outputs.check(dict(train=train, test=test), sources.files_of(*source))
  left_out: Counter[str] = Counter()
  done, side_of = divided(
    sources.stream(*source, left_out),
    *(to, share, left_out, source[1]),
    against=against,
    skip=skip,
  )
  for path, name in ((train, "train"), (test, "test")):
    again = progress.through("write", sources.stream(*source, Counter()))
    form.write(path, (s for s in again if side_of(s) == name))
  return done


def divided(
  solutions: Iterable[schema.Solution],
  to: str,
  share: float,
  left_out: Counter[str],
  where: object,
  *,
  against: decontamination.Index | None = None,
  skip: bool = False,
) -> tuple[Split, Callable[[schema.Solution], str | None]]:
  """Returns how many solutions each part has, and what tells a solution's part.

  Args:
    solutions: The solutions.
    to: See split.
    share: See split.
    left_out: Counts those that are left out, by reason.
    where: What the solutions are read from.
    against: See split.
    skip: See split.

  Raises:
    InputError: See split.
  """
  sizes: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
  banned: dict[str, str] = {}
  for solution in progress.through("split", solutions):
    key = identity.problem_key(solution.problem)
    is_test = identity.share(solution.problem) < share
    if not is_test and against is not None and key in against.by_key:
      banned.setdefault(key, solution.id)
      left_out["solutions of problems of the given test sets"] += 1
      continue
    # Before anything is written.
    check(solution, to)
    sizes[is_test][key] += 1
  if banned and not skip:
    raise errors.InputError(
      f"{where}: {len(banned):,} problems of its training side are those"
      f" of `against`, the first in {next(iter(banned.values()))!r}; add"
      " `skip=True` to leave them out"
    )
  for is_test, name in ((False, "train"), (True, "test")):
    if not sizes[is_test]:
      raise errors.InputError(
        f"`{name}`: no problem falls to it with `share={share}`; change the"
        " share"
      )

  def side_of(solution: schema.Solution) -> str | None:
    if identity.share(solution.problem) < share:
      return "test"
    return None if identity.problem_key(solution.problem) in banned else "train"

  done = Split(
    train=(sizes[False].total(), len(sizes[False])),
    test=(sizes[True].total(), len(sizes[True])),
    left_out=left_out,
  )
  return done, side_of


def _reason(error: errors.InputError, solution: schema.Solution) -> str:
  """Returns what a refusal says, without the name of the solution."""
  reason = str(error).removeprefix(f"solution {solution.id!r}: ")
  return f"solutions refused: {reason.partition(';')[0]}"


def _changed(
  given: Iterator[schema.Solution], read: Iterator[schema.Solution]
) -> Counter[str] | None:
  """Returns how many solutions read back with another value, by field."""
  changed: Counter[str] = Counter()
  pairs = itertools.zip_longest(given, read)
  for a, b in progress.through("read back", pairs):
    if a is None or b is None:
      return None
    changed.update(
      name for name in _FIELDS if getattr(a, name) != getattr(b, name)
    )
    # What the reader of the form adds of its own isn't lost.
    changed.update(
      name for name, value in a.extra.items() if b.extra.get(name) != value
    )
    changed[_RECORDS] += not all(
      _is_in(x.record, y.record)
      for x, y in zip(a.messages or (), b.messages or ())
    )
  return +changed


def _is_in(given: Any, read: Any) -> bool:
  """Returns whether a value of a record read back with all that it holds."""
  if given in fields.EMPTY:
    return read in fields.EMPTY
  if isinstance(given, str) and isinstance(read, Mapping):
    # A call's arguments, as the text of an object.
    return fields.from_text(dict(arguments=given), "", "arguments") == read
  if isinstance(given, Mapping):
    return isinstance(read, Mapping) and all(
      _is_in(x, read.get(name)) for name, x in given.items()
    )
  if isinstance(given, list):
    return (
      isinstance(read, list)
      and len(given) == len(read)
      and all(map(_is_in, given, read))
    )
  return given == read


def texts(
  converted: Converted, source: files.PathLike, output: files.PathLike, to: str
) -> list[str]:
  """Returns the lines that report what was written and what was lost."""
  lines = [
    f"{output}: {converted.solutions:,} solutions of {source},"
    f" {converted.rows:,} rows of {to}"
  ]
  if converted.changed is None:
    lines.append("they read back as more or fewer solutions, not matched")
  elif not converted.changed:
    lines.append("they read back the same")
  else:
    changed = converted.changed
    own = [name for name in _FIELDS if name in changed]
    names = [*own, *sorted(changed.keys() - {*own})]
    counted = ", ".join(f"{name} of {changed[name]:,}" for name in names)
    lines.append(f"they read back the same but for: {counted}")
  return lines + sources.left_out_texts(converted.left_out)


def split_texts(
  done: Split, train: files.PathLike, test: files.PathLike
) -> list[str]:
  """Returns the lines that report how many solutions each part has."""
  lines = [
    f"{path}: {solutions:,} solutions of {problems:,} problems"
    for path, (solutions, problems) in ((train, done.train), (test, done.test))
  ]
  return lines + sources.left_out_texts(done.left_out)
