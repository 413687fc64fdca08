"""One SELECT on a database of SQLite, of anyone's text, within limits.

A query reads a copy of the database in memory, with an authorizer that allows
nothing but reading, so no query sees another one. What is counted are
operations, not seconds, and functions of chance and time aren't allowed: a
query has one result whenever it runs. A text is limited before SQLite compiles
it, because a short one may compile for minutes: common table expressions, and
expressions of nested SELECTs, are copied for each use. SQLite must be 3.36 or
newer.
"""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import dataclasses
import itertools
import json
import math
import re
import sqlite3
from typing import Any

MAX_QUERY_CHARS = 600
MAX_SELECTS = 4
# Operations of SQLite's virtual machine, in thousands. Most are done in 0.01 s;
# the slowest query that was found took half a second.
MAX_KILO_OPERATIONS = 200
# Those of a query with LIKE, which reads a text once for each character of its
# pattern.
MAX_KILO_OPERATIONS_OF_LIKE = 10
# The longest text or row that a query may make, in bytes.
MAX_VALUE_BYTES = 2_000
MAX_ROWS = 20
MAX_RESULT_CHARS = 4_000

_SELECT = re.compile(r"\b(?:select|values)\b", re.I)
_NOT_ALLOWED = re.compile(r"\b(?:with|explain)\b", re.I)
# Of SQLite's limits, those that bound how a text of that length is compiled.
_LIMITS = {
  sqlite3.SQLITE_LIMIT_LENGTH: MAX_VALUE_BYTES,
  sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 50,
  sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 50,
  sqlite3.SQLITE_LIMIT_COLUMN: 100,
  sqlite3.SQLITE_LIMIT_ATTACHED: 0,
}
# None but LIKE takes more than a pass over its arguments (trim would: it isn't
# here), and none is of chance or time.
_FUNCTIONS = {
  *("count", "sum", "total", "avg", "min", "max", "group_concat"),
  *("rank", "dense_rank", "row_number", "coalesce", "ifnull", "nullif"),
  *("iif", "abs", "round", "length", "lower", "upper", "substr", "like"),
}
# The tables that hold the schema.
_SCHEMA = frozenset(("sqlite_master", "sqlite_schema"))


@dataclasses.dataclass(frozen=True)
class Result:
  """What a query gives.

  Args:
    columns: The names of the columns.
    rows: The rows, at most MAX_ROWS: int, float, str, bytes and None.
    is_cut: Whether there are further rows.
    reads: The names of the tables that the query reads.
    error: Why there is no result, in a line; "" if there is one.
  """

  columns: tuple[str, ...] = ()
  rows: tuple[tuple[Any, ...], ...] = ()
  is_cut: bool = False
  reads: frozenset[str] = frozenset()
  error: str = ""

  @property
  def is_look_up(self) -> bool:
    """Whether the query reads the schema, and no data."""
    return not self.error and bool(self.reads) and self.reads <= _SCHEMA

  @property
  def text(self) -> str:
    """What a tool says: JSON of columns and rows, or `error: ` and why."""
    if self.error:
      return f"error: {self.error}"
    record: dict[str, Any] = dict(
      columns=self.columns,
      rows=[[_plain(value) for value in row] for row in self.rows],
    )
    if self.is_cut:
      record["further_rows"] = True
    return json.dumps(record, ensure_ascii=False)


def make(statements: Sequence[tuple[str, Sequence[Sequence[Any]]]]) -> bytes:
  """Returns a database.

  Args:
    statements: Each a statement of SQL, and the rows that it is run for; a
      statement without rows is run once.
  """
  with contextlib.closing(sqlite3.connect(":memory:")) as connection:
    # Small pages: such a database has few rows.
    connection.execute("PRAGMA page_size = 512")
    for statement, rows in statements:
      if rows:
        connection.executemany(statement, rows)
      else:
        connection.execute(statement)
    connection.commit()
    return connection.serialize()


def run(database: bytes, query: str) -> Result:
  """Returns what a query gives on a database, which it can't change.

  Args:
    database: The database, as `make` returns it.
    query: One SELECT, of anyone's text.

  Returns:
    The result; what isn't allowed, fails or goes over a limit is one with an
    error.
  """
  if refused := _refused(query):
    return Result(error=refused)
  reads: set[str] = set()
  uses: set[str] = set()
  connection = sqlite3.connect(":memory:", isolation_level=None)
  try:
    connection.deserialize(database)
    connection.execute("PRAGMA query_only = 1")
    connection.execute("PRAGMA temp_store = MEMORY")
    for limit, value in _LIMITS.items():
      connection.setlimit(limit, value)
    connection.set_authorizer(_authorizer(reads, uses))
    connection.set_progress_handler(_counter(uses), 1_000)
    cursor = connection.execute(query)
    columns = tuple(x[0] for x in cursor.description or ())
    rows = tuple(cursor.fetchmany(MAX_ROWS + 1))
  except (sqlite3.Error, sqlite3.Warning, ValueError, MemoryError) as e:
    return Result(error=_why(e))
  finally:
    connection.close()
  if not columns:
    return Result(error="no statement; give a SELECT")
  cut = len(rows) > MAX_ROWS
  result = Result(columns, rows[:MAX_ROWS], cut, frozenset(reads))
  if len(result.text) > MAX_RESULT_CHARS:
    return Result(
      error=f"the result has more than {MAX_RESULT_CHARS:,} characters; select"
      " fewer columns or rows"
    )
  return result


def _refused(query: str) -> str:
  """Returns why a text isn't given to SQLite, or nothing."""
  if len(query) > MAX_QUERY_CHARS:
    return f"the query has more than {MAX_QUERY_CHARS} characters; shorten it"
  if match := _NOT_ALLOWED.search(query):
    return f"{match[0].upper()} isn't allowed; write a SELECT, with subqueries"
  if len(_SELECT.findall(query)) > MAX_SELECTS:
    return f"the query has more than {MAX_SELECTS} SELECTs; use fewer"
  return ""


def _authorizer(reads: set[str], uses: set[str]):
  """Returns a judge of a query, which notes its tables and functions."""

  def judge(action, first, second, *_):
    if action == sqlite3.SQLITE_READ:
      reads.add(first)
    elif action == sqlite3.SQLITE_FUNCTION and second.lower() in _FUNCTIONS:
      uses.add(second.lower())
    elif action == sqlite3.SQLITE_PRAGMA and first.lower() == "table_info":
      reads.add("sqlite_schema")
    elif action != sqlite3.SQLITE_SELECT:
      return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK

  return judge


def _counter(uses: set[str]):
  """Returns a function whose calls end a query after too many."""
  calls = itertools.count(1)
  # What a query uses is known once it is compiled.
  return lambda: (
    next(calls)
    > (MAX_KILO_OPERATIONS_OF_LIKE if "like" in uses else MAX_KILO_OPERATIONS)
  )


def _why(error: BaseException) -> str:
  message = " ".join(str(error).split())
  if message == "interrupted":
    return "the query takes too long; join on columns, or select less"
  if message == "not authorized":
    return "not allowed; only a SELECT is, which reads"
  return message[:200] or "out of memory"


def _plain(value: Any) -> Any:
  """Returns a value of SQLite as JSON has it."""
  if isinstance(value, bytes):
    return f"x'{value.hex()}'"
  if isinstance(value, float) and not math.isfinite(value):
    return str(value)
  return value
