"""Pages as plain values: what is empty is left out, and JSON has the rest."""

import json
import math

from prm_jax.evaluation import figures
from prm_jax.evaluation import tables
from prm_jax.reports import result_page

COLUMNS = dict(a=tables.Column("A"))
LINE = figures.Line("a", (0, 1), (math.nan, 0.5))


def test_a_section_without_lines_rows_or_facts_is_left_out():
  empty = result_page.Section(
    "empty",
    "Says much.",
    [figures.Panel("p", "x", "y", [])],
    tables.Table({}, [("a row without a column", {})]),
    note="And more.",
  )
  kept = [
    result_page.Section("drawn", panels=[figures.Panel("p", "x", "y", [LINE])]),
    result_page.Section("rows", table=tables.Table(COLUMNS, [("row", {})])),
    result_page.Section("facts", facts=[result_page.Fact("a", "b")]),
  ]
  assert list(result_page.Page(sections=[empty, *kept]).sections) == kept


def test_json_has_a_page_as_it_is_and_none_for_nan():
  drawn = [
    figures.Panel("p", "x", "y", [LINE], x_ticks=range(2)),
    *[figures.Panel("none", "x", "y", [])],
  ]
  number = tables.Number(0.5, 0.25, 0.75)
  table = tables.Table(dict(a=tables.Column("A")), [("row", dict(a=number))])
  page = result_page.Page(
    "t",
    "l",
    [result_page.Tile("a", "b", "c")],
    [result_page.Section("s", panels=drawn, table=table)],
  )
  made = json.loads(json.dumps(result_page.plain(page), allow_nan=False))
  assert made["tiles"] == [dict(label="a", value="b", small="c")]
  (section,) = made["sections"]
  (panel,) = section["panels"]
  assert panel["x_ticks"] == [0, 1]
  assert panel["lines"][0]["y"] == [None, 0.5]
  assert section["table"] == [["", "A, %"], ["row", "50.0 [25.0, 75.0]"]]


def test_nested_results_are_facts_of_names_and_texts():
  results = dict(a=dict(b=[0.5, [1, None]], c={}), d=None, e="x")
  told = [(x.name, x.text) for x in result_page.flat(results)]
  assert told == [
    *(("a.b", "0.5, (1, –)"), ("a.c", "{}"), ("d", "–"), ("e", "x")),
  ]


def test_how_it_was_made_leaves_out_what_isnt_known():
  made = result_page.made(dict(command="c", config=None, machine=dict(cores=2)))
  told = {x.name: x.text for x in made.facts}
  assert told == {"command": "c", "machine.cores": "2"}
  assert made.is_folded and result_page.made({}).is_empty
