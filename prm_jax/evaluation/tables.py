"""A table of numbers with intervals, as Markdown, LaTeX and CSV.

Names come from files and may hold anything: each form writes them as text that
does nothing there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import csv
import dataclasses
import io
import re

from prm_jax.runtime import files
from prm_jax.runtime import terminal

# What the files begin with, by the ending of their names.
STARTS = {
  ".md": "<!-- prm-jax eval -->\n",
  ".tex": "% prm-jax eval\n",
  ".csv": "row,measure,value,low,high\n",
}
_LATEX = {
  "\\": r"\textbackslash{}",
  "~": r"\textasciitilde{}",
  "^": r"\textasciicircum{}",
  "<": r"\textless{}",
  ">": r"\textgreater{}",
  "|": r"\textbar{}",
} | {character: f"\\{character}" for character in "&%$#_{}"}


@dataclasses.dataclass(frozen=True)
class Number:
  """A number of the results.

  Args:
    value: The number; None if it isn't defined.
    low: The lower end of its 95 % interval; None if it has none.
    high: The upper end.
  """

  value: float | None
  low: float | None = None
  high: float | None = None


@dataclasses.dataclass(frozen=True)
class Column:
  """A measure.

  Args:
    label: What it is called in Markdown and LaTeX.
    is_share: Whether these show it in hundredths.
    unit: What they call these.
    digits: How many digits after the point they show of any other number.
  """

  label: str
  is_share: bool = True
  unit: str = "%"
  digits: int = 4


@dataclasses.dataclass(frozen=True)
class Table:
  """Measures of several things.

  Args:
    columns: The measures by their names in the results.
    rows: The name of each row, and its numbers by measure; those that it hasn't
      are left out.
  """

  columns: Mapping[str, Column]
  rows: Sequence[tuple[str, Mapping[str, Number]]]


def write(path: files.PathLike, table: Table) -> None:
  """Writes a table in the form that the ending of the name says.

  Args:
    path: The file, NAME.md, NAME.tex or NAME.csv.
    table: The table.
  """
  ending = next(x for x in STARTS if str(path).endswith(x))
  with files.replacing(path) as f:
    f.write(STARTS[ending] + _FORMS[ending](table))


def is_table(path: files.PathLike) -> bool:
  """Returns whether `write` wrote a file.

  Args:
    path: The file.
  """
  with open(path, "rb") as f:
    start = f.read(100)
  return start.startswith(tuple(x.encode() for x in STARTS.values()))


def _markdown(table: Table) -> str:
  def name(text):
    text = text.replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*_\[\]|~$])", r"\\\1", text)

  head, *body = texts(table, name)
  rule = ["---"] + ["---:"] * len(table.columns)
  return "".join(f"| {' | '.join(row)} |\n" for row in (head, rule, *body))


def _latex(table: Table) -> str:
  def name(text):
    return "".join(_LATEX.get(character, character) for character in text)

  head, *body = (f"{' & '.join(row)} \\\\\n" for row in texts(table, name))
  return (
    f"\\begin{{tabular}}{{l{'r' * len(table.columns)}}}\n\\hline\n{head}"
    f"\\hline\n{''.join(body)}\\hline\n\\end{{tabular}}\n"
  )


def _csv(table: Table) -> str:
  """Returns a line for each number, as precise as it is."""
  text = io.StringIO()
  writer = csv.writer(text, lineterminator="\n")
  for name, numbers in table.rows:
    # A spreadsheet would run what begins so.
    shown = terminal.visible(name, one_line=True)
    shown = f"'{shown}" if shown[:1] in ("=", "+", "-", "@") else shown
    for measure, x in numbers.items():
      writer.writerow((shown, measure, x.value, x.low, x.high))
  return text.getvalue()


_FORMS = {".md": _markdown, ".tex": _latex, ".csv": _csv}


def texts(
  table: Table, name: Callable[[str], str] = lambda text: text
) -> list[list[str]]:
  """Returns the head and the rows of a table as a reader wants them.

  Args:
    table: The table.
    name: Writes a label or the name of a row so that it does nothing in the
      form of the table.
  """
  labels = [
    x.label + f", {x.unit}" * x.is_share for x in table.columns.values()
  ]
  return [
    ["", *map(name, labels)],
    *(
      [
        name(terminal.visible(row, one_line=True)),
        *(
          _text(numbers[measure], column) if measure in numbers else ""
          for measure, column in table.columns.items()
        ),
      ]
      for row, numbers in table.rows
    ),
  ]


def lines(table: Table) -> list[str]:
  """Returns a table as lines of text, in columns.

  Args:
    table: The table.
  """
  rows = texts(table)
  widths = [max(map(len, column)) for column in zip(*rows)]
  return [
    "  ".join(
      text.ljust(width) if i == 0 else text.rjust(width)
      for i, (text, width) in enumerate(zip(row, widths))
    ).rstrip()
    for row in rows
  ]


def _text(x: Number, column: Column) -> str:
  """Returns a number and its interval as a reader wants them."""
  if x.value is None:
    return "-"
  if isinstance(x.value, int):
    return f"{x.value:,}"

  def short(value):
    if column.is_share:
      return f"{100 * value:.1f}"
    return f"{value:,.{column.digits}f}"

  if x.low is None or x.high is None:
    return short(x.value)
  return f"{short(x.value)} [{short(x.low)}, {short(x.high)}]"
