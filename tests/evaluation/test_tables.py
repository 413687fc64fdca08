"""Tables as files: whole numbers, and names that do nothing."""

import csv
import re

import pytest

from prm_jax.evaluation import tables

HOSTILE = [
  "a|b",
  "a\nb | c",
  "\\input{x}",
  "50 % & $x_1^2$ #~{}",
  "<script>alert(1)</script>",
  "[x](javascript:1) `code` *a* _b_",
  "=cmd()",
  "-1+2",
  'a,"b"',
  "\x1b[31m\u202e",
]
COLUMNS = dict(
  f1=tables.Column("F1"),
  auroc=tables.Column("AUROC", False),
  num=tables.Column("n_1", False),
)


def _table(*names):
  numbers = dict(
    f1=tables.Number(1 / 3, 0.1 + 0.2, 0.5),
    auroc=tables.Number(None),
    num=tables.Number(1_234),
  )
  return tables.Table(COLUMNS, [(name, numbers) for name in names])


def _written(folder, ending, *names):
  path = folder / f"t{ending}"
  tables.write(path, _table(*names))
  return path.read_text()


def test_markdown_and_latex_have_numbers_as_one_reads_them(tmp_path):
  assert _written(tmp_path, ".md", "model") == (
    "<!-- prm-jax eval -->\n"
    "|  | F1, % | AUROC | n\\_1 |\n"
    "| --- | ---: | ---: | ---: |\n"
    "| model | 33.3 [30.0, 50.0] | - | 1,234 |\n"
  )
  assert _written(tmp_path, ".tex", "model") == (
    "% prm-jax eval\n"
    "\\begin{tabular}{lrrr}\n\\hline\n"
    " & F1, \\% & AUROC & n\\_1 \\\\\n\\hline\n"
    "model & 33.3 [30.0, 50.0] & - & 1,234 \\\\\n\\hline\n"
    "\\end{tabular}\n"
  )


def test_csv_has_a_line_for_each_number_as_precise_as_it_is(tmp_path):
  _written(tmp_path, ".csv", "model")
  with open(tmp_path / "t.csv", newline="") as f:
    rows = [*csv.DictReader(f)]
  assert [r["measure"] for r in rows] == ["f1", "auroc", "num"]
  assert float(rows[0]["value"]) == 1 / 3
  assert float(rows[0]["low"]) == 0.1 + 0.2
  assert (rows[1]["value"], rows[2]["value"], rows[2]["low"]) == (
    "",
    "1234",
    "",
  )


def test_a_row_that_lacks_a_measure_leaves_its_cell_empty(tmp_path):
  table = tables.Table(COLUMNS, [("a", dict(auroc=tables.Number(0.5)))])
  tables.write(tmp_path / "t.md", table)
  assert (tmp_path / "t.md").read_text().endswith("| a |  | 0.5000 |  |\n")
  tables.write(tmp_path / "t.csv", table)
  assert (tmp_path / "t.csv").read_text().count("\n") == 2


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_stays_in_its_cell_of_markdown(name, tmp_path):
  *_, row = _written(tmp_path, ".md", name).splitlines()
  assert len(re.findall(r"(?<!\\)\|", row)) == 5
  cell = row.partition(" | 33.3 ")[0].replace("\\\\", "")
  assert not re.search(r"(?<!\\)[\[\]`*_$<~]|\\[a-z]", cell)
  assert row.isprintable()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_text_in_latex(name, tmp_path):
  lines = _written(tmp_path, ".tex", name).splitlines()
  (row,) = [x for x in lines if "1,234" in x]
  assert len(lines) == 8
  cell = row.removesuffix(" & 33.3 [30.0, 50.0] & - & 1,234 \\\\")
  assert cell != row
  known = r"\\text(backslash|asciitilde|asciicircum|less|greater|bar)\{\}"
  left = re.sub(rf"{known}|\\[&%$#_{{}}]", "", cell)
  assert not re.search(r"[\\&%$#_{}~^<>|]", left)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_one_cell_of_csv_and_no_formula(name, tmp_path):
  _written(tmp_path, ".csv", name)
  with open(tmp_path / "t.csv", newline="") as f:
    rows = [*csv.reader(f)]
  assert {len(row) for row in rows} == {5} and len(rows) == 4
  assert rows[1][0][0] not in "=+-@" and rows[1][0].isprintable()


@pytest.mark.parametrize("ending", tables.STARTS)
def test_a_table_knows_its_own_files(ending, tmp_path):
  path = tmp_path / f"t{ending}"
  path.write_text("row,value\n| a |\n")
  assert not tables.is_table(path)
  tables.write(path, _table("a"))
  assert tables.is_table(path)
