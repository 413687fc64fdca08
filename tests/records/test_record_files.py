"""Records are the same, in whatever of its forms a file holds them."""

import datetime
import gzip
import json

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pyarrow
from pyarrow import parquet
import pytest

from prm_jax import errors
from prm_jax.datasets import formats
from prm_jax.records import record_files

VALUE = st.recursive(
  st.none() | st.booleans() | st.integers(-9, 9) | st.text('a"[]{},:\\\né '),
  lambda inner: st.lists(inner) | st.dictionaries(st.text("ab{"), inner),
  max_leaves=8,
)
RECORDS = st.lists(st.dictionaries(st.text("abc"), VALUE), max_size=4)
LAYOUTS = {
  "lines": lambda rows: "".join(json.dumps(row) + "\n" for row in rows),
  "list": json.dumps,
  "indented list": lambda rows: json.dumps(rows, indent=2, ensure_ascii=False),
  "list of lines": lambda rows: "[" + ",\n".join(map(json.dumps, rows)) + "]\n",
  "indented objects": lambda rows: "\n".join(
    json.dumps(row, indent="\t") for row in rows
  ),
}


# 20 examples of each of five layouts.
@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=20)
@given(rows=RECORDS)
def test_json_of_any_layout_holds_the_same_records(layout, rows, folder):
  if layout == "indented objects":
    rows = [row | {"z": 0} for row in rows]  # {} has no line of its own
  path = folder / "records.json"
  path.write_text("\ufeff" + LAYOUTS[layout](rows), encoding="utf-8")
  assert [row for _, row in record_files.read_records(path)] == rows


def test_a_record_of_json_is_named_by_its_number(folder):
  path = folder / "places.json.gz"
  text = '\n[\n  {\n    "a": "\\n"\n  },\n\n  {"a": 1}, {"a": 2}\n]\n'
  path.write_bytes(gzip.compress(text.encode()))
  places = [where for where, _ in record_files.read_records(path)]
  assert places == [f"{path}:{number}" for number in (1, 2, 3)]


@pytest.mark.parametrize(
  "text, message",
  [
    ("{\n", ":2: not JSON: Expecting property name"),
    ('[{"a": 1}', ':1: expected "," or "]" after an entry'),
    ('[{"a": 1},', ':1: expected "," or "]" after an entry'),
    ('[\n{"a": 1},\n', ':2: expected "," or "]" after an entry'),
    ('[{"a": 1}]\n{"a": 2}', ":2: text after the end of the list"),
    ('[{"a": 1},\n]', ":2: not JSON"),
    ('[{"a": 1},\n2]', ":2: expected a JSON object, found int"),
    ('{\n"a": NaN}', ":1: not JSON: NaN"),
    ('{\n"a": 1, "a": 2}', ':1: "a" occurs twice'),
    ('{\n"a": ' + "[" * 100_000, ": nested too deeply"),
    ('[{"a": ' + "9" * 5_000 + "}]", ":1: a number of 5,000 characters"),
    ('{\n"a": "\\ud800"}', ":1: a lone surrogate"),
  ],
)
def test_damaged_json_is_one_line_with_its_place(text, message, folder):
  path = folder / "damaged.json"
  path.write_text(text)
  with pytest.raises(errors.InputError) as caught:
    list(record_files.read_records(path))
  assert str(caught.value).startswith(f"{path}{message}")
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", formats.FORMATS)
def test_every_format_is_read_from_json_of_any_layout(name, layout, folder):
  from test_formats import ROWS

  path = folder / "rows.jsonl"
  own = ("id", "idx", "unique_id")
  rows = [
    {k: str(i) if k in own else x for k, x in ROWS[name].items()}
    for i in range(2)
  ]
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  expected = [*formats.FORMATS[name].read(path)]
  path.write_text(LAYOUTS[layout](rows))
  assert [*formats.FORMATS[name].read(path)] == expected


# --- Parquet ----------------------------------------------------------------


def test_parquet_holds_the_records_that_were_written(folder):
  rows = [
    {
      "problem": f"{i}+1?",
      "steps": ["so", "ки"] * (i % 3),
      "labels": [0.5, None],
    }
    for i in range(3_000)
  ]
  path = folder / "rows.parquet"
  parquet.write_table(pyarrow.Table.from_pylist(rows), path)
  records = list(record_files.read_records(path))
  assert [row for _, row in records] == rows
  assert [where for where, _ in records][-1] == f"{path}:3000"


def test_values_of_parquet_become_those_of_json(folder):
  path = folder / "values.parquet"
  table = pyarrow.table(
    dict(
      missing=[float("nan")],
      day=[datetime.date(2026, 11, 25)],
      nested=[{"a": [{"b": 1.5}]}],
    )
  )
  parquet.write_table(table, path)
  ((_, record),) = record_files.read_records(path)
  assert record == dict(
    missing=None, day="2026-11-25", nested={"a": [{"b": 1.5}]}
  )


def test_what_json_can_not_hold_is_named_by_its_column(folder):
  path = folder / "bytes.parquet"
  parquet.write_table(pyarrow.table(dict(image=[b"\x00"])), path)
  with pytest.raises(
    errors.InputError, match=r':1: column "image" holds bytes'
  ):
    list(record_files.read_records(path))


def _one_column(array):
  return pyarrow.Table.from_arrays([array], names=["a"])


_NO_UTF8 = pyarrow.Array.from_buffers(
  pyarrow.string(),
  1,
  [None, pyarrow.py_buffer(b"\0\0\0\0\1\0\0\0"), pyarrow.py_buffer(b"\xff")],
)


@pytest.mark.parametrize(
  "table, message",
  [
    (_one_column(_NO_UTF8), "Invalid UTF8"),
    (_one_column(pyarrow.array([5], pyarrow.duration("ns"))), ""),
    (_one_column(pyarrow.array([1 << 30], pyarrow.date32())), "days="),
    (_one_column(pyarrow.array([float("inf")])), 'column "a" holds inf'),
    (
      pyarrow.Table.from_arrays(2 * [pyarrow.array([1])], names=["a", "a"]),
      'two columns "a"',
    ),
  ],
)
def test_parquet_that_has_no_record_is_one_line(table, message, folder):
  path = folder / "odd.parquet"
  parquet.write_table(table, path)
  with pytest.raises(errors.InputError) as caught:
    list(record_files.read_records(path))
  assert message in str(caught.value)
  assert str(caught.value).startswith(str(path))
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize("keep", [4, 50, -10])
def test_a_parquet_file_that_is_cut_is_one_line(keep, folder):
  path = folder / "whole.parquet"
  parquet.write_table(pyarrow.table(dict(a=list(range(100)))), path)
  path.write_bytes(path.read_bytes()[:keep])
  with pytest.raises(errors.InputError, match="damaged table") as caught:
    list(record_files.read_records(path))
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize("end", ["", "\n", " \n "])
def test_a_list_that_is_cut_after_a_comma_is_refused(end, folder):
  path = folder / "cut.json"
  path.write_text('[{"a": 1},\n{"a": 2},' + end)
  with pytest.raises(errors.InputError, match=r"cut.json:2: .*is the file cut"):
    list(record_files.read_records(path))
