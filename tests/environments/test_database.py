"""A query of anyone's text reads one database, soon ends, and changes nothing."""

import json
import time

import pytest

from prm_jax.environments import database

CONTENT = database.make(
  [
    ("CREATE TABLE o (id INTEGER PRIMARY KEY, a INTEGER, t TEXT)", ()),
    ("INSERT INTO o VALUES (?, ?, ?)", [(i, i % 7, "x") for i in range(1, 41)]),
  ]
)


def _text(query):
  return database.run(CONTENT, query).text


def _nested(depth, terms):
  query = "SELECT a FROM o"
  for _ in range(depth):
    query = f"SELECT coalesce({','.join(['a'] * terms)}) a FROM({query})"
  return query


def test_a_result_is_json_with_exact_values():
  query = "SELECT 3 AS n, 0.5, 'NULL' AS é, NULL, x'ff00', 1e999, 'ж🙂'"
  assert json.loads(_text(query)) == dict(
    columns=["n", "0.5", "é", "NULL", "x'ff00'", "1e999", "'ж🙂'"],
    rows=[[3, 0.5, "NULL", None, "x'ff00'", "inf", "ж🙂"]],
  )


def test_further_rows_are_left_out_and_told():
  def shown(limit):
    return json.loads(_text(f"SELECT id FROM o ORDER BY id LIMIT {limit}"))

  rows = [[i + 1] for i in range(database.MAX_ROWS)]
  assert shown(database.MAX_ROWS) == dict(columns=["id"], rows=rows)
  assert shown(database.MAX_ROWS + 1) == dict(
    columns=["id"], rows=rows, further_rows=True
  )


@pytest.mark.parametrize(
  ("query", "why"),
  {
    "INSERT INTO o VALUES (99, 1, 'x')": "only a SELECT is",
    "UPDATE o SET a = 0": "only a SELECT is",
    "DELETE FROM o": "only a SELECT is",
    "DROP TABLE o": "only a SELECT is",
    "CREATE TEMP TABLE z (a)": "only a SELECT is",
    "BEGIN": "only a SELECT is",
    "PRAGMA query_only = 0": "only a SELECT is",
    "PRAGMA writable_schema = 1": "only a SELECT is",
    "SELECT * FROM pragma_query_only": "only a SELECT is",
    "ATTACH 'written.db' AS z": "only a SELECT is",
    "VACUUM INTO 'written.db'": "denied",
    "SELECT load_extension('z')": "not authorized to use function",
    "SELECT trim(t, 'x') FROM o": "not authorized to use function",
    "SELECT random()": "not authorized to use function",
    "SELECT CURRENT_TIMESTAMP": "not authorized to use function",
    "SELECT printf('%.*c', 99999999, 'x')": "not authorized to use function",
    "SELECT 1; SELECT 2": "one statement",
    "SELECT 1; DROP TABLE o": "one statement",
    "SELECT 1\0": "null character",
    "SELECT '\ud800'": "surrogates",
    "SELECT CAST(x'ff' AS TEXT)": "UTF-8",
    "": "no statement",
    " -- nothing": "no statement",
    "SELEKT 1": "syntax error",
    "SELECT b FROM o": "no such column: b",
    "EXPLAIN SELECT 1": "EXPLAIN isn't allowed",
    "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"
    " SELECT * FROM c": "WITH isn't allowed",
    "SELECT count(*) FROM o a, o b, o c, o d, o e": "takes too long",
    "SELECT a.id FROM o a, o b, o c, o d ORDER BY b.t || c.t": "too long",
    f"SELECT group_concat(a.t || '{'y' * 90}') FROM o a": "too big",
    "SELECT " + "+".join(["1"] * 200): "too large",
    f"SELECT {'(' * 200}1{')' * 200}": "overflow",
    f"SELECT {', '.join(['t'] * 101)} FROM o": "too many columns",
    f"SELECT {', '.join(['t || 12345678901234567890'] * 15)} FROM o": "4,000",
    f"SELECT '{'x' * database.MAX_QUERY_CHARS}'": "600 characters",
    _nested(4, 60): "4 SELECTs",
  }.items(),
)
def test_what_is_not_allowed_is_an_error_in_words(
  query, why, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  result = database.run(CONTENT, query)
  assert result.text.startswith("error: ") and why in result.text
  assert "\n" not in result.text and len(result.text) < 300
  assert not result.rows and not result.is_look_up
  assert not [*tmp_path.iterdir()]
  (row,) = json.loads(_text("SELECT count(*), sum(a) FROM o"))["rows"]
  assert row == [40, sum(i % 7 for i in range(1, 41))]


def test_the_longest_text_that_is_compiled_soon_ends():
  """Each level multiplies: four of them would take minutes and gigabytes."""
  query = _nested(3, 78)
  assert len(query) > database.MAX_QUERY_CHARS - 50
  before = time.process_time()
  database.run(CONTENT, query)
  assert time.process_time() - before < 20


def test_the_slowest_functions_soon_end():
  """Each takes half a second at most; a pass for each character takes more."""
  joined = f"(SELECT group_concat('{'a' * 48}', '') y FROM o), o a, o b, o c"
  for value in (
    f"y || c.id LIKE '%{'A' * 46}b'",
    "DISTINCT y || b.id || c.id COLLATE NOCASE",
    f"DISTINCT trim(y, '{'b' * 150}a' || c.id)",
  ):
    before = time.process_time()
    assert _text(f"SELECT count({value}) FROM {joined}").startswith("error: ")
    assert time.process_time() - before < 2, value


def test_a_query_with_like_reads_the_rows_of_a_join():
  query = "SELECT count(*) FROM o a, o b WHERE b.id = a.a + 1 AND a.t LIKE '%X'"
  assert json.loads(_text(query))["rows"] == [[40]]


@pytest.mark.parametrize(
  ("query", "is_look_up"),
  {
    "SELECT name, sql FROM sqlite_master": True,
    "SELECT sql FROM SQLITE_SCHEMA WHERE name = 'o'": True,
    "PRAGMA table_info(o)": True,
    "SELECT 1": False,
    "SELECT id FROM o": False,
    "SELECT (SELECT count(*) FROM o), name FROM sqlite_master": False,
    "SELECT x FROM sqlite_master": False,
  }.items(),
)
def test_a_look_up_reads_the_schema_and_no_data(query, is_look_up):
  assert database.run(CONTENT, query).is_look_up == is_look_up
