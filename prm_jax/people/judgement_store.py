"""Judgements on disk: durable before anybody is told that they are kept.

An SQLite file in WAL mode with full synchronisation: what `add` has returned
stays through a kill or a loss of power. Events have ids that their writers
make, so one that is sent again is kept once.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import dataclasses
import json
import os
import pathlib
import sqlite3
import threading
from typing import Any, NamedTuple

from prm_jax import errors
from prm_jax.people import judgements
from prm_jax.runtime import files

_TABLES = """
CREATE TABLE IF NOT EXISTS events (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  annotator TEXT NOT NULL,
  item TEXT NOT NULL,
  at REAL NOT NULL,
  seconds REAL NOT NULL,
  event TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS of_item ON events (annotator, item, number);
CREATE TABLE IF NOT EXISTS given (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  annotator TEXT NOT NULL,
  item TEXT NOT NULL,
  why TEXT NOT NULL,
  at REAL NOT NULL,
  UNIQUE (annotator, item)
);
"""
# Since version 2.
_DRAWN = """
CREATE TABLE IF NOT EXISTS drawn (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  item TEXT NOT NULL,
  path TEXT NOT NULL,
  round INTEGER NOT NULL,
  draw TEXT NOT NULL,
  at REAL NOT NULL,
  UNIQUE (item, path, round)
);
"""
_VERSION = 2


class Kept(NamedTuple):
  """An event that is kept.

  Args:
    number: Its place among all.
    id: The id that its writer made.
    annotator: Who judged.
    item: The id of the item.
    at: When it was kept, in seconds since 1970.
    seconds: How long the person worked for it, without idle time.
    event: What it says; see judgements.
  """

  number: int
  id: str
  annotator: str
  item: str
  at: float
  seconds: float
  event: dict[str, Any]


class Given(NamedTuple):
  """An item that was given to a person.

  Args:
    annotator: The person.
    item: The id of the item.
    why: What it was given for; see work_queue.
  """

  annotator: str
  item: str
  why: str


class Conflict(errors.InputError):
  """An event follows other events than those that are kept."""


class Unkept(errors.InputError):
  """The file can't be used, so nothing is kept."""


def _mode(path: files.PathLike, is_read: bool) -> str:
  """Returns how SQLite opens a file, as the end of its address."""
  if not is_read:
    return ""
  log = pathlib.Path(f"{os.fspath(path)}-wal")
  is_locked = not os.access(pathlib.Path(path).absolute().parent, os.W_OK)
  # SQLite reads along with a writer by files beside this one. Where it can't
  # make them nobody writes, and all is in the file unless a log is left.
  if is_locked and not (log.exists() and log.stat().st_size):
    return "?immutable=1"
  return "?mode=ro"


class JudgementStore:
  """The judgements of a folder.

  Args:
    path: The SQLite file, which is made if it isn't there.
    is_read: Whether it is only read, also in a folder that can't be written; it
      must then be there.

  Raises:
    InputError: It is of another version.
    Unkept: It is no such file, or can't be written.
  """

  def __init__(self, path: files.PathLike, *, is_read: bool = False):
    self._path = path
    self._lock = threading.Lock()
    with self._errors():
      url = pathlib.Path(path).absolute().as_uri() + _mode(path, is_read)
      self._db = sqlite3.connect(
        url, uri=True, check_same_thread=False, timeout=30
      )
      # Transactions are begun and ended by hand.
      self._db.isolation_level = None
      if not is_read:
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
      (version,) = self._db.execute("PRAGMA user_version").fetchone()
      if version in (0, 1) and not is_read:
        self._db.executescript(_TABLES + _DRAWN)
        self._db.execute(f"PRAGMA user_version={_VERSION}")
      elif version not in (1, _VERSION):
        raise errors.InputError(
          f"{path}: is of another version of prm_jax ({version} instead of"
          f" {_VERSION}); export it by the one that wrote it"
        )
      self._has_drawn = version == _VERSION or not is_read

  def close(self) -> None:
    """Ends the use of the file."""
    with self._lock:
      self._db.close()

  def events(
    self, annotator: str | None = None, item: str | None = None
  ) -> list[Kept]:
    """Returns events in the order in which they were kept.

    Args:
      annotator: Only this person's.
      item: Only those of this item.
    """
    with self._lock, self._errors():
      return self._events(annotator, item)

  def add(
    self,
    item: judgements.Item,
    annotator: str,
    event: judgements.Event,
    *,
    id: str,
    after: int,
    seconds: float,
    at: float,
  ) -> tuple[Kept, judgements.State]:
    """Keeps an event; returns it and what the person says after it.

    An event whose id is kept already is not kept again, and comes back as it
    was.

    Args:
      item: The item.
      annotator: Who judges.
      event: What is said.
      id: The id that the writer made.
      after: The number of the last event of this person on this item that the
        writer knew of; 0 for none. So of two tabs that judge at once the second
        is told.
      seconds: How long the person worked for it.
      at: Now, in seconds since 1970.

    Raises:
      InputError: The event doesn't fit what stands; nothing is kept.
      Unkept: The file can't be written.
      Conflict: Another event came in between, or the id is of another event.
    """
    with self._lock, self._errors(), self._transaction():
      before = self._events(annotator, item.id)
      same = [x for x in before if x.id == id]
      if same:
        if same[0].event != event:
          raise Conflict(f"event {id}: is kept already and says something else")
        return same[0], judgements.state_of(item, [x.event for x in before])
      last = before[-1].number if before else 0
      if last != after:
        # A browser isn't told the item's id.
        raise Conflict("judged elsewhere in between; load it again")
      state = judgements.check(item, [x.event for x in before], event)
      try:
        added = self._db.execute(
          "INSERT INTO events (id, annotator, item, at, seconds, event)"
          " VALUES (?, ?, ?, ?, ?, ?)",
          (id, annotator, item.id, at, seconds, json.dumps(event)),
        )
      except sqlite3.IntegrityError:
        raise Conflict(f"event {id}: the id is of another item") from None
      assert added.lastrowid is not None
      number = added.lastrowid
      kept = Kept(number, id, annotator, item.id, at, seconds, dict(event))
    return kept, state

  def given(self) -> list[tuple[Given, float]]:
    """Returns all items that were given, in their order, and when."""
    with self._lock, self._errors():
      rows = self._db.execute(
        "SELECT annotator, item, why, at FROM given ORDER BY number"
      )
      return [(Given(*row), at) for *row, at in rows]

  def give(self, given: Given, at: float) -> None:
    """Keeps that an item was given to a person; once.

    Args:
      given: What was given.
      at: Now, in seconds since 1970.
    """
    with self._lock, self._errors(), self._transaction():
      self._db.execute(
        "INSERT OR IGNORE INTO given (annotator, item, why, at)"
        " VALUES (?, ?, ?, ?)",
        (*given, at),
      )

  def drawn(self) -> dict[str, tuple[judgements.Draw, ...]]:
    """Returns what a policy wrote for each item, in its order."""
    found: dict[str, list[judgements.Draw]] = {}
    if not self._has_drawn:
      return {}
    with self._lock, self._errors():
      rows = self._db.execute(
        "SELECT item, path, draw FROM drawn ORDER BY number"
      )
      for item, path, text in rows:
        draw = json.loads(text)
        found.setdefault(item, []).append(
          judgements.Draw(
            *(tuple(json.loads(path)), tuple(draw["known"])),
            *(draw["steps"], draw["is_end"]),
          )
        )
    return {item: tuple(draws) for item, draws in found.items()}

  def draw(
    self, item: judgements.Item, draw: judgements.Draw, at: float
  ) -> judgements.Item:
    """Keeps what a policy wrote; returns the item with it.

    Args:
      item: The item as it is kept.
      draw: What was written for it.
      at: Now, in seconds since 1970.

    Raises:
      Unkept: The file can't be written, or has another draw there.
    """
    number = len(item.draws(draw.path))
    record = dict(known=draw.known, steps=draw.steps, is_end=draw.is_end)
    with self._lock, self._errors(), self._transaction():
      self._db.execute(
        "INSERT INTO drawn (item, path, round, draw, at)"
        " VALUES (?, ?, ?, ?, ?)",
        (item.id, json.dumps(draw.path), number, json.dumps(record), at),
      )
    return dataclasses.replace(item, drawn=(*item.drawn, draw))

  def _events(self, annotator: str | None, item: str | None) -> list[Kept]:
    asked = dict(annotator=annotator, item=item)
    given = {name: value for name, value in asked.items() if value is not None}
    where = " AND ".join(f"{name} = :{name}" for name in given) or "1"
    rows = self._db.execute(
      "SELECT number, id, annotator, item, at, seconds, event FROM events"
      f" WHERE {where} ORDER BY number",
      given,
    )
    return [Kept._make([*head, json.loads(x)]) for *head, x in rows]

  @contextlib.contextmanager
  def _transaction(self) -> Iterator[None]:
    """Keeps all of it or nothing."""
    # Another process that writes is waited for.
    self._db.execute("BEGIN IMMEDIATE")
    try:
      yield
    except BaseException:
      self._db.execute("ROLLBACK")
      raise
    self._db.execute("COMMIT")

  @contextlib.contextmanager
  def _errors(self) -> Iterator[None]:
    try:
      yield
    except (sqlite3.Error, OSError) as e:
      raise Unkept(
        f"{self._path}: can't be used for judgements: {e}; check the folder and"
        " its free space"
      ) from e
