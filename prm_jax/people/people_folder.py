"""A folder of people's work: the pool, the gold items, and the judgements.

work.json        what is asked, and how it is shared
solutions.jsonl  the pool; it may grow
gold.jsonl       solutions with known ratings, hidden among the others
judgements.db    what people said; see judgement_store
scores.jsonl     what the model of the last round says of pool and gold
links.txt        each person's link, which has a key in it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import datetime
import hashlib
import os
import pathlib
import secrets
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.evaluation import agreement
from prm_jax.people import judged_solutions
from prm_jax.people import judgement_store
from prm_jax.people import judgements
from prm_jax.people import work_queue
from prm_jax.records import identity
from prm_jax.records import jsonl
from prm_jax.runtime import files
from prm_jax.runtime import locks

JUDGEMENTS, SCORES = "judgements.db", "scores.jsonl"
_WORK, _LINKS = "work.json", "links.txt"
_POOL, _GOLD = "solutions.jsonl", "gold.jsonl"
_KEY_BYTES = 18


def items_of(
  task: judgements.Task, solutions: Sequence[schema.Solution]
) -> list[judgements.Item]:
  """Returns the items that solutions make.

  Args:
    task: What is asked: `pairs` takes two by two of a problem that aren't the
      same, `alternatives` all of it, and the others each by itself.
    solutions: The solutions; those without steps make no item, but for
      `alternatives`, where one may be a problem alone.
  """
  if task != "alternatives":
    solutions = [s for s in solutions if s.steps]
  if task in ("first_error", "per_step"):
    return [judgements.Item(s.id, task, (s,)) for s in solutions]
  groups: dict[Any, list[schema.Solution]] = {}
  for s in solutions:
    groups.setdefault(identity.problem_digest(s.problem), []).append(s)
  parts = [
    tuple(part)
    for group in groups.values()
    for part in (
      [group] if task == "alternatives" else zip(group[::2], group[1::2])
    )
    if task == "alternatives" or part[0].steps != part[1].steps
  ]
  return [judgements.Item(part[0].id, task, part) for part in parts]


class Folder:
  """A folder of people's work.

  Args:
    path: The folder.

  Raises:
    InputError: It isn't one.
  """

  def __init__(self, path: files.PathLike):
    self.path = pathlib.Path(path)
    work = files.read_json(self.path / _WORK)
    if work.get("task") not in judgements.TASKS:
      raise errors.InputError(
        f"{self.path / _WORK}: names no task; expected what `prm-jax label"
        " people` wrote"
      )
    self.task: judgements.Task = work["task"]
    # What the names that browsers have for items are made with.
    self.secret = str(work.get("secret", ""))
    known = {
      x: work[x] for x in work_queue.Design.__dataclass_fields__ if x in work
    }
    self.design = work_queue.Design(**known)

  @property
  def fingerprint(self) -> str:
    """What tells the folder from others, and stays while it grows."""
    return hashlib.sha256(self.secret.encode()).hexdigest()[:16]

  def items(self) -> list[judgements.Item]:
    """Returns the items of the pool, in the order of the file."""
    return items_of(self.task, self.pool())

  def pool(self) -> list[schema.Solution]:
    """Returns the solutions of the pool, gold not among them."""
    return [*jsonl.read_solutions(self.path / _POOL)]

  def gold(self) -> list[schema.Solution]:
    """Returns the solutions whose ratings are known."""
    path = self.path / _GOLD
    return [*jsonl.read_solutions(path)] if path.exists() else []

  def store(self, *, is_read: bool = False) -> judgement_store.JudgementStore:
    """Returns the judgements.

    Args:
      is_read: Whether they are only read.
    """
    path = self.path / JUDGEMENTS
    return judgement_store.JudgementStore(path, is_read=is_read)

  def states(
    self,
  ) -> Iterator[
    tuple[judgements.Item, judgements.State, list[judgement_store.Kept]]
  ]:
    """Yields each item that a person judged, what is said, and by which events.

    Items come in the order of the files, and people in that of their first
    event; gold items come last.
    """
    items = [*self.items(), *items_of(self.task, self.gold())]
    with contextlib.closing(self.store(is_read=True)) as store:
      events, drawn = store.events(), store.drawn()
    by: dict[str, dict[str, list[judgement_store.Kept]]] = {}
    for event in events:
      by.setdefault(event.item, {}).setdefault(event.annotator, []).append(
        event
      )
    for item in items:
      item = dataclasses.replace(item, drawn=drawn.get(item.id, ()))
      for said in by.get(item.id, {}).values():
        yield item, judgements.state_of(item, [x.event for x in said]), said

  def given_for(self) -> dict[tuple[str, str], str]:
    """Returns what each item was given to each person for; see work_queue."""
    with contextlib.closing(self.store(is_read=True)) as store:
      return {(x.annotator, x.item): x.why for x, _ in store.given()}

  def keys(self, annotators: Sequence[str]) -> dict[str, str]:
    """Returns each person's name by the key, which is made once.

    Args:
      annotators: The names of those who have access.
    """
    known = self._known_keys()
    return {
      known.get(name) or secrets.token_urlsafe(_KEY_BYTES): name
      for name in annotators
    }

  def _known_keys(self) -> dict[str, str]:
    """Returns the keys that were made so far, by name."""
    path = self.path / _LINKS
    if not path.exists():
      return {}
    rows = (x.split("\t") for x in files.read_text(path).splitlines())
    return {row[0]: row[-1].partition("#key=")[2] for row in rows}

  def write_links(self, url: str, keys: Mapping[str, str]) -> pathlib.Path:
    """Writes each person's link, for the owner of the folder alone.

    Args:
      url: The address of the page.
      keys: The names by key. Who isn't among them today keeps the link, which
        opens nothing, for another day.

    Returns:
      The file.
    """
    path = self.path / _LINKS
    known = self._known_keys() | {name: key for key, name in keys.items()}
    text = "".join(f"{name}\t{url}#key={key}\n" for name, key in known.items())
    new = path.with_name(f".{path.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(os.open(new, flags, 0o600), "w", encoding="utf-8") as f:
      f.write(text)
    os.replace(new, path)
    return path


def begin(
  path: files.PathLike,
  task: judgements.Task,
  design: work_queue.Design,
  solutions: Sequence[schema.Solution],
  gold: Sequence[schema.Solution],
) -> Folder:
  """Returns a folder of work, which is begun or goes on.

  Args:
    path: The folder.
    task: What is asked.
    design: How the work is shared.
    solutions: The pool. It may have more solutions than before, but none that
      changed.
    gold: Solutions with ratings or labels; the screening ones first.

  Raises:
    InputError: The folder holds other work, or solutions don't fit.
  """
  folder = pathlib.Path(path)
  work = dict(task=task) | {
    x: getattr(design, x) for x in work_queue.Design.__dataclass_fields__
  }
  kept, kept_gold = list[schema.Solution](), list[schema.Solution]()
  secret = ""
  if (folder / _WORK).exists():
    before = files.read_json(folder / _WORK)
    different = [k for k in work if before.get(k) != work[k]]
    if different:
      raise errors.InputError(
        f"{folder}: holds work of other options: {', '.join(different)}; give the"
        " same, or another `output`"
      )
    old = Folder(folder)
    kept, kept_gold, secret = old.pool(), old.gold(), old.secret
  elif folder.exists() and {x.name for x in folder.iterdir()} - {locks.NAME}:
    raise errors.InputError(
      f"{folder}: holds something else; give a new folder as `output`"
    )
  errors.raise_first(_changes(kept, solutions, "solution"))
  errors.raise_first(_changes(kept_gold, gold, "gold item"))
  solutions, gold = _both(kept, solutions), _both(kept_gold, gold)
  errors.raise_first(_faults(task, solutions, gold))
  folder.mkdir(parents=True, exist_ok=True)
  # First what marks the folder as ours: a killed start can be made again.
  files.write_json(
    folder / _WORK, work | dict(secret=secret or secrets.token_hex(16))
  )
  jsonl.write_solutions(folder / _POOL, solutions)
  jsonl.write_solutions(folder / _GOLD, gold)
  begun = Folder(folder)
  begun.store().close()  # is read before anybody has judged
  return begun


def _changes(
  kept: Sequence[schema.Solution], now: Sequence[schema.Solution], what: str
) -> Iterator[str]:
  """Yields which solutions aren't those that people may have judged."""
  before = {s.id: s for s in kept}
  for s in now:
    old = before.get(s.id)
    if old is None:
      continue
    if (old.problem, old.steps) != (s.problem, s.steps):
      yield f"{what} {s.id!r} had another text; give it another id"
    elif agreement.values_of(old) != agreement.values_of(s):
      yield f"{what} {s.id!r} had other ratings; give it another id"


def _both(
  kept: Sequence[schema.Solution], now: Sequence[schema.Solution]
) -> list[schema.Solution]:
  """Returns what was there, and what is new."""
  ids = {s.id for s in kept}
  return [*kept, *(s for s in now if s.id not in ids)]


def read(path: files.PathLike) -> Iterator[schema.Solution]:
  """Yields what people said, as solutions with ratings.

  Items that are open or weren't judged, and gold items, are left out.

  Args:
    path: The file judgements.db of a folder.

  Raises:
    InputError: It isn't one, or people were asked for preferences.
  """
  if pathlib.Path(path).name != JUDGEMENTS:
    raise errors.InputError(
      f"{path}: people's judgements are the file {JUDGEMENTS} of their folder"
    )
  folder = Folder(pathlib.Path(path).parent)
  if folder.task == "pairs":
    raise errors.InputError(
      f"{path}: people were asked which of two solutions is better, so there are"
      " no ratings of steps"
    )
  gold = {s.id for s in folder.gold()}
  judged = [*folder.states()]
  # Read later: while people work, each item was given before it was judged.
  given = folder.given_for()
  for item, state, said in judged:
    if item.id in gold:
      continue
    yield from judged_solutions.solutions(
      item,
      state,
      said[0].annotator,
      dict(
        seconds=round(sum(x.seconds for x in said), 1),
        timestamp=_when(said[-1].at),
        **{schema.GIVEN_FOR: given.get((said[0].annotator, item.id), "")},
      ),
    )


def _when(at: float) -> str:
  """Returns a time as PRM800K has it, here in UTC."""
  when = datetime.datetime.fromtimestamp(at, datetime.UTC)
  return when.replace(tzinfo=None).isoformat(timespec="milliseconds")


def preferences(folder: Folder) -> Iterator[dict[str, Any]]:
  """Yields which solutions people prefer, as records.

  Args:
    folder: A folder of the task `pairs`.
  """
  for item, state, said in folder.states():
    found = judged_solutions.preference(item, state, said[0].annotator)
    if found is not None:
      yield found


def _faults(
  task: judgements.Task,
  solutions: Sequence[schema.Solution],
  gold: Sequence[schema.Solution],
) -> Iterator[str]:
  """Yields why solutions can't be the work."""
  if not items_of(task, solutions):
    yield f"no solution has what the task {task} needs; give others as `input`"
  if gold and task not in ("first_error", "per_step"):
    yield f"`gold`: the task {task} has no known ratings; leave it out"
  known = {s.id for s in solutions}
  for s in gold:
    if s.id in known:
      yield f"`gold`: solution {s.id!r} is in the pool as well; take it out there"
    if agreement.first_error(agreement.values_of(s)) is None:
      yield (
        f"`gold`: solution {s.id!r} has no rating or label of a step up to its"
        " first error; rate these steps"
      )
